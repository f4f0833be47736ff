"""What a topic's codec writes is what it reads, for values of every type; and what each puts on Kafka."""

import decimal
import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.log.topic import Topic
from tests.contracts.shown_rows import changes, dicts, numbers, plain
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import opened, own_settings

EVERYTHING = (
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(20, 4), i string, j binary, "
    "k date, l timestamp, m timestamp_ntz, n struct<x: int, y: array<string>>, o array<double>, p map<string, bigint>"
)
ROW = {
    "a": True, "b": -128, "c": 2**15 - 1, "d": -(2**31), "e": 2**63 - 1, "f": 0.5, "g": float("inf"),
    "h": decimal.Decimal("1234567890123456.7891"), "i": "naïve \U0001f40b\n", "j": b"\0\xff", "k": date(1969, 12, 31),
    "l": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "m": datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - no zone is its point
    "n": {"x": 1, "y": ["a", None, ""]}, "o": [], "p": [("one", 1), ("none", None)],
}  # fmt: skip


@pytest.mark.parametrize("codec", ["json", "arrow"])
def test_values_of_every_type_come_back_as_they_went_in(kafka_broker: KafkaBroker, codec: str) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        topic = stem.create_topic("types", schema=EVERYTHING, codec=codec)
        topic.append([ROW, dict.fromkeys(ROW)])
        assert plain(topic.to_arrow()) == [ROW, dict.fromkeys(ROW)]
        assert topic.settings.codec == codec


def test_json_is_what_other_programs_expect(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        topic = stem.create_topic(
            "orders", schema="id string, price decimal(9, 2), at timestamp, data binary", key="id"
        )
        header = {"key": "trace", "value": b"7"}
        row = {"id": "ö", "price": "9.50", "at": datetime(2026, 1, 1, 12, tzinfo=UTC), "data": b"\0"}
        topic.append([{**row, "price": decimal.Decimal("9.50"), "record": {"change": "update", "headers": [header]}}])
        [message] = messages(topic)
        assert json.loads(message.value()) == {"id": "ö", "price": "9.50", "at": "2026-01-01T12:00:00Z", "data": "AA=="}
        assert message.key() == "ö".encode()
        assert message.headers() == [("trace", b"7"), ("mainstem.change", b"update")]


def test_a_deleted_key_of_a_compacted_topic_is_a_message_without_a_value(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        settings = {"key": ["id", "price"], "keep": "latest per key"}
        topic = stem.create_topic("stock", schema="id string, price decimal(9, 2), n int", **settings)
        topic.append([{"id": "a", "price": decimal.Decimal("1.50"), "n": 1}])
        topic.delete([("a", decimal.Decimal("1.50"))])
        assert [message.value() is None for message in messages(topic)] == [False, True]
        assert plain(topic.to_arrow())[1] == {"id": "a", "price": decimal.Decimal("1.50"), "n": None}
        assert changes(topic.to_arrow()) == ["insert", "delete"]
        assert stem.query("SELECT * FROM stock").num_rows == 0


def test_raw_passes_bytes_through(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        topic = stem.create_topic("bytes", schema="value binary", codec="raw")
        topic.append([{"value": b"\0\xff"}, {"value": b""}])
        assert [message.value() for message in messages(topic)] == [b"\0\xff", b""]
        assert plain(topic.to_arrow()) == [{"value": b"\0\xff"}, {"value": b""}]


def test_arrow_puts_many_rows_into_a_message_and_each_has_its_place(kafka_broker: KafkaBroker) -> None:
    with opened(own_settings(kafka_broker)) as stem:
        topic = stem.create_topic("blocks", schema="k string, n bigint", key="k", codec="arrow", partitions=2)
        for first in (0, 50):
            topic.append([{"k": f"key-{n % 7}", "n": n} for n in range(first, first + 50)])
        assert sum(len(messages(topic, number)) for number in range(2)) == 4
        rows = dicts(topic.to_arrow())
        assert sorted(row["n"] for row in rows) == list(range(100))
        # Any row is a place to start at, and to stop before.
        for row in (rows[0], rows[7], rows[60], rows[99]):
            partition, offset = row["record"]["partition"], row["record"]["offset"]
            assert numbers(topic.batches(start={partition: offset}, stop={partition: offset + 1})) == [row["n"]]
        with topic.join_group("billing") as member:
            seen = []
            while (batch := member.poll(rows_max=9)) is not None:
                seen += numbers(batch)
                member.commit()
            assert sorted(seen) == list(range(100))
        topic.append([{"k": "a", "n": 100, "record": {"change": "update"}}])
        assert "update" in changes(topic.to_arrow())
        # Rows of an earlier schema are read through the later one.
        topic.alter(schema="k string, n bigint, note string")
        assert set(topic.to_arrow().column("note").to_pylist()) == {None}
        with pytest.raises(Invalid, match="codec"):
            topic.alter(codec="json")


def messages(topic: Topic, partition: int = 0) -> list:
    """What lies on Kafka."""
    backend = topic.backend
    fetch = backend._log.fetches.of(backend.kafka_name, backend.id, partition)
    return fetch.read(0, backend._log.clients.range(backend.kafka_name, partition)[1], 1000)


def test_the_head_of_a_block_is_as_it_is_drawn() -> None:
    from mainstem.log.kafka.kafka_codec import HEAD, ArrowCodec
    from mainstem.log.rows.rows import check_rows
    from mainstem.log.topic_settings import TopicSettings

    settings = TopicSettings.of("orders", schema="n bigint", codec="arrow")
    [message] = ArrowCodec().messages(check_rows(pa.table({"n": [1, 2, 3]}), settings))
    assert HEAD.unpack_from(message.value) == (1, 0, 3)
    assert message.key is None
