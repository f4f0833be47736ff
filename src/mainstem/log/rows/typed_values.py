"""Values as JSON and CSV have them, turned into the values of a topic's columns, or refused.

    BOOLEAN             true, false
    numbers             as they are; a DOUBLE or FLOAT also as "NaN", "Infinity", "-Infinity"
    DECIMAL             a number, or text: "12.50"; exact either way
    STRING              text
    BINARY              text in base64
    DATE, TIME          text in ISO 8601: "2026-01-01", "09:00:00"
    TIMESTAMP           text in ISO 8601 with a zone: "2026-01-01T09:00:00Z"
    TIMESTAMP_NTZ       text in ISO 8601 without a zone
    ARRAY               a list
    STRUCT              an object
    MAP                 an object, or a list of [key, value] pairs

A cell of a CSV file holds the same as text, nested values as JSON. This is what `topic read` writes, so what it wrote
can be appended again. Whether a number is in range is decided by the topic itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.rows.row_errors import shown
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["NotAValue", "Reader", "has_decimals", "json_reader", "parse_json", "quoted", "text_reader"]

Reader = Callable[[Any], Any]

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_QUOTED_MAX = 60
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,4000}(\.[0-9]{0,4000})?|\.[0-9]{1,4000})([eE][+-]?[0-9]{1,6})?")
# Python's own reader of times drops what is finer than a microsecond.
_TOO_FINE = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")


class NotAValue(Exception):
    """A value that its column cannot take, whatever the number of its line."""

    def __init__(self, path: str, data_type: pa.DataType, value: Any, hint: str) -> None:
        super().__init__(f'column "{path}" is {type_to_ddl(data_type)}, got {_said(value)}')
        self.path = path
        self.hint = hint


def quoted(text: str) -> str:
    """Text in double quotes, on one line and not too long.

    >>> quoted('5" pipe')
    '"5\\\\" pipe"'
    """
    return json.dumps(text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}...", ensure_ascii=False)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, dict):
        return "an object"
    return (
        "a list" if isinstance(value, list) else f"the number {shown(float(value) if value != value // 1 else value)}"
    )


def parse_json(text: str, *, exact: bool = False) -> Any:
    """What JSON text says; `exact` keeps the digits of numbers with a point, for decimals. Raises ValueError."""
    return json.loads(text, parse_float=Decimal if exact else None, parse_constant=_no_constant)


def _no_constant(word: str) -> Any:
    raise ValueError(f'{word} is not JSON; write it as text: "{word}"')


def has_decimals(data_type: pa.DataType) -> bool:
    """Whether a decimal is in there somewhere."""
    if kinds.is_nested(data_type):
        return any(has_decimals(data_type.field(index).type) for index in range(data_type.num_fields))
    return bool(kinds.is_decimal(data_type))


# JSON


def json_reader(data_type: pa.DataType, path: str) -> Reader:
    """What turns a JSON value into a value of that type; it raises `NotAValue`.

    >>> json_reader(pa.timestamp("us", "UTC"), "placed_at")("2026-01-01T09:00:00Z").isoformat()
    '2026-01-01T09:00:00+00:00'
    """
    inner = _nested_reader(data_type, path) or _plain_reader(data_type, path)
    return lambda value: None if value is None else inner(value)


def _nested_reader(data_type: pa.DataType, path: str) -> Reader | None:
    if kinds.is_struct(data_type):
        fields = {field.name: json_reader(field.type, f"{path}.{field.name}") for field in data_type}

        def read_struct(value: Any) -> Any:
            if not isinstance(value, dict):
                raise NotAValue(path, data_type, value, f"Write an object with: {', '.join(fields)}.")
            # A field that is not known stays as it is; the topic says so.
            return {name: fields[name](item) if name in fields else item for name, item in value.items()}

        return read_struct
    if kinds.is_map(data_type):
        return _map_reader(data_type, path)
    if kinds.is_list(data_type):
        element = json_reader(data_type.value_type, f"{path}.element")

        def read_list(value: Any) -> Any:
            if not isinstance(value, list):
                raise NotAValue(path, data_type, value, "Write a list: [...].")
            return [element(item) for item in value]

        return read_list
    return None


def _map_reader(data_type: pa.DataType, path: str) -> Reader:
    key = json_reader(data_type.key_type, f"{path}.key")
    # The names in an object are always text.
    name = text_reader(data_type.key_type, f"{path}.key")
    item = json_reader(data_type.item_type, f"{path}.value")

    def read_map(value: Any) -> Any:
        if isinstance(value, dict):
            return [(name(word), item(inner)) for word, inner in value.items()]
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return [(key(pair[0]), item(pair[1])) for pair in value]
        raise NotAValue(path, data_type, value, "Write an object, or a list of [key, value] pairs.")

    return read_map


def _nearest(number: Any) -> float | None:
    """The floating number nearest to one that was written in digits; None if it is beyond all of them."""
    try:
        found = float(number)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _plain_reader(data_type: pa.DataType, path: str) -> Reader:
    from_text = text_reader(data_type, path)
    if kinds.is_boolean(data_type):
        accepted: tuple[type, ...] = (bool,)
        hint = "Write true or false."
    elif kinds.is_integer(data_type):
        accepted, hint = (int, float, Decimal), "Write a whole number, without quotes."
    elif kinds.is_floating(data_type):
        accepted, hint = (int, float, Decimal), 'Write a number, without quotes; "NaN" and "Infinity" are text.'
    elif kinds.is_decimal(data_type):
        accepted, hint = (int, Decimal, str), 'Write a number, or text: "12.50".'
    else:
        accepted, hint = (str,), _text_hint(data_type)
    plain_text = kinds.is_string(data_type)
    floating, integer = kinds.is_floating(data_type), kinds.is_integer(data_type)

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


# Text


def text_reader(data_type: pa.DataType, path: str) -> Reader:
    """What turns a cell of a CSV file into a value of that type; None is null.

    >>> text_reader(pa.list_(pa.int32()), "sizes")("[1, 2]")
    [1, 2]
    """
    if kinds.is_string(data_type):
        return lambda cell: cell
    if kinds.is_nested(data_type):
        inner, exact = json_reader(data_type, path), has_decimals(data_type)
    else:
        inner, exact = _TEXT[_kind(data_type)], False
    hint = _text_hint(data_type)

    def read(cell: str | None) -> Any:
        if cell is None:
            return None
        try:
            if kinds.is_nested(data_type):
                return inner(parse_json(cell, exact=exact))
            return inner(cell.strip())
        except (ValueError, ArithmeticError, RecursionError):
            raise NotAValue(path, data_type, cell, hint) from None

    return read


def _kind(data_type: pa.DataType) -> str:
    if kinds.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    return next(kind for kind in _TEXT if getattr(kinds, f"is_{kind}")(data_type))


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


_TEXT: dict[str, Reader] = {
    "boolean": _boolean,
    "integer": _integer,
    "floating": _floating,
    "decimal": _decimal,
    "binary": _binary,
    "date": date.fromisoformat,
    "time": _time,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


def _text_hint(data_type: pa.DataType) -> str:
    if kinds.is_nested(data_type):
        return "Write it as JSON."
    if kinds.is_string(data_type):
        return "Write text, in quotes."
    return {
        "boolean": "Write true or false.",
        "integer": "Write a whole number.",
        "floating": "Write a number, with a point before the decimals.",
        "decimal": "Write a number, with a point before the decimals.",
        "binary": "Write the bytes in base64.",
        "date": 'Write a date as in "2026-01-31".',
        "time": 'Write a time of day as in "09:00:00.25", without a zone.',
        "timestamp": 'Write a time with its zone, to the microsecond at most: "2026-01-01T09:00:00Z".',
        "timestamp_ntz": 'Write a time without a zone, to the microsecond at most: "2026-01-01T09:00:00".',
    }[_kind(data_type)]
