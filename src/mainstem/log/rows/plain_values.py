"""Arrow values as JSON and CSV can hold them: the other direction of `typed_values`.

Timestamps become text in ISO 8601, binary base64, decimals text, numbers that are not finite text; a map whose keys are
text becomes an object, any other a list of pairs.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.rows.readable_values import python_value as unread_value

__all__ = ["Writer", "cell_text", "column_values", "json_line", "plain_writer", "python_value"]

Writer = Callable[[Any], Any]

# JSON escapes what is below a space; these act on a terminal too.
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")


def plain_writer(data_type: pa.DataType) -> Writer:
    """What turns a Python value of that type into one that JSON holds.

    >>> plain_writer(pa.map_(pa.string(), pa.decimal128(4, 2)))([("price", Decimal("12.50"))])
    {'price': '12.50'}
    """
    inner = _writer(data_type)
    return lambda value: None if value is None else inner(value)


def _writer(data_type: pa.DataType) -> Writer:
    if kinds.is_struct(data_type):
        fields = {field.name: plain_writer(field.type) for field in data_type}
        return lambda value: {name: write(value[name]) for name, write in fields.items()}
    if kinds.is_map(data_type):
        key, item = plain_writer(data_type.key_type), plain_writer(data_type.item_type)
        if kinds.is_string(data_type.key_type) or kinds.is_large_string(data_type.key_type):
            return lambda value: _object([(name, item(inner)) for name, inner in value])
        return lambda value: [[key(name), item(inner)] for name, inner in value]
    if kinds.is_nested(data_type) and data_type.num_fields == 1:
        element = plain_writer(data_type.field(0).type)
        return lambda value: [element(item) for item in value]
    return _plain


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """An object, unless a key appears twice: then a list of pairs."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else [list(pair) for pair in pairs]


def python_value(value: Any) -> Any:
    """A Python value whose column is not known: a row of a message."""
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
    """A column's values as JSON holds them."""
    try:
        return [write(value) for value in array.to_pylist()]
    except (ValueError, OverflowError):
        # Python cannot read one of them: a time past the year 9999, or finer than a microsecond; bytes that are not UTF-8.
        return [_written(scalar, write) for scalar in array]


def _written(scalar: pa.Scalar, write: Writer) -> Any:
    try:
        return write(scalar.as_py())
    except (ValueError, OverflowError) as error:
        if kinds.is_temporal(scalar.type) and not isinstance(error, OverflowError):
            # Finer than a microsecond.
            return scalar.cast(pa.string()).as_py()
        return write(unread) if isinstance(unread := unread_value(scalar), dict | list) else unread


def json_line(value: Any) -> str:
    """The value as JSON on one line, other scripts as they are.

    >>> json_line({"store": "Köln", "amount": 12.5})
    '{"store": "Köln", "amount": 12.5}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if _CONTROL.search(text) else text


def cell_text(value: Any) -> str:
    """One of the values above as the text of a cell; null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json_line(value)
