"""mainstem doctor."""

import os
from pathlib import Path

import pytest

from mainstem.clock import ManualClock
from mainstem.spark import java_patches
from mainstem.spark.real_time import kafka_connector
from mainstem.workbench.cli import doctor_command as examination
from mainstem.workbench.cli.doctor_command import Examination

SUBJECTS = ["python", "java", "spark", "patches", "classes", "permissions", "disk", "clock", "log", "views"]


def found(
    home: object = None, environment: dict[str, str] | None = None, **more: object
) -> dict[str, examination.Finding]:
    looked = Examination(None if home is None else str(home), environment or dict(os.environ), **more)
    return {finding.subject: finding for finding in looked.findings()}


@pytest.mark.starts_servers
def test_a_sound_setup_is_found_well_and_left_as_it_was(cli, orders, place):
    before = sorted(os.listdir(place / "shop"))
    said = cli("doctor")

    assert (said.status, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert [line[:2] for line in lines[:-1]] == [["ok", subject] for subject in SUBJECTS]
    assert lines[-1][-2:] == ["all", "passed"]
    assert sorted(os.listdir(place / "shop")) == before


@pytest.mark.starts_servers
def test_without_a_home_the_machine_is_looked_at(cli, place, monkeypatch):
    monkeypatch.delenv("MAINSTEM_HOME")
    said = cli("doctor", "--json")
    assert (said.status, said.json["home"]) == (0, None)
    assert [finding["subject"] for finding in said.json["findings"]] == SUBJECTS[:5]
    assert {finding["state"] for finding in said.json["findings"]} == {"ok"}


def test_a_home_that_is_named_and_not_there_is_an_error(cli, place):
    assert cli("doctor", "--home", "nowhere").error[0] == 'mainstem.NotFound: "nowhere" is not a home'


def test_brokers_that_do_not_answer_are_bad_and_it_says_what_to_do(cli, place):
    (place / "shop").mkdir()
    (place / "shop" / "kafka.toml").write_text('brokers = ["127.0.0.1:9"]\npatience = "1 second"\n')
    said = cli("doctor")

    assert said.status == 1
    assert "BAD   log          no Kafka broker answers at 127.0.0.1:9" in said.out
    assert "log: Start the broker, or correct the address" in said.err


def test_a_database_that_does_not_answer_is_bad_and_its_password_is_not_shown(cli, orders, place):
    (place / "shop" / "views.toml").write_text('url = "postgresql://shop:geheim@127.0.0.1:9/shop"\n')
    said = cli("doctor")

    assert said.status == 1
    assert "BAD   views" in said.out
    assert "geheim" not in said.out + said.err


@pytest.mark.parametrize(
    ("script", "detail"),
    [("echo 'openjdk version \"11.0.2\"' >&2", "11.0.2"), ("exit 3", "does not run")],
    ids=["too old", "broken"],
)
def test_a_java_that_will_not_do_is_bad(tmp_path: Path, script: str, detail: str):
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)

    finding = found(environment={"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})["java"]

    assert finding.state == "bad"
    assert detail in finding.detail
    assert "17" in finding.advice


@pytest.mark.starts_servers
def test_it_says_whether_java_is_patched_and_why_not(monkeypatch):
    assert found()["patches"].detail.startswith("on: ")
    with monkeypatch.context() as patch:
        patch.setenv("MAINSTEM_JAVA_PATCHES", "off")
        assert found()["patches"].detail.startswith("off: MAINSTEM_JAVA_PATCHES is off;")
    with monkeypatch.context() as patch:
        patch.setattr(java_patches, "HADOOP_TRIED", ("3.4.0",))
        assert found()["patches"].detail.startswith("off: not tried on Hadoop 3.5.0, only on 3.4.0;")
    with monkeypatch.context() as patch:
        patch.setenv("MAINSTEM_JAVA_PATCHES", "no")
        assert found()["patches"].state == "bad"


@pytest.mark.starts_servers
def test_it_says_where_the_archive_of_classes_is_and_why_there_is_none(monkeypatch, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def told() -> tuple[str, str]:
        finding = found(environment=environment)["classes"]
        return finding.state, finding.detail

    state, detail = told()
    assert (state, detail.split(":")[0]) == ("ok", "no archive yet")
    archive = Path(detail.split('"')[1])
    archive.parent.mkdir(parents=True)
    archive.write_bytes(bytes(3 << 20))
    assert told() == ("ok", f'3 MiB of archived classes, "{archive}"')
    archive.write_bytes(b"")
    assert told() == ("look", f'no archive: Java did not make or take it, "{archive}"')
    monkeypatch.setenv("MAINSTEM_JAVA_PATCHES", "off")
    assert told()[1].startswith("no archive of Spark's classes: it is off")


def test_little_room_a_clock_apart_and_open_doors_are_doubtful(orders, place, monkeypatch):
    monkeypatch.setattr(examination, "FREE_SHARE_LEAST", 1.1)
    (place / "shop").chmod(0o777)
    findings = found(place / "shop", clock=ManualClock())

    doubtful = {subject: finding for subject, finding in findings.items() if finding.state == "look"}
    assert sorted(doubtful) == ["clock", "disk", "permissions"]
    assert all(finding.advice for finding in doubtful.values())


def test_a_home_that_cannot_be_written_to_is_bad(tmp_path: Path):
    (tmp_path / "home").write_text("a file where the home should be")
    assert found(tmp_path / "home")["permissions"].state == "bad"


def test_the_connector_of_a_home_on_kafka_must_be_of_sparks_version(cli, place, monkeypatch):
    (place / "shop").mkdir()
    (place / "shop" / "kafka.toml").write_text('brokers = ["127.0.0.1:9"]\npatience = "0 seconds"\n')
    assert found(place / "shop")["connector"].state == "ok"
    for jars, said in (([], "not in this environment"), (["/x/spark-sql-kafka-0-10_2.13-1.0.0.jar"], "-1.0.0.jar")):
        monkeypatch.setattr(kafka_connector, "connector_jars", lambda jars=jars: jars)
        finding = found(place / "shop")["connector"]
        assert finding.state == "look"
        assert said in finding.detail
        assert "spark.jars.packages org.apache.spark:spark-sql-kafka-0-10_2.13:" in finding.advice
