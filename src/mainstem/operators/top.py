"""top: the first rows of each group of a changing table, in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.aggregates.aggregate_text import computed
from mainstem.operators.stage.frame_columns import Shown, by_names, check_record, columns_of, scripted
from mainstem.operators.stage.stage import Parameter, StageSpec, remembered, staged
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, row_columns, shown_changes
from mainstem.operators.tables.top_engine import OrderPart, TopEngine

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
    plan = remembered("top", lambda: _planned(changes, count, by, order))
    return shown_changes(staged(plan.narrowed(changes), plan.spec, name=name), plan.columns)


class _Plan:
    """A stage, and what is computed before it."""

    def __init__(self, spec: StageSpec, columns: list[Shown], values: dict[str, Any], schema: pa.Schema) -> None:
        self.spec = spec
        self.columns = columns
        self.values = values
        self.schema = schema

    def narrowed(self, rows: Any) -> Any:
        """The rows with the columns that they are ordered by."""
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
        raise Invalid(f'the rows already have a column "{taken[0]}"', detail="top adds it.", hint="Rename yours.")
    wide = _wide_schema(rows, schema, found.values)
    types = tuple(wide.field(name).type for name in found.values)
    for part, of in zip(found.parts, types, strict=True):
        if pa.types.is_nested(of):
            raise Invalid(
                f"top cannot order rows by {part.text}",
                detail=f"It is {of}; rows are ordered by numbers, texts and times.",
                hint="Name columns of such types.",
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


# RowOrder: by what rows of a table are ordered, read from Spark columns (`F.desc("revenue")`) or from SQL ("revenue DESC").
#
# Each part is a value that is computed natively before the stage (columns order_0, order_1, ...), and a direction.


@dataclass(frozen=True)
class RowOrder:
    """What was read."""

    parts: tuple[OrderPart, ...]
    # By name (order_0, ...): a Spark column, or SQL where there is no Spark.
    values: dict[str, Any]


def read_order(rows: DataFrame, order: Column | str | Sequence[Column | str], operator: str) -> RowOrder:
    """Parse an order over these rows. Raises `Invalid` for what is not supported."""
    written: list[Any] = list(order) if isinstance(order, (list, tuple)) else [order]
    if not written:
        raise Invalid(
            f"{operator} has no order",
            detail="The order defines which rows come first.",
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
            f'{operator} cannot parse the order "{text}"',
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
        raise Invalid(f"{operator} cannot parse the order", detail=str(error).splitlines()[0]) from error
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
        f'{operator} orders rows by "{name}", which they lack',
        detail=f"Their columns are: {', '.join(names)}.",
        hint=did_you_mean(name, names) or "Name one of these.",
        column=name,
    )
