"""Log: the protocol of every log, embedded or on Kafka, and the guarantees it may or may not give.

`Topic`, `Producer`, `Transaction`, `Member` and `Queue` are the same for every log; they work on these protocols. A
log that cannot keep a promise leaves it out of `promises`, and what needs it says so before anything is done. The
contract suite names the promise that each of its tests checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from mainstem.clock import Clock
from mainstem.errors import TopicNotFound, did_you_mean
from mainstem.log.lag import Lag
from mainstem.log.missed_deletions import Compacted
from mainstem.log.partition_reads import Processes
from mainstem.log.state_ledger import StateLedger
from mainstem.log.steps import Steps
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.upkeep_report import CompactionReport, PartitionFacts, RetentionReport, TakeOverReport, Verification
from mainstem.processes import Identity

if TYPE_CHECKING:
    from mainstem.log.append_result import AppendResult
    from mainstem.log.groups.group_member import Heartbeats
    from mainstem.log.groups.group_state import GroupState
    from mainstem.log.producer import ProducerRun
    from mainstem.log.query_limits import QueryLimits
    from mainstem.log.queues.queue_state import QueueState
    from mainstem.log.rows.rows import CheckedRows

__all__ = ["ArchivedPartition", "Log", "LogCopy", "Promise", "ReadMoment", "TopicBackend", "Waking", "no_such_topic"]


# What is said when a log has no topic of a name, in one form for every log.


def no_such_topic(name: str, log: str, names: Sequence[str]) -> TopicNotFound:
    """The error; `log` is what the log is called, `names` are the topics that it has."""
    count = "1 topic" if len(names) == 1 else f"{len(names)} topics"
    listed = f"{count}: {', '.join(names)}" if names else "no topics yet"
    return TopicNotFound(
        f'topic "{name}" does not exist',
        detail=f"{log[0].upper()}{log[1:]} has {listed}.",
        hint=f'{did_you_mean(name, names)} Create a topic with: mainstem topic create {name} --schema "..."'.strip(),
        topic=name,
    )


class Promise(StrEnum):
    """What a log may promise."""

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


class Waking(Protocol):
    """Waits for appends."""

    def wait(self, seconds: float, processes: Iterable[Identity] = ()) -> bool: ...
    def close(self) -> None: ...


class ReadMoment(Protocol):
    """A topic as it was at one moment: all of a transaction or none, in every partition."""

    def earliest(self, partition: int) -> int: ...
    def latest(self, partition: int) -> int: ...
    def at_time(self, partition: int, at: int) -> int: ...

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]: ...


class ArchivedPartition(Protocol):
    """What an archive has of one partition: segments that were copied before they were dropped."""

    def earliest(self) -> int | None: ...
    def at_time(self, at: int) -> int | None: ...

    def read(
        self, start: int, stop: int, columns: Sequence[str] | None, delay: int | None
    ) -> Iterator[pa.RecordBatch]: ...


class TopicBackend(Protocol):
    """One topic of a log, as `Topic` uses it. Thread-safe."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str:
        """Another one for a topic of the same name that is made later; empty where it is not known."""

    @property
    def settings(self) -> TopicSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def processes(self) -> Processes:
        """Those whose end can be noticed."""

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
    def hold(self, holder: str, ranges: Mapping[int, tuple[int, int]]) -> None: ...
    def read_held(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]: ...
    def steps(self, partition: int, start: int, rows_min: int) -> Steps: ...
    def first_after(self, partition: int, start: int, stop: int, time: int) -> int: ...
    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int: ...
    def appended_from(self, positions: Mapping[int, int], now: int) -> int: ...
    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]: ...
    def earliest(self, partition: int) -> int: ...
    def latest(self, partition: int) -> int: ...
    def end(self, partition: int) -> int: ...
    def at_time(self, partition: int, at: int) -> int: ...
    def behind(self, partition: int, offset: int) -> Lag: ...
    def compacted(self, partition: int) -> Compacted | None: ...
    def partition_facts(self, partition: int) -> PartitionFacts: ...
    def archived(self, archive: str, partition: int) -> ArchivedPartition: ...

    def waking(self, *ledgers: StateLedger[Any]) -> Waking: ...
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


class LogCopy(Protocol):
    """The copy of a log that is in its home, in the making: history first, then the rest as of one moment."""

    bytes: int

    def copy_history(self) -> None: ...
    def still(self) -> AbstractContextManager[None]: ...
    def copy(self) -> None: ...
    def finish(self) -> None: ...
    def opened(self) -> Log: ...


class Log(Protocol):
    """A log: topics, producers and transactions."""

    @property
    def promises(self) -> frozenset[Promise]: ...
    @property
    def title(self) -> str: ...
    @property
    def address(self) -> str:
        """How other processes open it; empty for the log in a home."""

    @property
    def identity(self) -> str:
        """The same for every opening of one log, in any process; another one for a copy of it."""

    @property
    def clock(self) -> Clock: ...

    def topic_names(self) -> list[str]: ...
    def create_topic(self, settings: TopicSettings) -> TopicBackend: ...
    def adopt_topic(self, settings: TopicSettings) -> TopicBackend: ...
    def open_topic(self, name: str) -> TopicBackend: ...
    def delete_topic(self, name: str) -> None: ...
    def open_producer(self, name: str) -> ProducerRun: ...
    def shared_producer(self, name: str) -> ProducerRun: ...
    def begin_transaction(self, timeout: int, producer: ProducerRun | None = None) -> int: ...
    def join_group_offsets(self, transaction: int, topic: str, group: str) -> None: ...
    def end_transaction(self, transaction: int, outcome: str) -> None: ...
    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]: ...
    def take_over(self) -> TakeOverReport: ...
    def copy_to(self, home: str) -> LogCopy | None:
        """A copy of it in another home; None where it is not in its home."""

    def verify_ledgers(self, step: Callable[[str], None]) -> Iterator[Verification]:
        """Check the ledgers of groups, queues and producers that are in its home; `step` is called with the name of each."""

    def query(
        self,
        sql: str,
        parameters: Sequence[object],
        tables: Mapping[str, Callable[[], pa.Table]] | None = None,
        limits: QueryLimits | None = None,
    ) -> pa.Table: ...
    def close(self) -> None: ...
