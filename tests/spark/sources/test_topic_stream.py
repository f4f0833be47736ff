"""`stream()` of a topic: the rows of `read()`, batch by batch, each batch the same however often it is run."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from mainstem.errors import FlowFailed
from mainstem.flows import program
from mainstem.flows.flow import Flow
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.keep_rule import Keep
from mainstem.spark.sources import spark_topic
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_request import ROWS_MAX, TopicRequest
from mainstem.stem import Mainstem
from tests.flows import held_program
from tests.flows.memory_sink import MemorySink

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: (row["record"]["partition"], row["record"]["offset"]))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of about twenty rows."""
    monkeypatch.setattr(spark_topic, "TopicRequest", partial(TopicRequest, rows_max=20))
    monkeypatch.setattr(program, "LIGHT_ROWS_MAX", ROWS_MAX)


def into(sink: MemorySink, topic: str, **options: Any) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic(topic).stream(**options), into=sink)

    return flows


def copies(topic: SparkTopic) -> int:
    assert isinstance(topic.backend, EmbeddedTopic)
    return sum(len(topic.backend.store.holds.copies(number)) for number in range(topic.settings.partitions))


def test_a_stream_gives_what_a_read_gives(stem: Mainstem):
    topic = stem.create_topic("orders", schema="k STRING, n INT, at TIMESTAMP", key="k", event_time="at", partitions=2)
    sink = MemorySink("seen")

    def rows(first: int, end: int) -> list[dict[str, Any]]:
        return [{"k": f"k{n % 7}", "n": n, "at": NOON + timedelta(seconds=n)} for n in range(first, end)]

    topic.append(rows(0, 50))
    topic.seal()
    topic.append(rows(50, 60))
    with stem.start(into(sink, "orders", watermark="10 seconds")) as running:
        running.wait_until_idle()
        assert sink.rows() == ordered(topic.read(watermark="10 seconds").toArrow())
        with stem.transaction() as transaction:
            transaction.append(topic, rows(60, 70))
            topic.append(rows(70, 80))
        topic.alter(schema="k STRING, n BIGINT, at TIMESTAMP, more STRING")
        topic.append([{**row, "more": "x"} for row in rows(80, 90)])
        topic.seal()
        running.wait_until_idle()
    # The flow was built before the topic had its last column; what it has of the others is the same.
    expected = ordered(topic.read(watermark="10 seconds").drop("more").toArrow())
    assert sink.rows() == expected
    assert len(expected) == 90


def test_a_flow_gets_only_the_rows_and_columns_it_needs(stem: Mainstem):
    topic = stem.create_topic("orders", schema="a BIGINT, b STRING, c BIGINT, d STRING")
    topic.append([{"a": n, "b": "x", "c": n, "d": "y"} for n in range(1000)])
    sink = MemorySink("few")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream().where("a % 100 = 7 and c < 500").select("a", "b")
        yield Flow(rows, into=sink)

    with stem.start(flows) as running:
        running.wait_until_idle()
        leaf = running["few"].planned.leaves[0]
        assert leaf.columns == ("a", "b", "c")
        assert leaf.condition is not None
        query = running["few"].query
        assert query is not None
        # Rows that are not wanted never reach Spark.
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == 5
    assert [row["a"] for attempts in sink.attempts.values() for row in attempts[-1]] == [7, 107, 207, 307, 407]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("keep", [Keep.latest_per_key(), Keep.parse("1 KiB")])
def test_a_batch_that_is_run_again_has_the_same_rows_after_upkeep(stem: Mainstem, keep: Keep):
    topic = stem.create_topic("profiles", schema="k STRING, n BIGINT", key="k", partitions=2, keep=keep)

    def more(first: int) -> None:
        topic.append([{"k": f"k{n % 9}", "n": n} for n in range(first, first + 30)])

    def upkeep() -> int:
        return topic.compact().removed if keep.compacted else topic.drop_expired().records

    for first in range(0, 90, 30):
        more(first)
        topic.seal()
    sink = MemorySink("seen", failing={1})
    with pytest.raises(FlowFailed):
        stem.run(into(sink, "profiles"), until="idle")
    more(90)
    topic.seal()
    assert upkeep() > 0
    assert copies(topic) > 0
    if not keep.compacted:
        # Only the batch that was under way is spared: what lies behind it is gone, and that is said.
        with pytest.raises(FlowFailed, match="stopped"):
            stem.run(into(sink, "profiles"), until="idle")
    else:
        stem.run(into(sink, "profiles"), until="idle")
    first, again = sink.attempts[1]
    assert first
    assert sorted(first, key=str) == sorted(again, key=str)
    assert sink.committed_batch >= 1
    if keep.compacted:
        latest = {row["k"]: row["n"] for row in sink.rows()}
        assert latest == {row["k"]: row["n"] for row in topic.to_arrow().to_pylist()}
        assert copies(topic) == 0


@pytest.mark.usefixtures("small_batches")
def test_a_windowed_count_over_unequal_partitions_counts_every_row(stem: Mainstem):
    topic = stem.create_topic("clicks", schema="n BIGINT, at TIMESTAMP", event_time="at", partitions=3)
    for partition, (count, mode) in enumerate([(120, 1), (12, 10), (30, 4)]):
        rows = [{"n": n, "at": NOON + timedelta(seconds=n * mode)} for n in range(count)]
        for first in range(0, count, 6):
            topic.append(rows[first : first + 6], partition=partition)
    sink = MemorySink("counts")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        clicks = stem.topic("clicks").stream(watermark="2 seconds")
        yield Flow(clicks.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("clicks")), into=sink)

    stem.run(flows, until="idle")
    counts = {row["window"]["start"]: row["clicks"] for number in sink.attempts for row in sink.attempts[number][-1]}
    assert len(sink.attempts) > 4
    assert sum(counts.values()) == 162


def test_a_flow_that_was_killed_reads_its_batch_again_as_it_was(stem: Mainstem, users_java: None):
    """Killed when the rows of its first batch were computed and not committed; then all of them are compacted away."""
    topic = stem.create_topic(
        "profiles", schema="k STRING, n BIGINT", key="k", partitions=2, keep=Keep.latest_per_key()
    )
    topic.append([{"k": f"k{n % 5}", "n": n} for n in range(40)])
    topic.seal()
    before = {(row["record"]["partition"], row["record"]["offset"], row["n"]) for row in topic.to_arrow().to_pylist()}
    killed = subprocess.run(
        [sys.executable, "-m", "tests.flows.held_program", stem.home],
        env={**os.environ, "MAINSTEM_CRASH_AT": "sink_rows_computed"},
        cwd=Path(__file__).parent.parent.parent.parent,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    topic.append([{"k": f"k{n % 5}", "n": n} for n in range(100, 105)])
    topic.seal()
    assert topic.compact().removed == 40
    assert topic.to_arrow().num_rows == 5
    stem.run(held_program.flows, until="idle")
    seen = [(row["part"], row["place"], row["n"]) for row in stem.topic("seen").to_arrow().to_pylist()]
    after = {(row["record"]["partition"], row["record"]["offset"], row["n"]) for row in topic.to_arrow().to_pylist()}
    assert sorted(seen) == sorted(before | after)
