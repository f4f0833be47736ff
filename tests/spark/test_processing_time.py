"""Early results by the clock: without new rows, and the same again when a batch is done again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.clock import as_us
from mainstem.errors import FlowFailed
from mainstem.log_on_spark.batch_clock import set_now
from mainstem.log_on_spark.flow_store import FlowStore
from mainstem.operators import every, tumbling, windowed
from tests.spark.memory_sink import MemorySink

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
