"""Which values Python, Spark and DuckDB can all read. Arrow also accepts, unchecked:

    STRING              bytes that are not UTF-8
    TIMESTAMP, DATE     years before 1 and after 9999
    TIME                before 00:00, and 24:00 and after
    DECIMAL             more digits than its type has
    MAP                 a key twice: -0.0 and 0.0 are one key, and so are all NaNs

A topic refuses these. Whole columns are checked; single values only if one of a column cannot be read.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.clock import as_us
from mainstem.log.rows.column_types import NESTED, TIMESTAMPS, contains, inner_fields, kind_of, parts_of

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
# Kinds with values that some readers cannot read, and why.
_REASONS = {
    "string": "its bytes are not UTF-8",
    "timestamp": "its year is not one of 1 to 9999",
    "timestamp_ntz": "its year is not one of 1 to 9999",
    "date": "its year is not one of 1 to 9999",
    "time": "it is not a time between 00:00 and 24:00",
    "decimal": "it has more digits than its type",
    "map": "it has a key twice",
}
# Arrow can validate these itself.
_VALIDATED = frozenset({"string", "decimal"})


class Unreadable(NamedTuple):
    """A value that some readers cannot read: its row and column, and the reason."""

    row: int
    path: str
    data_type: pa.DataType
    reason: str


def unreadable_value(batch: pa.RecordBatch | pa.Table) -> Unreadable | None:
    """The first value of a batch that some readers cannot read; None if there is none.

    >>> unreadable_value(pa.record_batch({"d": pa.array([0, 10**7], pa.int32()).cast(pa.date32())}))
    Unreadable(row=1, path='d', data_type=DataType(date32[day]), reason='its year is not one of 1 to 9999')
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for row in unreadable_rows(column):
            found = _inside(_whole(column).take([row]), field.name)
            return found._replace(row=row)
    return None


def unreadable_rows(column: pa.Array | pa.ChunkedArray) -> list[int]:
    """The rows of a column with values that some readers cannot read."""
    if not _may_be_unreadable(column.type) or not len(column):
        return []
    array = _whole(column)
    mask = _unreadable(array)
    return [] if mask is None else np.flatnonzero(mask).tolist()


def readable_part(table: pa.Table) -> pa.Table:
    """The table with unreadable values replaced by null."""
    for index, name in enumerate(table.schema.names):
        if rows := unreadable_rows(table.column(index)):
            keep = np.arange(len(table)).astype(object)
            keep[rows] = None
            column = _whole(table.column(index)).take(pa.array(keep, pa.int64()))
            table = table.set_column(index, pa.field(name, column.type), column)
    return table


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """As `to_pylist`, with text instead of values that Python cannot represent."""
    try:
        return list(table.to_pylist())
    except (ValueError, OverflowError):
        columns = [[python_value(value) for value in column] for column in table.columns]
        return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_value(scalar: pa.Scalar) -> Any:
    """As `as_py`, with text instead of values that Python cannot represent, also nested ones.

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
        if kind_of(data_type) in _VALIDATED:
            return f"<unreadable: {scalar.cast(pa.binary()).as_py().decode(errors='replace')}>"
        # As a number: Arrow's text for years after 32767 is wrong.
        return f"<unreadable: {data_type} {scalar.value}>"


@lru_cache(maxsize=4096)
def doubtful_from_python(data_type: pa.DataType) -> bool:
    """Whether a valid Python value of this type may be unreadable for others: a map with a duplicate key, or a time with a
    zone whose year in UTC is not 1 to 9999."""
    return contains(data_type, {"map", *TIMESTAMPS})


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


@lru_cache(maxsize=4096)
def _may_be_unreadable(data_type: pa.DataType) -> bool:
    return contains(data_type, _REASONS)


def _is_ranged(data_type: pa.DataType) -> bool:
    """Whether the range of a value alone decides if it can be read."""
    return bool(kinds.is_timestamp(data_type) or kinds.is_date32(data_type) or kinds.is_time64(data_type))


def _unreadable(array: pa.Array) -> Mask | None:
    """Which values of an array some readers cannot read; None if there are none."""
    if _is_ranged(array.type):
        return _out_of_range(array)
    if (kind := kind_of(array.type)) in _VALIDATED:
        return _invalid(array)
    if kind not in NESTED:
        return None
    parts = parts_of(array)
    masks = [_unreadable(column) for column in parts.columns if len(column) and _may_be_unreadable(column.type)]
    if parts.offsets is None:
        return _any(masks)
    lengths = np.diff(parts.offsets)
    twice = _with_key_twice(parts.columns[0], lengths) if kind == "map" else None
    return _any([*(_in_lists(mask, lengths) for mask in masks), twice])


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
    """By Arrow's own validation; by bisection, since it does not say which value is invalid."""
    if _is_valid(array):
        return None
    mask = np.zeros(len(array), bool)
    parts = [(0, len(array))]
    while parts:
        first, count = parts.pop()
        # Taken, not sliced: Arrow would validate values outside the slice too.
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


def _in_lists(mask: Mask | None, lengths: Lengths) -> Mask | None:
    """Which lists have an element that cannot be read."""
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
    """The unreadable part of an array of one value."""
    if fields := inner_fields(array.type):
        for child, field in zip(parts_of(array).columns, fields, strict=True):
            if rows := unreadable_rows(child):
                return _inside(child.take([rows[0]]), f"{path}.{field.name}")
    return Unreadable(0, path, array.type, _REASONS[kind_of(array.type)])
