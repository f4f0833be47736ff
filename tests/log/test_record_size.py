"""The size of each row, against a plain count."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.rows.rows import row_bytes
from tests.log.schema_strategies import SCHEMAS, rows_of


@given(st.data())
def test_sizes_of_rows_are_those_of_single_rows(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    batch = pa.RecordBatch.from_pylist(data.draw(rows_of(schema)), schema=schema)
    alone = [row_bytes(batch.slice(n, 1).columns).tolist()[0] for n in range(batch.num_rows)]
    assert row_bytes(batch.columns).tolist() == alone


def test_text_bytes_and_lists_count_their_length() -> None:
    assert row_bytes([pa.array(["abc", "", None])]).tolist() == [7, 4, 4]
    assert row_bytes([pa.array([[1, 2], None], pa.list_(pa.int64()))]).tolist() == [20, 4]
    assert row_bytes([pa.array([[("a", b"bc")]], pa.map_(pa.string(), pa.binary()))]).tolist() == [4 + 5 + 6]
