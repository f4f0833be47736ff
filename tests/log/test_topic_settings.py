"""What a topic is told: checked, written down, compared, altered."""

import json
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given

from mainstem.errors import CorruptHome, Invalid, InvalidName, NewerFormat, SchemaMismatch
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.log.topic_settings import Keep, TopicSettings, difference
from tests.log.schema_strategies import SCHEMAS

DDL = "order_id STRING NOT NULL, store STRING, amount DOUBLE, placed_at TIMESTAMP, lines ARRAY<INT>"


def orders(**changes: object) -> TopicSettings:
    given = {"schema": DDL, "key": "order_id", "event_time": "placed_at", "partitions": 4, "keep": "7 days", **changes}
    return TopicSettings.of("orders", **given)  # type: ignore[arg-type]


def test_what_a_user_gives_becomes_exact() -> None:
    settings = orders(key=["store", "order_id"], idle_after="5 seconds", segment_bytes_max="1 MiB")
    assert settings.key == ("store", "order_id")
    assert settings.schema == schema_from_ddl(DDL)
    assert settings.keep == Keep(age="7 days")
    assert (settings.idle_after, settings.segment_bytes_max) == (timedelta(seconds=5), 1 << 20)
    assert settings.record_bytes_max == 16 << 20


@pytest.mark.parametrize(
    ("changes", "complaint", "hint"),
    [
        ({"key": "ordr_id"}, 'key column "ordr_id" is not in the schema', 'Did you mean "order_id"?'),
        ({"key": ["store", "store"]}, "names a column twice", ""),
        ({"key": "lines"}, 'key column "lines" is ARRAY<INT>', ""),
        ({"event_time": "placed"}, 'event-time column "placed" is not in the schema', 'Did you mean "placed_at"?'),
        ({"event_time": "store"}, 'event-time column "store" is STRING', "TIMESTAMP"),
        ({"partitions": 0}, 'partitions of topic "orders" is 0', ""),
        ({"partitions": 1025}, "is 1025", ""),
        ({"partitions": "4"}, "is '4'", ""),
        ({"partitions": True}, "is True", ""),
        ({"record_bytes_max": 0}, "record_bytes_max", "MiB"),
        ({"segment_bytes_max": "64 parsecs"}, "is not a size", ""),
        ({"segment_age_max": timedelta(0)}, "segment_age_max", "1 hour"),
        ({"idle_after": 5}, "idle_after", "5 seconds"),
        ({"key": None, "keep": Keep.latest_per_key()}, "has no key", "key="),
        ({"keep": "sometimes"}, "keep", ""),
        ({"schema": 7}, "schema is int", "STRING"),
        ({"partitons": 4}, 'a topic has no setting "partitons"', 'Did you mean "partitions"?'),
    ],
)
def test_a_mistake_is_named_with_what_to_do(changes: dict[str, object], complaint: str, hint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        orders(**changes)
    assert caught.value.detail
    assert caught.value.hint
    assert hint in caught.value.hint


def test_a_name_with_a_path_in_it_is_refused() -> None:
    with pytest.raises(InvalidName):
        TopicSettings.of("../orders", schema="a INT")


@given(SCHEMAS)
def test_settings_come_back_from_json(schema: pa.Schema) -> None:
    settings = TopicSettings.of("orders", schema=schema, keep=Keep("1 day", "1 GiB"), archive="elsewhere")
    settings = settings.alter(schema=settings.schema.append(pa.field("added later on", pa.int8())))
    read = TopicSettings.from_json(json.loads(json.dumps(settings.to_json())))
    assert read == settings
    assert read.schema.equals(settings.schema, check_metadata=True)
    assert read.schema_version == 2


def test_a_newer_version_is_told_apart_from_damage() -> None:
    written = orders().to_json()
    with pytest.raises(NewerFormat):
        TopicSettings.from_json({**written, "version": 2})
    for damaged in ({**written, "schemas": []}, {**written, "schemas": ["a"]}, {**written, "keep": 7}, {"name": "x"}):
        with pytest.raises(CorruptHome, match="cannot be read") as caught:
            TopicSettings.from_json(damaged)
        assert caught.value.hint


def test_a_schema_is_found_by_the_number_a_block_names() -> None:
    settings = orders(schema="order_id STRING NOT NULL, placed_at TIMESTAMP")
    later = settings.alter(schema="order_id STRING NOT NULL, placed_at TIMESTAMP, n INT")
    latest = later.alter(schema="order_id STRING NOT NULL, placed_at TIMESTAMP, n BIGINT")
    assert latest.schema_version == 3
    assert [latest.schema_of(number).names for number in (1, 2)] == [["order_id", "placed_at"], later.schema.names]
    assert latest.schema_of(1) == schema_from_ddl("order_id STRING, placed_at TIMESTAMP")
    assert latest.stored_schema.field("n").type == pa.int64()
    assert latest.record_schema.names == [*latest.schema.names, "record"]
    assert latest.record_schema.field("placed_at").metadata == {b"mainstem.event_time": b"1"}


def test_altering_keeps_what_rows_depend_on() -> None:
    settings = orders()
    altered = settings.alter(keep="forever", partitions=8)
    assert (str(altered.keep), altered.partitions, altered.schema_version) == ("forever", 8, 1)
    for changes in ({"partitions": 2}, {"key": "store"}, {"name": "others"}, {"event_time": None}):
        with pytest.raises(Invalid, match="cannot"):
            settings.alter(**changes)
    with pytest.raises(SchemaMismatch):
        settings.alter(schema="order_id STRING")


def test_a_new_comment_makes_no_new_schema() -> None:
    settings = TopicSettings.of("orders", schema="a INT").alter(schema="a INT COMMENT 'of the day'")
    assert settings.schema_version == 1
    assert settings.to_json()["schemas"] == ["a INT COMMENT 'of the day'"]


def test_a_difference_is_told_in_words() -> None:
    asked = orders(keep="forever", partitions=8, key=None, segment_age_max="2 hours", archive="far")
    assert difference(orders(), asked) == [
        'key is "order_id", asked for "none"',
        'partitions is "4", asked for "8"',
        'keep is "7 days", asked for "forever"',
        'archive is "none", asked for "far"',
        'segment_age_max is "1 hour", asked for "2 hours"',
    ]
    assert difference(orders(), orders()) == []
    assert difference(orders(), orders().alter(schema=f"{DDL}, n INT"))[0].startswith('schema is "order_id STRING')


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("retention", 'How long records are kept is keep="7 days", or keep="10 GiB".'),
        ("ttl", 'How long records are kept is keep="7 days", or keep="10 GiB".'),
        ("cleanup_policy", 'A compacted topic has keep="latest per key".'),
        ("partition", 'Did you mean "partitions"?'),
        ("zebra", "Leave it out."),
    ],
)
def test_a_setting_of_another_system_is_answered_with_ours(word, hint):
    with pytest.raises(Invalid) as refused:
        TopicSettings.of("orders", schema="id STRING", **{word: "7 days"})

    assert refused.value.hint == hint
