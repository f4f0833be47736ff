"""RowCondition: a filter that a flow applies to a topic's rows in Arrow, before they are sent to Spark.

Written as JSON lists, so that it can be passed in a source's options:

    condition   ["and", condition, ...]  ["or", condition, ...]  ["not", condition]
                ["=" | "<" | "<=" | ">" | ">=" | "<=>", value, value]
                ["in", value, [literal, ...]]  ["null", value]  ["true", value]
    value       ["column", name, field, ...]  ["%", value, n]  ["as", type, value]  literal
                ["+" | "-", value, value]  ["if", condition, value, value]  ["struct", [name, value], ...]
    literal     ["literal", type, text or number]

Nulls, and NaN, which is larger than every other number, are treated as Spark does; a row stays if the condition is true
for it. Spark applies it once more, so a condition may keep too many rows, but never too few. A value alone makes a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Condition", "TYPES", "all_of", "any_of", "columns_in", "condition_mask", "value_of"]

Condition = list[Any]

# Spark's names of the types that can be compared with a literal. Dates and times are numbers of days or microseconds.
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

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
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


def columns_in(condition: Condition) -> set[str]:
    """The columns that a condition uses."""
    if condition[0] == "column":
        return {condition[1]}
    return {name for part in condition[1:] if isinstance(part, list) for name in columns_in(part)}


def condition_mask(condition: Condition, rows: pa.RecordBatch) -> pa.BooleanArray:
    """For each row whether the condition is true.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> condition_mask([">", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [False, True, False]
    """
    found = _truth(condition, rows)
    if isinstance(found, pa.Scalar):
        found = pa.repeat(found, rows.num_rows)
    return pc.fill_null(found, False)


def value_of(value: Condition, rows: pa.RecordBatch) -> pa.Array:
    """A value for each row.

    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 5, None]})
    >>> value_of(["-", ["column", "n"], ["literal", "bigint", 3]], rows).to_pylist()
    [-2, 2, None]
    """
    found = _value(value, rows)
    return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found


def _truth(condition: Condition, rows: pa.RecordBatch) -> Any:
    kind, *parts = condition
    if kind == "and":
        return reduce(pc.and_kleene, (_truth(part, rows) for part in parts))
    if kind == "or":
        return reduce(pc.or_kleene, (_truth(part, rows) for part in parts))
    if kind == "not":
        return pc.invert(_truth(parts[0], rows))
    if kind == "null":
        return pc.is_null(_value(parts[0], rows))
    if kind == "true":
        return _value(parts[0], rows)
    if kind == "in":
        value = _value(parts[0], rows)
        wanted = pa.array([_literal(literal).as_py() for literal in parts[1]], value.type)
        # Null in a list is never equal; the result is null if no other value matches.
        found = pc.is_in(value, wanted.drop_null())
        unknown = pc.is_null(value) if not wanted.null_count else pc.or_(pc.is_null(value), pc.invert(found))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)
    left, right = (_value(part, rows) for part in parts)
    if kind == "<=>":
        same = pc.fill_null(pc.equal(left, right), False)
        return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))
    found = _COMPARED[kind](left, right)
    if pa.types.is_floating(left.type):
        # The literal is never NaN.
        if kind in (">", ">="):
            found = pc.or_kleene(found, pc.is_nan(left))
        elif kind in ("<", "<="):
            found = pc.or_kleene(found, pc.is_nan(right))
    return found


def _value(value: Condition, rows: pa.RecordBatch) -> Any:
    kind, *parts = value
    if kind == "column":
        column = rows.column(parts[0])
        return pc.struct_field(column, parts[1:]) if parts[1:] else column
    if kind == "as":
        return pc.cast(_value(parts[1], rows), TYPES[parts[0]])
    if kind in ("+", "-"):
        # Overflow is an error, as in Spark.
        return (pc.add_checked if kind == "+" else pc.subtract_checked)(*(_value(part, rows) for part in parts))
    if kind == "struct":
        return pc.make_struct(*(_value(part, rows) for _, part in parts), field_names=[name for name, _ in parts])
    if kind == "if":
        return pc.if_else(condition_mask(parts[0], rows), *(_value(part, rows) for part in parts[1:]))
    if kind == "%":
        # With the sign of the dividend, as in Java: the remainder of a truncating division.
        number = _value(parts[0], rows)
        divisor = pa.scalar(parts[1], number.type)
        return pc.subtract(number, pc.multiply(pc.divide(number, divisor), divisor))
    return _literal(value)


def _literal(literal: Condition) -> pa.Scalar:
    _, kind, value = literal
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        return pa.scalar(None if value is None else Decimal(value), pa.decimal128(precision, scale))
    if kind == "binary" and value is not None:
        return pa.scalar(bytes.fromhex(value), pa.binary())
    if value is not None and kind in ("date", "timestamp", "timestamp_ntz"):
        return pa.scalar(value, pa.int32() if kind == "date" else pa.int64()).cast(TYPES[kind])
    return pa.scalar(value, TYPES[kind])
