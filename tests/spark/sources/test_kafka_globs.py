"""Several topics of a real Kafka as one stream; and what the readers of its topics make of tasks that note nothing."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem.clock import as_us
from mainstem.errors import Conflict, FlowFailed
from mainstem.flows.flow import Flow
from mainstem.operators import tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources import spark_topic
from mainstem.spark.sources.batch_clock import clocks_of, leave_due, set_now, watermark_of
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem
from tests.flows.memory_sink import MemorySink
from tests.flows.regional_orders import SCHEMA, rows, seen


def made(stem: Mainstem, name: str, **more: Any) -> Any:
    return stem.create_topic(name, **{"schema": SCHEMA, "event_time": "at", **more})


def test_topics_join_while_a_flow_runs_and_batches_are_run_again_the_same(
    on_kafka: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_topic, "TopicRequest", partial(TopicRequest, rows_max=20))
    for name, first, codec in (("orders.eu", 0, "json"), ("orders.us", 100, "arrow")):
        topic = made(on_kafka, name, partitions=2, codec=codec)
        for at in range(first, first + 40, 8):
            topic.append(rows(at, at + 8))
    sink = MemorySink("seen", failing={1})

    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topics("orders.*").stream(watermark="1 minute")
        yield Flow(orders.where("amount % 2 = 0 or topic = 'orders.us'").select("topic", "amount"), into=sink)

    with pytest.raises(FlowFailed):
        on_kafka.run(flows, until="idle")
    made(on_kafka, "orders.jp", schema="order_id STRING, amount INT, at TIMESTAMP, extra STRING")
    on_kafka.topic("orders.jp").append([{**row, "extra": "x"} for row in rows(0, 6)])
    with on_kafka.start(flows) as running:
        running.wait_until_idle()
        before = seen(sink)
        made(on_kafka, "orders.bad", schema="amount STRING, at TIMESTAMP")
        made(on_kafka, "orders.za").append(rows(6, 10))
        on_kafka.topic("orders.eu").append(rows(40, 42))
        running.wait_until_idle()
    first, again = sink.attempts[1]
    assert first
    assert sorted(first, key=str) == sorted(again, key=str)
    assert len(sink.attempts) >= 4
    eu = [("orders.eu", n) for n in range(0, 40, 2)]
    us = [("orders.us", n) for n in range(100, 140)]
    jp = [("orders.jp", n) for n in range(0, 6, 2)]
    assert before == sorted([*eu, *jp, *us])
    assert seen(sink) == sorted([*eu, ("orders.eu", 40), *jp, *us, ("orders.za", 6), ("orders.za", 8)])
    noted = on_kafka.topic("mainstem.refused_topics").to_arrow().drop_columns(["record"]).to_pylist()
    assert [(row["topic"], row["reason"]) for row in noted] == [
        ("orders.bad", 'column "amount" cannot change from STRING to BIGINT')
    ]
    read = on_kafka.topics("orders.[!b]*").read()
    assert sorted((row["topic"], row["amount"]) for row in read.select("topic", "amount").collect())[-4:] == [
        ("orders.za", n) for n in range(6, 10)
    ]


def test_windows_over_several_topics_close_by_what_was_seen_of_all_of_them(on_kafka: Mainstem) -> None:
    for name in ("orders.eu", "orders.us"):
        made(on_kafka, name, partitions=2)
        on_kafka.topic(name).append(rows(0, 120), partition=0)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topics("orders.*").stream(watermark="10 seconds").withColumnRenamed("topic", "region")
        counted = windowed(orders, tumbling("1 minute"), by="region", aggregates=[F.count("*").alias("n")])
        yield Flow(counted, into=stem.view("minutes", key=["window", "region"]))

    with on_kafka.start(flows) as running:
        running.wait_until_idle()
        assert len(on_kafka.view("minutes").to_arrow()) == 2
        on_kafka.topic("orders.eu").append(rows(120, 200), partition=0)
        running.wait_until_idle()
        # The other one is not as far yet.
        assert len(on_kafka.view("minutes").to_arrow()) == 2
        # Behind: an event time that both have passed is late.
        on_kafka.topic("orders.us").append([*rows(120, 200), *rows(10, 12)], partition=0)
        running.wait_until_idle()
    found = on_kafka.view("minutes").to_arrow().to_pylist()
    assert sorted((row["region"], row["window"]["start"].minute, row["n"]) for row in found) == [
        (name, minute, 60) for name in ("orders.eu", "orders.us") for minute in (0, 1, 2)
    ]
    late = on_kafka.topic("minutes.late").to_arrow().to_pylist()
    assert (sum(row["n"] for row in late), {row["region"] for row in late}) == (2, {"orders.us"})


@pytest.mark.parametrize("pattern", [False, True])
def test_a_home_that_tasks_do_not_see_is_told_and_a_task_that_never_reads_is_not(
    on_kafka: Mainstem, tmp_path: Path, pattern: bool
) -> None:
    topic = made(on_kafka, "orders")
    topic.append(rows(0, 5))
    run = FlowStore(on_kafka.home, "flow").begin()
    request = TopicRequest(
        home=on_kafka.home, log=on_kafka.log.address, topic="orders", columns=("amount",), delay=0, flow="flow",
        epoch=run.epoch, leaf=0, pattern=pattern,
    )  # fmt: skip
    reader = TopicStreamReader(request, topic.shown_schema().remove(2).remove(0))
    start = reader.initialOffset()
    for first in (5, 9):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert reader.partitions(start, end)
        # Spark may know that it wants none of it: then nothing is noted, and that is no sign of anything.
        topic.append(rows(first, first + 4))
        start = end
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    [part] = reader.partitions(start, end)
    assert [row["amount"] for batch in reader.read(part) for row in batch.to_pylist()] == [9, 10, 11, 12]
    reader.stop()

    elsewhere = TopicStreamReader(
        replace(request, home=str(tmp_path / "elsewhere")), topic.shown_schema().remove(2).remove(0)
    )
    with pytest.raises(Conflict, match='has no directory of flow "flow"') as hidden:
        list(elsewhere.read(part))
    assert "a path that the driver and all executors share" in hidden.value.hint


@pytest.mark.parametrize("pattern", [False, True])
def test_an_input_that_is_idle_counts_with_what_the_others_have_reached(on_kafka: Mainstem, pattern: bool) -> None:
    topic = made(on_kafka, "users")
    topic.append(rows(0, 5))
    store = FlowStore(on_kafka.home, "flow")
    run = store.begin()
    checkpoint = Path(store.checkpoint(run.version))
    reached = as_us(datetime(2026, 6, 1, tzinfo=UTC))
    made(on_kafka, "orders")
    beside = {"topic": "orders", "offsets": {}, "watermark": reached, "now": reached, "delay": 0}
    beside |= {"leaf": 1, "times": {}, "known": reached}
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(beside)}\n")
    request = TopicRequest(
        home=on_kafka.home, log=on_kafka.log.address, topic="users", columns=("amount",), delay=0, flow="flow",
        epoch=run.epoch, leaf=0, pattern=pattern, clock=str(checkpoint / "stages"), wait_ms=0,
        idle={"after": 60_000_000, "beside": [["orders", 0]]},
    )  # fmt: skip
    reader = TopicStreamReader(request, topic.shown_schema().remove(2).remove(0))
    set_now(request.clock, on_kafka.log.clock.now())
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    for part in reader.partitions(start, end):
        assert len(list(reader.read(part))) == 1
    # A note of something that waits, as the stages leave it: else nothing would come of a silent source.
    leave_due(request.clock, 0, 2**63 - 1, 0)
    at = [clocks_of([reader.latestOffset(end, limit)]).watermark]
    set_now(request.clock, on_kafka.log.clock.now() + 120_000_000)
    idle = reader.latestOffset(end, limit)
    at.append(clocks_of([idle]).watermark)
    reader.stop()
    # Its own last event time, then that of the others.
    assert at == [as_us(rows(4, 5)[0]["at"]), reached]
    # Whoever waits until the flow is idle finds the same from outside.
    assert watermark_of(on_kafka.log, [end | {"idle": request.idle}, beside], str(checkpoint), idle["now"]) == reached
