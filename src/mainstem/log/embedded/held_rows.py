"""Rows that somebody holds, the same each time they are read: from the copies of their segments, else from the log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import pyarrow as pa

from mainstem.errors import FellOff
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.holds import HeldCopy, Holds
from mainstem.log.embedded.sealed_check import check_frame_once
from mainstem.log.embedded.sealed_segment import read_shown
from mainstem.log.embedded.topic_schemas import Reading, TopicSchemas
from mainstem.log.record import next_offset

__all__ = ["HeldRows"]

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
            copy = _covering(copies, start)
            if copy is None:
                end = min([stop, *(other.base for other in copies if other.base > start)])
                start = yield from self._read_log(start, end)
            else:
                older = (other.base for other in copies if other.number < copy.number and other.base > start)
                end = min([stop, copy.end, *older])
                yield from self._read_copy(copy, start, end)
                start = end

    def _read_log(self, start: int, end: int) -> Generator[pa.RecordBatch, None, int]:
        """Batches from the log; returns how far it got before a copy took their place.

        A copy is there before the log changes: if none is there after a batch was read, the batch is as it was.
        """
        try:
            for batch in self._from_log(start, end):
                after = next_offset(batch)
                if self._copied(start, after):
                    return start
                yield batch
                start = after
        except (FellOff, FileNotFoundError):
            if not self._copied(start, start + 1):
                raise
            return start
        return start if self._copied(start, end) else end

    def _copied(self, start: int, end: int) -> bool:
        return any(copy.base < end and copy.end > start for copy in self._holds.copies(self._partition))

    def _read_copy(self, copy: HeldCopy, start: int, end: int) -> Iterator[pa.RecordBatch]:
        check_frame_once(self._files, copy.path, copy.bytes, copy.crc32c, (copy.base, copy.end))
        for _, batch in read_shown(self._files, copy.path, self._schemas, self._reading, start=start, stop=end):
            if batch.num_rows:
                yield batch


def _covering(copies: Sequence[HeldCopy], offset: int) -> HeldCopy | None:
    """The oldest copy that has an offset."""
    return next((copy for copy in copies if copy.base <= offset < copy.end), None)
