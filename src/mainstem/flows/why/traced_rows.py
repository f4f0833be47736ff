"""TracedRows: rows of a flow that know which records they were made of; and the steps of a lineage that look at one row only.

The rows of a node of a lineage (`plan_lineage`) are computed from the records of its sources, in the way that defines them and
not in the fast one: all rows are there at once, and each carries the numbers of its records. What cannot be computed (the
values of aggregates, an expression without a counterpart) is left out: such a column, or field of a struct, is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD
from mainstem.spark.plan.plan_lineage import UNSAID, Tree
from mainstem.spark.plan.row_expression import Expression, condition_mask, value_of

__all__ = [
    "Inexact",
    "TracedRows",
    "follow",
    "freeze",
    "knows",
    "microseconds",
    "record_column",
    "rows_step",
    "structs",
    "union_step",
]

MadeOf = tuple[int, ...]


class Inexact(Exception):
    """It cannot be said which records a row was made of; its text says why."""


@dataclass(frozen=True)
class TracedRows:
    """`made_of`: for each row the numbers of its records. `assumed`: why some of the rows may not be there; empty if all are."""

    table: pa.Table
    made_of: Sequence[MadeOf]
    assumed: str = ""
    # Whether a row may be emitted again with other values, each time with its own watermark.
    repeated: bool = field(default=False, kw_only=True)
    # Whether rows should have watermarks of their own, which the log does not record.
    untimed: bool = field(default=False, kw_only=True)

    @property
    def count(self) -> int:
        return len(self.made_of)

    def knows(self, path: Sequence[str]) -> bool:
        """Whether a column, or a field within it, can be computed."""
        return knows(self.table.schema, path)

    def values(self, name: str) -> list[Any]:
        """A column as Python values."""
        found: list[Any] = self.table.column(name).to_pylist()
        return found

    def keys(self, names: Sequence[str], what: str) -> list[tuple[Any, ...]]:
        """For each row the values of some columns, which can be compared; raises `Inexact` if they are not known."""
        for name in names:
            if not self.knows([name]):
                raise Inexact(f'{what} "{name}", whose values are not recomputed')
        columns = [map(freeze, self.values(name)) for name in names]
        return list(zip(*columns, strict=True)) if names else [()] * self.count

    def certain(self, what: str) -> TracedRows:
        """The same; raises `Inexact` if some of the rows may not be there."""
        if self.assumed:
            raise Inexact(f"{what} takes rows of which it is not known {self.assumed}")
        return self

    def once(self, what: str) -> TracedRows:
        """The same; raises `Inexact` if some of the rows may not be there, or may have been emitted again with other values."""
        if self.repeated:
            raise Inexact(f"{what} takes rows that were emitted more than once")
        return self.certain(what)

    def timed(self, what: str) -> TracedRows:
        """The same for an operator that leaves out late rows; raises `Inexact` if it is not known which were late, or when."""
        if self.untimed:
            raise Inexact(f"{what} leaves out late rows, and this log does not record the watermark of each record")
        return self.once(what)

    def take(self, chosen: Sequence[int], **changes: Any) -> TracedRows:
        places = pa.array(chosen, pa.int64())
        return replace(self, table=self.table.take(places), made_of=[self.made_of[at] for at in chosen], **changes)


def knows(schema: pa.Schema, path: Sequence[str]) -> bool:
    """Whether a schema has a column, or a field within one."""
    if path[0] not in schema.names:
        return False
    of = schema.field(path[0]).type
    for part in path[1:]:
        if not pa.types.is_struct(of) or of.get_field_index(part) < 0:
            return False
        of = of.field(part).type
    return True


def freeze(value: Any) -> Any:
    """A value that can be compared and hashed. NaN equals itself, as in Spark."""
    if isinstance(value, dict):
        return tuple((name, freeze(part)) for name, part in value.items())
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


# One row at a time


def rows_step(tree: Tree, given: TracedRows) -> TracedRows:
    """Filters, then columns."""
    rows, assumed = given, given.assumed
    for condition in tree["where"]:
        if condition[0] == UNSAID or not _computable(condition, rows.table.schema):
            assumed = (
                assumed
                or f"whether they pass the filter {condition[1] if condition[0] == UNSAID else 'on a computed value'}"
            )
            continue
        kept = np.flatnonzero(np.asarray(_mask(condition, rows.table)))
        rows = rows.take(kept.tolist())
    columns: dict[str, Any] = {}
    for name, expression in tree["columns"]:
        if (value := _column(expression, rows.table)) is not None:
            columns[name] = value
    # A table without columns has no number of rows.
    if not columns:
        columns["mainstem_row"] = pa.array(np.arange(rows.count))
    return replace(rows, table=pa.table(columns), assumed=assumed)


def union_step(parts: Sequence[TracedRows]) -> TracedRows:
    """The columns that all parts know."""
    names = [name for name in parts[0].table.column_names if all(name in part.table.column_names for part in parts)]
    tables = [part.table.select(names) for part in parts]
    whole = pa.concat_tables(tables, promote_options="permissive")
    made_of = [one for part in parts for one in part.made_of]
    return TracedRows(
        whole, made_of, next((part.assumed for part in parts if part.assumed), ""),
        repeated=any(part.repeated for part in parts), untimed=any(part.untimed for part in parts),
    )  # fmt: skip


def _batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks()
    batches = whole.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=whole.schema)


def _mask(condition: Expression, table: pa.Table) -> pa.Array:
    try:
        return condition_mask(condition, _batch(table))
    except Invalid as error:
        raise Inexact(f"a condition cannot be computed: {error}") from error


def _column(expression: Expression | None, table: pa.Table) -> Any:
    """The values of an expression; of a struct the fields that can be computed. None if nothing can."""
    if expression is None:
        return None
    if expression[0] == "struct" and not _computable(expression, table.schema):
        parts = {name: _column(part, table) for name, part in expression[1:]}
        found = {name: part for name, part in parts.items() if part is not None}
        return structs(found, table.num_rows) if found else None
    if not _computable(expression, table.schema):
        return None
    try:
        return value_of(expression, _batch(table))
    except Invalid as error:
        raise Inexact(f"a column cannot be computed: {error}") from error


def _computable(expression: Expression, schema: pa.Schema) -> bool:
    if expression[0] == "column":
        return knows(schema, expression[1:])
    if expression[0] == "literal":
        return True
    if expression[0] == "struct":
        return all(_computable(part, schema) for _, part in expression[1:])
    parts = expression[1:2] if expression[0] == "in" else expression[1:]
    return all(_computable(part, schema) for part in parts if isinstance(part, list))


# Columns of stages


def structs(columns: Mapping[str, Any], count: int, present: Sequence[bool] | None = None) -> pa.Array:
    """A struct of columns, null where it is not `present`."""
    arrays = [_whole(column) for column in columns.values()]
    mask = None if present is None else pa.array([not it for it in present], pa.bool_())
    if not arrays:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names=list(columns), mask=mask)


def _whole(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def follow(table: pa.Table, path: Sequence[str]) -> pa.Array:
    """A column, or a field within it."""
    column = _whole(table.column(path[0]))
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def microseconds(table: pa.Table, path: Sequence[str]) -> list[int | None]:
    """A column of times, or of microseconds, as microseconds."""
    column = follow(table, path)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    found: list[int | None] = column.cast(pa.int64()).to_pylist()
    return found


def record_column(owns: Sequence[int]) -> pa.Array:
    """`record` of a stage's output, with its watermarks."""
    count = len(owns)
    nothing = {field.name: pa.nulls(count, field.type) for field in WATERMARKED_RECORD}
    known = [None if own == NO_TIME else own for own in owns]
    columns = {
        **nothing,
        "change": pa.array(["insert"] * count, pa.string()).cast(WATERMARKED_RECORD.field("change").type),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "watermark": pa.array(known, pa.int64()).view(pa.timestamp("us", "UTC")),
    }
    return pa.StructArray.from_arrays(list(columns.values()), fields=list(WATERMARKED_RECORD))
