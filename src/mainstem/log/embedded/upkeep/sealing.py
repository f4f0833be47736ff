"""Sealing: closed segments of blocks become one Parquet file, beside readers and writers.

Write the file, sync it, rename it, sync its directory; then the manifest names it, and it becomes part of the log.
Only then the blocks are removed. An interrupted pass leaves either blocks that are already sealed, or a file that the
manifest does not name: the next pass removes both. Sealing stops at the last stable offset and leaves aborted records
out; the manifest accounts for their offsets and for the markers. One pass at a time (the partition's upkeep lock).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.read.sealed_segment import SEALED_RECORD, TIME, sealed_schema
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.manifest import Marker, SealedEntry
from mainstem.log.embedded.upkeep.upkeep_pass import (
    CheckStop,
    check_stop,
    closed_segments,
    put_sealed,
    remove_blocks,
    upkeep_of,
)
from mainstem.log.embedded.write.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName, missing_records
from mainstem.log.embedded.write.block import DATA, MARKERS, Block, Header
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.embedded.write.partition_state import DecidedTransaction, committed_spans
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.rows.stored_batch import HAS_CHANGE, HAS_HEADERS
from mainstem.log.watermark import NO_TIME

__all__ = ["seal", "seal_closed"]


# The rows of blocks as a sealed segment stores them: the topic's current columns, then the sealed `record`.


# Blocks are combined into batches of this size, so that many small appends are sealed fast too.
BATCH_ROWS = 65_536
BATCH_BYTES = 8 << 20


class SealedRows:
    """Collects the rows of one partition's blocks. Not thread-safe."""

    def __init__(self, partition: int, schemas: TopicSchemas) -> None:
        self.tombstones = 0
        self._partition = partition
        self._schemas = schemas
        self._plain, _ = schemas.output_schemas(Reading())
        self._schema = sealed_schema(schemas.current)
        self._clear()

    def _clear(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._changes: list[pa.Array | None] = []
        self._headers: list[pa.Array | None] = []
        # Of each block: first offset, count, append time, observed event time, declared watermark.
        self._blocks: list[tuple[int, int, int, int, int]] = []
        self._rows = self._bytes = 0

    def add(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Add a block's rows; yields a batch when it is full."""
        header = block.header
        stored = self._schemas.rows(block)
        columns = stored.columns
        self._headers.append(columns.pop() if header.flags & HAS_HEADERS else None)
        change = columns.pop() if header.flags & HAS_CHANGE else None
        self._changes.append(change)
        if change is not None:
            self.tombstones += pc.sum(pc.equal(change, "delete")).as_py() or 0
        self._batches.append(
            fit(pa.RecordBatch.from_arrays(columns, names=stored.schema.names[: len(columns)]), self._plain)
        )
        self._blocks.append(
            (header.base_offset, header.count, header.appended_at, header.observed_up_to, header.stated_watermark)
        )
        self._rows += header.count
        self._bytes += header.length
        if self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            yield self._batch()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows not yet yielded."""
        if self._rows:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        rows = self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        first, counts, *times = np.array(self._blocks, np.int64).T
        # The offset of a row: the first offset of its block plus its index in the block.
        within = np.arange(self._rows, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        appended_at, observed, declared = (np.repeat(at, counts) for at in times)
        record = record_array(
            self._partition,
            np.repeat(first, counts) + within,
            appended_at,
            count=self._rows,
            change=_concatenate(self._changes, counts.tolist(), pa.scalar("insert", CHANGE)),
            headers=_concatenate(self._headers, counts.tolist(), pa.scalar(None, HEADERS)),
        )
        self._clear()
        sealed = pa.StructArray.from_arrays(
            [*record.flatten(), _times(observed), _times(declared)], fields=list(SEALED_RECORD)
        )
        return pa.RecordBatch.from_arrays([*rows.columns, sealed], schema=self._schema)


def _concatenate(parts: list[pa.Array | None], counts: list[int], default: pa.Scalar) -> pa.Array | None:
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(default, count) if part is None else part for part, count in zip(parts, counts, strict=True)]
    )


def _times(at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(at, mask=at == NO_TIME).view(TIME)


@dataclass
class Span:
    """The manifest fields collected from a run of blocks."""

    appended_first: int = NO_TIME
    appended_last: int = NO_TIME
    event_time_max: int = NO_TIME
    observed_up_to: int = NO_TIME
    stated_watermark: int = NO_TIME
    markers: list[Marker] = field(default_factory=list)
    aborted: list[list[int]] = field(default_factory=list)

    def add(self, header: Header) -> None:
        if header.count and self.appended_first == NO_TIME:
            self.appended_first = header.appended_at
        self.appended_last = max(self.appended_last, header.appended_at)
        self.event_time_max = max(self.event_time_max, header.event_time_max)
        self.observed_up_to = max(self.observed_up_to, header.observed_up_to)
        self.stated_watermark = max(self.stated_watermark, header.stated_watermark)


def seal(store: TopicStore, number: int, check_stop: CheckStop = check_stop) -> int:
    """Seal every closed segment whose transactions are all decided; returns the number of Parquet files written."""
    with upkeep_of(store.partitions[number]):
        return seal_closed(store, number, check_stop)


def seal_closed(store: TopicStore, number: int, check_stop: CheckStop = check_stop) -> int:
    """The same for a caller that is inside `upkeep_of`."""
    made = 0
    while (run := _next_run(store, number)) is not None:
        check_stop()
        _seal_run(store, number, *run, check_stop)
        made += 1
    return made


def _next_run(store: TopicStore, number: int) -> tuple[list[SegmentName], int] | None:
    """The next run of closed segments that makes one file, and its end offset."""
    partition = store.partitions[number]
    stable = store.readers[number].visible().end
    run: list[SegmentName] = []
    size = end = 0
    for name, after in closed_segments(partition, partition.manifest_file.read()):
        if after.base > stable or (run and size >= partition.segment_bytes_max):
            break
        run.append(name)
        size += partition.files.identity(name.path(partition.folder))[2]
        end = after.base
    return (run, end) if run else None


def _seal_run(store: TopicStore, number: int, names: list[SegmentName], end: int, check_stop: CheckStop) -> None:
    partition = store.partitions[number]
    manifest = partition.manifest_file.read()
    decided = store.readers[number].decided_transactions()
    # Refreshed after listing the segments, so that every schema they use is known.
    store.refresh()
    schemas = store.schemas
    rows = SealedRows(number, schemas)
    span = Span()
    batches = _batches(partition, rows, names, end, decided, span, check_stop)
    # Includes the spans of these transactions in other segments.
    spans = committed_spans(decided).between(manifest.end, end)
    file, written = put_sealed(partition, manifest.end, sealed_schema(schemas.current), batches, spans)
    entry = SealedEntry(
        manifest.end, end, file, written.bytes, written.crc32c, written.rows, schemas.version,
        span.appended_first, span.appended_last, span.event_time_max, span.observed_up_to, span.stated_watermark,
        span.markers if store.settings.keep.compacted else [], span.aborted, len(span.markers),
        tombstones=rows.tombstones, transactions=spans.numbers_between(),
    )  # fmt: skip
    partition.manifest_file.write(manifest.with_segment(entry))
    for name in names:
        remove_blocks(partition, name)


def _batches(
    partition: Partition,
    rows: SealedRows,
    names: list[SegmentName],
    end: int,
    decided: dict[int, DecidedTransaction],
    span: Span,
    check_stop: CheckStop,
) -> Iterator[pa.RecordBatch]:
    """The rows of a run of segments as the Parquet file stores them; also fills the span."""
    for name, limit in zip(names, [*(name.base for name in names[1:]), end], strict=True):
        segment = ActiveSegment(partition.files, partition.folder, name)
        reached = name.base
        try:
            for block in segment.blocks(PREAMBLE_BYTES, segment.size(), name.base, limit):
                header = block.header
                reached = header.end_offset
                span.add(header)
                outcome = decided.get(header.transaction) if header.transaction else None
                if header.kind in MARKERS and outcome is not None:
                    span.markers.append(Marker(header.base_offset, outcome.committed, outcome.ranges))
                elif header.kind == DATA and header.count:
                    if outcome is not None and not outcome.committed:
                        span.aborted.append([header.base_offset, header.end_offset])
                    else:
                        for batch in rows.add(block):
                            check_stop()
                            yield batch
                # Blocks after the limit may be abandoned records of an earlier epoch.
                if header.end_offset >= limit:
                    break
        finally:
            segment.close()
        if reached < limit:
            # Sealing the run like this would lose records silently.
            raise missing_records(partition.title, segment.path, reached, limit)
    yield from rows.rest()
