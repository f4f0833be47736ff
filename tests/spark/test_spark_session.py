"""Where Spark runs: with the Java of the extra, with a user's settings and session, with executors of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors.utils import _with_origin
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.datasource import DataSource

import mainstem
from mainstem import Flow
from mainstem.errors import Invalid, Unavailable
from mainstem.spark.spark_session import SETTINGS, _check_python, _environment_ready, session_settings

# A program in a process of its own: what it says is the last line of its output, as JSON.
PROGRAM = """
import json, os, sys
import mainstem
from pyspark.sql import functions as F
from mainstem.flows.flow import Flow

def flows(stem):
    counted = stem.topic("clicks").stream().groupBy("page").agg(F.count("*").alias("clicks"))
    yield Flow(counted, into=stem.view("clicks_per_page", key="page"))

def listening():
    found = []
    for family in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{family}").read().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A":
                found.append((parts[1].split(":")[0], parts[9]))
    return found

def ours(pids):
    inodes = set()
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            pass
    return inodes

def family_of(root):
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found

with mainstem.open(sys.argv[1], spark=sys.argv[2]) as stem:
    clicks = stem.create_topic("clicks", schema="page STRING", partitions=2)
    clicks.append([{"page": "a"}, {"page": "b"}, {"page": "a"}])
    stem.run(flows, until="idle")
    inodes = ours(family_of(os.getpid()))
    said = {
        "rows": stem.view("clicks_per_page").to_arrow().to_pylist(),
        "java": os.environ.get("JAVA_HOME", ""),
        "memory": stem.spark.conf.get("spark.driver.memory"),
        "zone": stem.spark.conf.get("spark.sql.session.timeZone"),
        "addresses": sorted({address for address, inode in listening() if inode in inodes}),
    }
    print(json.dumps(said))
"""

ROWS = [{"page": "a", "clicks": 2}, {"page": "b", "clicks": 1}]
# 127.0.0.1 as the kernel writes it, alone and inside of IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def run_program(home: Path, address: str, **environment: str) -> dict:
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_CONF_DIR")}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), address],
        env=inherited | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    # A user sees nothing of what Java says to itself.
    assert said.stderr == ""
    return json.loads(said.stdout.splitlines()[-1])


@pytest.mark.starts_servers
def test_without_java_the_runtime_of_the_extra_is_used_and_a_user_s_settings_win(tmp_path, users_java):
    tools = tmp_path / "bin"
    tools.mkdir()
    # Everything that a machine has, except Java.
    for command in Path("/usr/bin").iterdir():
        if not command.name.startswith("java"):
            (tools / command.name).symlink_to(command)
    (tmp_path / "spark-defaults.conf").write_text(
        "# mine\nspark.driver.memory 1g\nspark.sql.session.timeZone=Asia/Tokyo\n"
    )
    said = run_program(tmp_path / "home", "local[2]", PATH=str(tools), SPARK_CONF_DIR=str(tmp_path))
    assert said["rows"] == ROWS
    assert said["java"].endswith("/java")
    assert (said["memory"], said["zone"]) == ("1g", "Asia/Tokyo")
    assert set(said["addresses"]) <= LOOPBACK


@pytest.mark.starts_servers
def test_executors_of_their_own_give_the_same(tmp_path):
    said = run_program(tmp_path / "home", "local-cluster[2,1,1024]")
    assert said["rows"] == ROWS
    assert said["zone"] == SETTINGS["spark.sql.session.timeZone"]
    assert set(said["addresses"]) <= LOOPBACK


def test_streams_that_begin_at_once_add_nothing_to_the_variables_that_they_share(stem, tmp_path):
    """Spark keeps them in a map without a lock: what it will set must be in it from the start."""
    spark = stem.spark

    class Probe(DataSource):
        @classmethod
        def name(cls):
            return f"probe_{tmp_path.name}"

    environment = dict(spark.sparkContext.environment)
    with _environment_ready(spark):
        spark.dataSource.register(Probe)
    assert spark.sparkContext.environment == environment

    def shared(name):
        return spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name).dataSourceCls().envVars()

    def flows(stem):
        yield Flow(stem.topic("clicks").stream(), into=stem.view("pages", key="page"))

    stem.create_topic("clicks", schema="page STRING").append([{"page": "a"}])
    stem.run(flows, until="idle")
    # A stream of the one has run, none of the other.
    assert set(shared("mainstem_topic")) == set(shared(Probe.name()))


def test_a_session_made_from_another_one_will_do(spark, tmp_path):
    with mainstem.open(tmp_path / "first", spark=spark) as first:
        first.create_topic("clicks", schema="page STRING")
        first.topic("clicks").stream()
    with mainstem.open(tmp_path / "second", spark=spark.newSession()) as second:
        second.create_topic("clicks", schema="page STRING").append([{"page": "a"}])
        second.run(
            lambda stem: [Flow(stem.topic("clicks").stream(), into=stem.view("pages", key="page"))], until="idle"
        )
        assert second.view("pages").to_arrow().to_pylist() == [{"page": "a"}]


def test_columns_do_not_tell_java_where_the_program_makes_them(spark: SparkSession) -> None:
    origin = spark._jvm.org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin  # type: ignore[union-attr]
    seen = []

    def look() -> Column:
        seen.append(origin.get().isDefined())
        return functions.lit(1)

    _with_origin(look)()
    assert seen == [False]


def test_a_session_that_was_stopped_is_named(tmp_path):
    class Stopped:
        _jsc = None

    class Session:
        sparkContext = Stopped()  # noqa: N815 - Spark's name

    with mainstem.open(tmp_path / "home", spark=Session()) as stem, pytest.raises(Unavailable) as raised:
        stem.spark  # noqa: B018 - to ask is to start
    assert raised.value.summary == "the Spark session was stopped"


def session_with(python: Path | str, master: str = "local[2]") -> SparkSession:
    """What a session tells of where its functions run."""
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=str(python), master=master))  # type: ignore[return-value]


def test_a_session_of_ones_own_with_another_python_is_told_so(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    # A Python of which nothing is known but that it lacks both packages.
    other.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{sys.executable}" -S -I "$@"\n')
    other.chmod(0o755)
    for python in (other, "python-that-is-not-there"):
        with pytest.raises(Invalid, match="in which there is no Mainstem") as raised:
            _check_python(session_with(python))
        assert "PYSPARK_PYTHON" in raised.value.detail
        assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in raised.value.hint
    _check_python(session_with(sys.executable))
    # What is installed on the machines of a cluster is not known here.
    _check_python(session_with(other, "spark://master:7077"))


def test_a_file_of_settings_in_the_working_directory_is_not_a_user_s(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 9g\n")
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert session_settings("local[2]")["spark.driver.memory"] == "2g"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert session_settings("local[2]")["spark.driver.memory"] == "9g"
