"""StatedWatermarks: up to when producers have stated that nothing earlier comes into a topic, and behind which offsets.

Kafka keeps nothing of time with its records but their append. So a statement lies in a ledger, `stated/<topic id>`:

    stated     at, ends      nothing earlier than `at` comes behind these offsets, one for each partition

It holds for whoever has read up to these ends. They are the ends of all that is written, decided or not: what a producer
appended before its statement lies before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mainstem.log.state_ledger import Entry
from mainstem.log.watermark import NO_TIME

__all__ = ["StatedWatermarks"]

# Somebody who is further behind learns of the earliest of these first, and so a little later.
STATEMENTS_MAX = 200


@dataclass(slots=True)
class StatedWatermarks:
    """The statements of one topic, each later than the one before.

    >>> stated = StatedWatermarks()
    >>> stated.apply({"at": 100, "ends": {"0": 5, "1": 0}}, 0)
    >>> stated.reached({0: 5, 1: 2}), stated.reached({0: 4, 1: 2}) == NO_TIME
    (100, True)
    """

    statements: list[tuple[int, dict[int, int]]] = field(default_factory=list)

    def apply(self, entry: Entry, at: int) -> None:
        # What was stated never goes back.
        if not self.statements or entry["at"] > self.statements[-1][0]:
            self.statements.append((entry["at"], {int(number): end for number, end in entry["ends"].items()}))
            del self.statements[:-STATEMENTS_MAX]

    def reached(self, positions: Mapping[int, int]) -> int:
        """The latest time before which nothing comes behind these offsets; NO_TIME if nothing was stated."""
        held = (
            at for at, ends in self.statements if all(positions.get(number, 0) >= end for number, end in ends.items())
        )
        return max(held, default=NO_TIME)

    def snapshot(self) -> dict[str, Any]:
        return {"statements": self.statements}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        found = cls()
        for at, ends in snapshot["statements"]:
            found.apply({"at": at, "ends": ends}, 0)
        return found
