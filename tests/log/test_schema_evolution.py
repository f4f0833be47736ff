"""Which changes of a schema are let through, and that old rows keep their values and their keys."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import SchemaMismatch
from mainstem.log.rows.partitioner import key_bytes
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.rows.schema_evolution import evolve, fit
from tests.log.schema_strategies import SCHEMAS, rows_of, values


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a INT", "a INT"),
        ("a INT", "a INT, b STRING"),
        ("a INT", "b STRING, a INT"),
        ("a INT NOT NULL", "a INT"),
        ("a TINYINT, b SMALLINT", "a SMALLINT, b BIGINT"),
        ("a INT, b FLOAT", "a DOUBLE, b DOUBLE"),
        ("a DECIMAL(5, 2)", "a DECIMAL(7, 2)"),
        ("s STRUCT<a: INT>", "s STRUCT<b: STRING, a: BIGINT>"),
        ("s ARRAY<STRUCT<a: INT>>", "s ARRAY<STRUCT<a: INT, b: INT>>"),
        ("s MAP<INT, INT>", "s MAP<BIGINT, DOUBLE>"),
    ],
)
def test_columns_are_added_and_widened(old: str, new: str) -> None:
    assert evolve(schema_from_ddl(old), schema_from_ddl(new)) == schema_from_ddl(new)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("a INT, b INT", "a INT", 'column "b" is not in the new schema'),
        ("amount INT", "amout INT", 'column "amount" is not in the new schema'),
        ("a INT, b INT", "b INT, a INT", 'column "b" has moved'),
        ("a INT", "a INT NOT NULL", 'column "a" cannot become NOT NULL'),
        ("a INT", "a INT, b INT NOT NULL", 'new column "b" is NOT NULL'),
        ("a BIGINT", "a INT", 'column "a" cannot change from BIGINT to INT'),
        ("a BIGINT", "a DOUBLE", "cannot change"),
        ("a DATE", "a TIMESTAMP_NTZ", "cannot change"),
        ("a STRING", "a BINARY", "cannot change"),
        ("a DECIMAL(5, 2)", "a DECIMAL(7, 3)", "cannot change"),
        ("a DECIMAL(5, 2)", "a DECIMAL(4, 2)", "cannot change"),
        ("s STRUCT<a: INT>", "s STRUCT<b: INT>", 'column "s.a" is not in the new schema'),
        ("s ARRAY<INT>", "s ARRAY<STRING>", 'column "s.element" cannot change from INT to STRING'),
        ("s MAP<INT, INT>", "s MAP<INT, STRING>", 'column "s.value" cannot change'),
        ("s STRUCT<a: INT>", "s STRING", "cannot change"),
    ],
)
def test_anything_else_is_refused_with_what_to_do(old: str, new: str, complaint: str) -> None:
    with pytest.raises(SchemaMismatch, match=complaint) as caught:
        evolve(schema_from_ddl(old), schema_from_ddl(new))
    assert caught.value.column
    assert caught.value.detail
    assert caught.value.hint


def test_a_renamed_column_is_recognised() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        evolve(schema_from_ddl("amount INT"), schema_from_ddl("amout INT"))
    assert caught.value.hint.startswith('Did you mean "amout"?')


def test_old_rows_are_seen_through_a_newer_schema() -> None:
    old = schema_from_ddl("a INT, s ARRAY<STRUCT<x: FLOAT>>, m MAP<STRING, INT>")
    rows = [{"a": 1, "s": [{"x": 0.5}, None], "m": [("k", 7)]}, {"a": None, "s": None, "m": None}]
    batch = pa.RecordBatch.from_pylist(rows, schema=old)
    new = evolve(old, schema_from_ddl("n STRING, a BIGINT, s ARRAY<STRUCT<y: INT, x: DOUBLE>>, m MAP<STRING, BIGINT>"))
    seen = fit(batch, new)
    seen.validate(full=True)
    assert seen.schema == new
    assert seen.to_pylist() == [
        {"n": None, "a": 1, "s": [{"y": None, "x": 0.5}, None], "m": [("k", 7)]},
        {"n": None, "a": None, "s": None, "m": None},
    ]
    assert fit(batch.slice(1), new).to_pylist() == seen.to_pylist()[1:]


def test_the_same_schema_gives_the_very_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    assert fit(batch, batch.schema) is batch


@given(st.data())
def test_a_schema_with_columns_added_shows_the_same_values(data: st.DataObject) -> None:
    old = data.draw(SCHEMAS)
    rows = data.draw(rows_of(old))
    batch = pa.RecordBatch.from_pylist(rows, schema=old)
    place = data.draw(st.integers(0, len(old)))
    new = evolve(old, old.insert(place, pa.field("added later on", pa.string())))
    seen = fit(batch, new)
    assert seen.select(old.names).to_pylist() == batch.to_pylist()
    assert seen.column("added later on").null_count == len(rows)


@given(st.data())
def test_a_key_keeps_its_bytes_when_its_column_is_widened(data: st.DataObject) -> None:
    old, new = data.draw(
        st.sampled_from(
            [
                (pa.int8(), pa.int64()),
                (pa.int32(), pa.int64()),
                (pa.int32(), pa.float64()),
                (pa.float32(), pa.float64()),
                (pa.decimal128(6, 2), pa.decimal128(20, 2)),
            ]
        )
    )
    keys = data.draw(st.lists(st.none() | values(old), min_size=1))
    narrow = pa.RecordBatch.from_pylist([{"k": key} for key in keys], schema=pa.schema({"k": old}))
    wide = fit(narrow, evolve(narrow.schema, pa.schema({"k": new})))
    assert key_bytes(wide, ["k"]).equals(key_bytes(narrow, ["k"]))
