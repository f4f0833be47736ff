"""Columns of Arrow tables as engines want them: numbers without nulls, times in microseconds, rows in the order of the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.engine import Int64Array

__all__ = ["in_log_order", "microseconds", "numbers", "whole"]


def in_log_order(rows: pa.Table) -> pa.Table:
    """The rows by partition and offset; those of several topics always in the same order."""
    order = np.lexsort([numbers(rows, name) for name in ("tie", "offset", "partition")])
    return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))


def numbers(rows: pa.Table, name: str) -> Int64Array:
    """A column of numbers without nulls."""
    return np.asarray(whole(rows.column(name))).astype(np.int64, copy=False)


def microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Times as numbers, NO_TIME where there is none."""
    found = whole(column)
    if pa.types.is_timestamp(found.type):
        found = found.cast(pa.timestamp("us", found.type.tz)).cast(pa.int64())
    return pc.fill_null(found, NO_TIME)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array: a column may be in many chunks, and one without rows in none."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return pa.array([], column.type) if combined.num_chunks == 0 else combined.chunk(0)
    return combined
