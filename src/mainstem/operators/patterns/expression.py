"""Expression: SQL over the rows of a candidate, computed in Python.

    amount > 9 * avg(small.amount)      amount: of the row in question; small.amount: of the rows of the step "small" so far

A step's rows are read with `first`, `last`, `count`, `sum`, `avg`, `min` and `max`; `last(small.amount, 1)` is the value of the
row before the last, and `small.amount` alone that of the last. Around them: comparisons, arithmetic, AND, OR, NOT, BETWEEN,
IN, IS NULL, coalesce, abs, contains, literals and intervals, with nulls as in Spark's SQL. A division by zero is null.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import sqlglot
from sqlglot import expressions as nodes
from sqlglot.errors import SqlglotError

from mainstem.durations import parse_duration
from mainstem.errors import Invalid, did_you_mean

__all__ = ["Expression", "read_expression", "refers_to_steps"]

Row: TypeAlias = Mapping[str, Any]
# The rows of a step, by its name.
StepRows: TypeAlias = Callable[[str], Sequence[Row]]
Computed: TypeAlias = Callable[[Row, StepRows], Any]

_AGGREGATES: dict[type[nodes.Expression], str] = {
    nodes.Sum: "sum",
    nodes.Avg: "avg",
    nodes.Min: "min",
    nodes.Max: "max",
    nodes.Count: "count",
}
# sqlglot drops the second argument of `last`, so it is told that these are functions it does not know.
_RENAMED = {"first": "step_first", "last": "step_last"}


@dataclass(frozen=True)
class Expression:
    """An expression over columns and steps, checked. A value: it is sent to Spark's workers."""

    text: str
    steps: tuple[str, ...]
    columns: pa.Schema

    @property
    def type(self) -> pa.DataType:
        """The type of its results."""
        return _Reader(self).type_of(_parse(self.text))

    @property
    def needed(self) -> set[str]:
        """The columns that it reads of rows of steps."""
        reader = _Reader(self)
        return {reader.column(found) for found in _parse(self.text).find_all(nodes.Column) if reader.of_rows(found)}

    def compile(self) -> Computed:
        """A function that computes it for a row and the rows of the steps before it."""
        return _compiled(self.text, self.steps, tuple(self.columns.names))


@lru_cache(maxsize=1024)
def _compiled(text: str, steps: tuple[str, ...], names: tuple[str, ...]) -> Computed:
    schema = pa.schema([(name, pa.null()) for name in names])
    return _Reader(Expression(text, steps, schema)).compute(_parse(text))


def read_expression(text: str, steps: Sequence[str], columns: pa.Schema) -> Expression:
    """Parse and check an expression.

    >>> columns = pa.schema([("amount", pa.float64())])
    >>> holds = read_expression("amount > 9 * avg(small.amount)", ["small"], columns).compile()
    >>> holds({"amount": 20.0}, lambda step: [{"amount": 1.0}, {"amount": 3.0}])
    True
    """
    made = Expression(text, tuple(steps), columns)
    _Reader(made).compute(_parse(text))
    return made


def refers_to_steps(node: nodes.Expression, steps: Sequence[str]) -> bool:
    """Whether an expression reads rows of steps."""
    named = any(found.table in steps or _names_step(found, steps) for found in node.find_all(nodes.Column))
    return named or any(found.name.lower() in _RENAMED.values() for found in node.find_all(nodes.Anonymous))


def _names_step(column: nodes.Column, steps: Sequence[str]) -> bool:
    return isinstance(column.parent, nodes.Count) and not column.table and column.name in steps


@lru_cache(maxsize=1024)
def _parse(text: str) -> nodes.Expression:
    return parse(text)


def parse(text: str) -> nodes.Expression:
    """The expression as sqlglot has it, with `first` and `last` under other names."""
    try:
        tokens = sqlglot.tokenize(text, dialect="spark")
        written, end = [], 0
        for token, following in pairwise(tokens):
            if token.text.lower() in _RENAMED and following.text == "(":
                written += [text[end : token.start], _RENAMED[token.text.lower()]]
                end = token.end + 1
        found = sqlglot.parse_one("".join([*written, text[end:]]), dialect="spark")
    except SqlglotError as error:
        raise Invalid(
            f'the expression "{text}" cannot be parsed',
            detail=str(error).splitlines()[0],
            hint='For example: "amount > 9 * avg(small.amount)".',
        ) from error
    assert isinstance(found, nodes.Expression)
    return found


class _Reader:
    """Reads one expression."""

    def __init__(self, expression: Expression) -> None:
        self.text = expression.text
        self.steps = expression.steps
        self.schema = expression.columns
        self._folded = {name.casefold(): name for name in expression.columns.names}

    # Columns.

    def of_rows(self, column: nodes.Column) -> bool:
        """Whether it is a column of rows, and not a step alone, as in count(small)."""
        return not isinstance(column.this, nodes.Star) and not _names_step(column, self.steps)

    def column(self, found: nodes.Column) -> str:
        """The name of the column in the rows."""
        if found.table and found.table not in self.steps:
            raise Invalid(
                f'"{self.text}" refers to "{found.table}", which is no step of the pattern',
                detail=f"Its steps are: {', '.join(self.steps)}.",
                hint=did_you_mean(found.table, self.steps) or "Fields of structs: select them as columns first.",
            )
        name: str | None = self._folded.get(found.name.casefold())
        if name is None:
            raise Invalid(
                f'"{self.text}" uses the column "{found.name}", which the rows lack',
                detail=f"The columns are: {', '.join(self.schema.names)}.",
                hint=did_you_mean(found.name, self.schema.names) or "Name one of these.",
            )
        return name

    # Values.

    def compute(self, node: nodes.Expression) -> Computed:
        """The function of a node."""
        kind = type(node)
        if isinstance(node, nodes.Paren):
            return self.compute(node.this)
        if isinstance(node, nodes.Column):
            return self._column(node)
        if isinstance(node, (nodes.Literal, nodes.Boolean, nodes.Null, nodes.Interval)):
            value = _literal(node)
            return lambda row, rows: value
        if kind in _AGGREGATES or (isinstance(node, nodes.Anonymous) and node.name.lower() in _RENAMED.values()):
            return self._aggregate(node)
        if kind in _LOGICAL:
            combine, left, right = _LOGICAL[kind], self.compute(node.this), self.compute(node.expression)
            return lambda row, rows: combine(left(row, rows), right, row, rows)
        if kind in _BINARY:
            apply, left, right = _BINARY[kind], self.compute(node.this), self.compute(node.expression)
            return lambda row, rows: self._apply(apply, left(row, rows), right(row, rows))
        return self._other(node)

    def _other(self, node: nodes.Expression) -> Computed:
        if isinstance(node, nodes.NullSafeEQ):
            left, right = self.compute(node.this), self.compute(node.expression)
            return lambda row, rows: _same(left(row, rows), right(row, rows))
        if isinstance(node, nodes.Is) and isinstance(node.expression, (nodes.Null, nodes.Boolean)):
            inner, wanted = self.compute(node.this), _literal(node.expression)
            return lambda row, rows: inner(row, rows) is wanted
        if isinstance(node, nodes.Not):
            inner = self.compute(node.this)
            return lambda row, rows: _not(inner(row, rows))
        if isinstance(node, nodes.Neg):
            inner = self.compute(node.this)
            return lambda row, rows: self._apply(operator.sub, 0, inner(row, rows))
        if isinstance(node, nodes.Abs):
            inner = self.compute(node.this)
            return lambda row, rows: None if (value := inner(row, rows)) is None else abs(value)
        if isinstance(node, nodes.Between):
            both = nodes.And(
                this=nodes.GTE(this=node.this.copy(), expression=node.args["low"].copy()),
                expression=nodes.LTE(this=node.this.copy(), expression=node.args["high"].copy()),
            )
            return self.compute(both)
        if isinstance(node, nodes.In) and node.expressions:
            inner, options = self.compute(node.this), [self.compute(option) for option in node.expressions]
            return lambda row, rows: self._among(inner(row, rows), [option(row, rows) for option in options])
        if isinstance(node, nodes.Coalesce):
            options = [self.compute(option) for option in (node.this, *node.expressions)]
            return lambda row, rows: next(
                (value for option in options if (value := option(row, rows)) is not None), None
            )
        raise Invalid(
            f'"{self.text}" uses {node.sql("spark")}, which cannot be computed beside rows of earlier steps',
            detail="There it may have comparisons, arithmetic, AND, OR, NOT, BETWEEN, IN, IS NULL, coalesce, abs and contains; and "
            "first, last, count, sum, avg, min and max of steps.",
            hint="Compute it in a column before match: rows.withColumn(...). Parts about the row alone, joined with AND, may "
            "use all of Spark's SQL.",
        )

    def _column(self, node: nodes.Column) -> Computed:
        name = self.column(node)
        if not node.table:
            return lambda row, rows: row[name]
        step = node.table
        return lambda row, rows: found[-1][name] if (found := rows(step)) else None

    def _apply(self, apply: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        try:
            return apply(*_alike(left, right))
        except (ZeroDivisionError, ArithmeticError):
            return None
        except TypeError as error:
            raise Invalid(
                f'"{self.text}" cannot be computed',
                detail=f"It combines {left!r} and {right!r}.",
                hint="Compare and combine values of one kind; cast them in columns before match.",
            ) from error

    def _among(self, value: Any, options: Sequence[Any]) -> bool | None:
        found = [self._apply(_equal, value, option) for option in options]
        return True if True in found else None if None in found else False

    # Aggregates of the rows of a step.

    def _aggregate(self, node: nodes.Expression) -> Computed:
        name = _AGGREGATES.get(type(node)) or node.name.lower().removeprefix("step_")
        arguments = node.expressions if isinstance(node, nodes.Anonymous) else [node.this]
        of = arguments[0] if arguments else None
        if name == "count" and isinstance(of, nodes.Column) and not self.of_rows(of):
            step = of.table or of.name
            self._check_step(step)
            return lambda row, rows: len(rows(step))
        if not isinstance(of, nodes.Column) or not of.table:
            raise Invalid(
                f'"{self.text}" has {name} of something that is not a column of a step',
                detail=f"The steps are: {', '.join(self.steps)}.",
                hint=f"For example: {name}({self.steps[0]}.{self.schema.names[0]}).",
            )
        step, column = of.table, self.column(of)
        if name in ("first", "last"):
            return self._element(name, step, column, arguments[1:])
        fold = _FOLDS[name]
        return lambda row, rows: fold([value for of in rows(step) if (value := of[column]) is not None])

    def _check_step(self, step: str) -> None:
        if step not in self.steps:
            raise Invalid(
                f'"{self.text}" refers to "{step}", which is no step of the pattern',
                detail=f"Its steps are: {', '.join(self.steps)}.",
                hint=did_you_mean(step, self.steps) or "Name one of them.",
            )

    def _element(self, name: str, step: str, column: str, given: Sequence[nodes.Expression]) -> Computed:
        offset = 0
        if given:
            if len(given) > 1 or not isinstance(given[0], nodes.Literal) or not str(given[0].this).isdigit():
                raise Invalid(
                    f'the second argument of {name} in "{self.text}" is not a whole number',
                    detail="It counts rows of the step: 1 is one row further inside.",
                    hint=f"For example: {name}({step}.{column}, 1).",
                )
            offset = int(given[0].this)
        place = offset if name == "first" else -1 - offset

        def element(row: Row, rows: StepRows) -> Any:
            found = rows(step)
            return found[place][column] if len(found) > offset else None

        return element

    # Types.

    def type_of(self, node: nodes.Expression) -> pa.DataType:
        """The type of a measure's results: that of the column, or bigint, double or Boolean."""
        if isinstance(node, nodes.Paren):
            return self.type_of(node.this)
        if isinstance(node, nodes.Column):
            return self.schema.field(self.column(node)).type
        if isinstance(node, nodes.Literal):
            return pa.string() if node.is_string else pa.int64() if str(node.this).isdigit() else pa.float64()
        if isinstance(node, nodes.Count):
            return pa.int64()
        if isinstance(node, nodes.Avg):
            return pa.float64()
        if isinstance(node, nodes.Anonymous):
            return self.type_of(node.expressions[0])
        if isinstance(node, nodes.Sum):
            return _sum_type(self.type_of(node.this))
        if isinstance(node, nodes.Div):
            return pa.float64()
        if isinstance(node, (nodes.Min, nodes.Max, nodes.Abs, nodes.Neg, nodes.Coalesce)):
            return self.type_of(node.this)
        if type(node) in _ARITHMETIC:
            sides = [self.type_of(side) for side in (node.this, node.expression)]
            if all(map(pa.types.is_integer, sides)):
                return pa.int64()
            times = [pa.types.is_timestamp(side) for side in sides]
            return pa.duration("us") if all(times) else sides[times.index(True)] if any(times) else pa.float64()
        return pa.bool_()


def _literal(node: nodes.Expression) -> Any:
    if isinstance(node, nodes.Null):
        return None
    if isinstance(node, nodes.Boolean):
        return bool(node.this)
    if isinstance(node, nodes.Interval):
        return parse_duration(f"{node.this.name} {node.text('unit').lower()}")
    text = str(node.this)
    if node.is_string:
        return text
    return int(text) if text.isdigit() else float(text) if "e" in text.lower() else Decimal(text)


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Both as floats if one is: a decimal does not combine with a float in Python."""
    if isinstance(one, float) and isinstance(other, Decimal):
        return one, float(other)
    if isinstance(one, Decimal) and isinstance(other, float):
        return float(one), other
    return one, other


# NaN equals NaN and is greater than every number, as in Spark.


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _equal(left: Any, right: Any) -> bool:
    if _is_nan(left):
        return _is_nan(right)
    return bool(left == right)


def _less(left: Any, right: Any) -> bool:
    if _is_nan(left):
        return False
    return _is_nan(right) or bool(left < right)


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return _equal(*_alike(left, right))


def _divide(one: Any, other: Any) -> Any:
    if isinstance(one, timedelta):
        return one / other
    return float(one) / float(other)


def _remainder(one: Any, other: Any) -> Any:
    if isinstance(one, float) or isinstance(other, float):
        return math.fmod(one, other)
    found = abs(one) % abs(other)
    return -found if one < 0 else found


def _not(value: Any) -> bool | None:
    return None if value is None else not value


def _and(left: Any, right: Computed, row: Row, rows: StepRows) -> bool | None:
    if left is False:
        return False
    other = right(row, rows)
    return False if other is False else None if left is None or other is None else True


def _or(left: Any, right: Computed, row: Row, rows: StepRows) -> bool | None:
    if left is True:
        return True
    other = right(row, rows)
    return True if other is True else None if left is None or other is None else False


def _mean(values: Sequence[Any]) -> float | None:
    return float(sum(values)) / len(values) if values else None


_LOGICAL: dict[type, Callable[[Any, Computed, Row, StepRows], bool | None]] = {nodes.And: _and, nodes.Or: _or}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mul: operator.mul,
    nodes.Mod: _remainder,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    **_ARITHMETIC,
    nodes.Div: _divide,
    nodes.EQ: _equal,
    nodes.NEQ: lambda left, right: not _equal(left, right),
    nodes.LT: _less,
    nodes.GT: lambda left, right: _less(right, left),
    nodes.LTE: lambda left, right: not _less(right, left),
    nodes.GTE: lambda left, right: not _less(left, right),
    nodes.Contains: lambda left, right: right in left,
}
_FOLDS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "count": len,
    "sum": lambda values: sum(values) if values else None,
    "avg": _mean,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
}


def _sum_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(of):
        return pa.decimal128(min(38, of.precision + 10), of.scale)
    return pa.int64() if pa.types.is_integer(of) else pa.float64()
