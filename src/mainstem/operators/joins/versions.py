"""Versions of a table's rows: which of them holds at a time, and until when.

A version is valid from a time on, but nobody who asks for a time before it was known may be told of it: it *counts* from the
later of the two. Of those that count at a time the one that is valid from latest holds, of several the last in the log.

A version may say that its key is gone. That is remembered for a while: an older version that begins to count later than
that holds as if there had been nothing before it. So nothing needs to be kept of keys that are gone for long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array

__all__ = ["Versions", "known_ends"]

BoolArray = npt.NDArray[np.bool_]


class Versions:
    """Rows of a table by their numbers."""

    def __init__(
        self,
        keys: Int64Array,
        valid: Int64Array,
        counts: Int64Array,
        places: list[Int64Array],
        gone: BoolArray | None = None,
        remembered: int = NEVER,
    ) -> None:
        """`counts`: from when on a version counts; `places`: what tells the order of the log, the first thing first;
        `gone`: which of them say that their key is gone, and how long that is `remembered`."""
        by_validity = np.lexsort((*places[::-1], valid))
        rank = np.empty(len(keys), np.int64)
        rank[by_validity] = np.arange(len(keys))
        order = np.lexsort((rank, counts, keys))
        self._keys, self._counts = keys[order], counts[order]
        begins = np.r_[True, self._keys[1:] != self._keys[:-1]] if len(keys) else np.zeros(0, np.bool_)
        self._holding = _holding(begins, by_validity, rank[order])
        while gone is not None and gone.any():
            again = self._begins_again(begins, counts, gone, remembered)
            if not len(again):
                break
            begins[again] = True
            self._holding = _holding(begins, by_validity, rank[order])
        self._distinct = np.unique(counts)
        self._span = len(self._distinct) + 1
        self._joint = self._keys * self._span + np.searchsorted(self._distinct, self._counts)

    def _begins_again(self, begins: BoolArray, counts: Int64Array, gone: BoolArray, remembered: int) -> Int64Array:
        """Where a version begins to count that is older than one by which its key has been gone for too long: the first of
        each key, since what is behind it may hold by itself then."""
        held = self._holding
        over = np.where(counts[held] > NEVER - remembered, NEVER, counts[held] + remembered)
        found = ~begins & gone[held] & (self._counts > over)
        found[1:] &= held[1:] == held[:-1]
        places = np.flatnonzero(found)
        _, first = np.unique(np.cumsum(begins)[places], return_index=True)
        return np.asarray(places[first], np.int64)

    def at(self, keys: Int64Array, times: Int64Array) -> Int64Array:
        """For each key the number of the version that holds at a time; -1 if there is none, or no key (-1).

        >>> valid, counts = np.array([10, 20, 5, 15]), np.array([10, 20, 5, 30])
        >>> versions = Versions(np.array([0, 0, 1, 0]), valid, counts, [np.arange(4)])
        >>> versions.at(np.array([0, 0, 0, 1]), np.array([9, 10, 99, 7])).tolist()
        [-1, 0, 1, 2]
        """
        if not len(self._keys):
            return np.full(len(keys), -1)
        wanted = keys * self._span + np.searchsorted(self._distinct, times, side="right")
        place = np.searchsorted(self._joint, wanted, side="left") - 1
        found = (place >= 0) & (keys >= 0)
        found[found] = self._keys[place[found]] == keys[found]
        return np.where(found, self._holding[np.maximum(place, 0)], -1)

    def ends(self) -> Int64Array:
        """When each version no longer holds; NEVER for the last of a key, NO_TIME for one that never does.

        >>> valid, counts = np.array([10, 20, 5, 15]), np.array([10, 20, 5, 30])
        >>> ends = Versions(np.array([0, 0, 1, 0]), valid, counts, [np.arange(4)]).ends()
        >>> ends[0], ends[1] == ends[2] == NEVER, ends[3] == NO_TIME
        (np.int64(20), np.True_, np.True_)
        """
        following = np.full(len(self._keys), NEVER)
        followed = self._keys[1:] == self._keys[:-1]
        following[:-1][followed] = self._counts[1:][followed]
        found = np.full(len(self._keys), NO_TIME)
        np.maximum.at(found, self._holding, following)
        return found


def _holding(begins: BoolArray, by_validity: Int64Array, ranks: Int64Array) -> Int64Array:
    """In the order in which versions begin to count: the number of the one that holds from there on."""
    if not len(ranks):
        return ranks
    # Of each part the highest rank so far: the part is the higher number, so one part's highest never reaches into the next.
    total = len(ranks)
    held = np.maximum.accumulate(np.cumsum(begins) * total + ranks)
    return np.asarray(by_validity[held % total], np.int64)


def known_ends(
    keys: Int64Array, valid: Int64Array, known: Int64Array, asking: Int64Array, times: Int64Array
) -> Int64Array:
    """For each of those who ask, a key and a time: from when on the next version is valid of which was known by that time;
    NEVER if there is none. `known`: from which time on one was known of.

    >>> keys, valid, known = np.array([0, 0, 0]), np.array([10, 20, 30]), np.array([5, 25, 12])
    >>> known_ends(keys, valid, known, np.array([0, 0, 0, 7]), np.array([7, 12, 26, 7])).tolist()[:3]
    [10, 30, 30]
    """
    count = len(keys)
    if not count:
        return np.full(len(asking), NEVER)
    # Behind the versions of each key stands one that is valid never and was always known.
    distinct = np.unique(keys)
    keys = np.r_[keys, distinct]
    valid, known = np.r_[valid, np.full(len(distinct), NEVER)], np.r_[known, np.full(len(distinct), NO_TIME)]
    order = np.lexsort((np.arange(len(keys)), valid, keys))
    last, keys, valid, known = order >= count, keys[order], valid[order], known[order]
    # For each the next one that was known of earlier: all at once, each time twice as far.
    earlier = np.where(last, np.arange(len(keys)), np.arange(len(keys)) + 1)
    while len(behind := np.flatnonzero((known[earlier] >= known) & ~last[earlier])):
        earlier[behind] = earlier[earlier[behind]]
    times_known = np.unique(valid)
    joint = keys * (len(times_known) + 1) + np.searchsorted(times_known, valid)
    wanted = asking * (len(times_known) + 1) + np.searchsorted(times_known, times, side="right")
    place = np.minimum(np.searchsorted(joint, wanted), len(keys) - 1)
    while len(unknown := np.flatnonzero((known[place] > times) & ~last[place])):
        place[unknown] = earlier[place[unknown]]
    return np.where(keys[place] == asking, valid[place], NEVER)
