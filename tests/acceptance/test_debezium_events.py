"""Case A12, envelope: a topic that Debezium wrote is read as the rows of its table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from mainstem import Invalid
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.record import ORIGIN
from mainstem.log.rows.schema_ddl import type_to_ddl
from tests.acceptance.case_files import case
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import made_elsewhere, opened, own_settings

A12 = case("A12")
CUSTOMERS = f"id INT, first_name STRING, last_name STRING, email STRING, origin {type_to_ddl(ORIGIN)}"
WRAPPED = pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "with schema"])

Event = tuple[Any, Any, list[tuple[str, bytes]] | None]


def send(settings: KafkaSettings, topic: str, events: list[Event], *, wrapped: bool = False) -> None:
    """Keys, values and headers as Debezium sends them, with or without the schema around them."""
    name = settings.prefix + topic
    made_elsewhere(settings, topic, [])
    producer = Producer({"bootstrap.servers": settings.servers})

    def data(content: Any) -> bytes | None:
        if content is None:
            return None
        return json.dumps(
            {"schema": {"type": "struct", "fields": []}, "payload": content} if wrapped else content
        ).encode()

    for key, value, headers in events:
        producer.produce(name, key=data(key), value=data(value), headers=headers, partition=0)
    assert producer.flush(300) == 0


def envelope(op: str, after: Any, before: Any = None, **source: Any) -> dict[str, Any]:
    known = {"version": "3.7", "connector": "postgresql", "name": "s", "ts_ms": 1_700_000_000_123, "snapshot": "false",
             "db": "d", "schema": "inventory", "table": "customers", "txId": 571, "lsn": 24_023_128}  # fmt: skip
    return {"before": before, "after": after, "source": {**known, **source}, "op": op, "ts_ms": 1_700_000_000_500}


def events_of_the_tutorial() -> list[Event]:
    rows = {row["id"]: row for row in A12["tutorial"]["initial_rows"]}
    rows[1005] = {"id": 1005, "first_name": "Sarah", "last_name": "Thompson", "email": "kitt@acme.com"}
    rows[1006] = {"id": 1006, "first_name": "Kenneth", "last_name": "Anderson", "email": "kander@acme.com"}
    found: list[Event] = []
    for step in A12["tutorial"]["steps"]:
        for event in step["events"]:
            key = event["key"]
            if "op" not in event:
                found.append((key, None, None))
                continue
            after = event.get("after", "the row")
            row = rows[key["id"]] if after == "the row" else after
            snapshot = "true" if event.get("source.snapshot") else "false"
            found.append((key, envelope(event["op"], row, event.get("before"), snapshot=snapshot), None))
    return found


@WRAPPED
def test_the_tutorial_is_read_as_rows(kafka_broker: KafkaBroker, wrapped: bool) -> None:
    settings = own_settings(kafka_broker)
    send(settings, "customers", events_of_the_tutorial(), wrapped=wrapped)
    with opened(settings) as stem:
        rows = stem.adopt_topic("customers", schema=CUSTOMERS, key="id", codec="debezium").to_arrow().to_pylist()
        unreadable = [name for name in stem.topics() if name.endswith(".unreadable")]

    assert [(row["record"]["change"], row["id"], row["first_name"], (row["origin"] or {}).get("snapshot")) for row in rows] == [
        ("insert", 1001, "Sally", True),
        ("insert", 1002, "George", True),
        ("insert", 1003, "Edward", True),
        ("insert", 1004, "Anne", True),
        ("update", 1004, "Anne Marie", False),
        ("delete", 1004, None, False),
        # The tombstone: the same deletion again.
        ("delete", 1004, None, None),
        ("insert", 1005, "Sarah", False),
        ("insert", 1006, "Kenneth", False),
    ]  # fmt: skip
    assert rows[4]["email"] == "annek@noanswer.org"
    origin = rows[4]["origin"]
    assert (origin["position"], origin["transaction"], origin["number"]) == ("0/16E9058", 571, None)
    assert origin["committed_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert rows[0]["origin"]["transaction"] is None
    assert unreadable == []


def test_only_the_key_before_a_change_and_a_changed_key(kafka_broker: KafkaBroker) -> None:
    default = A12["replica_identity_default"]
    key, new = {"id": 1}, {"id": 2}
    moved: list[Event] = []
    for event in A12["primary_key_update"]["emits_in_order"]:
        headers = [
            (name, json.dumps(new if text == "new key" else key).encode())
            for name, text in event.get("header", {}).items()
        ]
        at = key if event["key"] == "old" else new
        row = {**default["update"]["after"], **new}
        value = envelope(event["op"], row if event["op"] == "c" else None, key) if "op" in event else None
        moved.append((at, value, headers or None))
    update = envelope("u", default["update"]["after"], default["update"]["before"])
    settings = own_settings(kafka_broker)
    send(settings, "customers", [(key, update, None), *moved, (new, envelope("d", None, new), None)])
    with opened(settings) as stem:
        rows = stem.adopt_topic("customers", schema=CUSTOMERS, key="id", codec="debezium").to_arrow().to_pylist()

    assert [(row["record"]["change"], row["id"], row["email"]) for row in rows] == [
        ("update", 1, "annek@noanswer.org"),
        ("delete", 1, None),
        ("delete", 1, None),
        ("insert", 2, "annek@noanswer.org"),
        ("delete", 2, None),
    ]
    assert rows[1]["record"]["headers"] == [{"key": "__debezium.newkey", "value": b'{"id": 2}'}]
    assert rows[3]["record"]["headers"] == [{"key": "__debezium.oldkey", "value": b'{"id": 1}'}]


def test_what_is_no_row_is_unreadable_and_nothing_is_appended(kafka_broker: KafkaBroker) -> None:
    settings = own_settings(kafka_broker)
    row = {"id": 1, "first_name": "Anne"}
    wrong: list[Event] = [
        (None, {"op": "t", "source": {}}, None),
        (None, {"op": "m", "source": {}, "message": {"prefix": "p", "content": ""}}, None),
        ({"id": 1}, row, None),
        ({"id": 1}, envelope("c", None), None),
        ({"id": 1}, envelope("u", {**row, "email": "__debezium_unavailable_value"}), None),
        ({"other": 1}, envelope("d", None), None),
        ({"id": 1}, envelope("c", {"id": 1 << 40}), None),
        ({"id": 1}, [1], None),
    ]
    send(settings, "customers", [({"id": 1}, envelope("c", row), None), *wrong, ({"id": 1}, envelope("u", row), None)])
    with opened(settings) as stem:
        topic = stem.adopt_topic("customers", schema=CUSTOMERS, key="id", codec="debezium")
        changes = [row["record"]["change"] for row in topic.to_arrow().to_pylist()]
        reasons = [row["reason"] for row in stem.topic("customers.unreadable").to_arrow().to_pylist()]
        with pytest.raises(Invalid, match="is only read"):
            topic.append([{"id": 2}])
        with pytest.raises(Invalid, match='cannot be created with the codec "debezium"'):
            stem.create_topic("more", schema=CUSTOMERS, key="id", codec="debezium")
        with pytest.raises(Invalid, match="without a key"):
            stem.adopt_topic("customers", schema=CUSTOMERS, codec="debezium")

    assert changes == ["insert", "update"]
    assert len(reasons) == len(wrong)
    assert reasons[:3] == [
        "a truncate does not say which rows it deletes",
        "a message of an application is not a row",
        "it is no change: op is 'None'",
    ]
    assert "REPLICA IDENTITY FULL" in reasons[4]
    assert reasons[5] == "its key lacks the columns id"


def test_dates_times_and_decimals_have_the_units_of_their_schema(kafka_broker: KafkaBroker) -> None:
    types = [
        {"field": "id", "type": "int32"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "fine", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "coarse", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "clock", "type": "int64", "name": "io.debezium.time.MicroTime"},
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
        {"field": "ratio", "type": "double"},
    ]
    # The price is 12.34: the bytes 04 D2.
    row = {"id": 1, "day": 19675, "fine": 1_700_000_000_123_456, "coarse": 1_700_000_000_123, "zoned": "2023-11-14T22:13:20Z",
           "clock": 1_000_001, "price": "BNI=", "ratio": 0.5}  # fmt: skip
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": types}]}
    plain = {**row, "price": "12.34", "coarse": row["fine"]}
    settings = own_settings(kafka_broker)
    events: list[Event] = [
        ({"id": 1}, {"schema": schema, "payload": envelope("c", row)}, None),
        ({"id": 1}, envelope("c", plain), None),
    ]
    send(settings, "prices", events)
    with opened(settings) as stem:
        topic = stem.adopt_topic(
            "prices", key="id", codec="debezium",
            schema="id INT, day DATE, fine TIMESTAMP_NTZ, coarse TIMESTAMP_NTZ, zoned TIMESTAMP, clock TIME, "
            "price DECIMAL(10, 2), ratio DOUBLE",
        )  # fmt: skip
        first, second = topic.to_arrow().to_pylist()

    shown = {name: str(value) for name, value in first.items() if name != "record"}
    assert shown == {
        "id": "1", "day": "2023-11-14", "fine": "2023-11-14 22:13:20.123456", "coarse": "2023-11-14 22:13:20.123000",
        "zoned": "2023-11-14 22:13:20+00:00", "clock": "00:00:01.000001", "price": "12.34", "ratio": "0.5",
    }  # fmt: skip
    assert {name: str(value) for name, value in second.items() if name not in ("record", "coarse")} == {
        name: text for name, text in shown.items() if name != "coarse"
    }
