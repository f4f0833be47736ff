"""top: the first rows of each group of a changing table, in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.stage.frame_columns import (
    Shown,
    Value,
    add_columns,
    by_names,
    check_record,
    columns_of,
    quote_name,
    transform_with,
)
from mainstem.operators.stage.stage import Parameter, StageSpec, add_stage, remember
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, row_columns, show_changes
from mainstem.operators.tables.top_engine import OrderPart, TopEngine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["RowOrder", "missing_order_column", "parse_order", "read_order", "top"]


def top(
    changes: DataFrame,
    count: int,
    *,
    by: str | Sequence[str] = (),
    order: Column | str | Sequence[Column | str],
    name: str | None = None,
) -> DataFrame:
    """The first `count` rows of each group of a changing table.

    `by`: the columns of the group; without it all rows are one group. `order`: as for Spark's `orderBy`, or as SQL
    ("revenue DESC"). Rows with equal order are ordered by their columns from left to right. The result has no rank, which
    would change for every row below a new one; compute it when you read.

    The state has all rows of a group, and is read when the group changes: any row may become one of the first again.

    >>> from mainstem.testing import TestStream
    >>> sales = TestStream("store STRING, revenue INT").rows([{"store": "Bonn", "revenue": 5}, {"store": "Ulm", "revenue": 7}])
    >>> best = sales.rows([{"store": "Jena", "revenue": 6}]).run(lambda rows: top(rows, 2, order="revenue DESC"))
    >>> best.changes[2:]
    [('delete', {'store': 'Bonn', 'revenue': 5}), ('insert', {'store': 'Jena', 'revenue': 6})]
    """
    if not isinstance(count, int) or count < 1:
        raise Invalid(
            f"count of top is {count}", detail="It is the number of rows for each group.", hint="Give 1 or more."
        )
    spec, columns, values = remember("top", lambda: _plan(changes, count, by, order))
    ordered = transform_with(changes, values, lambda frame, ordering: frame.withColumns(dict(ordering)), add_columns)
    return show_changes(add_stage(ordered, spec, name=name), columns)


def _plan(
    rows: DataFrame, count: int, by: str | Sequence[str], order: Column | str | Sequence[Column | str]
) -> tuple[StageSpec, list[Shown], dict[str, Value]]:
    schema = columns_of(rows)
    names = by_names(by, schema, "top")
    check_record(schema, "top")
    fields = row_columns(schema)
    check_hashable(fields, "top")
    written: list[Any] = list(order) if isinstance(order, (list, tuple)) else [order]
    if not written:
        raise Invalid(
            "top has no order",
            detail="The order defines which rows come first.",
            hint='For example: order=F.desc("revenue").',
        )
    found = read_order(rows, written)
    if taken := sorted(set(found.values) & set(schema.names)):
        raise Invalid(f'the rows already have a column "{taken[0]}"', detail="top adds it.", hint="Rename yours.")
    for part, of in zip(found.parts, found.types, strict=True):
        if pa.types.is_nested(of):
            raise Invalid(
                f"top cannot order rows by {part.text}",
                detail=f"It is {of}; rows are ordered by numbers, texts and times.",
                hint="Name columns of such types.",
            )
    row = tuple(field.name for field in fields)
    wide = pa.schema([*schema, *map(pa.field, found.values, found.types)])
    changed = ChangedRows(wide, names, hashed=(row,), kept=tuple(found.values), row=row)
    engine = TopEngine(count, changed.row_type, found.types, found.parts)
    definition: dict[str, Any] = {"top": count, "by": list(names), "order": [part.text for part in found.parts]}
    parameters: dict[str, Parameter] = {"count": count, "by": definition["by"], "order": definition["order"]}
    spec = StageSpec(
        "top", engine, changed.native, changed.arrow, bounded_by="the rows of the table", definition=definition,
        parameters=parameters, packed=changed.input_schema if changed.packable else None,
        lineage={
            "by": list(names), "row": list(row), "count": count,
            "order": [{"column": at, "descending": it.descending, "nulls_first": it.nulls_first} for at, it in zip(found.values, found.parts, strict=True)],
        },
    )  # fmt: skip
    return spec, [Shown(f"row.{field.name}", field) for field in fields], found.values


# RowOrder: the order of rows, parsed from Spark columns (`F.desc("revenue")`) or from SQL ("revenue DESC").
#
# Each part is a value that is computed natively before the stage (columns order_0, order_1, ...), and a direction.


@dataclass(frozen=True)
class RowOrder:
    """A parsed order."""

    parts: tuple[OrderPart, ...]
    # By name (order_0, ...).
    values: dict[str, Value]
    types: tuple[pa.DataType, ...]


def parse_order(text: str) -> tuple[nodes.Expression, OrderPart]:
    """The expression of one part of an order, and its direction."""
    try:
        select = sqlglot.parse_one(f"SELECT 1 ORDER BY {text}", dialect="spark")
        [ordered] = select.args["order"].expressions
    except (SqlglotError, ValueError) as error:
        raise Invalid(
            f'top cannot parse the order "{text}"',
            detail=str(error).splitlines()[0],
            hint='For example: order="revenue DESC".',
        ) from error
    falling, first = bool(ordered.args.get("desc")), ordered.args.get("nulls_first")
    return ordered.this, OrderPart(falling, not falling if first is None else bool(first), text)


@singledispatch
def read_order(rows: DataFrame, order: Sequence[Column | str]) -> RowOrder:
    """Parse an order over these rows. Raises `Invalid` for what is not supported."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    columns = []
    for one in order:
        if isinstance(one, str):
            value, part = parse_order(one)
            names = ("desc" if part.descending else "asc") + ("_nulls_first" if part.nulls_first else "_nulls_last")
            columns.append(getattr(F.expr(value.sql("spark")), names)())
        else:
            columns.append(one)
    try:
        plan = rows.orderBy(*columns)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        parameters = error.getMessageParameters() or {}
        missing = str(parameters.get("objectName", "")).strip("`")
        if missing:
            raise missing_order_column(missing, rows.columns) from error
        raise Invalid("top cannot parse the order", detail=str(error).splitlines()[0]) from error
    while plan.nodeName() != "Sort":
        plan = plan.children().apply(0)
    reader = _NamedExpressions(rows)
    parts: list[OrderPart] = []
    values: dict[str, Column] = {}
    for place in range(plan.order().size()):
        found = plan.order().apply(place)
        falling = str(found.direction().sql()) == "DESC"
        parts.append(OrderPart(falling, "FIRST" in str(found.nullOrdering().sql()), str(found.sql())))
        values[f"order_{place}"] = reader.column(found.child())
    types = columns_of(rows.select(*(value.alias(name) for name, value in values.items()))).types
    return RowOrder(tuple(parts), dict(values), tuple(types))


class _NamedExpressions:
    """Analysed expressions as columns over names, so that they fit the frame of every batch."""

    def __init__(self, rows: DataFrame) -> None:
        self._jvm: Any = rows.sparkSession._jvm

    def column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column

        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(self._refer_by_name(expression)))

    def _refer_by_name(self, node: Any) -> Any:
        if node.getClass().getSimpleName() == "AttributeReference":
            name = quote_name(str(node.name()))
            return self._jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute.quotedString(name)
        children = [node.children().apply(index) for index in range(node.children().size())]
        if not children:
            return node
        inner = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(
            [self._refer_by_name(child) for child in children]
        )
        return node.withNewChildren(inner)


def missing_order_column(name: str, names: Sequence[str]) -> Invalid:
    """The error for an order by a column that the rows lack."""
    return Invalid(
        f'top orders rows by "{name}", which they lack',
        detail=f"Their columns are: {', '.join(names)}.",
        hint=did_you_mean(name, names) or "Name one of these.",
        column=name,
    )
