"""The archive of Java's classes is made once, for one Java and class path, and no fault of it keeps Java from starting."""

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mainstem.spark import class_archive
from mainstem.spark.class_archive import ArchivePlan, ClassArchive, find_archive
from mainstem.spark.spark_session import add_java_options
from tests.waiting import wait_until

# Java skips a class of the list that is not in the class path.
LIST = "java/lang/Object id: 0\njava/util/ArrayList\norg/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution\n"
SETTINGS = {"spark.driver.memory": "2g"}
NO_PROCESS = 2**22 + 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A Java that there is only the files of, and a cache."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_bytes(b"\x7fELF")
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return {"JAVA_HOME": str(tmp_path / "jdk"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    (tmp_path / "java").mkdir(mode=0o700)
    return ClassArchive(tmp_path / "java" / "0123.jsa")


def plan(archive: ClassArchive, script: str, classes: str = LIST) -> ArchivePlan:
    """To be made by a shell script in the place of Java; $archive is where it is to write."""
    java = archive.path.parent.parent / "script"
    find = "for it; do case $it in -XX:SharedArchiveFile=*) archive=${it#*=};; -XX:SharedClassListFile=*) list=${it#*=};; esac; done"
    java.write_text(f"#!/bin/sh\n{find}\n{script}\n")
    java.chmod(0o700)
    archive.list_path.write_text(classes)
    return ArchivePlan(str(java), NO_PROCESS, str(archive.list_path), str(archive.path), ["-Xmx1g"], "a.jar")


def names(archive: ClassArchive) -> list[str]:
    return sorted(path.name for path in archive.path.parent.iterdir())


# The key


def test_a_session_finds_the_archive_of_its_java_class_path_and_heap(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def key(settings: dict[str, str] | None = None, **variables: str) -> str:
        found = find_archive(SETTINGS | (settings or {}), environment | variables)
        assert found is not None
        assert found.path.parent == tmp_path / "cache" / "mainstem" / "java"
        return found.path.name

    first = key()
    compilers = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    same = [
        key(),
        key({"spark.sql.shuffle.partitions": "3"}),
        key(JDK_JAVA_OPTIONS=compilers),
        key(SPARK_SUBMIT_OPTS=compilers),
        key(JDK_JAVA_OPTIONS="-XX:Tier4CompileThreshold=150000"),
    ]
    others = [
        key({"spark.driver.memory": "40g"}),
        key({"spark.driver.extraClassPath": "/jars/own.jar"}),
        key(JDK_JAVA_OPTIONS="-XX:+UseParallelGC"),
        key(HADOOP_CONF_DIR="/etc/hadoop"),
    ]
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.16"\n')
    others.append(key())

    assert set(same) == {first}
    assert len({first, *others}) == 1 + len(others)


def test_who_shares_classes_or_has_an_agent_gets_none(environment: dict[str, str]) -> None:
    agents = ("-javaagent:own.jar", "-XX:StartFlightRecording=filename=own.jfr", "-XX:+FlightRecorder")
    for option in ("-Xshare:off", "-XX:SharedArchiveFile=own.jsa", "-XX:AOTCache=own.aot", *agents):
        assert find_archive(SETTINGS, environment | {"JDK_JAVA_OPTIONS": option}) is None
        assert find_archive(SETTINGS | {"spark.driver.extraJavaOptions": option}, environment) is None
    assert find_archive(SETTINGS, environment | {"JAVA_HOME": "/nowhere"}) is None


def test_a_java_that_it_was_not_tried_on_gets_none(environment: dict[str, str], tmp_path: Path) -> None:
    assert find_archive(SETTINGS, environment) is not None
    for release in ('JAVA_VERSION="26"', 'JAVA_VERSION="1.8.0"', "", 'JAVA_VERSION="17.0.15"\nJVM_VARIANT="Openj9"'):
        (tmp_path / "jdk" / "release").write_text(f"{release}\n")
        assert find_archive(SETTINGS, environment) is None


def test_the_java_behind_the_script_counts(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "wrapper" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{tmp_path}/jdk/bin/java" "$@"\n')

    assert find_archive(SETTINGS, environment | {"JAVA_HOME": str(tmp_path / "wrapper")}) == find_archive(
        SETTINGS, environment
    )


# Options


def test_java_lists_its_classes_then_maps_them_and_does_neither_once_it_was_given_up(archive: ClassArchive) -> None:
    assert archive.options() == [f'"-XX:DumpLoadedClassList={archive.list_path}"']
    archive.path.write_bytes(b"archive")
    assert archive.options()[:2] == [f'"-XX:SharedArchiveFile={archive.path}"', "-XX:+VerifySharedSpaces"]
    archive.path.write_bytes(b"")
    assert archive.options() == []


def test_where_it_cannot_be_kept_nothing_is_listed(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.path.parent.chmod(0o777)
    assert archive.options() == []
    archive.path.parent.chmod(0o700)
    assert archive.options() != []
    with monkeypatch.context() as patch:
        patch.setattr(class_archive, "FREE_BYTES_LEAST", 2**80)
        assert archive.options() == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert archive.options() == []
    assert ClassArchive(Path("/dev/null/java/0123.jsa")).options() == []


def test_lists_of_killed_programs_are_removed(archive: ClassArchive) -> None:
    for pid in (NO_PROCESS, os.getppid()):
        archive.path.with_name(f"0123.{pid}.classes").touch()
    assert archive.options()
    assert names(archive) == [f"0123.{os.getppid()}.classes"]


def test_options_are_added_to_those_of_the_user_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=b")
    with add_java_options("-XX:C"), add_java_options("-XX:D"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-Da=b -XX:C -XX:D"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Da=b"
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    with add_java_options():
        assert "SPARK_SUBMIT_OPTS" in os.environ
    assert "SPARK_SUBMIT_OPTS" not in os.environ


# How it is made


def test_the_archive_is_there_once_it_is_whole_and_nothing_else_is_left(archive: ClassArchive) -> None:
    whole = '[ ! -e "${archive%.*.making}.jsa" ] && cp "$list" "$archive"'
    plan(archive, whole, LIST + "half/a/li").make()

    assert names(archive) == ["0123.jsa", "lock"]
    assert archive.path.read_text() == LIST


@pytest.mark.parametrize(
    "script", ["exit 1", 'echo half > "$archive"; kill -9 $$', ":", 'head -c 99 /dev/zero > "$archive"']
)
def test_what_java_cannot_make_is_given_up(archive: ClassArchive, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "BYTES_MAX", 50)
    plan(archive, script).make()

    assert names(archive) == ["0123.jsa", "lock"]
    assert archive.bytes == 0


def test_on_a_full_disk_it_is_tried_again_another_time(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "FREE_BYTES_LEAST", 2**80)
    with pytest.raises(OSError, match="full"):
        plan(archive, 'echo half > "$archive"; exit 1').make()

    assert names(archive) == ["lock"]


def test_a_program_without_a_flow_makes_none(archive: ClassArchive) -> None:
    plan(archive, 'cp "$list" "$archive"', "java/lang/Object id: 0\n").make()

    assert names(archive) == ["lock"]


def test_of_two_at_once_one_makes_it(archive: ClassArchive) -> None:
    with open(archive.path.with_name("lock"), "w", encoding="ascii") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        plan(archive, 'cp "$list" "$archive"').make()
        assert names(archive) == ["lock"]
    archive.path.write_bytes(b"of the other one")
    plan(archive, 'cp "$list" "$archive"').make()

    assert names(archive) == ["0123.jsa", "lock"]
    assert archive.path.read_bytes() == b"of the other one"


def test_the_ones_not_used_for_longest_are_removed(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "BYTES_MAX", len(LIST) + 25)
    for age, name in enumerate(["a", "b", "c"]):
        archive.path.with_name(f"{name}.jsa").write_bytes(bytes(10))
        os.utime(archive.path.with_name(f"{name}.jsa"), (age, age))
    archive.path.with_name(f"0123.{NO_PROCESS}.making").touch()
    plan(archive, 'cp "$list" "$archive"').make()

    assert names(archive) == ["0123.jsa", "b.jsa", "c.jsa", "lock"]


def test_a_fork_of_the_driver_starts_nothing(archive: ClassArchive) -> None:
    replace(plan(archive, "exit 1"), java="/nowhere").start(driver=os.getpid() + 1)

    assert names(archive) == [archive.list_path.name]


# With Java


@pytest.mark.starts_servers
def test_java_maps_it_and_starts_without_one_that_is_damaged(archive: ClassArchive) -> None:
    java = class_archive._java_program(os.environ)
    assert java is not None
    archive.list_path.write_text(LIST)
    ArchivePlan(str(java), NO_PROCESS, str(archive.list_path), str(archive.path), ["-Xmx64m"], "").make()
    whole = archive.path.read_bytes()
    options = [option.strip('"') for option in archive.options()]

    def mapped() -> bool:
        ran = subprocess.run(
            [java, *options, "-Xmx64m", "-Xlog:class+load", "-version"], capture_output=True, text=True, check=True
        )
        assert "cds" not in ran.stderr
        return "java.util.ArrayList source: shared objects file" in ran.stdout

    assert mapped()
    archive.path.chmod(0o600)
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged in (whole[:middle], b"no archive", flipped, bytes(len(whole))):
        archive.path.write_bytes(damaged)
        assert not mapped()
    archive.path.write_bytes(whole)
    assert mapped()


PROGRAM = """
import sys
import mainstem
from mainstem import Flow

def flows(stem):
    yield Flow(stem.topic("orders").stream().where("amount > 1"), into=stem.topic("large"))

with mainstem.open(sys.argv[1], spark="local[1]") as stem:
    if "orders" not in stem.topics():
        stem.create_topic("orders", schema="amount BIGINT")
    stem.topic("orders").append([{"amount": 1}, {"amount": 2}])
    stem.run(flows, until="idle")
    java = stem.spark.sparkContext._gateway.proc.pid
    print(sys.argv[2] in open(f"/proc/{java}/maps").read(), stem.topic("large").end)
"""


@pytest.mark.long
@pytest.mark.starts_servers
def test_the_second_run_of_a_program_maps_what_the_first_one_listed(
    tmp_path: Path, users_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "mainstem" / "java"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run() -> str:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "home"), str(cache)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        assert ran.stderr == ""
        return ran.stdout.splitlines()[-1].split()[0]

    assert run() == "False"
    wait_until(lambda: bool(list(cache.glob("*.jsa"))), 600)
    assert run() == "True"
