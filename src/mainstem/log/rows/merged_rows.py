"""Merges a batch of rows by key: one upsert or delete per key, and the rejected rows.

Of several rows with one key the latest counts: the last by (partition, offset) where rows have a `record`, else the last
one given. A row whose `record.change` is "delete" deletes its key. Whole columns at a time; the result is sorted by key,
because a database then walks its tree once from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.errors import InvalidRows
from mainstem.log.rows.arrow_rows import convert
from mainstem.log.rows.column_types import is_nested
from mainstem.log.rows.nested_json import to_json
from mainstem.log.rows.readable_values import unreadable_rows, unreadable_value

__all__ = ["MergedColumns", "Rejection", "fit_rows", "merge_columns", "normal_key"]


@dataclass(frozen=True)
class Rejection:
    """A rejected row: its number in the batch, from 0, and the reason."""

    row: int
    reason: str


@dataclass(frozen=True)
class MergedColumns:
    """Arrow columns: rows to upsert, keys to delete."""

    upserts: list[pa.Array]
    deletes: list[pa.Array]
    rejections: tuple[Rejection, ...]

    @property
    def rows(self) -> int:
        """The number of keys in the batch."""
        return len(self.upserts[0]) + len(self.deletes[0])


# Checks a column with its type: the rows that a store cannot hold, and why.
Unfit = Callable[[pa.Array, pa.Field], Mapping[int, str]]
# Checks the columns of the upserts and of the deletes: the upserts that a store refuses, and why.
Refused = Callable[[list[pa.Array], list[pa.Array]], Mapping[int, str]]


def merge_columns(
    rows: pa.Table,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    name: str,
    unfit: Unfit | None = None,
    refused: Refused | None = None,
) -> MergedColumns:
    """The rows as a keyed table with this schema takes them; `unfit` finds rows that the store cannot hold, by column, and
    `refused` those that it cannot hold as a whole. Of a key whose latest row is rejected the one before counts.

    >>> schema = pa.schema({"store": pa.string(), "revenue": pa.int64()})
    >>> rows = pa.table({"store": ["b", "a", "b", None], "revenue": [1, 2, 3, 4]})
    >>> merged = merge_columns(rows, schema, ["store"], name="revenue")
    >>> [column.to_pylist() for column in merged.upserts], merged.rejections
    ([['a', 'b'], [2, 3]], (Rejection(row=3, reason='column "store" is null, and is in the key'),))
    """
    columns, reasons = _fitted(rows, schema, name, unfit)
    for column in key:
        columns[column] = normal_key(columns[column])
        if columns[column].null_count:
            for row in np.flatnonzero(columns[column].is_null().to_numpy(zero_copy_only=False)).tolist():
                reasons.setdefault(row, f'column "{column}" is null, and is in the key')
    record = _one_array(rows.column("record")) if "record" in rows.schema.names else None
    sortable = [_sortable(columns[part]) for part in key]
    while True:
        chosen, deleted = _latest(sortable, record, rows.num_rows, list(reasons))
        kept, gone = chosen[~deleted], chosen[deleted]
        upserts = [_take(columns[field.name], kept) for field in schema]
        deletes = [_take(columns[part], gone) for part in key]
        found = {} if refused is None else refused(upserts, deletes)
        if not found:
            return MergedColumns(upserts, deletes, tuple(Rejection(row, reasons[row]) for row in sorted(reasons)))
        reasons |= {int(kept[place]): reason for place, reason in found.items()}


def fit_rows(
    rows: pa.Table, schema: pa.Schema, *, name: str, unfit: Unfit | None = None
) -> tuple[list[pa.Array], tuple[Rejection, ...]]:
    """The columns of all rows that fit, for a table without a key, and the rejected ones."""
    columns, reasons = _fitted(rows, schema, name, unfit)
    kept = np.setdiff1d(np.arange(rows.num_rows, dtype=np.int64), np.fromiter(reasons, np.int64, len(reasons)))
    taken = [_take(columns[field.name], kept) if reasons else columns[field.name] for field in schema]
    return taken, tuple(Rejection(row, reasons[row]) for row in sorted(reasons))


def _fitted(
    rows: pa.Table, schema: pa.Schema, name: str, unfit: Unfit | None
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The columns in their types, and why rows do not fit."""
    reasons: dict[int, str] = {}
    columns = {}
    for field in schema:
        given = _one_array(rows.column(field.name))
        columns[field.name] = _readable(_fit(given, field.type, field.name, name, reasons), field.name, reasons)
        for row, reason in ({} if unfit is None else unfit(columns[field.name], field)).items():
            reasons.setdefault(row, reason)
    return columns, reasons


def normal_key(column: pa.Array) -> pa.Array:
    """A column of the key with one form for each value: minus zero becomes zero, which it equals."""
    return pc.add(column, pa.scalar(0.0, column.type)) if kinds.is_floating(column.type) else column


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fit(array: pa.Array, data_type: pa.DataType, path: str, name: str, reasons: dict[int, str]) -> pa.Array:
    """The column in its type; a value that does not fit becomes null, and its row gets a reason."""
    try:
        return convert(array, data_type, path=path, topic=name)
    except InvalidRows:
        # Rare, so converting value by value is acceptable.
        pieces = []
        for row in range(len(array)):
            try:
                pieces.append(convert(array.slice(row, 1), data_type, path=path, topic=name))
            except InvalidRows as error:
                reasons.setdefault(row, error.summary.partition(": ")[2])
                pieces.append(pa.nulls(1, data_type))
        return pa.concat_arrays(pieces)


def _readable(array: pa.Array, name: str, reasons: dict[int, str]) -> pa.Array:
    """The column with values that some readers cannot represent replaced by null, each with its reason."""
    rows = unreadable_rows(array)
    if not rows:
        return array
    for row in rows:
        found = unreadable_value(pa.record_batch([array.take([row])], [name]))
        assert found is not None
        reasons.setdefault(row, f'column "{found.path}" cannot be read: {found.reason}')
    unread = np.zeros(len(array), bool)
    unread[rows] = True
    return pc.if_else(pa.array(unread), pa.scalar(None, array.type), array)


def _sortable(column: pa.Array) -> pa.Array:
    """A column that can be sorted and grouped, with the same equality."""
    return to_json(column) if is_nested(column.type) else column


def _latest(
    key: list[pa.Array], record: pa.StructArray | None, count: int, rejected: list[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The latest row of each key, sorted by key, and which of them are deletes."""
    rank = np.arange(count, dtype=np.int64)
    deletes = np.zeros(count, dtype=np.bool_)
    if record is not None:
        fields = dict(zip((field.name for field in record.type), record.flatten(), strict=True))
        if "change" in fields:
            change = pc.fill_null(pc.equal(fields["change"], "delete"), fill_value=False)
            deletes = change.to_numpy(zero_copy_only=False)
        if {"partition", "offset"} <= fields.keys():
            # Rows without partition and offset come first, in their given order.
            partition, offset = (pc.fill_null(fields[name], -1).to_numpy() for name in ("partition", "offset"))
            rank[np.lexsort((offset, partition))] = np.arange(count, dtype=np.int64)
    by_rank = np.empty(count, dtype=np.int64)
    by_rank[rank] = np.arange(count, dtype=np.int64)
    names = [f"key{number}" for number in range(len(key))]
    table = pa.table([*key, pa.array(rank)], names=[*names, "rank"])
    if rejected:
        fit = np.ones(count, dtype=np.bool_)
        fit[rejected] = False
        table = table.filter(pa.array(fit))
    # One thread: a batch is small, and Spark needs the others.
    latest = table.group_by(names, use_threads=False).aggregate([("rank", "max")])
    latest = latest.sort_by([(name, "ascending") for name in names])
    chosen = by_rank[latest.column("rank_max").to_numpy()]
    return chosen, deletes[chosen]


def _take(column: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    return column.take(pa.array(rows, pa.int64()))
