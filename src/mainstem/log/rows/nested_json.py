"""Structs, arrays and maps as JSON text, column by column, and back without loss.

    STRUCT<a, b>            {"a":1,"b":"x"}, fields in the order of the type
    ARRAY<T>                [1,null,3]
    MAP<K, V>               [[key,value],...]: keys need not be text, and keep their order
    numbers, BOOLEAN        1, 0.5, true; "NaN", "Infinity", "-Infinity"
    DECIMAL                 "1.50"
    BINARY                  base64
    DATE, TIME, TIMESTAMP   "2030-01-31", "23:59:59.000000", "2030-01-31T23:59:59.000000Z"; TIMESTAMP_NTZ without the Z
                            outside of the years 1 to 9999, which text does not hold: a number, days or microseconds

One value has one text, so the text of a struct serves as a key.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.log.rows.canonical_json import canonical_json, not_finite
from mainstem.log.rows.column_types import (
    NESTED,
    TIMESTAMPS,
    inner_fields,
    kind_of,
    nested_array,
    parts_of,
    parts_of_values,
)

__all__ = ["from_json", "to_json"]

_READ: dict[str, Callable[[Any], Any]] = {
    "floating": float,
    "binary": base64.b64decode,
    "time": time.fromisoformat,
}
_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31
_US_A_DAY = 86_400_000_000
_MOMENTS = (_DAYS[0] * _US_A_DAY, (_DAYS[1] + 1) * _US_A_DAY - 1)


def to_json(array: pa.Array) -> pa.StringArray:
    """The JSON of each value; null stays null.

    >>> to_json(pa.array([{"at": [1, None]}, None])).to_pylist()
    ['{"at":[1,null]}', None]
    """
    kind = kind_of(array.type)
    if kind in NESTED:
        return _nested_to_json(array, kind)
    if kind == "floating":
        return pa.array([None if value is None else _number(value) for value in array.to_pylist()], pa.string())
    if kind == "decimal":
        return pc.binary_join_element_wise('"', array.cast(pa.string()), '"', "")
    if kind == "date" or kind in TIMESTAMPS:
        return _moment_to_json(array)
    return canonical_json(array)


def _nested_to_json(array: pa.Array, kind: str) -> pa.StringArray:
    columns, offsets = parts_of(array)
    texts = [pc.fill_null(to_json(column), "null") for column in columns]
    if kind == "struct":
        parts: list[Any] = []
        for field, text in zip(array.type, texts, strict=True):
            parts += ["," if parts else "{", f"{json.dumps(field.name, ensure_ascii=False)}:", text]
        joined = pc.binary_join_element_wise(*parts, "}", "")
        return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string())) if array.null_count else joined
    elements = texts[0] if kind == "list" else pc.binary_join_element_wise("[", texts[0], ",", texts[1], "]", "")
    joined = pc.binary_join(nested_array(pa.list_(pa.string()), [elements], offsets, array), ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def _number(value: float) -> str:
    # The shortest text that reads back as the same number, minus zero included.
    return repr(value) if math.isfinite(value) else not_finite(value)


def _moment_to_json(array: pa.Array) -> pa.StringArray:
    numbers = array.cast(pa.int32()).cast(pa.int64()) if kinds.is_date(array.type) else array.cast(pa.int64())
    first, last = _DAYS if kinds.is_date(array.type) else _MOMENTS
    shown = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    if pc.all(shown).as_py() in (True, None):
        return canonical_json(array)
    inside = pc.if_else(shown, array, pa.scalar(None, array.type))
    return pc.if_else(shown, canonical_json(inside), numbers.cast(pa.string()))


def from_json(texts: list[str | None], data_type: pa.DataType) -> pa.Array:
    """The values that `to_json` wrote.

    >>> from_json(['{"at":[1,null]}', None], pa.struct([("at", pa.list_(pa.int64()))])).to_pylist()
    [{'at': [1, None]}, None]
    """
    return _build([None if text is None else json.loads(text) for text in texts], data_type)


def _build(values: list[Any], data_type: pa.DataType) -> pa.Array:
    kind = kind_of(data_type)
    if kind in NESTED:
        fields = inner_fields(data_type)
        columns, offsets = parts_of_values(values, kind, (field.name for field in fields))
        built = [_build(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return nested_array(data_type, built, offsets, values)
    if kind in _READ:
        read = _READ[kind]
        return pa.array([None if value is None else read(value) for value in values], data_type)
    if kind == "date" or kind in TIMESTAMPS:
        return _build_moments(values, data_type)
    if kind == "decimal":
        return pa.array(values, pa.string()).cast(data_type)
    return pa.array(values, data_type)


def _build_moments(values: list[Any], data_type: pa.DataType) -> pa.Array:
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    moments = texts.cast(data_type)
    numbers = [value if isinstance(value, int) else None for value in values]
    if any(number is not None for number in numbers):
        width = pa.int32() if kinds.is_date(data_type) else pa.int64()
        return pc.coalesce(moments, pa.array(numbers, width).cast(data_type))
    return moments
