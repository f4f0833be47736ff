"""What a batch comes to: against a dict that takes the rows one by one, and the keys that are odd."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import SchemaMismatch
from mainstem.views.merge_batch import merge_batch
from tests.contracts.view_rows import SCHEMA, recorded, rows
from tests.log.test_readable_values import LAST, UTC_TIME, numbers, text

RECORDS = st.lists(
    st.tuples(
        st.none() | st.sampled_from("abc"),
        st.integers(0, 9),
        st.integers(0, 1),
        st.integers(0, 20),
        st.sampled_from(["insert", "update", "delete"]),
    ),
    max_size=12,
    unique_by=lambda row: row[2:4],
)


@given(RECORDS)
def test_a_batch_comes_to_what_its_rows_in_order_come_to(given_rows: list[tuple]) -> None:
    merged = merge_batch(recorded(*given_rows), SCHEMA, ["store"], view="v")
    latest = {row[0]: row for row in sorted(given_rows, key=lambda row: row[2:4]) if row[0] is not None}
    kept = {store: row[1] for store, row in latest.items() if row[4] != "delete"}
    assert dict(zip(*merged.upserts, strict=True)) == kept
    assert merged.upserts[0] == sorted(kept)
    assert merged.deletes == [sorted(latest.keys() - kept.keys())]
    assert [bad.row for bad in merged.rejections] == [n for n, row in enumerate(given_rows) if row[0] is None]
    assert merged.rows == len(latest)


def test_chunks_and_the_order_of_columns_do_not_matter() -> None:
    table = pa.concat_tables([rows(b=1), rows(a=2), rows(b=3)]).select(["amount", "store"])
    assert merge_batch(table, SCHEMA, ["store"], view="v").upserts == [["a", "b"], [2, 3]]
    assert merge_batch(table.slice(0, 0), SCHEMA, ["store"], view="v").rows == 0


@pytest.mark.parametrize(
    ("values", "data_type", "keys"),
    [
        ([0.0, -0.0, math.nan, math.nan], pa.float64(), [0.0, "NaN"]),
        ([{"a": 1}, {"a": None}, {"a": 1}, {"a": None}], pa.struct([("a", pa.int64())]), ['{"a":1}', '{"a":null}']),
        ([[1], [], [1], []], pa.list_(pa.field("element", pa.int64())), ["[1]", "[]"]),
        ([b"\xff", b"", b"\xff", b""], pa.binary(), [b"", b"\xff"]),
        ([True, False, True, False], pa.bool_(), [0, 1]),
    ],
)
def test_odd_keys_are_one_where_they_are_equal(values: list, data_type: pa.DataType, keys: list) -> None:
    table = pa.table({"k": pa.array(values, data_type), "n": [1, 2, 3, 4]})
    merged = merge_batch(table, table.schema, ["k"], view="v")
    assert merged.upserts[0] == keys
    assert sorted(merged.upserts[1]) in ([2, 4], [3, 4])


def test_types_that_hold_the_same_values_are_taken_and_others_refused() -> None:
    wide = pa.schema({"store": pa.string(), "amount": pa.float64()})
    narrow = pa.table({"store": pa.array(["a"]).dictionary_encode(), "amount": pa.array([1], pa.int8())})
    assert merge_batch(narrow, wide, ["store"], view="v").upserts == [["a"], [1.0]]
    with pytest.raises(SchemaMismatch, match='"amount" is DOUBLE, got string'):
        merge_batch(pa.table({"store": ["a"], "amount": ["1"]}), wide, ["store"], view="v")
    with pytest.raises(SchemaMismatch, match='view "v" has no column "amunt"') as refused:
        merge_batch(pa.table({"store": ["a"], "amunt": [1]}), wide, ["store"], view="v")
    assert 'Did you mean "amount"?' in refused.value.hint
    assert "mainstem view rebuild v" in refused.value.hint


def test_what_not_everybody_can_read_is_rejected_row_by_row() -> None:
    table = pa.table({"k": text(b"a", b"\xff", b"c", b"d"), "at": numbers([0, 1, LAST + 1, 3], UTC_TIME)})
    merged = merge_batch(table, table.schema, ["k"], view="v")
    assert merged.upserts == [["a", "d"], [0, 3]]
    assert [(bad.row, bad.reason) for bad in merged.rejections] == [
        (1, 'column "k" cannot be read: its bytes are not UTF-8'),
        (2, 'column "at" cannot be read: its year is not one of 1 to 9999'),
    ]
