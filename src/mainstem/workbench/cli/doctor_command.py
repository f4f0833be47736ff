"""`mainstem doctor`: checks this machine, this home and its servers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from mainstem.clock import Clock, SystemClock
from mainstem.errors import MainstemError
from mainstem.workbench.cli.command_arguments import HomeOption, find_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import show_count, show_facts, show_note

__all__ = ["Examination", "Finding", "doctor"]


# Examination: the checks of `mainstem doctor`, one after another.
#
# Each check is a function that returns a `Finding`, or None if it does not apply. Nothing is changed except for a file
# that is written to the home and removed.


# The version used by the tests; others of the same line are likely to work.
SPARK_LINE = "4.2"
JAVA_LEAST = 17
FREE_BYTES_LEAST = 1 << 30
FREE_SHARE_LEAST = 0.05
CLOCK_SECONDS_MAX = 2.0


@dataclass(frozen=True)
class Finding:
    """The result of one check, and what to do if it failed: "look" is doubtful, "bad" keeps something from working."""

    subject: str
    state: Literal["ok", "look", "bad"]
    detail: str
    advice: str = ""


class Examination:
    """Checks a setup. Without a `home` only the checks that need none are made."""

    def __init__(self, home: str | None, environment: Mapping[str, str], clock: Clock | None = None) -> None:
        self._home = home
        self._environment = environment
        self._clock = clock or SystemClock()
        # Empty unless it is a version that Spark supports.
        self._java_version = ""

    def findings(self) -> Iterator[Finding]:
        """All findings, in the order in which they are best fixed."""
        looks: list[Callable[[], Finding | None]] = [
            self._python,
            self._java,
            self._spark,
            self._patches,
            self._classes,
        ]
        if self._home is not None:
            looks += [
                self._permissions,
                self._disk,
                self._time,
                self._log,
                self._connector,
                self._views,
                self._captures,
            ]
        for look in looks:
            try:
                found = look()
            except MainstemError as error:
                found = Finding(look.__name__.strip("_"), "bad", f"{error.summary}. {error.detail}".strip(), error.hint)
            if found is not None:
                yield found

    # Programs

    def _python(self) -> Finding:
        versions = [f"Python {sys.version.split()[0]}", f"mainstem {_version('mainstem')}"]
        return Finding("python", "ok", ", ".join(versions))

    def _java(self) -> Finding:
        from mainstem.spark.java_patches import java_home

        home = java_home(self._environment) or self._environment.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        try:
            said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        except (OSError, subprocess.SubprocessError) as error:
            return Finding("java", "bad", f"{java} does not run: {error}.", "Point JAVA_HOME to a Java 17 or later.")
        found = re.search(r'version "((\d+)[^"]*)"', said)
        if found is None or int(found[2]) < JAVA_LEAST:
            return Finding(
                "java", "bad", f"{said.splitlines()[0]}, {java}.", f"Spark needs Java {JAVA_LEAST} or later."
            )
        self._java_version = found[1]
        return Finding("java", "ok", f"{said.splitlines()[0]}, {java}")

    def _spark(self) -> Finding:
        version = _version("pyspark")
        if not version:
            return Finding("spark", "bad", "PySpark is not installed.", 'pip install "mainstem[spark]"')
        if not version.startswith(f"{SPARK_LINE}."):
            advice = f"Mainstem is tested with {SPARK_LINE}; a cluster must have the same version as this package."
            return Finding("spark", "look", f"PySpark {version}", advice)
        return Finding("spark", "ok", f"PySpark {version}; a cluster must have the same")

    def _patches(self) -> Finding | None:
        """Whether Mainstem patches Spark sessions; without the patches they are only slower."""
        from mainstem.spark.java_patches import SWITCH, why_not_patched

        spark = _version("pyspark")
        if not spark or not self._java_version:
            return None
        versions = {"spark": spark, "hadoop": _hadoop_version(), "java": self._java_version}
        reason = why_not_patched(**versions)
        if reason is None:
            return Finding("patches", "ok", f"on: Java sets the modes of local files; {SWITCH}=off turns this off")
        return Finding("patches", "ok", f"off: {reason}; small batches take longer, results are the same")

    def _classes(self) -> Finding | None:
        """Whether a local session that is made now maps Spark's classes from an archive; without one it only starts later."""
        if not self._java_version:
            return None
        from mainstem.spark.class_archive import find_archive
        from mainstem.spark.java_patches import java_home, patches_are_on
        from mainstem.spark.spark_session import session_settings

        environment = {
            **self._environment,
            "JAVA_HOME": java_home(self._environment) or self._environment.get("JAVA_HOME", ""),
        }
        archive = find_archive(session_settings("local[*]"), environment) if patches_are_on() else None
        if archive is None:
            return Finding(
                "classes", "ok", "no archive of Spark's classes: it is off, or this Java or its options exclude it"
            )
        if archive.bytes is None:
            return Finding("classes", "ok", f'no archive yet: made after the next program that runs, "{archive.path}"')
        if archive.bytes == 0:
            advice = "Programs start slower, results are the same. To have it tried again, remove the file."
            return Finding("classes", "look", f'no archive: Java did not make or take it, "{archive.path}"', advice)
        return Finding("classes", "ok", f'{archive.bytes / 2**20:.0f} MiB of archived classes, "{archive.path}"')

    # The home

    def _permissions(self) -> Finding:
        assert self._home is not None
        name = f"{self._home}/.doctor-{uuid.uuid4().hex}"
        try:
            with open(name, "w", encoding="utf-8") as file:
                file.write("written, and synced")
                file.flush()
                os.fsync(file.fileno())
            os.link(name, f"{name}.link")
            os.unlink(f"{name}.link")
        except OSError as error:
            advice = "The home must be a directory of this user, on a file system with fsync and hard links."
            return Finding("permissions", "bad", f'"{self._home}": {error.strerror}.', advice)
        finally:
            if os.path.exists(name):
                os.unlink(name)
        mode = os.stat(self._home).st_mode & 0o077
        if mode & 0o022:
            advice = f"Other users could change the log: chmod go-w {self._home}"
            return Finding("permissions", "look", f'others may write to "{self._home}"', advice)
        return Finding("permissions", "ok", f'"{self._home}" can be written, synced and linked in')

    def _disk(self) -> Finding:
        assert self._home is not None
        total, _, free = shutil.disk_usage(self._home)
        detail = f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB"
        if free < FREE_BYTES_LEAST or free < FREE_SHARE_LEAST * total:
            advice = (
                "Appends fail when the disk is full. Free some space, or shorten the retention: mainstem topic alter"
            )
            return Finding("disk", "look", detail, advice)
        return Finding("disk", "ok", detail)

    def _time(self) -> Finding:
        """The home may be on another machine, with another clock."""
        assert self._home is not None
        name = f"{self._home}/.doctor-{uuid.uuid4().hex}"
        try:
            with open(name, "w", encoding="utf-8"):
                there = os.stat(name).st_mtime
        except OSError:
            return Finding("clock", "look", "the home is not writable, so its clock is unknown")
        finally:
            if os.path.exists(name):
                os.unlink(name)
        apart = abs(self._clock.now() / 1e6 - there)
        if apart > CLOCK_SECONDS_MAX:
            advice = "Append times and timers use the clock: synchronise both machines (NTP)."
            return Finding("clock", "look", f"this machine and the home's differ by {apart:.1f} seconds", advice)
        return Finding("clock", "ok", f"this machine and the home's differ by {apart * 1e3:.0f} ms")

    # Servers

    def _log(self) -> Finding:
        from mainstem.stem import open_log

        assert self._home is not None
        log = open_log(self._home)
        try:
            topics = len(log.topic_names())
            return Finding("log", "ok", f"{log.title}, {topics} {'topic' if topics == 1 else 'topics'}")
        finally:
            log.close()

    def _connector(self) -> Finding | None:
        """Spark's Kafka connector, which flows in real-time mode need, if the log is on Kafka."""
        from mainstem.spark.real_time.kafka_connector import PACKAGE, connector_jars
        from mainstem.stem import is_on_kafka

        assert self._home is not None
        if not is_on_kafka(self._home):
            return None
        version = _version("pyspark")
        name = PACKAGE.partition(":")[2]
        found = [os.path.basename(jar) for jar in connector_jars() if name in jar]
        advice = f"Only flows in real-time mode need it: spark.jars.packages {PACKAGE}:{version} in spark-defaults.conf"
        if not found:
            return Finding("connector", "look", "Spark's Kafka connector is not in this environment", advice)
        if found != [f"{name}-{version}.jar"]:
            return Finding("connector", "look", f"{', '.join(found)}, for PySpark {version}", advice)
        return Finding("connector", "ok", f"{found[0]}, for flows in real-time mode")

    def _views(self) -> Finding:
        from mainstem.postgres.postgres_address import PostgresAddress
        from mainstem.views.home_views import backend_of_home

        assert self._home is not None
        backend = backend_of_home(self._home)
        try:
            views = len(backend.names())
            where = "in the home" if backend.address is None else PostgresAddress.parse(backend.address).shown
            return Finding("views", "ok", f"{where}, {views} {'view' if views == 1 else 'views'}")
        finally:
            backend.close()

    def _captures(self) -> Finding | None:
        """Whether captures run, and whether their servers hold too much; by their last reports."""
        from mainstem.capture.capture_status import all_statuses

        assert self._home is not None
        statuses = all_statuses(self._home)
        if not statuses:
            return None
        running = sum(one.running for one in statuses)
        detail = f"{len(statuses)} {'capture' if len(statuses) == 1 else 'captures'}, {running} running"
        for one in statuses:
            if one.running and one.alarm:
                advice = "Find out what holds it back: mainstem capture describe. Or raise max_slot_wal_keep_size."
                return Finding("captures", "look", f'{detail}; "{one.name}": {one.alarm_text}', advice)
            if one.state == "failed":
                advice = "Fix the cause and run it again: until then its server holds every change for it."
                return Finding("captures", "look", f'{detail}; "{one.name}" failed: {one.error}', advice)
            if not one.running:
                advice = f"Its server holds every change for it: run it, or mainstem capture drop PROGRAM.py {one.name}"
                return Finding("captures", "look", f'{detail}; "{one.name}" does not run', advice)
        return Finding("captures", "ok", detail)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _hadoop_version() -> str:
    """The version of Hadoop in PySpark."""
    package = importlib.util.find_spec("pyspark")
    folders = (package and package.submodule_search_locations) or []
    found = [jar.stem for folder in folders for jar in Path(folder, "jars").glob("hadoop-client-api-*.jar")]
    return found[0].removeprefix("hadoop-client-api-") if found else "of an unknown version"


def _mark(finding: Finding) -> str:
    return "BAD" if finding.state == "bad" else finding.state


def doctor(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Check a setup: Java, Spark, the home's disk, permissions and clock, the log and the views.

    If the log is on Kafka or the views are in PostgreSQL, it checks whether they can be reached. Without a home it
    checks only the machine. The exit status is 1 if a check failed; the output says what to do.

    Example: mainstem doctor --home data/shop
    """
    try:
        path: str | None = find_home(home, "refuse")
    except MainstemError:
        if home is not None:
            raise
        path = None
    findings = list(Examination(path, os.environ).findings())
    bad = [finding for finding in findings if finding.state == "bad"]
    if as_json:
        print_json({"home": path, "findings": [asdict(finding) for finding in findings]})
    else:
        show_facts((f"{_mark(finding):4}  {finding.subject}", finding.detail) for finding in findings)
        for finding in findings:
            if finding.advice:
                show_note(f"{finding.subject}: {finding.advice}")
        if path is None:
            show_note("Only the machine was checked; name a home with --home DIR.")
        elif not bad:
            typer.echo(f"{show_count(len(findings), 'check')}, all passed")
    if bad:
        raise typer.Exit(1)
