"""A join of two streams as it is defined: after every batch, from all rows so far, each with each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from mainstem.log.watermark import NO_TIME
from mainstem.testing import TestStreams
from tests.operators.two_streams import Columns, Place, Row, batches_so_far, two_streams

SIDES = {"left": Columns("number", "at"), "right": Columns("other", "other_at")}
# What is in a result: the numbers of the left and the right row, None where there is none.
Shown = tuple[int | None, int | None]
# The side and place of a row that came too late, and the place of the one that it would have met; None if it took no part.
Late = tuple[str, Place, Place | None]


@dataclass(frozen=True)
class Terms:
    how: str
    before: int
    after: int
    lateness: int

    def asked(self) -> dict[str, Any]:
        """As the operator takes it; a tick is a microsecond."""
        spans = (f"{self.before} microseconds", f"{self.after} microseconds")
        return {"on": "key", "how": self.how, "within": spans, "lateness": f"{self.lateness} microseconds"}


def written(random: Random, *, keys: int = 3, steps: int = 10, rows: int = 6) -> TestStreams:
    """A script of two streams, `left` and `right`."""
    return two_streams(random, SIDES, keys=keys, steps=steps, rows=rows)


@dataclass
class Naive:
    """What is to be seen after each batch, and in the end what came too late."""

    shown: list[Counter[Shown]]
    late: Counter[Late]
    took_no_part: set[int]


def naive_join(script: TestStreams, terms: Terms, batches: str = "scripted") -> Naive:
    """What a join with these terms gives."""
    found = Naive([], Counter(), set())
    for rows, watermark in batches_so_far(script, SIDES, batches):
        shown, found.late, found.took_no_part = judged(rows, terms, watermark)
        found.shown.append(shown)
    return found


def judged(rows: list[Row], terms: Terms, watermark: int) -> tuple[Counter[Shown], Counter[Late], set[int]]:
    """What is shown of rows when the watermark is there, who came too late for whom, and who took no part at all."""
    took_part = [row for row in rows if row.time != NO_TIME and not _hopeless(row, terms)]
    took_no_part = {row.number for row in rows} - {row.number for row in took_part}
    late: Counter[Late] = Counter((row.side, row.place, None) for row in rows if row.number in took_no_part)
    late.update(late for _, late in _meetings(took_part, terms) if late is not None)
    return _visible(took_part, terms, watermark), late, took_no_part


def _hopeless(row: Row, terms: Terms) -> bool:
    return row.own > row.time + terms.before + terms.after + terms.lateness


def _up(row: Row, terms: Terms) -> int:
    return row.time + (terms.after if row.side == "left" else terms.before)


def _meetings(rows: list[Row], terms: Terms) -> list[tuple[Shown, Late | None]]:
    """All that meet, and for those that do not make a pair who came too late for whom."""
    found = []
    for left in (row for row in rows if row.side == "left" and row.key is not None):
        for right in (row for row in rows if row.side == "right" and row.key == left.key):
            if left.time - terms.before <= right.time <= left.time + terms.after:
                late: Late | None = None
                if right.own > _up(left, terms) + terms.lateness:
                    late = ("right", right.place, left.place)
                elif left.own > _up(right, terms) + terms.lateness:
                    late = ("left", left.place, right.place)
                found.append(((left.number, right.number), late))
    return found


def _visible(rows: list[Row], terms: Terms, watermark: int) -> Counter[Shown]:
    pairs = [pair for pair, late in _meetings(rows, terms) if late is None]
    met = {number for pair in pairs for number in pair}
    alone = [row for row in rows if row.number not in met and _up(row, terms) < watermark]
    found: Counter[Shown] = Counter()
    if terms.how == "semi":
        return Counter((row.number, None) for row in rows if row.side == "left" and row.number in met)
    if terms.how != "anti":
        found.update(pairs)
    if terms.how in ("left", "full", "anti"):
        found.update((row.number, None) for row in alone if row.side == "left")
    if terms.how in ("right", "full"):
        found.update((None, row.number) for row in alone if row.side == "right")
    return found
