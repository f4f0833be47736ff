"""Nested columns are taken apart and put together without loss, and a type has one kind whatever its width."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.rows.column_types import (
    SCALARS,
    inner_fields,
    kind_of,
    nested_array,
    nested_type,
    parts_of,
    parts_of_values,
    same_row,
)
from mainstem.log.rows.normal_schema import nullable_schema
from tests.log.schema_strategies import TYPES, values

LISTS = TYPES.map(lambda data_type: nullable_schema(pa.schema({"a": pa.list_(data_type)})).field("a").type)
MAPS = TYPES.map(lambda data_type: nullable_schema(pa.schema({"a": pa.map_(pa.string(), data_type)})).field("a").type)
STRUCTS = TYPES.map(lambda data_type: pa.struct([("a", data_type), ("b", pa.int64())]))
VALUES = (LISTS | MAPS | STRUCTS).flatmap(
    lambda data_type: st.tuples(st.just(data_type), st.lists(st.none() | values(data_type), max_size=4))
)


@given(VALUES)
def test_a_nested_column_is_put_together_as_it_was(case: tuple[pa.DataType, list[object]]) -> None:
    data_type, rows = case
    column = pa.array([*rows, None], data_type)
    whole = column.drop_null()
    for part in (column, column.slice(1), whole, pa.concat_arrays([whole, whole]).slice(1), column.slice(0, 0)):
        columns, offsets = parts_of(part)
        assert [child.type for child in columns] == [field.type for field in inner_fields(data_type)]
        assert nested_array(data_type, columns, offsets, part).equals(part)


@given(VALUES)
def test_python_values_have_the_parts_that_arrow_has(case: tuple[pa.DataType, list[object]]) -> None:
    data_type, rows = case
    fields = inner_fields(data_type)
    columns, offsets = parts_of_values(rows, kind_of(data_type), [field.name for field in fields])
    in_arrow = parts_of(pa.array(rows, data_type))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    assert all(array.equals(other) for array, other in zip(arrays, in_arrow.columns, strict=True))
    assert np.array_equal(offsets, in_arrow.offsets) if offsets is not None else in_arrow.offsets is None


@pytest.mark.parametrize("data_type", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())])
def test_what_lies_under_a_null_is_no_part(data_type: pa.DataType) -> None:
    full = pa.array([[1, 2], [3]] if kind_of(data_type) == "list" else [[("a", 1), ("b", 2)], [("a", 3)]], data_type)
    hidden = nested_array(data_type, *parts_of(full), [None, "there"])
    columns, offsets = parts_of(hidden)
    assert (columns[-1].to_pylist(), offsets.tolist()) == ([3], [0, 0, 1])


def test_an_element_belongs_to_the_row_whose_list_it_is_in() -> None:
    lists = pa.array([[1, 2], None, [], [3]])
    assert [parts_of(lists).row_of(same_row)(index) for index in range(3)] == [0, 0, 3]


@pytest.mark.parametrize(
    ("given_type", "kind"),
    [
        (pa.uint64(), "integer"),
        (pa.float16(), "floating"),
        (pa.decimal256(40, 2), "decimal"),
        (pa.string_view(), "string"),
        (pa.binary(3), "binary"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.list_(pa.int8(), 2), "list"),
        (pa.duration("us"), ""),
    ],
)
def test_a_type_has_one_kind_whatever_its_width(given_type: pa.DataType, kind: str) -> None:
    assert kind_of(given_type) == kind


@given(TYPES)
def test_a_type_with_the_same_fields_inside_is_the_same(data_type: pa.DataType) -> None:
    assert nested_type(data_type, inner_fields(data_type)) == data_type
    assert (inner_fields(data_type) == []) == (data_type in SCALARS.values() or kind_of(data_type) == "decimal")
