"""Transaction: atomic appends to several topics, with a group's offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from mainstem.arguments import checked_calls, show_value, type_name
from mainstem.durations import Duration, duration_us
from mainstem.errors import Fenced, Invalid
from mainstem.log.append_result import AppendResult, parse_token, token_of
from mainstem.log.groups.group_member import Member
from mainstem.log.log import Log
from mainstem.log.own_process import OwnProcess
from mainstem.log.producer import Producer
from mainstem.log.rows.rows import GivenKeys, GivenRows, check_rows, tombstones
from mainstem.log.state_ledger import Entry
from mainstem.log.topic import Topic, topic_of
from mainstem.processes import Identity

__all__ = [
    "ABORTED",
    "COMMITTED",
    "Participant",
    "Transaction",
    "TransactionEntry",
    "TransactionState",
    "transaction_ended",
]


# TransactionState: the open transactions, where they have written, and how they were decided.
#
# A state machine without files, on a ledger that all processes share:
#
#     begun      id, owner, timeout       its process, and its timeout (microseconds); its `producer`, if any
#     joined     id, participants         it will write there: ["topic", name, partition] or ["group", topic, name]
#     decided    id, outcome              committed | aborted, atomically for all participants
#     finished   id                       all its markers are written; the entry is no longer needed


COMMITTED, ABORTED = "committed", "aborted"

Participant = tuple[str | int, ...]


def transaction_ended(number: int) -> Fenced:
    """The error of a write to a transaction that is not open any more."""
    return Fenced(
        f"transaction {number} has ended",
        detail="It exceeded its timeout, was ended earlier, or a newer run of its producer was opened. "
        "Unless it was committed, none of its writes are visible.",
        hint="Begin a new transaction, with a longer timeout if it needs one, and repeat the work.",
    )


@dataclass(slots=True)
class TransactionEntry:
    """One unfinished transaction. `decision`: the number of its decision, counted over all transactions."""

    owner: Identity
    timeout: int
    begun_at: int
    participants: list[Participant] = field(default_factory=list)
    outcome: str | None = None
    decision: int = -1
    producer: int = 0


@dataclass(slots=True)
class TransactionState:
    """All unfinished transactions, and how many were ever begun and decided."""

    begun: int = 0
    decisions: int = 0
    transactions: dict[int, TransactionEntry] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        number = entry["id"]
        match entry["kind"]:
            case "begun":
                self.begun = number
                producer = entry.get("producer", 0)
                self.transactions[number] = TransactionEntry(entry["owner"], entry["timeout"], at, producer=producer)
            case "joined":
                transaction = self.transactions[number]
                transaction.participants += [tuple(participant) for participant in entry["participants"]]
            case "decided":
                transaction = self.transactions[number]
                transaction.outcome, transaction.decision = entry["outcome"], self.decisions
                self.decisions += 1
            case "finished":
                self.transactions.pop(number, None)

    def outcomes(self) -> dict[int, bool]:
        """The decided ones whose markers may not all be written yet: whether they were committed."""
        return {
            number: transaction.outcome == COMMITTED
            for number, transaction in self.transactions.items()
            if transaction.outcome is not None
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            "begun": self.begun,
            "decisions": self.decisions,
            "transactions": {
                str(number): [t.owner, t.timeout, t.begun_at, t.participants, t.outcome, t.decision, t.producer]
                for number, t in self.transactions.items()
            },
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        transactions = {
            int(number): TransactionEntry(
                owner, timeout, begun_at, [tuple(participant) for participant in participants], *rest
            )
            for number, (owner, timeout, begun_at, participants, *rest) in snapshot["transactions"].items()
        }
        return cls(snapshot["begun"], snapshot["decisions"], transactions)


@checked_calls
class Transaction:
    """An open transaction; returned by `stem.transaction()` or `producer.transaction()`, for one thread.

    The end of the `with` block commits it; an exception aborts it. Its writes are not visible before the commit. If it
    exceeds its `timeout`, or its process ends, it is aborted.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     orders = stem.create_topic("orders", schema="order_id STRING")
    ...     payments = stem.create_topic("payments", schema="order_id STRING, amount DOUBLE")
    ...     with stem.transaction() as transaction:
    ...         placed = transaction.append(orders, [{"order_id": "o-1"}])
    ...         placed = transaction.append("payments", [{"order_id": "o-1", "amount": 9.5}])
    ...         seen_inside = len(orders.to_arrow())
    ...     seen_inside, len(orders.to_arrow()), len(payments.to_arrow())
    (0, 1, 1)
    """

    def __init__(self, log: Log, *, timeout: Duration = "1 minute", producer: Producer | None = None) -> None:
        self._log = log
        self._producer = producer
        self._topics: dict[str, Topic] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._process = OwnProcess()
        self._state: Literal["open", "committed", "aborted"] = "open"
        self.id = log.begin_transaction(
            duration_us(timeout, setting="timeout"), None if producer is None else producer.run
        )

    @property
    def state(self) -> Literal["open", "committed", "aborted"]:
        """Whether it is open, committed or aborted."""
        return self._state

    def append(self, topic: Topic | str, rows: GivenRows, *, sequence: int | None = None) -> AppendResult:
        """Append rows; visible once the transaction is committed."""
        self._check_open()
        topic = self._topic(topic)
        if self._producer is not None:
            placed = self._producer.append_in(topic, rows, sequence, self.id)
        else:
            placed = topic.backend.append(check_rows(rows, topic.settings), transaction=self.id)
        return self._note_ends(topic, placed)

    def delete(self, topic: Topic | str, keys: GivenKeys) -> AppendResult:
        """Append a tombstone for each key."""
        self._check_open()
        topic = self._topic(topic)
        return self._note_ends(topic, topic.backend.append(tombstones(keys, topic.settings), transaction=self.id))

    def commit_offsets(self, member: Member) -> None:
        """Commit the offsets of everything a group member has polled, as part of the transaction."""
        self._check_open()
        if not isinstance(member, Member):
            raise Invalid(
                f"{show_value(member)} is not a member of a group",
                detail=f"It is of type {type_name(member)}.",
                hint="Give what topic.join_group(...) returned.",
            )
        if member.log is None or member.log.identity != self._log.identity:
            of = "no log" if member.log is None else member.log.title
            raise Invalid(
                f'a member of group "{member.group}" reads topic "{member.topic}" of another log',
                detail=f"The member belongs to {of}, and this is a transaction of {self._log.title}: they cannot be committed "
                "together.",
                hint="Join the group through the log of the transaction.",
            )
        self._log.join_group_offsets(self.id, member.topic, member.group)
        member.commit_in(str(self.id))

    def commit(self) -> str:
        """Commit all of it atomically, and return its token. The `with` block does this."""
        self._check_open()
        try:
            self._log.end_transaction(self.id, COMMITTED)
        except Fenced:
            self._state = "aborted"
            raise
        self._state = "committed"
        for topic in self._topics.values():
            numbers = range(topic.settings.partitions)
            self._ends[topic.name] = {number: topic.backend.latest(number) for number in numbers}
        return self.token

    def abort(self) -> None:
        """Abort it: none of its writes become visible. Does nothing in a forked child: it belongs to the parent."""
        if self._state == "open" and not self._process.forked:
            self._state = "aborted"
            self._log.end_transaction(self.id, ABORTED)

    @property
    def token(self) -> str:
        """A token for the ends of all topics written to."""
        return token_of(self._ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.commit()

    def _note_ends(self, topic: Topic, placed: AppendResult) -> AppendResult:
        self._topics[topic.name] = topic
        self._ends.update(parse_token(placed.token))
        return placed

    def _check_open(self) -> None:
        self._process.check(f"transaction {self.id}", "Begin a transaction in this process; this one is the parent's.")
        if self._state != "open":
            raise Invalid(
                f"transaction {self.id} is {self._state} already",
                detail="Each transaction is used once.",
                hint="Begin another one with stem.transaction().",
            )

    def _topic(self, topic: Topic | str) -> Topic:
        return topic_of(self._log, topic)
