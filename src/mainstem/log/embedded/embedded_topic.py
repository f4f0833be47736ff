"""A topic of the embedded log, as `Topic` uses it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from mainstem import processes
from mainstem.clock import Clock, as_datetime
from mainstem.durable_files import Files, read_file, remove_if_there, unavailable
from mainstem.errors import Corrupt, LockHeld
from mainstem.file_watch import Watch
from mainstem.log.append_result import AppendResult, token_of
from mainstem.log.embedded.ledger import Ledger
from mainstem.log.embedded.numbered_appends import NumberedAppends
from mainstem.log.embedded.read.archive import Archive, check_archive
from mainstem.log.embedded.read.holds import HeldRows, Range
from mainstem.log.embedded.read.partition_reader import PartitionReader, Visible
from mainstem.log.embedded.read.partition_steps import first_after, partition_steps, times_reached
from mainstem.log.embedded.read.topic_freeze import freeze
from mainstem.log.embedded.read.topic_schemas import Reading
from mainstem.log.embedded.take_over import take_over_if_stuck, take_over_ledger_if_stuck, take_over_partition
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.compaction import compact
from mainstem.log.embedded.upkeep.manifest import Manifest, SealedEntry
from mainstem.log.embedded.upkeep.retention import drop_expired
from mainstem.log.embedded.upkeep.sealing import seal
from mainstem.log.embedded.upkeep.soundness import verify
from mainstem.log.embedded.write.active_segment import segments_in
from mainstem.log.embedded.write.block import DATA
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition import Pending
from mainstem.log.embedded.write.segment_writer import pending_blocks
from mainstem.log.frozen_topic import FrozenTopic
from mainstem.log.groups.group_state import GroupState
from mainstem.log.lag import Lag
from mainstem.log.log import SealedFile, check_partition
from mainstem.log.missed_deletions import Compacted
from mainstem.log.partition_reads import Position
from mainstem.log.producer import ProducerRun
from mainstem.log.queues.queue_state import QueueState
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.state_ledger import StateLedger
from mainstem.log.steps import Int64Array, Steps
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction_cut import TransactionSpans
from mainstem.log.upkeep_report import CompactionReport, PartitionFacts, RetentionReport, TakeOverReport, Verification
from mainstem.log.watermark import NO_TIME, times_of
from mainstem.processes import boot_id

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_log import EmbeddedLog

__all__ = ["EmbeddedMoment", "EmbeddedTopic", "TopicTime"]


# A snapshot of a topic for bounded reads, with all of a transaction or none of it.


class EmbeddedMoment:
    """The visible records of every partition at one moment."""

    def __init__(self, store: TopicStore, visible: dict[int, Visible | Corrupt]) -> None:
        self._store = store
        self._schemas = store.schemas
        self._visible = visible

    def visible(self, partition: int) -> Visible:
        """Raises only if this partition is damaged."""
        seen = self._visible[partition]
        if isinstance(seen, Corrupt):
            raise seen
        return seen

    def earliest(self, partition: int) -> int:
        return self._store.readers[partition].earliest()

    def latest(self, partition: int) -> int:
        return self.visible(partition).end

    def at_time(self, partition: int, at: int) -> int:
        return self._store.readers[partition].offset_at(at, self.visible(partition))

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        reader = self._store.readers[partition]
        reading = Reading(columns, delay=delay)
        return reader.read(self._schemas, start, self.visible(partition), stop=stop, reading=reading)


class EmbeddedFiles:
    """What is sealed of a topic when its manifests were read."""

    def __init__(self, topic: EmbeddedTopic, manifests: Sequence[Manifest]) -> None:
        self._topic = topic
        numbered = list(enumerate(manifests))
        self.segments: Mapping[int, Sequence[SealedEntry]] = {number: found.segments for number, found in numbered}
        self.starts = {number: found.start for number, found in numbered}
        compacted = topic.settings.keep.compacted
        self.cleaned = {number: found.cleaned for number, found in numbered} if compacted else None

    def path(self, partition: int, segment: SealedFile) -> str:
        assert isinstance(segment, SealedEntry)
        return self._topic.store.readers[partition].whole_sealed_path(segment)

    def spans(self, partition: int, start: int, end: int) -> TransactionSpans:
        return self._topic.transaction_spans(partition, start, end, EVERY_NUMBER)


# The last heartbeat of each group member: one small file each, never synced.
#
# boot clock (microseconds) i64 | boot id (36 bytes)


BEAT = struct.Struct("<q36s")


class HeartbeatFiles:
    """The heartbeats of one group. Thread-safe."""

    def __init__(self, files: Files, folder: str, clock: Clock) -> None:
        self._files = files
        self._folder = folder
        self._clock = clock
        files.make_directory(folder)

    def heartbeat(self, member: str) -> None:
        path = f"{self._folder}/{member}"
        handle = self._files.open(path) if self._files.exists(path) else self._files.create(path)
        try:
            self._files.pwrite(handle, BEAT.pack(self._clock.boot(), boot_id().encode()), 0)
        finally:
            self._files.close(handle)

    def age(self, member: str) -> int | None:
        try:
            data = read_file(self._files, f"{self._folder}/{member}")
        except FileNotFoundError:
            return None
        if len(data) < BEAT.size:
            return None
        at, boot = BEAT.unpack_from(data)
        # From another boot: that member is dead, whatever the clock says.
        return self._clock.boot() - at if boot.rstrip(b"\0") == boot_id().encode() else 1 << 62

    def forget(self, member: str) -> None:
        remove_if_there(self._files, f"{self._folder}/{member}")


# Lower bounds for the times of records that a reader has not read yet, and of future records.


# partition, offset, delay -> the first record from there on, with its watermark if there is a delay
FirstRecord = Callable[[int, int, int | None], pa.RecordBatch | None]


class TopicTime:
    """The times of a topic's records after given offsets."""

    def __init__(self, store: TopicStore, first: FirstRecord) -> None:
        self._store = store
        self._first = first

    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int:
        """The lowest watermark that a record from these offsets on, or a future one, can have; NO_TIME if unknown.

        The next append records at least the lowest of all partitions, and never less than before: watermarks only rise.
        An append in progress may record less.
        """
        ends = self._ends()
        observed = max(min(end.event_time_max for end in ends), *(end.observed_up_to for end in ends))
        return min(
            self._next_watermark(number, end, observed, positions.get(number, 0), delay)
            for number, end in enumerate(ends)
        )

    def earliest_append(self, positions: Mapping[int, int], now: int) -> int:
        """The earliest append time that a record from these offsets on, or a future one, can have. `now`: of the clock,
        before this call."""
        self._store.refresh()
        # An append that is being written took its time before it can be read.
        busy = [number for number, partition in enumerate(self._store.partitions) if not partition.settle_appends()]
        ends = self._ends()
        unread = [number for number, end in enumerate(ends) if positions.get(number, 0) < end.offset]
        return min(
            [
                now,
                *(ends[number].appended_at for number in busy),
                *(self._time("appended_at", number, positions.get(number, 0)) for number in unread),
            ]
        )

    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]:
        """The watermark of each partition that has records, by itself: the lowest one holds the topic's back."""
        return {
            number: self._next_watermark(number, end, end.event_time_max, positions.get(number, 0), delay)
            for number, end in enumerate(self._ends())
            if end.event_time_max != NO_TIME or end.stated_watermark != NO_TIME
        }

    def _ends(self) -> list[End]:
        self._store.refresh()
        return self._store.ends()

    def _next_watermark(self, partition: int, end: End, observed: int, position: int, delay: int) -> int:
        """The lowest watermark that the next record of one partition can have."""
        if position >= end.offset:
            return max(observed - delay if observed != NO_TIME else NO_TIME, end.stated_watermark)
        return self._time("watermark", partition, position, delay)

    def _time(self, field: str, partition: int, position: int, delay: int | None = None) -> int:
        """A time of the first record from an offset on. An undecided record may appear with any time it was written
        with."""
        first = self._first(partition, position, delay)
        return NO_TIME if first is None else int(times_of(first.column("record").field(field))[0])


T = TypeVar("T")

MICROSECOND = timedelta(microseconds=1)
EVERY_NUMBER = (0, 1 << 62)


class EmbeddedTopic:
    """One topic, open in this process. Thread-safe."""

    processes = processes

    def __init__(self, log: EmbeddedLog, store: TopicStore) -> None:
        self.store = store
        self._log = log
        self.numbered = NumberedAppends(store, lambda number: log.transactions.outcome(number) == "open")
        self._time = TopicTime(store, self._first_times)
        # Of each partition: where what is not sealed begins, up to where it was counted, and how many records that were.
        self._counted: dict[int, tuple[int, int, int]] = {}

    @property
    def name(self) -> str:
        return self.store.name

    @property
    def id(self) -> str:
        self.store.refresh()
        return self.store.id

    @property
    def settings(self) -> TopicSettings:
        return self.store.settings

    @property
    def clock(self) -> Clock:
        return self.store.clock

    # Appending

    def append(
        self,
        rows: CheckedRows,
        *,
        partition: int | None = None,
        producer: ProducerRun | None = None,
        sequence: int | None = None,
        transaction: int = 0,
    ) -> AppendResult:
        partitions = rows.settings.partitions
        check_partition(rows.settings, partition)
        if not rows.batch.num_rows:
            return AppendResult({}, as_datetime(self.clock.now()), self.token(), appended=False)
        if producer is not None and not producer.shared:
            return self._append_once(rows, partition, producer, sequence, transaction)
        # Rows without a key are placed by sequence, so that a retry goes to the same partition.
        keyless = sequence % partitions if sequence is not None else self.store.next_turn()
        blocks = pending_blocks(rows, keyless, self.clock.now(), partition)
        if producer is not None and sequence is not None:
            for pending in blocks.values():
                pending.producer_id, pending.producer_epoch = producer.id, producer.epoch
                pending.sequence = sequence
        return self._write(rows, blocks, self._check(producer, transaction), transaction)

    def _append_once(
        self, rows: CheckedRows, partition: int | None, producer: ProducerRun, sequence: int | None, transaction: int
    ) -> AppendResult:
        check = self._check(producer, transaction)
        with self.numbered.turn(producer, transaction) as known:
            if sequence is None:
                sequence = known.sequence + 1
            elif known.is_repeat(sequence):
                check()
                offsets = dict(known.offsets) if sequence == known.sequence else {}
                return AppendResult(offsets, as_datetime(known.appended_at), self.token(), appended=False)
            elif (refusal := known.refusal(self.name, producer.name, sequence)) is not None:
                check()
                raise refusal
            over = known.placement_partitions(sequence, rows.settings.partitions)
            blocks = pending_blocks(rows, sequence % over, self.clock.now(), partition, over=over)
            known.number(blocks, self.name, producer, sequence, over)
            placed = self._write(rows, blocks, check, transaction)
            known.note(blocks, sequence, over, transaction)
        return placed

    def _write(
        self, rows: CheckedRows, blocks: Mapping[int, Pending], check: Callable[[], None], transaction: int
    ) -> AppendResult:
        for pending in blocks.values():
            pending.transaction, pending.check = transaction, check
        if transaction:
            self._log.transactions.join(transaction, [("topic", self.name, number) for number in blocks])
        self.store.append(blocks)
        self._log.upkeep.count_append(sum(len(it.payload) for it in blocks.values()), rows.settings.segment_bytes_max)
        return self._append_result(blocks)

    def _append_result(self, blocks: Mapping[int, Pending]) -> AppendResult:
        offsets: dict[int, tuple[int, int]] = {}
        appended, appended_at = False, 0
        for number, it in blocks.items():
            appended = appended or not it.duplicate
            appended_at = max(appended_at, it.appended_at)
            if it.base_offset >= 0:
                offsets[number] = (it.base_offset, it.end_offset)
        # With one partition, its end after this append is known: no need to read it.
        alone = appended and len(self.store.partitions) == 1
        token = token_of({self.name: {0: offsets[0][1]}}) if alone else self.token()
        return AppendResult(offsets, as_datetime(appended_at), token, appended)

    def _check(self, producer: ProducerRun | None, transaction: int) -> Callable[[], None]:
        def check() -> None:
            if producer is not None:
                producer.check()
            if transaction:
                self._log.transactions.check_open(transaction)

        return check

    def declare_watermark(self, declared: int) -> None:
        """Declare in every partition that no earlier record will follow."""
        self.store.append(
            {number: Pending(b"", 0, stated_watermark=declared) for number in range(len(self.store.partitions))}
        )

    def token(self) -> str:
        return token_of({self.name: {number: end.offset for number, end in enumerate(self.store.ends())}})

    def alter(self, changes: dict[str, Any]) -> None:
        if changes.get("archive") is not None:
            changes = {**changes, "archive": os.path.abspath(changes["archive"])}
        with unavailable(self.store.folder), self._log.home.lock_topics():
            self.store.refresh()
            self.store.write_settings(self.store.settings.alter(**changes))

    # Reading

    def moment(self) -> EmbeddedMoment:
        self.store.refresh()
        try:
            visible = self._log.transactions.at_one_moment(self.store.visible_or_damaged)
        except Corrupt as error:
            visible = self.store.visible_without_ledger(error)
        return EmbeddedMoment(self.store, visible)

    def _reader(self, partition: int) -> PartitionReader:
        self.store.refresh()
        return self.store.readers[partition]

    def read(
        self,
        partition: int,
        start: int,
        rows_max: int,
        columns: Sequence[str] | None = None,
        delay: int | None = None,
    ) -> pa.RecordBatch | None:
        reader = self._reader(partition)
        visible = reader.visible()
        return next(reader.read(self.store.schemas, start, visible, reading=Reading(columns, rows_max, delay)), None)

    def _first_times(self, partition: int, start: int, delay: int | None) -> pa.RecordBatch | None:
        """The first record from an offset on, with its times alone."""
        reader = self._reader(partition)
        reading = Reading([], 1, delay, fields=["appended_at"])
        return next(reader.read(self.store.schemas, start, reader.visible(), reading=reading), None)

    def hold(self, holder: str, ranges: Mapping[int, Range]) -> None:
        """Keep these offsets readable by `read_held`; replaces the earlier hold of this holder."""
        self.store.holds.put(holder, ranges)

    def read_held(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Read held offsets: the same rows each time, whatever was compacted or dropped meanwhile."""
        reading, store = Reading(columns, delay=delay, fields=fields), self.store
        moment, reader = self.moment(), self.store.readers[partition]

        def from_log(first: int, end: int) -> Iterator[pa.RecordBatch]:
            return reader.read(store.schemas, first, moment.visible(partition), stop=end, reading=reading)

        return HeldRows(store.files, store.holds, partition, store.schemas, reading, from_log).read(start, stop)

    def freeze(self, home: str, start: Position, stop: Position, delay: int | None) -> FrozenTopic:
        return freeze(self, home, start, stop, delay)

    def sealed_files(self) -> EmbeddedFiles:
        return EmbeddedFiles(self, [partition.manifest_file.read() for partition in self.store.partitions])

    def steps(self, partition: int, start: int, rows_min: int) -> Steps:
        return partition_steps(self._reader(partition), self.store.schemas, self.settings.event_time, start, rows_min)

    def first_after(self, partition: int, start: int, stop: int, time: int) -> int:
        """The first offset from `start` on with an event time later than `time`; `stop` if there is none before."""
        event_time = self.settings.event_time
        if event_time is None:
            return start
        return first_after(self._reader(partition), self.store.schemas, event_time, start, stop, time)

    def times_reached(self, partition: int, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """The offsets of the records in a range, and the latest event time from `start` up to each."""
        assert self.settings.event_time is not None
        return times_reached(self._reader(partition), self.store.schemas, self.settings.event_time, start, stop)

    def transaction_spans(self, partition: int, start: int, end: int, numbers: tuple[int, int]) -> TransactionSpans:
        """The spans from `start` on of transactions with records before `end` or with numbers in this range."""
        return self._reader(partition).transaction_spans(start, end, numbers)

    def numbers_around(self, partition: int, offset: int) -> tuple[int, int]:
        """The highest number of a transaction with a record before an offset, and the lowest of one with a record after
        it."""
        return self._reader(partition).numbers_around(offset)

    def open_transactions(self, partition: int) -> dict[int, int]:
        """The undecided transactions of a partition: their numbers, each with its first offset."""
        return self._reader(partition).open_transactions()

    def owner_of(self, transaction: int) -> int | None:
        """The id of the process that has a transaction open; None if it has ended."""
        return self._log.transactions.owner_of(transaction)

    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int:
        return self._time.watermark_from(positions, delay)

    def earliest_append(self, positions: Mapping[int, int], now: int) -> int:
        return self._time.earliest_append(positions, now)

    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]:
        return self._time.watermark_holders(positions, delay)

    def earliest(self, partition: int) -> int:
        return self._reader(partition).earliest()

    def latest(self, partition: int) -> int:
        return self._reader(partition).visible().end

    def end(self, partition: int) -> int:
        return self._reader(partition).end()

    def at_time(self, partition: int, at: int) -> int:
        reader = self._reader(partition)
        return reader.offset_at(at, reader.visible())

    def compaction(self, partition: int) -> Compacted | None:
        """How far a partition is compacted; None if the topic is not compacted and never was."""
        manifest = self._reader(partition).partition.manifest_file.read()
        if not self.settings.keep.compacted and not manifest.forgotten:
            return None
        return Compacted(manifest.cleaned, manifest.forgotten)

    def partition_facts(self, partition: int) -> PartitionFacts:
        """The size of a partition, its number of segments, and its damage."""
        start, of = self.earliest(partition), self.store.partitions[partition]
        manifest, published = of.manifest_file.read(), of.published_end()
        # With what follows an open transaction, which groups and flows do not read yet.
        visible = self.moment().visible(partition)
        blocks = [name for name in segments_in(of.files.list(of.folder)) if name.base >= manifest.end]
        return PartitionFacts(
            partition,
            start,
            self.latest(partition),
            records=sum(entry.rows for entry in manifest.segments)
            + self._count_blocks(partition, manifest.end, visible.end, visible),
            bytes=self.behind(partition, start).bytes,
            segments=len(manifest.segments) + len(blocks),
            sealed=len(manifest.segments),
            # A new partition has an append time already; without a record it has no meaning.
            appended_at=as_datetime(published.appended_at) if published.offset else None,
            damage=None if (found := of.damage()) is None else found.summary,
        )

    def count_records(self, partition: int, start: int, stop: int) -> int:
        """The number of records in a range of offsets. Transaction markers and records of aborted or open transactions do not
        count."""
        visible, manifest = self._reader(partition).visible(), self.store.partitions[partition].manifest_file.read()
        count, stop = 0, min(stop, visible.end)
        for entry in manifest.segments:
            low, high = max(start, entry.base), min(stop, entry.end)
            if low >= high:
                continue
            if high - low == entry.end - entry.base:
                count += entry.rows
            elif entry.rows == entry.end - entry.base:
                count += high - low
            else:
                reader, reading = self.store.readers[partition], Reading([], fields=[])
                batches = reader.read(self.store.schemas, low, visible, stop=high, reading=reading)
                count += sum(batch.num_rows for batch in batches)
        if start > manifest.end:
            return count + self._count_blocks(partition, start, stop, visible)
        # What is not sealed is counted on from the last time.
        first, reached, known = self._counted.get(partition, (0, 0, 0))
        if first != manifest.end or not first <= reached <= stop:
            reached, known = manifest.end, 0
        known += self._count_blocks(partition, reached, stop, visible)
        if stop > manifest.end:
            self._counted[partition] = (manifest.end, stop, known)
        return count + known

    def _count_blocks(self, partition: int, start: int, stop: int, visible: Visible) -> int:
        """The number of records in a range that is not sealed, from the headers of their blocks."""
        count = 0
        # If the segment is sealed meanwhile, the rest is counted by offsets.
        with suppress(FileNotFoundError):
            while start < stop:
                found, reached = 0, start
                for header in self.store.readers[partition].headers_from(start):
                    if header.base_offset >= stop:
                        break
                    low, high = max(start, header.base_offset), min(stop, header.end_offset)
                    if header.kind == DATA and low < high:
                        hidden = sum(max(0, min(high, until) - max(low, since)) for since, until in visible.hidden)
                        found += high - low - hidden
                    reached = max(reached, header.end_offset)
                if reached == start:
                    break
                count, start = count + found, reached
        return count + max(0, stop - start)

    def open_archive(self, archive: str, partition: int) -> Archive:
        if archive != self.settings.archive:
            # The topic's own archive is created on first use.
            check_archive(self.store.files, archive, self.name)
        return Archive(self.store.files, archive, self.name, partition, self.store.schemas)

    def behind(self, partition: int, offset: int) -> Lag:
        """How far a reader that reads `offset` next is behind."""
        reader = self._reader(partition)
        visible = reader.visible()
        offset = max(offset, reader.earliest())
        if visible.end <= offset:
            return Lag()
        reading = Reading([], 1, fields=["appended_at"])
        first = next(reader.read(self.store.schemas, offset, visible, reading=reading), None)
        if first is None:
            return Lag()  # only markers of transactions, or aborted records
        age = max(0, self.clock.now() - int(times_of(first.column("record").field("appended_at"))[0]))
        keep = self.settings.keep.age
        return Lag(
            # By offsets, markers of transactions among them: counting would read the headers of all that is behind.
            records=visible.end - offset,
            bytes=self.bytes_behind(partition, offset),
            seconds=age / 1_000_000,
            until_dropped=None if keep is None else max(keep - age * MICROSECOND, timedelta(0)),
        )

    def bytes_behind(self, partition: int, offset: int) -> int:
        """The bytes on disk from an offset on; within a segment in proportion to its offsets."""
        store, folder = self.store, self.store.partitions[partition].folder
        manifest = store.partitions[partition].manifest_file.read()
        spans = [(entry.base, entry.end, entry.bytes) for entry in manifest.segments]
        names = [name for name in segments_in(store.files.list(folder)) if name.base >= manifest.end]
        head = store.partitions[partition].published_end()
        for name, after in zip(names, [*names[1:], None], strict=False):
            size = head.position if name == (head.segment, head.epoch) else _size(store, name.path(folder))
            spans.append((name.base, after.base if after else head.offset, size))
        return sum(
            size * (end - max(first, offset)) // (end - first) for first, end, size in spans if end > max(first, offset)
        )

    def watch_appends(self, *ledgers: StateLedger[Any]) -> Watch:
        paths = [ledger.heads_path for ledger in ledgers if isinstance(ledger, Ledger)]
        return Watch([self.store.heads_path, *paths])

    def settle(self) -> None:
        """Settle abandoned transactions, for waiting readers. A failure does not stop a reader."""
        with suppress(LockHeld):
            self._log.transactions.settle()

    # Upkeep

    def seal(self) -> int:
        """Close the active segments and seal everything that is decided; returns the number of files written."""
        self._log.transactions.settle()

        def close_and_seal(store: TopicStore, number: int) -> int:
            store.partitions[number].roll()
            return seal(store, number)

        return sum(self._run_in_each(close_and_seal))

    def compact(self) -> CompactionReport:
        """Remove the records that a later one of the same key has replaced."""
        self._log.transactions.settle()
        return sum(self._run_in_each(compact), CompactionReport())

    def drop_expired(self) -> RetentionReport:
        """Drop the records whose retention is over."""
        self._log.transactions.settle()
        return sum(self._run_in_each(drop_expired), RetentionReport())

    def _run_in_each(self, step: Callable[[TopicStore, int], T]) -> list[T]:
        """The results of a step in each partition. Damage is raised after the other partitions are done."""
        done: list[T] = []
        damage: Corrupt | None = None
        for number in range(len(self.store.partitions)):
            try:
                done.append(step(self.store, number))
            except Corrupt as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return done

    def verify(self) -> Verification:
        return verify(self.store)

    def take_over(self) -> TakeOverReport:
        """Kill stopped processes that hold a lock of this topic, and fence their unfinished writes; also in the ledgers
        of its groups and queues, and in those of the home, which appends need too."""
        parts = [take_over_partition(partition) for partition in self.store.partitions]
        return sum([*parts, self._take_over_ledgers()], self._log.take_over_home())

    def take_over_if_stuck(self) -> TakeOverReport:
        """Like `take_over`, but only for partitions that cannot be appended to."""
        parts = [take_over_if_stuck(partition) for partition in self.store.partitions]
        return sum([*parts, self._take_over_ledgers()], TakeOverReport())

    def _take_over_ledgers(self) -> TakeOverReport:
        ledgers: list[Ledger[Any]] = [*map(self.group_ledger, self.groups()), *map(self.queue_ledger, self.queues())]
        return sum(map(take_over_ledger_if_stuck, ledgers), TakeOverReport())

    # Groups and queues

    def groups(self) -> list[str]:
        return self._names("groups")

    def queues(self) -> list[str]:
        return self._names("queues")

    def _names(self, kind: str) -> list[str]:
        folder = f"{self.store.folder}/{kind}"
        names = self.store.files.list(folder) if self.store.files.exists(folder) else []
        return [name for name in names if not name.startswith(".")]

    def group_ledger(self, name: str) -> Ledger[GroupState]:
        return self._log.ledger(
            f"{self.store.folder}/groups/{name}", GroupState, GroupState.restore, f'group "{name}" of "{self.name}"'
        )

    def queue_ledger(self, name: str) -> Ledger[QueueState]:
        return self._log.ledger(
            f"{self.store.folder}/queues/{name}", QueueState, QueueState.restore, f'queue "{name}" of "{self.name}"'
        )

    def heartbeats(self, group: str) -> HeartbeatFiles:
        return HeartbeatFiles(self.store.files, f"{self.store.folder}/groups/{group}/beats", self.clock)

    def delete_group(self, name: str) -> None:
        self._log.drop_ledger(f"{self.store.folder}/groups/{name}")

    def delete_queue(self, name: str) -> None:
        self._log.drop_ledger(f"{self.store.folder}/queues/{name}")


def _size(store: TopicStore, path: str) -> int:
    try:
        return store.files.identity(path)[2]
    except FileNotFoundError:
        return 0
