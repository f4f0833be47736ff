"""Parses aggregates that are written as Spark columns: `F.sum("amount") / F.count("*")`.

Spark analyses them over the rows. Each aggregate function in the result becomes an `AggregateCall`, whose arguments are
computed natively before the stage (columns i0_0, i0_1, ...); the expressions around the functions are
computed natively after it, from their results (o0, o1, ...). Spark has no public API for its expressions; like
`spark.plan.flow_plan` this module uses its plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid, did_you_mean
from mainstem.log.rows.normal_schema import nullable_schema
from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregates import Aggregates, no_such_aggregate, not_of_corrections
from mainstem.operators.stage.frame_columns import Value, quote_name
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from mainstem.operators.windows.window_time import RowTime

__all__ = ["WrittenAggregates", "read_aggregates"]

# Spark's aggregate expressions with one argument, and our name of each function.
_PLAIN = {
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "Average": "avg",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "Median": "median",
    "Mode": "mode",
    "BoolAnd": "min",
    "BoolOr": "max",
}
_BY_TIME = {"First": "first", "AnyValue": "first", "Last": "last"}
_BY_ORDER = {"MinBy": "min_by", "MaxBy": "max_by"}


@dataclass
class WrittenAggregates:
    """The parsed aggregates: the functions, their arguments, and the columns that the user sees."""

    calls: list[AggregateCall] = field(default_factory=list)
    # By name (i0_0, ...), computed from the rows.
    inputs: dict[str, Value] = field(default_factory=dict)
    # By the user's name, computed from the results.
    answers: dict[str, Value] = field(default_factory=dict)
    # The user's names of aggregates that are a single function, by the function's number.
    bare: dict[int, str] = field(default_factory=dict)

    @property
    def aggregates(self) -> Aggregates:
        return Aggregates(tuple(self.calls))


@singledispatch
def read_aggregates(
    rows: DataFrame, aggregates: Sequence[Column | str], time: RowTime | None = None, retracting: str | None = None
) -> WrittenAggregates:
    """Parse aggregates over these rows; `time` is their event time. Raises `Invalid` for what is not supported.

    `retracting`: the `record` of rows that may retract earlier ones; then only functions that can subtract are supported.
    """
    from pyspark.sql import functions as F

    taken_back = None if retracting is None else F.col(quote_name(retracting))["change"] == "delete"
    reader = _Reader(rows, F.lit(0).cast("bigint") if time is None else time.native(), taken_back)
    for expression in _analyse(rows, aggregates):
        reader.take(expression)
    return reader.found


def _analyse(rows: DataFrame, aggregates: Sequence[Column | str]) -> list[Any]:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    columns = [F.expr(one) if isinstance(one, str) else one for one in aggregates]
    try:
        plan = rows.groupBy().agg(*columns)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        raise _not_understood(rows, error) from error
    while plan.nodeName() != "Aggregate" and plan.children().size():
        plan = plan.children().apply(0)
    return _all(plan.aggregateExpressions())


def _not_understood(rows: DataFrame, error: Any) -> Invalid:
    reason = str(error).splitlines()[0]
    parameters = error.getMessageParameters() or {} if hasattr(error, "getMessageParameters") else {}
    missing = str(parameters.get("objectName", "")).strip("`")
    if "UNRESOLVED_COLUMN" in reason and missing:
        return Invalid(
            f'an aggregate uses the column "{missing}", which the rows lack',
            detail=f"Their columns are: {', '.join(rows.columns)}.",
            hint=did_you_mean(missing, rows.columns) or "Name one of these.",
            column=missing,
        )
    return Invalid(
        "the aggregates cannot be parsed",
        detail=reason,
        hint='Write them as for groupBy(...).agg(...): F.sum("amount").alias("revenue").',
    )


class _Reader:
    """Converts analysed expressions one by one."""

    def __init__(self, rows: DataFrame, time: Column, taken_back: Column | None) -> None:
        self._taken_back = taken_back
        self.found = WrittenAggregates()
        self._jvm: Any = rows.sparkSession._jvm
        self._time = time
        # Function numbers by text: sum(a) / count(*), sum(a) has two functions.
        self._known: dict[str, int] = {}

    def take(self, expression: Any) -> None:
        """Add one named aggregate."""
        name = str(expression.name())
        if name in self.found.answers:
            raise Invalid(
                f'two aggregates are named "{name}"',
                detail="Each aggregate becomes a column of the result.",
                hint='Give one another name: F.sum("amount").alias("revenue").',
            )
        inner = expression.child() if _kind(expression) == "Alias" else expression
        self.found.answers[name] = self._column(self._rebuild(inner))
        if _kind(inner) == "AggregateExpression":
            self.found.bare[self._number(inner)] = name

    def _rebuild(self, node: Any) -> Any:
        """The expression over names: the rows' columns, and o0, o1, ... for aggregate functions."""
        kind = _kind(node)
        if kind == "AggregateExpression":
            return self._attribute(f"o{self._number(node)}")
        if kind == "AttributeReference":
            return self._attribute(str(node.name()))
        children = _all(node.children())
        if not children:
            return node
        return node.withNewChildren(self._sequence([self._rebuild(child) for child in children]))

    def _attribute(self, name: str) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute.quoted(name)

    def _sequence(self, items: list[Any]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)

    def _column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column

        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _number(self, node: Any) -> int:
        known = str(node.toString())
        if known not in self._known:
            number = self._known[known] = len(self.found.calls)
            function = node.aggregateFunction()
            condition = node.filter()
            filtered = self._column(self._rebuild(condition.get())) if condition.isDefined() else None
            self._add(number, node, function, filtered)
        return self._known[known]

    def _add(self, number: int, node: Any, function: Any, filtered: Column | None) -> None:
        from pyspark.sql import functions as F

        kind, text = _kind(function), str(node.sql())
        children = _all(function.children())
        distinct = bool(node.isDistinct())
        counts = F.lit(True) if filtered is None else filtered
        constants: tuple[Any, ...] = ()
        if distinct and (kind != "Count" or len(children) != 1):
            raise no_such_aggregate(text, text)
        if kind == "Count":
            name, arguments = self._read_count(children, filtered, distinct)
        elif kind == "CountIf":
            condition = self._argument(children[0])
            name, arguments = "count", [F.when(counts & condition, F.lit(True))]
        elif kind in _BY_TIME:
            value = self._argument(children[0])
            there = value.isNotNull() & counts if bool(function.ignoreNulls()) else counts
            name, arguments = _BY_TIME[kind], [value, self._time, there]
        elif kind in _BY_ORDER:
            value, order = map(self._argument, children)
            name, arguments = _BY_ORDER[kind], [value, order, counts]
        elif kind in _PLAIN and len(children) == 1:
            name, arguments = _PLAIN[kind], [_where(self._argument(children[0]), filtered)]
        else:
            name, constants = self._sketch(kind, function, text)
            arguments = [_where(self._argument(children[0]), filtered)]
        if self._taken_back is not None:
            name, arguments = self._apply_sign(name, arguments, text)
        for place, argument in enumerate(arguments):
            self.found.inputs[f"i{number}_{place}"] = argument
        types = self._types(node, children, len(arguments), name)
        self.found.calls.append(AggregateCall(name, types, _arrow_type(node), text, constants))

    def _types(self, node: Any, children: list[Any], count: int, name: str) -> tuple[pa.DataType, ...]:
        if name in ("first", "last"):
            return _arrow_type(children[0]), pa.int64(), pa.bool_()
        if name in ("min_by", "max_by"):
            return _arrow_type(children[0]), _arrow_type(children[1]), pa.bool_()
        if name == "signed_count":
            return (pa.int64(),)
        if name == "count":
            return (pa.bool_(),) * count
        return (_arrow_type(children[0]),)

    def _read_count(self, children: list[Any], filtered: Column | None, distinct: bool) -> tuple[str, list[Column]]:  # noqa: FBT001
        from pyspark.sql import functions as F

        if distinct:
            return "count_distinct", [_where(self._argument(children[0]), filtered)]
        values = [self._argument(child) for child in children if _kind(child) != "Literal" or child.value() is None]
        if not values and filtered is None:
            return "count", []
        there = F.lit(True) if filtered is None else filtered
        for value in values:
            there = there & value.isNotNull()
        return "count", [F.when(there, F.lit(True))]

    def _apply_sign(self, name: str, arguments: list[Column], text: str) -> tuple[str, list[Column]]:
        """With the opposite sign if a row retracts an earlier one."""
        from pyspark.sql import functions as F

        if name not in ("sum", "count"):
            raise not_of_corrections(text)
        taken_back = self._taken_back
        assert taken_back is not None
        if name == "sum":
            return name, [F.when(taken_back, -arguments[0]).otherwise(arguments[0])]
        one = F.when(taken_back, F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
        return "signed_count", [F.when(arguments[0].isNotNull(), one) if arguments else one]

    def _argument(self, node: Any) -> Column:
        return self._column(self._rebuild(node))

    def _sketch(self, kind: str, function: Any, text: str) -> tuple[str, tuple[Any, ...]]:
        """The name and constants of a function with constant arguments."""
        if kind == "HyperLogLogPlusPlus":
            return "approx_count_distinct", (float(function.relativeSD()),)
        children = _all(function.children())
        if kind == "Percentile" and not bool(function.reverse()) and _constant(children[2]) == 1:
            return "percentile", (_constant(children[1]),)
        if kind == "ApproximatePercentile" and _is_number(children[0]):
            return "approx_percentile", (_constant(children[1]), _constant(children[2]))
        if kind == "ApproxTopK":
            return "approx_top_k", (_constant(children[1]), _constant(children[2]))
        if kind == "HistogramNumeric" and _is_number(children[0]):
            return "histogram_numeric", (_constant(children[1]),)
        raise no_such_aggregate(text, str(function.prettyName()))


def _where(value: Column, filtered: Column | None) -> Column:
    from pyspark.sql import functions as F

    return value if filtered is None else F.when(filtered, value)


def _constant(expression: Any) -> Any:
    value = expression.eval(None)
    return [float(share) for share in value.toDoubleArray()] if hasattr(value, "toDoubleArray") else value


def _is_number(expression: Any) -> bool:
    found = _arrow_type(expression)
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found))


def _arrow_type(expression: Any) -> pa.DataType:
    """The expression's type; list elements and struct fields are nullable."""
    from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

    found = _parse_datatype_json_string(expression.dataType().json())
    return nullable_schema(arrow_schema(StructType([StructField("value", found)]))).field(0).type


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _all(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
