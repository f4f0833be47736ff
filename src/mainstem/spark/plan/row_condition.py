"""RowExpression: a condition or a value that a flow computes over a topic's rows in Arrow, before they are sent to Spark.

Written as JSON lists, so that it can be passed in a source's options: `[name, part, ...]`. Parts that are lists are
expressions themselves; others are parameters, known when the plan is translated.

    ["column", name, field, ...]   ["literal", type, text or number]   ["struct", [name, value], ...]
    ["and" | "or", condition, ...]   ["not", condition]   ["in", value, [literal, ...]]
    ["if", condition, value, value]   ["coalesce", value, ...]
    [name, part, ...]              a function of `FUNCTIONS`: null if one of its parts is null
    [name, part, ...]              a function of `NULL_FUNCTIONS`, which are told of nulls

A result equals Spark's, bit for bit, in ANSI mode and in UTC: nulls, NaN (equal to itself and larger than every other number),
overflow. Where Spark fails, the expression fails (`FAILING`); where Spark does not compute a part for a row (a branch that is
not taken, the right side of an AND), it is not computed for that row, so it cannot fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid

__all__ = [
    "Condition",
    "Expression",
    "TYPES",
    "all_of",
    "any_of",
    "arrow_type",
    "can_fail",
    "columns_in",
    "condition_mask",
    "value_of",
    "values_of",
]

Expression = list[Any]
# An expression whose value is a Boolean.
Condition = Expression

# Spark's names of the plain types. Literals of dates and times are numbers of days or microseconds.
TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def all_of(conditions: Sequence[Condition]) -> Condition | None:
    """The conjunction; None, which keeps all rows, if there are no conditions."""
    return None if not conditions else conditions[0] if len(conditions) == 1 else ["and", *conditions]


def any_of(conditions: Sequence[Condition | None]) -> Condition | None:
    """The disjunction; None, which keeps all rows, if one of them does.

    >>> any_of([["null", ["column", "a"]], None]) is None
    True
    """
    known = [condition for condition in conditions if condition is not None]
    if not known or len(known) < len(conditions):
        return None
    return known[0] if len(known) == 1 else ["or", *known]


def columns_in(expression: Expression) -> set[str]:
    """The columns that an expression uses."""
    if expression[0] == "column":
        return {expression[1]}
    return {name for part in _parts(expression) for name in columns_in(part)}


def can_fail(expression: Expression) -> bool:
    """Whether there are values for which the expression fails."""
    return expression[0] in FAILING or any(map(can_fail, _parts(expression)))


def _parts(expression: Expression) -> list[Expression]:
    name, *parts = expression
    if name in ("column", "literal"):
        return []
    if name == "struct":
        return [value for _, value in parts]
    return parts[:1] if name == "in" else [part for part in parts if isinstance(part, list)]


def condition_mask(condition: Condition, rows: pa.RecordBatch) -> pa.BooleanArray:
    """For each row whether the condition is true.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> condition_mask([">", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [False, True, False]
    """
    return pc.fill_null(value_of(condition, rows), False)


def value_of(expression: Expression, rows: pa.RecordBatch) -> pa.Array:
    """A value for each row.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> value_of(["-", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [-2, 2, None]
    """
    return values_of([expression], rows)[0]


def values_of(expressions: Sequence[Expression], rows: pa.RecordBatch) -> list[pa.Array]:
    """A value of each expression for each row. What several of them have in common is computed once.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> [values.to_pylist() for values in values_of([["column", "n"], ["null", ["column", "n"]]], rows)]
    [[1, 5, None], [False, False, True]]
    """
    values = _Values(rows)
    return [_whole(values.find(expression), rows.num_rows) for expression in expressions]


class _Values:
    """The values of expressions over one batch: an array, or a scalar if it is the same for all rows."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._known: dict[str, Any] = {}

    def find(self, expression: Expression) -> Any:
        name = expression[0]
        if name == "column":
            column = self._rows.column(expression[1])
            return pc.struct_field(column, expression[2:]) if expression[2:] else column
        if name == "literal":
            return _literal(expression)
        text = repr(expression)
        if text not in self._known:
            self._known[text] = self._compute(name, expression[1:])
        return self._known[text]

    def _compute(self, name: str, parts: list[Any]) -> Any:
        if name in ("and", "or"):
            return self._combine(name, parts)
        if name == "if":
            return self._choose(*parts)
        if name == "coalesce":
            return self._coalesce(parts)
        if name == "struct":
            values = [_whole(self.find(value), self._rows.num_rows) for _, value in parts]
            return pc.make_struct(*values, field_names=[field for field, _ in parts])
        if name == "in":
            return _is_in(self.find(parts[0]), [_literal(part) for part in parts[1]])
        if name in NULL_FUNCTIONS:
            return NULL_FUNCTIONS[name](*(self.find(part) if isinstance(part, list) else part for part in parts))
        arguments: list[Any] = []
        for part in parts:
            if not isinstance(part, list):
                arguments.append(part)
            elif can_fail(part):
                # Spark does not compute the rest of a function for a row for which one part is null.
                arguments.append(self._find_where(part, _all_valid(arguments)))
            else:
                arguments.append(self.find(part))
        return FUNCTIONS[name](*arguments)

    def _find_where(self, expression: Expression, mask: Any) -> Any:
        """The value for the rows of the mask; for others any value, for an expression that can fail null."""
        if mask is None or not can_fail(expression):
            return self.find(expression)
        mask = pc.fill_null(_whole(mask, self._rows.num_rows), False)
        if mask.true_count == len(mask):
            return self.find(expression)
        used = sorted(columns_in(expression)) or self._rows.schema.names[:1]
        chosen = self._rows.select(used).filter(mask)
        values = _whole(_Values(chosen).find(expression), chosen.num_rows)
        places = pc.subtract(pc.cumulative_sum(mask.cast(pa.int32())), pa.scalar(1, pa.int32()))
        return values.take(pc.if_else(mask, places, pa.scalar(None, pa.int32())))

    def _combine(self, name: str, parts: list[Condition]) -> Any:
        """AND and OR: a part is computed for the rows that the parts before it do not decide."""
        combine, decided = (pc.and_kleene, False) if name == "and" else (pc.or_kleene, True)
        found = self.find(parts[0])
        for part in parts[1:]:
            if can_fail(part):
                open_rows = pc.fill_null(pc.not_equal(found, pa.scalar(decided)), True)
                found = combine(found, self._find_where(part, open_rows))
            else:
                found = combine(found, self.find(part))
        return found

    def _choose(self, condition: Condition, then: Expression, otherwise: Expression) -> Any:
        taken = pc.fill_null(_whole(self.find(condition), self._rows.num_rows), False)
        count = taken.true_count
        if count in (0, len(taken)):
            return self.find(then if count else otherwise)
        return pc.if_else(taken, self._find_where(then, taken), self._find_where(otherwise, pc.invert(taken)))

    def _coalesce(self, parts: list[Expression]) -> Any:
        found = self.find(parts[0])
        for part in parts[1:]:
            if isinstance(found, pa.Array) and not found.null_count:
                break
            found = pc.coalesce(found, self._find_where(part, pc.is_null(found)))
        return found


def _whole(value: Any, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def _all_valid(values: Sequence[Any]) -> Any:
    """Where none of the values is null; None if that is everywhere."""
    nullable = [value for value in values if isinstance(value, pa.Array) and value.null_count]
    nullable += [value for value in values if isinstance(value, pa.Scalar) and not value.is_valid]
    return reduce(pc.and_, map(pc.is_valid, nullable)) if nullable else None


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of one of Spark's plain types.

    >>> arrow_type("decimal(8,2)")
    Decimal128Type(decimal128(8, 2))
    """
    if name.startswith("decimal("):
        return pa.decimal128(*map(int, name[len("decimal(") : -1].split(",")))
    return TYPES[name]


def _literal(literal: Expression) -> pa.Scalar:
    _, kind, value = literal
    data_type = arrow_type(kind)
    if value is None:
        return pa.scalar(None, data_type)
    if kind.startswith("decimal"):
        return pa.scalar(Decimal(value), data_type)
    if kind == "binary":
        return pa.scalar(bytes.fromhex(value), data_type)
    if kind in ("float", "double"):
        return pa.scalar(float(value), data_type)
    if kind in ("date", "timestamp", "timestamp_ntz"):
        return pa.scalar(value, pa.int32() if kind == "date" else pa.int64()).cast(data_type)
    return pa.scalar(value, data_type)


# Comparisons


def _is_in(value: Any, literals: list[pa.Scalar]) -> Any:
    wanted = pa.array([literal.as_py() for literal in literals], literals[0].type)
    # Null in a list is never equal; the result is null if no other value matches.
    found = pc.is_in(value, wanted.drop_null())
    unknown = pc.is_null(value) if not wanted.null_count else pc.or_(pc.is_null(value), pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def _may_be_nan(value: Any) -> bool:
    return pa.types.is_floating(value.type) and not (isinstance(value, pa.Scalar) and value.as_py() == value.as_py())


def _equal(left: Any, right: Any) -> Any:
    found = pc.equal(left, right)
    if _may_be_nan(left) and _may_be_nan(right):
        return pc.or_(found, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return found


def _less(left: Any, right: Any) -> Any:
    found = pc.less(left, right)
    if _may_be_nan(right):
        return pc.or_(found, pc.and_not(pc.is_nan(right), pc.is_nan(left)))
    return found


def _less_equal(left: Any, right: Any) -> Any:
    found = pc.less_equal(left, right)
    return pc.or_(found, pc.is_nan(right)) if _may_be_nan(right) else found


def _same(left: Any, right: Any) -> Any:
    """Equal, or both null."""
    return pc.or_(pc.fill_null(_equal(left, right), False), pc.and_(pc.is_null(left), pc.is_null(right)))


# Numbers


def _checked(compute: Callable[..., Any], what: str) -> Callable[..., Any]:
    """A function of Arrow that fails on overflow, as Spark's does."""

    def checked(*arguments: Any) -> Any:
        try:
            return compute(*arguments)
        except pa.ArrowInvalid as error:
            raise _overflow(what, arguments[0].type) from error

    return checked


def _overflow(what: str, data_type: pa.DataType) -> Invalid:
    return Invalid(
        f"{what} overflows",
        detail=f"The result for a row is too large for {data_type}: ARITHMETIC_OVERFLOW.",
        hint="Cast to a wider type before, or use try_add, try_subtract or try_multiply, which give null.",
    )


def _remainder_of_literal(number: Any, divisor: int) -> Any:
    # With the sign of the dividend, as in Java: the remainder of a truncating division.
    by = pa.scalar(divisor, number.type)
    return pc.subtract(number, pc.multiply(pc.divide(number, by), by))


def _cast(data_type: str, value: Any) -> Any:
    return pc.cast(value, arrow_type(data_type), safe=False)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "not": pc.invert,
    "=": _equal,
    "<": _less,
    "<=": _less_equal,
    ">": lambda left, right: _less(right, left),
    ">=": lambda left, right: _less_equal(right, left),
    # Of integers
    "+": _checked(pc.add_checked, "an addition"),
    "-": _checked(pc.subtract_checked, "a subtraction"),
    "*": _checked(pc.multiply_checked, "a multiplication"),
    "%": _remainder_of_literal,
    # Of floating-point numbers
    "+.": pc.add,
    "-.": pc.subtract,
    "*.": pc.multiply,
    # To a type that has all values of the other one
    "as": _cast,
}
NULL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "null": pc.is_null,
    "<=>": _same,
    "nan": lambda value: pc.fill_null(pc.is_nan(value), False),
}
# Functions that fail for some values.
FAILING = {"+", "-", "*"}
