"""Translates the expressions of filters and windows in Spark's plan into conditions for Arrow (see `row_condition`).

Parts of an AND without a counterpart are left out: then more rows are sent than Spark keeps. Below a NOT, where that
would send too few, every part must have one.
"""

from __future__ import annotations

from math import isnan
from typing import Any

from mainstem.spark.plan.row_condition import TYPES, Condition, all_of

__all__ = ["condition_of", "exact_condition_of", "window_of"]

_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_FLOATS = ("float", "double")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Searching a longer list costs more than sending the rows that it would drop.
LIST_MAX = 10_000


class _NotTranslated(Exception):
    """An expression without a counterpart."""


def condition_of(expression: Any) -> Condition | None:
    """A condition that is true wherever the expression is; None if only "always" is."""
    kind = _kind(expression)
    if kind == "And":
        parts = map(condition_of, (expression.left(), expression.right()))
        return all_of([part for part in parts if part is not None])
    if kind == "Or":
        either = [condition_of(part) for part in (expression.left(), expression.right())]
        return None if None in either else ["or", *either]
    try:
        return _exact(expression)
    except _NotTranslated:
        return None


def exact_condition_of(expression: Any) -> Condition | None:
    """A condition that is true exactly where the expression is; None if there is none."""
    try:
        return _exact(expression)
    except _NotTranslated:
        return None


def window_of(expression: Any) -> Condition | None:
    """A tumbling window as Spark computes it from a time, or its start or end; None if it is none of these."""
    if _kind(expression) == "CreateNamedStruct":
        parts = _all(expression.children())
        values = [window_of(part) for part in parts[1::2]]
        names = [str(name.value()) for name in parts[::2]]
        return None if None in values else ["struct", *map(list, zip(names, values, strict=True))]
    while _kind(expression) == "KnownNullable":
        expression = expression.child()
    if _kind(expression) != "PreciseTimestampConversion" or _type(expression) != "timestamp":
        return None
    try:
        return ["as", "timestamp", _microseconds(expression.child())]
    except _NotTranslated:
        return None


def _microseconds(expression: Any) -> Condition:
    """The arithmetic of a window, in microseconds; only there times are used as numbers without a cast."""
    kind = _kind(expression)
    if _type(expression) != "bigint":
        raise _NotTranslated
    if kind == "PreciseTimestampConversion" and _type(expression.child()) == "timestamp":
        return ["as", "bigint", _column(expression.child())]
    if kind in ("Add", "Subtract"):
        sign = "+" if kind == "Add" else "-"
        return [sign, _microseconds(expression.left()), _microseconds(expression.right())]
    if kind == "Remainder":
        divisor = _is_literal(expression.right()).value()
        if divisor is not None and divisor > 0:
            return ["%", _microseconds(expression.left()), int(divisor)]
    if kind == "CaseWhen":
        condition, then, otherwise = _all(expression.children())
        if _kind(condition) == "LessThan":
            less: Condition = ["<", _microseconds(condition.left()), _microseconds(condition.right())]
            return ["if", less, _microseconds(then), _microseconds(otherwise)]
    if kind == "Literal":
        return _literal(expression.value(), "bigint")
    raise _NotTranslated


def _exact(expression: Any) -> Condition:
    """The same condition, for every row."""
    kind = _kind(expression)
    if kind in ("And", "Or"):
        return [kind.lower(), _exact(expression.left()), _exact(expression.right())]
    if kind == "Not":
        return ["not", _exact(expression.child())]
    if kind in ("IsNull", "IsNotNull"):
        null: Condition = ["null", _column(expression.child())]
        return null if kind == "IsNull" else ["not", null]
    if kind in _COMPARISONS:
        return _comparison(kind, expression.left(), expression.right())
    if kind == "In":
        literals = _all(expression.list())
        return _in(expression.value(), [(literal.value(), literal) for literal in map(_is_literal, literals)])
    if kind == "InSet":
        child = expression.child()
        return _in(child, [(value, child) for value in _all(expression.hset())])
    if _type(expression) == "boolean":
        return ["true", _column(expression)]
    raise _NotTranslated


def _comparison(kind: str, left: Any, right: Any) -> Condition:
    data_type = _type(left)
    if data_type != _type(right) or not _known(data_type):
        raise _NotTranslated
    literals = [_kind(side) == "Literal" for side in (left, right)]
    # Two columns of floating-point numbers, or two literals: rare, so not translated.
    if (
        all(literals)
        or (data_type in _FLOATS and not any(literals))
        or (data_type in _FLOATS and kind == "EqualNullSafe")
    ):
        raise _NotTranslated
    return [_COMPARISONS[kind], _value(left), _value(right)]


def _in(value: Any, wanted: list[tuple[Any, Any]]) -> Condition:
    data_type = _type(value)
    if not _known(data_type) or data_type in (*_FLOATS, "boolean") or len(wanted) > LIST_MAX:
        raise _NotTranslated
    if any(_type(typed) != data_type for _, typed in wanted):
        raise _NotTranslated
    return ["in", _value(value), [_literal(found, data_type) for found, _ in wanted]]


def _value(expression: Any) -> Condition:
    kind = _kind(expression)
    if kind == "Literal":
        return _literal(expression.value(), _type(expression))
    if kind == "Remainder" and _type(expression) in _INTEGERS:
        divisor = _is_literal(expression.right()).value()
        # None: the result is null; 0: Spark raises an error; -1: overflows for the smallest number.
        if divisor is None or divisor < 1:
            raise _NotTranslated
        return ["%", _value(expression.left()), int(divisor)]
    if kind == "Cast":
        before, after = _type(expression.child()), _type(expression)
        if before in _INTEGERS and after in _INTEGERS and _INTEGERS.index(before) < _INTEGERS.index(after):
            return ["as", after, _value(expression.child())]
        raise _NotTranslated
    return _column(expression)


def _column(expression: Any) -> Condition:
    kind = _kind(expression)
    if kind == "AttributeReference":
        return ["column", expression.name()]
    if kind == "GetStructField":
        return [*_column(expression.child()), expression.extractFieldName()]
    raise _NotTranslated


def _is_literal(expression: Any) -> Any:
    if _kind(expression) != "Literal":
        raise _NotTranslated
    return expression


def _literal(value: Any, data_type: str) -> Condition:
    if value is not None:
        if data_type in _FLOATS:
            value = float(value)
            if isnan(value):
                raise _NotTranslated
        elif data_type == "boolean":
            value = bool(value)
        elif data_type == "binary":
            value = bytes(value).hex()
        elif data_type == "string" or data_type.startswith("decimal"):
            value = str(value.toString()) if hasattr(value, "toString") else str(value)
        else:
            value = int(value)
    return ["literal", data_type, value]


def _known(data_type: str) -> bool:
    return data_type in TYPES or data_type.startswith("decimal(")


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _type(expression: Any) -> str:
    return str(expression.dataType().catalogString())


def _all(collection: Any) -> list[Any]:
    iterator = collection.iterator()
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found
