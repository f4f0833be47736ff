"""Values of Arrow columns as Python objects, a column at a time.

`to_pylist` of Arrow makes a scalar of each time, date and nested value, and looks up its type: 6 microseconds for a
time, 12 for `record`. Here the type of a column is looked up once; types that are rare are left to `to_pylist`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise, repeat
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.operators.stage.arrow_columns import whole

__all__ = ["each_value", "to_values"]

# With the zone that Arrow gives such times.
_EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
# The first and the last time and date that Python has; Arrow has more.
_TIMES = np.array(["0001-01-01", "9999-12-31T23:59:59.999999"], "datetime64[us]").view(np.int64)
_DATES = np.array(["0001-01-01", "9999-12-31"], "datetime64[D]").view(np.int64)


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, as `to_pylist` returns them.

    >>> to_values(pa.array([{"n": 1, "words": ["a"]}, None]))
    [{'n': 1, 'words': ['a']}, None]
    """
    array = whole(column)
    if array.null_count == len(array):
        return [None] * len(array)
    for accepts, convert in _CONVERSIONS:
        if accepts(array.type):
            return convert(array)
    return _rare(array)


def each_value(column: pa.Array | pa.ChunkedArray) -> Iterator[Any]:
    """The values of a column; a struct becomes a dict only when it is taken, so that there are never many."""
    array = whole(column)
    return _each_struct(array) if _is_struct(array.type) and not array.null_count else iter(to_values(array))


def _rare(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _times(array: pa.Array) -> list[Any]:
    us = _filled(array, pa.int64())
    if not _within(us, _TIMES):
        return _rare(array)
    # A sum takes a tenth of the time of datetime.replace.
    epoch = _EPOCH.replace(tzinfo=None) if array.type.tz is None else _EPOCH
    return _with_nulls([epoch + span for span in us.view("timedelta64[us]").tolist()], array)


def _dates(array: pa.Array) -> list[Any]:
    days = _filled(array, pa.int32())
    if not _within(days, _DATES):
        return _rare(array)
    return _with_nulls(days.astype("datetime64[D]").tolist(), array)


def _structs(array: pa.Array) -> list[Any]:
    return _with_nulls(list(_each_struct(array)), array)


def _each_struct(array: pa.Array) -> Iterator[dict[str, Any]]:
    names = [of.name for of in array.type]
    columns = zip(*(each_value(array.field(place)) for place in range(len(names))), strict=True)
    return map(dict, map(zip, repeat(names), columns))


def _lists(array: pa.Array) -> list[Any]:
    offsets = np.asarray(array.offsets)
    first = int(offsets[0])
    values = to_values(array.values.slice(first, int(offsets[-1]) - first))
    places = (offsets - first).tolist()
    return _with_nulls([values[at:end] for at, end in pairwise(places)], array)


def _filled(array: pa.Array, stored: pa.DataType) -> Any:
    """The numbers of times or dates, 0 for null."""
    return np.asarray(pc.fill_null(array.view(stored), 0))


def _within(numbers: Any, bounds: Any) -> bool:
    return bool(bounds[0] <= numbers.min() and numbers.max() <= bounds[1])


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for place in np.flatnonzero(np.asarray(array.is_null())).tolist():
            values[place] = None
    return values


def _is_time(kind: pa.DataType) -> bool:
    return bool(kinds.is_timestamp(kind) and kind.unit == "us" and kind.tz in {None, "UTC"})


def _is_struct(kind: pa.DataType) -> bool:
    # Arrow refuses to convert a name that comes twice.
    return bool(kinds.is_struct(kind)) and 0 < len({of.name for of in kind}) == kind.num_fields


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (_is_time, _times),
    (kinds.is_date32, _dates),
    (_is_struct, _structs),
    (_is_list, _lists),
)
