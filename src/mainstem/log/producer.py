"""Producer: idempotent appends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from mainstem.arguments import INTEGER_MAX, checked_calls
from mainstem.clock import as_us
from mainstem.errors import Fenced, Invalid
from mainstem.log.append_result import AppendResult
from mainstem.log.log import Log
from mainstem.log.own_process import OwnProcess
from mainstem.log.rows.rows import GivenRows, check_rows
from mainstem.log.sequence_runs import in_transaction
from mainstem.log.state_ledger import Entry
from mainstem.log.topic import Topic, topic_of
from mainstem.processes import Identity

if TYPE_CHECKING:
    from mainstem.durations import Duration
    from mainstem.log.transaction import Transaction

__all__ = ["Producer", "ProducerRun", "ProducersState", "check_epoch"]


# ProducerRun: one run of a producer.


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """`check` raises `Fenced` once a newer run was opened; `state` declares a watermark for a topic.

    A shared one is used by several processes at once, and orders its sequences itself.
    """

    name: str
    id: int
    epoch: int
    check: Callable[[], None]
    state: Callable[[str, int], None]
    last_sequence: Callable[[str], int]
    kept_sequence: Callable[[str], int]
    incomplete_sequence: Callable[[str], int | None]
    shared: bool = False


# ProducersState: the producers of a home, the current run of each, and their declared watermarks.
#
# A state machine without files, on a ledger that all processes share:
#
#     opened     name, process              a run begins: the epoch increases, and older runs are fenced
#     stated     name, topic, at            it will append nothing earlier than this


@dataclass(slots=True)
class ProducerEntry:
    """One producer: its number (never reused), the epoch of its current run, and that run's process."""

    id: int
    epoch: int
    process: Identity
    declared: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ProducersState:
    """All producers, by name."""

    producers: dict[str, ProducerEntry] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        name = entry["name"]
        match entry["kind"]:
            case "opened":
                known = self.producers.get(name)
                if known is None:
                    self.producers[name] = ProducerEntry(len(self.producers) + 1, 1, entry["process"])
                else:
                    known.epoch += 1
                    known.process = entry["process"]
            case "stated":
                declared = self.producers[name].declared
                declared[entry["topic"]] = max(entry["at"], declared.get(entry["topic"], entry["at"]))

    def snapshot(self) -> dict[str, Any]:
        return {name: [p.id, p.epoch, p.process, p.declared] for name, p in self.producers.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls({name: ProducerEntry(*fields) for name, fields in snapshot.items()})


@checked_calls
class Producer:
    """A run of a named producer; returned by `stem.producer(name)`. Opening it fences every older run of that name.

    Each append has a sequence, an increasing number (gaps are allowed). Appends are idempotent: a repeated sequence is
    acknowledged, but appended only once, also after a restart. So retry an append whose outcome is unknown.
    Thread-safe: appends to one topic are made one after the other. A forked child must open its own producer.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     orders = stem.create_topic("orders", schema="order_id STRING")
    ...     producer = stem.producer("checkout")
    ...     first = producer.append(orders, [{"order_id": "o-1"}], sequence=1)
    ...     again = producer.append(orders, [{"order_id": "o-1"}], sequence=1)
    ...     len(orders.to_arrow()), first.appended, again.appended
    (1, True, False)
    """

    def __init__(self, log: Log, run: ProducerRun) -> None:
        self._log = log
        self.run = run
        self._process = OwnProcess()
        self._transaction: Transaction | None = None

    @property
    def name(self) -> str:
        """The producer's name."""
        return self.run.name

    @property
    def epoch(self) -> int:
        """The number of this run, counted from 1."""
        return self.run.epoch

    def append(self, topic: Topic | str, rows: GivenRows, *, sequence: int | None = None) -> AppendResult:
        """Append rows with a sequence; without one, with the next after the last sequence of this producer in the
        topic.

        Raises `AppendConflict` if the sequence is below the last one and was never appended, or if an earlier append is
        incomplete. Without rows nothing is appended, and the sequence is not used.
        """
        self._check_free()
        return self.append_in(topic, rows, sequence, 0)

    def append_in(self, topic: Topic | str, rows: GivenRows, sequence: int | None, transaction: int) -> AppendResult:
        """As `append`, within a transaction if it is not 0."""
        self._check_process()
        topic = self._topic(topic)
        checked = check_rows(rows, topic.settings)
        if sequence is not None and (
            isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < INTEGER_MAX
        ):
            raise Invalid(
                f"sequence {sequence!r} is not a whole number of at least 0",
                detail="Sequences number the appends of a producer to a topic. They increase; gaps are allowed.",
                hint="Count your appends, or use the position in what you read from.",
            )
        return topic.backend.append(checked, producer=self.run, sequence=sequence, transaction=transaction)

    def last_sequence(self, topic: Topic | str) -> int:
        """The last sequence of this producer in a topic, over all its runs and all partitions; -1 if none.

        Continue after it. An interrupted append, which some partitions lack, does not count: append it again to
        complete it. Sequences of aborted transactions do not count either.
        """
        self._check_process()
        return self.run.last_sequence(self._topic(topic).name)

    def incomplete_sequence(self, topic: Topic | str) -> int | None:
        """The sequence of an interrupted append, which some partitions lack; None if there is none.

        Appending the same rows with the same sequence completes it. Until then higher sequences are refused.
        """
        self._check_process()
        return self.run.incomplete_sequence(self._topic(topic).name)

    def kept_sequence(self, topic: Topic | str) -> int:
        """Like `last_sequence`, on Kafka without those of an open transaction."""
        self._check_process()
        return self.run.kept_sequence(self._topic(topic).name)

    def declare_watermark(self, topic: Topic | str, at: datetime) -> None:
        """Declare that this producer will append no more rows with an event time before `at`."""
        self._check_process()
        self.run.state(self._topic(topic).name, as_us(at))

    def transaction(self, *, timeout: Duration = "1 minute") -> Transaction:
        """A transaction with this producer's sequences. Until it ends, the producer can append only in it."""
        from mainstem.log.transaction import Transaction

        self._check_process()
        self._check_free()
        self._transaction = Transaction(self._log, timeout=timeout, producer=self)
        return self._transaction

    def _check_process(self) -> None:
        self._process.check(
            f'producer "{self.name}"',
            "Open the log and a producer of its own name in this process; under the same name it would fence the other.",
        )

    def _check_free(self) -> None:
        if self._transaction is not None and self._transaction.state == "open":
            raise in_transaction(self.name, self._transaction.id)

    def _topic(self, topic: Topic | str) -> Topic:
        return topic_of(self._log, topic)


def check_epoch(name: str, epoch: int, current: int) -> None:
    """Raise `Fenced` if a newer run of a producer was opened than the one with this epoch."""
    if current != epoch:
        raise Fenced(
            f'a newer run of producer "{name}" was opened',
            detail=f"This run has epoch {epoch}, the newer one {current}.",
            hint="Only one run of a producer may append: stop this one, or open the producer again to fence the other.",
            epoch=epoch,
            current_epoch=current,
        )
