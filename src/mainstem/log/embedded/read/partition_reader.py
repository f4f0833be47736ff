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
from mainstem.log.embedded.read.sealed_segment import noted_spans, read_sealed, read_shown
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
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.rows.stored_batch import HAS_CHANGE, HAS_HEADERS
from mainstem.log.transaction_cut import TransactionSpans
from mainstem.log.watermark import watermarks, with_watermark

__all__ = ["PartitionReader", "Visible", "sealed_at"]


# Puts the rows of many blocks together to batches, so that a topic of single appends is read fast too.


# A batch is given out when it has this many bytes, however few its rows.
BATCH_BYTES_MAX = 8 << 20

# A block with so many rows is a batch by itself: to copy it together with others costs more than it saves.
ALONE_ROWS_MIN = 4_096


class GatheredRows:
    """The rows gathered so far from one partition. For one thread."""

    def __init__(self, partition: int, schemas: TopicSchemas, reading: Reading) -> None:
        self._partition = partition
        self._schemas = schemas
        self._plain, self._shown = schemas.shown(reading)
        *fields, self._record = self._shown
        # The columns as they are shown: a block that holds just these is read as such, which spares making it anew.
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
        """What was gathered, in batches of at most so many rows, each with the offset to go on from."""
        if not self._rows:
            return
        batch, last = self._combined(), self._spans[-1][1]
        self._clear()
        for first in range(0, batch.num_rows, rows_max):
            piece = batch.slice(first, rows_max)
            if first + piece.num_rows == batch.num_rows:
                yield last, piece
            else:
                yield piece.column(piece.num_columns - 1).field("offset")[-1].as_py() + 1, piece

    def _combined(self) -> pa.RecordBatch:
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
                change=_joined(self._changes, counts, pa.scalar("insert", CHANGE)),
                headers=_joined(self._headers, counts, pa.scalar(None, HEADERS)),
            )
        if self._delay is not None:
            counts = [last - first for first, last, _ in self._spans]
            observed, declared = np.repeat(np.array(self._times, np.int64), counts, axis=0).T
            record = with_watermark(record, watermarks(observed, declared, self._delay))
        # A batch without columns does not know how many rows it has.
        if not rows.num_columns:
            return pa.RecordBatch.from_arrays([record], schema=self._shown)
        return rows.append_column(self._record, record)


def _joined(parts: list[pa.Array | None], counts: list[int], default: pa.Scalar) -> pa.Array | None:
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(default, count) if part is None else part for part, count in zip(parts, counts, strict=True)]
    )


T = TypeVar("T")

EVERYTHING = Reading()

# A file may vanish under a reader because it was sealed, compacted or dropped; each time it is looked for anew.
TRIES = 20

# Higher than the number of any transaction.
NEVER = (1 << 63) - 1

# Sealed files whose transactions a reader keeps in memory.
SPANS_KEPT_MAX = 32

# Segments of blocks that a reader keeps open for the next read.
SEGMENTS_OPEN_MAX = 8


class Visible(NamedTuple):
    """Up to where a partition may be read, and which records before that are aborted.

    Where its end is damaged, what lies from `known` on cannot be shown: who reads so far is told of the `damage`.
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
        # By file. Whoever loses a race reads one again.
        self._spans: dict[str, TransactionSpans] = {}

    def close(self) -> None:
        with self._guard:
            self._scan = None
            self._let_go()

    def let_go(self) -> int:
        """Forget the segments that are open. Each is closed when no thread reads it any more."""
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            return self._let_go()
        finally:
            self._guard.release()

    def _let_go(self) -> int:
        count = len(self._segments)
        self._segments.clear()
        self.files.kept.keeps(self, 0)
        return count

    # What may be seen

    def visible(self, moment: Decisions | None = None) -> Visible:
        """Everything committed, up to the first record of an open transaction: for those who go on from there.

        With a `moment`, everything that was committed at that moment of the ledger of transactions, also behind records
        of an open one: for a bounded read, which shows all of a transaction or none.
        """
        head = self.partition.published()
        if (damage := self.partition.damage()) is not None and (damage.first_offset or 0) >= head.offset:
            # More than this was acknowledged: to end here would be to leave it out silently.
            return self._seen(moment, head)._replace(end=head.offset + 1, known=head.offset, damage=damage)
        return self._seen(moment, head)

    def _seen(self, moment: Decisions | None, head: End) -> Visible:
        sealed_to = self._sealed_to()
        if head.transactions_end <= (sealed_to or 0):
            return Visible(head.offset, [], head)

        def look(state: PartitionState, head: End) -> Visible:
            if moment is None:
                return Visible(state.stable_offset(head.offset), state.hidden(), head)
            return Visible(head.offset, state.hidden_at(moment.outcomes, moment.decided_before), head)

        try:
            return self._with_state(look)
        except CorruptBlock as error:
            # Which records are aborted is known only of those before the damage, and before what was open there.
            with self._guard:
                reached = None if self._scan is None else self._scan.reached
                if self._scan is None or reached is None:
                    return Visible(head.offset, [], head, sealed_to or 0, error)
                seen = look(self._scan.state, head)
                return seen._replace(end=head.offset, known=self._scan.state.stable_offset(reached), damage=error)

    def visible_without_ledger(self, damage: Corrupt) -> Visible:
        """What is visible where the ledger of transactions is damaged: everything, if none wrote here since it was sealed."""
        if self.partition.published().transactions_end > (self._sealed_to() or 0):
            raise damage
        return self.visible()

    def _sealed_to(self) -> int | None:
        """Up to which offset history is sealed; None if that is not known, because the manifest is damaged."""
        with suppress(CorruptManifest):
            return self.partition.manifest_file.read().end
        return None

    def decided(self) -> dict[int, DecidedTransaction]:
        """The transactions whose markers stand in segments that are still blocks."""
        return self._with_state(lambda state, head: dict(state.decided))

    def transaction_spans(self, start: int, end: int, numbers: tuple[int, int]) -> TransactionSpans:
        """Where transactions wrote from `start` on that have records before `end` or numbers in this range, and others.

        All of what each of them wrote here, if it was whole when the caller took `end`. Of segments that were sealed by a
        version that did not note them nothing is known.
        """
        return self._look(lambda: self._transaction_spans(start, end, numbers))

    def _transaction_spans(self, start: int, end: int, numbers: tuple[int, int]) -> TransactionSpans:
        # The state before the manifest: what is sealed between the two is in both.
        head = self.partition.published()
        found = []
        if head.transactions_end > max(start, self.partition.manifest_file.read().end):
            found.append(self._with_state(lambda state, _: state.spans_from(start)))
        segments = self.partition.manifest_file.read().segments
        for entry in segments[bisect.bisect_right(segments, start, key=lambda entry: entry.end) :]:
            if entry.transactions:
                low, high = entry.transactions
                if entry.base < end or (low <= numbers[1] and high >= numbers[0]):
                    noted = self._noted(entry)
                    found.append(noted.only(noted.ends > start))
        return TransactionSpans.joined(found)

    def numbers_around(self, offset: int) -> tuple[int, int]:
        """The highest number of a transaction with a record before `offset`, and the lowest of one with a record from it on.

        -1 and `NEVER` where there is none. Of sealed files only the one is opened in which the offset lies.
        """
        return self._look(lambda: self._numbers_around(offset))

    def _numbers_around(self, offset: int) -> tuple[int, int]:
        before, behind = -1, NEVER
        # The state before the manifest, as for the spans.
        head = self.partition.published()
        found = []
        if head.transactions_end > self.partition.manifest_file.read().end:
            found.append(self._with_state(lambda state, _: state.spans_from(0)))
        for entry in self.partition.manifest_file.read().segments:
            if entry.transactions and entry.end <= offset:
                before = max(before, entry.transactions[1])
            elif entry.transactions and entry.base >= offset:
                behind = min(behind, entry.transactions[0])
            elif entry.transactions:
                found.append(self._noted(entry))
        spans = TransactionSpans.joined(found)
        before = int(spans.numbers[spans.firsts < offset].max(initial=before))
        return before, int(spans.numbers[spans.ends > offset].min(initial=behind))

    def _noted(self, entry: SealedEntry) -> TransactionSpans:
        known = self._spans.get(entry.file)
        if known is None:
            known = self._spans[entry.file] = noted_spans(self.files, self.sealed_path(entry))
            while len(self._spans) > SPANS_KEPT_MAX:
                self._spans.pop(next(iter(self._spans)), None)
        return known

    def open_transactions(self) -> dict[int, int]:
        """The transactions that are not decided here, by number, each with its first offset."""
        head = self.partition.published()
        if head.transactions_end <= self.partition.manifest_file.read().end:
            return {}
        return self._with_state(lambda state, _: {number: it.first_offset for number, it in state.open.items()})

    def _with_state(self, look: Callable[[PartitionState, End], T]) -> T:
        def caught_up() -> T:
            head = self.partition.published()
            with self._guard:
                if self._scan is None:
                    self._scan = StateScan(self.files, self._folder)
                self._scan.catch_up(head)
                return look(self._scan.state, head)

        return self._look(caught_up)

    def _look(self, look: Callable[[], T]) -> T:
        """Look again where a file was sealed, compacted or dropped meanwhile; one that is missing then is damage."""
        for _ in range(TRIES - 1):
            with suppress(FileNotFoundError):
                return look()
        try:
            return look()
        except FileNotFoundError as error:
            head, manifest = self.partition.published(), self.partition.manifest_file.read()
            named = os.path.basename(str(error.filename or ""))
            sealed = next((entry.base for entry in manifest.segments if entry.file == named), None)
            raise self._missing(max(head.segment, manifest.end) if sealed is None else sealed, head, error) from error

    def earliest(self) -> int:
        return self.partition.start_offset()

    def end(self) -> int:
        """The offset after the last record that is published; where the end is damaged it is not known, and no offset lies
        beyond it: who reads so far is told of the damage."""
        head, damage = self.partition.published(), self.partition.damage()
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
        """The records from `start` up to what is visible (and `stop`), each batch with `record` as its last column."""
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
        """The file with an offset is not there, however often one looks."""
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
        """Batches out of the segment that holds `start`, each with the offset to go on from."""
        # The manifest is read after the state of transactions: what it does not cover, that state tells of.
        if (manifest := self._manifest_for(start, visible.head)) is not None:
            if start < manifest.start:
                raise self.fell_off(start, manifest.start)
            if start < manifest.end:
                yield from self._read_sealed(schemas, manifest, start, end, visible.hidden, reading)
                return
        segment, size, limit = self._segment_of(start, visible.head)
        stop = end if limit is None else min(end, limit)
        gathered = GatheredRows(self._number, schemas, reading)
        # A segment that was sealed meanwhile is still readable by its handle, but the aborted records in it may be
        # forgotten by now: then read the sealed file.
        if (manifest := self._manifest_for(start, visible.head)) is not None and manifest.end > start:
            raise FileNotFoundError(segment.path)
        until = visible.head.offset if limit is None else limit
        position, reached = self._place_of(segment, start, size)
        for block in segment.blocks(position, size, reached, until):
            header = block.header
            reached = header.end_offset
            if header.base_offset >= stop:
                break
            if header.kind == DATA and header.count and header.end_offset > start:
                for first, last in _shown(
                    header, max(start, header.base_offset), min(stop, header.end_offset), visible.hidden
                ):
                    gathered.add(block, first, last)
                    if gathered.full(reading.rows_max):
                        yield from gathered.take(reading.rows_max)
            if header.end_offset >= stop:
                break  # what lies behind may be the rest of something that was abandoned
        yield from gathered.take(reading.rows_max)
        if reached < stop:
            raise missing_records(self.partition.title, segment.path, reached, until)
        yield stop, None

    def _manifest_for(self, start: int, head: End) -> Manifest | None:
        """The manifest; None if it is damaged and not needed: the segment that is appended to was never sealed."""
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
        for resume, batch in read_shown(self.files, self.sealed_path(entry), schemas, reading, start=start, stop=stop):
            yield resume, _without(batch, hidden)
        yield stop, None

    def sealed_path(self, entry: SealedEntry) -> str:
        """The path of a sealed file, for `read_sealed`, which checks what it reads of it."""
        path = f"{self._folder}/{entry.file}"
        check_frame_once(self.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def whole_sealed_path(self, entry: SealedEntry) -> str:
        """The path of a sealed file whose bytes are those that were written, for readers that do not check them."""
        path = f"{self._folder}/{entry.file}"
        check_once(self.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def _segment(self, name: SegmentName) -> ActiveSegment:
        with self._guard:
            self.recent = True
            segment = self._segments.get(name)
            if segment is None:
                segment = ActiveSegment(self.files, self._folder, name)
                # Closed when nobody reads it any more: a thread may be in one that was let go of here.
                weakref.finalize(segment, self.files.close, segment.handle)
                self._segments[name] = segment
                while len(self._segments) > SEGMENTS_OPEN_MAX:
                    self._segments.pop(next(iter(self._segments)))
                self.files.kept.keeps(self, len(self._segments))
            return segment

    def _segment_of(self, start: int, head: End) -> tuple[ActiveSegment, int, int | None]:
        """The segment of blocks that holds an offset, up to where it may be read, and the offset it ends at if closed."""
        names = segments_in(self.files.list(self._folder))
        at = bisect.bisect_right([name.base for name in names], start) - 1
        # The last one must be there: else what is in it would be looked for in the one before.
        if at < 0 or (start >= head.segment and names[at].base < head.segment):
            raise FileNotFoundError(self._folder)
        name = names[at]
        segment = self._segment(name)
        size = head.position if (head.segment, head.epoch) == name else segment.size()
        return segment, size, names[at + 1].base if at + 1 < len(names) else None

    def _place_of(self, segment: ActiveSegment, start: int, size: int) -> tuple[int, int]:
        """Position and base offset of the block that holds `start`."""
        position, offset = PREAMBLE_BYTES, segment.name.base
        if start == offset:
            return position, offset
        found = SegmentIndex(self.files, segment.name.index_path(self._folder)).find_offset(segment, start)
        if found is not None:
            position, offset = found
        # Between here and the wanted block only headers are read: damage of records that nobody asked for is no matter.
        for at, header in segment.headers(position, size):
            if header.end_offset > start:
                return at, header.base_offset
            position, offset = at + header.size, header.end_offset
        if position < size:
            # A header is damaged: what lies behind it is found by its look.
            for at, header in segment.sound_after(position + 1, size):
                if header.base_offset <= start < header.end_offset:
                    return at, header.base_offset
                if header.base_offset > start:
                    break
        return position, offset

    def headers_from(self, start: int) -> Iterator[Header]:
        """The headers in the segment of blocks that holds `start`, from that block on."""
        segment, size, limit = self._segment_of(start, self.partition.published())
        position, _ = self._place_of(segment, start, size)
        for _, header in segment.headers(position, size):
            if limit is not None and header.base_offset >= limit:
                return
            yield header

    def offset_at(self, at: int, visible: Visible) -> int:
        """The first offset appended at that time or later; the end if there is none."""
        return self._look(lambda: self._offset_at(at, visible))

    def _offset_at(self, at: int, visible: Visible) -> int:
        manifest = self.partition.manifest_file.read()
        for entry in manifest.segments:
            if entry.appended_last >= at:
                return self._sealed_offset_at(entry, at)
        names = [name for name in segments_in(self.files.list(self._folder)) if name.base >= manifest.end]
        head = visible.head
        if head.segment >= manifest.end and all(name.base != head.segment for name in names):
            # To end before it would be to leave out its records.
            raise FileNotFoundError(
                ENOENT, os.strerror(ENOENT), SegmentName(head.segment, head.epoch).path(self._folder)
            )
        for name in names:
            segment = self._segment(name)
            size = head.position if (head.segment, head.epoch) == name else segment.size()
            found = SegmentIndex(self.files, name.index_path(self._folder)).find_time(segment, at)
            for _, header in segment.headers(found[0] if found else PREAMBLE_BYTES, size):
                if header.count and header.appended_at >= at:
                    return min(header.base_offset, visible.end)
        return visible.end

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
        return FellOff(
            f'records {start} to {kept - 1} of "{self._topic}" partition {self._number} are no longer kept',
            detail=f"The first retained record has offset {kept}.",
            hint='Continue with start="earliest" (a group: member.seek("earliest")). If this reader may lag so far, '
            "set a longer retention or an archive.",
            topic=self._topic,
            partition=self._number,
            first_lost=start,
            last_lost=kept - 1,
        )


def sealed_at(manifest: Manifest, offset: int) -> SealedEntry:
    """The sealed segment that accounts for an offset."""
    return manifest.segments[bisect.bisect_right(manifest.segments, offset, key=lambda entry: entry.base) - 1]


def _without(batch: pa.RecordBatch, hidden: list[tuple[int, int]]) -> pa.RecordBatch:
    """Sealed rows without those of transactions that were decided only after the moment that is read."""
    if not hidden or not batch.num_rows:
        return batch
    offsets = batch.column(batch.num_columns - 1).field("offset").to_numpy(zero_copy_only=False)
    starts = np.searchsorted(offsets, [first for first, _ in hidden])
    ends = np.searchsorted(offsets, [end for _, end in hidden])
    kept = np.ones(len(offsets), bool)
    for first, end in zip(starts, ends, strict=True):
        kept[first:end] = False
    return batch if kept.all() else batch.filter(pa.array(kept))


def _shown(header: Header, first: int, last: int, hidden: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of a range of offsets without the aborted ones."""
    if header.transaction and any(low <= first and last <= high for low, high in hidden):
        return
    if first < last:
        yield first, last
