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
from datetime import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.log.rows.canonical_json import canonical_json

__all__ = ["from_json", "is_nested", "to_json"]

_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31
_US_A_DAY = 86_400_000_000
_MOMENTS = (_DAYS[0] * _US_A_DAY, (_DAYS[1] + 1) * _US_A_DAY - 1)


def is_nested(data_type: pa.DataType) -> bool:
    """Whether values of this type are kept as JSON."""
    return bool(kinds.is_nested(data_type))


def to_json(array: pa.Array) -> pa.StringArray:
    """The JSON of each value; null stays null.

    >>> to_json(pa.array([{"at": [1, None]}, None])).to_pylist()
    ['{"at":[1,null]}', None]
    """
    data_type = array.type
    if kinds.is_struct(data_type):
        return _struct_to_json(array)
    if kinds.is_map(data_type):
        entries = array.cast(pa.list_(pa.struct([("key", data_type.key_type), ("value", data_type.item_type)])))
        keys, values = map(_inner, entries.flatten().flatten())
        return _joined(entries, pc.binary_join_element_wise("[", keys, ",", values, "]", ""))
    if kinds.is_list(data_type):
        return _joined(array, _inner(array.flatten()))
    if kinds.is_floating(data_type):
        return pa.array([None if value is None else _number(value) for value in array.to_pylist()], pa.string())
    if kinds.is_decimal(data_type):
        return pc.binary_join_element_wise('"', array.cast(pa.string()), '"', "")
    if kinds.is_timestamp(data_type) or kinds.is_date(data_type):
        return _moment_to_json(array)
    return canonical_json(array)


def _inner(array: pa.Array) -> pa.StringArray:
    return pc.fill_null(to_json(array), "null")


def _struct_to_json(array: pa.StructArray) -> pa.StringArray:
    parts: list[Any] = []
    for field, child in zip(array.type, array.flatten(), strict=True):
        parts += ["," if parts else "{", f"{json.dumps(field.name, ensure_ascii=False)}:", _inner(child)]
    text = pc.binary_join_element_wise(*parts, "}", "")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())) if array.null_count else text


def _joined(lists: pa.ListArray, elements: pa.StringArray) -> pa.StringArray:
    """The texts of the elements, list by list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int32())
    mask = lists.is_null() if lists.null_count else None
    text = pc.binary_join(pa.ListArray.from_arrays(offsets, elements, mask=mask), ",")
    return pc.binary_join_element_wise("[", text, "]", "")


def _number(value: float) -> str:
    if math.isfinite(value):
        # The shortest text that reads back as the same number, minus zero included.
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


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
    return _built([None if text is None else json.loads(text) for text in texts], data_type)


def _built(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if kinds.is_struct(data_type):
        children = [
            _built([None if value is None else value[field.name] for value in values], field.type)
            for field in data_type
        ]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=_nulls(values))
    if kinds.is_map(data_type):
        entries = [entry for value in values if value is not None for entry in value]
        keys = _built([entry[0] for entry in entries], data_type.key_type)
        items = _built([entry[1] for entry in entries], data_type.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=data_type, mask=_nulls(values))
    if kinds.is_list(data_type):
        elements = _built([element for value in values if value is not None for element in value], data_type.value_type)
        return pa.ListArray.from_arrays(_offsets(values), elements, type=data_type, mask=_nulls(values))
    if kinds.is_floating(data_type):
        return pa.array([None if value is None else float(value) for value in values], data_type)
    if kinds.is_binary(data_type):
        return pa.array([None if value is None else base64.b64decode(value) for value in values], data_type)
    if kinds.is_timestamp(data_type) or kinds.is_date(data_type):
        return _built_moments(values, data_type)
    if kinds.is_time(data_type):
        return pa.array([None if value is None else time.fromisoformat(value) for value in values], data_type)
    if kinds.is_decimal(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    return pa.array(values, data_type)


def _built_moments(values: list[Any], data_type: pa.DataType) -> pa.Array:
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    moments = texts.cast(data_type)
    numbers = [value if isinstance(value, int) else None for value in values]
    if any(number is not None for number in numbers):
        width = pa.int32() if kinds.is_date(data_type) else pa.int64()
        return pc.coalesce(moments, pa.array(numbers, width).cast(data_type))
    return moments


def _nulls(values: list[Any]) -> pa.Array | None:
    nulls = [value is None for value in values]
    return pa.array(nulls) if any(nulls) else None


def _offsets(values: list[Any]) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in values]
    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int32())
