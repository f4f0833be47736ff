"""Transactions over several partitions, topics and groups' offsets: decided by one synced entry of one ledger.

Records are written at once, each with the number of its transaction, and are not visible until it is decided. The
decision is one entry; after it a marker is written to every partition of the transaction, by its owner or, if the owner
died, by any other process (`settle`). A transaction whose owner is dead or whose timeout is over is aborted in the same
way. An append in a transaction checks, under the partition's lock, that it is still undecided: so no record of it can
follow its marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar

from mainstem.log.embedded.ledger import Ledger
from mainstem.log.state_ledger import Entry
from mainstem.log.transaction import (
    ABORTED,
    COMMITTED,
    Participant,
    TransactionEntry,
    TransactionState,
    transaction_ended,
)
from mainstem.processes import alive, this_process

__all__ = ["Decisions", "TransactionLog"]


# Decisions: one moment of the ledger of transactions.


class Decisions(NamedTuple):
    """A moment of the ledger: the transactions decided by then, for reads that show all of one or none."""

    outcomes: dict[int, bool]
    decided_before: int


T = TypeVar("T")

# An attempt takes less than a millisecond.
LOOKS_MAX = 50

# Writes the marker of a decided transaction to one participant: number, decision, outcome.
Marker = Callable[[Participant, int, int, str], None]


class TransactionLog:
    """The transactions of a home. Thread-safe."""

    def __init__(self, open_ledger: Callable[[], Ledger[TransactionState]], mark: Marker) -> None:
        self.ledger = open_ledger
        self._mark = mark

    @property
    def _ledger(self) -> Ledger[TransactionState]:
        # The log keeps it open; it is created on first use.
        return self.ledger()

    def moment(self) -> Decisions:
        state = self._ledger.current()
        return Decisions(state.outcomes(), state.decisions)

    def at_one_moment(self, look: Callable[[Decisions], T]) -> T:
        """Calls `look` with a moment; repeated if a transaction was decided meanwhile.

        After `LOOKS_MAX` attempts the last result counts: it is exact too, unless a transaction decided during it was
        also sealed during it.
        """
        moment = self.moment()
        for _ in range(LOOKS_MAX):
            seen, now = look(moment), self.moment()
            if now.decided_before == moment.decided_before:
                return seen
            moment = now
        return look(moment)

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Blocks all processes from beginning, joining or deciding a transaction."""
        with self._ledger.freeze():
            yield

    def abort_undecided(self) -> None:
        """Abort every undecided transaction: for a copy of a home, in which none has an owner."""
        for number, transaction in list(self._ledger.current().transactions.items()):
            if transaction.outcome is None:
                self.decide(number, ABORTED)
        self.settle()

    def outcome(self, number: int) -> Literal["open", "committed", "aborted"]:
        """The outcome of a transaction, for a reader that finds it unsettled."""
        transaction = self._ledger.current().transactions.get(number)
        if transaction is None:
            # Finished: a committed one would have been settled before that.
            return "aborted"
        if transaction.outcome is None:
            return "open"
        return "committed" if transaction.outcome == COMMITTED else "aborted"

    def owner_of(self, number: int) -> int | None:
        """The id of the process that has a transaction open; None if it is decided."""
        transaction = self._ledger.current().transactions.get(number)
        return None if transaction is None or transaction.outcome is not None else transaction.owner["pid"]

    def begin(self, timeout: int, producer: int = 0) -> int:
        """The number of a new transaction of this process, and of a producer if one is given."""
        self.settle()

        def decision(state: TransactionState, now: int) -> tuple[list[Entry], int]:
            number = state.begun + 1
            begun = {"kind": "begun", "id": number, "owner": this_process(), "timeout": timeout}
            return [begun | ({"producer": producer} if producer else {})], number

        return self._ledger.decide(decision)

    def join(self, number: int, participants: Iterable[Participant]) -> None:
        """Record the partitions that the transaction is about to write to."""

        def decision(state: TransactionState, now: int) -> tuple[list[Entry], None]:
            known = self._undecided_entry(state, number).participants
            fresh = [list(participant) for participant in participants if participant not in known]
            return ([{"kind": "joined", "id": number, "participants": fresh}] if fresh else []), None

        self._ledger.decide(decision)

    def check_open(self, number: int) -> None:
        """Raises if the transaction is decided already."""
        self._undecided_entry(self._ledger.current(), number)

    def _undecided_entry(self, state: TransactionState, number: int) -> TransactionEntry:
        transaction = state.transactions.get(number)
        if transaction is None or transaction.outcome is not None:
            raise transaction_ended(number)
        return transaction

    def decide(self, number: int, outcome: str) -> None:
        """Commit or abort; then write the markers."""

        def decision(state: TransactionState, now: int) -> tuple[list[Entry], None]:
            if outcome == ABORTED:
                transaction = state.transactions.get(number)
                if transaction is None or transaction.outcome is not None:
                    return [], None
            else:
                self._undecided_entry(state, number)
            return [{"kind": "decided", "id": number, "outcome": outcome}], None

        self._ledger.decide(decision)
        self._finish(number)

    def abort_transactions_of(self, producer: int) -> None:
        """Abort open transactions of a producer's earlier runs: a retry of their sequences is not a repeat."""
        for number, transaction in list(self._ledger.current().transactions.items()):
            if transaction.producer == producer:
                self.decide(number, ABORTED)

    def _finish(self, number: int) -> None:
        transaction = self._ledger.current().transactions.get(number)
        if transaction is None or transaction.outcome is None:
            return
        for participant in list(transaction.participants):
            self._mark(participant, number, transaction.decision, transaction.outcome)

        def decision(state: TransactionState, now: int) -> tuple[list[Entry], None]:
            return ([{"kind": "finished", "id": number}] if number in state.transactions else []), None

        self._ledger.decide(decision)

    def settle(self) -> None:
        """Abort transactions that their owner will never decide, and write missing markers."""

        def decision(state: TransactionState, now: int) -> tuple[list[Entry], None]:
            return [
                {"kind": "decided", "id": number, "outcome": ABORTED}
                for number, transaction in state.transactions.items()
                if transaction.outcome is None
                and (now >= transaction.begun_at + transaction.timeout or not alive(transaction.owner))
            ], None

        if self._ledger.current().transactions:
            self._ledger.decide(decision)
            for number, transaction in list(self._ledger.current().transactions.items()):
                if transaction.outcome is not None:
                    self._finish(number)
