"""QueueScan: the rows that a queue has not read yet, filtered, for a take.

Rows are read in chunks and kept until the queue's cursor has passed them: a worker that takes one message at a time
reads and filters each chunk once. A scan belongs to one queue object and is used under its lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import FellOff
from mainstem.log.partition_reads import PartitionReads
from mainstem.log.record import next_offset
from mainstem.log.rows.partitioner import key_bytes

__all__ = ["FreshRow", "PartitionScan", "QueueScan", "key_text"]

CHUNK_ROWS = 1_000
# Chunks of a partition that are kept with their rows. Later ones keep only offsets and times, for counting.
CHUNKS_WITH_ROWS = 4

Mask = Callable[[pa.RecordBatch], pa.BooleanArray]


@dataclass(frozen=True, slots=True)
class FreshRow:
    """An unread row: its position, append time, and its key if the queue is ordered."""

    partition: int
    offset: int
    appended_at: int
    key: str | None

    @property
    def age_order(self) -> tuple[int, int, int]:
        """Sorts oldest first, over all partitions."""
        return self.appended_at, self.partition, self.offset

    def entry(self) -> list[Any]:
        """Its form in an entry."""
        return [self.partition, self.offset, self.appended_at, self.key]


@dataclass(slots=True)
class Chunk:
    """The offsets from `first` to `next`, of which those in `offsets` pass the filter."""

    first: int
    next: int
    offsets: list[int]
    times: list[int]
    keys: list[str | None]
    rows: pa.RecordBatch | None


class QueueScan:
    """The unread rows of each partition, and any single row by its address."""

    def __init__(self, reads: PartitionReads, mask: Mask | None, *, by_key: tuple[str, ...] = ()) -> None:
        self._reads = reads
        self._mask = mask
        self._by_key = by_key
        self._chunks: dict[int, list[Chunk]] = {}

    def ahead(self, partition: int, cursor: int) -> PartitionScan:
        """A scan from the cursor on. Drops the chunks before it."""
        chunks = [chunk for chunk in self._chunks.get(partition, []) if chunk.next > cursor]
        if chunks and chunks[0].first > cursor:
            # The queue was rewound.
            chunks = []
        self._chunks[partition] = chunks
        return PartitionScan(self, partition, cursor)

    def chunk(self, partition: int, index: int, cursor: int) -> Chunk | None:
        """The chunk with this index from the cursor on, read if needed; None at the end of the partition."""
        chunks = self._chunks[partition]
        if index < len(chunks):
            if index < CHUNKS_WITH_ROWS and chunks[index].rows is None:
                chunks[index] = self._read_again(partition, chunks[index])
            return chunks[index]
        start = chunks[-1].next if chunks else cursor
        rows = self._reads.read(partition, start, CHUNK_ROWS)
        if rows is None:
            return None
        chunks.append(self._filter(start, rows))
        if len(chunks) > CHUNKS_WITH_ROWS:
            chunks[-1].rows = None
        return chunks[-1]

    def forget(self, partition: int) -> None:
        """Drop the chunks of a partition, so that they are read again."""
        self._chunks[partition] = []

    def row(self, partition: int, offset: int) -> pa.RecordBatch | None:
        """That row with its `record`; None if it no longer exists."""
        for chunk in self._chunks.get(partition, []):
            if chunk.first <= offset < chunk.next and chunk.rows is not None:
                index = bisect_left(chunk.offsets, offset)
                if index < len(chunk.offsets) and chunk.offsets[index] == offset:
                    return chunk.rows.slice(index, 1)
        try:
            rows = self._reads.read(partition, offset, 1)
        except FellOff:
            return None
        if rows is None or rows.column("record").field("offset")[0].as_py() != offset:
            return None
        return rows

    def _read_again(self, partition: int, chunk: Chunk) -> Chunk:
        """A chunk that was only counted, read again with its rows."""
        rows = self._reads.read(partition, chunk.first, CHUNK_ROWS)
        if rows is None:
            return Chunk(chunk.first, chunk.next, [], [], [], None)
        # Rows appended since belong to later chunks.
        rows = rows.filter(pc.less(rows.column("record").field("offset"), chunk.next))
        return replace(self._filter(chunk.first, rows), next=chunk.next)

    def _filter(self, start: int, rows: pa.RecordBatch) -> Chunk:
        end = next_offset(rows) if rows.num_rows else start
        if self._mask is not None:
            rows = rows.filter(self._mask(rows))
        record = rows.column("record")
        keys: list[str | None] = [None] * rows.num_rows
        if self._by_key:
            keys = [key_text(key) for key in key_bytes(rows, self._by_key).to_pylist()]
        times = record.field("appended_at").cast(pa.int64()).to_pylist()
        return Chunk(start, end, record.field("offset").to_pylist(), times, keys, rows)


class PartitionScan:
    """A scan of the unread rows of one partition; `position` is the cursor after the rows passed so far."""

    def __init__(self, scan: QueueScan, partition: int, cursor: int) -> None:
        self._scan = scan
        self.partition = partition
        self.cursor = cursor
        self.position = cursor
        self._chunk = 0
        self._row: int | None = None

    def peek(self) -> FreshRow | None:
        """The next row, without passing it; None at the end."""
        while (chunk := self._scan.chunk(self.partition, self._chunk, self.cursor)) is not None:
            if self._row is None:
                # Other takes may have passed a part of the chunk since it was read.
                self._row = bisect_left(chunk.offsets, self.position)
            if self._row < len(chunk.offsets):
                row = self._row
                return FreshRow(self.partition, chunk.offsets[row], chunk.times[row], chunk.keys[row])
            self.position = max(self.position, chunk.next)
            self._chunk += 1
            self._row = None
        return None

    def advance(self) -> None:
        """Pass the row that `peek` returned."""
        chunk = self._scan.chunk(self.partition, self._chunk, self.cursor)
        assert chunk is not None
        assert self._row is not None
        self.position = chunk.offsets[self._row] + 1
        self._row += 1

    def count(self) -> int:
        """The number of rows from here to the end of the partition."""
        count = 0
        index = 0
        while (chunk := self._scan.chunk(self.partition, index, self.cursor)) is not None:
            count += len(chunk.offsets) - bisect_left(chunk.offsets, self.cursor)
            index += 1
        return count


def key_text(key: bytes | None) -> str | None:
    """A key as a JSON string. Keys are text or JSON, except those of a binary column.

    >>> key_text(b"o-17"), key_text(bytes([255, 1]))
    ('o-17', 'hex:ff01')
    """
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"hex:{key.hex()}"
