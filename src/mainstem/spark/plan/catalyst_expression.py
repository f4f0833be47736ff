"""Translates the expressions of Spark's optimized plans into expressions over Arrow (see `row_expression`).

A condition that only narrows what is sent leaves out the parts of an AND without a counterpart: then more rows are sent than
Spark keeps. Below a NOT, where that would send too few, every part must have one. It has no part that can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mainstem.spark.plan.row_expression import Condition, Expression, all_of, can_fail, is_small
from mainstem.spark.plan.row_functions import TYPES

__all__ = ["NotTranslated", "condition_of", "is_plain", "kind_of", "parts_of", "translate", "type_of"]

_FLOATS = ("float", "double")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# The digits of the largest number of each.
_INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
# Spark computes some decimals of more digits in 34.
DIGITS_MAX = 34
# In microseconds.
SECOND = 1_000_000
DAY = 86_400 * SECOND
# Searching a longer list costs more than sending the rows that it would drop.
LIST_MAX = 10_000


class NotTranslated(Exception):
    """An expression without a counterpart; its text is the expression as SQL."""


def condition_of(expression: Any, known: Mapping[int, Expression] | None = None) -> Condition | None:
    """A condition that is true wherever the expression is, and never fails; None if only "always" is. `known`: see `translate`."""
    try:
        found = _weaken(expression, known)
    except RecursionError:
        return None
    return found if found is None or is_small(found) else None


def _weaken(expression: Any, known: Mapping[int, Expression] | None) -> Condition | None:
    kind = kind_of(expression)
    if kind == "And":
        parts = [_weaken(part, known) for part in (expression.left(), expression.right())]
        return all_of([part for part in parts if part is not None])
    if kind == "Or":
        either = [_weaken(part, known) for part in (expression.left(), expression.right())]
        return None if None in either else ["or", *either]
    try:
        found = translate(expression, known)
    except NotTranslated:
        return None
    return None if can_fail(found) else found


def translate(expression: Any, known: Mapping[int, Expression] | None = None) -> Expression:
    """The same expression over Arrow; raises `NotTranslated` if there is none.

    `known`: the columns by their ids, each with its expression over those of the source. Without it, columns are those of the
    source.
    """
    try:
        found = _Translator(known).translate(expression)
    except RecursionError:
        found = None
    if found is None or not is_small(found):
        raise NotTranslated("an expression of too many parts")
    return found


class _Translator:
    def __init__(self, known: Mapping[int, Expression] | None) -> None:
        self._known = known

    def translate(self, expression: Any) -> Expression:
        kind = kind_of(expression)
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
        return [self.translate(child) for child in parts_of(expression.children())]


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
        left, right = type_of(expression.left()), type_of(expression.right())
        return [name, *translator.all(expression)] if left == right and is_plain(left) else None

    return compare


def _arithmetic(name: str) -> Translation:
    def compute(translator: _Translator, expression: Any) -> Expression | None:
        data_type = type_of(expression)
        if data_type.startswith("decimal("):
            return [f"{name}.", *translator.all(expression)] if _has_all_digits(name, expression) else None
        if any(type_of(child) != data_type for child in parts_of(expression.children())):
            return None
        if data_type in _FLOATS:
            return [f"{name}.", *translator.all(expression)]
        if data_type in _INTEGERS and _fails_on_error(expression):
            return [name, *translator.all(expression)]
        return None

    return compute


def _has_all_digits(name: str, expression: Any) -> bool:
    """Whether the type of a result has room for all digits of all results, as Arrow's always has."""
    if _digits(expression)[0] > DIGITS_MAX:
        return False
    (precision, scale), (other_precision, other_scale) = map(_digits, parts_of(expression.children()))
    if name == "*":
        return _digits(expression) == (precision + other_precision + 1, scale + other_scale)
    most = max(scale, other_scale)
    return _digits(expression) == (max(precision - scale, other_precision - other_scale) + most + 1, most)


def _digits(expression: Any) -> tuple[int, int]:
    """The precision and the scale of a decimal."""
    precision, scale = type_of(expression)[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _unary(name: str) -> Translation:
    def compute(translator: _Translator, expression: Any) -> Expression | None:
        data_type = type_of(expression)
        if data_type in _FLOATS or (data_type.startswith("decimal(") and _digits(expression)[0] <= DIGITS_MAX):
            return [f"{name}.", *translator.all(expression)]
        return [name, *translator.all(expression)] if data_type in _INTEGERS and expression.failOnError() else None

    return compute


def _division(name: str) -> Translation:
    def divide(translator: _Translator, expression: Any) -> Expression | None:
        types = {type_of(expression.left()), type_of(expression.right())}
        if len(types) > 1 or not types <= {*_FLOATS, *_INTEGERS} or not _fails_on_error(expression):
            return None
        divisor, dividend = translator.translate(expression.right()), translator.translate(expression.left())
        if name == "remainder" and types <= {*_INTEGERS} and divisor[0] == "literal" and (divisor[2] or 0) > 0:
            return ["%", dividend, divisor[2]]
        return [name, divisor, dividend]

    return divide


def _of_type(name: str, *types: str) -> Translation:
    """A function whose arguments have one of these types."""

    def call(translator: _Translator, expression: Any) -> Expression | None:
        children = parts_of(expression.children())
        return [name, *translator.all(expression)] if all(type_of(child) in types for child in children) else None

    return call


def _ordered(name: str) -> Translation:
    def call(translator: _Translator, expression: Any) -> Expression | None:
        return [name, *translator.all(expression)] if is_plain(type_of(expression)) else None

    return call


def _date_number(data_type: str) -> Translation:
    return lambda translator, expression: ["as", data_type, *translator.all(expression)]


def _round_to_whole(name: str) -> Translation:
    def call(translator: _Translator, expression: Any) -> Expression | None:
        data_type = type_of(expression.child())
        if data_type == "bigint":
            return translator.translate(expression.child())
        return [name, translator.translate(expression.child())] if data_type == "double" else None

    return call


def _round(translator: _Translator, expression: Any) -> Expression | None:
    child, digits = expression.left(), expression.right()
    if not type_of(child).startswith("decimal(") or kind_of(digits) != "Literal" or digits.value() is None:
        return None
    precision, scale = _digits(child)
    if not 0 <= digits.value() < scale or precision > DIGITS_MAX:
        return None
    return ["round", type_of(expression), int(digits.value()), translator.translate(child)]


def _nan_value(translator: _Translator, expression: Any) -> Expression:
    number, instead = translator.all(expression)
    return ["if", ["nan", number], instead, number]


def _at_least(translator: _Translator, expression: Any) -> Expression | None:
    values = translator.all(expression)
    return None if any(map(can_fail, values)) else ["at least", int(expression.n()), *values]


def _is_not_null(translator: _Translator, expression: Any) -> Expression:
    return ["not", ["null", translator.translate(expression.child())]]


def _in(translator: _Translator, expression: Any) -> Expression | None:
    literals = parts_of(expression.list())
    if any(kind_of(literal) != "Literal" for literal in literals):
        return None
    return _list(translator, expression.value(), [(literal.value(), type_of(literal)) for literal in literals])


def _in_set(translator: _Translator, expression: Any) -> Expression | None:
    child = expression.child()
    return _list(translator, child, [(value, type_of(child)) for value in parts_of(expression.hset())])


def _list(translator: _Translator, value: Any, wanted: list[tuple[Any, str]]) -> Expression | None:
    data_type = type_of(value)
    if not is_plain(data_type) or data_type in (*_FLOATS, "boolean") or not 0 < len(wanted) <= LIST_MAX:
        return None
    if any(other != data_type for _, other in wanted):
        return None
    return ["in", translator.translate(value), [_literal_of(found, data_type) for found, _ in wanted]]


def _case(translator: _Translator, expression: Any) -> Expression | None:
    data_type = type_of(expression)
    if not is_plain(data_type):
        return None
    parts = translator.all(expression)
    found: Expression = parts.pop() if len(parts) % 2 else ["literal", data_type, None]
    while parts:
        value = parts.pop()
        found = ["if", parts.pop(), value, found]
    return found


def _coalesce(translator: _Translator, expression: Any) -> Expression | None:
    return ["coalesce", *translator.all(expression)] if is_plain(type_of(expression)) else None


def _struct(translator: _Translator, expression: Any) -> Expression | None:
    parts = parts_of(expression.children())
    if any(kind_of(name) != "Literal" for name in parts[::2]):
        return None
    names = [_text(name.value()) for name in parts[::2]]
    if len(set(names)) < len(names):
        return None
    return ["struct", *([name, translator.translate(part)] for name, part in zip(names, parts[1::2], strict=True))]


def _field(translator: _Translator, expression: Any) -> Expression | None:
    # Not the name as it was written: Spark ignores case.
    of, name = (
        translator.translate(expression.child()),
        str(expression.childSchema().fieldNames()[expression.ordinal()]),
    )
    if of[0] == "struct":
        field: Expression = dict(of[1:])[name]
        return field
    return [*of, name] if of[0] == "column" else None


def _cast(translator: _Translator, expression: Any) -> Expression | None:
    before, after = type_of(expression.child()), type_of(expression)
    value = translator.translate(expression.child())
    if before == after:
        return value
    if {before, after} & {"date", "timestamp", "timestamp_ntz"}:
        return _cast_time(before, after, value) if _in_utc(expression) else None
    if before in _INTEGERS and after in _INTEGERS:
        wider = _INTEGERS.index(before) < _INTEGERS.index(after)
        return ["as", after, value] if wider else ["to", after, value] if _fails_on_error(expression) else None
    if before in _FLOATS and after in _INTEGERS:
        return ["to", after, value] if _fails_on_error(expression) else None
    if before in (*_INTEGERS, *_FLOATS) and after in _FLOATS:
        return ["as", after, value]
    if before.startswith("decimal("):
        precision, scale = _digits(expression.child())
        if after.startswith("decimal("):
            to_precision, to_scale = _digits(expression)
            fits = scale <= to_scale and precision - scale <= to_precision - to_scale
            return ["as", after, value] if fits else None
        return ["decimal as", after, value] if after == "double" else None
    if before in _INTEGERS and after.startswith("decimal("):
        precision, scale = _digits(expression)
        return ["as", after, value] if precision - scale >= _INTEGER_DIGITS[before] else None
    if before == "boolean":
        return ["as", after, value] if after in (*_INTEGERS, "string") else None
    if (before in _INTEGERS and after == "string") or (before, after) == ("string", "binary"):
        return ["as", after, value]
    return None


def _cast_time(before: str, after: str, value: Expression) -> Expression | None:
    times = ("timestamp", "timestamp_ntz")
    if before in times and after in times:
        return ["as", after, value]
    if before in times and after in ("date", "bigint"):
        return ["units", after, DAY if after == "date" else SECOND, value]
    if before == "date" and after in times:
        return ["times", after, DAY, value]
    if after == "string":
        return ["show date" if before == "date" else "show time", value]
    return None


def _time_as_number(translator: _Translator, expression: Any) -> Expression | None:
    """Microseconds of a time, or the time of them."""
    if {type_of(expression), type_of(expression.child())} != {"timestamp", "bigint"}:
        return None
    return ["as", type_of(expression), translator.translate(expression.child())]


def _units(unit: int) -> Translation:
    """How many units a time has, or the time of so many."""

    def convert(translator: _Translator, expression: Any) -> Expression | None:
        child = parts_of(expression.children())[0]
        if (type_of(child), type_of(expression)) == ("timestamp", "bigint"):
            return ["units", "bigint", unit, translator.translate(child)]
        if type_of(child) in _INTEGERS and type_of(expression) == "timestamp":
            return ["times", "timestamp", unit, translator.translate(child)]
        return None

    return convert


def _seconds(translator: _Translator, expression: Any) -> Expression | None:
    time = expression.left()
    return ["seconds", translator.translate(time)] if type_of(time) == "timestamp" else None


def _date_part(part: str) -> Translation:
    def extract(translator: _Translator, expression: Any) -> Expression | None:
        child = expression.child()
        return ["date part", part, translator.translate(child)] if type_of(child) == "date" else None

    return extract


def _time_part(part: str) -> Translation:
    def extract(translator: _Translator, expression: Any) -> Expression | None:
        child = expression.child()
        if type_of(child) not in ("timestamp", "timestamp_ntz") or not _in_utc(expression):
            return None
        return ["time part", part, translator.translate(child)]

    return extract


_TRUNCATIONS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    **dict.fromkeys(("mon", "month", "mm"), "month"),
    **{unit: unit for unit in ("quarter", "week", "hour", "minute", "second", "millisecond", "microsecond")},
    **dict.fromkeys(("day", "dd"), "day"),
}


def _truncate_date(translator: _Translator, expression: Any) -> Expression | None:
    unit = _truncation(expression.format())
    # Of a quarter Spark fails for the earliest dates, of the others it does not.
    if unit not in ("year", "month", "week"):
        return None
    return ["date start", unit, translator.translate(expression.date())]


def _truncate_time(translator: _Translator, expression: Any) -> Expression | None:
    unit = _truncation(expression.format())
    if unit is None or type_of(expression.timestamp()) != "timestamp" or not _in_utc(expression):
        return None
    return ["time start", unit, translator.translate(expression.timestamp())]


def _truncation(expression: Any) -> str | None:
    text = _constant(expression)
    return None if text is None else _TRUNCATIONS.get(text.lower())


def _add_interval(translator: _Translator, expression: Any) -> Expression | None:
    time, interval = expression.start(), expression.interval()
    known = kind_of(interval) == "Literal" and kind_of(interval.dataType()).startswith("DayTimeInterval")
    if not known or interval.value() is None or not _in_utc(expression):
        return None
    number = ["+", ["as", "bigint", translator.translate(time)], ["literal", "bigint", int(interval.value())]]
    return ["as", type_of(expression), number]


def _subtract_times(translator: _Translator, expression: Any) -> Expression | None:
    if type_of(expression) != "interval day to second" or not _in_utc(expression):
        return None
    end, start = translator.all(expression)
    return ["as", "interval day to second", ["-", ["as", "bigint", end], ["as", "bigint", start]]]


def _in_utc(expression: Any) -> bool:
    return str(expression.zoneId().normalized().getId()) == "Z"


# Text


def _of_text(name: str) -> Translation:
    """A function of text whose other arguments are known now."""

    def call(translator: _Translator, expression: Any) -> Expression | None:
        text, *others = parts_of(expression.children())
        if type_of(text) != "string":
            return None
        values = [_constant(other) if type_of(other) == "string" else None for other in others]
        return None if None in values else [name, translator.translate(text), *values]

    return call


def _like(translator: _Translator, expression: Any) -> Expression | None:
    found = _of_text("like")(translator, expression)
    return found if found is not None and "\\" not in found[2] and str(expression.escapeChar()) == "\\" else None


def _replace(translator: _Translator, expression: Any) -> Expression | None:
    found = _of_text("replace")(translator, expression)
    # Nothing is replaced if nothing is looked for.
    return found if found is None or found[2] else translator.translate(expression.srcExpr())


def _trim(name: str) -> Translation:
    def call(translator: _Translator, expression: Any) -> Expression | None:
        found = _of_text(name)(translator, expression)
        return found if found is None or len(found) > 2 else [*found, " "]

    return call


def _substring(translator: _Translator, expression: Any) -> Expression | None:
    text, *others = parts_of(expression.children())
    if type_of(text) != "string" or any(kind_of(other) != "Literal" or other.value() is None for other in others):
        return None
    return ["slice", translator.translate(text), *(int(other.value()) for other in others)]


def _constant(expression: Any) -> str | None:
    """A text that is known now."""
    known = kind_of(expression) == "Literal" and type_of(expression) == "string" and expression.value() is not None
    return _text(expression.value()) if known else None


def _literal(translator: _Translator, expression: Any) -> Expression | None:
    data_type = type_of(expression)
    return _literal_of(expression.value(), data_type) if is_plain(data_type) else None


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
    "NaNvl": _nan_value,
    "Greatest": _ordered("greatest"),
    "Least": _ordered("least"),
    "AtLeastNNonNulls": _at_least,
    "Add": _arithmetic("+"),
    "Subtract": _arithmetic("-"),
    "Multiply": _arithmetic("*"),
    "Divide": _division("divide"),
    "IntegralDivide": _division("divide whole"),
    "Remainder": _division("remainder"),
    "Pmod": _division("positive remainder"),
    "UnaryMinus": _unary("negate"),
    "Abs": _unary("abs"),
    "BitwiseAnd": _of_type("&", *_INTEGERS),
    "BitwiseOr": _of_type("|", *_INTEGERS),
    "BitwiseXor": _of_type("^", *_INTEGERS),
    "BitwiseNot": _of_type("~", *_INTEGERS),
    "ShiftLeft": _of_type("<<", "int", "bigint"),
    "ShiftRight": _of_type(">>", "int", "bigint"),
    "ShiftRightUnsigned": _of_type(">>>", "int", "bigint"),
    "Floor": _round_to_whole("floor"),
    "Ceil": _round_to_whole("ceil"),
    "Rint": _of_type("rint", "double"),
    "Sqrt": _of_type("sqrt", "double"),
    "Signum": _of_type("sign", "double"),
    "Round": _round,
    "Length": _of_type("length", "string"),
    "OctetLength": _of_type("bytes", "string", "binary"),
    "Substring": _substring,
    "Concat": _of_type("join", "string"),
    "StringTrim": _trim("trim"),
    "StringTrimLeft": _trim("trim left"),
    "StringTrimRight": _trim("trim right"),
    "StartsWith": _of_text("starts with"),
    "EndsWith": _of_text("ends with"),
    "Contains": _of_text("contains"),
    "Like": _like,
    "StringReplace": _replace,
    "UnixMicros": _time_as_number,
    "UnixMillis": _units(1000),
    "UnixSeconds": _units(SECOND),
    "UnixTimestamp": _seconds,
    "ToUnixTimestamp": _seconds,
    "MicrosToTimestamp": _time_as_number,
    "MillisToTimestamp": _units(1000),
    "SecondsToTimestamp": _units(SECOND),
    "PreciseTimestampConversion": _time_as_number,
    "UnixDate": _date_number("int"),
    "DateFromUnixDate": _date_number("date"),
    "Year": _date_part("year"),
    "Quarter": _date_part("quarter"),
    "Month": _date_part("month"),
    "WeekOfYear": _date_part("week"),
    "DayOfMonth": _date_part("day"),
    "DayOfYear": _date_part("day of year"),
    "DayOfWeek": _date_part("day of week"),
    "WeekDay": _date_part("weekday"),
    "Hour": _time_part("hour"),
    "Minute": _time_part("minute"),
    "Second": _time_part("second"),
    "LastDay": _of_type("last day", "date"),
    "DateAdd": _of_type("add days", "date", "int", "smallint", "tinyint"),
    "DateSub": _of_type("subtract days", "date", "int", "smallint", "tinyint"),
    "DateDiff": _of_type("count days", "date"),
    "TruncDate": _truncate_date,
    "TruncTimestamp": _truncate_time,
    "TimestampAddInterval": _add_interval,
    "SubtractTimestamps": _subtract_times,
}


def _fails_on_error(expression: Any) -> bool:
    """Whether it fails on overflow: in ANSI mode, and not as `try_add`."""
    return str(expression.evalMode().toString()) == "ANSI"


def is_plain(data_type: str) -> bool:
    """Whether it is a type that expressions over Arrow have."""
    return data_type in TYPES or data_type.startswith("decimal(")


def kind_of(expression: Any) -> str:
    """The name of the class of an object of Java."""
    return str(expression.getClass().getSimpleName())


def type_of(expression: Any) -> str:
    """The type of an expression as SQL."""
    return str(expression.dataType().catalogString())


def _text(value: Any) -> str:
    return str(value.toString()) if hasattr(value, "toString") else str(value)


def parts_of(collection: Any) -> list[Any]:
    """A collection of Scala as a list."""
    iterator = collection.iterator()
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found
