"""Arrow columns of any type as the types that a topic keeps, value by value the same or refused.

Numbers become other numbers where they stay exactly the same (a FLOAT rounds, but not to infinity); text, bytes, dates
and times take any of Arrow's forms of the same; a timestamp with any zone is one in UTC, one without a zone is refused
where a zone is needed. Structs are matched by name: what is missing is null, what is unknown is refused. A column that
has the type already is passed on as it is, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.errors import InvalidRows
from mainstem.log.rows.normal_schema import has_required, is_array
from mainstem.log.rows.row_errors import missing_value, out_of_range, unknown_column, wrong_type

__all__ = ["RowOf", "check_required", "converted", "same_row"]

# Which row the n-th value of a column belongs to; inside arrays it is not the n-th.
RowOf = Callable[[int], int]


def same_row(index: int) -> int:
    """The row of a value that stands in a column itself."""
    return index


def converted(array: pa.Array, data_type: pa.DataType, *, path: str, topic: str, row_of: RowOf = same_row) -> pa.Array:
    """The values of `array` as `data_type`; raises if one of them would not be the same.

    >>> converted(pa.array([1, 2], pa.uint8()), pa.int64(), path="n", topic="orders").type
    DataType(int64)
    """
    given = array.type
    if given.equals(data_type):
        return array
    if kinds.is_dictionary(given):
        return converted(array.dictionary_decode(), data_type, path=path, topic=topic, row_of=row_of)
    if kinds.is_run_end_encoded(given):
        return converted(pc.run_end_decode(array), data_type, path=path, topic=topic, row_of=row_of)
    if isinstance(given, pa.BaseExtensionType):
        return converted(array.storage, data_type, path=path, topic=topic, row_of=row_of)
    if kinds.is_null(given):
        return pa.nulls(len(array), data_type)
    if kinds.is_struct(data_type) and kinds.is_struct(given):
        return _converted_struct(array, data_type, path, topic, row_of)
    if kinds.is_map(data_type) and kinds.is_map(given):
        return _converted_map(array, data_type, path, topic, row_of)
    if kinds.is_list(data_type) and is_array(given):
        lists = array if kinds.is_list(given) else array.cast(pa.list_(given.value_type))
        values, offsets, rows = _elements(lists, row_of)
        values = converted(values, data_type.value_type, path=f"{path}.element", topic=topic, row_of=rows)
        return pa.ListArray.from_arrays(offsets, values, type=data_type, mask=_mask(array))
    if not _convertible(given, data_type):
        raise wrong_type(path, data_type, given)
    return _converted_plain(array, data_type, path, row_of)


def _converted_struct(array: pa.Array, data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    # flatten, not field: a child is null wherever its struct is.
    children = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    known = [field.name for field in data_type]
    if unknown := [name for name in children if name not in known]:
        raise unknown_column(f"{path}.{unknown[0]}", known, topic, None)
    arrays = [
        converted(children[field.name], field.type, path=f"{path}.{field.name}", topic=topic, row_of=row_of)
        if field.name in children
        else pa.nulls(len(array), field.type)
        for field in data_type
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(data_type), mask=_mask(array))


def _converted_map(array: pa.Array, data_type: pa.DataType, path: str, topic: str, row_of: RowOf) -> pa.Array:
    entries, offsets, rows = _elements(_as_list(array), row_of)
    keys, items = entries.flatten()
    if keys.null_count:
        raise missing_value(rows(_first(keys.is_null())), f"{path}.key")
    keys = converted(keys, data_type.key_type, path=f"{path}.key", topic=topic, row_of=rows)
    items = converted(items, data_type.item_type, path=f"{path}.value", topic=topic, row_of=rows)
    return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=_mask(array))


def _as_list(array: pa.Array) -> pa.Array:
    """A map as the list of structs that it is: the same buffers, another name."""
    entries = pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)])
    return array.cast(pa.list_(entries))


def _elements(lists: pa.Array, row_of: RowOf) -> tuple[pa.Array, pa.Array, RowOf]:
    """The elements of all lists in one array, where each list begins, and which row an element is from."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return lists.flatten(), offsets, lambda index: row_of(int(np.searchsorted(ends, index, side="right")))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _convertible(given: pa.DataType, data_type: pa.DataType) -> bool:
    """Whether some values of one type can be values of the other, and mean the same."""
    if kinds.is_integer(data_type):
        return bool(kinds.is_integer(given) or kinds.is_floating(given) or kinds.is_decimal(given))
    if kinds.is_floating(data_type):
        return bool(kinds.is_integer(given) or kinds.is_floating(given))
    if kinds.is_decimal(data_type):
        return bool(kinds.is_integer(given) or kinds.is_decimal(given))
    if kinds.is_string(data_type):
        return bool(kinds.is_large_string(given) or kinds.is_string_view(given))
    if kinds.is_binary(data_type):
        fixed = kinds.is_fixed_size_binary(given) and not kinds.is_decimal(given)
        return bool(fixed or kinds.is_large_binary(given) or kinds.is_binary_view(given))
    if kinds.is_timestamp(data_type):
        return bool(kinds.is_timestamp(given) and (given.tz is None) == (data_type.tz is None))
    if kinds.is_date(data_type):
        return bool(kinds.is_date(given))
    return bool(kinds.is_time(data_type) and kinds.is_time(given))


def _converted_plain(array: pa.Array, data_type: pa.DataType, path: str, row_of: RowOf) -> pa.Array:
    try:
        result = _cast(array, data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _not_the_same(array, data_type, path, row_of, str(error)) from error
    if kinds.is_float32(data_type) and kinds.is_float64(array.type):
        overflown = pc.and_(pc.is_inf(result), pc.invert(pc.is_inf(array)))
        if pc.any(overflown).as_py():
            index = _first(overflown)
            raise out_of_range(row_of(index), path, data_type, _python(array[index]), "It would become infinite")
    return result


def _cast(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if kinds.is_decimal(data_type) and kinds.is_integer(array.type):
        # Arrow wants room for every integer of the type; whether these integers fit is decided by the second cast.
        array = array.cast(pa.decimal256(20 + data_type.scale, data_type.scale))
    return array.cast(data_type, safe=True)


def _not_the_same(array: pa.Array, data_type: pa.DataType, path: str, row_of: RowOf, reason: str) -> InvalidRows:
    """Finds the first value that cannot be cast, by halving: the shortest prefix that fails ends with it."""
    sound, failing = 0, len(array)
    while failing - sound > 1:
        middle = (sound + failing) // 2
        try:
            _cast(array.slice(sound, middle - sound), data_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            failing, reason = middle, str(error)
        else:
            sound = middle
    return out_of_range(row_of(sound), path, data_type, _python(array[sound]), reason)


def check_required(
    array: pa.Array, field: pa.Field, *, path: str, row_of: RowOf = same_row, exempt: pa.Array | None = None
) -> None:
    """Refuses a null where the field, or one inside it, is NOT NULL; `exempt` marks rows where a null may stand."""
    if not field.nullable and array.null_count:
        nulls = array.is_null()
        if exempt is not None:
            nulls = pc.and_(nulls, pc.invert(exempt))
        if pc.any(nulls).as_py():
            raise missing_value(row_of(_first(nulls)), path)
    if not has_required(field.with_nullable(True)):
        return
    if kinds.is_struct(field.type):
        # Where the struct itself is null, its fields have nothing to answer for.
        absent = array.is_null() if array.null_count else None
        for child, inner in zip(array.flatten(), field.type, strict=True):
            check_required(child, inner, path=f"{path}.{inner.name}", row_of=row_of, exempt=absent)
    elif kinds.is_list(field.type):
        values, _, rows = _elements(array, row_of)
        check_required(values, field.type.value_field, path=f"{path}.element", row_of=rows)
    else:
        entries, _, rows = _elements(_as_list(array), row_of)
        keys, items = entries.flatten()
        key = pa.field("key", field.type.key_type)
        check_required(keys, key, path=f"{path}.key", row_of=rows)
        check_required(items, field.type.item_field, path=f"{path}.value", row_of=rows)


def _python(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        # Without pandas there is no Python value with nanoseconds, and none of a year after 9999 at all.
        return f"{scalar.type} {scalar.value}"


def _first(flags: pa.Array) -> int:
    """Where the first true value stands."""
    return int(pc.index(flags, pa.scalar(value=True)).as_py())
