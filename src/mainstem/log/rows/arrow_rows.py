"""Converts Arrow columns of any type to the types of a topic: a value that would change is refused.

Numbers are converted if they stay exactly the same (a FLOAT rounds, but not to infinity); text, bytes, dates and times
may have any of Arrow's types of their kind; a timestamp with a zone is converted to UTC, one without a zone is refused
if a zone is needed. Structs are matched by name: missing fields are null, unknown ones are refused. A column that
already has the type is returned without a copy.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.errors import InvalidRows
from mainstem.log.rows.column_types import NESTED, RowOf, inner_fields, kind_of, nested_array, parts_of, same_row
from mainstem.log.rows.normal_schema import has_required
from mainstem.log.rows.row_errors import missing_value, out_of_range, unknown_column, wrong_type

__all__ = ["check_required", "convert"]

# Kind of a column -> kinds of Arrow columns that it accepts; any other accepts only its own kind.
_TAKES = {
    "integer": ("integer", "floating", "decimal"),
    "floating": ("integer", "floating"),
    "decimal": ("integer", "decimal"),
}


def convert(array: pa.Array, data_type: pa.DataType, *, path: str, topic: str, row_of: RowOf = same_row) -> pa.Array:
    """The values of `array` as `data_type`; raises if one of them would not be the same.

    >>> convert(pa.array([1, 2], pa.uint8()), pa.int64(), path="n", topic="orders").type
    DataType(int64)
    """
    given = array.type
    if given.equals(data_type):
        return array
    if kinds.is_dictionary(given):
        return convert(_decoded(array), data_type, path=path, topic=topic, row_of=row_of)
    if kinds.is_run_end_encoded(given):
        return convert(pc.run_end_decode(array), data_type, path=path, topic=topic, row_of=row_of)
    if isinstance(given, pa.BaseExtensionType):
        return convert(array.storage, data_type, path=path, topic=topic, row_of=row_of)
    if kinds.is_null(given):
        return pa.nulls(len(array), data_type)
    kind, kind_given = kind_of(data_type), kind_of(given)
    if kind_given not in _TAKES.get(kind, (kind,)):
        raise wrong_type(path, data_type, given)
    if kind not in NESTED:
        return _convert_plain(array, data_type, path, row_of)
    parts = parts_of(array)
    row_of = parts.row_of(row_of)
    children = dict(zip((field.name for field in inner_fields(given)), parts.columns, strict=True))
    fields = inner_fields(data_type)
    known = [field.name for field in fields]
    if unknown := [name for name in children if name not in known]:
        raise unknown_column(f"{path}.{unknown[0]}", known, topic, None)
    if kind == "map" and children["key"].null_count:
        raise missing_value(row_of(_first(children["key"].is_null())), f"{path}.key")
    columns = [
        convert(children[field.name], field.type, path=f"{path}.{field.name}", topic=topic, row_of=row_of)
        if field.name in children
        else pa.nulls(len(array), field.type)
        for field in fields
    ]
    return nested_array(data_type, columns, parts.offsets, array)


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    # Arrow cannot take values of a view, which is what polars has in a column of categories.
    if kinds.is_string_view(array.type.value_type) or kinds.is_binary_view(array.type.value_type):
        plain = pa.large_string() if kinds.is_string_view(array.type.value_type) else pa.large_binary()
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def _convert_plain(array: pa.Array, data_type: pa.DataType, path: str, row_of: RowOf) -> pa.Array:
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
        # Arrow requires room for every integer of the type; the second cast checks these integers.
        array = array.cast(pa.decimal256(20 + data_type.scale, data_type.scale))
    return array.cast(data_type, safe=True)


def _not_the_same(array: pa.Array, data_type: pa.DataType, path: str, row_of: RowOf, reason: str) -> InvalidRows:
    """Finds the first value that cannot be cast, by bisection: the shortest prefix that fails ends with it."""
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
    """Refuses a null if the field, or one inside it, is NOT NULL; `exempt` marks rows that may have nulls."""
    if not field.nullable and array.null_count:
        nulls = array.is_null()
        if exempt is not None:
            nulls = pc.and_(nulls, pc.invert(exempt))
        if pc.any(nulls).as_py():
            raise missing_value(row_of(_first(nulls)), path)
    if not has_required(field.with_nullable(True)):
        return
    parts = parts_of(array)
    # The fields of a null struct are not checked.
    absent = array.is_null() if array.null_count and kinds.is_struct(field.type) else None
    for child, inner in zip(parts.columns, inner_fields(field.type), strict=True):
        check_required(child, inner, path=f"{path}.{inner.name}", row_of=parts.row_of(row_of), exempt=absent)


def _python(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        # Python has no value for nanoseconds (without pandas), nor for years after 9999.
        return f"{scalar.type} {scalar.value}"


def _first(flags: pa.Array) -> int:
    """The index of the first true value."""
    return int(pc.index(flags, pa.scalar(value=True)).as_py())
