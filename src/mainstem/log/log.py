"""Log: the protocol of every log, embedded or on Kafka, and the guarantees it may or may not give.

`Topic`, `Producer`, `Transaction`, `Member` and `Queue` are the same for every log; they use these protocols. A log
that cannot give a guarantee leaves it out of `promises`, and an operation that needs it raises before anything is done.
The contract suite names the promise that each of its tests checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.errors import Conflict, FellOff, GroupNotFound, Invalid, QueueNotFound, TopicNotFound, did_you_mean
from mainstem.log.lag import Lag
from mainstem.log.missed_deletions import Compacted
from mainstem.log.partition_reads import Position, Processes
from mainstem.log.state_ledger import StateLedger
from mainstem.log.steps import Steps
from mainstem.log.topic_settings import TopicSettings, difference
from mainstem.log.upkeep_report import CompactionReport, PartitionFacts, RetentionReport, TakeOverReport, Verification
from mainstem.processes import Identity

if TYPE_CHECKING:
    from mainstem.log.append_result import AppendResult
    from mainstem.log.flow_cut import FlowCut
    from mainstem.log.frozen_topic import FrozenTopic
    from mainstem.log.groups.group_member import Heartbeats
    from mainstem.log.groups.group_state import GroupState
    from mainstem.log.producer import ProducerRun
    from mainstem.log.query_limits import QueryLimits
    from mainstem.log.queues.queue_state import QueueState
    from mainstem.log.rows.rows import CheckedRows
    from mainstem.log.transaction_cut import TransactionSpans

__all__ = [
    "ArchivedPartition",
    "Log",
    "LogCopy",
    "AppendWatch",
    "Promise",
    "ReadMoment",
    "SealedFile",
    "SealedFiles",
    "TopicBackend",
    "UntimedTopic",
    "check_partition",
    "check_same_settings",
    "fell_off",
    "no_such_reader",
    "no_such_topic",
]


# What is said of topics in one form for every log.


def no_such_topic(name: str, log: str, names: Sequence[str]) -> TopicNotFound:
    """The error; `log` is the name of the log, `names` are its topics."""
    count = "1 topic" if len(names) == 1 else f"{len(names)} topics"
    listed = f"{count}: {', '.join(names)}" if names else "no topics yet"
    return TopicNotFound(
        f'topic "{name}" does not exist',
        detail=f"{log[0].upper()}{log[1:]} has {listed}.",
        hint=f'{did_you_mean(name, names)} Create a topic with: mainstem topic create {name} --schema "..."'.strip(),
        topic=name,
    )


def no_such_reader(
    kind: Literal["group", "queue"], name: str, topic: str, names: Sequence[str] | None = None
) -> GroupNotFound | QueueNotFound:
    """The error; `names` are the groups or queues that the topic has, None if they are not known."""
    detail = "It was never created, or it was deleted."
    if names is not None:
        detail = f"It has {len(names)}: {', '.join(names)}." if names else f"It has no {kind}s yet."
    use = f'topic.join_group("{name}")' if kind == "group" else f'topic.queue("{name}")'
    error = GroupNotFound if kind == "group" else QueueNotFound
    return error(
        f'topic "{topic}" has no {kind} "{name}"',
        detail=detail,
        hint=did_you_mean(name, names or []) or f"A {kind} is created when it is first used: {use}.",
        topic=topic,
        **{kind: name},
    )


def check_partition(settings: TopicSettings, partition: int | None) -> None:
    """Raise `Invalid` if an append names a partition that the topic does not have."""
    if partition is not None and not 0 <= partition < settings.partitions:
        raise Invalid(
            f'topic "{settings.name}" has no partition {partition}',
            detail=f"It has {settings.partitions}, numbered from 0.",
            hint="Leave partition out: the key decides.",
        )


def check_same_settings(there: TopicSettings, asked: TopicSettings) -> None:
    """Raise `Conflict` if a topic to be created exists with other settings."""
    if differences := difference(there, asked):
        raise Conflict(
            f'topic "{asked.name}" exists with other settings',
            detail=f"In the existing topic: {'; '.join(differences)}.",
            hint=f'Open it as it is with stem.topic("{asked.name}"), or change it: mainstem topic alter {asked.name} ...',
        )


def fell_off(topic: str, partition: int, start: int, kept: int) -> FellOff:
    """The error of a reader at `start`, before the first record that is kept."""
    return FellOff(
        f'records {start} to {kept - 1} of "{topic}" partition {partition} are no longer kept',
        detail=f"The first retained record has offset {kept}.",
        hint='Continue with start="earliest" (a group: member.seek("earliest")). If this reader may lag so far, '
        "set a longer retention, or an archive in an embedded log.",
        topic=topic,
        partition=partition,
        first_lost=start,
        last_lost=kept - 1,
    )


class Promise(StrEnum):
    """The guarantees that a log may give."""

    DURABLE = "an acknowledged append survives a crash of any process and of the machine"
    ORDERED = "within a partition, records are read in the order they were appended, by every reader"
    DENSE_OFFSETS = "every offset is accounted for: a record, a marker, aborted or compacted"
    IDEMPOTENT = "an append repeated with its sequence, also by a later run of the producer, is there once"
    FENCED = "an older run of a producer is refused"
    ATOMIC = "a transaction over topics and a group's offsets is seen whole or not at all"
    WAKING = "a follower is woken by an append of any process"
    GROUPS = "each record goes to one member of a group; a dead member's partitions move, its late commit is refused"
    QUEUES = "each message is held by one worker at a time until it is acknowledged"
    REWIND = "a queue can be set back to how it was at a time"
    COMPACTED = "a compacted topic keeps the latest record of each key, and deleted keys go"
    RETENTION = "a reader that falls off the kept range learns exactly what it lost"
    SEEK_BY_TIME = "reading can start at an append time"
    EVOLVES = "columns can be added and widened"
    CHANGES = "records carry change and headers"
    WATERMARKS = "a record carries the watermark that held when it was appended"
    SQL = "topics can be asked in SQL"


class AppendWatch(Protocol):
    """Waits for appends."""

    def wait(self, seconds: float, processes: Iterable[Identity] = ()) -> bool: ...
    def close(self) -> None: ...


class ReadMoment(Protocol):
    """A snapshot of a topic: all of a transaction or none, in every partition."""

    def earliest(self, partition: int) -> int: ...
    def latest(self, partition: int) -> int: ...
    def at_time(self, partition: int, at: int) -> int: ...

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]: ...


class ArchivedPartition(Protocol):
    """The archived segments of one partition: copies made before retention dropped them."""

    def earliest(self) -> int | None: ...
    def at_time(self, at: int) -> int | None: ...

    def read(
        self, start: int, stop: int, columns: Sequence[str] | None, delay: int | None
    ) -> Iterator[pa.RecordBatch]: ...


class SealedFile(Protocol):
    """One sealed segment of a partition: offsets `base` to `end` (not included) are accounted for by it."""

    @property
    def base(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def file(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def appended_first(self) -> int: ...
    @property
    def transactions(self) -> list[int] | None: ...


class SealedFiles(Protocol):
    """What is sealed of a topic, by partition, and where each partition begins."""

    @property
    def segments(self) -> Mapping[int, Sequence[SealedFile]]: ...
    @property
    def starts(self) -> Mapping[int, int]: ...
    @property
    def cleaned(self) -> Mapping[int, int] | None:
        """Of a compacted topic: how far each partition is compacted."""

    def path(self, partition: int, segment: SealedFile) -> str:
        """Where a segment is, which was checked whole."""
        ...

    def spans(self, partition: int, start: int, end: int) -> TransactionSpans:
        """Where transactions wrote between two offsets."""
        ...


class TopicBackend(Protocol):
    """One topic of a log, as `Topic` uses it. Thread-safe."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str:
        """Unique among topics of the same name; empty if unknown."""

    @property
    def settings(self) -> TopicSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def processes(self) -> Processes:
        """The processes whose end can be detected."""

    def append(
        self,
        rows: CheckedRows,
        *,
        partition: int | None = None,
        producer: ProducerRun | None = None,
        sequence: int | None = None,
        transaction: int = 0,
    ) -> AppendResult: ...

    def alter(self, changes: dict[str, Any]) -> None: ...

    def moment(self) -> ReadMoment: ...
    def read(
        self,
        partition: int,
        start: int,
        rows_max: int,
        columns: Sequence[str] | None = None,
        delay: int | None = None,
    ) -> pa.RecordBatch | None: ...
    def hold(self, holder: str, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Have these offsets stay as they are for `read_held`, if the log can, in place of those held under this name."""

    def read_held(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """`fields`: those of `record` that are needed besides its offset; the others may be null. None: all."""

    def freeze(self, home: str, start: Position, stop: Position, delay: int | None) -> FrozenTopic | None:
        """The records between two positions as files that do not change; None if the log has no files of its own."""

    def sealed_files(self) -> SealedFiles | None:
        """What is sealed now; None if the log has no files of its own."""

    def steps(self, partition: int, start: int, rows_min: int) -> Steps: ...
    def first_after(self, partition: int, start: int, stop: int, time: int) -> int: ...
    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int: ...
    def earliest_append(self, positions: Mapping[int, int], now: int) -> int: ...
    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]: ...
    def earliest(self, partition: int) -> int: ...
    def latest(self, partition: int) -> int: ...
    def end(self, partition: int) -> int: ...
    def at_time(self, partition: int, at: int) -> int: ...
    def count_records(self, partition: int, start: int, stop: int) -> int:
        """The number of records in a range of offsets: without transaction markers, as far as the log knows them."""

    def behind(self, partition: int, offset: int) -> Lag: ...
    def bytes_behind(self, partition: int, offset: int) -> int: ...
    def compaction(self, partition: int) -> Compacted | None: ...
    def partition_facts(self, partition: int) -> PartitionFacts: ...
    def open_transactions(self, partition: int) -> dict[int, int]: ...
    def owner_of(self, transaction: int) -> int | None: ...
    def open_archive(self, archive: str, partition: int) -> ArchivedPartition: ...

    def watch_appends(self, *ledgers: StateLedger[Any]) -> AppendWatch: ...
    def settle(self) -> None: ...

    def seal(self) -> int: ...
    def compact(self) -> CompactionReport: ...
    def drop_expired(self) -> RetentionReport: ...
    def verify(self) -> Verification: ...
    def take_over(self) -> TakeOverReport: ...

    def groups(self) -> list[str]: ...
    def group_ledger(self, name: str) -> StateLedger[GroupState]: ...
    def heartbeats(self, group: str) -> Heartbeats: ...
    def queues(self) -> list[str]: ...
    def queue_ledger(self, name: str) -> StateLedger[QueueState]: ...
    def delete_queue(self, name: str) -> None: ...
    def delete_group(self, name: str) -> None: ...


class UntimedTopic(TopicBackend, Protocol):
    """A topic of a log that does not record the watermark of each record (`Promise.WATERMARKS`)."""

    @property
    def settings_seen(self) -> TopicSettings:
        """The settings as this process last saw them."""

    def declared_watermark(self, positions: Mapping[int, int]) -> int:
        """The declared watermark at these offsets; NO_TIME if there is none."""

    def appended_at(self, partition: int, offset: int) -> int:
        """When the first record from an offset on was appended; now, if there is none."""


class LogCopy(Protocol):
    """A copy of a log in progress: history first, then the rest as of one moment."""

    bytes: int

    def copy_history(self) -> None: ...
    def freeze(self) -> AbstractContextManager[None]: ...
    def copy(self) -> None: ...
    def finish(self) -> None: ...
    def open_copy(self) -> Log: ...


class Log(Protocol):
    """A log: topics, producers and transactions."""

    @property
    def title(self) -> str: ...
    @property
    def address(self) -> str:
        """The address with which other processes open it; empty for the log in a home."""

    @property
    def identity(self) -> str:
        """The same each time the log is opened, in any process; different for a copy of it."""

    @property
    def clock(self) -> Clock: ...
    @property
    def promises(self) -> frozenset[Promise]: ...

    def topic_names(self) -> list[str]: ...
    def create_topic(self, settings: TopicSettings) -> TopicBackend: ...
    def adopt_topic(self, settings: TopicSettings) -> TopicBackend: ...
    def open_topic(self, name: str) -> TopicBackend: ...
    def watch_appends(self, topics: Iterable[str], bell: str = "") -> AppendWatch:
        """Waits for appends to any of these topics, and for a write to the file `bell`."""

    def flow_cut(self) -> FlowCut:
        """Says where the batches of a flow end."""

    def delete_topic(self, name: str) -> None: ...
    def open_producer(self, name: str) -> ProducerRun: ...
    def shared_producer(self, name: str) -> ProducerRun: ...
    def begin_transaction(self, timeout: int, producer: ProducerRun | None = None) -> int: ...
    def join_group_offsets(self, transaction: int, topic: str, group: str) -> None: ...
    def end_transaction(self, transaction: int, outcome: str) -> None: ...
    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]: ...
    def take_over(self) -> TakeOverReport: ...
    def copy_to(self, home: str) -> LogCopy | None:
        """A copy of it in another home; None if the log is not in its home."""

    def verify_ledgers(self, step: Callable[[str], None]) -> Iterator[Verification]:
        """Check the ledgers of groups, queues and producers in its home; `step` is called with the name of each."""

    def query(
        self,
        sql: str,
        parameters: Sequence[object],
        tables: Mapping[str, Callable[[], pa.Table]] | None = None,
        limits: QueryLimits | None = None,
    ) -> pa.Table: ...
    def close(self) -> None: ...
