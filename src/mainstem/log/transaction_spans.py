"""TransactionSpans: where transactions wrote in one partition.

Of each transaction its number, the offset of its first record and the offset behind its last one. Between the two there may
be records of others. In the metadata of a sealed file they are one text: base 64 of the zlib-compressed differences.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mainstem.log.steps import Int64Array

__all__ = ["NO_SPANS", "TransactionSpans"]


class TransactionSpans(NamedTuple):
    """Three columns of the same length, in no order. A transaction may be named twice, with the same offsets."""

    numbers: Int64Array
    firsts: Int64Array
    ends: Int64Array

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> TransactionSpans:
        """From number, first offset and offset behind the last record of each.

        >>> spans = TransactionSpans.of([(7, 100, 102), (9, 101, 140)])
        >>> TransactionSpans.from_text(spans.to_text()).rows() == spans.rows()
        True
        """
        table = np.array(list(rows), np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def joined(cls, parts: Sequence[TransactionSpans]) -> TransactionSpans:
        """One after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else NO_SPANS

    @classmethod
    def together(cls, parts: Iterable[TransactionSpans]) -> TransactionSpans:
        """Those of several files, each transaction once: one that wrote into two of them is named in both."""
        rows = np.concatenate([np.empty((0, 3), np.int64), *(np.stack(part, axis=1) for part in parts)])
        rows = np.unique(rows, axis=0)
        return cls(rows[:, 0], rows[:, 1], rows[:, 2])

    def rows(self) -> list[tuple[int, int, int]]:
        return list(zip(self.numbers.tolist(), self.firsts.tolist(), self.ends.tolist(), strict=True))

    def between(self, start: int, end: int) -> TransactionSpans:
        """Those that have a record from `start` on and one before `end`."""
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
