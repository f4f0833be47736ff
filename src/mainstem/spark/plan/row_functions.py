"""The functions of expressions over Arrow (see `row_expression`), each with Spark's meaning in ANSI mode and in UTC.

Arguments are arrays or scalars; parameters, known when the plan is translated, are plain values. Where Arrow's own function
differs from Spark's (NaN, negative remainders, dates beyond the year 32767), numpy computes it here.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid

__all__ = ["FAILING", "FUNCTIONS", "NULL_FUNCTIONS", "TYPES", "arrow_type", "find_in", "literal"]

# Spark's names of the plain types. Literals of dates, times and intervals are numbers of days or microseconds.
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
    "interval day to second": pa.duration("us"),
}

Numbers = npt.NDArray[Any]

_SECOND = 1_000_000
_HOUR = 3600 * _SECOND
_DAY = 24 * _HOUR


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of one of Spark's plain types.

    >>> arrow_type("decimal(8,2)")
    Decimal128Type(decimal128(8, 2))
    """
    if name.startswith("decimal("):
        return pa.decimal128(*map(int, name[len("decimal(") : -1].split(",")))
    return TYPES[name]


def literal(kind: str, value: Any) -> pa.Scalar:
    """A value that is the same for all rows.

    >>> literal("date", 1)
    <pyarrow.Date32Scalar: datetime.date(1970, 1, 2)>
    """
    data_type = arrow_type(kind)
    if value is None:
        return pa.scalar(None, data_type)
    if kind.startswith("decimal"):
        return pa.scalar(Decimal(value), data_type)
    if kind == "binary":
        return pa.scalar(bytes.fromhex(value), data_type)
    if kind in ("float", "double"):
        return pa.scalar(float(value), data_type)
    return pa.scalar(value, _storage(data_type)).cast(data_type)


def _storage(data_type: pa.DataType) -> pa.DataType:
    """The numbers that dates and times are."""
    if pa.types.is_date32(data_type):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(data_type) or pa.types.is_duration(data_type) else data_type


# Between Arrow and numpy


def _numbers(value: Any) -> Any:
    """Numbers, dates or times as numpy has them; anything in the place of nulls."""
    storage = _storage(value.type)
    kind = storage.to_pandas_dtype()
    if isinstance(value, pa.Scalar):
        return np.array(value.cast(storage).as_py() if value.is_valid else 0, kind)
    buffer = value.buffers()[1]
    if not buffer:
        return np.zeros(len(value), kind)
    return np.frombuffer(buffer, kind, len(value), value.offset * np.dtype(kind).itemsize)


def _present(numbers: Numbers, data_type: str, *values: Any) -> Any:
    """Numbers as a type of Spark, null where one of the values is null."""
    kind = TYPES[data_type]
    if any(isinstance(value, pa.Scalar) and not value.is_valid for value in values):
        return pa.nulls(len(numbers), kind)
    data = pa.py_buffer(np.ascontiguousarray(numbers, _storage(kind).to_pandas_dtype()))
    nullable = [value for value in values if isinstance(value, pa.Array) and value.null_count]
    if len(nullable) == 1 and not nullable[0].offset:
        return pa.Array.from_buffers(kind, len(numbers), [nullable[0].buffers()[0], data], nullable[0].null_count)
    found = pa.Array.from_buffers(kind, len(numbers), [None, data])
    for value in nullable:
        found = pc.if_else(pc.is_valid(value), found, pa.scalar(None, kind))
    return found


def _whole_numbers(compute: Callable[[Numbers], Numbers], data_type: str) -> Callable[[Any], Any]:
    """A function of one argument, by numpy."""
    return lambda value: _present(compute(_numbers(value)), data_type, value)


# Errors


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


def _refuse_zero(divisor: Any, dividend: Any) -> None:
    zero = pc.equal(divisor, pa.scalar(0, divisor.type))
    if isinstance(zero, pa.Scalar):
        found = zero.as_py() and (
            dividend.is_valid if isinstance(dividend, pa.Scalar) else dividend.null_count < len(dividend)
        )
    else:
        found = pc.any(pc.and_(zero, pc.is_valid(dividend))).as_py()
    if found:
        raise Invalid(
            "a number is divided by zero",
            detail="The divisor of a row is 0: DIVIDE_BY_ZERO.",
            hint="Use try_divide or nullif(divisor, 0), which give null.",
        )


# Comparisons


def find_in(value: Any, literals: list[pa.Scalar]) -> Any:
    """Whether a value is in a list. Null in a list is never equal; the result is null if no other value matches."""
    # A column may have been widened since the plan was translated.
    wanted = pa.array(literals, literals[0].type).cast(value.type)
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


def _greatest(*values: Any) -> Any:
    return reduce(lambda one, other: pc.if_else(_replaces(_less(one, other), one, other), other, one), values)


def _least(*values: Any) -> Any:
    return reduce(lambda one, other: pc.if_else(_replaces(_less(other, one), one, other), other, one), values)


def _replaces(better: Any, one: Any, other: Any) -> Any:
    """Where another value is taken: nulls are left out, and of two equal ones the first is taken (0.0 and -0.0)."""
    return pc.or_(pc.fill_null(better, False), pc.and_(pc.is_null(one), pc.is_valid(other)))


def _count_present(least: int, *values: Any) -> Any:
    """Whether so many of the values are neither null nor NaN."""
    known = [pc.invert(pc.is_null(value, nan_is_null=True)).cast(pa.int32()) for value in values]
    return pc.greater_equal(reduce(pc.add, known), pa.scalar(least, pa.int32()))


# Numbers


def _cast(data_type: str, value: Any) -> Any:
    return pc.cast(value, arrow_type(data_type), safe=False)


def _narrow(data_type: str, value: Any) -> Any:
    """A number as an integer of fewer values."""
    kind = TYPES[data_type]
    if pa.types.is_integer(value.type):
        return _checked(lambda value: pc.cast(value, kind), f"a cast to {data_type}")(value)
    # In doubles, as in Java: 2^63 is not larger than the largest bigint, and becomes that.
    numbers = np.trunc(_numbers(value).astype(np.float64))
    bounds = np.iinfo(kind.to_pandas_dtype())
    outside = pa.array(~((numbers <= float(bounds.max)) & (numbers >= float(bounds.min))))
    if pc.any(pc.and_(outside, pc.is_valid(value))).as_py():
        raise _overflow(f"a cast to {data_type}", value.type)
    return _present(_saturate(numbers).clip(bounds.min, bounds.max), data_type, value)


def _saturate(numbers: Numbers) -> Numbers:
    """Doubles as bigint as Java does it: NaN is 0, and what is too large the largest."""
    inside = (numbers >= -(2.0**63)) & (numbers < 2.0**63)
    found = np.where(inside, numbers, 0).astype(np.int64)
    found[numbers >= 2.0**63] = 2**63 - 1
    found[numbers < -(2.0**63)] = -(2**63)
    return found


def _decimal_to_double(data_type: str, value: Any) -> Any:
    """The nearest double."""
    scale = value.type.scale
    if value.type.precision <= 15 and scale <= 22:
        # Both are exact as doubles, so the quotient is the nearest one.
        unscaled = pc.cast(value.cast(pa.decimal128(38, scale)), pa.decimal128(38, scale))
        low = np.frombuffer(unscaled.buffers()[1], np.int64)[2 * unscaled.offset :: 2][: len(unscaled)]
        return _present((low / 10.0**scale).astype(TYPES[data_type].to_pandas_dtype()), data_type, value)
    return pa.array([None if found is None else float(found) for found in value.to_pylist()], TYPES[data_type])


def _round_decimal(data_type: str, digits: int, value: Any) -> Any:
    """Half away from zero."""
    wide = pc.cast(value, pa.decimal128(value.type.precision + 1, value.type.scale))
    return pc.cast(pc.round(wide, digits, "half_towards_infinity"), arrow_type(data_type))


def _remainder_of_literal(number: Any, divisor: int) -> Any:
    numbers = _numbers(number)
    by = numbers.dtype.type(divisor)
    found = _wrap(numbers, by)
    if len(numbers) and numbers.min() < 0:
        # With the sign of the dividend, as in Java.
        found -= np.where((numbers < 0) & (found != 0), by, numbers.dtype.type(0))
    return _present(found, _name(number), number)


def _wrap(numbers: Numbers, by: Any) -> Numbers:
    """The remainder that is never negative. numpy divides fast by a number, but has no fast remainder."""
    found: Numbers = numbers - numbers // by * by
    return found


def _remainder(divisor: Any, dividend: Any) -> Any:
    _refuse_zero(divisor, dividend)
    with np.errstate(all="ignore"):
        return _present(np.fmod(_numbers(dividend), _numbers(divisor)), _name(dividend), divisor, dividend)


def _positive_remainder(divisor: Any, dividend: Any) -> Any:
    _refuse_zero(divisor, dividend)
    by = _numbers(divisor)
    with np.errstate(all="ignore"):
        found = np.fmod(_numbers(dividend), by)
        return _present(np.where(found < 0, np.fmod(found + by, by), found), _name(dividend), divisor, dividend)


def _divide(divisor: Any, dividend: Any) -> Any:
    _refuse_zero(divisor, dividend)
    return pc.divide(dividend, divisor)


def _divide_whole(divisor: Any, dividend: Any) -> Any:
    _refuse_zero(divisor, dividend)
    return _checked(pc.divide_checked, "a division")(dividend, divisor)


def _name(value: Any) -> str:
    return next(name for name, data_type in TYPES.items() if data_type == value.type)


def _shift(way: str) -> Callable[[Any, Any], Any]:
    def shift(value: Any, by: Any) -> Any:
        numbers = _numbers(value)
        width = numbers.dtype.itemsize * 8
        # Java takes the lowest bits of the distance.
        distance = (_numbers(by) & (width - 1)).astype(numbers.dtype)
        if way == "left":
            found = np.left_shift(numbers, distance)
        elif way == "right":
            found = np.right_shift(numbers, distance)
        else:
            unsigned = numbers.view(f"u{width // 8}")
            found = np.right_shift(unsigned, distance.astype(unsigned.dtype)).view(numbers.dtype)
        return _present(found, _name(value), value, by)

    return shift


def _sign(numbers: Numbers) -> Numbers:
    return np.where((numbers == 0) | np.isnan(numbers), numbers, np.copysign(1.0, numbers))


# Text


def _slice(value: Any, position: int, length: int) -> Any:
    """As SQL counts: from 1, from the end if negative."""
    if length <= 0:
        return pc.utf8_slice_codeunits(value, 0, 0)
    start = position - 1 if position > 0 else position
    stop: int | None = start + length
    if position < 0 <= start + length or start + length > 2**31 - 1:
        stop = None
    return pc.utf8_slice_codeunits(value, start, stop)


def _join(*values: Any) -> Any:
    return pc.binary_join_element_wise(*values, "")


# Dates and times. Dates are numbers of days, times of microseconds, since 1970.


def _months(days: Numbers) -> Numbers:
    return days.astype("M8[D]").astype("M8[M]")


def _years(days: Numbers) -> Numbers:
    return days.astype("M8[D]").astype("M8[Y]")


def _day(months_or_years: Numbers) -> Numbers:
    """The first day."""
    return months_or_years.astype("M8[D]").astype(np.int64)


def _weekday(days: Numbers) -> Numbers:
    """From 0, Monday. The first day of 1970 was a Thursday."""
    return (days.astype(np.int64) + 3) % 7


def _week(days: Numbers) -> Numbers:
    """The week of the year: the one with the year's first Thursday is the first."""
    thursday = days.astype(np.int64) - _weekday(days) + 3
    return (thursday - _day(_years(thursday))) // 7 + 1


def _monday(days: Numbers) -> Numbers:
    """The first day of the week. In 32 bits, as Spark counts: it wraps around below the first date."""
    start = days.astype(np.int32) - np.int32(7)
    return start + np.int32(1) + (np.int32(3) - start) % np.int32(7)


_DATE_PARTS: dict[str, Callable[[Numbers], Numbers]] = {
    "year": lambda days: _years(days).astype(np.int64) + 1970,
    "quarter": lambda days: _months(days).astype(np.int64) % 12 // 3 + 1,
    "month": lambda days: _months(days).astype(np.int64) % 12 + 1,
    "week": _week,
    "day": lambda days: days - _day(_months(days)) + 1,
    "day of year": lambda days: days - _day(_years(days)) + 1,
    "day of week": lambda days: (days.astype(np.int64) + 4) % 7 + 1,
    "weekday": _weekday,
}
_TIME_PARTS = {"hour": (_HOUR, 24), "minute": (60 * _SECOND, 60), "second": (_SECOND, 60)}

_FIRST_DAYS: dict[str, Callable[[Numbers], Numbers]] = {
    "year": lambda days: _day(_years(days)),
    "quarter": lambda days: _day((_months(days).astype(np.int64) // 3 * 3).astype("M8[M]")),
    "month": lambda days: _day(_months(days)),
    "week": _monday,
    "day": lambda days: days.astype(np.int64),
}
_UNITS = {"hour": _HOUR, "minute": 60 * _SECOND, "second": _SECOND, "millisecond": 1000, "microsecond": 1}


# The same ones of Arrow, which are faster, and right for the years that it knows: up to 32767, in both directions.
_ARROW_PARTS = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "day of year": pc.day_of_year,
}
_ARROW_DAYS = 11_000_000
# The years with four digits.
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897


def _date_part(part: str, value: Any) -> Any:
    if part in _ARROW_PARTS and _are_near(_numbers(value)):
        return _ARROW_PARTS[part](value).cast(pa.int32())
    return _present(_DATE_PARTS[part](_numbers(value)), "int", value)


def _time_part(part: str, value: Any) -> Any:
    unit, count = _TIME_PARTS[part]
    return _present(_wrap(_numbers(value) // unit, count), "int", value)


def _are_near(days: Numbers) -> bool:
    return not len(days) or bool(days.min() > -_ARROW_DAYS and days.max() < _ARROW_DAYS)


def _first_day(unit: str, days: Numbers) -> Numbers:
    within = {"month": pc.day, "year": pc.day_of_year}.get(unit)
    if within is None or not _are_near(days):
        return _FIRST_DAYS[unit](days)
    found: Numbers = days - np.asarray(within(pa.array(days.astype(np.int32, copy=False)).view(pa.date32()))) + 1
    return found


def _date_start(unit: str, value: Any) -> Any:
    return _present(_first_day(unit, _numbers(value)), "date", value)


def _time_start(unit: str, value: Any) -> Any:
    number = value.cast(pa.int64())
    if unit in _UNITS:
        beyond = _present(_wrap(_numbers(value), _UNITS[unit]), "bigint", value)
        return _checked(pc.subtract_checked, "date_trunc")(number, beyond).view(value.type)
    days = _present(_first_day(unit, _numbers(value) // _DAY), "bigint", value)
    return _checked(pc.multiply_checked, "date_trunc")(days, pa.scalar(_DAY)).view(value.type)


def _last_day(days: Numbers) -> Numbers:
    return _day(_months(days) + 1) - 1


def _floor_divide(data_type: str, unit: int, value: Any) -> Any:
    """How many whole units there are in a time or a number."""
    return _present(_numbers(value) // unit, data_type, value)


def _seconds(time: Any) -> Any:
    """Towards 1970, not down."""
    return pc.divide(time.cast(pa.int64()), pa.scalar(_SECOND))


def _multiply(data_type: str, unit: int, value: Any) -> Any:
    number = value.cast(_storage(value.type)).cast(pa.int64())
    found = _checked(pc.multiply_checked, "a time")(number, pa.scalar(unit))
    return found.cast(TYPES[data_type])


def _add_days(date: Any, days: Any) -> Any:
    return _present(_numbers(date) + _numbers(days), "date", date, days)


def _subtract_days(date: Any, days: Any) -> Any:
    return _present(_numbers(date) - _numbers(days), "date", date, days)


def _count_days(end: Any, start: Any) -> Any:
    return _present(_numbers(end) - _numbers(start), "int", end, start)


def _show_date(date: Any) -> Any:
    days = _numbers(date)
    if not len(days) or (days.min() >= _YEAR_1 and days.max() < _YEAR_10000):
        return pc.cast(date, pa.string())
    parts = zip(*(_DATE_PARTS[part](days).tolist() for part in ("year", "month", "day")), strict=True)
    signs = ("-" if year < 0 else "+" if year > 9999 else "" for year in _DATE_PARTS["year"](days).tolist())
    found = [
        f"{sign}{abs(year):04d}-{month:02d}-{day:02d}" for sign, (year, month, day) in zip(signs, parts, strict=True)
    ]
    return pa.array(found, pa.string(), mask=np.asarray(pc.is_null(date)))


def _show_time(time: Any) -> Any:
    """Without the zeros at the end of a fraction."""
    of_day = _present(_wrap(_numbers(time), _DAY), "bigint", time).cast(pa.time64("us")).cast(pa.string())
    shown = pc.utf8_rtrim(pc.utf8_rtrim(of_day, "0"), ".")
    return pc.binary_join_element_wise(_show_date(_floor_divide("date", _DAY, time)), shown, " ")


# Null if one of their arguments is null.
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
    "negate": _checked(pc.negate_checked, "a negation"),
    "abs": _checked(pc.abs_checked, "an absolute value"),
    "%": _remainder_of_literal,
    "&": pc.bit_wise_and,
    "|": pc.bit_wise_or,
    "^": pc.bit_wise_xor,
    "~": pc.bit_wise_not,
    "<<": _shift("left"),
    ">>": _shift("right"),
    ">>>": _shift("right, with zeros"),
    # Of floating-point numbers and decimals
    "+.": pc.add,
    "-.": pc.subtract,
    "*.": pc.multiply,
    "negate.": pc.negate,
    "abs.": pc.abs,
    "floor": _whole_numbers(lambda numbers: _saturate(np.floor(numbers)), "bigint"),
    "ceil": _whole_numbers(lambda numbers: _saturate(np.ceil(numbers)), "bigint"),
    "rint": _whole_numbers(np.rint, "double"),
    "sqrt": pc.sqrt,
    "sign": _whole_numbers(_sign, "double"),
    "round": _round_decimal,
    # Of the divisor and the dividend: Spark computes the divisor first.
    "divide": _divide,
    "divide whole": _divide_whole,
    "remainder": _remainder,
    "positive remainder": _positive_remainder,
    # To a type that has all values of the other one, or the nearest; to one that has not
    "as": _cast,
    "decimal as": _decimal_to_double,
    "to": _narrow,
    # Of text
    "length": pc.utf8_length,
    "bytes": pc.binary_length,
    "slice": _slice,
    "join": _join,
    "trim": pc.utf8_trim,
    "trim left": pc.utf8_ltrim,
    "trim right": pc.utf8_rtrim,
    "starts with": pc.starts_with,
    "ends with": pc.ends_with,
    "contains": pc.match_substring,
    "like": pc.match_like,
    "replace": pc.replace_substring,
    # Of dates and times
    "date part": _date_part,
    "time part": _time_part,
    "date start": _date_start,
    "time start": _time_start,
    "last day": _whole_numbers(_last_day, "date"),
    "add days": _add_days,
    "subtract days": _subtract_days,
    "count days": _count_days,
    "units": _floor_divide,
    "seconds": _seconds,
    "show date": _show_date,
    "show time": _show_time,
    "times": _multiply,
}

# Functions that get nulls too.
NULL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "null": pc.is_null,
    "<=>": _same,
    "nan": lambda value: pc.fill_null(pc.is_nan(value), False),
    "greatest": _greatest,
    "least": _least,
    "at least": _count_present,
}

# Functions that fail for some values.
FAILING = {
    "+",
    "-",
    "*",
    "abs",
    "divide",
    "divide whole",
    "negate",
    "positive remainder",
    "remainder",
    "time start",
    "times",
    "to",
}
