"""Versions of a table's rows: which of them holds at a time, and until when.

A version is valid from a time on, but nobody who asks for a time before it was known may be told of it: it *counts* from the
later of the two. Of those that count at a time the one that is valid from latest holds, of several the last in the log.
"""

from __future__ import annotations

import numpy as np

from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array

__all__ = ["Versions"]


class Versions:
    """Rows of a table by their numbers."""

    def __init__(self, keys: Int64Array, valid: Int64Array, counts: Int64Array, places: list[Int64Array]) -> None:
        """`counts`: from when on a version counts; `places`: what tells the order of the log, the first thing first."""
        total = max(1, len(keys))
        by_validity = np.lexsort((*places[::-1], valid))
        rank = np.empty(len(keys), np.int64)
        rank[by_validity] = np.arange(len(keys))
        order = np.lexsort((rank, counts, keys))
        self._keys, self._counts = keys[order], counts[order]
        # In the order in which they begin to count: the one that holds from there on. Keys are the higher part, so one key's
        # highest never reaches into the next.
        held = np.maximum.accumulate((self._keys + 1) * total + rank[order]) if len(keys) else rank
        self._holding = by_validity[held % total] if len(keys) else held
        self._distinct = np.unique(counts)
        self._span = len(self._distinct) + 1
        self._joint = self._keys * self._span + np.searchsorted(self._distinct, self._counts)

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
