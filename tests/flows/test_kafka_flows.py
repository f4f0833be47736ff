"""Flows on a real Kafka: the same answers as on the embedded log, each record once, with runs that die on the way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mainstem.clock import as_us
from mainstem.errors import FlowFailed
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.spark.sources.kafka_stream_reader import appended_from, cut_by_append_time
from mainstem.stem import Mainstem
from tests.flows.batch_faults import failing_at
from tests.flows.kafka_shop import SCHEMA, answers, flows, orders, prepare
from tests.kafka_broker import KafkaBroker

# Where a run dies: before and after the sink, the late rows, the state and Spark itself are told.
POINTS = ["sink_rows_written", "before_sink_commit", "sink_committed", "batch_written", "stage_manifest_written"]


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

    struck = []
    for number, point in enumerate(POINTS):
        on_kafka.topic("orders").append(orders(number * 150, 150))
        with failing_at(point):
            try:
                on_kafka.run(flows, until="idle")
            except FlowFailed:
                struck.append(point)
    on_kafka.topic("orders").append(orders(750, 150))
    on_kafka.run(flows, until="idle")

    assert struck == POINTS
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
    ends = {number: backend.latest(number) for number in range(2)}
    appended = {
        (row["record"]["partition"], row["record"]["offset"]): as_us(row["record"]["appended_at"])
        for row in topic.to_arrow().to_pylist()
    }

    at, batches = {0: 0, 1: 0}, 0
    while at != ends:
        cut = cut_by_append_time(backend, at, ends, 100)
        taken = [when for (number, offset), when in appended.items() if at[number] <= offset < cut[number]]
        left = [when for (number, offset), when in appended.items() if offset >= cut[number]]
        assert 0 < len(taken) <= 300
        # Nothing that was appended before what is taken stays behind.
        assert not left or max(taken) <= min(left)
        assert appended_from(backend, cut, ends, now=2**62) == min(left, default=2**62)
        at, batches = cut, batches + 1
    assert batches >= 3
