"""Chance as a function: the random number of a row is a hash of seed, stream and row number.

So a row is the same however the rows are cut into batches, and any range of them can be made without those before it.
The hash is splitmix64, whose outputs for consecutive numbers pass the usual tests of randomness.
"""

from __future__ import annotations

import hashlib
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
LETTERS_PER_NUMBER = 8


class Chance:
    """One stream of random numbers, to be asked by row number."""

    def __init__(self, seed: int, stream: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
        self._begin = np.uint64(int.from_bytes(digest, "little"))

    def numbers(self, rows: npt.NDArray[np.int64]) -> Numbers:
        """64 random bits for each row."""
        return _mixed((rows.astype(np.uint64) + self._begin) * np.uint64(GOLDEN))

    def below(self, limit: int | npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A number from 0 to below the limit for each row."""
        return (self.numbers(rows) % np.asarray(limit).astype(np.uint64)).astype(np.int64)

    def shares(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """A number from 0 to below 1 for each row."""
        return cast("npt.NDArray[np.float64]", (self.numbers(rows) >> np.uint64(11)) * 2.0**-53)

    def letters(self, rows: npt.NDArray[np.int64], count: int, *, before: str = "") -> pa.StringArray:
        """So many letters (a multiple of eight) for each row, after the same beginning."""
        words = count // LETTERS_PER_NUMBER
        drawn = self.numbers((rows[:, None] * words + np.arange(words)).ravel())
        # Four bits of each byte choose one of sixteen letters from "a" on.
        drawn = (drawn & np.uint64(0x0F0F0F0F0F0F0F0F)) + np.uint64(0x6161616161616161)
        letters = drawn.view(np.uint8).reshape(len(rows), count)
        beginning = np.frombuffer(before.encode(), dtype=np.uint8)
        text = np.hstack([np.broadcast_to(beginning, (len(rows), len(beginning))), letters]) if before else letters
        ends = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(text.shape[1])
        return pa.StringArray.from_buffers(
            len(rows), pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(text).reshape(-1))
        )


def _mixed(numbers: Numbers) -> Numbers:
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    return numbers
