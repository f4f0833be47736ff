"""Weights: how often a row is in a table, how that changes in a batch, and which changes are emitted.

All over numpy and Arrow, without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, Int64Array, StateTable
from mainstem.operators.stage.integer_order import sort_distinct
from mainstem.operators.windows.numbering import number_rows, numbers

__all__ = [
    "emit_changes",
    "find_groups",
    "identify_rows",
    "places_of",
    "state_rows",
    "sum_weights",
    "value_ranks",
    "weights_of",
    "whole",
]


def weights_of(rows: pa.Table, operator: str) -> Int64Array:
    """The weights of rows. Raises if one is an update."""
    column = whole(rows.column("weight"))
    if column.null_count:
        raise Invalid(
            f"{operator} cannot take an update: it does not have the row that it replaces",
            detail='It takes inserts and deletes (record.change "insert" and "delete").',
            hint="Make a changing table of the rows first: table(rows, key=...).",
        )
    return np.asarray(column).astype(np.int64, copy=False)


def sum_weights(weights: Int64Array, *keys: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For rows identified by keys: the first row of each, and its total weight; those whose weights cancel are left out.

    >>> sum_weights(np.array([1, 1, -1, 1]), np.array([7, 5, 7, 5]))
    (array([1]), array([2]))
    """
    ids, firsts = number_rows(*keys)
    total = np.bincount(ids, weights, len(firsts)).astype(np.int64)
    moved = np.flatnonzero(total)
    return firsts[moved], total[moved]


def places_of(known: pa.Table, groups: Int64Array, items: Int64Array) -> Int64Array:
    """The row numbers of these rows in a table that is sorted by (group, item); -1 if missing."""
    if not known.num_rows:
        return np.full(len(groups), -1, np.int64)
    theirs, wanted = _pairs(numbers(known, "group"), numbers(known, "item")), _pairs(groups, items)
    at = np.minimum(np.searchsorted(theirs, wanted), len(theirs) - 1)
    return np.where(theirs[at] == wanted, at, -1)


def _pairs(groups: Int64Array, items: Int64Array) -> np.ndarray:
    pairs = np.empty(len(groups), dtype=[("group", np.int64), ("item", np.int64)])
    pairs["group"], pairs["item"] = groups, items
    return pairs


def emit_changes(output: pa.Table, weights: Int64Array, order: Sequence[Int64Array]) -> pa.Table:
    """A row for every unit of weight, with its change: deletes first, each in a fixed order."""
    rows = np.lexsort((*reversed(order), weights > 0))
    rows = np.repeat(rows, np.abs(weights[rows]))
    change = np.where(weights[rows] > 0, "insert", "delete")
    taken = output.take(pa.array(rows))
    return taken.append_column("change", pa.array(change, pa.string()))


def state_rows(schema: pa.Schema, columns: dict[str, object]) -> pa.Table:
    """State rows without due times."""
    count = len(columns["group"])  # type: ignore[arg-type]
    never = np.full(count, NEVER, np.int64)
    columns = {"event_due": never, "processing_due": never, **columns}
    arrays = [columns[at.name] for at in schema]
    plain = [pa.array(one) if isinstance(one, np.ndarray) else one for one in arrays]
    return pa.Table.from_arrays(plain, names=schema.names).cast(schema)


def identify_rows(groups: Int64Array, items: Int64Array) -> pa.Table:
    """The group and item of state rows to delete."""
    return pa.Table.from_arrays([pa.array(groups), pa.array(items)], schema=pa.schema(STATE_COLUMNS[:2]))


def find_groups(state: StateTable, groups: Int64Array) -> pa.Table:
    """The state rows of some groups, in one chunk."""
    return state.find(sort_distinct(groups)).combine_chunks()


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array: it may have many chunks, or none."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


# Ranks: integers in the order of values of any type, to sort and compare rows by.


def value_ranks(values: pa.Array | pa.ChunkedArray) -> Int64Array:
    """Ranks of values from 1 on, equal for equal values; 0 for null.

    NaN is the largest number, and -0.0 equals 0.0. Structs are ordered by their fields from left to right; lists and maps get
    a fixed order.

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
        ranks = number_rows(*fields)[0] if fields else np.zeros(len(column), np.int64)
    elif pa.types.is_nested(column.type):
        _, ranks = np.unique(np.array([repr(value) for value in column.to_pylist()]), return_inverse=True)
    else:
        ranks = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense")) - 1
    return np.where(absent, 0, ranks.astype(np.int64) + 1)
