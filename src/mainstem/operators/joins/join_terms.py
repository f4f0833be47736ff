"""JoinTerms: which rows of two streams match, until when, and what is emitted for them.

A left row at time t matches the right rows of its key from t - before to t + after. When the watermark is past
t + after, its time is *up*: if it is unmatched and the join emits such rows, it is emitted alone. `lateness` later it
can no longer match.

              t - before          t           t + after          t + after + lateness
    ---------------|--------------|---------------|-----------------------|----------> watermark when the partner came
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

__all__ = ["HOW", "How", "JoinTerms", "LEFT", "Pairs", "RIGHT", "dense_keys", "found_pairs", "shifted"]


# Pairs of rows by key and time, found by bisection: no row is compared with rows that it does not meet.


@dataclass(frozen=True)
class Pairs:
    """Pairs as numbers of rows, ordered by the asking row and then by the time of the other; how many were left out."""

    asking: Int64Array
    met: Int64Array
    # For each asking row how many others it would have met, and did not: there were more than the limit.
    cut: Int64Array


def dense_keys(*parts: tuple[Int64Array, Int64Array]) -> list[Int64Array]:
    """Keys as numbers from 0 on, the same for the same key in every part. A key is told by its two hashes.

    >>> a, b = dense_keys((np.array([7, 9]), np.array([1, 1])), (np.array([9, 7]), np.array([1, 2])))
    >>> a.tolist(), b.tolist()
    ([0, 2], [2, 1])
    """
    groups, checks = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    order = np.lexsort((checks, groups))
    first = np.zeros(len(order), np.int64)
    first[1:] = (groups[order][1:] != groups[order][:-1]) | (checks[order][1:] != checks[order][:-1])
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(first)
    return np.split(found, np.cumsum([len(part[0]) for part in parts])[:-1])


def found_pairs(
    keys: Int64Array,
    lowest: Int64Array,
    highest: Int64Array,
    other_keys: Int64Array,
    other_times: Int64Array,
    limit: int,
    check: Callable[[int], None] | None = None,
) -> Pairs:
    """For each asking row the others of its key whose time is at least its `lowest` and at most its `highest`.

    Of more than `limit` the earliest are taken. A key of -1 meets nobody. `check` is told how many pairs there will be before
    there is a place for any of them.

    >>> one = np.array([0])
    >>> pairs = found_pairs(one, one + 10, one + 20, np.array([0, 0, 1, 0]), np.array([25, 20, 15, 10]), 100)
    >>> pairs.asking.tolist(), pairs.met.tolist()
    ([0, 0], [3, 1])
    """
    nobody = np.empty(0, np.int64)
    if not len(keys) or not len(other_keys):
        return Pairs(nobody, nobody, np.zeros(len(keys), np.int64))
    # Times by their place among the others' times, so that key and time make one number.
    distinct = np.unique(other_times)
    span = len(distinct) + 1
    places = np.searchsorted(distinct, other_times)
    order = np.argsort(other_keys * span + places, kind="stable")
    sorted_others = (other_keys * span + places)[order]
    first = np.searchsorted(sorted_others, keys * span + np.searchsorted(distinct, lowest, side="left"))
    end = np.searchsorted(sorted_others, keys * span + np.searchsorted(distinct, highest, side="right"))
    counts = np.where(keys < 0, 0, np.maximum(end - first, 0))
    cut = np.maximum(counts - limit, 0)
    counts = counts - cut
    if check is not None:
        check(int(counts.sum()))
    before = np.cumsum(counts) - counts
    met = order[np.repeat(first - before, counts) + np.arange(counts.sum())]
    return Pairs(np.repeat(np.arange(len(keys)), counts), met, cut)


def shifted(times: Int64Array, by: int) -> Int64Array:
    """Times moved by a span, which stay within what can be counted."""
    if by >= 0:
        return np.where(times > NEVER - by, NEVER, times + by)
    return np.where(times < NO_TIME - by, NO_TIME, times + by)


How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOW: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class JoinTerms:
    """In microseconds. Without bounds (None) rows meet whatever their times are, and are kept for ever."""

    how: How
    before: int | None
    after: int | None
    lateness: int = 0
    # How many others a row may meet when it comes.
    limit: int = 10_000

    @property
    def bounded(self) -> bool:
        return self.before is not None

    @property
    def span(self) -> int:
        """From the first to the last that a row meets."""
        return (self.before or 0) + (self.after or 0)

    @property
    def behind(self) -> int:
        """By how much the event times of results may be behind the watermark."""
        return max(self.before or 0, self.after or 0)

    def follows(self, side: int) -> bool:
        """Whether it must be known of the rows of a side if they have met anybody."""
        return self.how in (("left", "full", "semi", "anti") if side == LEFT else ("right", "full"))

    def shows_alone(self, side: int) -> bool:
        """Whether a row of a side that met nobody is shown."""
        return self.how != "semi" and self.follows(side)

    def range_of(self, side: int, times: Int64Array) -> tuple[Int64Array, Int64Array]:
        """From when to when the others are that rows of a side meet."""
        if self.before is None or self.after is None:
            # A row without a time has NO_TIME, the lowest number there is: nothing may lie below the range.
            return np.full(len(times), NO_TIME), np.full(len(times), NEVER)
        before, after = (self.before, self.after) if side == LEFT else (self.after, self.before)
        return shifted(times, -before), shifted(times, after)

    def up(self, side: int, times: Int64Array) -> Int64Array:
        """When the time of rows of a side is up: the last moment of what they meet."""
        return self.range_of(side, times)[1]

    def closed(self, side: int, times: Int64Array) -> Int64Array:
        """The last watermark with which another row can come to meet them."""
        return shifted(self.up(side, times), self.lateness) if self.bounded else np.full(len(times), NEVER)

    def forgotten(self, side: int, times: Int64Array) -> Int64Array:
        """At which watermark they are needed no more."""
        return shifted(self.closed(side, times), self.span + 1) if self.bounded else np.full(len(times), NEVER)

    def hopeless(self, times: Int64Array, watermarks: Int64Array) -> Any:
        """Whether rows come too late for everybody, known or not."""
        if not self.bounded:
            return np.zeros(len(times), np.bool_)
        return watermarks > shifted(times, self.span + self.lateness)
