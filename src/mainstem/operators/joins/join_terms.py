"""JoinTerms: which rows of two streams match, until when, and what is emitted for them.

A left row at time t matches the right rows of its key from t - before to t + after. When the watermark is past
t + after, its time is *up*: if it is unmatched and the join emits such rows, it is emitted alone. `lateness` later it
can no longer match.

              t - before          t           t + after          t + after + lateness
    ---------------|--------------|---------------|-----------------------|----------> watermark when the match arrives
                                    the pair            the pair, and the     too late: in <flow>.late
                                                        unmatched row is retracted

Whether two rows are a pair depends only on their times and their own watermarks, never on the order of reading: both must
have arrived before the other's time was up by more than `lateness`. So a row is evicted when no row can arrive that could
match it, or, a span of `before` and `after` longer, that would be reported as too late for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array
from mainstem.operators.stage.integer_order import order_rows, search, sort_distinct

__all__ = ["HOW", "How", "JoinTerms", "LEFT", "Pairs", "RIGHT", "dense_keys", "find_pairs", "shift"]


# Pairs of rows by key and time, found by bisection: only matching rows are visited.


@dataclass(frozen=True)
class Pairs:
    """Pairs of row numbers, sorted by the asking row and the time of the other."""

    asking: Int64Array
    met: Int64Array
    # For each asking row the number of matches beyond the limit, which are left out.
    cut: Int64Array


def dense_keys(*parts: tuple[Int64Array, Int64Array]) -> list[Int64Array]:
    """Keys as numbers from 0 on, equal for equal keys in all parts. A key is identified by its two hashes.

    >>> a, b = dense_keys((np.array([7, 9]), np.array([1, 1])), (np.array([9, 7]), np.array([1, 2])))
    >>> a.tolist(), b.tolist()
    ([0, 2], [2, 1])
    """
    groups, checks = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    order = order_rows(groups, checks)
    first = np.zeros(len(order), np.int64)
    first[1:] = (groups[order][1:] != groups[order][:-1]) | (checks[order][1:] != checks[order][:-1])
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(first)
    return np.split(found, np.cumsum([len(part[0]) for part in parts])[:-1])


def find_pairs(
    keys: Int64Array,
    lowest: Int64Array,
    highest: Int64Array,
    other_keys: Int64Array,
    other_times: Int64Array,
    limit: int,
    check: Callable[[int], None] | None = None,
) -> Pairs:
    """For each asking row the others of its key whose time is at least its `lowest` and at most its `highest`.

    Beyond `limit` only the earliest are taken. A key of -1 matches nothing. `check` gets the number of pairs before they are
    allocated.

    >>> one = np.array([0])
    >>> pairs = find_pairs(one, one + 10, one + 20, np.array([0, 0, 1, 0]), np.array([25, 20, 15, 10]), 100)
    >>> pairs.asking.tolist(), pairs.met.tolist()
    ([0, 0], [3, 1])
    """
    nobody = np.empty(0, np.int64)
    if not len(keys) or not len(other_keys):
        return Pairs(nobody, nobody, np.zeros(len(keys), np.int64))
    # Times as ranks among the others' times, so that key and time make one number.
    distinct = sort_distinct(other_times)
    span = len(distinct) + 1
    joint = other_keys * span + search(distinct, other_times)
    order = order_rows(joint)
    joint = joint[order]
    first = search(joint, keys * span + search(distinct, lowest, side="left"))
    end = search(joint, keys * span + search(distinct, highest, side="right"))
    counts = np.where(keys < 0, 0, np.maximum(end - first, 0))
    cut = np.maximum(counts - limit, 0)
    counts = counts - cut
    if check is not None:
        check(int(counts.sum()))
    before = np.cumsum(counts) - counts
    met = order[np.repeat(first - before, counts) + np.arange(counts.sum())]
    return Pairs(np.repeat(np.arange(len(keys)), counts), met, cut)


def shift(times: Int64Array, by: int) -> Int64Array:
    """Times shifted by a span, saturating at NO_TIME and NEVER."""
    if by >= 0:
        return np.where(times > NEVER - by, NEVER, times + by)
    return np.where(times < NO_TIME - by, NO_TIME, times + by)


How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOW: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class JoinTerms:
    """In microseconds. Without bounds (None) rows match at any distance in time, and are never evicted."""

    how: How
    before: int | None
    after: int | None
    lateness: int = 0
    # The maximum number of matches of a new row.
    limit: int = 10_000

    @property
    def bounded(self) -> bool:
        return self.before is not None

    @property
    def span(self) -> int:
        """The length of the interval that a row matches."""
        return (self.before or 0) + (self.after or 0)

    @property
    def behind(self) -> int:
        """How far the event times of results may be behind the watermark."""
        return max(self.before or 0, self.after or 0)

    def follows(self, side: int) -> bool:
        """Whether rows of a side are tracked as matched or unmatched."""
        return self.how in (("left", "full", "semi", "anti") if side == LEFT else ("right", "full"))

    def shows_alone(self, side: int) -> bool:
        """Whether unmatched rows of a side are emitted."""
        return self.how != "semi" and self.follows(side)

    def range_of(self, side: int, times: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The interval of times that rows of a side match, both ends included."""
        if self.before is None or self.after is None:
            # The range includes NO_TIME, the time of rows without a time.
            return np.full(len(times), NO_TIME), np.full(len(times), NEVER)
        before, after = (self.before, self.after) if side == LEFT else (self.after, self.before)
        return shift(times, -before), shift(times, after)

    def up(self, side: int, times: Int64Array) -> Int64Array:
        """When the time of rows of a side is up: the end of the interval that they match."""
        return self.range_of(side, times)[1]

    def last_watermarks(self, side: int, times: Int64Array) -> Int64Array:
        """The last watermark with which another row can still match them."""
        return shift(self.up(side, times), self.lateness) if self.bounded else np.full(len(times), NEVER)

    def eviction_watermarks(self, side: int, times: Int64Array) -> Int64Array:
        """The watermark at which they are evicted."""
        return shift(self.last_watermarks(side, times), self.span + 1) if self.bounded else np.full(len(times), NEVER)

    def hopeless(self, times: Int64Array, watermarks: Int64Array) -> Any:
        """Whether rows are too late to match any row."""
        if not self.bounded:
            return np.zeros(len(times), np.bool_)
        return watermarks > shift(times, self.span + self.lateness)
