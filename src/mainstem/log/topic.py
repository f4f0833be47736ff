"""Topic: a named, partitioned sequence of records, to append to and to read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from mainstem.arguments import check_choice, checked_calls, column_names, find_name, whole_number
from mainstem.durations import Duration, duration_us
from mainstem.errors import Corrupt, FellOff, Invalid, Unavailable, did_you_mean
from mainstem.log.activity import note_activity
from mainstem.log.append_result import AppendResult
from mainstem.log.backoff import Backoff
from mainstem.log.groups.group_member import Member, check_session
from mainstem.log.groups.reader_group import ReaderGroup
from mainstem.log.lag import Lag
from mainstem.log.log import ArchivedPartition, Log, ReadMoment, TopicBackend, no_such_reader
from mainstem.log.missed_deletions import DeletionWatch
from mainstem.log.partition_reads import Position, offsets_at, stops_at
from mainstem.log.queues.queue import Queue
from mainstem.log.queues.queue_rejections import RejectedTopic, rejected_schema, rejected_topic
from mainstem.log.queues.queue_settings import QueueSettings
from mainstem.log.record import RECORD, next_offset, record_schema
from mainstem.log.rows.rows import GivenKeys, GivenRows, check_rows, tombstones
from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.log.state_ledger import StateLedger
from mainstem.log.topic_reads import LiveReads, MomentReads
from mainstem.log.topic_settings import TopicSettings, changes_between
from mainstem.log.upkeep_report import CompactionReport, RetentionReport, TakeOverReport, Verification
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.names import check_name
from mainstem.processes import Identity

__all__ = ["ArchivedMoment", "ReadAhead", "Topic", "topic_of"]


# ReadAhead: a reader that requests few rows at a time gets slices of a larger read.
#
# Blocks and pages are read and verified as a whole: a reader of single rows would read each of them many times.


# Requests of at least this many rows are not read ahead.
ROWS = 4096


class _Rest(NamedTuple):
    """Rows of a partition that were read ahead, and the position before them."""

    position: int
    batch: pa.RecordBatch
    settings: TopicSettings


class ReadAhead:
    """Reads a topic's partitions for one reader, which passes its position each time. Not thread-safe."""

    def __init__(self, backend: TopicBackend, columns: Sequence[str] | None = None, delay: int | None = None) -> None:
        self._backend = backend
        self._columns = columns
        self._delay = delay
        self._rests: dict[int, _Rest] = {}
        self._deletions = DeletionWatch(backend)

    def read(self, partition: int, start: int, rows_max: int) -> pa.RecordBatch | None:
        """The next 1 to `rows_max` records from `start`; None if there are none yet."""
        settings = self._backend.settings
        rest = self._rests.pop(partition, None)
        # After a seek, or if the columns changed, it reads again.
        if rest is not None and rest.position == start and rest.settings is settings:
            batch = rest.batch
        else:
            self._deletions.before(partition)
            read = self._backend.read(partition, start, max(rows_max, ROWS), self._columns, self._delay)
            # Also at the end of the partition: the removed tombstones may have been its last records.
            self._deletions.after(partition, start)
            if read is None:
                return None
            batch = read
        if batch.num_rows <= rows_max:
            return batch
        given = batch.slice(0, rows_max)
        self._rests[partition] = _Rest(next_offset(given), batch.slice(rows_max), settings)
        return given


# A snapshot of a topic with its archive: records that retention has dropped are read from there.


class ArchivedMoment:
    """Like the moment it wraps, but its partitions begin with the archive."""

    def __init__(self, moment: ReadMoment, topic: TopicBackend, archive: str) -> None:
        self._moment = moment
        self._topic = topic
        self._archive = archive

    def _open_archive(self, partition: int) -> ArchivedPartition:
        return self._topic.open_archive(self._archive, partition)

    def earliest(self, partition: int) -> int:
        """The first archived or retained record."""
        archived = self._open_archive(partition).earliest()
        kept = self._moment.earliest(partition)
        return kept if archived is None else min(archived, kept)

    def latest(self, partition: int) -> int:
        return self._moment.latest(partition)

    def at_time(self, partition: int, at: int) -> int:
        archived = self._open_archive(partition).at_time(at)
        kept = self._moment.at_time(partition, at)
        return kept if archived is None else min(archived, kept)

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to `stop`; `FellOff` for a gap between the archive and the retained records."""
        while start < stop:
            kept = min(self._moment.earliest(partition), stop)
            if start < kept:
                yield from self._open_archive(partition).read(start, kept, columns, delay)
                start = kept
            try:
                for batch in self._moment.read(partition, start, stop, columns, delay):
                    yield batch
                    start = next_offset(batch)
                return
            except FellOff:
                # Archived and dropped since the check.
                if self._moment.earliest(partition) <= start:
                    raise


# TopicWaiter: waits for a record, a ledger entry, the end of a process, or a time.


# The longest single wait: waiting readers settle the abandoned transactions of dead processes.
WAIT_SECONDS_MAX = 1.0


class TopicWaiter:
    """Waits for one topic and one ledger, also for events since the last return. Not thread-safe."""

    def __init__(self, backend: TopicBackend, ledger: StateLedger[Any]) -> None:
        self._backend = backend
        self._waking = backend.watch_appends(ledger)

    def wait(self, timeout_seconds: float, until: int | None, holders: Sequence[Identity]) -> None:
        seconds = min(timeout_seconds, WAIT_SECONDS_MAX)
        if until is not None:
            seconds = min(seconds, (until - self._backend.clock.now()) / 1_000_000)
        if seconds > 0 and not self._waking.wait(seconds, holders):
            self._backend.settle()


# How often a waiting follower settles abandoned transactions, which may block it.
SETTLE_SECONDS = 1.0


@checked_calls
class Topic:
    """A topic of an open log; returned by `stem.topic(name)` and `stem.create_topic(name, ...)`. Thread-safe.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     orders = stem.create_topic("orders", schema="order_id STRING, amount DOUBLE", key="order_id")
    ...     placed = orders.append([{"order_id": "o-1", "amount": 9.5}, {"order_id": "o-2", "amount": 3.0}])
    ...     orders.to_arrow().column("amount").to_pylist()
    [9.5, 3.0]
    """

    def __init__(self, log: Log, backend: TopicBackend) -> None:
        self._log = log
        self.backend = backend

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self._log.title}>"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.backend.name

    @property
    def settings(self) -> TopicSettings:
        """Schema, key, event time, partitions, keep and the rest, as they are now."""
        return self.backend.settings

    @property
    def schema(self) -> pa.Schema:
        """The columns, without `record`."""
        return self.settings.schema

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return schema_to_ddl(self.schema)

    # Appending

    def append(self, rows: GivenRows, *, partition: int | None = None) -> AppendResult:
        """Append rows; they are on disk when this returns.

        `rows`: a pyarrow Table or RecordBatch, anything with `__arrow_c_stream__` (polars, pandas, duckdb), or dicts.
        All rows are checked before any is written. A row goes to the partition of its key.
        """
        if partition is not None:
            whole_number(partition, "partition", hint="Leave partition out: the key decides.")
        return self.backend.append(check_rows(rows, self.settings), partition=partition)

    def delete(self, keys: GivenKeys) -> AppendResult:
        """Append a tombstone for each key: `record.change` is "delete", all other columns are null."""
        return self.backend.append(tombstones(keys, self.settings))

    # Reading existing records

    def to_arrow(
        self,
        *,
        start: Position = "earliest",
        stop: Position = "latest",
        columns: Sequence[str] | None = None,
        watermark: Duration | None = None,
    ) -> pa.Table:
        """Existing records as one table, with `record` as the last column; see `batches`."""
        columns = self._check_columns(columns)
        batches = list(self.batches(start=start, stop=stop, columns=columns, watermark=watermark))
        schema = batches[0].schema if batches else self._output_schema(columns, watermark)
        return pa.Table.from_batches(batches, schema=schema)

    def batches(
        self,
        *,
        start: Position = "earliest",
        stop: Position = "latest",
        columns: Sequence[str] | None = None,
        watermark: Duration | None = None,
        archive: str | os.PathLike[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Existing records in batches, partition by partition. A transaction is read completely or not at all; a plain
        append to several partitions becomes visible in one partition after the other.

        `start` and `stop`: "earliest", "latest", a datetime with a zone (compared with append times), `{partition:
        offset}`, or the token of an append. `columns`: only these, and `record`. `watermark`: a delay; then
        `record.watermark` is the watermark at the record: event time is complete up to it. `archive`: a directory with
        copies of expired segments; records that are no longer retained are read from there, so "earliest" is its first
        record.
        """
        columns = self._check_columns(columns)
        moment: ReadMoment = self.backend.moment()
        if archive is not None:
            moment = ArchivedMoment(moment, self.backend, os.fspath(archive))
        numbers = range(self.settings.partitions)
        reads = MomentReads(self.backend, moment)
        starts = offsets_at(start, reads, list(numbers))
        stops = stops_at(stop, reads, list(numbers))
        delay = None if watermark is None else duration_us(watermark, setting="watermark")
        return self._batches(moment, starts, stops, columns, delay)

    def _batches(
        self,
        moment: ReadMoment,
        starts: Mapping[int, int],
        stops: Mapping[int, int],
        columns: Sequence[str] | None,
        delay: int | None,
    ) -> Iterator[pa.RecordBatch]:
        for number in range(self.settings.partitions):
            if number not in stops:
                continue
            first = starts.get(number, moment.earliest(number))
            stop = min(stops[number], moment.latest(number))
            yield from moment.read(number, first, stop, columns, delay)

    def _output_schema(self, columns: Sequence[str] | None, watermark: Duration | None) -> pa.Schema:
        settings = self.settings
        plain = [field for field in settings.stored_schema if columns is None or field.name in columns]
        record = RECORD if watermark is None else WATERMARKED_RECORD
        return record_schema(pa.schema(plain), settings.event_time, record=record)

    def _check_columns(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        if columns is None:
            return None
        known, wanted = self.schema.names, column_names(columns, "columns")
        for name in wanted:
            if name not in known and name != "record":
                raise Invalid(
                    f'topic "{self.name}" has no column "{name}"',
                    detail=f"Its columns are: {', '.join(known)}.",
                    hint=did_you_mean(name, known) or "Name some of these; `record` is always included.",
                    column=name,
                )
        return wanted

    # Following new records

    def follow(
        self,
        *,
        start: Position = "latest",
        columns: Sequence[str] | None = None,
        watermark: Duration | None = None,
        wait: Duration | None = None,
        rows_max: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:
        """Existing records from `start`, then new ones, in batches of one partition each; blocks while there are none.

        An append by any process wakes it. With `wait` it ends when no record has arrived for that long.
        """
        columns = self._check_columns(columns)
        whole_number(rows_max, "rows_max", least=1)
        reads = LiveReads(self.backend)
        numbers = list(range(self.settings.partitions))
        # Offsets and tokens may omit partitions: those are followed from their first retained record.
        positions = offsets_at("earliest", reads, numbers) | offsets_at(start, reads, numbers)
        seconds = None if wait is None else duration_us(wait, setting="wait") / 1_000_000
        delay = None if watermark is None else duration_us(watermark, setting="watermark")
        return self._follow(positions, columns, delay, seconds, rows_max)

    def _follow(
        self,
        positions: dict[int, int],
        columns: Sequence[str] | None,
        delay: int | None,
        seconds: float | None,
        rows_max: int,
    ) -> Iterator[pa.RecordBatch]:
        waking = self.backend.watch_appends()
        reads = ReadAhead(self.backend, columns, delay)
        try:
            idle_since = self.backend.clock.monotonic()
            while True:
                came = False
                for number in range(self.settings.partitions):
                    # A partition added since begins at its first record.
                    position = positions.setdefault(number, 0)
                    batch = reads.read(number, position, rows_max)
                    if batch is not None:
                        came = True
                        positions[number] = next_offset(batch)
                        yield batch
                if came:
                    idle_since = self.backend.clock.monotonic()
                    continue
                pause = SETTLE_SECONDS
                if seconds is not None:
                    left = seconds - (self.backend.clock.monotonic() - idle_since) / 1_000_000
                    if left <= 0:
                        return
                    pause = min(pause, left)
                if not waking.wait(pause):
                    self.backend.settle()
        finally:
            waking.close()

    # Groups and queues

    def join_group(self, name: str, *, session: Duration = "10 seconds", start: Position = "earliest") -> Member:
        """Join a reader group: the partitions are distributed among its members.

        A new group starts at `start`. A member that sends no heartbeat for longer than its `session` loses its
        partitions.
        """
        check_name(name, "group")
        # Checked before the group's ledger is created: a failed join leaves no group behind.
        reads = LiveReads(self.backend)
        check_session(session)
        offsets_at(start, reads, range(reads.partitions()))
        ledger = self.backend.group_ledger(name)
        return Member(
            name,
            ledger,
            LiveReads(self.backend),
            TopicWaiter(self.backend, ledger),
            self.backend.heartbeats(name),
            processes=self.backend.processes,
            clock=self.backend.clock,
            outcomes=self._log,
            session=session,
            start=start,
        )

    def group(self, name: str) -> ReaderGroup:
        """A group seen from outside, without joining it: `describe()`, `lag()`, `reset(to)`."""
        check_name(name, "group")
        self._require_known("group", name, self.backend.groups())
        ledger = self.backend.group_ledger(name)
        return ReaderGroup(
            name, ledger, LiveReads(self.backend), self.backend.heartbeats(name), processes=self.backend.processes
        )

    def groups(self) -> list[str]:
        """The names of the groups that read this topic."""
        return self._only_opened(self.backend.groups(), self.backend.group_ledger)

    def queue(
        self,
        name: str,
        *,
        lease: Duration | None = None,
        deliveries_max: int | None = None,
        retry: Backoff | None = None,
        ordered: str | None = None,
        where: str | None = None,
        expires: Duration | None = None,
        length_max: int | None = None,
        start: Position = "earliest",
        held_by: Literal["process", "lease"] = "process",
    ) -> Queue:
        """A queue over this topic: messages are taken, and acknowledged, released or rejected, one by one.

        Created if it does not exist; a new queue starts at `start`. Opening it with other settings than it has raises
        `Conflict`; without settings it opens as it is. Messages that are rejected, expired, over the length limit or
        delivered too often go to the topic `<topic>.<queue>.rejected`.
        """
        given = QueueSettings.from_options(
            lease=lease, deliveries_max=deliveries_max, retry=retry, ordered=ordered, where=where, expires=expires,
            length_max=length_max,
        )  # fmt: skip
        queue = self._queue(name, held_by).open(given, start=start)
        # Created with the queue, so that it can be queried before anything was rejected.
        RejectedTopic(self._log, queue.rejected_topic).make(rejected_schema(self.schema))
        return queue

    def open_queue(self, name: str, *, held_by: Literal["process", "lease"] = "process") -> Queue:
        """Open an existing queue."""
        check_name(name, "queue")
        self._require_known("queue", name, self.backend.queues())
        return self._queue(name, held_by).require()

    def _queue(self, name: str, held_by: Literal["process", "lease"]) -> Queue:
        check_choice(held_by, "held_by", ("process", "lease"))
        check_name(name, "queue")
        ledger = self.backend.queue_ledger(name)
        return Queue(
            name,
            ledger,
            LiveReads(self.backend),
            RejectedTopic(self._log, rejected_topic(self.name, name)),
            lambda: TopicWaiter(self.backend, ledger),
            processes=self.backend.processes,
            clock=self.backend.clock,
            held_by=held_by,
            rewound=lambda to: note_activity(
                self._log,
                "queue",
                f"{self.name}.{name}",
                "rewound",
                f'queue "{name}" of "{self.name}" was rewound to {to}',
            ),
        )

    def queues(self) -> list[str]:
        """The names of the queues over this topic."""
        return self._only_opened(self.backend.queues(), self.backend.queue_ledger)

    def _only_opened(self, names: list[str], ledger: Callable[[str], StateLedger[Any]]) -> list[str]:
        """Without those that have only a ledger, because their process died before it opened them."""

        def opened(name: str) -> bool:
            try:
                return ledger(name).current().opened_at is not None
            except (Corrupt, Unavailable):
                return True  # it exists; opening it raises the error

        return [name for name in names if opened(name)]

    def lag(self, offsets: Mapping[int, int]) -> Lag:
        """The lag of a reader whose next offsets are these."""
        wanted = offsets_at(offsets, LiveReads(self.backend), range(self.settings.partitions))
        return Lag.total(self.backend.behind(number, offset) for number, offset in wanted.items())

    def _require_known(self, kind: Literal["group", "queue"], name: str, names: list[str]) -> None:
        if name not in names:
            raise no_such_reader(kind, name, self.name, names)

    # Upkeep

    def seal(self) -> int:
        """Seal all decided records into Parquet files, the active segments included; return the number of files."""
        return self.backend.seal()

    def compact(self) -> CompactionReport:
        """Compact a topic that keeps the latest record per key: remove older records of each key from sealed segments.

        The active segment is never compacted, nor are records younger than `lag_min`: call `seal()` first to include
        all records. Offsets and order do not change.
        """
        if not self.settings.keep.compacted:
            raise Invalid(
                f'topic "{self.name}" does not keep the latest record per key',
                detail=f"It keeps: {self.settings.keep}.",
                hint="Alter it first: topic.alter(keep=Keep.latest_per_key()).",
            )
        return self.backend.compact()

    def drop_expired(self) -> RetentionReport:
        """Delete the segments that exceed the topic's retention, after copying them to its archive if it has one.

        Also runs in the background, unless the home was opened with `upkeep="manual"`.
        """
        return self.backend.drop_expired()

    def verify(self) -> Verification:
        """Read every byte and check the checksums; report what is sound and what is damaged."""
        return self.backend.verify()

    def take_over(self) -> TakeOverReport:
        """End stopped processes that hold a lock of this topic, its groups, its queues or the home's ledgers, and fence
        their unfinished writes; return what was done. After a failed fsync begin a new segment after the safe
        records."""
        return self.backend.take_over()

    def alter(self, **changes: Any) -> None:
        """Change settings: `keep`, added columns and wider types by `schema`, more `partitions`, and others.

        With more partitions, a key's later records may go to another partition than its earlier ones; a topic with a
        key warns about this.
        """
        before = self.settings
        self.backend.alter(changes)
        if changed := "; ".join(changes_between(before, self.settings)):
            note_activity(
                self._log,
                "topic",
                self.name,
                "altered",
                f'topic "{self.name}" was altered',
                detail=f"It changed {changed}.",
            )
        if before.key and self.settings.partitions > before.partitions:
            warnings.warn(
                f'topic "{self.name}" went from {before.partitions} to {self.settings.partitions} partitions: a key may '
                "now go to another partition than before, so the order of its records holds only before and after this, "
                "and compaction keeps its latest record in each",
                stacklevel=2,
            )


def topic_of(log: Log, topic: Topic | str) -> Topic:
    """A topic of this log, by name or already open; `Invalid` if it belongs to another log."""
    if isinstance(topic, Topic) and topic._log is log:
        return topic
    found = Topic(log, log.open_topic(find_name(topic, "topic", Topic)))
    if isinstance(topic, Topic) and (topic._log.identity != log.identity or topic.backend.id != found.backend.id):
        raise Invalid(
            f'topic "{topic.name}" belongs to another log',
            detail=f"It was opened from {topic._log.title}, and this is {log.title}.",
            hint="Producers and transactions write into topics of the log that they were opened from.",
        )
    return found
