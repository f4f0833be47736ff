"""Values in JSON and CSV: read as values of a topic's columns (or refused), and written.

    BOOLEAN             true, false
    numbers             as they are; a DOUBLE or FLOAT also as "NaN", "Infinity", "-Infinity"
    DECIMAL             a number, or text: "12.50"; exact either way; written as text
    STRING              text
    BINARY              text in base64
    DATE, TIME          text in ISO 8601: "2026-01-01", "09:00:00"
    TIMESTAMP           text in ISO 8601 with a zone: "2026-01-01T09:00:00Z"
    TIMESTAMP_NTZ       text in ISO 8601 without a zone
    ARRAY               a list
    STRUCT              an object
    MAP                 an object, or a list of [key, value] pairs; written as an object if its keys are text, each once

A cell of a CSV file has the same as text, nested values as JSON. The output of `topic read` can be appended again. The
topic itself checks the range of numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.rows.column_types import contains, kind_of
from mainstem.log.rows.readable_values import python_value as unread_value
from mainstem.log.rows.row_errors import format_value
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = [
    "NotAValue",
    "Reader",
    "Writer",
    "cell_text",
    "column_values",
    "has_decimals",
    "json_line",
    "json_reader",
    "parse_json",
    "plain_writer",
    "python_value",
    "quote",
    "text_reader",
]

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_QUOTED_MAX = 60
# Kind -> the accepted JSON types, and the hint for others; any other kind is text.
_ACCEPTED: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "Write true or false."),
    "integer": ((int, float, Decimal), "Write a whole number, without quotes."),
    "floating": ((int, float, Decimal), 'Write a number, without quotes; "NaN" and "Infinity" are text.'),
    "decimal": ((int, Decimal, str), 'Write a number, or text: "12.50".'),
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,4000}(\.[0-9]{0,4000})?|\.[0-9]{1,4000})([eE][+-]?[0-9]{1,6})?")
# Python's parser of times drops digits beyond microseconds.
_TOO_FINE = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
# JSON escapes characters below a space; terminals interpret these too.
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")


class NotAValue(Exception):
    """A value that does not fit its column. The caller adds the line number."""

    def __init__(self, path: str, data_type: pa.DataType, value: Any, hint: str) -> None:
        super().__init__(f'column "{path}" is {type_to_ddl(data_type)}, got {_describe(value)}')
        self.path = path
        self.hint = hint


def quote(text: str) -> str:
    """Text in double quotes, on one line and not too long.

    >>> quote('5" pipe')
    '"5\\\\" pipe"'
    """
    return json.dumps(text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}...", ensure_ascii=False)


def _describe(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {quote(value)}"
    if isinstance(value, dict):
        return "an object"
    return (
        "a list"
        if isinstance(value, list)
        else f"the number {format_value(float(value) if value != value // 1 else value)}"
    )


def parse_json(text: str, *, exact: bool = False) -> Any:
    """The value of JSON text; `exact` keeps all digits of numbers with a point, for decimals. Raises ValueError."""
    return json.loads(text, parse_float=Decimal if exact else None, parse_constant=_no_constant)


def _no_constant(word: str) -> Any:
    raise ValueError(f'{word} is not JSON; write it as text: "{word}"')


def has_decimals(data_type: pa.DataType) -> bool:
    """Whether a type is or contains a decimal."""
    return contains(data_type, ["decimal"])


# Reading JSON


def json_reader(data_type: pa.DataType, path: str) -> Reader:
    """A function that converts a JSON value to a value of that type, or raises `NotAValue`.

    >>> json_reader(pa.timestamp("us", "UTC"), "placed_at")("2026-01-01T09:00:00Z").isoformat()
    '2026-01-01T09:00:00+00:00'
    """
    inner = _NESTED.get(kind_of(data_type), _plain_reader)(data_type, path)
    return lambda value: None if value is None else inner(value)


def _struct_reader(data_type: pa.DataType, path: str) -> Reader:
    fields = {field.name: json_reader(field.type, f"{path}.{field.name}") for field in data_type}

    def read_struct(value: Any) -> Any:
        if not isinstance(value, dict):
            raise NotAValue(path, data_type, value, f"Write an object with: {', '.join(fields)}.")
        # An unknown field is passed on; the topic refuses it.
        return {name: fields[name](item) if name in fields else item for name, item in value.items()}

    return read_struct


def _list_reader(data_type: pa.DataType, path: str) -> Reader:
    element = json_reader(data_type.value_type, f"{path}.element")

    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            raise NotAValue(path, data_type, value, "Write a list: [...].")
        return [element(item) for item in value]

    return read_list


def _map_reader(data_type: pa.DataType, path: str) -> Reader:
    key = json_reader(data_type.key_type, f"{path}.key")
    # The keys of a JSON object are always text.
    name = text_reader(data_type.key_type, f"{path}.key")
    item = json_reader(data_type.item_type, f"{path}.value")

    def read_map(value: Any) -> Any:
        if isinstance(value, dict):
            return [(name(word), item(inner)) for word, inner in value.items()]
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return [(key(pair[0]), item(pair[1])) for pair in value]
        raise NotAValue(path, data_type, value, "Write an object, or a list of [key, value] pairs.")

    return read_map


_NESTED = {"struct": _struct_reader, "map": _map_reader, "list": _list_reader}


def _nearest(number: Any) -> float | None:
    """The double nearest to a number in digits; None if it is out of range."""
    try:
        found = float(number)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _plain_reader(data_type: pa.DataType, path: str) -> Reader:
    from_text = text_reader(data_type, path)
    kind = kind_of(data_type)
    accepted, hint = _ACCEPTED.get(kind) or ((str,), _TEXT[kind][1])
    plain_text, floating, integer = kind == "string", kind == "floating", kind == "integer"

    def read(value: Any) -> Any:
        if isinstance(value, str):
            if plain_text:
                return value
            if str in accepted or (floating and value in _NOT_FINITE):
                return from_text(value)
        elif isinstance(value, accepted) and (bool in accepted or not isinstance(value, bool)):
            if floating:
                if (nearest := _nearest(value)) is not None:
                    return nearest
            elif isinstance(value, Decimal) and integer:
                return float(value) if value % 1 else int(value)
            else:
                return value
        raise NotAValue(path, data_type, value, hint)

    return read


# Reading text


def text_reader(data_type: pa.DataType, path: str) -> Reader:
    """A function that converts a cell of a CSV file to a value of that type; None is null.

    >>> text_reader(pa.list_(pa.int32()), "sizes")("[1, 2]")
    [1, 2]
    """
    kind = kind_of(data_type)
    if kind == "string":
        return lambda cell: cell
    inner, hint = (json_reader(data_type, path), "Write it as JSON.") if kind in _NESTED else _TEXT[kind]
    exact = has_decimals(data_type)

    def read(cell: str | None) -> Any:
        if cell is None:
            return None
        try:
            if kind in _NESTED:
                return inner(parse_json(cell, exact=exact))
            return inner(cell.strip())
        except (ValueError, ArithmeticError, RecursionError):
            raise NotAValue(path, data_type, cell, hint) from None

    return read


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _no(text)


def _no(text: str) -> Any:
    raise ValueError(text)


def _integer(text: str) -> int:
    return int(text) if _WHOLE.fullmatch(text) else _no(text)


def _floating(text: str) -> float:
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    return float(text) if _NUMBER.fullmatch(text) else _no(text)


def _decimal(text: str) -> Decimal:
    return Decimal(text) if _NUMBER.fullmatch(text) else _no(text)


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return bytes(_no(text))


def _time(text: str) -> time:
    value = time.fromisoformat(_fine_enough(text))
    return value if value.tzinfo is None else _no(text)


def _timestamp(text: str) -> datetime:
    value = datetime.fromisoformat(_fine_enough(text))
    return value if value.tzinfo is not None else _no(text)


def _timestamp_ntz(text: str) -> datetime:
    value = datetime.fromisoformat(_fine_enough(text))
    return value if value.tzinfo is None else _no(text)


def _fine_enough(text: str) -> str:
    return _no(text) if _TOO_FINE.search(text) else text


# Kind -> the parser of its text, and the hint for text that is invalid.
_TEXT: dict[str, tuple[Reader, str]] = {
    "boolean": (_boolean, "Write true or false."),
    "integer": (_integer, "Write a whole number."),
    "floating": (_floating, "Write a number, with a point before the decimals."),
    "decimal": (_decimal, "Write a number, with a point before the decimals."),
    "string": (str, "Write text, in quotes."),
    "binary": (_binary, "Write the bytes in base64."),
    "date": (date.fromisoformat, 'Write a date as in "2026-01-31".'),
    "time": (_time, 'Write a time of day as in "09:00:00.25", without a zone.'),
    "timestamp": (
        _timestamp,
        'Write a time with its zone, to the microsecond at most: "2026-01-01T09:00:00Z".',
    ),
    "timestamp_ntz": (
        _timestamp_ntz,
        'Write a time without a zone, to the microsecond at most: "2026-01-01T09:00:00".',
    ),
}


# Writing


def plain_writer(data_type: pa.DataType) -> Writer:
    """A function that converts a Python value of that type to a JSON value.

    >>> plain_writer(pa.map_(pa.string(), pa.decimal128(4, 2)))([("price", Decimal("12.50"))])
    {'price': '12.50'}
    """
    inner = _writer(data_type)
    return lambda value: None if value is None else inner(value)


def _writer(data_type: pa.DataType) -> Writer:
    kind = kind_of(data_type)
    if kind == "struct":
        fields = {field.name: plain_writer(field.type) for field in data_type}
        return lambda value: {name: write(value[name]) for name, write in fields.items()}
    if kind == "map":
        key, item = plain_writer(data_type.key_type), plain_writer(data_type.item_type)
        if kind_of(data_type.key_type) == "string":
            return lambda value: _object([(name, item(inner)) for name, inner in value])
        return lambda value: [[key(name), item(inner)] for name, inner in value]
    if kind == "list":
        element = plain_writer(data_type.value_type)
        return lambda value: [element(item) for item in value]
    return _plain


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """An object, unless a key appears twice: then a list of pairs."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else [list(pair) for pair in pairs]


def python_value(value: Any) -> Any:
    """The JSON value of a Python value whose type is unknown: a row of a message."""
    if isinstance(value, dict):
        return {name: python_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [python_value(item) for item in value]
    return None if value is None else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def column_values(array: pa.Array | pa.ChunkedArray, write: Writer) -> list[Any]:
    """The values of a column as JSON values."""
    try:
        return [write(value) for value in array.to_pylist()]
    except (ValueError, OverflowError):
        # Python cannot represent one of them: a year after 9999, a time finer than a microsecond, bytes that are not UTF-8.
        return [_write(scalar, write) for scalar in array]


def _write(scalar: pa.Scalar, write: Writer) -> Any:
    try:
        return write(scalar.as_py())
    except (ValueError, OverflowError) as error:
        if kinds.is_temporal(scalar.type) and not isinstance(error, OverflowError):
            # Finer than a microsecond.
            return scalar.cast(pa.string()).as_py()
        return write(unread) if isinstance(unread := unread_value(scalar), dict | list) else unread


def json_line(value: Any) -> str:
    """The value as JSON on one line; characters outside ASCII are not escaped.

    >>> json_line({"store": "Köln", "amount": 12.5})
    '{"store": "Köln", "amount": 12.5}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if _CONTROL.search(text) else text


def cell_text(value: Any) -> str:
    """A JSON value as the text of a cell; null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json_line(value)
