"""TransactionState: which transactions are under way, where they have written, and how they were decided.

A machine without files, on a ledger that all processes share:

    begun      id, owner, timeout       who writes, and how long it may take (microseconds); by which `producer`, if any
    joined     id, participants         it is about to write there: ["topic", name, partition] or ["group", topic, name]
    decided    id, outcome              committed | aborted: the one moment in which everything of it becomes true
    finished   id                       its markers stand everywhere; nothing more need be known of it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from mainstem.log.processes import Identity
from mainstem.log.state_ledger import Entry

COMMITTED, ABORTED = "committed", "aborted"

Participant = tuple[str | int, ...]


@dataclass(slots=True)
class TransactionEntry:
    """One transaction that is not finished. `decision`: the how-manieth decision of all it was."""

    owner: Identity
    timeout: int
    begun_at: int
    participants: list[Participant] = field(default_factory=list)
    outcome: str | None = None
    decision: int = -1
    producer: int = 0


@dataclass(slots=True)
class TransactionState:
    """All transactions that are not finished; how many were ever begun and decided."""

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
        """Those that are decided but whose markers may not stand everywhere yet: whether they were committed."""
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
