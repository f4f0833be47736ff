"""Every column that a topic takes comes back from SQLite as it was, to the last bit."""

import math
import sqlite3
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mainstem.errors import InvalidRows
from mainstem.log.rows.normal_schema import nullable_schema
from mainstem.views.sqlite.sqlite_columns import (
    arrow_column,
    column_type,
    python_row,
    python_value,
    quote_name,
    shown_column,
    stored_values,
)
from tests.log.schema_strategies import NAMES, TYPES, values

COLUMNS = TYPES.map(lambda data_type: nullable_schema(pa.schema({"a": data_type})).field("a").type).flatmap(
    lambda data_type: st.lists(st.none() | values(data_type), max_size=4).map(
        lambda found: pa.array([*found, None], data_type)
    )
)


def through_sqlite(name: str, column: pa.Array) -> list[object]:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (n INTEGER PRIMARY KEY, {quote_name(name)} {column_type(column.type)})")
    stored = [(value,) for value in stored_values(column)]
    connection.executemany(f"INSERT INTO t ({quote_name(name)}) VALUES (?)", stored)
    return [value for (value,) in connection.execute(f"SELECT {quote_name(name)} FROM t ORDER BY n")]


@given(NAMES, COLUMNS)
def test_a_column_comes_back_as_it_was(name: str, column: pa.Array) -> None:
    # The table of this test has a column n, and SQLite's names have no case.
    assume(name.lower() != "n")
    for given_column in (column, column.slice(1), pa.concat_arrays([column, column]).slice(1)):
        found = through_sqlite(name, given_column)
        again = arrow_column(found, column.type)
        again.validate(full=True)
        assert again.type == column.type
        # Not equals: to it minus zero is zero.
        assert repr(again.to_pylist()) == repr(given_column.to_pylist())
        assert [python_value(value, column.type) for value in found] == given_column.to_pylist()
        # What is equal has one form, so that a struct may be a key.
        assert stored_values(again) == stored_values(given_column)


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64(), pa.list_(pa.field("element", pa.float64()))])
def test_numbers_that_are_none_come_back_too(data_type: pa.DataType) -> None:
    numbers = [0.0, -0.0, math.inf, -math.inf, math.nan, None, 1.5, 2.0**-149]
    wanted = numbers if not pa.types.is_list(data_type) else [numbers]
    found = arrow_column(through_sqlite("a", pa.array(wanted, data_type)), data_type)
    assert repr(found.to_pylist()) == repr(wanted)


@pytest.mark.parametrize("data_type", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
def test_moments_beyond_the_calendar_come_back_too(data_type: pa.DataType) -> None:
    far = (1 << 31) - 1 if data_type == pa.date32() else (1 << 63) - 1
    width = pa.int32() if data_type == pa.date32() else pa.int64()
    edges = [-719_162, -719_163, 2_932_896, 2_932_897]
    days = 1 if data_type == pa.date32() else 86_400_000_000
    column = pa.array([far, -far, 0, None, *(edge * days for edge in edges)], width).cast(data_type)
    nested = pa.ListArray.from_arrays([0, len(column)], column).cast(pa.list_(pa.field("element", data_type)))
    for wanted in (column, nested):
        assert arrow_column(through_sqlite("a", wanted), wanted.type).equals(wanted)


@pytest.mark.parametrize(
    ("data_type", "stored", "shown"),
    [
        (pa.timestamp("us", "UTC"), 1_767_225_599_000_001, "2025-12-31T23:59:59.000001Z"),
        (pa.timestamp("us", "UTC"), -1, "1969-12-31T23:59:59.999999Z"),
        (pa.timestamp("us"), 0, "1970-01-01T00:00:00.000000"),
        (pa.date32(), -1, "1969-12-31"),
        (pa.time64("us"), 86_399_999_999, "23:59:59.999999"),
        (pa.string(), "as it is", "as it is"),
        (pa.timestamp("us"), None, None),
    ],
)
def test_a_person_who_opens_the_file_is_shown_times_as_text(
    data_type: pa.DataType, stored: object, shown: str | None
) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("INSERT INTO t VALUES (?)", (stored,))
    assert connection.execute(f"SELECT {shown_column(pa.field('a', data_type))} FROM t").fetchone() == (shown,)


def test_a_stored_value_that_python_cannot_read_is_named() -> None:
    schema = pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC")})
    assert python_row(["a", 0], schema, view="v") == {"k": "a", "at": datetime(1970, 1, 1, tzinfo=UTC)}
    with pytest.raises(InvalidRows, match='column "at" of the row in view "v" cannot be read by Python'):
        python_row(["a", 1_767_225_600_000_000_000], schema, view="v")
