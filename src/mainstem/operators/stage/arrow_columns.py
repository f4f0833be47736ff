"""Columns of Arrow tables for engines: integers without nulls, times in microseconds, rows in log order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.stage.integer_order import is_ordered, order_rows

__all__ = ["in_log_order", "in_order_of", "microseconds", "numbers", "same_values", "whole"]


def in_log_order(rows: pa.Table) -> pa.Table:
    """The rows sorted by partition and offset; `tie` orders those of several topics."""
    return in_order_of(rows, ("partition", "offset", "tie"))


def in_order_of(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows sorted by integer columns, the most significant first. Cheap if they are sorted already."""
    columns = [numbers(rows, name) for name in names]
    return rows if is_ordered(columns) else rows.take(pa.array(order_rows(*columns)))


def numbers(rows: pa.Table, name: str) -> Int64Array:
    """A column of integers without nulls."""
    return np.asarray(whole(rows.column(name))).astype(np.int64, copy=False)


def microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Times in microseconds, NO_TIME for null."""
    found = whole(column)
    if pa.types.is_timestamp(found.type):
        found = found.cast(pa.timestamp("us", found.type.tz)).cast(pa.int64())
    return pc.fill_null(found, NO_TIME)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array: it may have many chunks, or none."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return pa.array([], column.type) if combined.num_chunks == 0 else combined.chunk(0)
    return combined


def same_values(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two arrays of one type have the same value: null is null, NaN is NaN, and -0.0 is 0.0.

    >>> same_values(pa.array([1.0, None, float("nan"), 2.0]), pa.array([1.0, None, float("nan"), None])).tolist()
    [True, True, True, False]
    """
    there, also = np.asarray(left.is_valid()), np.asarray(right.is_valid())
    both = there & also
    if pa.types.is_struct(left.type):
        same = np.ones(len(left), np.bool_)
        for field in range(left.type.num_fields):
            same &= same_values(left.field(field), right.field(field))
    elif pa.types.is_nested(left.type):
        same = _same_lists(left, right, both)
    else:
        found = pc.equal(left, right)
        if pa.types.is_floating(left.type):
            found = pc.or_(found, pc.and_(pc.is_nan(left), pc.is_nan(right)))
        same = np.asarray(pc.fill_null(found, False))
    found_same: npt.NDArray[np.bool_] = (both & same) | (~there & ~also)
    return found_same


def _same_lists(left: pa.Array, right: pa.Array, both: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where two arrays have the same lists, if `both` have one there. Arrow compares none."""
    counts, others = (np.asarray(pc.fill_null(pc.list_value_length(lists), -1)) for lists in (left, right))
    rows = np.flatnonzero(both & (counts == others))
    values = [lists.take(pa.array(rows)).flatten() for lists in (left, right)]
    owners = np.repeat(rows, counts[rows])
    same = np.zeros(len(left), np.bool_)
    same[rows] = True
    same[owners[~same_values(*values)]] = False
    return same
