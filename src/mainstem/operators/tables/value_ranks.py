"""Ranks: numbers that stand for values of any type in their order, so that rows are sorted and compared by numbers alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.tables.weights import whole
from mainstem.operators.windows.numbering import numbered

__all__ = ["value_ranks"]


def value_ranks(values: pa.Array | pa.ChunkedArray) -> Int64Array:
    """Numbers from 1 on that rise with the values, equal where values are; 0 where there is none.

    NaN is the largest number, and of the two zeros there is one. Structs are ordered by their fields from left to right;
    lists and maps have no order of their own and get a fixed one.

    >>> value_ranks(pa.array(["b", None, "a", "b"]))
    array([2, 0, 1, 2])
    """
    column = whole(values)
    if not len(column) or pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    absent = np.asarray(column.is_null())
    if pa.types.is_floating(column.type):
        _, ranks = np.unique(np.asarray(column.fill_null(0.0)) + 0.0, return_inverse=True)
    elif pa.types.is_struct(column.type):
        fields = [value_ranks(column.field(place)) for place in range(column.type.num_fields)]
        ranks = numbered(*fields)[0] if fields else np.zeros(len(column), np.int64)
    elif pa.types.is_nested(column.type):
        _, ranks = np.unique(np.array([repr(value) for value in column.to_pylist()]), return_inverse=True)
    else:
        ranks = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense")) - 1
    return np.where(absent, 0, ranks.astype(np.int64) + 1)
