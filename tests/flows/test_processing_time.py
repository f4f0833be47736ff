"""Early results by the clock: without new rows, and the same again when a batch is done again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.clock import as_us
from mainstem.errors import FlowFailed
from mainstem.operators import every, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from tests.flows.memory_sink import MemorySink

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_result_is_shown_when_its_time_comes_though_no_rows_do(stem: Mainstem) -> None:
    scores = stem.create_topic("scores", schema="team STRING, score INT, at TIMESTAMP", event_time="at")
    sink = MemorySink("totals", failing={2})

    def flows(stem: Mainstem) -> Iterator[Flow]:
        totals = windowed(
            stem.topic("scores").stream(watermark="10 minutes"),
            tumbling("1 hour"),
            by="team",
            aggregates=F.sum("score").alias("total"),
            early=every("1 minute"),
            results="retract",
        )
        yield Flow(totals, into=sink)

    folder = f"{FlowStore(stem.home, 'totals').checkpoint(1)}/stages"
    set_now(folder, as_us(NOON + timedelta(seconds=10)))
    running = stem.start(flows)
    scores.append([{"team": "red", "score": 5, "at": NOON}])
    running.wait_until_idle()
    assert shown(sink) == []

    set_now(folder, as_us(NOON + timedelta(seconds=61)))
    running.wait_until_idle()
    assert shown(sink) == [("red", 5, "early", "insert")]

    scores.append([{"team": "red", "score": 2, "at": NOON}])
    try:
        running.wait_until_idle()
    except FlowFailed:
        running.stop()
        running = stem.start(flows)
        running.wait_until_idle()
    set_now(folder, as_us(NOON + timedelta(minutes=5)))
    running.wait_until_idle()
    # Nothing has changed since: nothing is shown again.
    set_now(folder, as_us(NOON + timedelta(minutes=9)))
    running.wait_until_idle()
    running.stop()

    assert shown(sink) == [
        ("red", 5, "early", "insert"), ("red", 5, "early", "delete"), ("red", 7, "early", "insert")
    ]  # fmt: skip
    assert not sink.failing
    assert all(attempt == attempts[0] for attempts in sink.attempts.values() for attempt in attempts)


def shown(sink: MemorySink) -> list[tuple[Any, ...]]:
    rows = [row for _, attempts in sorted(sink.attempts.items()) for row in attempts[-1]]
    return [(row["team"], row["total"], row["pane"]["timing"], row["record"]["change"]) for row in rows]


def test_windows_of_append_time_are_shown_when_the_clock_passes_their_end(stem: Mainstem) -> None:
    visits = stem.create_topic("visits", schema="page STRING")
    visits.append([{"page": "a"}, {"page": "a"}, {"page": "b"}])
    first = visits.to_arrow().column("record")[0].as_py()["appended_at"]
    sink = MemorySink("pages")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("visits").stream()
        yield Flow(
            windowed(
                rows, tumbling("1 hour"), by="page", aggregates=F.count("*").alias("visits"), on="record.appended_at"
            ),
            into=sink,
        )

    folder = f"{FlowStore(stem.home, 'pages').checkpoint(1)}/stages"
    set_now(folder, as_us(first + timedelta(seconds=1)))
    with stem.start(flows) as running:
        running.wait_until_idle()
        assert sink.rows() == []
        # No rows come and none are needed.
        set_now(folder, as_us(first + timedelta(hours=1)))
        running.wait_until_idle()
    assert sorted((row["page"], row["visits"], row["pane"]["timing"]) for row in sink.rows()) == [
        ("a", 2, "on_time"), ("b", 1, "on_time")
    ]  # fmt: skip
