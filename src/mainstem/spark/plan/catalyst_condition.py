"""Translates the expressions of Spark's optimized plans into expressions over Arrow (see `row_condition`).

A condition that only narrows what is sent leaves out the parts of an AND without a counterpart: then more rows are sent than
Spark keeps. Below a NOT, where that would send too few, every part must have one. It has no part that can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mainstem.spark.plan.row_condition import TYPES, Condition, Expression, all_of, can_fail

__all__ = ["NotTranslated", "condition_of", "translate"]

_FLOATS = ("float", "double")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Searching a longer list costs more than sending the rows that it would drop.
LIST_MAX = 10_000


class NotTranslated(Exception):
    """An expression without a counterpart; its text is the expression as SQL."""


def condition_of(expression: Any) -> Condition | None:
    """A condition that is true wherever the expression is, and never fails; None if only "always" is."""
    kind = _kind(expression)
    if kind == "And":
        parts = map(condition_of, (expression.left(), expression.right()))
        return all_of([part for part in parts if part is not None])
    if kind == "Or":
        either = [condition_of(part) for part in (expression.left(), expression.right())]
        return None if None in either else ["or", *either]
    try:
        found = translate(expression)
    except NotTranslated:
        return None
    return None if can_fail(found) else found


def translate(expression: Any, known: Mapping[int, Expression] | None = None) -> Expression:
    """The same expression over Arrow; raises `NotTranslated` if there is none.

    `known`: the columns by their ids, each with its expression over those of the source. Without it, columns are those of the
    source.
    """
    return _Translator(known).translate(expression)


class _Translator:
    def __init__(self, known: Mapping[int, Expression] | None) -> None:
        self._known = known

    def translate(self, expression: Any) -> Expression:
        kind = _kind(expression)
        if kind == "AttributeReference":
            if self._known is None:
                return ["column", str(expression.name())]
            if (number := expression.exprId().id()) in self._known:
                return self._known[number]
        elif kind in TRANSLATIONS:
            found = TRANSLATIONS[kind](self, expression)
            if found is not None:
                return found
        raise NotTranslated(str(expression.sql()))

    def all(self, expression: Any) -> list[Expression]:
        return [self.translate(child) for child in _all(expression.children())]


# How an expression of a kind is translated; None if this one cannot be.
Translation = Callable[[_Translator, Any], Expression | None]


def _call(name: str) -> Translation:
    """A function that is the same for all types that it has in Spark."""
    return lambda translator, expression: [name, *translator.all(expression)]


def _pass(translator: _Translator, expression: Any) -> Expression:
    return translator.translate(expression.child())


def _combination(name: str) -> Translation:
    def combine(translator: _Translator, expression: Any) -> Expression:
        parts = translator.all(expression)
        flat: list[Expression] = []
        for part in parts:
            flat += part[1:] if part[0] == name else [part]
        return [name, *flat]

    return combine


def _comparison(name: str) -> Translation:
    def compare(translator: _Translator, expression: Any) -> Expression | None:
        left, right = _type(expression.left()), _type(expression.right())
        return [name, *translator.all(expression)] if left == right and _is_plain(left) else None

    return compare


def _arithmetic(name: str) -> Translation:
    def compute(translator: _Translator, expression: Any) -> Expression | None:
        data_type = _type(expression)
        if any(_type(child) != data_type for child in _all(expression.children())):
            return None
        if data_type in _FLOATS:
            return [f"{name}.", *translator.all(expression)]
        if data_type in _INTEGERS and _fails_on_error(expression):
            return [name, *translator.all(expression)]
        return None

    return compute


def _remainder(translator: _Translator, expression: Any) -> Expression | None:
    if _type(expression) not in _INTEGERS or _kind(expression.right()) != "Literal":
        return None
    divisor = expression.right().value()
    # None: the result is null; 0: Spark raises an error; -1: overflows for the smallest number.
    if divisor is None or divisor < 1:
        return None
    return ["%", translator.translate(expression.left()), int(divisor)]


def _is_not_null(translator: _Translator, expression: Any) -> Expression:
    return ["not", ["null", translator.translate(expression.child())]]


def _in(translator: _Translator, expression: Any) -> Expression | None:
    literals = _all(expression.list())
    if any(_kind(literal) != "Literal" for literal in literals):
        return None
    return _list(translator, expression.value(), [(literal.value(), _type(literal)) for literal in literals])


def _in_set(translator: _Translator, expression: Any) -> Expression | None:
    child = expression.child()
    return _list(translator, child, [(value, _type(child)) for value in _all(expression.hset())])


def _list(translator: _Translator, value: Any, wanted: list[tuple[Any, str]]) -> Expression | None:
    data_type = _type(value)
    if not _is_plain(data_type) or data_type in (*_FLOATS, "boolean") or not 0 < len(wanted) <= LIST_MAX:
        return None
    if any(other != data_type for _, other in wanted):
        return None
    return ["in", translator.translate(value), [_literal_of(found, data_type) for found, _ in wanted]]


def _case(translator: _Translator, expression: Any) -> Expression | None:
    data_type = _type(expression)
    if not _is_plain(data_type):
        return None
    parts = translator.all(expression)
    found: Expression = parts.pop() if len(parts) % 2 else ["literal", data_type, None]
    while parts:
        value = parts.pop()
        found = ["if", parts.pop(), value, found]
    return found


def _coalesce(translator: _Translator, expression: Any) -> Expression | None:
    return ["coalesce", *translator.all(expression)] if _is_plain(_type(expression)) else None


def _struct(translator: _Translator, expression: Any) -> Expression | None:
    parts = _all(expression.children())
    if any(_kind(name) != "Literal" for name in parts[::2]):
        return None
    names = [_text(name.value()) for name in parts[::2]]
    if len(set(names)) < len(names):
        return None
    return ["struct", *([name, translator.translate(part)] for name, part in zip(names, parts[1::2], strict=True))]


def _field(translator: _Translator, expression: Any) -> Expression | None:
    of, name = translator.translate(expression.child()), str(expression.extractFieldName())
    if of[0] == "struct":
        field: Expression = dict(of[1:])[name]
        return field
    return [*of, name] if of[0] == "column" else None


def _cast(translator: _Translator, expression: Any) -> Expression | None:
    before, after = _type(expression.child()), _type(expression)
    value = translator.translate(expression.child())
    if before == after:
        return value
    if before in _INTEGERS and after in _INTEGERS and _INTEGERS.index(before) < _INTEGERS.index(after):
        return ["as", after, value]
    if (before in _INTEGERS and after in _FLOATS) or (before, after) == ("float", "double"):
        return ["as", after, value]
    return None


def _time_as_number(translator: _Translator, expression: Any) -> Expression | None:
    """Microseconds of a time, or the time of them."""
    if {_type(expression), _type(expression.child())} != {"timestamp", "bigint"}:
        return None
    return ["as", _type(expression), translator.translate(expression.child())]


def _literal(translator: _Translator, expression: Any) -> Expression | None:
    data_type = _type(expression)
    return _literal_of(expression.value(), data_type) if _is_plain(data_type) else None


def _literal_of(value: Any, data_type: str) -> Expression:
    if value is not None:
        if data_type in _FLOATS:
            # As text: NaN and infinity have no form in JSON.
            value = repr(float(value))
        elif data_type == "boolean":
            value = bool(value)
        elif data_type == "binary":
            value = bytes(value).hex()
        elif data_type == "string" or data_type.startswith("decimal"):
            value = _text(value)
        else:
            value = int(value)
    return ["literal", data_type, value]


TRANSLATIONS: dict[str, Translation] = {
    "Literal": _literal,
    "KnownNotNull": _pass,
    "KnownNullable": _pass,
    "And": _combination("and"),
    "Or": _combination("or"),
    "Not": _call("not"),
    "IsNull": _call("null"),
    "IsNotNull": _is_not_null,
    "IsNaN": _call("nan"),
    "EqualTo": _comparison("="),
    "EqualNullSafe": _comparison("<=>"),
    "LessThan": _comparison("<"),
    "LessThanOrEqual": _comparison("<="),
    "GreaterThan": _comparison(">"),
    "GreaterThanOrEqual": _comparison(">="),
    "In": _in,
    "InSet": _in_set,
    "If": _case,
    "CaseWhen": _case,
    "Coalesce": _coalesce,
    "CreateNamedStruct": _struct,
    "GetStructField": _field,
    "Cast": _cast,
    "Add": _arithmetic("+"),
    "Subtract": _arithmetic("-"),
    "Multiply": _arithmetic("*"),
    "Remainder": _remainder,
    "UnixMicros": _time_as_number,
    "PreciseTimestampConversion": _time_as_number,
}


def _fails_on_error(expression: Any) -> bool:
    """Whether it fails on overflow: in ANSI mode, and not as `try_add`."""
    return str(expression.evalMode().toString()) == "ANSI"


def _is_plain(data_type: str) -> bool:
    return data_type in TYPES or data_type.startswith("decimal(")


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _type(expression: Any) -> str:
    return str(expression.dataType().catalogString())


def _text(value: Any) -> str:
    return str(value.toString()) if hasattr(value, "toString") else str(value)


def _all(collection: Any) -> list[Any]:
    iterator = collection.iterator()
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found
