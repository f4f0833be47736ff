"""Flows on a real Kafka: the same answers as on the embedded log, each record once, with runs that die on the way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mainstem.clock import as_us
from mainstem.errors import FlowFailed
from mainstem.log.kafka.kafka_flow_cut import cut_by_append_time
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.spark.sources.source_time import find_earliest_append
from mainstem.stem import Mainstem
from tests.flows.batch_faults import failing_at
from tests.flows.kafka_shop import SCHEMA, answers, flows, orders, prepare
from tests.kafka_broker import KafkaBroker

# Where the flows of a run die: before and after the sink, the late rows, the state and Spark itself are told. The flow into a
# topic meets the first, a flow into a view the second.
POINTS = [("sink_rows_written", "stage_manifest_written"), ("before_sink_commit", "batch_written"), ("sink_committed",)]


@pytest.fixture
def on_kafka(spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Mainstem]:
    home = tmp_path / "on_kafka"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "t{uuid.uuid4().hex[:8]}."\n')
    log = KafkaLog(f"kafka://{kafka_broker.address}", home=home)
    with Mainstem(log, home=str(home), spark=spark) as opened:
        yield opened


def test_a_program_gives_the_same_on_kafka_as_embedded_though_its_runs_die(stem: Mainstem, on_kafka: Mainstem) -> None:
    for opened in (stem, on_kafka):
        prepare(opened)
    stem.topic("orders").append(orders(0, 900))
    stem.run(flows, until="idle")

    for number, points in enumerate(POINTS):
        on_kafka.topic("orders").append(orders(number * 225, 225))
        with failing_at(*points), on_kafka.start(flows) as running:
            for handle in running:
                with suppress(FlowFailed):
                    handle.wait_until_idle()
        died = [handle.error for handle in running if handle.error is not None]
        assert sorted(str(error.__cause__) for error in died) == sorted(points)
    on_kafka.topic("orders").append(orders(675, 225))
    on_kafka.run(flows, until="idle")

    assert answers(on_kafka) == answers(stem)
    assert len(answers(on_kafka)["minutes"]) == 3 * 14


def test_what_a_topic_on_kafka_holds_is_read_as_a_frame(on_kafka: Mainstem) -> None:
    prepare(on_kafka)
    topic = on_kafka.topic("orders")
    topic.append(orders(0, 500))
    token = topic.append([]).token
    topic.append(orders(500, 100))

    everything, before = topic.read(), topic.read(stop=token)

    assert (everything.count(), before.count()) == (600, 500)
    summed = everything.agg(F.sum("amount"), F.max("record.offset")).collect()[0]
    assert summed[0] == sum(row["amount"] for row in orders(0, 600))
    assert sorted(map(str, before.drop("record").toArrow().to_pylist())) == sorted(
        map(str, topic.to_arrow(stop=token).drop_columns(["record"]).to_pylist())
    )


def test_a_batch_is_cut_at_one_append_time_and_knows_what_it_leaves(on_kafka: Mainstem) -> None:
    topic = on_kafka.create_topic("orders", schema=SCHEMA, key="order_id", event_time="at", partitions=2)
    backend = topic.backend
    for first in range(0, 400, 20):
        # Of the first half nearly all lies in one partition.
        topic.append(orders(first, 20), partition=0 if first < 200 and first % 100 else 1)
    topics = {"orders": backend}
    ends = {("orders", number): backend.latest(number) for number in range(2)}
    appended = {
        ("orders", row["record"]["partition"], row["record"]["offset"]): as_us(row["record"]["appended_at"])
        for row in topic.to_arrow().to_pylist()
    }

    at, batches = {("orders", 0): 0, ("orders", 1): 0}, 0
    while at != ends:
        cut = cut_by_append_time(topics, at, ends, 100)
        taken = [when for (*lane, offset), when in appended.items() if at[tuple(lane)] <= offset < cut[tuple(lane)]]
        left = [when for (*lane, offset), when in appended.items() if offset >= cut[tuple(lane)]]
        assert 0 < len(taken) <= 300
        # Nothing that was appended before what is taken stays behind.
        assert not left or max(taken) <= min(left)
        assert find_earliest_append(topics, cut, ends, now=2**62) == min(left, default=2**62)
        at, batches = cut, batches + 1
    assert batches >= 3
