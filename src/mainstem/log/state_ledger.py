"""StateLedger: the list of entries that holds the state of a group or a queue.

A state is a deterministic machine: the same entries in the same order give the same state in every process. So two
processes agree without a server, as long as the list has one order and each entry is added by a process that has seen
all earlier ones. Any log with conditional appends can provide such a list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar

__all__ = ["Entry", "MachineState", "StateLedger"]

# JSON, with the kind of the entry under "kind".
Entry = dict[str, Any]


class MachineState(Protocol):
    """A state machine. It reads no clock, no file and no process table: all of that is in the entries."""

    def apply(self, entry: Entry, at: int) -> None:
        """Apply one entry. `at` is its append time (microseconds UTC), never decreasing within a ledger."""

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON."""

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """The state of a snapshot."""


S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class StateLedger(Protocol[S_co]):
    """An ordered list of entries, and the state after them. Thread-safe."""

    def current(self) -> S_co:
        """The state after everything any process has appended so far. Not to be changed by the caller."""

    def decide(self, decision: Callable[[S_co, int], tuple[list[Entry], T]]) -> T:
        """Append the entries that `decision(state, now)` returns, durably, and only if nothing was appended meanwhile.

        On a conflict `decision` is called again with the newer state, so it may run several times and must have no side
        effects. Without entries nothing is written. If it raises, its error is raised here, and nothing is written.
        """

    def state_at(self, at: int) -> S_co:
        """The state at that append time, as a copy."""
