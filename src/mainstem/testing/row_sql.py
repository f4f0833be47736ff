"""Parses aggregates, orders and conditions that are written as SQL, without Spark: "sum(score) / count(*) AS mean", "score DESC",
"op = 'DELETE'".

For scripted rows. DuckDB computes the arguments, and the expressions around the functions; the text is translated to its
dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregate_columns import WrittenAggregates
from mainstem.operators.aggregates.aggregates import no_such_aggregate, not_of_corrections
from mainstem.operators.tables.feed_rows import bad_expression
from mainstem.operators.top import RowOrder, missing_order_column, parse_order

__all__ = ["compute_columns", "read_aggregate_text", "read_order_text", "read_value_text"]

_FUNCTIONS: dict[type[nodes.Expression], str] = {
    nodes.Sum: "sum",
    nodes.Min: "min",
    nodes.Max: "max",
    nodes.Avg: "avg",
    nodes.Stddev: "stddev_samp",
    nodes.StddevSamp: "stddev_samp",
    nodes.StddevPop: "stddev_pop",
    nodes.Variance: "var_samp",
    nodes.VariancePop: "var_pop",
    nodes.ArrayAgg: "collect_list",
    nodes.ArrayUniqueAgg: "collect_set",
    nodes.Median: "median",
    nodes.Mode: "mode",
    nodes.ApproxDistinct: "approx_count_distinct",
    nodes.Quantile: "percentile",
    nodes.ApproxQuantile: "approx_percentile",
    nodes.ApproxTopK: "approx_top_k",
    nodes.LogicalAnd: "min",
    nodes.LogicalOr: "max",
}
_BY_TIME = {nodes.First: "first", nodes.AnyValue: "first", nodes.Last: "last"}
_BY_ORDER = {nodes.ArgMin: "min_by", nodes.ArgMax: "max_by"}
_TRUE = nodes.true()


def read_aggregate_text(
    schema: pa.Schema, texts: Sequence[Any], time: str, taken_back: str | None = None
) -> WrittenAggregates:
    """Parse aggregates over rows of a schema. `time`: SQL of the event time as a number; `taken_back`: SQL that is true for
    rows that retract an earlier one."""
    reader = _Reader(schema, time, taken_back)
    for text in texts:
        reader.take(_sql(text))
    return reader.found


def read_order_text(schema: pa.Schema, texts: Sequence[Any]) -> RowOrder:
    """Parse an order over rows of a schema."""
    parsed = [parse_order(_sql(text)) for text in texts]
    for expression, _ in parsed:
        for column in expression.find_all(nodes.Column):
            if column.parts[0].name not in schema.names:
                raise missing_order_column(column.name, schema.names)
    values = {f"order_{place}": expression.sql("duckdb") for place, (expression, _) in enumerate(parsed)}
    types = compute_columns(values, schema.empty_table()).schema.types
    return RowOrder(tuple(part for _, part in parsed), dict(values), tuple(types))


def read_value_text(schema: pa.Schema, texts: Mapping[str, Any], operator: str) -> dict[str, str]:
    """Expressions of `order_by` and `delete_when` over rows of a schema."""
    found = {}
    for name, text in texts.items():
        try:
            expression = sqlglot.parse_one(_sql(text), dialect="spark")
        except SqlglotError as error:
            raise bad_expression(operator, name, str(error)) from error
        for column in expression.find_all(nodes.Column):
            if column.parts[0].name not in schema.names:
                raise bad_expression(operator, name, "", column.parts[0].name, schema.names)
        found[name] = expression.sql("duckdb")
        try:
            compute_columns({name: found[name]}, schema.empty_table())
        except Exception as error:
            raise bad_expression(operator, name, str(error)) from error
    return found


def _sql(text: Any) -> str:
    """A text, or a Spark column as SQL."""
    return text if isinstance(text, str) else str(text._jc.toString())


def compute_columns(columns: Mapping[str, str], rows: pa.Table) -> pa.Table:
    """SQL expressions over rows, computed by DuckDB; plain column names are taken unchanged."""
    made = {name: sql for name, sql in columns.items() if sql not in rows.column_names}
    found = _by_duckdb(made, rows) if made else rows
    return pa.table({name: found.column(name) if name in made else rows.column(sql) for name, sql in columns.items()})


def _by_duckdb(columns: Mapping[str, str], rows: pa.Table) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", rows)
        chosen = ", ".join(f'{sql} AS "{name.replace(chr(34), chr(34) * 2)}"' for name, sql in columns.items())
        return connection.sql(f"SELECT {chosen} FROM given").to_arrow_table()


class _Reader:
    """Parses aggregates one by one."""

    def __init__(self, schema: pa.Schema, time: str, taken_back: str | None) -> None:
        self.found = WrittenAggregates()
        self._schema = schema
        self._time = time
        self._taken_back = taken_back
        # A function that is written twice is computed once.
        self._known: dict[str, int] = {}

    def take(self, text: str) -> None:
        try:
            projection = sqlglot.parse_one(f"SELECT {text}", dialect="spark").expressions[0]
        except SqlglotError as error:
            raise Invalid(
                f'the aggregate "{text}" cannot be parsed',
                detail=str(error).splitlines()[0],
                hint='For example: "sum(score) AS total".',
            ) from error
        name = projection.alias or text
        if name in self.found.answers:
            raise Invalid(f'two aggregates are named "{name}"', hint='Give one another name: "sum(score) AS total".')
        inner = projection.this if isinstance(projection, nodes.Alias) else projection
        replaced = inner.transform(self._replace, text)
        self.found.answers[name] = replaced.sql("duckdb")
        if isinstance(replaced, nodes.Column):
            self.found.bare[int(replaced.name.removeprefix("o"))] = name

    def _replace(self, node: nodes.Expression, text: str) -> nodes.Expression:
        condition = _TRUE
        function = node
        if isinstance(node, nodes.Filter):
            function, condition = node.this, node.expression.this
        if isinstance(function, (nodes.AggFunc, nodes.Anonymous)):
            known = node.sql("spark")
            if known not in self._known:
                self._known[known] = self._add(function, condition, text)
            return nodes.column(f"o{self._known[known]}")
        return node

    def _add(self, function: Any, condition: nodes.Expression, text: str) -> int:
        number, kind = len(self.found.calls), type(function)
        arguments: list[str] = []
        constants: tuple[Any, ...] = ()
        given = function.this
        if kind is nodes.Count and isinstance(given, nodes.Distinct):
            name, arguments = "count_distinct", [self._where(given.expressions[0], condition)]
        elif kind is nodes.Count:
            present = _TRUE if isinstance(given, (nodes.Star, nodes.Literal)) else given.is_(nodes.null()).not_()
            plain = present is _TRUE and condition is _TRUE
            name, arguments = "count", [] if plain else [self._where(_TRUE, nodes.and_(present, condition))]
        elif kind is nodes.CountIf:
            name, arguments = "count", [self._where(_TRUE, nodes.and_(given, condition))]
        elif kind in _BY_TIME:
            name, arguments = _BY_TIME[kind], [self._sql(given), self._time, self._sql(condition)]
        elif kind in _BY_ORDER:
            order = self._sql(function.expression)
            name, arguments = _BY_ORDER[kind], [self._sql(given), order, self._sql(condition)]
        elif kind in _FUNCTIONS and not isinstance(given, nodes.Distinct):
            name, arguments = _FUNCTIONS[kind], [self._where(given, condition)]
            constants = _constants(name, function)
        else:
            raise no_such_aggregate(text, function.sql("spark").partition("(")[0].lower())
        if self._taken_back is not None:
            name, arguments = self._sign(name, arguments, _title(function))
        for place, argument in enumerate(arguments):
            self.found.inputs[f"i{number}_{place}"] = argument
        types = tuple(self._type(argument) for argument in arguments)
        call = AggregateCall(name, types, _output(name, types, constants), _title(function), constants)
        self.found.calls.append(call)
        return number

    def _sign(self, name: str, arguments: list[str], text: str) -> tuple[str, list[str]]:
        """With the opposite sign if a row retracts an earlier one."""
        if name not in ("sum", "count"):
            raise not_of_corrections(text)
        if name == "sum":
            return name, [f"CASE WHEN {self._taken_back} THEN -({arguments[0]}) ELSE {arguments[0]} END"]
        one = f"CASE WHEN {self._taken_back} THEN -1::BIGINT ELSE 1::BIGINT END"
        return "signed_count", [f"CASE WHEN ({arguments[0]}) IS NOT NULL THEN {one} END" if arguments else one]

    def _where(self, value: nodes.Expression, condition: Any) -> str:
        return (
            self._sql(value) if condition is _TRUE else f"CASE WHEN {self._sql(condition)} THEN {self._sql(value)} END"
        )

    def _sql(self, expression: nodes.Expression) -> str:
        for column in expression.find_all(nodes.Column):
            known = self._schema.names
            if column.parts[0].name not in known:
                raise Invalid(
                    f'an aggregate uses the column "{column.name}", which the rows lack',
                    detail=f"Their columns are: {', '.join(known)}.",
                    hint=did_you_mean(column.name, known) or "Name one of these.",
                    column=column.name,
                )
        return expression.sql("duckdb")

    def _type(self, sql: str) -> pa.DataType:
        if sql == self._time:
            return pa.int64()
        return compute_columns({"value": sql}, self._schema.empty_table()).schema.field(0).type


def _title(function: nodes.Expression) -> str:
    """The text of a function as Spark writes it."""
    if isinstance(function, nodes.Count) and isinstance(function.this, nodes.Star):
        return "count(1)"
    return function.sql("spark", normalize_functions="lower")


def _constants(name: str, function: Any) -> tuple[Any, ...]:
    def value(part: Any, otherwise: float) -> Any:
        if isinstance(part, nodes.Array):
            return [float(item.name) for item in part.expressions]
        return otherwise if part is None else float(part.name)

    if name == "approx_count_distinct":
        return (value(function.args.get("accuracy"), 0.05),)
    if name == "percentile":
        return (value(function.args.get("quantile"), 0.5),)
    if name == "approx_percentile":
        return value(function.args.get("quantile"), 0.5), int(value(function.args.get("accuracy"), 10_000))
    if name == "approx_top_k":
        return int(value(function.args.get("expression"), 5)), int(value(function.args.get("counters"), 10_000))
    return ()


def _output(name: str, types: tuple[pa.DataType, ...], constants: tuple[Any, ...]) -> pa.DataType:
    """Spark's result type of a function."""
    if name in ("count", "signed_count", "count_distinct", "approx_count_distinct"):
        return pa.int64()
    of = types[0]
    if name == "sum" and pa.types.is_decimal(of):
        return pa.decimal128(min(38, of.precision + 10), of.scale)
    if name == "sum":
        return pa.int64() if pa.types.is_integer(of) else pa.float64()
    if name == "avg" and pa.types.is_decimal(of):
        return pa.decimal128(min(38, of.precision + 4), min(38, of.scale + 4))
    if name in ("avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "median"):
        return pa.float64()
    if name in ("collect_list", "collect_set"):
        return pa.list_(pa.field("element", of))
    if name == "approx_top_k":
        return pa.list_(pa.field("element", pa.struct([("item", of), ("count", pa.int64())])))
    if name in ("percentile", "approx_percentile"):
        one = pa.float64() if name == "percentile" else of
        return pa.list_(pa.field("element", one)) if isinstance(constants[0], list) else one
    return of
