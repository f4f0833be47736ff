"""Messages decoded and encoded by Spark alone are those that the log itself reads and writes."""

import decimal
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mainstem.log.kafka.kafka_codec import codec_of
from mainstem.log.record import RECORD, record_schema
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.real_time.real_time_rows import decode_messages, messages_of
from mainstem.spark.spark_types import spark_schema

TYPES = (
    "id STRING, a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(20, 4), j BINARY, k DATE, "
    "l TIMESTAMP, m TIMESTAMP_NTZ, n STRUCT<x: INT, y: ARRAY<STRING>, z: DECIMAL(4, 2)>, o ARRAY<DOUBLE>, p MAP<STRING, BIGINT>"
)
ROWS: list[dict[str, Any]] = [
    {
        "id": "ö \U0001f40b\n\"\\", "a": True, "b": -128, "c": 2**15 - 1, "d": -(2**31), "e": 2**63 - 1, "f": 0.5,
        "g": float("inf"), "h": decimal.Decimal("1234567890123456.7891"), "j": b"\0\xff", "k": date(1969, 12, 31),
        "l": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "m": datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001
        "n": {"x": 1, "y": ["a", None, ""], "z": decimal.Decimal("0.05")}, "o": [1.5, float("-inf")],
        "p": [("one", 1), ("none", None)],
    },
    {"id": "", "g": 1e-7, "h": decimal.Decimal("0.0000"), "l": datetime(9999, 12, 31, tzinfo=UTC), "o": [], "p": []},
    {"id": "nulls"},
]  # fmt: skip
HEADERS = [{"key": "trace", "value": b"7"}, {"key": "none", "value": None}]
CODECS = {
    "text key": TopicSettings.of("t", schema=TYPES, key="id", codec="json"),
    "whole number as key": TopicSettings.of("t", schema=TYPES, key="e", codec="json"),
    "no key": TopicSettings.of("t", schema=TYPES, codec="json"),
    "compacted": TopicSettings.of("t", schema=TYPES, key="id", keep="latest per key", codec="json"),
}
COLUMNS = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass
class Sent:
    """A message as the client library gives it."""

    sent: Any
    number: int

    def key(self) -> bytes | None:
        return self.sent.key

    def value(self) -> bytes | None:
        return self.sent.value

    def headers(self) -> Any:
        return self.sent.headers

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_225_600_123


@dataclass
class Outgoing:
    """A message as Spark's sink sends it."""

    key: bytes | None
    value: bytes | None
    headers: Any


def rows(settings: TopicSettings) -> list[dict[str, Any]]:
    changes = ["update", "delete", "insert"]
    if settings.key == ("e",):
        return [{**row, "e": place} for place, row in enumerate(ROWS)]
    return [
        {**row, "record": {"change": change, "headers": HEADERS if change == "update" else None}}
        for row, change in zip(ROWS, changes, strict=True)
    ]


def read_by_log(messages: list[Sent], settings: TopicSettings) -> list[dict[str, Any]]:
    columns, record, unreadable = codec_of(settings).rows(0, messages, settings, 0, 1 << 40)
    assert not unreadable
    return pa.RecordBatch.from_arrays([*columns.columns, record], names=[*columns.schema.names, "record"]).to_pylist()


@pytest.mark.parametrize("settings", CODECS.values(), ids=CODECS)
def test_spark_reads_and_writes_what_the_log_does(spark: SparkSession, settings: TopicSettings) -> None:
    ours = [
        Sent(message, number)
        for number, message in enumerate(codec_of(settings).messages(check_rows(rows(settings), settings)))
    ]
    given = [
        (bytearray(one.key()) if one.key() is not None else None, one.value(), 0, one.number,
         datetime.fromtimestamp(1_767_225_600.123, UTC), [{"key": key, "value": value} for key, value in one.headers() or ()])
        for one in ours
    ]  # fmt: skip
    frame = spark.createDataFrame(given, COLUMNS)
    wanted = record_schema(pa.schema([field.with_nullable(True) for field in settings.stored_schema]), record=RECORD)

    read = decode_messages(frame, settings, wanted, "unreadable_0").toArrow().to_pylist()

    assert read == read_by_log(ours, settings)

    # And back, from the rows as a flow has them.
    table = pa.Table.from_pylist(read, schema=wanted)
    again = messages_of(spark.createDataFrame(table, spark_schema(wanted)), settings).toArrow().to_pylist()
    theirs = [
        Outgoing(one["key"], one["value"], [(header["key"], header["value"]) for header in one["headers"] or ()])
        for one in again
    ]
    assert [one.key for one in theirs] == [one.key() for one in ours]
    assert [one.value is None for one in theirs] == [one.value() is None for one in ours]
    assert read_by_log([Sent(one, number) for number, one in enumerate(theirs)], settings) == read


def test_what_must_not_be_null_ends_the_batch(spark: SparkSession) -> None:
    settings = TopicSettings.of("t", schema="id STRING NOT NULL, n INT", codec="json")
    with pytest.raises(Exception, match='column "id" of topic "t" must not be null'):
        messages_of(spark.createDataFrame([(None, 1)], "id STRING, n INT"), settings).collect()
    [one] = messages_of(spark.createDataFrame([("a", None)], "id STRING, n INT"), settings, source="s").collect()
    assert (one["key"], bytes(one["value"]), one["headers"]) == (None, b'{"id":"a","n":null}', [])
