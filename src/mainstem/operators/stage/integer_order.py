"""The order of rows by integer columns, and the distinct values of one.

numpy sorts plain integers by vector instructions: 400,000 of them in 4 ms, where `lexsort` of two columns takes 40 to 90
and `unique`, which hashes them, up to 240. So the keys of a row are packed into one integer with the row's number:

    highest bit  | first key | second key | ... | number |  lowest bit

each less its lowest value, in as many bits as it needs. If there are not enough, the last ones are cut off: of a hash the
highest bits nearly always decide. Rows that are not in order then are few, and are sorted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from mainstem.operators.stage.engine import Int64Array

__all__ = ["is_ordered", "order_rows", "search", "sort_distinct"]

Mask = npt.NDArray[np.bool_]

# Fewer rows are sorted by `lexsort`, which then takes less time.
ROWS_MIN = 1_000


def order_rows(*keys: Int64Array) -> Int64Array:
    """The numbers of the rows, sorted by keys, the most significant first; rows with equal keys keep their order.

    >>> order_rows(np.array([2, 1, 2]), np.array([5, 5, 4]))
    array([1, 2, 0])
    """
    count = len(keys[0])
    if count < ROWS_MIN:
        return _lexsort(*keys)
    bits = (count - 1).bit_length()
    packed, rest = _pack(keys, 64 - bits)
    packed <<= np.uint64(bits)
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << bits) - 1)).view(np.int64)
    if rest:
        _order_ties(order, packed >> np.uint64(bits), rest)
    return order


def sort_distinct(values: Int64Array) -> Int64Array:
    """The distinct values, sorted.

    >>> sort_distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(values)
    return ordered if len(ordered) < 2 else ordered[np.r_[True, ordered[1:] != ordered[:-1]]]


def search(ordered: Int64Array, values: Int64Array, side: Literal["left", "right"] = "left") -> Int64Array:
    """As `np.searchsorted`; many values are sorted first, since then each is found near the one before it.

    >>> search(np.array([1, 3]), np.array([2, 0, 3]))
    array([1, 0, 1])
    """
    if len(values) < ROWS_MIN or len(ordered) < ROWS_MIN:
        return np.searchsorted(ordered, values, side=side)
    order = order_rows(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.searchsorted(ordered, values[order], side=side)
    return found


def is_ordered(keys: Sequence[Int64Array], tied: Mask | None = None) -> bool:
    """Whether rows are sorted by keys, the most significant first. With `tied`: compared only with the row before if tied
    with it, which the first row has not.

    >>> is_ordered([np.array([1, 1, 2]), np.array([3, 4, 0])]), is_ordered([np.array([1, 0])])
    (True, False)
    """
    undecided = np.ones(max(0, len(keys[0]) - 1), np.bool_) if tied is None else tied.copy()
    for key in keys:
        if (undecided & (key[1:] < key[:-1])).any():
            return False
        undecided &= key[1:] == key[:-1]
    return True


def _pack(keys: Sequence[Int64Array], bits: int) -> tuple[npt.NDArray[np.uint64], Sequence[Int64Array]]:
    """The keys of each row as one integer of so many bits, and the keys that were cut off."""
    packed = np.zeros(len(keys[0]), np.uint64)
    for place, key in enumerate(keys):
        lowest = int(key.min())
        width = (int(key.max()) - lowest).bit_length()
        # Modulo 2^64, in which the difference fits.
        above = key.astype(np.int64, copy=False).view(np.uint64) - np.uint64(lowest % 2**64)
        if width > bits:
            packed <<= np.uint64(bits)
            packed |= above >> np.uint64(width - bits) if bits else np.uint64(0)
            return packed, keys[place:]
        if width:
            packed <<= np.uint64(width)
            packed |= above
            bits -= width
    return packed, ()


def _order_ties(order: Int64Array, packed: npt.NDArray[np.uint64], keys: Sequence[Int64Array]) -> None:
    """Sort rows that are packed alike by the keys that were cut off; of the first key a part is packed."""
    tied = packed[1:] == packed[:-1]
    places = np.flatnonzero(np.r_[False, tied] | np.r_[tied, False])
    rows, runs = order[places], np.cumsum(np.r_[False, ~tied])[places]
    tied = runs[1:] == runs[:-1]
    ordered = keys[0][rows]
    if not (ordered[1:] == ordered[:-1])[tied].all():
        order[places] = rows[_lexsort(runs, *(key[rows] for key in keys))]
    elif len(keys) > 1 and not is_ordered([key[rows] for key in keys[1:]], tied):
        # Rows with the same part have the same key, so that their run stands for it.
        order[places] = rows[order_rows(runs, *(key[rows] for key in keys[1:]))]


def _lexsort(*keys: Int64Array) -> Int64Array:
    return np.lexsort(keys[::-1])
