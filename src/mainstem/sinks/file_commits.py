"""FileCommits: which files of a folder are committed, batch by batch.

    <folder>/_mainstem/sink.json                  {"format": 2, "id": "5f..", "flow": "out.orders", "epoch": 7, ...}
    <folder>/_mainstem/lock                       locked while a batch is moved in
    <folder>/_mainstem/v1/000000000017            one batch
    <folder>/_mainstem/v1/000000000000-000000000099   a hundred of them, one line each

A batch is one line, its checksum and JSON, in a file that is written, synced and renamed: the rename commits the
batch. After every hundred batches their lines are merged into one file, and the single files are removed.

    5f2c01ab {"batch": 17, "epoch": 7, "rows": 120, "offsets": {"orders": {"0": 512}}, "files": [{"path": ...}]}

Spark, Arrow, Hive and similar readers ignore names that begin with "_".
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import Corrupt, LockHeld, NewerFormat
from mainstem.processes import process_name, stopped

__all__ = ["CommittedBatch", "CommittedFile", "FileCommits", "FolderFacts", "folder_lock"]


# FolderLock: an exclusive lock of a folder, between processes and threads.
#
# A POSIX record lock on a file in it: it is released when its holder dies, and a forked child does not inherit it. Since it
# does not exclude threads of the same process, and is released when any descriptor of the file is closed, the threads take
# an ordinary lock first, and only its holder opens the file.


# Moving and syncing the files of a batch takes seconds at most; a paused holder is reported at once.
WAIT_SECONDS_MAX = 60.0
SUSPECT_AFTER_SECONDS = 0.5

_turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
_turns_guard = threading.Lock()


@contextmanager
def folder_lock(path: str) -> Iterator[None]:
    """An exclusive lock. `path` is the file that is locked; its folder exists."""
    with _turns_guard:
        turn = _turns[os.path.realpath(path)]
    with turn:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait(handle, path)
            yield
        finally:
            # Releases the lock.
            os.close(handle)


def _wait(handle: int, path: str) -> None:
    started = time.monotonic()
    pause = threading.Event()
    while not REAL_FILES.try_lock(handle, 0):
        waited = time.monotonic() - started
        pid = REAL_FILES.lock_holder(handle, 0)
        halted = pid is not None and waited > SUSPECT_AFTER_SECONDS and stopped(pid)
        if pid is not None and (halted or waited > WAIT_SECONDS_MAX):
            state = "stopped" if halted else "running"
            raise LockHeld(
                f'"{os.path.dirname(path)}" is locked by a {state} process',
                detail=f"Process {pid} ({process_name(pid)}) has been writing a batch into it for at least {waited:.1f} seconds.",
                hint=f"Resume it (kill -CONT {pid}), or end it (kill -9 {pid}): what it has not committed is removed.",
                pid=pid,
                path=path,
            )
        pause.wait(0.02)


# 2: the folder has an id, and sink.json a checksum.
FORMAT = 2
# How many batches are merged into one file; a reader opens at most as many single files.
MERGED = 100

_SINGLE = re.compile(r"\d{12}")
_RANGE = re.compile(r"(\d{12})-(\d{12})")


@dataclass(frozen=True)
class FolderFacts:
    """The facts of a folder: its flow, version and partition columns, and the epoch of the current run."""

    flow: str
    # The columns as DDL, and the type of `record`, empty if the rows have none.
    schema: str
    record: str = ""
    partition_by: tuple[str, ...] = ()
    version: int = 1
    epoch: int = 0
    # The id of the folder; empty until a flow writes into a folder that an older Mainstem created.
    id: str = ""


@dataclass(frozen=True)
class CommittedFile:
    """A committed file, by its path in the folder."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class CommittedBatch:
    """One batch: its files, and the end offsets of each topic."""

    batch: int
    epoch: int
    rows: int
    rejected: int = 0
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    files: tuple[CommittedFile, ...] = ()


class FileCommits:
    """The commit log of one folder. Any number of readers; the writer holds the lock."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._own = f"{folder}/_mainstem"
        self._facts = f"{self._own}/sink.json"

    def lock(self) -> AbstractContextManager[None]:
        """Inside, no other process or thread changes the folder."""
        os.makedirs(self._own, mode=0o700, exist_ok=True)
        return folder_lock(f"{self._own}/lock")

    # Facts

    def facts(self) -> FolderFacts | None:
        """None if no flow has written here yet."""
        try:
            with open(self._facts, "rb") as file:
                content = decode_checked(file.read(), since=2, known=FORMAT)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._corrupt(self._facts, f"Its content is invalid: {error}.") from error
        if (found := content.pop("format", 0)) > FORMAT:
            raise NewerFormat.of(f'"{self.folder}"', found, FORMAT)
        return FolderFacts(**{**content, "partition_by": tuple(content["partition_by"])})

    def put_facts(self, facts: FolderFacts) -> None:
        """Replace the facts. Under the lock; durable when this returns."""
        content = {"format": FORMAT, **asdict(facts)}
        replace_file(REAL_FILES, self._facts, encode_checked(content, indent=1))

    # Batches

    def committed_batch(self, version: int) -> int:
        """The last committed batch; -1 if there is none."""
        return max((last for _, last, _ in self._names(version)), default=-1)

    def batches(self, version: int) -> Iterator[CommittedBatch]:
        """Every batch, in order."""
        expected = 0
        for first, last, path in self._names(version):
            if last < expected:
                continue  # A single file that is already merged.
            for line in self._lines(path, version, first):
                if line.batch >= expected:
                    yield line
                    expected = line.batch + 1

    def commit(self, version: int, batch: CommittedBatch) -> None:
        """Commit a batch. Under the lock; durable when this returns."""
        folder = self._make_folder(version)
        text = json.dumps(asdict(batch), separators=(",", ":")).encode()
        replace_file(REAL_FILES, f"{folder}/{batch.batch:012}", b"%08x %s\n" % (zlib.crc32(text), text))
        if batch.batch % MERGED == MERGED - 1:
            self._merge(version)

    def _merge(self, version: int) -> None:
        singles = [(first, path) for first, last, path in self._names(version) if first == last]
        if len(singles) < 2:
            return
        lines = b""
        for _, path in singles:
            with open(path, "rb") as file:
                lines += file.read()
        folder = self._make_folder(version)
        replace_file(REAL_FILES, f"{folder}/{singles[0][0]:012}-{singles[-1][0]:012}", lines)
        for _, path in singles:
            os.remove(path)

    def _make_folder(self, version: int) -> str:
        folder = f"{self._own}/v{version}"
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            REAL_FILES.sync_directory(self._own)
        return folder

    def _names(self, version: int) -> list[tuple[int, int, str]]:
        """First and last batch of each file, and its path; a merged file comes before its single ones."""
        folder = f"{self._own}/v{version}"
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            if _SINGLE.fullmatch(name):
                found.append((int(name), int(name), f"{folder}/{name}"))
            elif match := _RANGE.fullmatch(name):
                found.append((int(match[1]), int(match[2]), f"{folder}/{name}"))
        return sorted(found, key=lambda entry: (entry[0], -entry[1]))

    def _lines(self, path: str, version: int, first: int) -> list[CommittedBatch]:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            # Merged since it was listed.
            path = next((other for low, high, other in self._names(version) if low <= first <= high), "")
            if not path:
                raise self._corrupt(self._own, f"Batch {first} of version {version} is missing.") from None
            return self._lines(path, version, first)
        return [self._line(path, line) for line in content.splitlines()]

    def _line(self, path: str, line: bytes) -> CommittedBatch:
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            raise self._corrupt(path, "Its checksum is wrong.")
        content: dict[str, Any] = json.loads(text)
        return CommittedBatch(**{**content, "files": tuple(CommittedFile(**one) for one in content["files"])})

    def _corrupt(self, path: str, detail: str) -> Corrupt:
        return Corrupt(
            f'"{path}" is damaged',
            detail=detail,
            hint="Restore the folder from a copy, or rebuild it from the log: delete it together with its flow.",
            path=path,
        )
