"""RowOrder: by what rows of a table are ordered, read from Spark columns (`F.desc("revenue")`) or from SQL ("revenue DESC").

Each part is a value that is computed natively before the stage (columns order_0, order_1, ...), and a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.stage.frame_columns import scripted
from mainstem.operators.tables.top_engine import OrderPart

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["RowOrder", "read_order"]


@dataclass(frozen=True)
class RowOrder:
    """What was read."""

    parts: tuple[OrderPart, ...]
    # By name (order_0, ...): a Spark column, or SQL where there is no Spark.
    values: dict[str, Any]


def read_order(rows: DataFrame, order: Column | str | Sequence[Column | str], operator: str) -> RowOrder:
    """Read an order over these rows. Raises `Invalid` for what cannot be had."""
    written: list[Any] = list(order) if isinstance(order, (list, tuple)) else [order]
    if not written:
        raise Invalid(
            f"{operator} is given no order",
            detail="It says which rows come first.",
            hint='For example: order=F.desc("revenue").',
        )
    if scripted(rows):
        # A Spark column shows itself as SQL.
        texts = [one if isinstance(one, str) else str(one._jc.toString()) for one in written]
        return _of_texts(texts, rows.schema, operator)
    return _of_columns(rows, written, operator)


def _of_texts(texts: Sequence[str], schema: pa.Schema, operator: str) -> RowOrder:
    parts, values = [], {}
    for place, text in enumerate(texts):
        ordered = _parsed(text, operator)
        for column in ordered.find_all(nodes.Column):
            if column.parts[0].name not in schema.names:
                raise _no_column(column.name, schema.names, operator)
        values[f"order_{place}"] = ordered.this.sql("duckdb")
        falling = bool(ordered.args.get("desc"))
        first = ordered.args.get("nulls_first")
        parts.append(OrderPart(falling, not falling if first is None else bool(first), text))
    return RowOrder(tuple(parts), values)


def _parsed(text: str, operator: str) -> nodes.Ordered:
    try:
        select = sqlglot.parse_one(f"SELECT 1 ORDER BY {text}", dialect="spark")
        [ordered] = select.args["order"].expressions
    except (SqlglotError, ValueError) as error:
        raise Invalid(
            f'{operator} does not understand the order "{text}"',
            detail=str(error).splitlines()[0],
            hint='For example: order="revenue DESC".',
        ) from error
    found: nodes.Ordered = ordered
    return found


def _of_columns(rows: DataFrame, written: Sequence[Any], operator: str) -> RowOrder:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    columns = []
    for one in written:
        if isinstance(one, str):
            ordered = _parsed(one, operator)
            value = F.expr(ordered.this.sql("spark"))
            falling = bool(ordered.args.get("desc"))
            first = ordered.args.get("nulls_first")
            first = not falling if first is None else bool(first)
            names = ("desc" if falling else "asc") + ("_nulls_first" if first else "_nulls_last")
            columns.append(getattr(value, names)())
        else:
            columns.append(one)
    try:
        plan = rows.orderBy(*columns)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        parameters = error.getMessageParameters() or {}
        missing = str(parameters.get("objectName", "")).strip("`")
        if missing:
            raise _no_column(missing, rows.columns, operator) from error
        raise Invalid(f"{operator} does not understand the order", detail=str(error).splitlines()[0]) from error
    while plan.nodeName() != "Sort":
        plan = plan.children().apply(0)
    reader = _NamedExpressions(rows)
    parts, values = [], {}
    for place in range(plan.order().size()):
        found = plan.order().apply(place)
        falling = str(found.direction().sql()) == "DESC"
        parts.append(OrderPart(falling, "FIRST" in str(found.nullOrdering().sql()), str(found.sql())))
        values[f"order_{place}"] = reader.column(found.child())
    return RowOrder(tuple(parts), values)


class _NamedExpressions:
    """Analysed expressions as columns over names, so that they fit the frame of every batch."""

    def __init__(self, rows: DataFrame) -> None:
        self._jvm: Any = rows.sparkSession._jvm

    def column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column

        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(self._named(expression)))

    def _named(self, node: Any) -> Any:
        if node.getClass().getSimpleName() == "AttributeReference":
            quoted = "`" + str(node.name()).replace("`", "``") + "`"
            return self._jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute.quotedString(quoted)
        children = [node.children().apply(index) for index in range(node.children().size())]
        if not children:
            return node
        inner = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq([self._named(child) for child in children])
        return node.withNewChildren(inner)


def _no_column(name: str, names: Sequence[str], operator: str) -> Invalid:
    return Invalid(
        f'{operator} orders rows by "{name}", and they have no such column',
        detail=f"Their columns are: {', '.join(names)}.",
        hint=did_you_mean(name, names) or "Name one of these.",
        column=name,
    )
