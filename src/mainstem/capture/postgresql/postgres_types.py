"""The types of PostgreSQL's columns as types of topics, and values in PostgreSQL's text form as Arrow arrays.

Logical replication (pgoutput) and COPY both send values in the text form. A topic has for each type of PostgreSQL:

    boolean                    BOOLEAN           bytea                          BINARY
    smallint                   SMALLINT          date                           DATE
    integer                    INT               time                           TIME
    bigint, oid                BIGINT            timestamp with time zone       TIMESTAMP
    real                       FLOAT             timestamp                      TIMESTAMP_NTZ
    double precision           DOUBLE            array of a built-in or enum    ARRAY<its element's type>
    numeric(p, s)              DECIMAL(p, s)     every other type               STRING: the text form

DECIMAL needs p <= 38 and 0 <= s <= p; any other numeric is a STRING, because no DECIMAL holds all of its values.
A column may also be given another type than this one. The types that it may have, by the type above:

    every type                      STRING
    SMALLINT, INT, BIGINT           an integer, DECIMAL, FLOAT or DOUBLE, for the values that it holds exactly
    FLOAT, DOUBLE                   FLOAT or DOUBLE, for the values that it holds exactly
    DECIMAL, numeric as STRING      DECIMAL of any precision and scale, for the values that it holds exactly
    ARRAY<T>                        ARRAY<U>, if T may be U

No value is rounded, cut or replaced by null. A value that its column cannot store raises `Unrepresentable`: NaN as
DECIMAL, infinity or a year outside 1 to 9999 as DATE or a timestamp, 24:00:00 as TIME, an array of several dimensions.

Whole columns are converted by Arrow's casts, arrays value by value. A cast that fails does not say at which value;
bisection finds the first one, for about the cost of a second cast.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.rows.column_types import NUMBERS, SCALARS, TIMESTAMPS, kind_of, nested_array
from mainstem.log.rows.row_errors import format_value
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["PostgresType", "SESSION_OPTIONS", "Unrepresentable", "arrow_array", "arrow_type"]

# The settings of a session on which the text form depends.
SESSION_OPTIONS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    # Each float has the shortest text that is read back as the same float.
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}

_NUMERIC, _BOX, _FLOAT4 = 1700, 603, 700
# pg_type.oid -> the type of a column; these numbers are the same in every release and every database.
_TYPES = {
    16: SCALARS["BOOLEAN"],
    17: SCALARS["BINARY"],
    20: SCALARS["BIGINT"],
    21: SCALARS["SMALLINT"],
    23: SCALARS["INT"],
    26: SCALARS["BIGINT"],
    _FLOAT4: SCALARS["FLOAT"],
    701: SCALARS["DOUBLE"],
    1082: SCALARS["DATE"],
    1083: SCALARS["TIME"],
    1114: SCALARS["TIMESTAMP_NTZ"],
    1184: SCALARS["TIMESTAMP"],
}
# int2vector and oidvector: the catalog calls them arrays, but their text form is "1 2 3".
_VECTORS = {22, 30}
# Types that users create have this oid or a higher one. Such a type chooses the delimiter of its arrays (PostGIS has
# ":"), as box does with ";"; those arrays stay in their text form.
_FIRST_USER_OID = 16_384
# Arrow's decimals have 128 bits.
_DIGITS_MAX = 38
_STRING = SCALARS["STRING"]
# 0001-01-01 and 10000-01-01 in days since 1970: Python, Spark and DuckDB all know the years between.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897

# An element of an array: quoted, or without characters that need quotes.
_ELEMENT = rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^",{}\\]+'
_ELEMENTS = re.compile(_ELEMENT, re.DOTALL)
_ONE_DIMENSION = re.compile(rb"\{(?:(?:%b)(?:,(?:%b))*)?\}" % (_ELEMENT, _ELEMENT), re.DOTALL)

_CALENDARS = {"date", *TIMESTAMPS}
_OTHER_YEAR = re.compile(r"^0000-|^\d{5,}-| BC$")

_Convert = Callable[[pa.Array], pa.Array]


class PostgresType(NamedTuple):
    """A column's type as PostgreSQL's catalog describes it; for a domain, the type under it."""

    # pg_type.oid
    oid: int
    # pg_attribute.atttypmod; of an array it is that of the elements.
    modifier: int = -1
    # As format_type() writes it, for messages.
    name: str = ""
    # The oid of the elements if this is an array (typelem where typcategory is 'A'), else 0.
    element: int = 0
    # Whether it is an enum, or an array of one.
    enum: bool = False
    # Of a domain the name of the type under it, without a modifier.
    base: str = ""


class Unrepresentable(Exception):
    """A column cannot store a value: `index` in the values given, `value` in text form, and the `reason`."""

    def __init__(self, index: int, value: str, reason: str) -> None:
        super().__init__(index, value, reason)
        self.index = index
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"value {self.index}, {format_value(self.value)}: {self.reason}"


def arrow_type(postgres: PostgresType) -> pa.DataType:
    """The type of a topic's column for a column of PostgreSQL.

    >>> arrow_type(PostgresType(1700, modifier=(10 << 16 | 2) + 4, name="numeric(10,2)"))
    Decimal128Type(decimal128(10, 2))
    >>> arrow_type(PostgresType(1007, name="integer[]", element=23))
    ListType(list<element: int32>)
    """
    if _is_array(postgres):
        return pa.list_(pa.field("element", arrow_type(_element_of(postgres))))
    if postgres.oid == _NUMERIC:
        return _numeric_type(postgres.modifier)
    return _TYPES.get(postgres.oid, _STRING)


def arrow_array(
    values: Sequence[bytes | None] | pa.BinaryArray, postgres: PostgresType, data_type: pa.DataType
) -> pa.Array:
    """Values in text form (None is null) as an array of `data_type`: `arrow_type(postgres)` or one that it may become.

    At most 2 GiB of text, as in every Arrow array.

    >>> arrow_array([b"2024-01-02", None], PostgresType(1082, name="date"), pa.date32()).to_pylist()
    [datetime.date(2024, 1, 2), None]
    >>> arrow_array([b"2024-01-02", b"infinity"], PostgresType(1082, name="date"), pa.date32())
    Traceback (most recent call last):
    mainstem.capture.postgresql.postgres_types.Unrepresentable: value 1, 'infinity': DATE cannot store infinity
    """
    texts = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    try:
        return _convert(texts, postgres, data_type)
    except ValueError as error:
        index = _first_refused(texts, postgres, data_type)
        value = texts[index].as_py()
        text = value.decode(errors="backslashreplace")
        raise Unrepresentable(index, text, _reason(value, postgres, data_type)) from error


# Types


def _is_array(postgres: PostgresType) -> bool:
    if not postgres.element or postgres.oid in _VECTORS or postgres.element == _BOX:
        return False
    return postgres.element < _FIRST_USER_OID or postgres.enum


def _element_of(postgres: PostgresType) -> PostgresType:
    return PostgresType(postgres.element, postgres.modifier, postgres.name.removesuffix("[]"), enum=postgres.enum)


def _numeric_type(modifier: int) -> pa.DataType:
    """The modifier is 4 more than: precision, 16 bits | scale, 11 bits, signed; -1 is no limit."""
    # Negative scales need no care: without their sign they are above 1,000.
    precision, scale = modifier - 4 >> 16, modifier - 4 & 0x7FF
    if modifier < 4 or not scale <= precision <= _DIGITS_MAX:
        return _STRING
    return pa.decimal128(precision, scale)


# Conversions of a column


def _converter(postgres: PostgresType, data_type: pa.DataType) -> _Convert | None:
    """None if a column of this type stores no value of the other."""
    if data_type == _STRING:
        return _strings
    kind, own_type = kind_of(data_type), arrow_type(postgres)
    # A numeric without limits, too, may be put into a DECIMAL.
    own_kind = "decimal" if postgres.oid == _NUMERIC else kind_of(own_type)
    if kind == "list" == own_kind:
        return lambda texts: _lists(texts, _element_of(postgres), data_type)
    if kind == "decimal" and own_kind in ("decimal", "integer"):
        return lambda texts: _decimals(texts, data_type)
    if kind == "floating" and own_kind in ("floating", "integer"):
        return lambda texts: _floats(texts, own_type, data_type)
    if kind == own_kind and kind in _CASTS:
        return lambda texts: _CASTS[kind](texts, data_type)
    return None


def _convert(texts: pa.Array, postgres: PostgresType, data_type: pa.DataType) -> pa.Array:
    """Raises a ValueError (Arrow's are such) if it refuses any value."""
    if (convert := _converter(postgres, data_type)) is not None:
        return convert(texts)
    if texts.null_count < len(texts):
        raise ValueError(f"{postgres} is no {data_type}")
    return pa.nulls(len(texts), data_type)


def _strings(texts: pa.Array) -> pa.Array:
    # Copies nothing, and refuses what is not UTF-8.
    return texts.cast(_STRING)


def _integers(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    return texts.cast(data_type)


def _floats(texts: pa.Array, own_type: pa.DataType, data_type: pa.DataType) -> pa.Array:
    """Read in the column's own type first: a real 0.1 is the double 0.10000000149011612, in PostgreSQL too."""
    own = texts.cast(own_type)
    # Arrow refuses integers beyond 2**53 (2**24 as FLOAT), even those that are exact, but it rounds doubles.
    found = own.cast(data_type)
    if own_type == pa.float64() != data_type:
        before, after = (array.to_numpy(zero_copy_only=False) for array in (own, found.cast(own_type)))
        if not np.array_equal(before, after, equal_nan=True):
            raise ValueError(f"not exact as {data_type}")
    return found


def _decimals(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Arrow refuses most numbers that do not fit, but overflows of its 128 bits are not noticed: as DECIMAL(38, 38), 1555.9
    becomes 0.8095... So the digits are counted where there may be more than 38 of them."""
    if _max(pc.binary_length(texts)) + data_type.scale > _DIGITS_MAX:
        texts = texts.cast(_STRING)
        whole, fraction = _digits_max(texts)
        if fraction > data_type.scale:
            texts = pc.replace_substring_regex(texts, r"(\..*?)0+$", r"\1")
            whole, fraction = _digits_max(texts)
        if whole > data_type.precision - data_type.scale or fraction > data_type.scale:
            raise ValueError(f"too many digits for {data_type}")
    return texts.cast(data_type)


def _digits_max(texts: pa.Array) -> tuple[int, int]:
    """The most digits that a number has before and after the point."""
    digits = pc.utf8_ltrim(texts, "-0")
    length, point = pc.binary_length(digits), pc.find_substring(digits, ".")
    whole = pc.if_else(pc.equal(point, -1), length, point)
    return _max(whole), _max(pc.subtract(length, whole)) - 1


def _max(numbers: pa.Array) -> int:
    return pc.max(numbers).as_py() or 0


def _booleans(texts: pa.Array, _: pa.DataType) -> pa.Array:
    found = pc.equal(texts, b"t")
    if pc.any(pc.and_not(pc.not_equal(texts, b"f"), found)).as_py():
        raise ValueError("neither t nor f")
    return found


def _binaries(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    r"""From `\x6d61`: the digits of all values are read at once, as they lie one after another."""
    if not pc.all(pc.starts_with(texts, r"\x"), min_count=0).as_py():
        raise ValueError("not in hex form")
    if texts.offset:
        texts = pa.concat_arrays([texts])
    valid, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1)
    present = np.ones(len(texts), np.int32) if not texts.null_count else texts.is_valid().to_numpy(zero_copy_only=False)
    # A value has two bytes before its digits, and null has none.
    digits = ends.copy()
    digits[1:] -= 2 * np.cumsum(present, dtype=np.int32)
    if np.any(digits & 1):
        raise ValueError("half a byte")
    found = binascii.unhexlify(memoryview(data)[: ends[-1]].tobytes().replace(rb"\x", b"")) if data else b""
    return pa.Array.from_buffers(data_type, len(texts), [valid, pa.py_buffer(digits >> 1), pa.py_buffer(found)])


def _moments(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    found = texts.cast(_STRING).cast(data_type)
    # Arrow reads the year 0000, and a zone can move a moment out of its year.
    width, day = (pa.int32(), 1) if data_type == pa.date32() else (pa.int64(), 86_400_000_000)
    ends = pc.min_max(found.view(width)).as_py()
    if ends["min"] is not None and not _FIRST_DAY * day <= ends["min"] <= ends["max"] < _END_DAY * day:
        raise ValueError("a year outside 1 to 9999")
    return found


def _times(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Arrow has no cast from text to a time, so they are read as moments of the first day."""
    moments = pc.utf8_replace_slice(texts.cast(_STRING), 0, 0, "1970-01-01 ").cast(SCALARS["TIMESTAMP_NTZ"])
    return moments.view(data_type)


# By kind of type, where only columns of the same kind fit.
_CASTS: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "boolean": _booleans,
    "integer": _integers,
    "binary": _binaries,
    "date": _moments,
    "time": _times,
    **dict.fromkeys(TIMESTAMPS, _moments),
}


def _lists(texts: pa.Array, element: PostgresType, data_type: pa.DataType) -> pa.Array:
    lists = [None if value is None else _elements(value) for value in texts.to_pylist()]
    found = [[] if elements is None else elements for elements in lists]
    offsets = list(accumulate(map(len, found), initial=0))
    elements = pa.array(list(chain.from_iterable(found)), pa.binary())
    column = _convert(elements, element, data_type.value_type)
    return nested_array(data_type, [column], offsets, lists)


def _elements(value: bytes) -> list[bytes | None]:
    r"""The elements of an array of one dimension: `{1,NULL,"a \"b\""}`. "NULL" in quotes is a text, without them null."""
    if b'"' not in value:
        # Nothing in it is escaped, and no element is empty. After bounds, `[0:1]={1,2}`, there is a brace too.
        if b"{" in (inside := value[1:-1]):
            raise ValueError("not an array of one dimension")
        found: list[bytes | None] = list(inside.split(b",")) if inside else []
        return [None if element == b"NULL" else element for element in found] if b"NULL" in found else found
    if _ONE_DIMENSION.fullmatch(value) is None:
        raise ValueError("not an array of one dimension")
    return [_unquoted(element) for element in _ELEMENTS.findall(value)]


def _unquoted(element: bytes) -> bytes | None:
    if element[:1] != b'"':
        return None if element == b"NULL" else element
    if b"\\" not in element:
        return element[1:-1]
    # No text of PostgreSQL has a NUL, so one can hold the place of a backslash; much faster than a regular expression.
    return element[1:-1].replace(rb"\\", b"\0").replace(b"\\", b"").replace(b"\0", b"\\")


# What is refused, and why


def _first_refused(texts: pa.Array, postgres: PostgresType, data_type: pa.DataType) -> int:
    """The index of the first value that is refused, given that one is."""
    begin, end = 0, len(texts)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            _convert(texts.slice(begin, middle - begin), postgres, data_type)
        except ValueError:
            end = middle
        else:
            begin = middle
    return begin


def _reason(value: bytes, postgres: PostgresType, data_type: pa.DataType) -> str:
    """Why a column of `data_type` refused the value."""
    shown, kind, name = type_to_ddl(data_type), kind_of(data_type), postgres.name or f"oid {postgres.oid}"
    if _converter(postgres, data_type) is None:
        return f"{shown} cannot store values of type {name}"
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    if kind == "list":
        return _array_reason(value, _element_of(postgres), data_type.value_type)
    if kind in _CALENDARS and text in ("infinity", "-infinity"):
        return f"{shown} cannot store infinity"
    if kind in _CALENDARS and _OTHER_YEAR.search(text):
        return f"{shown} stores the years 1 to 9999 only"
    if kind == "decimal" and text in ("NaN", "Infinity", "-Infinity"):
        return f"{shown} cannot store {text}"
    if kind == "time" and text == "24:00:00":
        return "TIME cannot store 24:00:00"
    if kind in NUMBERS:
        return f"{shown} cannot store this number exactly"
    return f"not the text form of {name} under SESSION_OPTIONS"


def _array_reason(value: bytes, element: PostgresType, data_type: pa.DataType) -> str:
    if value[:1] == b"[":
        return "ARRAY cannot store lower bounds"
    try:
        elements = _elements(value)
    except ValueError:
        return "ARRAY stores one dimension only"
    try:
        arrow_array(elements, element, data_type)
    except Unrepresentable as refused:
        return f"element {refused.index + 1}, {format_value(refused.value)}: {refused.reason}"
    raise AssertionError("each element was accepted, but not the array")
