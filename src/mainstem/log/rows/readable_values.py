"""Which values Python, Spark and DuckDB can all read. Arrow holds more than they do, and does not look:

    STRING              bytes that are not UTF-8
    TIMESTAMP, DATE     years before 1 and after 9999
    TIME                before 00:00, and 24:00 and after
    DECIMAL             more digits than its type has
    MAP                 a key twice: -0.0 and 0.0 are one key, and so are all NaNs

A topic takes none of these. Whole columns are looked at; single values only where one of a column cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.clock import as_us

__all__ = [
    "Unreadable",
    "doubtful_from_python",
    "python_rows",
    "python_value",
    "readable_part",
    "unreadable_rows",
    "unreadable_value",
]

Mask = npt.NDArray[np.bool_]
Lengths = npt.NDArray[np.int64]

_TIMES = as_us(datetime.min.replace(tzinfo=UTC)), as_us(datetime.max.replace(tzinfo=UTC))
_DATES = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days


class Unreadable(NamedTuple):
    """A value that not everybody can read: in which row and column, and why."""

    row: int
    path: str
    data_type: pa.DataType
    reason: str


def unreadable_value(batch: pa.RecordBatch | pa.Table) -> Unreadable | None:
    """The first value of a batch that not everybody can read; None if there is none.

    >>> unreadable_value(pa.record_batch({"d": pa.array([0, 10**7], pa.int32()).cast(pa.date32())}))
    Unreadable(row=1, path='d', data_type=DataType(date32[day]), reason='its year is not one of 1 to 9999')
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for row in unreadable_rows(column):
            found = _inside(_whole(column).take([row]), field.name)
            return found._replace(row=row)
    return None


def unreadable_rows(column: pa.Array | pa.ChunkedArray) -> list[int]:
    """The rows of a column with values that not everybody can read."""
    if not _may_be_unreadable(column.type) or not len(column):
        return []
    array = _whole(column)
    mask = _unreadable(array)
    return [] if mask is None else np.flatnonzero(mask).tolist()


def readable_part(table: pa.Table) -> pa.Table:
    """The same with null for each column of a row that not everybody can read."""
    for index, name in enumerate(table.schema.names):
        if rows := unreadable_rows(table.column(index)):
            keep = np.arange(len(table)).astype(object)
            keep[rows] = None
            column = _whole(table.column(index)).take(pa.array(keep, pa.int64()))
            table = table.set_column(index, pa.field(name, column.type), column)
    return table


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """As `to_pylist`, with text in place of a value that Python cannot read."""
    try:
        return list(table.to_pylist())
    except (ValueError, OverflowError):
        columns = [[python_value(value) for value in column] for column in table.columns]
        return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_value(scalar: pa.Scalar) -> Any:
    """As `as_py`, with text in place of a value that Python cannot read, also inside of it.

    >>> python_value(pa.scalar(10**7, pa.int32()).cast(pa.date32()))
    '<unreadable: date32[day] 10000000>'
    """
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        data_type = scalar.type
        if kinds.is_struct(data_type):
            return {field.name: python_value(scalar[field.name]) for field in data_type}
        if kinds.is_map(data_type):
            return [(python_value(entry["key"]), python_value(entry["value"])) for entry in scalar.values]
        if kinds.is_nested(data_type):
            return [python_value(value) for value in scalar.values]
        if _is_validated(data_type):
            return f"<unreadable: {scalar.cast(pa.binary()).as_py().decode(errors='replace')}>"
        # As a number: Arrow's own text of a year after 32767 is that of another one.
        return f"<unreadable: {data_type} {scalar.value}>"


@lru_cache(maxsize=4096)
def doubtful_from_python(data_type: pa.DataType) -> bool:
    """Whether a value that Python can hold may be one that others cannot read: a map with one key twice, or a time in a zone
    of its own that leaves the years 1 to 9999 when it becomes UTC."""
    if kinds.is_map(data_type) or kinds.is_timestamp(data_type):
        return True
    return any(doubtful_from_python(data_type.field(index).type) for index in range(data_type.num_fields))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


@lru_cache(maxsize=4096)
def _may_be_unreadable(data_type: pa.DataType) -> bool:
    if kinds.is_nested(data_type):
        inner = (data_type.field(index).type for index in range(data_type.num_fields))
        return kinds.is_map(data_type) or any(map(_may_be_unreadable, inner))
    return _is_ranged(data_type) or _is_validated(data_type)


@lru_cache(maxsize=4096)
def _is_ranged(data_type: pa.DataType) -> bool:
    """Whether a value's number says whether it can be read."""
    return bool(kinds.is_timestamp(data_type) or kinds.is_date32(data_type) or kinds.is_time64(data_type))


def _is_validated(data_type: pa.DataType) -> bool:
    """Whether Arrow looks at such values when it is asked to."""
    return bool(
        kinds.is_string(data_type)
        or kinds.is_large_string(data_type)
        or kinds.is_string_view(data_type)
        or kinds.is_decimal(data_type)
    )


def _unreadable(array: pa.Array) -> Mask | None:
    """Which values of an array cannot be read by everybody; None if all can."""
    data_type = array.type
    if _is_ranged(data_type):
        return _out_of_range(array)
    if kinds.is_struct(data_type):
        # flatten, not field: a child is null wherever its struct is.
        return _any([_unreadable(child) for child in array.flatten() if _may_be_unreadable(child.type)])
    if kinds.is_map(data_type):
        keys, items, lengths = _entries(array)
        return _any([_in_lists(keys, lengths), _in_lists(items, lengths), _with_key_twice(keys, lengths)])
    if kinds.is_list(data_type) or kinds.is_large_list(data_type):
        return _in_lists(array.flatten(), np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64))
    return _invalid(array)


def _any(masks: list[Mask | None]) -> Mask | None:
    found = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None


def _out_of_range(array: pa.Array) -> Mask | None:
    data_type = array.type
    if kinds.is_date32(data_type):
        lowest, highest = _DATES
    elif kinds.is_time64(data_type):
        highest = 86_400 * (1_000_000 if data_type.unit == "us" else 1_000_000_000) - 1
        lowest = 0
    else:
        per_second = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}[data_type.unit]
        lowest, highest = (bound * per_second // 1_000_000 for bound in _TIMES)
    numbers = array.view(pa.int32() if kinds.is_date32(data_type) else pa.int64())
    if array.null_count:
        found = pc.min_max(numbers)
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is None:
            return None
    else:
        values = numbers.to_numpy()
        least, most = values.min(), values.max()
    if least >= lowest and most <= highest:
        return None
    outside = pc.or_kleene(pc.less(numbers, pa.scalar(lowest)), pc.greater(numbers, pa.scalar(highest)))
    return np.asarray(pc.fill_null(outside, False), bool)


def _invalid(array: pa.Array) -> Mask | None:
    """By Arrow's own look. By halves, since it says that something is wrong and not where."""
    if not _is_validated(array.type) or _is_valid(array):
        return None
    mask = np.zeros(len(array), bool)
    parts = [(0, len(array))]
    while parts:
        first, count = parts.pop()
        # Taken, not sliced: what lies beside a slice would be looked at too.
        if count and not _is_valid(array.take(pa.array(np.arange(first, first + count)))):
            half = count // 2
            if half:
                parts += [(first + half, count - half), (first, half)]
            else:
                mask[first] = True
    return mask


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _entries(maps: pa.Array) -> tuple[pa.Array, pa.Array, Lengths]:
    """The keys and values of all maps, and how many each of them has."""
    if maps.null_count:
        # What lies under a null is no entry.
        data_type = maps.type
        lists = maps.cast(pa.list_(pa.struct([("key", data_type.key_type), ("value", data_type.item_type)])))
        keys, items = lists.flatten().flatten()
        return keys, items, np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    offsets = maps.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return maps.keys.slice(first, count), maps.items.slice(first, count), np.diff(offsets)


def _in_lists(elements: pa.Array, lengths: Lengths) -> Mask | None:
    """Which lists have an element that cannot be read."""
    mask = _unreadable(elements) if _may_be_unreadable(elements.type) and len(elements) else None
    if mask is None:
        return None
    found = np.zeros(len(lengths), bool)
    found[np.repeat(np.arange(len(lengths)), lengths)[mask]] = True
    return found


def _with_key_twice(keys: pa.Array, lengths: Lengths) -> Mask | None:
    if not len(lengths) or lengths.max() < 2:
        return None
    if kinds.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))
    elif kinds.is_string(keys.type):
        keys = keys.cast(pa.binary())
    if kinds.is_nested(keys.type):
        keys = pa.array([str(python_value(key)) for key in keys])
    parents = np.repeat(np.arange(len(lengths)), lengths)
    codes = np.asarray(keys.dictionary_encode(null_encoding="encode").indices, np.int64)
    pairs = np.sort(parents * (int(codes.max()) + 1) + codes)
    again = pairs[1:][pairs[1:] == pairs[:-1]]
    if not len(again):
        return None
    found = np.zeros(len(lengths), bool)
    found[again // (int(codes.max()) + 1)] = True
    return found


def _inside(array: pa.Array, path: str) -> Unreadable:
    """The same for an array of one value that cannot be read: where in it."""
    data_type = array.type
    for child, inner in _children(array, path):
        if rows := unreadable_rows(child):
            return _inside(child.take([rows[0]]), inner)
    return Unreadable(0, path, data_type, _reason(data_type))


def _children(array: pa.Array, path: str) -> Iterator[tuple[pa.Array, str]]:
    """What an array of one value holds."""
    data_type = array.type
    if kinds.is_struct(data_type):
        yield from zip(array.flatten(), (f"{path}.{field.name}" for field in data_type), strict=True)
    elif kinds.is_map(data_type):
        yield array.keys, f"{path}.key"
        yield array.items, f"{path}.value"
    elif kinds.is_list(data_type) or kinds.is_large_list(data_type):
        yield array.flatten(), f"{path}.element"


def _reason(data_type: pa.DataType) -> str:
    if kinds.is_timestamp(data_type) or kinds.is_date(data_type):
        return "its year is not one of 1 to 9999"
    if kinds.is_time(data_type):
        return "it is not a time between 00:00 and 24:00"
    if kinds.is_decimal(data_type):
        return "it has more digits than its type"
    return "it has a key twice" if kinds.is_map(data_type) else "its bytes are not UTF-8"
