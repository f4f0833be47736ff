"""One text for one value: the canonical JSON (RFC 8785) of Arrow columns, from which a key's partition follows.

    BOOLEAN                 true, false
    numbers                 digits; a whole double without point (1e21 and above, and below 1e-6: with exponent)
    DECIMAL(p, s)           all s digits after the point: 1.50
    STRING                  in quotes; escaped are only quote, backslash and control characters
    BINARY                  base64 in quotes
    DATE, TIME              "2030-01-31", "23:59:59.000000"
    TIMESTAMP               "2030-01-31T23:59:59.000000Z"; TIMESTAMP_NTZ without the Z
    NaN, infinities         "NaN", "Infinity", "-Infinity" in quotes
    null                    null

A value has the same text in every type it may be widened to: 7 as TINYINT, BIGINT and DOUBLE is 7.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

__all__ = ["canonical_json", "canonical_json_of_rows", "not_finite"]

_QUOTE, _BACKSLASH, _FIRST_PRINTABLE = 0x22, 0x5C, 0x20


def canonical_json_of_rows(columns: list[pa.Array]) -> pa.StringArray:
    """A JSON array for each row of several columns.

    >>> canonical_json_of_rows([pa.array(["a", None]), pa.array([1, 2])]).to_pylist()
    ['["a",1]', '[null,2]']
    """
    parts = [pc.fill_null(canonical_json(column), "null") for column in columns]
    joined = pc.binary_join_element_wise(*parts, ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def canonical_json(column: pa.Array) -> pa.StringArray:
    """The JSON of each value of a column of a scalar type; null stays null.

    >>> canonical_json(pa.array([1.0, 0.1, None])).to_pylist()
    ['1', '0.1', None]
    """
    data_type = column.type
    if kinds.is_boolean(data_type) or kinds.is_integer(data_type):
        return column.cast(pa.string())
    if kinds.is_string(data_type):
        return _strings(column)
    if kinds.is_floating(data_type):
        # Through double, so that a FLOAT keeps its text when it is widened to DOUBLE.
        return _each(column.cast(pa.float64()).to_pylist(), _number)
    if kinds.is_decimal(data_type):
        return _each(column.to_pylist(), lambda value: format(value, "f"))
    if kinds.is_binary(data_type):
        return _each(column.to_pylist(), lambda value: f'"{base64.b64encode(value).decode()}"')
    # Arrow writes "2030-01-31 23:59:59.000000Z": ISO 8601 but for the T.
    text = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise('"', text, '"', "")


def _strings(column: pa.StringArray) -> pa.StringArray:
    if _needs_escapes(column):
        return _each(column.to_pylist(), lambda value: json.dumps(value, ensure_ascii=False))
    return pc.binary_join_element_wise('"', column, '"', "")


def _needs_escapes(column: pa.StringArray) -> bool:
    if len(column) == 0:
        return False
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    if data is None:
        return False
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return bool(((used < _FIRST_PRINTABLE) | (used == _QUOTE) | (used == _BACKSLASH)).any())


def _each(values: list[Any], text_of: Callable[[Any], str]) -> pa.StringArray:
    return pa.array([None if value is None else text_of(value) for value in values], pa.string())


def not_finite(value: float) -> str:
    """The text of a double that is not a JSON number."""
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _number(value: float) -> str:
    """A double as ECMAScript writes it, as RFC 8785 requires."""
    if not math.isfinite(value):
        return not_finite(value)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # repr gives the shortest digits that read back as the same double, as ECMAScript does.
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits.ljust(point, "0")
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
