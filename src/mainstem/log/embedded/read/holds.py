"""Holds: records that a reader may have to read again unchanged, whatever compaction and retention do.

    topics/<name>/holds/<holder>                 {"ranges": {"0": [512, 600]}}    offsets by partition
                        lock                     locked while a hold is put, and while a manifest drops segments
                        <partition>/<copy>       a sealed segment before compaction or retention removed it

A flow holds the batch that it has planned and not yet committed: after a crash it reads the same rows again. Upkeep
does not wait for holds; but before the manifest drops a held segment, the segment is copied. Held offsets are read from
the oldest copy that covers them, else from the log, and so never change while they are held. A copy is removed when
none of its offsets is held: an abandoned hold keeps only the segments of one batch.

The name of a copy has its number, first and last offset, size and checksum.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pyarrow as pa

from mainstem.durable_files import Files, read_file, remove_if_there
from mainstem.errors import FellOff
from mainstem.file_locks import WRITE, release_lock, share_lock
from mainstem.log.embedded.read.archive import copy_segment
from mainstem.log.embedded.read.sealed_check import check_frame_once
from mainstem.log.embedded.read.sealed_segment import read_for_reader
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.upkeep.manifest import SealedEntry
from mainstem.log.record import next_offset

__all__ = ["HeldCopy", "HeldRows", "Holds", "Range"]

# The first offset, and the one after the last.
Range = tuple[int, int]

LOCK = "lock"
COPY = ".parquet"

_making = threading.Lock()


class HeldCopy(NamedTuple):
    """A copied segment; if two have the same offsets, the older one counts."""

    number: int
    base: int
    end: int
    bytes: int
    crc32c: int
    path: str

    @classmethod
    def at(cls, path: str) -> HeldCopy:
        number, base, end, size, crc = path.rpartition("/")[2].removesuffix(COPY).split("-")
        return cls(int(number), int(base), int(end), int(size), int(crc, 16), path)


class Holds:
    """The holds of one topic, for any process. Thread-safe."""

    def __init__(self, files: Files, topic_folder: str) -> None:
        self._files = files
        self._folder = f"{topic_folder}/holds"

    # Holding

    def put(self, holder: str, ranges: Mapping[int, Range]) -> None:
        """Hold these offsets; replaces the earlier hold of this holder.

        Not synced: an fsync would be the largest cost of a small batch, and Spark's own offset log, which makes it
        repeat a batch, is not synced either.
        """
        content = json.dumps({"ranges": {str(number): list(held) for number, held in sorted(ranges.items())}})
        with self._lock():
            if ranges:
                self._write(holder, content.encode() + b"\n")
            else:
                remove_if_there(self._files, f"{self._folder}/{holder}")
            self._remove_unheld()

    def of(self, holder: str) -> dict[int, Range]:
        """The held offsets of a holder, by partition."""
        # Removed meanwhile, or empty after a power cut: there is no hold.
        with suppress(FileNotFoundError, ValueError):
            held = json.loads(read_file(self._files, f"{self._folder}/{holder}"))["ranges"]
            return {int(number): (int(first), int(end)) for number, (first, end) in held.items()}
        return {}

    def ranges(self, partition: int) -> list[Range]:
        """The held ranges of a partition."""
        found = []
        for name in self._names(self._folder):
            if name == LOCK or name.isdigit() or name.endswith(".new"):
                continue
            held = self.of(name).get(partition)
            if held is not None:
                found.append(held)
        return found

    def holds_any(self, partition: int, segments: Iterable[Range]) -> bool:
        """Whether any of these offsets is held."""
        held = self.ranges(partition)
        return any(_overlap(segment, part) for segment in segments for part in held)

    # Copies

    def copies(self, partition: int) -> list[HeldCopy]:
        """The copies of a partition, the oldest first."""
        folder = f"{self._folder}/{partition}"
        return sorted(HeldCopy.at(f"{folder}/{name}") for name in self._names(folder) if name.endswith(COPY))

    @contextmanager
    def copy_before_drop(self, source: str, partition: int, entries: Sequence[SealedEntry]) -> Iterator[None]:
        """Inside, the manifest of the partition at `source` may drop these segments: held ones were copied.

        Blocks new holds, so keep it short.
        """
        while True:
            with self._lock():
                missing = self._find_uncopied(partition, entries)
                if not missing:
                    yield
                    return
            # Outside the lock: copying a large segment takes long.
            self._copy(source, partition, missing)

    def _find_uncopied(self, partition: int, entries: Sequence[SealedEntry]) -> list[SealedEntry]:
        held, copies = self.ranges(partition), self.copies(partition)
        return [
            entry
            for entry in entries
            if any(_is_uncovered((max(low, entry.base), min(high, entry.end)), copies) for low, high in held)
        ]

    def _copy(self, source: str, partition: int, entries: Sequence[SealedEntry]) -> None:
        folder = f"{self._folder}/{partition}"
        self._files.make_directory(folder)
        for name in self._names(folder):
            if name.endswith(".new"):  # of an interrupted pass; only the holder of the upkeep lock copies
                remove_if_there(self._files, f"{folder}/{name}")
        number = max((copy.number for copy in self.copies(partition)), default=-1) + 1
        for entry in entries:
            name = f"{number:08d}-{entry.base}-{entry.end}-{entry.bytes}-{entry.crc32c:08x}{COPY}"
            copy_segment(self._files, f"{source}/{entry.file}", f"{folder}/{name}", entry)
        self._files.sync_directory(folder)
        self._files.sync_directory(self._folder)

    def _remove_unheld(self) -> None:
        for name in self._names(self._folder):
            if not name.isdigit():
                continue
            held = self.ranges(int(name))
            for copy in self.copies(int(name)):
                if not any(_overlap((copy.base, copy.end), part) for part in held):
                    remove_if_there(self._files, copy.path)

    # Files

    def _write(self, holder: str, content: bytes) -> None:
        path = f"{self._folder}/{holder}"
        handle = self._files.create(f"{path}.new")
        try:
            self._files.pwrite(handle, content, 0)
        finally:
            self._files.close(handle)
        self._files.rename(f"{path}.new", path)

    def _names(self, folder: str) -> list[str]:
        return self._files.list(folder) if self._files.exists(folder) else []

    @contextmanager
    def _lock(self) -> Iterator[None]:
        path = f"{self._folder}/{LOCK}"
        with _making:
            # Created once: closing another handle of it would release a lock held by another thread.
            if not self._files.exists(path):
                self._files.make_directory(self._folder)
                self._files.close(self._files.create(path))
        lock = share_lock(self._files, path)
        try:
            with lock.hold(WRITE):
                yield
        finally:
            release_lock(lock)


def _overlap(one: Range, other: Range) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _is_uncovered(wanted: Range, copies: Sequence[HeldCopy]) -> bool:
    """Whether a part of a range is in no copy."""
    first, end = wanted
    for copy in sorted(copies, key=lambda copy: copy.base):
        if copy.base <= first < copy.end:
            first = copy.end
    return first < end


# Held rows, the same on each read: from the copies of their segments, else from the log.


# Reads a range of offsets from the log.
FromLog = Callable[[int, int], Iterator[pa.RecordBatch]]


class HeldRows:
    """Reads held offsets of one partition."""

    def __init__(
        self, files: Files, holds: Holds, partition: int, schemas: TopicSchemas, reading: Reading, from_log: FromLog
    ) -> None:
        self._files = files
        self._holds = holds
        self._partition = partition
        self._schemas = schemas
        self._reading = reading
        self._from_log = from_log

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        while start < stop:
            copies = self._holds.copies(self._partition)
            copy = _find_covering(copies, start)
            if copy is None:
                end = min([stop, *(other.base for other in copies if other.base > start)])
                start = yield from self._read_log(start, end)
            else:
                older = (other.base for other in copies if other.number < copy.number and other.base > start)
                end = min([stop, copy.end, *older])
                yield from self._read_copy(copy, start, end)
                start = end

    def _read_log(self, start: int, end: int) -> Generator[pa.RecordBatch, None, int]:
        """Batches from the log; returns the offset at which a copy takes over.

        A copy is made before the log changes: if there is none after a batch was read, the batch is unchanged.
        """
        try:
            for batch in self._from_log(start, end):
                after = next_offset(batch)
                if self._is_copied(start, after):
                    return start
                yield batch
                start = after
        except (FellOff, FileNotFoundError):
            if not self._is_copied(start, start + 1):
                raise
            return start
        return start if self._is_copied(start, end) else end

    def _is_copied(self, start: int, end: int) -> bool:
        return any(copy.base < end and copy.end > start for copy in self._holds.copies(self._partition))

    def _read_copy(self, copy: HeldCopy, start: int, end: int) -> Iterator[pa.RecordBatch]:
        check_frame_once(self._files, copy.path, copy.bytes, copy.crc32c, (copy.base, copy.end))
        for _, batch in read_for_reader(self._files, copy.path, self._schemas, self._reading, start=start, stop=end):
            if batch.num_rows:
                yield batch


def _find_covering(copies: Sequence[HeldCopy], offset: int) -> HeldCopy | None:
    """The oldest copy that has an offset."""
    return next((copy for copy in copies if copy.base <= offset < copy.end), None)
