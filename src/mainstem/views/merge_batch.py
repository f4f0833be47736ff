"""Merges a batch of rows for a view: one upsert or delete per key, and the rejected rows.

Of several rows with one key the latest counts: the last by (partition, offset) where rows have a `record`, else the last
one given. A row whose `record.change` is "delete" deletes its key. Whole columns at a time; the result is sorted by key,
because SQLite then walks its tree once from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.errors import Invalid, InvalidRows, SchemaMismatch, did_you_mean
from mainstem.log.rows.arrow_rows import convert
from mainstem.log.rows.column_types import is_nested
from mainstem.log.rows.readable_values import unreadable_rows, unreadable_value
from mainstem.views.nested_json import to_json
from mainstem.views.sqlite.sqlite_columns import stored_values

__all__ = [
    "MergedBatch",
    "MergedColumns",
    "Rejection",
    "check_columns",
    "check_panes",
    "merge_batch",
    "merge_columns",
    "normal_key",
]


@dataclass(frozen=True)
class Rejection:
    """A rejected row: its number in the batch, from 0, and the reason."""

    row: int
    reason: str


@dataclass(frozen=True)
class MergedBatch:
    """Values in SQLite's form, column by column: rows to upsert, keys to delete."""

    upserts: list[list[Any]]
    deletes: list[list[Any]]
    rejections: tuple[Rejection, ...]

    @property
    def rows(self) -> int:
        """The number of keys in the batch."""
        return len(self.upserts[0]) + len(self.deletes[0])


@dataclass(frozen=True)
class MergedColumns:
    """The same as Arrow columns, for any store: rows to upsert, keys to delete."""

    upserts: list[pa.Array]
    deletes: list[pa.Array]
    rejections: tuple[Rejection, ...]

    @property
    def rows(self) -> int:
        """The number of keys in the batch."""
        return len(self.upserts[0]) + len(self.deletes[0])


# Checks a column with the view's type: the rows that a store cannot hold, and why.
Unfit = Callable[[pa.Array, pa.Field], Mapping[int, str]]


def merge_batch(rows: pa.Table, schema: pa.Schema, key: Sequence[str], *, view: str) -> MergedBatch:
    """The rows as a view with this schema and key takes them.

    >>> schema = pa.schema({"store": pa.string(), "revenue": pa.int64()})
    >>> merged = merge_batch(pa.table({"store": ["b", "a", "b", None], "revenue": [1, 2, 3, 4]}), schema, ["store"], view="v")
    >>> merged.upserts, merged.rejections
    ([['a', 'b'], [2, 3]], (Rejection(row=3, reason='column "store" is null, and is in the key'),))
    """
    merged = merge_columns(rows, schema, key, view=view)
    upserts, deletes = ([stored_values(column) for column in columns] for columns in (merged.upserts, merged.deletes))
    return MergedBatch(upserts, deletes, merged.rejections)


def merge_columns(
    rows: pa.Table, schema: pa.Schema, key: Sequence[str], *, view: str, unfit: Unfit | None = None
) -> MergedColumns:
    """As `merge_batch`, in Arrow; `unfit` finds rows that the store cannot hold."""
    check_columns(rows.schema, schema, view=view)
    reasons: dict[int, str] = {}
    columns = {}
    for field in schema:
        given = _one_array(rows.column(field.name))
        columns[field.name] = _readable(_fit(given, field.type, field.name, view, reasons), field.name, reasons)
        for row, reason in ({} if unfit is None else unfit(columns[field.name], field)).items():
            reasons.setdefault(row, reason)
    for name in key:
        columns[name] = normal_key(columns[name])
        if columns[name].null_count:
            for row in np.flatnonzero(columns[name].is_null().to_numpy(zero_copy_only=False)).tolist():
                reasons.setdefault(row, f'column "{name}" is null, and is in the key')
    record = _one_array(rows.column("record")) if "record" in rows.schema.names else None
    chosen, deleted = _latest([_sortable(columns[name]) for name in key], record, rows.num_rows, list(reasons))
    kept, gone = chosen[~deleted], chosen[deleted]
    return MergedColumns(
        [_take(columns[name], kept) for name in schema.names],
        [_take(columns[name], gone) for name in key],
        tuple(Rejection(row, reasons[row]) for row in sorted(reasons)),
    )


def check_columns(given: pa.Schema, schema: pa.Schema, *, view: str) -> None:
    """Raise unless the rows have exactly the view's columns, besides `record`, each of a convertible type."""
    names = [name for name in given.names if name != "record"]
    for name in names:
        if name not in schema.names:
            raise _mismatch(view, f'has no column "{name}"', schema, name, did_you_mean(name, schema.names))
    for field in schema:
        if field.name not in names:
            raise _mismatch(view, f'has a column "{field.name}", which the rows lack', schema, field.name, "")
        convert(pa.nulls(0, given.field(field.name).type), field.type, path=field.name, topic=view)


def check_panes(given: pa.Schema, key: Sequence[str], *, view: str) -> None:
    """Raise for windows with results="discard", unless `pane` is part of the key."""
    marks = given.field("window").metadata or {} if "window" in given.names else {}
    if marks.get(b"mainstem.results") == b"discard" and "pane" not in key:
        raise Invalid(
            f'view "{view}" would keep only the last pane of each window',
            detail='With results="discard" a pane covers the rows since the previous pane, and each would replace the one before.',
            hint='Use results="accumulate", or make "pane" part of the key, so that each pane is a row.',
        )


def _mismatch(view: str, complaint: str, schema: pa.Schema, column: str, near: str) -> SchemaMismatch:
    rebuild = (
        "If the flow was changed on purpose, build a new version beside the live one: "
        f"mainstem view rebuild {view} --program FILE --apply"
    )
    return SchemaMismatch(
        f'view "{view}" {complaint}',
        detail=f"Its columns are: {', '.join(schema.names)}.",
        hint=f"{near} {rebuild}".strip(),
        column=column,
        view=view,
    )


def normal_key(column: pa.Array) -> pa.Array:
    """A column of the key with one form for each value: minus zero becomes zero, which it equals."""
    return pc.add(column, pa.scalar(0.0, column.type)) if kinds.is_floating(column.type) else column


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fit(array: pa.Array, data_type: pa.DataType, path: str, view: str, reasons: dict[int, str]) -> pa.Array:
    """The column in the view's type; a value that does not fit becomes null, and its row gets a reason."""
    try:
        return convert(array, data_type, path=path, topic=view)
    except InvalidRows:
        # Rare, so converting value by value is acceptable.
        pieces = []
        for row in range(len(array)):
            try:
                pieces.append(convert(array.slice(row, 1), data_type, path=path, topic=view))
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
