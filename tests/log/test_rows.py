"""Rows in every form that is taken, and what is said of each row that is not."""

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import Invalid, InvalidRows, SchemaMismatch
from mainstem.log.record import record_array, record_schema
from mainstem.log.rows.rows import check_rows, tombstones
from mainstem.log.topic_settings import Keep, TopicSettings
from tests.log.schema_strategies import SCHEMAS, rows_of

NOON = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)
ORDERS = TopicSettings.of(
    "orders",
    schema="""order_id STRING NOT NULL, n INT, amount DOUBLE, price DECIMAL(5, 2), weight FLOAT, placed_at TIMESTAMP,
              local_at TIMESTAMP_NTZ, day DATE, opens TIME, raw BINARY, paid BOOLEAN, tags MAP<STRING, INT>,
              address STRUCT<zip: STRING NOT NULL, points: ARRAY<STRUCT<x: DOUBLE NOT NULL>>>""",
    key="order_id",
)
COMPACTED = TopicSettings.of(
    "latest", schema="a STRING, b INT, c STRING NOT NULL", key=["a", "b"], keep=Keep.latest_per_key()
)


def rows_taken(rows: Any, settings: TopicSettings = ORDERS) -> list[dict[str, Any]]:
    checked = check_rows(rows, settings)
    checked.batch.validate(full=True)
    assert checked.batch.schema.equals(settings.stored_schema)
    return [{name: value for name, value in row.items() if value is not None} for row in checked.batch.to_pylist()]


FORMS = {
    "dicts": lambda: [{"order_id": "a", "n": 1}, {"order_id": "b"}],
    "generator": lambda: ({"order_id": key, "n": n} for key, n in (("a", 1), ("b", None))),
    "table": lambda: pa.table({"order_id": ["a", "b"], "n": [1, None]}),
    "chunks": lambda: pa.concat_tables(
        [pa.table({"n": [1], "order_id": ["a"]}), pa.table({"n": pa.nulls(1, pa.int64()), "order_id": ["b"]})]
    ),
    "slice": lambda: pa.RecordBatch.from_pydict({"order_id": ["x", "a", "b"], "n": [9, 1, None]}).slice(1),
    "reader": lambda: pa.table({"order_id": ["a", "b"], "n": pa.array([1, None], pa.int8())}).to_reader(),
    "polars": lambda: pl.DataFrame({"order_id": ["a", "b"], "n": [1, None]}),
    "pandas": lambda: pd.DataFrame({"order_id": ["z", "a", "b"], "n": [0, 1, None]})[1:],
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_come_in_many_forms(form: str) -> None:
    assert rows_taken(FORMS[form]()) == [{"order_id": "a", "n": 1}, {"order_id": "b"}]


def test_rows_come_from_duckdb() -> None:
    with duckdb.connect() as connection:
        relation = connection.sql("SELECT * FROM (VALUES ('a', 1), ('b', NULL)) t(order_id, n)")
        assert rows_taken(relation) == [{"order_id": "a", "n": 1}, {"order_id": "b"}]


def test_no_rows_are_an_empty_batch() -> None:
    assert rows_taken([]) == rows_taken(pa.table({"order_id": pa.array([], pa.string())})) == []


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("n", 2.0, 2),
        ("n", np.int64(7), 7),
        ("amount", 7, 7.0),
        ("amount", float("inf"), float("inf")),
        ("weight", np.float32(0.5), 0.5),
        ("price", 7, Decimal("7.00")),
        ("price", Decimal("1.5"), Decimal("1.50")),
        ("placed_at", NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON),
        ("placed_at", pd.Timestamp("2030-01-31 12:00", tz="UTC"), NOON),
        ("placed_at", pd.NaT, None),
        ("local_at", NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        ("day", dt.date(2030, 1, 31), dt.date(2030, 1, 31)),
        ("opens", dt.time(9, 30), dt.time(9, 30)),
        ("raw", bytearray(b"x"), b"x"),
        ("tags", {"a": 1}, [("a", 1)]),
        ("tags", [("a", 1)], [("a", 1)]),
        ("address", {"zip": "1", "points": [{"x": 1}]}, {"zip": "1", "points": [{"x": 1.0}]}),
    ],
)
def test_a_value_that_stays_the_same_is_taken(column: str, value: object, kept: object) -> None:
    expected = {"order_id": "b"} if kept is None else {"order_id": "b", column: kept}
    assert rows_taken([{"order_id": "a"}, {"order_id": "b", column: value}]) == [{"order_id": "a"}, expected]


@pytest.mark.parametrize(
    ("given", "error", "message", "hint"),
    [
        ({"n": "1"}, InvalidRows, 'row 1: column "n" is INT, got str', "None"),
        ({"n": True}, InvalidRows, 'row 1: column "n" is INT, got bool', "None"),
        ({"n": 2**31}, InvalidRows, 'row 1: 2147483648 does not fit column "n", which is INT', "widen"),
        ({"n": 1.5}, InvalidRows, 'row 1: 1.5 does not fit column "n", which is INT', "widen"),
        ({"amount": 2**53 + 1}, InvalidRows, 'row 1: 9007199254740993 does not fit column "amount", which is DOUBLE', "widen"),
        ({"weight": 1e300}, InvalidRows, 'row 1: 1e+300 does not fit column "weight", which is FLOAT', "widen"),
        ({"price": 1.5}, InvalidRows, 'row 1: column "price" is DECIMAL(5, 2), got float', 'Decimal("1.5")'),
        ({"price": Decimal("1234.5")}, InvalidRows, "row 1: Decimal('1234.5') does not fit column \"price\"", "widen"),
        ({"price": Decimal("1.234")}, InvalidRows, "row 1: Decimal('1.234') does not fit column \"price\"", "widen"),
        ({"placed_at": dt.datetime(2030, 1, 1)}, InvalidRows, 'row 1: column "placed_at" is TIMESTAMP, got datetime without a zone', "Which zone"),  # noqa: DTZ001
        ({"placed_at": "2030"}, InvalidRows, 'row 1: column "placed_at" is TIMESTAMP, got str', "fromisoformat"),
        ({"placed_at": 0}, InvalidRows, 'row 1: column "placed_at" is TIMESTAMP, got int', "datetime"),
        ({"placed_at": pd.Timestamp(1, tz="UTC")}, InvalidRows, "row 1: Timestamp('1970-01-01 00:00:00.000000001+0000', tz='UTC') does", "Round"),
        ({"local_at": NOON}, InvalidRows, 'row 1: column "local_at" is TIMESTAMP_NTZ, got datetime with a zone', "replace"),
        ({"day": NOON}, InvalidRows, 'row 1: column "day" is DATE, got datetime with a zone', "value.date()"),
        ({"opens": NOON.timetz()}, InvalidRows, 'row 1: column "opens" is TIME, got time with a zone', "without a zone"),
        ({"raw": "x"}, InvalidRows, 'row 1: column "raw" is BINARY, got str', "encode"),
        ({"paid": 1}, InvalidRows, 'row 1: column "paid" is BOOLEAN, got int', "None"),
        ({"order_id": 5}, InvalidRows, 'row 1: column "order_id" is STRING, got int', "str(value)"),
        ({"order_id": "\ud800"}, InvalidRows, "row 1: '\\ud800' does not fit column \"order_id\", which is STRING", "Correct"),
        ({"order_id": None}, InvalidRows, 'row 1: column "order_id" is NOT NULL, got null', "value"),
        ({"amuont": 1}, SchemaMismatch, 'row 1: topic "orders" has no column "amuont"', 'Did you mean "amount"?'),
        ({"tags": {"a": "x"}}, InvalidRows, 'row 1: column "tags.value" is INT, got str', "None"),
        ({"tags": {None: 1}}, InvalidRows, 'row 1: column "tags.key" is NOT NULL, got null', "value"),
        ({"tags": ["a"]}, InvalidRows, 'row 1: column "tags" is MAP<STRING, INT>, got list', "pairs"),
        ({"address": "x"}, InvalidRows, 'row 1: column "address" is STRUCT<', "zip, points"),
        ({"address": {"zpi": "1"}}, SchemaMismatch, 'row 1: topic "orders" has no column "address.zpi"', '"zip"'),
        ({"address": {"zip": 1}}, InvalidRows, 'row 1: column "address.zip" is STRING, got int', "str"),
        ({"address": {}}, InvalidRows, 'row 1: column "address.zip" is NOT NULL, got null', "value"),
        ({"address": {"zip": "1", "points": "x"}}, InvalidRows, 'row 1: column "address.points" is ARRAY<', "list"),
        ({"address": {"zip": "1", "points": [{"x": 1}, {}]}}, InvalidRows, 'row 1: column "address.points.element.x" is NOT NULL', "value"),
        ({"record": {"change": "upsert"}}, InvalidRows, "row 1: record.change is 'upsert'", "insert"),
        ({"record": {"headers": [{"value": b"x"}]}}, InvalidRows, "row 1: a header has no key", "trace"),
        ({"record": 7}, InvalidRows, 'row 1: column "record" is int, not a dict', "change"),
    ],
)  # fmt: skip
def test_a_dict_that_does_not_fit(given: dict[str, Any], error: type[Invalid], message: str, hint: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        check_rows([{"order_id": "a"}, {"order_id": "b", **given}], ORDERS)
    assert "Nothing was written." in caught.value.detail
    assert hint in caught.value.hint
    assert (caught.value.row, caught.value.column.partition(".")[0]) == (1, next(iter(given)))


@pytest.mark.parametrize(
    ("column", "array", "error", "message"),
    [
        ("n", pa.array([1, 2**31]), InvalidRows, 'row 1: 2147483648 does not fit column "n", which is INT'),
        ("n", pa.array([1, 1.5]), InvalidRows, 'row 1: 1.5 does not fit column "n", which is INT'),
        ("n", pa.array(["1", "2"]), SchemaMismatch, 'column "n" is INT, got string'),
        ("n", pa.array([True, False]), SchemaMismatch, 'column "n" is INT, got bool'),
        ("amount", pa.array([1, 2**60 + 1]), InvalidRows, 'row 1: 1152921504606846977 does not fit column "amount"'),
        ("amount", pa.array([Decimal(1)] * 2), SchemaMismatch, 'column "amount" is DOUBLE, got decimal128'),
        ("weight", pa.array([1.0, 1e300]), InvalidRows, 'row 1: 1e+300 does not fit column "weight"'),
        ("price", pa.array([1, 1000]), InvalidRows, 'row 1: 1000 does not fit column "price"'),
        ("price", pa.array([1.5, 2.5]), SchemaMismatch, 'column "price" is DECIMAL(5, 2), got double'),
        ("placed_at", pa.array([0, 0], pa.timestamp("us")), SchemaMismatch, 'column "placed_at" is TIMESTAMP, got timestamp[us]'),
        ("placed_at", pa.array([0, 1], pa.timestamp("ns", "UTC")), InvalidRows, "row 1: "),
        ("local_at", pa.array([0, 0], pa.timestamp("us", "UTC")), SchemaMismatch, 'column "local_at" is TIMESTAMP_NTZ, got'),
        ("raw", pa.array(["x", "y"]), SchemaMismatch, 'column "raw" is BINARY, got string'),
        ("zz", pa.array([1, 2]), SchemaMismatch, 'topic "orders" has no column "zz"'),
        ("tags", pa.array([[("a", 1)], [("b", 1), ("c", 2**40)]], pa.map_("string", "int64")), InvalidRows,
         'row 1: 1099511627776 does not fit column "tags.value", which is INT'),
        ("address", pa.array([{"zip": "1"}, {"zip": None}]), InvalidRows, 'row 1: column "address.zip" is NOT NULL'),
        ("address", pa.array([{"zip": "1", "points": [{"x": 1.0}, {"x": 2.0}]}, {"zip": "2", "points": [{"x": None}]}]), InvalidRows,
         'row 1: column "address.points.element.x" is NOT NULL'),
        ("address", pa.array([{"zip": "1", "city": "B"}] * 2), SchemaMismatch, 'topic "orders" has no column "address.city"'),
        ("record", pa.array([1, 2]), SchemaMismatch, 'column "record" is int64, not a struct'),
    ],
)  # fmt: skip
def test_an_arrow_column_that_does_not_fit(column: str, array: pa.Array, error: type[Invalid], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        check_rows(pa.table({"order_id": ["a", "b"], column: array}), ORDERS)
    assert caught.value.detail
    assert caught.value.hint
    assert caught.value.column.partition(".")[0] == column


@pytest.mark.parametrize(
    ("column", "array", "kept"),
    [
        ("n", pa.array([1, None], pa.uint64()), [1, None]),
        ("n", pa.array([1.0, None]), [1, None]),
        ("n", pa.array([1, 1]).dictionary_encode(), [1, 1]),
        ("n", pc.run_end_encode(pa.array([1, 1])), [1, 1]),
        ("raw", pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([b"ab"], pa.binary_view())), [b"ab", None]),
        ("n", pa.nulls(2), [None, None]),
        ("weight", pa.array([0.5, float("inf")]), [0.5, float("inf")]),
        ("price", pa.array([1, 999]), [Decimal(1), Decimal(999)]),
        ("placed_at", pa.array([0, 1000], pa.timestamp("ms", "Asia/Tokyo")).cast(pa.timestamp("ns", "Asia/Tokyo")),
         [dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime.fromtimestamp(1, dt.UTC)]),
        ("raw", pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        ("tags", pa.array([[("x", 0)], [("a", 1)], None], pa.map_("large_string", "int64")).slice(1), [[("a", 1)], None]),
        ("address", pa.array([{"zip": "0"}, {"zip": "1"}, None]).slice(1), [{"zip": "1", "points": None}, None]),
        ("address", pa.array([{"points": [{"x": 1}], "zip": "1"}, None],
                             pa.struct({"points": pa.large_list(pa.struct({"x": pa.int8()})), "zip": pa.string_view()})),
         [{"zip": "1", "points": [{"x": 1.0}]}, None]),
    ],
)  # fmt: skip
def test_an_arrow_column_whose_values_stay_the_same(column: str, array: pa.Array, kept: list[object]) -> None:
    checked = check_rows(pa.table({"order_id": ["a", "b"], column: array}), ORDERS)
    checked.batch.validate(full=True)
    assert checked.batch.column(column).to_pylist() == kept


@pytest.mark.parametrize("rows", [{"order_id": "a"}, "a", b"a", 7, None, [7], [["a"]], pa.array([1]), [pa.table({})]])
def test_what_is_not_rows_is_refused(rows: Any) -> None:
    with pytest.raises(InvalidRows) as caught:
        check_rows(rows, ORDERS)
    assert caught.value.detail
    assert caught.value.hint


def test_a_missing_column_is_null_unless_it_is_required() -> None:
    with pytest.raises(SchemaMismatch, match='column "order_id" is missing, and it is NOT NULL'):
        check_rows(pa.table({"n": [1]}), ORDERS)
    with pytest.raises(InvalidRows, match='row 1: column "order_id" is NOT NULL, got null'):
        check_rows([{"order_id": "a"}, {"n": 1}], ORDERS)


@pytest.mark.parametrize("rows", [pa.table({"n": [1]}), [{"n": 1}, {"n": 2}]])
@pytest.mark.parametrize("role", ["key", "event_time"])
def test_a_missing_key_or_event_time_is_refused(rows: Any, role: str) -> None:
    settings = TopicSettings.of("events", schema="at TIMESTAMP, n INT", **{role: "at"})
    with pytest.raises(SchemaMismatch, match=f'column "at" is missing, the {role.replace("_", " ")} of topic "events"'):
        check_rows(rows, settings)
    assert rows_taken([{"at": None, "n": 1}], settings)


def test_a_column_given_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["order_id", "order_id"])
    with pytest.raises(SchemaMismatch, match='column "order_id" appears twice'):
        check_rows(twice, ORDERS)


def test_a_batch_of_the_schema_is_passed_on_as_it_is() -> None:
    batch = check_rows([{"order_id": "a"}], ORDERS).batch
    assert check_rows(batch, ORDERS).batch is batch


def test_rows_read_from_a_topic_bring_their_change_and_headers() -> None:
    headers = [[{"key": "trace", "value": b"7"}], None]
    batch = check_rows([{"order_id": "a"}, {"order_id": None}], TopicSettings.of("x", schema="order_id STRING")).batch
    record = record_array(
        0, 41, 0, count=2, change=pa.array(["update", "delete"]), headers=pa.array(headers, record_type("headers"))
    )
    # The second row deletes: it has nothing but its key, here not even that, and NOT NULL lets it pass.
    read = pa.RecordBatch.from_arrays([*batch.columns, record], schema=record_schema(batch.schema))
    checked = check_rows(read, ORDERS)
    assert checked.batch.schema.names == ORDERS.schema.names
    assert checked.change.to_pylist() == ["update", "delete"]
    assert checked.headers.to_pylist() == headers


def record_type(name: str) -> pa.DataType:
    return record_array(0, 0, 0, count=0).type.field(name).type


def test_all_inserts_need_no_change() -> None:
    checked = check_rows([{"order_id": "a", "record": {"change": "insert", "offset": 5}}, {"order_id": "b"}], ORDERS)
    assert (checked.change, checked.headers) == (None, None)


def test_a_compacted_topic_refuses_a_row_without_key() -> None:
    assert rows_taken([{"a": "x", "c": "1"}, {"b": 1, "c": "1"}], COMPACTED)
    with pytest.raises(InvalidRows, match='row 1: the key of topic "latest" is null') as caught:
        check_rows([{"a": "x", "c": "1"}, {"c": "1"}], COMPACTED)
    assert caught.value.row == 1


def test_a_record_over_the_limit_is_found_among_small_ones() -> None:
    settings = TopicSettings.of("small", schema="a STRING, b ARRAY<STRING>", record_bytes_max="1 KiB")
    assert len(rows_taken([{"a": "x" * 500}] * 50, settings)) == 50
    for large in (
        {"a": "x" * 1100},
        {"b": ["y" * 100] * 11},
        {"record": {"headers": [{"key": "k", "value": b"z" * 1100}]}},
    ):
        with pytest.raises(
            InvalidRows, match=r"row 20 has \d+ bytes, more than the maximum size of a record"
        ) as caught:
            check_rows([{"a": "x" * 500}] * 20 + [large], settings)
        assert caught.value.row == 20


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ([("x", 1)], [("x", 1)]),
        ([{"b": 1, "a": "x"}, ("y", None)], [("x", 1), ("y", None)]),
        ([["x", 1]], [("x", 1)]),
        ((key for key in [("x", 1)]), [("x", 1)]),
        ([], []),
    ],
)
def test_tombstones_have_a_key_and_nothing_else(keys: Any, rows: list[tuple[str, int]]) -> None:
    checked = tombstones(keys, COMPACTED)
    checked.batch.validate(full=True)
    assert checked.batch.schema.equals(COMPACTED.stored_schema)
    assert checked.batch.to_pylist() == [{"a": a, "b": b, "c": None} for a, b in rows]
    assert checked.change.to_pylist() == ["delete"] * len(rows)


def test_tombstones_of_one_key_column() -> None:
    assert [row["order_id"] for row in tombstones(["o-1", "o-2"], ORDERS).batch.to_pylist()] == ["o-1", "o-2"]
    assert tombstones(pa.array(["o-1"]), ORDERS).batch.num_rows == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("x", "keys are str, not a list"),
        ({"a": "x", "b": 1}, "keys are dict, not a list"),
        (7, "keys are int, not a list"),
        (["x"], "key 0 lacks the columns a, b"),
        ([("x", 1), ("x",)], "key 1 lacks the columns a, b"),
        ([(None, None)], 'row 0: the key of topic "latest" is null'),
        ([("x", "1")], 'row 0: column "b" is INT, got str'),
        ([{"a": "x", "c": "1"}], 'row 0: topic "latest" has no column "c"'),
    ],
)
def test_keys_that_are_none(keys: Any, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)) as caught:
        tombstones(keys, COMPACTED)
    assert caught.value.hint


def test_a_topic_without_key_has_no_tombstones() -> None:
    with pytest.raises(Invalid, match="has no key"):
        tombstones(["a"], TopicSettings.of("plain", schema="a STRING"))


def as_python(value: Any) -> Any:
    """A value as `to_pylist` gives it, with maps as dicts too, so that order and form do not matter."""
    if isinstance(value, Mapping):
        return {name: as_python(inner) for name, inner in value.items()}
    return [as_python(inner) for inner in value] if isinstance(value, list | tuple) else value


@given(st.data())
def test_dicts_and_arrow_say_the_same(data: st.DataObject) -> None:
    settings = TopicSettings.of("any", schema=data.draw(SCHEMAS))
    rows = data.draw(rows_of(settings.schema))
    from_dicts = check_rows(rows, settings).batch
    from_dicts.validate(full=True)
    assert as_python(from_dicts.to_pylist()) == as_python(rows)
    from_arrow = check_rows(pa.Table.from_pylist(rows, schema=settings.schema), settings).batch
    assert from_arrow.equals(from_dicts)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({}, 'Give every row "id"; where it is not known, write null.'),
        ({"keep": "latest per key"}, 'Give every row "id".'),
    ],
)
def test_null_is_advised_only_where_it_is_taken(settings, hint):
    topic = TopicSettings.of("events", schema="id STRING, n INT", key="id", **settings)
    with pytest.raises(SchemaMismatch) as told:
        check_rows(pa.table({"n": pa.array([1], pa.int32())}), topic)
    assert told.value.hint == hint
