"""Numbering: rows identified by several integers get one number, 0, 1, 2 and so on; and functions of rows ordered by it.

All over numpy, without a loop over rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, Int64Array
from mainstem.operators.stage.integer_order import order_rows, sort_distinct

__all__ = [
    "Mask",
    "differ",
    "highest",
    "last_of_each",
    "later",
    "lowest",
    "number_rows",
    "number_values",
    "numbers",
    "ordinals",
    "running_max",
    "whole_column",
]

Mask = npt.NDArray[np.bool_]


def whole_column(table: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def numbers(table: pa.Table, name: str, absent: int = 0) -> Int64Array:
    """A column of integers, with `absent` for nulls."""
    column = whole_column(table, name)
    if column.null_count:
        column = column.fill_null(absent)
    return np.asarray(column).astype(np.int64, copy=False)


def number_rows(*keys: Int64Array) -> tuple[Int64Array, Int64Array]:
    """A number for each row, equal if all keys are equal; and the first row of each number.

    Numbers are in the order of the keys.

    >>> number_rows(np.array([7, 5, 7]), np.array([1, 1, 1]))
    (array([1, 0, 1]), array([1, 0]))
    """
    count = len(keys[0])
    ids = np.empty(count, np.int64)
    if not count:
        return ids, ids
    order = order_rows(*keys)
    begins = np.zeros(count, np.bool_)
    begins[0] = True
    for key in keys:
        ordered = key[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    ids[order] = np.cumsum(begins) - 1
    return ids, order[begins]


def number_values(*columns: Int64Array | pa.Array) -> tuple[Int64Array, Int64Array]:
    """As `number_rows`, for values of any type that Arrow can encode, in any order of the numbers: without a sort.

    >>> ids, firsts = number_values(pa.array(["b", None, "b"]), np.array([1, 1, 1]))
    >>> bool(ids[0] == ids[2] != ids[1]), firsts[ids].tolist()
    (True, [0, 1, 0])
    """
    if not len(columns[0]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    codes, size = _codes(columns[0])
    for column in columns[1:]:
        more, sizes = _codes(column)
        if size * sizes >= 2**62:
            codes, size = _encode(pa.array(codes))
        codes, size = codes * sizes + more, size * sizes
    if size <= TABLE_MAX * len(codes):
        there = np.zeros(size, np.bool_)
        there[codes] = True
        ids = (np.cumsum(there) - 1)[codes]
        size = int(there.sum())
    else:
        ids, size = _encode(pa.array(codes))
    firsts = np.empty(size, np.int64)
    # In reverse, so that the first row of a number overwrites the others.
    firsts[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    return ids, firsts


# A table of all possible codes is faster than hashing if it has at most so many entries for each row.
TABLE_MAX = 8


def _codes(column: Int64Array | pa.Array) -> tuple[Int64Array, int]:
    """A number from 0 on for each distinct value, and a bound of the numbers."""
    if isinstance(column, pa.Array):
        if column.null_count or not pa.types.is_integer(column.type):
            return _encode(column)
        column = np.asarray(column).astype(np.int64, copy=False)
    low, high = int(column.min()), int(column.max())
    return (column - low, high - low + 1) if high - low < 2**31 else _encode(pa.array(column))


def _encode(column: pa.Array) -> tuple[Int64Array, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)


def highest(ids: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """The highest value of each number."""
    found = np.full(count, -NEVER, np.int64)
    np.maximum.at(found, ids, values)
    return found


def lowest(ids: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """The lowest value of each number."""
    found = np.full(count, NEVER, np.int64)
    np.minimum.at(found, ids, values)
    return found


def ordinals(ids: Int64Array) -> Int64Array:
    """For each row how many earlier rows have the same number; equal numbers are adjacent.

    >>> ordinals(np.array([3, 3, 3, 8]))
    array([0, 1, 2, 0])
    """
    places = np.arange(len(ids), dtype=np.int64)
    if not len(ids):
        return places
    begins = np.r_[True, ids[1:] != ids[:-1]]
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def last_of_each(ids: Int64Array) -> Mask:
    """Whether each row is the last of its number; equal numbers are adjacent."""
    return np.r_[ids[1:] != ids[:-1], True] if len(ids) else np.zeros(0, np.bool_)


def running_max(ids: Int64Array, values: Int64Array) -> Int64Array:
    """The running maximum of values within each number; `ids` is sorted.

    >>> running_max(np.array([0, 0, 1]), np.array([5, 3, 1]))
    array([5, 5, 1])
    """
    if not len(values):
        return values
    lowest, highest_id = int(values.min()), int(ids.max())
    width = int(values.max()) - lowest + 1
    if width * (highest_id + 1) < 2**62:
        shift = ids * np.int64(width) - np.int64(lowest)
        return np.asarray(np.maximum.accumulate(values + shift) - shift, np.int64)
    # Number and value together do not fit into 64 bits: use ranks of the values.
    ranked = sort_distinct(values)
    ranks = np.searchsorted(ranked, values)
    highest = np.maximum.accumulate(ids * len(ranked) + ranks)
    return np.asarray(ranked[highest - ids * len(ranked)], np.int64)


def later(times: Int64Array, by: int) -> Int64Array:
    """Times plus a span, at most NEVER - 1."""
    return np.where(times > NEVER - 1 - by, np.int64(NEVER - 1), times + np.int64(by))


def differ(left: pa.Table, right: pa.Table) -> Mask:
    """Which rows differ in a column; null equals null."""
    found = np.zeros(left.num_rows, np.bool_)
    for name in left.column_names:
        one, other = whole_column(left, name), whole_column(right, name)
        if pa.types.is_integer(one.type) or pa.types.is_floating(one.type):
            absent = np.asarray(one.is_null()) != np.asarray(other.is_null())
            ones, others = np.asarray(one.fill_null(0)), np.asarray(other.fill_null(0))
            same = ones == others
            if pa.types.is_floating(one.type):
                same |= np.isnan(ones) & np.isnan(others)
            found |= absent | ~same
        else:
            found |= np.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], np.bool_)
    return found
