"""Steps: a partition's records in pieces that are read together, each with its highest time.

With them a reader of several partitions stops all of them at about the same time, however unequal they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Int64Array", "Steps"]

Int64Array = npt.NDArray[np.int64]


class Steps(NamedTuple):
    """The end of each step, its number of records, and its highest event time (without event time: append time)."""

    ends: Int64Array
    rows: Int64Array
    times: Int64Array

    @classmethod
    def of(cls, steps: list[tuple[int, int, int]]) -> Steps:
        table = np.array(steps, np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    def join(self, later: Steps) -> Steps:
        return Steps(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))

    def after(self, offset: int) -> Steps:
        """The steps that end after an offset."""
        first = int(np.searchsorted(self.ends, offset, side="right"))
        return Steps(*(column[first:] for column in self))
