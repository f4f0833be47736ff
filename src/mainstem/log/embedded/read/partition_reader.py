"""Reads a partition: sealed segments first, then segments of blocks, up to the published end.

Every byte is checked against its checksum. Records of open and of aborted transactions are never shown. Any number of
readers, in any number of processes, run beside writers, sealing, compaction and retention: if a file is replaced or
removed, the reader looks it up again.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ENOENT
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from mainstem.arguments import INTEGER_MAX
from mainstem.errors import Corrupt, CorruptBlock, CorruptManifest, FellOff
from mainstem.log.embedded.read.sealed_check import check_frame_once, check_once, corrupt_segment
from mainstem.log.embedded.read.sealed_segment import read_for_reader, read_sealed, read_spans
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.transaction_log import Decisions
from mainstem.log.embedded.upkeep.manifest import Manifest, SealedEntry
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    ActiveSegment,
    SegmentIndex,
    SegmentName,
    missing_records,
    segments_in,
)
from mainstem.log.embedded.write.block import DATA, Block, Header
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.embedded.write.partition_state import DecidedTransaction, PartitionState, StateScan
from mainstem.log.log import fell_off
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.rows.stored_batch import HAS_CHANGE, HAS_HEADERS
from mainstem.log.transaction_cut import TransactionSpans
from mainstem.log.watermark import watermarks, with_watermark

__all__ = ["PartitionReader", "Visible", "sealed_at"]


# Combines the rows of many blocks into batches, so that many small appends are read fast too.


# A batch is returned at this size, however few its rows.
BATCH_BYTES_MAX = 8 << 20

# A block with this many rows is returned as its own batch: copying it would cost more than it saves.
ALONE_ROWS_MIN = 4_096


class GatheredRows:
    """The rows collected from one partition. Not thread-safe."""

    def __init__(self, partition: int, schemas: TopicSchemas, reading: Reading) -> None:
        self._partition = partition
        self._schemas = schemas
        self._plain, self._visible_ranges = schemas.output_schemas(reading)
        *fields, self._record = self._visible_ranges
        # The output columns: a block with exactly these is read without a copy.
        self._marked = pa.schema(fields)
        self._whole = self._plain.names == schemas.current.names
        self._delay = reading.delay
        self._clear()

    def _clear(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._changes: list[pa.Array | None] = []
        self._headers: list[pa.Array | None] = []
        self._spans: list[tuple[int, int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, block: Block, first: int, last: int) -> None:
        header = block.header
        direct = self._whole and not header.flags and header.schema_version == self._schemas.version
        batch = self._schemas.rows(block, self._marked if direct else None)
        if last - first < header.count:
            batch = batch.slice(first - header.base_offset, last - first)
        headers = change = None
        if not direct:
            columns = batch.columns
            headers = columns.pop() if header.flags & HAS_HEADERS else None
            change = columns.pop() if header.flags & HAS_CHANGE else None
            rows = fit(pa.RecordBatch.from_arrays(columns, names=batch.schema.names[: len(columns)]), self._plain)
            batch = pa.RecordBatch.from_arrays(rows.columns, schema=self._marked)
        self._headers.append(headers)
        self._changes.append(change)
        self._batches.append(batch)
        self._spans.append((first, last, header.appended_at))
        if self._delay is not None:
            self._times.append((header.observed_up_to, header.stated_watermark))
        self._rows += last - first
        self._bytes += header.length

    def full(self, rows_max: int) -> bool:
        alone = len(self._batches) == 1 and self._rows >= ALONE_ROWS_MIN
        return alone or self._rows >= rows_max or self._bytes >= BATCH_BYTES_MAX

    def take(self, rows_max: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The collected rows, in batches of at most `rows_max`, each with the offset to continue from."""
        if not self._rows:
            return
        batch, last = self._combine(), self._spans[-1][1]
        self._clear()
        for first in range(0, batch.num_rows, rows_max):
            piece = batch.slice(first, rows_max)
            if first + piece.num_rows == batch.num_rows:
                yield last, piece
            else:
                yield piece.column(piece.num_columns - 1).field("offset")[-1].as_py() + 1, piece

    def _combine(self) -> pa.RecordBatch:
        if len(self._batches) == 1:
            rows = self._batches[0]
            first, _, appended_at = self._spans[0]
            record = record_array(
                self._partition, first, appended_at, count=self._rows, change=self._changes[0], headers=self._headers[0]
            )
        else:
            rows = pa.concat_batches(self._batches)
            counts = [last - first for first, last, _ in self._spans]
            offsets = np.concatenate([np.arange(first, last, dtype=np.int64) for first, last, _ in self._spans])
            times = np.repeat(np.array([at for _, _, at in self._spans], np.int64), counts)
            record = record_array(
                self._partition,
                offsets,
                times,
                count=self._rows,
                change=_concatenate(self._changes, counts, pa.scalar("insert", CHANGE)),
                headers=_concatenate(self._headers, counts, pa.scalar(None, HEADERS)),
            )
        if self._delay is not None:
            counts = [last - first for first, last, _ in self._spans]
            observed, declared = np.repeat(np.array(self._times, np.int64), counts, axis=0).T
            record = with_watermark(record, watermarks(observed, declared, self._delay))
        # A batch without columns has no row count.
        if not rows.num_columns:
            return pa.RecordBatch.from_arrays([record], schema=self._visible_ranges)
        return rows.append_column(self._record, record)


def _concatenate(parts: list[pa.Array | None], counts: list[int], default: pa.Scalar) -> pa.Array | None:
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(default, count) if part is None else part for part, count in zip(parts, counts, strict=True)]
    )


T = TypeVar("T")

EVERYTHING = Reading()

# A file may disappear during a read because it was sealed, compacted or dropped; then the read is retried.
TRIES = 20

# Above every transaction number.
NEVER = (1 << 63) - 1

# The number of sealed files whose transactions a reader caches.
SPANS_KEPT_MAX = 32

# The number of segments of blocks that a reader keeps open.
SEGMENTS_OPEN_MAX = 8


class Visible(NamedTuple):
    """Up to which offset a partition may be read, and which records before it are aborted.

    If its end is damaged, records from `known` on cannot be read: a read that reaches them raises the `damage`.
    """

    end: int
    hidden: list[tuple[int, int]]
    head: End
    known: int | None = None
    damage: Corrupt | None = None


class PartitionReader:
    """Reads one partition for any number of threads."""

    def __init__(self, partition: Partition, number: int, topic: str) -> None:
        self.partition = partition
        self._number = number
        self._topic = topic
        self.files = partition.files
        self._folder = partition.folder
        self._guard = threading.Lock()
        self._scan: StateScan | None = None
        self._segments: dict[SegmentName, ActiveSegment] = {}
        self.recent = False
        # By file. After a race a file is read twice.
        self._spans: dict[str, TransactionSpans] = {}

    def close(self) -> None:
        with self._guard:
            self._scan = None
            self._close_idle()

    def close_idle(self) -> int:
        """Forget the open segments. Each is closed when no thread reads it."""
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            return self._close_idle()
        finally:
            self._guard.release()

    def _close_idle(self) -> int:
        count = len(self._segments)
        self._segments.clear()
        self.files.kept.count_handles(self, 0)
        return count

    # Visibility

    def visible(self, moment: Decisions | None = None) -> Visible:
        """All committed records up to the last stable offset, for readers that continue from there.

        With a `moment`, all records committed at that moment of the ledger of transactions, even after records of an
        open transaction: for a bounded read, which shows all of a transaction or none.
        """
        head = self.partition.published_end()
        if (damage := self.partition.damage()) is not None and (damage.first_offset or 0) >= head.offset:
            # More records were acknowledged: ending here would skip them silently.
            return self._visible_at(moment, head)._replace(end=head.offset + 1, known=head.offset, damage=damage)
        return self._visible_at(moment, head)

    def _visible_at(self, moment: Decisions | None, head: End) -> Visible:
        sealed_to = self._sealed_end()
        if head.transactions_end <= (sealed_to or 0):
            return Visible(head.offset, [], head)

        def look(state: PartitionState, head: End) -> Visible:
            if moment is None:
                return Visible(state.stable_offset(head.offset), state.aborted_ranges(), head)
            return Visible(head.offset, state.hidden_ranges_at(moment.outcomes, moment.decided_before), head)

        try:
            return self._with_state(look)
        except CorruptBlock as error:
            # Aborted records are known only before the damage, and before a transaction that was open there.
            with self._guard:
                reached = None if self._scan is None else self._scan.reached
                if self._scan is None or reached is None:
                    return Visible(head.offset, [], head, sealed_to or 0, error)
                seen = look(self._scan.state, head)
                return seen._replace(end=head.offset, known=self._scan.state.stable_offset(reached), damage=error)

    def visible_without_ledger(self, damage: Corrupt) -> Visible:
        """The visible records if the ledger of transactions is damaged: all, if no transaction wrote here since the
        last seal."""
        if self.partition.published_end().transactions_end > (self._sealed_end() or 0):
            raise damage
        return self.visible()

    def _sealed_end(self) -> int | None:
        """The offset up to which history is sealed; None if the manifest is damaged."""
        with suppress(CorruptManifest):
            return self.partition.manifest_file.read().end
        return None

    def decided_transactions(self) -> dict[int, DecidedTransaction]:
        """The transactions whose markers are in segments of blocks."""
        return self._with_state(lambda state, head: dict(state.decided))

    def transaction_spans(self, start: int, end: int, numbers: tuple[int, int]) -> TransactionSpans:
        """The spans from `start` on of transactions with records before `end` or with numbers in this range, and of
        others.

        Complete for each transaction that was complete when the caller read `end`. Segments sealed by versions that did
        not record transactions are not included.
        """
        return self._retry_if_moved(lambda: self._transaction_spans(start, end, numbers))

    def _transaction_spans(self, start: int, end: int, numbers: tuple[int, int]) -> TransactionSpans:
        # The state is read before the manifest: records sealed in between are in both.
        head = self.partition.published_end()
        found = []
        if head.transactions_end > max(start, self.partition.manifest_file.read().end):
            found.append(self._with_state(lambda state, _: state.spans_from(start)))
        segments = self.partition.manifest_file.read().segments
        for entry in segments[bisect.bisect_right(segments, start, key=lambda entry: entry.end) :]:
            if entry.transactions:
                low, high = entry.transactions
                if entry.base < end or (low <= numbers[1] and high >= numbers[0]):
                    noted = self._spans_in(entry)
                    found.append(noted.only(noted.ends > start))
        return TransactionSpans.concatenate(found)

    def numbers_around(self, offset: int) -> tuple[int, int]:
        """The highest number of a transaction with a record before `offset`, and the lowest of one with a record from
        it on.

        -1 and `NEVER` if there is none. Of sealed files only the one with the offset is opened.
        """
        return self._retry_if_moved(lambda: self._numbers_around(offset))

    def _numbers_around(self, offset: int) -> tuple[int, int]:
        before, behind = -1, NEVER
        # The state is read before the manifest, as for the spans.
        head = self.partition.published_end()
        found = []
        if head.transactions_end > self.partition.manifest_file.read().end:
            found.append(self._with_state(lambda state, _: state.spans_from(0)))
        for entry in self.partition.manifest_file.read().segments:
            if entry.transactions and entry.end <= offset:
                before = max(before, entry.transactions[1])
            elif entry.transactions and entry.base >= offset:
                behind = min(behind, entry.transactions[0])
            elif entry.transactions:
                found.append(self._spans_in(entry))
        spans = TransactionSpans.concatenate(found)
        before = int(spans.numbers[spans.firsts < offset].max(initial=before))
        return before, int(spans.numbers[spans.ends > offset].min(initial=behind))

    def _spans_in(self, entry: SealedEntry) -> TransactionSpans:
        known = self._spans.get(entry.file)
        if known is None:
            known = self._spans[entry.file] = read_spans(self.files, self.sealed_path(entry))
            while len(self._spans) > SPANS_KEPT_MAX:
                self._spans.pop(next(iter(self._spans)), None)
        return known

    def open_transactions(self) -> dict[int, int]:
        """The undecided transactions: their numbers, each with its first offset."""
        head = self.partition.published_end()
        if head.transactions_end <= self.partition.manifest_file.read().end:
            return {}
        return self._with_state(lambda state, _: {number: it.first_offset for number, it in state.open.items()})

    def _with_state(self, look: Callable[[PartitionState, End], T]) -> T:
        def catch_up() -> T:
            head = self.partition.published_end()
            with self._guard:
                if self._scan is None:
                    self._scan = StateScan(self.files, self._folder)
                self._scan.catch_up(head)
                return look(self._scan.state, head)

        return self._retry_if_moved(catch_up)

    def _retry_if_moved(self, look: Callable[[], T]) -> T:
        """Retry if a file was sealed, compacted or dropped meanwhile; a file that is still missing is damage."""
        for _ in range(TRIES - 1):
            with suppress(FileNotFoundError):
                return look()
        try:
            return look()
        except FileNotFoundError as error:
            head, manifest = self.partition.published_end(), self.partition.manifest_file.read()
            named = os.path.basename(str(error.filename or ""))
            sealed = next((entry.base for entry in manifest.segments if entry.file == named), None)
            raise self._missing(max(head.segment, manifest.end) if sealed is None else sealed, head, error) from error

    def earliest(self) -> int:
        return self.partition.start_offset()

    def end(self) -> int:
        """The offset after the last published record; if the end is damaged it is unknown, and an upper bound is
        returned: a read that reaches the damage raises it."""
        head, damage = self.partition.published_end(), self.partition.damage()
        return head.offset if damage is None or (damage.first_offset or 0) < head.offset else INTEGER_MAX

    # Reading

    def read(
        self,
        schemas: TopicSchemas,
        start: int,
        visible: Visible,
        *,
        stop: int | None = None,
        reading: Reading = EVERYTHING,
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to the visible end (and `stop`), each batch with `record` as its last column."""
        asked = visible.end if stop is None else min(stop, visible.end)
        end = asked if visible.known is None else min(asked, visible.known)
        failed = 0
        while start < end:
            try:
                for next_start, batch in self._read_segment(schemas, start, end, visible, reading):
                    start, failed = next_start, 0
                    if batch is not None and batch.num_rows:
                        yield batch
            except FileNotFoundError as error:
                failed += 1
                if failed == TRIES:
                    raise self._missing(start, visible.head, error) from error
        if end < asked and visible.damage is not None:
            raise visible.damage

    def _missing(self, start: int, head: End, error: FileNotFoundError) -> Exception:
        """The error if the file with an offset is still missing after all retries."""
        if not self.files.exists(self._folder):
            return error  # the topic was deleted
        manifest = self.partition.manifest_file.read()
        if start < manifest.end:
            entry = sealed_at(manifest, start)
            return corrupt_segment(f"{self._folder}/{entry.file}", (entry.base, entry.end), "missing")
        bases = [name.base for name in segments_in(self.files.list(self._folder))]
        first = head.segment if start >= head.segment else start if bases and bases[0] < start else manifest.end
        behind = min([*(base for base in bases if base > start), head.offset])
        path = SegmentName(head.segment, head.epoch).path(self._folder) if first == head.segment else self._folder
        return missing_records(self.partition.title, path, first, behind)

    def _read_segment(
        self,
        schemas: TopicSchemas,
        start: int,
        end: int,
        visible: Visible,
        reading: Reading,
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Batches of the segment that holds `start`, each with the offset to continue from."""
        # The manifest is read after the state of transactions: the state covers what the manifest does not.
        if (manifest := self._manifest_for(start, visible.head)) is not None:
            if start < manifest.start:
                raise self.fell_off(start, manifest.start)
            if start < manifest.end:
                yield from self._read_sealed(schemas, manifest, start, end, visible.hidden, reading)
                return
        segment, size, limit = self._segment_of(start, visible.head)
        stop = end if limit is None else min(end, limit)
        gathered = GatheredRows(self._number, schemas, reading)
        # A segment sealed meanwhile is still readable by its handle, but its aborted records may no longer be in the
        # state: read the sealed file then.
        if (manifest := self._manifest_for(start, visible.head)) is not None and manifest.end > start:
            raise FileNotFoundError(segment.path)
        until = visible.head.offset if limit is None else limit
        position, reached = self._locate(segment, start, size)
        for block in segment.blocks(position, size, reached, until):
            header = block.header
            reached = header.end_offset
            if header.base_offset >= stop:
                break
            if header.kind == DATA and header.count and header.end_offset > start:
                for first, last in _visible_ranges(
                    header, max(start, header.base_offset), min(stop, header.end_offset), visible.hidden
                ):
                    gathered.add(block, first, last)
                    if gathered.full(reading.rows_max):
                        yield from gathered.take(reading.rows_max)
            if header.end_offset >= stop:
                break  # later blocks may be abandoned records
        yield from gathered.take(reading.rows_max)
        if reached < stop:
            raise missing_records(self.partition.title, segment.path, reached, until)
        yield stop, None

    def _manifest_for(self, start: int, head: End) -> Manifest | None:
        """The manifest; None if it is damaged and not needed: the active segment is never sealed."""
        try:
            return self.partition.manifest_file.read()
        except CorruptManifest:
            if start < head.segment:
                raise
            return None

    def _read_sealed(
        self,
        schemas: TopicSchemas,
        manifest: Manifest,
        start: int,
        end: int,
        hidden: list[tuple[int, int]],
        reading: Reading,
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        entry = sealed_at(manifest, start)
        stop = min(end, entry.end)
        for resume, batch in read_for_reader(
            self.files, self.sealed_path(entry), schemas, reading, start=start, stop=stop
        ):
            yield resume, _without(batch, hidden)
        yield stop, None

    def sealed_path(self, entry: SealedEntry) -> str:
        """The path of a sealed file for `read_sealed`, which verifies the bytes it reads."""
        path = f"{self._folder}/{entry.file}"
        check_frame_once(self.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def whole_sealed_path(self, entry: SealedEntry) -> str:
        """The path of a sealed file, verified as a whole, for readers that do not verify it."""
        path = f"{self._folder}/{entry.file}"
        check_once(self.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def _segment(self, name: SegmentName) -> ActiveSegment:
        with self._guard:
            self.recent = True
            segment = self._segments.get(name)
            if segment is None:
                segment = ActiveSegment(self.files, self._folder, name)
                # Closed when no thread reads it: one may still read a segment that was evicted here.
                weakref.finalize(segment, self.files.close, segment.handle)
                self._segments[name] = segment
                while len(self._segments) > SEGMENTS_OPEN_MAX:
                    self._segments.pop(next(iter(self._segments)))
                self.files.kept.count_handles(self, len(self._segments))
            return segment

    def _segment_of(self, start: int, head: End) -> tuple[ActiveSegment, int, int | None]:
        """The segment of blocks that holds an offset, the position up to which it may be read, and its end if
        closed."""
        names = segments_in(self.files.list(self._folder))
        at = bisect.bisect_right([name.base for name in names], start) - 1
        # The last segment must exist, or its records would be looked for in the one before.
        if at < 0 or (start >= head.segment and names[at].base < head.segment):
            raise FileNotFoundError(self._folder)
        name = names[at]
        segment = self._segment(name)
        size = head.position if (head.segment, head.epoch) == name else segment.size()
        return segment, size, names[at + 1].base if at + 1 < len(names) else None

    def _locate(self, segment: ActiveSegment, start: int, size: int) -> tuple[int, int]:
        """Position and base offset of the block that holds `start`."""
        position, offset = PREAMBLE_BYTES, segment.name.base
        if start == offset:
            return position, offset
        found = SegmentIndex(self.files, segment.name.index_path(self._folder)).find_offset(segment, start)
        if found is not None:
            position, offset = found
        # Up to the block only headers are read: damage in other records does not matter.
        for at, header in segment.headers(position, size):
            if header.end_offset > start:
                return at, header.base_offset
            position, offset = at + header.size, header.end_offset
        if position < size:
            # A header is damaged: search for the next valid one.
            for at, header in segment.sound_after(position + 1, size):
                if header.base_offset <= start < header.end_offset:
                    return at, header.base_offset
                if header.base_offset > start:
                    break
        return position, offset

    def headers_from(self, start: int) -> Iterator[Header]:
        """The headers in the segment of blocks that holds `start`, from that block on."""
        segment, size, limit = self._segment_of(start, self.partition.published_end())
        position, _ = self._locate(segment, start, size)
        for _, header in segment.headers(position, size):
            if limit is not None and header.base_offset >= limit:
                return
            yield header

    def offset_at(self, at: int, visible: Visible) -> int:
        """The first offset appended at that time or later; the end if there is none."""
        return self._retry_if_moved(lambda: self._offset_at(at, visible))

    def _offset_at(self, at: int, visible: Visible) -> int:
        manifest = self.partition.manifest_file.read()
        for entry in manifest.segments:
            if entry.appended_last >= at:
                return self._sealed_offset_at(entry, at)
        names = [name for name in segments_in(self.files.list(self._folder)) if name.base >= manifest.end]
        head = visible.head
        if head.segment >= manifest.end and all(name.base != head.segment for name in names):
            # Ending before it would skip its records.
            raise FileNotFoundError(
                ENOENT, os.strerror(ENOENT), SegmentName(head.segment, head.epoch).path(self._folder)
            )
        # Append times never decrease: it is in the last segment that begins before that time, or it begins the next one.
        later = bisect.bisect_left(names, at, key=self._first_append)
        for name in names[max(0, later - 1) :]:
            segment = self._segment(name)
            size = head.position if (head.segment, head.epoch) == name else segment.size()
            found = SegmentIndex(self.files, name.index_path(self._folder)).find_time(segment, at)
            for _, header in segment.headers(found[0] if found else PREAMBLE_BYTES, size):
                if header.count and header.appended_at >= at:
                    return min(header.base_offset, visible.end)
        return visible.end

    def _first_append(self, name: SegmentName) -> int:
        """The append time of the first records of a segment of blocks; later than any if it has none."""
        segment = self._segment(name)
        position = PREAMBLE_BYTES
        while (header := segment.header_at(position)) is not None:
            if header.count:
                return header.appended_at
            position += header.size
        return INTEGER_MAX

    def _sealed_offset_at(self, entry: SealedEntry, at: int) -> int:
        if entry.appended_first >= at:
            return entry.base
        leaves = ("record.offset", "record.appended_at")
        for batch in read_sealed(self.files, self.sealed_path(entry), columns=[], record_columns=leaves):
            record = batch.column("record")
            times = record.field("appended_at").cast(pa.int64()).to_numpy(zero_copy_only=False)
            first = int(np.searchsorted(times, at))
            if first < len(times):
                return int(record.field("offset")[first].as_py())
        return entry.end

    def fell_off(self, start: int, kept: int) -> FellOff:
        return fell_off(self._topic, self._number, start, kept)


def sealed_at(manifest: Manifest, offset: int) -> SealedEntry:
    """The sealed segment that covers an offset."""
    return manifest.segments[bisect.bisect_right(manifest.segments, offset, key=lambda entry: entry.base) - 1]


def _without(batch: pa.RecordBatch, hidden: list[tuple[int, int]]) -> pa.RecordBatch:
    """Sealed rows without those of transactions decided after the moment of the read."""
    if not hidden or not batch.num_rows:
        return batch
    offsets = batch.column(batch.num_columns - 1).field("offset").to_numpy(zero_copy_only=False)
    starts = np.searchsorted(offsets, [first for first, _ in hidden])
    ends = np.searchsorted(offsets, [end for _, end in hidden])
    kept = np.ones(len(offsets), bool)
    for first, end in zip(starts, ends, strict=True):
        kept[first:end] = False
    return batch if kept.all() else batch.filter(pa.array(kept))


def _visible_ranges(header: Header, first: int, last: int, hidden: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a range of offsets that are not aborted."""
    if header.transaction and any(low <= first and last <= high for low, high in hidden):
        return
    if first < last:
        yield first, last
