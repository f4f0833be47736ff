"""Several topics as one stream: which topics those are, and how later ones join it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.errors import FlowFailed, Invalid, SchemaMismatch, TopicNotFound
from mainstem.flows.checkpoint_fit import replayed_topics, rows_to_replay
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.operators import join
from mainstem.spark.sources import spark_topic
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem
from tests.flows.memory_sink import MemorySink
from tests.flows.regional_orders import SCHEMA, rows, seen


def test_own_topics_never_fit(stem: Mainstem):
    for name in ("orders", "orders.eu", "orders.eu.late", "orders.rejected", "orders.eu.emails.rejected", "clicks"):
        stem.create_topic(name, schema=SCHEMA)
    assert stem.topics("orders*").names() == ["orders", "orders.eu"]
    assert stem.topics("orders.*").names() == ["orders.eu"]
    assert "mainstem.progress" not in stem.topics("*").names()
    assert stem.topics()[:2] == ["clicks", "orders"]


def test_topics_that_are_no_stream_are_refused(stem: Mainstem):
    with pytest.raises(TopicNotFound, match="no topic matches"):
        stem.topics("orders.*").stream()
    stem.create_topic("orders.eu", schema=SCHEMA, event_time="at")
    stem.create_topic("orders.us", schema="order_id STRING, amount BIGINT, other STRING")
    with pytest.raises(Invalid, match="have different event times"):
        stem.topics("orders.*").stream(watermark="1 minute")
    assert stem.topics("orders.*").stream().columns == ["order_id", "amount", "at", "other", "topic", "record"]
    stem.create_topic("orders.uk", schema="order_id STRING, amount STRING")
    with pytest.raises(SchemaMismatch, match="cannot be read as one stream"):
        stem.topics("orders.*").stream()
    stem.create_topic("named", schema="topic STRING")
    with pytest.raises(Invalid, match='named "topic"'):
        stem.topics("named").stream()
    stem.create_topic("untimed", schema="n BIGINT")
    with pytest.raises(Invalid, match='"untimed" have no event time') as refused:
        stem.topics("untimed").stream(watermark="1 minute")
    assert refused.value.detail == "The event time of each topic: untimed: none."
    with pytest.raises(Invalid, match="glob 5 is not text"):
        stem.topics(5)  # type: ignore[call-overload]


def test_several_topics_may_be_idle_as_one_input(stem: Mainstem):
    for name in ("users.eu", "users.us", "visits"):
        stem.create_topic(name, schema="user INT, at TIMESTAMP", event_time="at")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        users = stem.topics("users.*").stream(watermark="1 minute", idle_after="5 seconds")
        visits = stem.topic("visits").stream(watermark="2 minutes")
        yield Flow(join(visits, users.drop("at", "topic"), on="user", state="unbounded"), into=stem.topic("seen"))

    (flow,) = Program(stem, flows).flows
    idle = {leaf.source: leaf.idle for leaf in flow.leaves.values()}
    assert idle == {"visits": None, "topics users.*": {"after": 5_000_000, "beside": [["visits", 120_000_000]]}}
    with pytest.raises(Invalid, match="has idle_after= but no watermark"):
        stem.topics("users.*").stream(idle_after="5 seconds")


def test_topics_join_while_a_flow_runs_and_batches_are_run_again_the_same(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spark_topic, "TopicRequest", partial(TopicRequest, rows_max=20))
    for name, first in (("orders.eu", 0), ("orders.us", 100)):
        topic = stem.create_topic(name, schema=SCHEMA, event_time="at", partitions=2)
        for at in range(first, first + 40, 8):
            topic.append(rows(at, at + 8))
    sink = MemorySink("seen", failing={2})

    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topics("orders.*").stream(watermark="1 minute")
        yield Flow(orders.where("amount % 2 = 0 or topic = 'orders.us'").select("topic", "amount"), into=sink)

    with pytest.raises(FlowFailed):
        stem.run(flows, until="idle")
    stem.create_topic("orders.jp", schema="order_id STRING, amount INT, at TIMESTAMP, extra STRING", event_time="at")
    stem.topic("orders.jp").append([{**row, "extra": "x"} for row in rows(0, 6)])
    with stem.start(flows) as running:
        running.wait_until_idle()
        before = seen(sink)
        stem.create_topic("orders.bad", schema="amount STRING, at TIMESTAMP", event_time="at")
        stem.create_topic("orders.few", schema="order_id STRING, at TIMESTAMP", event_time="at")
        stem.create_topic("orders.za", schema=SCHEMA, event_time="at").append(rows(6, 10))
        stem.topic("orders.eu").append(rows(40, 42))
        running.wait_until_idle()
    first, again = sink.attempts[2]
    assert first
    assert sorted(first, key=str) == sorted(again, key=str)
    eu = [("orders.eu", n) for n in range(0, 40, 2)]
    us = [("orders.us", n) for n in range(100, 140)]
    jp = [("orders.jp", n) for n in range(0, 6, 2)]
    assert before == sorted([*eu, *jp, *us])
    assert seen(sink) == sorted([*eu, ("orders.eu", 40), *jp, *us, ("orders.za", 6), ("orders.za", 8)])
    noted = stem.topic("mainstem.refused_topics").to_arrow().drop_columns(["record"]).to_pylist()
    assert noted == [
        {
            "flow": "seen",
            "topics": "orders.*",
            "topic": "orders.bad",
            "reason": 'column "amount" cannot change from STRING to BIGINT',
        }
    ]
    # The next run skips it too; a snapshot of all of them is refused.
    stem.topic("orders.za").append(rows(12, 13))
    stem.run(flows, until="idle")
    assert ("orders.za", 12) in seen(sink)
    with pytest.raises(SchemaMismatch, match="cannot be read as one stream"):
        stem.topics("orders.*").read()


def test_what_topics_hold_is_read_as_one_and_agrees_with_the_stream(stem: Mainstem):
    with pytest.raises(TopicNotFound, match="no topic matches"):
        stem.topics("orders.*").read()
    stem.create_topic("orders.eu", schema=SCHEMA, event_time="at", partitions=2).append(rows(0, 5))
    stem.topic("orders.eu").seal()
    stem.create_topic("orders.jp", schema="order_id STRING, amount INT, at TIMESTAMP, extra STRING", event_time="at")
    stem.topic("orders.jp").append([{**row, "extra": "x"} for row in rows(5, 9)])
    orders = stem.topics("orders.*")
    for watermark in (None, "1 minute"):
        read, streamed = orders.read(watermark=watermark), orders.stream(watermark=watermark)
        assert read.dtypes == streamed.dtypes
        marks = [field.metadata for field in read.schema]
        # Of the marks Spark's own watermark is only on a stream.
        assert marks[-1] == streamed.schema[-1].metadata
        assert [bool(mark) for mark in marks] == [False, False, True, False, False, True]
    sink = MemorySink("seen")
    stem.run(lambda stem: [Flow(stem.topics("orders.*").stream(), into=sink)], until="idle")
    streamed = [row for tries in sink.attempts.values() for row in tries[-1]]

    def comparable(given: list[dict[str, Any]]) -> list[str]:
        return sorted(str((row["topic"], row["order_id"], row["amount"], row["extra"], row["at"])) for row in given)

    found = orders.read().toArrow().to_pylist()
    assert comparable(found) == comparable(streamed)
    assert len(found) == 9
    assert {row["extra"] for row in found} == {None, "x"}


def test_rows_of_which_only_the_topic_is_wanted_are_counted(tmp_path: Path):
    with mainstem.open(tmp_path) as stem:
        stem.create_topic("orders.eu", schema=SCHEMA).append(rows(0, 3))
        stem.create_topic("orders.us", schema="other STRING").append([{"other": "x"}])
    request = TopicRequest(home=str(tmp_path), topic="orders.*", columns=("topic",), pattern=True)
    reader = TopicStreamReader(request, pa.schema({"topic": pa.string()}))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    found = [row["topic"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == ["orders.eu"] * 3 + ["orders.us"]


def test_the_rows_of_all_topics_are_in_the_cost_of_a_rebuild(stem: Mainstem):
    for name in ("orders.eu", "orders.us", "orders.us.rejected"):
        stem.create_topic(name, schema=SCHEMA).append(rows(0, 4))
    [flow] = Program(stem, lambda stem: [Flow(stem.topics("orders.*").stream(), into=MemorySink("seen"))]).flows
    assert replayed_topics(stem.log, flow) == ["orders.eu", "orders.us"]
    assert rows_to_replay(stem.log, flow) == 8
