"""TestResults: what a scripted stream came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TestResults"]

Row = dict[str, Any]


@dataclass(frozen=True)
class TestResults:
    """What was put out, in order, and what was not.

    >>> results = TestResults([[("insert", {"team": "red", "total": 3})], [("update", {"team": "red", "total": 5})]])
    >>> results.rows
    [{'team': 'red', 'total': 3}, {'team': 'red', 'total': 5}]
    >>> results.latest("team")
    [{'team': 'red', 'total': 5}]
    """

    # pytest would take it for a class of tests.
    __test__ = False

    # Of each step of the script (of each batch, if it is cut otherwise), its rows with their changes; without `record`.
    batches: list[list[tuple[str, Row]]]
    # Rows that came too late to count anywhere, as <flow>.late has them; what is null is left out.
    late: list[Row] = field(default_factory=list)
    # What stages counted: duplicates, late rows, ...
    counts: dict[str, int] = field(default_factory=dict)
    # How many rows of state each stage holds in the end, by its name.
    state_rows: dict[str, int] = field(default_factory=dict)
    # How many batches were killed, and done again with the same result.
    killed: int = 0

    @property
    def changes(self) -> list[tuple[str, Row]]:
        """All rows, each with its change: insert, update or delete."""
        return [change for batch in self.batches for change in batch]

    @property
    def rows(self) -> list[Row]:
        """All rows that were put out, without what was taken back."""
        return [row for change, row in self.changes if change != "delete"]

    def latest(self, key: str | Sequence[str]) -> list[Row]:
        """What a view with this key would hold, in the order in which its keys first came."""
        names = [key] if isinstance(key, str) else list(key)
        held: dict[str, Row] = {}
        for change, row in self.changes:
            # As text: a window is a dict, and no key of one.
            identity = str([row[name] for name in names])
            if change == "delete":
                held.pop(identity, None)
            else:
                held[identity] = row
        return list(held.values())
