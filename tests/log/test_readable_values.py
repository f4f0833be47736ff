"""What Python, Spark and DuckDB cannot all read is refused at append, with row and column, wherever it stands."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import mainstem
from mainstem.clock import as_us
from mainstem.errors import InvalidRows
from mainstem.log.rows.readable_values import python_rows, readable_part, unreadable_rows
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic_settings import TopicSettings
from mainstem.stem import Mainstem


def text(*values: bytes) -> pa.Array:
    """Strings of any bytes."""
    offsets = np.concatenate(([0], np.cumsum([len(value) for value in values]))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(values))]
    )


def numbers(values: list[int | None], data_type: pa.DataType) -> pa.Array:
    width = pa.int32() if pa.types.is_date32(data_type) else pa.int64()
    return pa.array(values, width).view(data_type)


def decimal(*values: int) -> pa.Array:
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    return pa.Array.from_buffers(pa.decimal128(4, 2), len(values), [None, pa.py_buffer(data)])


FIRST, LAST = as_us(datetime.min.replace(tzinfo=UTC)), as_us(datetime.max.replace(tzinfo=UTC))
DAYS = [(day - date(1970, 1, 1)).days for day in (date.min, date.max)]
UTC_TIME, PLAIN_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
YEARS, BYTES = "its year is not one of 1 to 9999", "its bytes are not UTF-8"

# Type, three values of which the first two can be read, and what is said of the third.
KINDS: dict[str, tuple[str, pa.Array, str]] = {
    "late": ("TIMESTAMP", numbers([FIRST, LAST, LAST + 1], UTC_TIME), YEARS),
    "early": ("TIMESTAMP", numbers([0, None, FIRST - 1], UTC_TIME), YEARS),
    "late without a zone": ("TIMESTAMP_NTZ", numbers([FIRST, LAST, LAST + 1], PLAIN_TIME), YEARS),
    "seconds": ("TIMESTAMP_NTZ", pa.array([0, None, 10**12], pa.timestamp("s")), YEARS),
    "late day": ("DATE", numbers([DAYS[0], DAYS[1], DAYS[1] + 1], pa.date32()), YEARS),
    "early day": ("DATE", numbers([0, None, DAYS[0] - 1], pa.date32()), YEARS),
    "midnight": ("TIME", numbers([0, 86_400_000_000 - 1, 86_400_000_000], pa.time64("us")), "between 00:00 and 24:00"),
    "negative time": ("TIME", numbers([0, None, -1], pa.time64("us")), "between 00:00 and 24:00"),
    "text": ("STRING", text(b"", "ü\0".encode(), b"\xff"), BYTES),
    "cut text": ("STRING", text(b"a", "ü".encode(), "ü".encode()[:1]), BYTES),
    "half of a pair": ("STRING", text(b"a", b"b", b"\xed\xa0\x80"), BYTES),
    "large text": (
        "STRING",
        text(b"", b"a", b"\xff").cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
        BYTES,
    ),
    "coded text": ("STRING", pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), text(b"a", b"\xff")), BYTES),
    "decimal": ("DECIMAL(4, 2)", decimal(9999, -9999, 10_000), "more digits"),
}


def structs(inner: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([1, 2, 3]), inner], ["n", "x"])


def lists(inner: pa.Array) -> pa.Array:
    # Of two, none and one.
    return pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), inner)


def map_values(inner: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), inner)


def map_keys(inner: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), inner.fill_null(inner[0]), pa.array([1, 2, 3]))


PLACES: dict[str, tuple[str, Callable[[pa.Array], pa.Array], str]] = {
    "column": ("{}", lambda inner: inner, "c"),
    "struct": ("STRUCT<n: BIGINT, x: {}>", structs, "c.x"),
    "list": ("ARRAY<{}>", lists, "c.element"),
    "map value": ("MAP<STRING, {}>", map_values, "c.value"),
    "map key": ("MAP<{}, BIGINT>", map_keys, "c.key"),
    "list of structs": ("ARRAY<STRUCT<n: BIGINT, x: {}>>", lambda inner: lists(structs(inner)), "c.element.x"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_not_everybody_can_read_is_refused_with_row_and_column(kind: str, place: str) -> None:
    ddl, values, reason = KINDS[kind]
    form, wrap, path = PLACES[place]
    if pa.types.is_dictionary(values.type) and place == "map key":
        values = values.dictionary_decode()
    column = wrap(values)
    settings = TopicSettings.of("t", schema=f"c {form.format(ddl)}")
    with pytest.raises(InvalidRows, match=reason) as refused:
        check_rows(pa.table({"c": column}), settings)
    assert (refused.value.row, refused.value.column) == (2, path)
    # The others are taken, also as a slice of what holds the bad one.
    taken = check_rows(pa.table({"c": column}).slice(0, 2), settings).batch
    assert len(taken.to_pylist()) == 2


def test_what_lies_under_a_null_is_no_value() -> None:
    settings = TopicSettings.of("t", schema="at TIMESTAMP, s STRUCT<at: TIMESTAMP>, l ARRAY<TIMESTAMP>")
    hidden = pa.Array.from_buffers(
        UTC_TIME, 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([0, LAST + 1]).tobytes())], null_count=1
    )
    bad = numbers([0, LAST + 1], UTC_TIME)
    in_struct = pa.StructArray.from_arrays([bad], ["at"], mask=pa.array([False, True]))
    in_list = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), bad, mask=pa.array([False, True]))
    batch = check_rows(pa.table({"at": hidden, "s": in_struct, "l": in_list}), settings).batch
    assert batch.to_pylist()[1] == {"at": None, "s": None, "l": None}


@pytest.mark.parametrize(
    ("keys", "data_type"),
    [
        ([["a", "b"], ["a"], ["b", "a", "b"]], pa.string()),
        ([[1.5, 2.5], [1.5], [0.0, -0.0]], pa.float64()),
        ([[1.5, 2.5], [1.5], [float("nan"), float("nan")]], pa.float64()),
        ([[1, 2], [1], [7, 7]], pa.int32()),
        ([[{"x": 1}, {"x": 2}], [], [{"x": 1}, {"x": 1}]], pa.struct([("x", pa.int64())])),
    ],
)
def test_a_map_with_one_key_twice_is_refused(keys: list[list[Any]], data_type: pa.DataType) -> None:
    rows = [[(key, number) for number, key in enumerate(row)] for row in keys]
    column = pa.array(rows, pa.map_(data_type, pa.int64()))
    settings = TopicSettings.of("t", schema=pa.schema({"m": column.type}))
    for given in (pa.table({"m": column}), [{"m": row} for row in rows]):
        with pytest.raises(InvalidRows, match="it has a key twice") as refused:
            check_rows(given, settings)
        assert refused.value.row == 2
    assert check_rows(pa.table({"m": column}).slice(0, 2), settings).batch.num_rows == 2


@pytest.mark.parametrize("given", [16_777_217, -16_777_217, 1 << 60, np.int64(16_777_217)])
def test_a_whole_number_that_a_float_would_change_is_refused(given: Any) -> None:
    settings = TopicSettings.of("t", schema="x FLOAT")
    with pytest.raises(InvalidRows, match='does not fit column "x", which is FLOAT') as refused:
        check_rows([{"x": 1}, {"x": given}], settings)
    assert refused.value.row == 1
    assert check_rows([{"x": 16_777_216}, {"x": 16_777_217.0}, {"x": 0.1}], settings).batch.num_rows == 3


def test_headers_keys_and_changes_are_text_too() -> None:
    settings = TopicSettings.of("t", schema="k STRING", key="k")
    with pytest.raises(InvalidRows, match='row 1: column "k"'):
        check_rows(pa.table({"k": text(b"a", b"\xff")}), settings)
    header = pa.StructArray.from_arrays([text(b"\xff"), pa.array([b"7"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), header)
    record = pa.StructArray.from_arrays([headers], ["headers"])
    with pytest.raises(InvalidRows, match=BYTES) as refused:
        check_rows(pa.table({"k": ["a", "b"], "record": record}), settings)
    assert (refused.value.row, refused.value.column) == (1, "record.headers.element.key")
    record = pa.StructArray.from_arrays([text(b"insert", b"\xff")], ["change"])
    with pytest.raises(InvalidRows, match=BYTES) as refused:
        check_rows(pa.table({"k": ["a", "b"], "record": record}), settings)
    assert (refused.value.row, refused.value.column) == (1, "record.change")


@pytest.fixture
def stem(tmp_path: Any) -> Any:
    with mainstem.open(tmp_path, upkeep="manual") as opened:
        yield opened


def test_every_way_in_refuses_it_and_writes_nothing(stem: Mainstem) -> None:
    topic = stem.create_topic("t", schema="k STRING")
    bad = pa.record_batch({"k": text(b"a", b"\xff")})
    with pytest.raises(InvalidRows, match="row 1"):
        topic.append(bad)
    producer = stem.producer("p")
    with pytest.raises(InvalidRows, match="row 1"):
        producer.append(topic, pa.Table.from_batches([bad]))
    with pytest.raises(InvalidRows, match="row 1"), stem.transaction() as transaction:
        transaction.append(topic, bad)
    assert topic.to_arrow().num_rows == 0


def test_rows_are_shown_and_stored_without_what_cannot_be_read() -> None:
    rows = pa.table(
        {
            "n": [1, 2],
            "at": numbers([0, LAST + 1], UTC_TIME),
            "s": text(b"a", b"\xffb"),
            "l": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text(b"a", b"\xff")),
        }
    )
    first, second = python_rows(rows)
    assert first == {"n": 1, "at": datetime(1970, 1, 1, tzinfo=UTC), "s": "a", "l": ["a"]}
    assert second == {
        "n": 2,
        "at": f"<unreadable: timestamp[us, tz=UTC] {LAST + 1}>",
        "s": "<unreadable: \ufffdb>",
        "l": ["<unreadable: \ufffd>"],
    }
    assert readable_part(rows).to_pylist() == [first, {"n": 2, "at": None, "s": None, "l": None}]
    assert python_rows(rows.slice(0, 1)) == [first]


def test_what_can_be_read_passes() -> None:
    rows = [
        {
            "at": datetime.max.replace(tzinfo=UTC),
            "d": date.min,
            "t": time.max,
            "x": Decimal("99.99"),
            "s": "\U0001f600\0",
            "m": {"a": [1.5]},
        },
        {"at": None, "d": None, "t": None, "x": None, "s": None, "m": None},
    ]
    schema = "at TIMESTAMP, d DATE, t TIME, x DECIMAL(4, 2), s STRING, m MAP<STRING, ARRAY<DOUBLE>>"
    batch = check_rows(rows, TopicSettings.of("t", schema=schema)).batch
    assert check_rows(batch, TopicSettings.of("t", schema=schema)).batch is batch
    assert [unreadable_rows(column) for column in batch.columns] == [[]] * 6


@pytest.mark.parametrize("at", ["9999-12-31T23:59:00-05:00", "0001-01-01T00:00:00+05:00"])
@pytest.mark.parametrize("schema", ["at TIMESTAMP", "at ARRAY<TIMESTAMP>"])
def test_a_time_that_leaves_the_years_when_it_becomes_utc_is_refused(at: str, schema: str) -> None:
    moment = datetime.fromisoformat(at)
    settings = TopicSettings.of("orders", schema=schema)
    with pytest.raises(InvalidRows, match="row 1"):
        check_rows([{"at": None}, {"at": [moment] if "ARRAY" in schema else moment}], settings)
