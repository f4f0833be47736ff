"""Converts dicts of Python values to Arrow columns: a value that would change is refused.

Arrow's own conversion is lenient: it truncates 1.5 to 1, takes a number for a time and a time without a zone for one in
UTC, and ignores unknown fields of a struct. So types are checked first: once per column if all values have exactly
matching types, which is nearly always, else value by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from mainstem.arguments import type_name
from mainstem.errors import InvalidRows
from mainstem.log.rows.arrow_rows import convert
from mainstem.log.rows.column_types import (
    NESTED,
    TIMESTAMPS,
    RowOf,
    inner_fields,
    kind_of,
    nested_array,
    parts_of_values,
    same_row,
)
from mainstem.log.rows.row_errors import (
    NOTHING_WRITTEN,
    format_value,
    missing_value,
    out_of_range,
    too_large,
    unknown_column,
    wrong_value,
)

__all__ = ["arrays_of", "array_of", "dicts_of"]

# Types that need no further check; None is always allowed here.
_EXACT: dict[str, frozenset[type]] = {
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "floating": frozenset({float, int}),
    "decimal": frozenset({Decimal, int}),
    "string": frozenset({str}),
    "binary": frozenset({bytes}),
    "date": frozenset({date}),
}
_CONTAINERS: dict[str, Any] = {
    "struct": (dict, Mapping),
    "map": (list, tuple),
    "list": (list, tuple, np.ndarray),
}
_FLOAT_WHOLE_MAX = 1 << 24
# Types of missing values in pandas; compared by name, because pandas may not be installed.
_MISSING = frozenset({"NaTType", "NAType"})


def dicts_of(rows: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The rows as a list of dicts; raises at the first one that is not a dict."""
    found = list(rows)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise InvalidRows(
                f"row {number} is {type_name(row)}, not a dict",
                detail=f"The row is {format_value(row)}. {NOTHING_WRITTEN}",
                hint="Give a list of dicts, one per row, or an Arrow table.",
                row=number,
            )
    return found


def arrays_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, topic: str) -> dict[str, pa.Array]:
    """The columns of `schema` from rows; a column that no row has is omitted, other names in a row are refused.

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


def array_of(values: list[Any], data_type: pa.DataType, *, path: str, topic: str, row_of: RowOf = same_row) -> pa.Array:
    """The values as an array of that type; raises at the first that the type cannot represent exactly."""
    kind = kind_of(data_type)
    if kind in NESTED:
        return _nested(values, kind, data_type, path, topic, row_of)
    types = set(map(type, values)) - {type(None)}
    if not (types <= _EXACT.get(kind, frozenset()) or _all_zoned_alike(types, values, data_type)):
        values = [_check_value(value, kind, data_type, path, row_of(index)) for index, value in enumerate(values)]
    if kinds.is_float32(data_type):
        _check_whole(values, data_type, path, row_of)
        return convert(_plain(values, pa.float64(), path, row_of), data_type, path=path, topic=topic, row_of=row_of)
    return _plain(values, data_type, path, row_of)


def _check_whole(values: list[Any], data_type: pa.DataType, path: str, row_of: RowOf) -> None:
    """Refuse whole numbers beyond 24 bits, which a FLOAT would change; fractions may be rounded."""
    for index, value in enumerate(values):
        if isinstance(value, int) and abs(value) > _FLOAT_WHOLE_MAX:
            reason = f"FLOAT holds whole numbers from {-_FLOAT_WHOLE_MAX} to {_FLOAT_WHOLE_MAX} exactly"
            raise out_of_range(row_of(index), path, data_type, value, reason)


def _all_zoned_alike(types: set[type], values: list[Any], data_type: pa.DataType) -> bool:
    """Whether these are plain datetimes, all with a zone or all without, as the column requires."""
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


def _check_value(value: Any, kind: str, data_type: pa.DataType, path: str, row: int) -> Any:
    """The value, possibly converted to an equal one, if a column of that type accepts it."""
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, np.generic):
        return _check_value(value.item(), kind, data_type, path, row)
    if isinstance(value, bool) and kind != "boolean":
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
    if kind in TIMESTAMPS:
        return isinstance(value, datetime) and (value.utcoffset() is None) == (data_type.tz is None)
    if kind == "date":
        # In Python a datetime is also a date; its time of day would be lost.
        return isinstance(value, date) and not isinstance(value, datetime)
    if kind == "time":
        return isinstance(value, time) and value.tzinfo is None
    return isinstance(value, tuple(_EXACT[kind]))


def _nested(values: list[Any], kind: str, data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    if kind == "map":
        values = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    fields = inner_fields(data_type)
    known = [field.name for field in fields]
    container = _CONTAINERS[kind]
    for index, value in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, container) or (kind == "map" and not all(map(_is_pair, value))):
            raise wrong_value(row_of(index), path, data_type, value)
        if kind == "struct" and (unknown := [name for name in value if name not in known]):
            raise unknown_column(f"{path}.{unknown[0]}", known, topic, row_of(index))
    parts = parts_of_values(values, kind, known)
    rows = parts.row_of(row_of)
    columns = []
    for name, field, column in zip(known, fields, parts.columns, strict=True):
        columns.append(array_of(column, field.type, path=f"{path}.{name}", topic=topic, row_of=rows))
        if kind == "map" and name == "key" and columns[0].null_count:
            raise missing_value(rows(columns[0].is_null().index(pa.scalar(value=True)).as_py()), f"{path}.key")
    return nested_array(data_type, columns, parts.offsets, values)


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2
