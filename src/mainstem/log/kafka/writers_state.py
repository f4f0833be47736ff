"""WritersState: which transactional ids of a log are in use, and by which process.

opened     slot, process, timeout      a process writes transactions under this slot's id; each may take so long
closed     slot                        nobody does any more
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from mainstem.log.processes import Identity
from mainstem.log.state_ledger import Entry

__all__ = ["Slot", "WritersState"]


@dataclass(slots=True)
class Slot:
    """One transactional id. A named one belongs to a producer, whose next run takes it over."""

    process: Identity
    timeout: int
    named: bool = False


@dataclass(slots=True)
class WritersState:
    """All slots in use, by number."""

    slots: dict[int, Slot] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        match entry["kind"]:
            case "opened":
                self.slots[entry["slot"]] = Slot(entry["process"], entry["timeout"], entry.get("named", False))
            case "closed":
                self.slots.pop(entry["slot"], None)

    def snapshot(self) -> dict[str, Any]:
        return {str(number): [slot.process, slot.timeout, slot.named] for number, slot in self.slots.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls({int(number): Slot(*fields) for number, fields in snapshot.items()})
