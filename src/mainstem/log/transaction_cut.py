"""TransactionCut: where a batch can end so that it splits no transaction.

A lane is one partition of one source. A batch ends at one offset in every lane, and these ends are *consistent* if
every transaction has all its records before them, or none. Consistent ends are closed under minimum and maximum, so
there are a greatest one below some limits and a smallest one above some offsets:

    lane a   |1 1|2   2|3 . . .         ends a=2, b=0 are consistent: transaction 1 is in, the others are not
    lane b   |2 3|3 2 . . .             2 and 3 are entangled: a batch has both or neither of them

`below` removes every incomplete transaction, which may split others, and so on. `above` adds every transaction that it
touches. Both visit each transaction once.

If lanes are aligned by event time (`Reached`), the rows taken from one lane are not later than those left in another,
except by as much as that one is out of order: Spark's watermark would drop them otherwise. Both keep to this.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mainstem.log.steps import Int64Array

__all__ = ["NO_SPANS", "Reached", "TooLarge", "TransactionCut", "TransactionSpans", "Unstable"]


# TransactionSpans: where transactions wrote in one partition.
#
# For each transaction its number, the offset of its first record and the offset after its last one. Records of others
# may lie between. In the metadata of a sealed file they are one text: base 64 of the zlib-compressed differences.


class TransactionSpans(NamedTuple):
    """Three columns of the same length, unordered. A transaction may occur twice, with the same offsets."""

    numbers: Int64Array
    firsts: Int64Array
    ends: Int64Array

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> TransactionSpans:
        """From the number, the first offset and the offset after the last record of each.

        >>> spans = TransactionSpans.of([(7, 100, 102), (9, 101, 140)])
        >>> TransactionSpans.from_text(spans.to_text()).rows() == spans.rows()
        True
        """
        table = np.array(list(rows), np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def concatenate(cls, parts: Sequence[TransactionSpans]) -> TransactionSpans:
        """Concatenated."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else NO_SPANS

    @classmethod
    def merge(cls, parts: Iterable[TransactionSpans]) -> TransactionSpans:
        """Those of several files, each transaction once: one that wrote to two of them is in both."""
        rows = np.concatenate([np.empty((0, 3), np.int64), *(np.stack(part, axis=1) for part in parts)])
        rows = np.unique(rows, axis=0)
        return cls(rows[:, 0], rows[:, 1], rows[:, 2])

    def rows(self) -> list[tuple[int, int, int]]:
        return list(zip(self.numbers.tolist(), self.firsts.tolist(), self.ends.tolist(), strict=True))

    def between(self, start: int, end: int) -> TransactionSpans:
        """Those with a record from `start` on and one before `end`."""
        return self.only((self.ends > start) & (self.firsts < end))

    def numbers_between(self) -> list[int]:
        """The lowest and the highest number; empty if there are no transactions."""
        return [int(self.numbers.min()), int(self.numbers.max())] if len(self.numbers) else []

    def only(self, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> TransactionSpans:
        return TransactionSpans(self.numbers[wanted], self.firsts[wanted], self.ends[wanted])

    def to_text(self) -> str:
        order = np.argsort(self.numbers, kind="stable")
        columns = [np.diff(column[order], prepend=0) for column in self]
        return base64.b64encode(zlib.compress(np.stack(columns).astype("<i8").tobytes())).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> TransactionSpans:
        columns = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(3, -1)
        return cls(*(np.cumsum(column) for column in columns))


NO_SPANS = TransactionSpans.of([])


L = TypeVar("L", bound=Hashable)

Numbers = npt.NDArray[np.intp]


class Reached(NamedTuple):
    """The rows of a lane that is aligned with others: their offsets, and the latest event time up to each."""

    group: Hashable
    offsets: Int64Array
    times: Int64Array


class Unstable(Exception):
    """The requested ends lie after records of an undecided transaction."""


class TooLarge(Exception):
    """A batch up to the requested ends would have too many rows."""


class TransactionCut(Generic[L]):
    """Consistent ends for batches with one start. The rest of a transaction that began before the start is not
    split."""

    def __init__(
        self, starts: Mapping[L, int], spans: Mapping[L, TransactionSpans], reached: Mapping[L, Reached] | None = None
    ) -> None:
        self._lanes = list(starts)
        self._starts = np.array([starts[lane] for lane in self._lanes], np.int64)
        parts = [spans[lane] for lane in self._lanes]
        lane = np.repeat(np.arange(len(parts)), [len(part.numbers) for part in parts])
        numbers, firsts, ends = (
            np.concatenate([np.empty(0, np.int64), *columns]) for columns in zip(*parts, strict=True)
        )
        bound = firsts >= self._starts[lane]
        self._numbers, transaction = np.unique(numbers[bound], return_inverse=True)
        # The spans of one transaction are adjacent.
        order = np.argsort(transaction, kind="stable")
        self._lane, self._firsts, self._ends = lane[bound][order], firsts[bound][order], ends[bound][order]
        self._transaction = transaction[order]
        self._places = np.searchsorted(self._transaction, np.arange(len(self._numbers) + 1))
        self._by_end = [self._sort_spans(self._ends, number) for number in range(len(self._lanes))]
        self._by_first = [self._sort_spans(self._firsts, number) for number in range(len(self._lanes))]
        self._groups: dict[Hashable, list[tuple[int, Reached]]] = {}
        for number, name in enumerate(self._lanes):
            if reached is not None and name in reached:
                self._groups.setdefault(reached[name].group, []).append((number, reached[name]))

    def _sort_spans(self, offsets: Int64Array, lane: int) -> tuple[Int64Array, Numbers]:
        """The sorted offsets of the spans in one lane, and their transactions."""
        mine = np.flatnonzero(self._lane == lane)
        mine = mine[np.argsort(offsets[mine], kind="stable")]
        return offsets[mine], self._transaction[mine]

    def below(self, limits: Mapping[L, int]) -> dict[L, int]:
        """The greatest consistent ends that are nowhere after the limits."""
        given = np.maximum(self._array(limits), self._starts)
        ends = given
        left = np.array([len(offsets) for offsets, _ in self._by_end])
        out = np.zeros(len(self._numbers), np.bool_)
        changed: Iterable[int] = range(len(self._lanes))
        while True:
            found = []
            for lane in changed:
                offsets, owners = self._by_end[lane]
                place = int(np.searchsorted(offsets, ends[lane], side="right"))
                found.append(owners[place : left[lane]])
                left[lane] = min(left[lane], place)
            spans = self._fresh_spans(found, out)
            lowered = ends.copy()
            np.minimum.at(lowered, self._lane[spans], self._firsts[spans])
            if (lowered == ends).all():
                lowered = self._align_below(ends, given)
            changed = np.flatnonzero(lowered < ends).tolist()
            if not changed:
                return self._mapping(ends)
            ends = lowered

    def above(self, seeds: Mapping[L, int], stable: Mapping[L, int], rows_max: int) -> dict[L, int]:
        """The smallest consistent ends that are nowhere before the seeds.

        Raises `Unstable` if they are after the stable offsets, `TooLarge` if there are more rows before them.
        """
        ends = np.maximum(self._array(seeds), self._starts)
        ceilings = self._array(stable)
        passed = np.zeros(len(self._lanes), np.int64)
        taken = np.zeros(len(self._numbers), np.bool_)
        changed: Iterable[int] = range(len(self._lanes))
        while True:
            if (ends > ceilings).any():
                raise Unstable
            if int((ends - self._starts).sum()) > rows_max:
                raise TooLarge
            found = []
            for lane in changed:
                offsets, owners = self._by_first[lane]
                place = int(np.searchsorted(offsets, ends[lane], side="left"))
                found.append(owners[passed[lane] : place])
                passed[lane] = max(passed[lane], place)
            spans = self._fresh_spans(found, taken)
            raised = ends.copy()
            np.maximum.at(raised, self._lane[spans], self._ends[spans])
            if (raised == ends).all():
                raised = self._align_above(ends, ceilings)
            changed = np.flatnonzero(raised > ends).tolist()
            if not changed:
                return self._mapping(ends)
            ends = raised

    def smallest(self, stable: Mapping[L, int], rows_max: int) -> dict[L, int]:
        """The consistent ends with the fewest rows, at least one; raises like `above`."""
        found: list[dict[L, int]] = []
        large = False
        for lane, start in zip(self._lanes, self._starts.tolist(), strict=True):
            if stable[lane] <= start:
                continue
            try:
                found.append(self.above({**self._mapping(self._starts), lane: start + 1}, stable, rows_max))
            except TooLarge:
                large = True
            except Unstable:
                pass
        if not found:
            raise TooLarge if large else Unstable
        return min(found, key=lambda ends: sum(ends.values()))

    def find_split(self, ends: Mapping[L, int]) -> list[int]:
        """The transactions that these ends split."""
        there = self._array(ends)[self._lane]
        begun, missed = np.zeros((2, len(self._numbers)), np.bool_)
        begun[self._transaction[self._firsts < there]] = True
        missed[self._transaction[self._ends > there]] = True
        return [int(number) for number in self._numbers[begun & missed]]

    def _fresh_spans(self, found: list[Numbers], seen: npt.NDArray[np.bool_]) -> Numbers:
        """The spans of those of these transactions that were not seen before; marks them as seen."""
        fresh = np.unique(np.concatenate([np.empty(0, np.intp), *found]))
        fresh = fresh[~seen[fresh]]
        seen[fresh] = True
        firsts = self._places[fresh]
        counts = self._places[fresh + 1] - firsts
        return np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

    def _align_below(self, ends: Int64Array, given: Int64Array) -> Int64Array:
        """Ends at which no lane is read beyond the time at which another one of its group stops."""
        lowered = ends.copy()
        for lanes in self._groups.values():
            left = [
                int(reached.times[place])
                for lane, reached in lanes
                if ends[lane] < given[lane]
                and (place := int(np.searchsorted(reached.offsets, ends[lane]))) < len(reached.offsets)
            ]
            if left:
                for lane, reached in lanes:
                    place = int(np.searchsorted(reached.times, min(left), side="right"))
                    if place < len(reached.offsets):
                        lowered[lane] = max(self._starts[lane], min(ends[lane], reached.offsets[place]))
        return lowered

    def _align_above(self, ends: Int64Array, ceilings: Int64Array) -> Int64Array:
        """Ends at which every lane is read up to the time that another one of its group has reached."""
        raised = ends.copy()
        for lanes in self._groups.values():
            places = {lane: int(np.searchsorted(reached.offsets, ends[lane])) for lane, reached in lanes}
            taken = [int(reached.times[places[lane] - 1]) for lane, reached in lanes if places[lane]]
            if taken:
                for lane, reached in lanes:
                    place = int(np.searchsorted(reached.times, max(taken), side="left"))
                    to = reached.offsets[place] if place < len(reached.offsets) else ceilings[lane]
                    raised[lane] = max(ends[lane], to)
        return raised

    def _array(self, offsets: Mapping[L, int]) -> Int64Array:
        return np.array([offsets[lane] for lane in self._lanes], np.int64)

    def _mapping(self, offsets: Int64Array) -> dict[L, int]:
        return dict(zip(self._lanes, offsets.tolist(), strict=True))
