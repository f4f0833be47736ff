"""The `record` struct: its values, its marks, and that most of it is shared."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from mainstem.log.record import HEADERS, RECORD, record_array, record_schema

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def test_rows_that_follow_one_another() -> None:
    record = record_array(3, 41, 1_000_000, count=2)
    record.validate(full=True)
    assert record.type == RECORD
    same = {"partition": 3, "appended_at": EPOCH + dt.timedelta(seconds=1), "change": "insert", "headers": None}
    assert record.to_pylist() == [{"offset": 41, **same}, {"offset": 42, **same}]


def test_rows_each_with_their_own() -> None:
    headers = pa.array([None, [{"key": "trace", "value": b"7"}]], HEADERS)
    for offsets, times in (
        (np.array([5, 9]), np.array([0, 1])),
        (pa.array([5, 9]), pa.array([0, 1], pa.timestamp("us", "UTC"))),
    ):
        record = record_array(0, offsets, times, count=2, change=pa.array(["update", "delete"]), headers=headers)
        record.validate(full=True)
        assert [list(row.values()) for row in record.to_pylist()] == [
            [0, 5, EPOCH, "update", None],
            [0, 9, EPOCH + dt.timedelta(microseconds=1), "delete", [{"key": "trace", "value": b"7"}]],
        ]


@pytest.mark.parametrize("count", [0, 1, 65_536, 65_537, 200_000])
def test_any_number_of_rows(count: int) -> None:
    record = record_array(0, 7, 0, count=count)
    record.validate(full=True)
    assert record.field("offset").to_pylist() == list(range(7, 7 + count))
    assert record.field("change").to_pylist() == ["insert"] * count
    assert record.field("headers").null_count == count


def test_what_is_the_same_for_all_is_made_once() -> None:
    first, second = record_array(0, 0, 0, count=10), record_array(1, 5, 9, count=20)
    for name in ("change", "headers"):
        shared = [record.field(name).buffers()[1].address for record in (first, second)]
        assert shared[0] == shared[1]


def test_the_columns_are_marked() -> None:
    field = pa.field("placed_at", pa.timestamp("us", "UTC"), metadata={"comment": "by the customer"})
    schema = record_schema(pa.schema([field]), "placed_at")
    assert schema.names == ["placed_at", "record"]
    assert schema.field("record").metadata == {b"mainstem.record": b"1"}
    assert schema.field("placed_at").metadata == {b"comment": b"by the customer", b"mainstem.event_time": b"1"}
