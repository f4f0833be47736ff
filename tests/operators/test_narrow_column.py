"""Narrowed columns come back as they were, in no more bytes than they need."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.operators.stage.state_run_file import narrow_column, widen_column

TYPES = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-300, 300),
    st.integers(0, 100_000).map(lambda number: 1_700_000_000_000_000 + 60_000_000 * number),
)


@given(st.lists(st.none() | numbers, max_size=80))
@example([-(2**63), 2**63 - 1])
@example([None, None])
@example([7, None, 7])
def test_a_column_comes_back(values: list[int | None]):
    column = pa.array(values, pa.int64())
    field, kept = narrow_column("due", column)
    assert widen_column(field, kept).equals(column)


@given(st.sampled_from(sorted(TYPES)), st.lists(st.integers(-128, 127), max_size=30))
def test_its_type_comes_back_too(name: str, values: list[int]):
    column = pa.array(values, TYPES[name])
    field, kept = narrow_column("due", column)
    assert widen_column(field, kept).equals(column)


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        (np.full(1000, 2**60), 0),
        (np.arange(1000) % 256 + 2**60, 1),
        (1_700_000_000_000_000 + 600_000_000 * np.arange(1000), 2),
        (np.arange(1000) * 7919, 2),
        (np.arange(1000) * 7919 + np.arange(1000) % 2, 4),
        (np.arange(1000) * 2**53 + np.arange(1000) % 2, 8),
    ],
    ids=["one value", "a few values", "starts of windows", "multiples", "a short range", "hashes"],
)
def test_it_takes_as_many_bytes_as_its_spread_needs(values: np.ndarray, bytes_each: int):
    assert narrow_column("due", pa.array(values))[1].nbytes == bytes_each * 1000


@pytest.mark.parametrize(
    "column", [pa.array(["a"]), pa.array([1.5]), pa.array([True]), pa.array([], pa.int64())], ids=str
)
def test_other_columns_are_left_as_they_are(column: pa.Array):
    field, kept = narrow_column("due", column)
    assert (field, kept) == (pa.field("due", column.type), column)
