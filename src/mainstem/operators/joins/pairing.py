"""Pairs of rows by key and time, found by bisection: no row is compared with rows that it does not meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array

__all__ = ["Pairs", "dense_keys", "found_pairs", "shifted"]


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
