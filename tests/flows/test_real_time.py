"""Flows in real time on a real broker: each row as it comes, at least once, with what tells a repeated one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mainstem.errors import FlowFailed, Invalid
from mainstem.flows import real_time
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.operators import tumbling, windowed
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.real_time.real_time_rows import brokers_of
from mainstem.stem import Mainstem
from mainstem.stem import open as open_stem
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import made_elsewhere
from tests.needs import needs

SCHEMA = "order_id BIGINT, store STRING, amount DECIMAL(12, 2), at TIMESTAMP"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = "spark.sql.streaming.realTimeMode.minBatchDuration"


@pytest.fixture
def short_batches(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spark.conf.set(SHORT, "1000")
    monkeypatch.setattr(real_time, "BATCH", "2 seconds")
    yield
    spark.conf.unset(SHORT)


@pytest.fixture
def encrypted(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mainstem]:
    """A home that reaches its broker by TLS and a login."""
    home = tmp_path / "encrypted"
    home.mkdir()
    (home / "kafka.toml").write_text(
        f"""prefix = "t{uuid.uuid4().hex[:8]}."
        [client]
        "security.protocol" = "SASL_SSL"
        "sasl.mechanism" = "PLAIN"
        "sasl.username" = "{kafka_broker.user}"
        "ssl.ca.location" = "{kafka_broker.certificate}"
        """
    )
    monkeypatch.setenv("MAINSTEM_KAFKA_SASL_PASSWORD", kafka_broker.password)
    with open_stem(home, log=f"kafka://{kafka_broker.encrypted_address}", spark=spark) as opened:
        yield opened


def orders(first: int, end: int) -> list[dict[str, Any]]:
    return [
        {"order_id": n, "store": f"store {n % 3}", "amount": n % 50, "at": BEGIN + timedelta(milliseconds=n)}
        for n in range(first, end)
    ]


def big_orders(stem: Mainstem) -> Iterator[Flow]:
    rows = stem.topic("orders").stream().where("amount >= 10")
    yield Flow(rows.withColumn("amount", F.col("amount") * 2), into=stem.topic("big_orders"), mode="real-time")


def origins(rows: list[dict[str, Any]]) -> list[str]:
    return [
        header["value"].decode() for row in rows for header in row["record"]["headers"] if header["key"] == "origin"
    ]


def until(stem: Mainstem, topic: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """What a topic holds, from the beginning, as soon as it is enough."""
    found: list[dict[str, Any]] = []
    if not enough(found):
        for batch in stem.topic(topic).follow(start="earliest", wait="2 minutes"):
            found += batch.to_pylist()
            if enough(found):
                break
    return found


@needs("openssl", command="openssl")
def test_rows_pass_as_they_come_and_again_after_a_crash_with_the_same_origin(
    encrypted: Mainstem, short_batches: None, kafka_broker: KafkaBroker
) -> None:
    on_kafka = encrypted
    topic = on_kafka.create_topic("orders", schema=SCHEMA, key="store", event_time="at")
    sink = on_kafka.create_topic("big_orders", schema=SCHEMA, key="store", event_time="at", partitions=3)
    topic.append(orders(0, 100))
    header = {"key": "trace", "value": b"7"}
    topic.append([{**orders(149, 150)[0], "record": {"change": "update", "headers": [header]}}])
    elsewhere = Producer({"bootstrap.servers": kafka_broker.address})
    for value in (b"not json", b'{"amount": "many"}', b""):
        elsewhere.produce(topic.backend.kafka_name, value=value, partition=0)
    assert elsewhere.flush(300) == 0
    del elsewhere
    checkpoint = FlowStore(on_kafka.home, "big_orders").checkpoint(1)

    # Ended in the middle of a batch: what it has sent since the last one is sent again.
    with on_kafka.start(big_orders) as running:
        first = until(on_kafka, "big_orders", lambda rows: len(rows) >= 81)
        done = last_batch(checkpoint)
        topic.append(orders(200, 300))
        before = until(on_kafka, "big_orders", lambda rows: len(rows) >= 161)
        running["big_orders"].stop()
    assert len(first) == 81
    assert len(before) == 161
    topic.append(orders(300, 400))
    with on_kafka.start(big_orders) as running:
        after = until(on_kafka, "big_orders", lambda rows: len(set(origins(rows))) >= 241)
        # A run that waits until there is nothing more ends when a batch has noted all of it.
        running.wait_until_idle()
        progress = running["big_orders"].progress
        query = running["big_orders"].query
        assert query is not None
        shown = [str(query.lastProgress), query._jsq.explainInternal(True)]
    assert last_batch(checkpoint) > (-1 if done is None else done)
    assert progress.lag_records == 0

    expected = [row for row in [*orders(0, 100), *orders(149, 150), *orders(200, 400)] if row["amount"] >= 10]
    found = dict(zip(origins(after), after, strict=True))
    assert sorted(row["order_id"] for row in found.values()) == sorted(row["order_id"] for row in expected)
    # Nothing that came twice is another row.
    assert {(origin, row["order_id"]) for origin, row in zip(origins(after), after, strict=True)} == {
        (origin, row["order_id"]) for origin, row in found.items()
    }
    by_order = {row["order_id"]: row for row in found.values()}
    for row in expected:
        kept = by_order[row["order_id"]]
        assert (kept["store"], kept["amount"], kept["at"]) == (row["store"], 2 * row["amount"], row["at"])
    changed = by_order[149]["record"]
    assert changed["change"] == "update"
    assert header in changed["headers"]
    # As our own appends place them.
    sink.append(orders(0, 3))
    ours = [row for row in sink.to_arrow().to_pylist() if not row["record"]["headers"]]
    places = {row["store"]: row["record"]["partition"] for row in ours}
    assert len(places) == 3
    assert all(row["record"]["partition"] == places[row["store"]] for row in after)
    unreadable = on_kafka.topic("orders.unreadable").to_arrow().to_pylist()
    assert [row["value"] for row in unreadable] == [b"not json", b'{"amount": "many"}', b""]

    # What Spark tells of the query, and all that was written down: never the password.
    shown += [path.read_text(errors="replace") for path in Path(on_kafka.home).rglob("*") if path.is_file()]
    assert not [text[:300] for text in shown if kafka_broker.password in text]

    # From one mode to the other there is no way on the same checkpoint; it is said where to begin.
    def in_batches(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("orders").stream(), into=stem.topic("big_orders"))

    with pytest.raises(FlowFailed) as refused:
        on_kafka.run(in_batches, until="idle")
    assert 'has run in mode "real-time" so far' in refused.value.detail
    assert f"orders: start={{0: {topic.backend.latest(0)}}}" in refused.value.hint


def test_what_stands_in_the_way_of_real_time_is_said_when_a_program_is_built(
    stem: Mainstem, on_kafka: Mainstem
) -> None:
    for opened in (stem, on_kafka):
        for name in ("orders", "other"):
            opened.create_topic(name, schema=SCHEMA, key="store", event_time="at")
    on_kafka.create_topic("blocks", schema=SCHEMA, codec="arrow")
    made_elsewhere(brokers_of(on_kafka.log).kafka_settings, "changes", [])
    on_kafka.adopt_topic("changes", schema=SCHEMA, key="store", codec="debezium")
    on_kafka.create_topic("parts", schema="n BIGINT, at TIME", key="n")
    on_kafka.create_topic("wide", schema=SCHEMA, partitions=3)
    on_kafka.create_topic("pairs", schema=SCHEMA, key=["order_id", "store"])

    def why(rows: Callable[[Mainstem], Any], into: Any = None, opened: Mainstem = on_kafka) -> str:
        def flows(stem: Mainstem) -> Iterator[Flow]:
            sink = stem.topic("new") if into is None else into(stem)
            yield Flow(rows(stem), into=sink, name="alerts", mode="real-time")

        with pytest.raises(Invalid) as refused:
            Program(opened, flows).only(None)
        return refused.value.summary

    def streamed(name: str) -> Callable[[Mainstem], Any]:
        return lambda stem: stem.topic(name).stream()

    twice = F.udf(lambda text: text * 2, "string")
    cases = {
        "its log is in the home": why(streamed("orders"), opened=stem),
        "its stream has a watermark": why(lambda stem: stem.topic("orders").stream(watermark="1 minute")),
        'it has Spark\'s "aggregate"': why(lambda stem: stem.topic("orders").stream().groupBy("store").count()),
        'it has the operator "windowed-0"': why(
            lambda stem: windowed(
                stem.topic("orders").stream(watermark="1 minute"),
                tumbling("1 minute"),
                by="store",
                aggregates=[F.count("*").alias("n")],
            )
        ),
        "it has a function in Python (a UDF)": why(
            lambda stem: stem.topic("orders").stream().withColumn("store", twice("store"))
        ),
        "it has mapInArrow": why(
            lambda stem: stem.topic("orders").stream().select("store").mapInArrow(lambda rows: rows, "store STRING")
        ),
        "it has repartition": why(lambda stem: stem.topic("orders").stream().repartition(2)),
        'it streams topic "orders" twice': why(
            lambda stem: stem.topic("orders").stream().unionByName(stem.topic("orders").stream())
        ),
        "it streams topics o*": why(lambda stem: stem.topics("o*").stream().drop("topic")),
        'the codec of topic "blocks" is "arrow"': why(streamed("blocks")),
        'the codec of topic "changes" is "debezium"': why(streamed("changes")),
        'it writes into topic "changes", and its codec is "debezium": it is only read': why(
            streamed("orders"), lambda s: s.topic("changes")
        ),
        'it uses the column "at" of topic "parts"': why(streamed("parts")),
        'it writes into view "kept"': why(streamed("orders"), lambda stem: stem.view("kept", key="order_id")),
        'it writes into topic "blocks", and its codec is "arrow": a message holds many rows': why(
            streamed("orders"), lambda s: s.topic("blocks")
        ),
        'it writes into topic "pairs", and its key has 2 columns': why(streamed("orders"), lambda s: s.topic("pairs")),
    }
    for part, said in cases.items():
        assert said == f'flow "alerts" cannot run in real time: {part}'
    assert why(streamed("wide")) == "the real-time flows occupy 3 cores"
    with pytest.raises(Invalid, match="has no mode 'fast'"):
        Flow(on_kafka.topic("orders").stream(), into=on_kafka.topic("other"), mode="fast")  # type: ignore[arg-type]
    # What is one row at a time, in Java, may be.
    small = on_kafka.spark.createDataFrame([("store 1", "Berlin")], "store STRING, city STRING")

    def allowed(stem: Mainstem) -> Iterator[Flow]:
        both = stem.topic("orders").stream().unionByName(stem.topic("other").stream())
        joined = both.join(F.broadcast(small), "store", "left").where("amount > 1").select("store", "city", "amount")
        yield Flow(joined, into=stem.topic("joined"), mode="real-time")

    assert [flow.flow.mode for flow in Program(on_kafka, allowed).only(None)] == ["real-time"]
