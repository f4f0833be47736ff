"""top: the first rows of each group of a changing table, in an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.operators.aggregates.aggregate_text import computed
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of, scripted
from mainstem.operators.stage.stage import Parameter, StageSpec, remembered, staged
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, row_columns, shown_changes
from mainstem.operators.tables.row_order import read_order
from mainstem.operators.tables.top_engine import TopEngine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["top"]


def top(
    changes: DataFrame,
    count: int,
    *,
    by: str | Sequence[str] = (),
    order: Column | str | Sequence[Column | str],
    name: str | None = None,
) -> DataFrame:
    """The first `count` rows of each group of a changing table.

    `by`: the group; without it all rows are one. `order`: as for Spark's `orderBy`, or as SQL ("revenue DESC"). Rows that
    are equal in that are ordered by their columns from left to right. The result has the columns of the rows: a rank would
    change for every row below one that comes in; count when you read.

    All rows of a group are kept, and read when the group changes: any may come to stand among the first again.

    >>> from mainstem.testing import TestStream
    >>> sales = TestStream("store STRING, revenue INT").rows([{"store": "Bonn", "revenue": 5}, {"store": "Ulm", "revenue": 7}])
    >>> best = sales.rows([{"store": "Jena", "revenue": 6}]).run(lambda rows: top(rows, 2, order="revenue DESC"))
    >>> best.changes[2:]
    [('delete', {'store': 'Bonn', 'revenue': 5}), ('insert', {'store': 'Jena', 'revenue': 6})]
    """
    if not isinstance(count, int) or count < 1:
        raise Invalid(
            f"top is asked for {count} rows", detail="It has the first rows of each group.", hint="Ask for at least 1."
        )
    plan = remembered("top", lambda: _planned(changes, count, by, order))
    return shown_changes(staged(plan.narrowed(changes), plan.spec, name=name), plan.columns)


class _Plan:
    """A stage with what is computed before it."""

    def __init__(self, spec: StageSpec, columns: list[Shown], values: dict[str, Any], schema: pa.Schema) -> None:
        self.spec = spec
        self.columns = columns
        self.values = values
        self.schema = schema

    def narrowed(self, rows: Any) -> Any:
        """The rows with what they are ordered by."""
        if not scripted(rows):
            return rows.withColumns(self.values)

        def added(table: pa.Table) -> pa.Table:
            found = computed(self.values, table)
            return pa.table({**{at: table.column(at) for at in table.column_names}, **_columns(found)})

        return rows.mapped(added, self.schema)


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table.column(name) for name in table.column_names}


def _planned(rows: DataFrame, count: int, by: str | Sequence[str], order: Any) -> _Plan:
    schema = columns_of(rows)
    names = by_names(by, schema, "top")
    check_record(schema, "top")
    fields = row_columns(schema)
    check_hashable(fields, "top")
    found = read_order(rows, order, "top")
    if taken := sorted(set(found.values) & set(schema.names)):
        raise Invalid(f'top is given a column "{taken[0]}"', detail="It adds such a one.", hint="Rename yours.")
    wide = _wide_schema(rows, schema, found.values)
    types = tuple(wide.field(name).type for name in found.values)
    for part, of in zip(found.parts, types, strict=True):
        if pa.types.is_nested(of):
            raise Invalid(
                f"top cannot order rows by {part.text}",
                detail=f"It is {of}; rows are ordered by numbers, texts and times.",
                hint="Name plain columns.",
            )
    row = tuple(field.name for field in fields)
    changed = ChangedRows(wide, names, hashed=(row,), kept=tuple(found.values), row=row)
    engine = TopEngine(count, changed.row_type, types, found.parts)
    definition: dict[str, Any] = {"top": count, "by": list(names), "order": [part.text for part in found.parts]}
    parameters: dict[str, Parameter] = {"count": count, "by": definition["by"], "order": definition["order"]}
    spec = StageSpec(
        "top", engine, changed.native, changed.arrow, bounded_by="the rows of the table", definition=definition,
        parameters=parameters,
    )  # fmt: skip
    return _Plan(spec, [Shown(f"row.{field.name}", field) for field in fields], found.values, wide)


def _wide_schema(rows: Any, schema: pa.Schema, values: dict[str, Any]) -> pa.Schema:
    if not scripted(rows):
        return columns_of(rows.withColumns(values))
    made = computed(values, schema.empty_table()).schema
    return pa.schema([*schema, *made])
