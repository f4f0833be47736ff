"""The archive of the Java classes that Spark loads: made once in the user's cache, mapped by every later local session.

Java loads and verifies 16,000 classes until a flow has its first result. From an archive (class data sharing) it maps them.

    session without an archive   Java lists the classes that it loads: <key>.<pid>.classes
    end of its program           a detached process of low priority waits for Java's end and lets another Java write the archive
                                 under a temporary name: synced, then renamed to <key>.jsa
    later sessions               map <key>.jsa, its checksums verified

All of it lies in mainstem/java of the user's cache directory. The key is a hash of what Java compares: itself, the jars, options
and variables that make its class path and its heap. An empty <key>.jsa says that no archive could be made, or that Java did not
take it: it is not tried again. A list of a program that ran no flow is dropped: it would lack most classes. Java starts without
an archive that is damaged or does not fit. Nothing here raises: without an archive a program only takes longer.

A session that a program created itself, a cluster, and a Java that it was not tried on get none; MAINSTEM_JAVA_PATCHES=off turns it off.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchivePlan", "ClassArchive", "find_archive"]

# Another Java may not know the options, and would not start.
JAVA_TRIED = (17,)
# All archives together; one has 180 MB.
BYTES_MAX = 600 << 20
# A smaller disk is left alone.
FREE_BYTES_LEAST = 2 << 30
# Loaded by every program that runs a flow.
_OF_FLOWS = b"/MicroBatchExecution\n"
# Java has ended by then, and a dump on a busy machine too.
END_SECONDS_MAX = 60
DUMP_SECONDS_MAX = 900

_VARIABLES = (
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_DRIVER_MEMORY",
    "SPARK_SUBMIT_OPTS",
    "YARN_CONF_DIR",
    "_JAVA_OPTIONS",
)
# Whoever shares classes already, or has an agent that changes them, does not need ours. A flight recording is such an agent:
# Java 17 with both can crash (KlassFactory::check_shared_class_file_load_hook).
_EXCLUDED = re.compile(r"-Xshare|SharedArchiveFile|ArchiveClassesAtExit|AOT|-agent|-javaagent|FlightRecord")
# Compilers do not matter to an archive.
_COMPILERS = re.compile(r"-XX:(TieredStopAtLevel|ReservedCodeCacheSize|Tier4\w+)=\S+")


@dataclass(frozen=True)
class ClassArchive:
    """Where the archive of a session is, or will be."""

    path: Path

    @property
    def bytes(self) -> int | None:
        """Its size; 0 if it was given up, None if there is none yet."""
        try:
            return self.path.stat().st_size
        except OSError:
            return None

    @property
    def list_path(self) -> Path:
        """Where the Java of this process lists its classes."""
        return self.path.with_name(f"{self.path.stem}.{os.getpid()}.classes")

    def options(self) -> list[str]:
        """Java's options: to map it, or to list the classes for it; none if it was given up."""
        if self.bytes:
            with suppress(OSError):
                # The oldest are removed first.
                os.utime(self.path)
            return [f'"-XX:SharedArchiveFile={self.path}"', "-XX:+VerifySharedSpaces", "-Xlog:cds=off"]
        if self.bytes is None and self._has_room():
            return [f'"-XX:DumpLoadedClassList={self.list_path}"']
        return []

    def _has_room(self) -> bool:
        """Whether the directory is there, is this user's alone, and has room. Removes the lists of processes that ended."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = folder.stat()
            if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
                return False
            for path in folder.glob("*.classes"):
                if not _runs(int(path.suffixes[-2][1:])):
                    path.unlink(missing_ok=True)
            return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= FREE_BYTES_LEAST
        except (OSError, ValueError, IndexError):
            return False

    def attend(self, spark: SparkSession, options: Sequence[str]) -> None:
        """After Java has started with these options: see whether it took the archive, or have one made at the end."""
        from py4j.protocol import Py4JError

        with suppress(Py4JError, TypeError):
            self._attend(spark, options)

    def _attend(self, spark: SparkSession, options: Sequence[str]) -> None:
        context: Any = spark.sparkContext
        process = getattr(context._gateway, "proc", None)
        if process is None or not options:
            return
        if not self.list_path.exists():
            with suppress(OSError):
                if str(self.path) not in Path(f"/proc/{process.pid}/maps").read_text(
                    encoding="utf-8", errors="replace"
                ):
                    self.path.unlink(missing_ok=True)
                    self.path.touch()
            return
        properties: Any = context._jvm.System
        beans: Any = context._jvm.java.lang.management.ManagementFactory
        arguments = [str(argument) for argument in beans.getRuntimeMXBean().getInputArguments()]
        plan = ArchivePlan(
            java=f"{properties.getProperty('java.home')}/bin/java",
            pid=process.pid,
            classes=str(self.list_path),
            archive=str(self.path),
            arguments=[it for it in arguments if it.startswith(("-X", "--")) and "DumpLoadedClassList" not in it],
            class_path=str(properties.getProperty("java.class.path")),
        )
        atexit.register(plan.start, os.getpid())


def find_archive(settings: Mapping[str, str], environment: Mapping[str, str]) -> ClassArchive | None:
    """The archive for a local session with these settings; None if it can have none."""
    from pyspark.find_spark_home import _find_spark_home

    variables = {name: _COMPILERS.sub("", environment.get(name, "")).split() for name in _VARIABLES}
    drivers = {name: value for name, value in settings.items() if name.startswith(("spark.driver.", "spark.jars"))}
    told = json.dumps([variables, drivers], sort_keys=True)
    java = _java_program(environment)
    # A quote would end the option.
    folder = _cache(environment)
    if _EXCLUDED.search(told) or java is None or folder is None or re.search(r'["\\]', str(folder)):
        return None
    try:
        about = [str(java), (java.parent.parent / "release").read_text(encoding="utf-8"), str(java.stat().st_mtime_ns)]
        jars = sorted(
            (jar.path, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in os.scandir(f"{_find_spark_home()}/jars")
        )
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)', about[1], re.MULTILINE)
    if version is None or int(version[1]) not in JAVA_TRIED or "openj9" in about[1].lower():
        return None
    key = hashlib.sha256(json.dumps([about, jars, told]).encode()).hexdigest()[:16]
    return ClassArchive(folder / f"{key}.jsa")


def _cache(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    return Path(home, "mainstem", "java") if os.path.isabs(home) else None


def _java_program(environment: Mapping[str, str]) -> Path | None:
    """The Java that Spark would start; that behind the script of `java_home`."""
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if program is None:
        return None
    try:
        with open(program, "rb") as file:
            script = file.read(4096) if file.read(2) == b"#!" else b""
    except OSError:
        return None
    behind = re.search(rb'^exec "(.+)" "\$@"$', script, re.MULTILINE)
    return Path(os.fsdecode(behind[1]) if behind else program).resolve()


def _runs(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@dataclass(frozen=True)
class ArchivePlan:
    """How an archive is made once the Java with this process id has ended: what the detached process is told."""

    java: str
    pid: int
    classes: str
    archive: str
    arguments: list[str]
    class_path: str

    def start(self, driver: int) -> None:
        """Start the detached process; not in a fork of the driver."""
        if os.getpid() != driver:
            return
        with suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-m", "mainstem.spark.class_archive", json.dumps(asdict(self))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )

    def make(self) -> None:
        """Wait for Java's end and make the archive, unless another process does."""
        archive = Path(self.archive)
        # Under this process's name no other one removes it.
        classes = archive.with_name(f"{archive.stem}.{os.getpid()}.classes")
        beside = archive.with_name(f"{archive.stem}.{os.getpid()}.making")
        os.replace(self.classes, classes)
        try:
            _wait_for_end(self.pid)
            with open(archive.with_name("lock"), "a", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not archive.exists() and _complete(classes):
                    self._dump(classes, beside)
                    beside.replace(archive)
                    _remove_old(archive)
        except BlockingIOError:
            return
        finally:
            for path in (classes, beside):
                path.unlink(missing_ok=True)

    def _dump(self, classes: Path, beside: Path) -> None:
        """Write the archive; an empty file if Java cannot, or if it is too large."""
        command = [
            self.java,
            "-XX:TieredStopAtLevel=1",
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={beside}",
            f"-XX:ErrorFile={os.devnull}",
            "-Xlog:disable",
            *self.arguments,
            "-cp",
            self.class_path,
        ]
        with suppress(subprocess.SubprocessError, FileNotFoundError):
            subprocess.run(command, check=True, timeout=DUMP_SECONDS_MAX, capture_output=True)
            if 0 < beside.stat().st_size <= BYTES_MAX:
                with open(beside, "rb") as file:
                    os.fsync(file.fileno())
                return
        beside.unlink(missing_ok=True)
        # A full disk passes; whatever else there is does not.
        if shutil.disk_usage(beside.parent).free < FREE_BYTES_LEAST:
            raise OSError("the disk is full")
        beside.touch()


def _wait_for_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(END_SECONDS_MAX * 1000)
    os.close(process)


def _complete(classes: Path) -> bool:
    """Whether the list is one of a program that ran a flow; a line that Java had not finished is cut off."""
    lines = classes.read_bytes()
    classes.write_bytes(lines[: lines.rfind(b"\n") + 1])
    return _OF_FLOWS in lines


def _remove_old(newest: Path) -> None:
    """Remove the archives that were not used for longest, until all fit; and what killed processes left."""
    for path in newest.parent.glob("*.making"):
        if not _runs(int(path.suffixes[-2][1:])):
            path.unlink(missing_ok=True)
    archives = sorted(newest.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    left = BYTES_MAX
    for path in [newest, *(path for path in archives if path != newest)]:
        left -= path.stat().st_size
        if left < 0:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    with suppress(OSError):
        ArchivePlan(**json.loads(sys.argv[1])).make()
