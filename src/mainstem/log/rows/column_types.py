"""ColumnTypes: the one description of the types that columns may have, and the one walk into structs, arrays and maps.

Every conversion of values (to Arrow, JSON, SQLite, PostgreSQL) has a table with an entry for each kind of type, and
leaves nested types to the functions here. A nested column is divided into the columns of its parts:

    STRUCT<a, b>    a, b          a value for each row; null where the struct is
    ARRAY<T>        element       the elements of all rows one after another
    MAP<K, V>       key, value    likewise
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "NESTED",
    "NUMBERS",
    "Parts",
    "RowOf",
    "SCALARS",
    "TIMESTAMPS",
    "contains",
    "inner_fields",
    "is_nested",
    "is_window",
    "kind_of",
    "nested_array",
    "nested_type",
    "parts_of",
    "parts_of_values",
    "same_row",
]

# The row of the n-th value of a column; inside arrays it is not the n-th.
RowOf = Callable[[int], int]
Offsets = npt.NDArray[np.int64] | list[int]

# The types that are not nested, by their names in DDL; DECIMAL(p, s) is a type for each p and s.
SCALARS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
# The kind of each Arrow type, including those that a topic stores as another type.
_KINDS = {
    getattr(pa.lib, f"Type_{name}"): kind
    for kind, names in {
        "boolean": "BOOL",
        "integer": "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64",
        "floating": "HALF_FLOAT FLOAT DOUBLE",
        "decimal": "DECIMAL32 DECIMAL64 DECIMAL128 DECIMAL256",
        "string": "STRING LARGE_STRING STRING_VIEW",
        "binary": "BINARY LARGE_BINARY BINARY_VIEW FIXED_SIZE_BINARY",
        "date": "DATE32 DATE64",
        "time": "TIME32 TIME64",
        "timestamp": "TIMESTAMP",
        "struct": "STRUCT",
        "map": "MAP",
        "list": "LIST LARGE_LIST FIXED_SIZE_LIST LIST_VIEW LARGE_LIST_VIEW",
    }.items()
    for name in names.split()
}
NESTED = frozenset({"struct", "map", "list"})
NUMBERS = frozenset({"integer", "floating", "decimal"})
TIMESTAMPS = frozenset({"timestamp", "timestamp_ntz"})


def kind_of(data_type: pa.DataType) -> str:
    """The kind of a type, whatever its width: "integer", "timestamp", "list"; empty if topics do not support it.

    >>> kind_of(pa.large_string()), kind_of(pa.timestamp("ns")), kind_of(pa.null())
    ('string', 'timestamp_ntz', '')
    """
    kind = _KINDS.get(data_type.id, "")
    return "timestamp_ntz" if kind == "timestamp" and data_type.tz is None else kind


def is_window(data_type: pa.DataType) -> bool:
    """Whether a type is a window, as Spark's `window` and the operators make it: a struct of start and end.

    >>> moment = pa.timestamp("us", "UTC")
    >>> is_window(pa.struct([("start", moment), ("end", moment)])), is_window(moment)
    (True, False)
    """
    if kind_of(data_type) != "struct":
        return False
    fields = inner_fields(data_type)
    return [field.name for field in fields] == ["start", "end"] and all(
        kind_of(field.type) == "timestamp" for field in fields
    )


def is_nested(data_type: pa.DataType) -> bool:
    """Whether a type is a struct, an array or a map."""
    return kind_of(data_type) in NESTED


def inner_fields(data_type: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type, with their names in paths; empty for any other type.

    >>> [field.name for field in inner_fields(pa.map_(pa.string(), pa.int64()))]
    ['key', 'value']
    """
    kind = kind_of(data_type)
    if kind == "struct":
        return list(data_type)
    if kind == "map":
        return [pa.field("key", data_type.key_type), data_type.item_field.with_name("value")]
    return [data_type.value_field.with_name("element")] if kind == "list" else []


def nested_type(data_type: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """The type with other fields; elements of arrays and values of maps are nullable, because DDL cannot say otherwise."""
    kind = kind_of(data_type)
    if kind == "struct":
        return pa.struct(fields)
    if kind == "map":
        return pa.map_(fields[0].type, fields[1].type)
    return pa.list_(pa.field("element", fields[0].type)) if kind == "list" else data_type


def contains(data_type: pa.DataType, kinds: Collection[str]) -> bool:
    """Whether a type, or one nested in it, is of one of these kinds.

    >>> contains(pa.list_(pa.decimal128(4, 2)), ["decimal"])
    True
    """
    if kind_of(data_type) in kinds:
        return True
    return any(contains(data_type.field(index).type, kinds) for index in range(data_type.num_fields))


class Parts(NamedTuple):
    """The parts of nested values: a column for each inner field; `offsets`: the start of each value in it, and the end.

    A struct has no offsets: its parts have one value for each row.
    """

    columns: list[Any]
    offsets: Offsets | None

    def row_of(self, outer: RowOf) -> RowOf:
        """The row of a value of the columns, given that of the nested value."""
        if (offsets := self.offsets) is None:
            return outer
        return lambda index: outer(bisect_right(offsets, index) - 1)


def same_row(index: int) -> int:
    """The row of a value of a column that is not nested."""
    return index


def parts_of(array: pa.Array) -> Parts:
    """The parts of a nested Arrow column, without the values under nulls."""
    kind = kind_of(array.type)
    if kind == "struct":
        # flatten, not field: a child is null wherever its struct is.
        return Parts(array.flatten(), None)
    if isinstance(array, pa.ListArray | pa.LargeListArray) and not array.null_count:
        offsets = array.offsets.to_numpy()
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        inside = [array.keys, array.items] if kind == "map" else [array.values]
        return Parts([column.slice(first, count) for column in inside], offsets - first)
    if kind == "map":
        array = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    elements = array.flatten()
    ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0), dtype=np.int64)
    return Parts(elements.flatten() if kind == "map" else [elements], np.concatenate(([0], ends)))


def parts_of_values(values: list[Any], kind: str, names: Iterable[str]) -> Parts:
    """The same for Python values, given the kind and the field names: dicts, lists, and lists of pairs for maps."""
    if kind == "struct":
        return Parts([[None if value is None else value.get(name) for value in values] for name in names], None)
    offsets = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    flat = [element for value in values if value is not None for element in value]
    return Parts([[pair[0] for pair in flat], [pair[1] for pair in flat]] if kind == "map" else [flat], offsets)


def nested_array(data_type: pa.DataType, columns: list[pa.Array], offsets: Offsets | None, like: Any) -> pa.Array:
    """The nested array of these parts; null where `like`, the original array or values, is."""
    if isinstance(like, list):
        nulls = [value is None for value in like]
        mask = pa.array(nulls) if any(nulls) else None
    else:
        mask = like.is_null() if like.null_count else None
    if offsets is None:
        return pa.StructArray.from_arrays(columns, fields=list(data_type), mask=mask)
    array_class = pa.MapArray if kind_of(data_type) == "map" else pa.ListArray
    return array_class.from_arrays(pa.array(offsets, pa.int32()), *columns, type=data_type, mask=mask)
