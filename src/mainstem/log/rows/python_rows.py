"""Dicts of Python values as Arrow columns, value by value the same or refused.

Arrow's own conversion is lenient: it cuts 1.5 to 1, takes a number for a time and a time without a zone for one in
UTC, and overlooks unknown fields of a struct. So types are looked at first: once per column where all values have
types that are right without a second look, which is nearly always, else value by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from mainstem.errors import InvalidRows
from mainstem.log.rows.arrow_rows import RowOf, converted
from mainstem.log.rows.row_errors import (
    NOTHING_WRITTEN,
    missing_value,
    out_of_range,
    shown,
    too_large,
    unknown_column,
    wrong_value,
)

__all__ = ["arrays_of", "array_of", "dicts_of"]

# Types that need no second look; None is always allowed here.
_EXACT: dict[str, frozenset[type]] = {
    "bool": frozenset({bool}),
    "integer": frozenset({int}),
    "floating": frozenset({float, int}),
    "decimal": frozenset({Decimal, int}),
    "string": frozenset({str}),
    "binary": frozenset({bytes}),
    "date": frozenset({date}),
}
_FLOAT_WHOLE_MAX = 1 << 24
# What pandas calls a missing value; told by name, because pandas need not be there.
_MISSING = frozenset({"NaTType", "NAType"})


def dicts_of(rows: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The rows as a list of dicts; raises at the first one that is none."""
    found = list(rows)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise InvalidRows(
                f"row {number} is {type(row).__name__}, not a dict",
                detail=f"The row is {shown(row)}. {NOTHING_WRITTEN}",
                hint="Give a list of dicts, one per row, or an Arrow table.",
                row=number,
            )
    return found


def arrays_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, topic: str) -> dict[str, pa.Array]:
    """The columns of `schema` from rows; a column that no row has is left out, other names in a row are refused.

    >>> arrays_of([{"n": 1}, {}], pa.schema({"n": pa.int64(), "note": pa.string()}), topic="orders")["n"].to_pylist()
    [1, None]
    """
    names: set[str] = set().union(*rows)
    if unknown := names.difference(schema.names, ("record",)):
        number, name = next((n, name) for n, row in enumerate(rows) for name in row if name in unknown)
        raise unknown_column(str(name), schema.names, topic, number)
    return {
        field.name: array_of([row.get(field.name) for row in rows], field.type, path=field.name, topic=topic)
        for field in schema
        if field.name in names
    }


def array_of(
    values: list[Any], data_type: pa.DataType, *, path: str, topic: str, row_of: RowOf = lambda index: index
) -> pa.Array:
    """The values as an array of that type; raises at the first that the type cannot hold exactly."""
    if kinds.is_struct(data_type):
        return _struct(values, data_type, path, topic, row_of)
    if kinds.is_map(data_type):
        return _map(values, data_type, path, topic, row_of)
    if kinds.is_list(data_type):
        return _list(values, data_type, path, topic, row_of)
    types = set(map(type, values)) - {type(None)}
    if not (types <= _EXACT.get(_kind(data_type), frozenset()) or _all_zoned_alike(types, values, data_type)):
        values = [_checked(value, data_type, path, row_of(index)) for index, value in enumerate(values)]
    if kinds.is_float32(data_type):
        _check_whole(values, data_type, path, row_of)
        return converted(_plain(values, pa.float64(), path, row_of), data_type, path=path, topic=topic, row_of=row_of)
    return _plain(values, data_type, path, row_of)


def _check_whole(values: list[Any], data_type: pa.DataType, path: str, row_of: RowOf) -> None:
    """A FLOAT rounds what has decimals, but a whole number means itself: beyond 24 bits it would be another one."""
    for index, value in enumerate(values):
        if isinstance(value, int) and abs(value) > _FLOAT_WHOLE_MAX:
            reason = f"FLOAT holds whole numbers from {-_FLOAT_WHOLE_MAX} to {_FLOAT_WHOLE_MAX} exactly"
            raise out_of_range(row_of(index), path, data_type, value, reason)


def _all_zoned_alike(types: set[type], values: list[Any], data_type: pa.DataType) -> bool:
    """Whether these are plain datetimes, all with a zone or all without, as the column wants them."""
    if types != {datetime} or not kinds.is_timestamp(data_type):
        return False
    return {value.tzinfo is None for value in values if value is not None} == {data_type.tz is None}


def _plain(values: list[Any], data_type: pa.DataType, path: str, row_of: RowOf) -> pa.Array:
    failures = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)
    try:
        found = pa.array(values, data_type)
        # Text or bytes of more than 2 GiB come in chunks.
        if isinstance(found, pa.ChunkedArray):
            raise too_large(found.nbytes)
        return found
    except failures as error:
        for index, value in enumerate(values):
            try:
                pa.array([value], data_type)
            except failures as reason:
                raise out_of_range(row_of(index), path, data_type, value, str(reason)) from error
        raise


def _checked(value: Any, data_type: pa.DataType, path: str, row: int) -> Any:
    """The value, perhaps as another that is equal, if a column of that type takes it."""
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, np.generic):
        return _checked(value.item(), data_type, path, row)
    kind = _kind(data_type)
    if isinstance(value, bool) and kind != "bool":
        raise wrong_value(row, path, data_type, value)
    if kind == "integer" and isinstance(value, float):
        if not value.is_integer():
            raise out_of_range(row, path, data_type, value, "It is not a whole number")
        return int(value)
    if kind == "binary" and isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not _fits(value, kind, data_type):
        raise wrong_value(row, path, data_type, value)
    if getattr(value, "nanosecond", 0):
        raise out_of_range(row, path, data_type, value, "It is finer than a microsecond")
    return value


def _fits(value: Any, kind: str, data_type: pa.DataType) -> bool:
    if kind == "timestamp":
        return isinstance(value, datetime) and (value.utcoffset() is None) == (data_type.tz is None)
    if kind == "date":
        # A datetime is a date to Python; its time of day would be lost.
        return isinstance(value, date) and not isinstance(value, datetime)
    if kind == "time":
        return isinstance(value, time) and value.tzinfo is None
    return isinstance(value, tuple(_EXACT[kind]))


def _kind(data_type: pa.DataType) -> str:
    if kinds.is_boolean(data_type):
        return "bool"
    for kind in ("integer", "floating", "decimal", "string", "binary", "date", "time"):
        if getattr(kinds, f"is_{kind}")(data_type):
            return kind
    return "timestamp"


def _struct(values: list[Any], data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    known = [field.name for field in data_type]
    for index, value in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise wrong_value(row_of(index), path, data_type, value)
        if unknown := [name for name in value if name not in known]:
            raise unknown_column(f"{path}.{unknown[0]}", known, topic, row_of(index))
    children = [
        array_of(
            [None if value is None else value.get(field.name) for value in values],
            field.type,
            path=f"{path}.{field.name}",
            topic=topic,
            row_of=row_of,
        )
        for field in data_type
    ]
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=_nulls(values))


def _list(values: list[Any], data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    for index, value in enumerate(values):
        if not isinstance(value, list | tuple | np.ndarray | None):
            raise wrong_value(row_of(index), path, data_type, value)
    flat, offsets, rows = _flattened(values, row_of)
    elements = array_of(flat, data_type.value_type, path=f"{path}.element", topic=topic, row_of=rows)
    return pa.ListArray.from_arrays(offsets, elements, type=data_type, mask=_nulls(values))


def _map(values: list[Any], data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    pairs = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    for index, value in enumerate(pairs):
        if value is not None and not (isinstance(value, list | tuple) and all(map(_is_pair, value))):
            raise wrong_value(row_of(index), path, data_type, value)
    flat, offsets, rows = _flattened(pairs, row_of)
    keys = array_of([pair[0] for pair in flat], data_type.key_type, path=f"{path}.key", topic=topic, row_of=rows)
    if keys.null_count:
        raise missing_value(rows(keys.is_null().index(pa.scalar(value=True)).as_py()), f"{path}.key")
    items = array_of([pair[1] for pair in flat], data_type.item_type, path=f"{path}.value", topic=topic, row_of=rows)
    return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=_nulls(values))


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _flattened(values: list[Any], row_of: RowOf) -> tuple[list[Any], pa.Array, RowOf]:
    """The elements of all lists in one list, where each list begins, and which row an element is from."""
    lengths = [0 if value is None else len(value) for value in values]
    flat = [element for value in values if value is not None for element in value]
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return flat, offsets, lambda index: row_of(int(np.searchsorted(ends, index, side="right")))


def _nulls(values: list[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values], pa.bool_()) if any(value is None for value in values) else None
