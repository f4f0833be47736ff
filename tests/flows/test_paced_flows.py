"""`every`: what it may be, and that nobody who waits for a flow or stops it waits for its pause."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.operators import every, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from tests.flows.memory_sink import MemorySink

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Stream:
    isStreaming = True  # noqa: N815 - as Spark names it


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        ({"every": 5}, "has no unit"),
        ({"every": "-1 second"}, "is negative"),
        ({"every": timedelta(seconds=-1)}, "is negative"),
        ({"every": "soon"}, "is not a duration"),
        ({"every": "1 second", "mode": "real-time"}, 'flow "out" has every='),
        ({"rows_max": 0}, "rows_max is 0"),
        ({"rows_max": -5}, "rows_max is -5"),
        ({"rows_max": True}, "rows_max is True"),
        ({"rows_max": 2.5}, "rows_max is 2.5"),
        ({"rows_max": "100"}, "rows_max is '100'"),
        ({"rows_max": 10, "mode": "real-time"}, 'flow "out" has rows_max=10 and mode="real-time"'),
    ],
)
def test_every_is_a_duration_and_rows_max_a_number_and_both_are_for_batches(given: dict[str, Any], summary: str):
    with pytest.raises(Invalid) as refused:
        Flow(Stream(), into=MemorySink("out"), **given)  # type: ignore[arg-type]
    assert summary in str(refused.value)
    assert refused.value.detail
    assert refused.value.hint


def test_every_in_microseconds():
    def of(**given: Any) -> int | None:
        return Flow(Stream(), into=MemorySink("out"), **given).every_us  # type: ignore[arg-type]

    assert of() is None
    assert of(every="0 seconds") == 0
    assert of(every=timedelta(seconds=2)) == 2_000_000
    assert of(mode="real-time") is None


def test_nobody_waits_for_the_pause_of_a_flow(stem: Mainstem):
    """An hour: a wait for it would never end in a test. A timer that is due, a wait until idle and a stop come before."""
    scores = stem.create_topic("scores", schema="team STRING, score INT, at TIMESTAMP", event_time="at")
    sink = MemorySink("totals")
    pause = "1 hour"

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("scores").stream(watermark="10 minutes")
        totals = windowed(
            rows, tumbling("1 hour"), by="team", aggregates=F.sum("score").alias("total"), early=every("1 minute")
        )
        yield Flow(totals, into=sink, every=pause)
        yield Flow(rows.select("team", "score"), into=stem.view("scores_of", key="team"), every=pause)

    folder = f"{FlowStore(stem.home, 'totals').checkpoint(1)}/stages"
    set_now(folder, as_us(NOON + timedelta(seconds=10)))
    with stem.start(flows) as running:
        for number in (1, 2):
            scores.append([{"team": "red", "score": number, "at": NOON}])
            running.wait_until_idle()
            assert stem.view("scores_of").to_arrow().to_pylist() == [{"team": "red", "score": number}]
        assert running["scores_of"].batches == 2
        set_now(folder, as_us(NOON + timedelta(seconds=61)))
        running.wait_until_idle()
    assert [row["total"] for _, attempts in sorted(sink.attempts.items()) for row in attempts[-1]] == [3]
    assert FlowStore(stem.home, "totals").of_version(1)["every_us"] == 3_600_000_000

    # It may be changed between two runs.
    pause = "0 seconds"
    scores.append([{"team": "red", "score": 7, "at": NOON}])
    with stem.start(flows) as running:
        running.wait_until_idle()
    assert stem.view("scores_of").to_arrow().to_pylist() == [{"team": "red", "score": 7}]


def test_a_batch_has_at_most_so_many_rows(stem: Mainstem):
    """Sealed rows too; and it may be changed. Rows are not divided more finely than by a thousand."""
    numbers = stem.create_topic("numbers", schema="n INT", partitions=2)
    for first in range(0, 40_000, 4000):
        numbers.append(pa.table({"n": range(first, first + 4000)}))
    numbers.seal()
    sinks = {name: MemorySink(name) for name in ("few", "some")}

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("numbers").stream(), into=sinks["few"], rows_max=rows_max)
        yield Flow(stem.topics("numb*").stream(), into=sinks["some"], rows_max=rows_max)

    rows_max = 8000
    with stem.start(flows) as running:
        running.wait_until_idle()
    numbers.append(pa.table({"n": range(40_000, 60_000)}))
    rows_max = 30_000
    with stem.start(flows) as running:
        running.wait_until_idle()
    for name, sink in sinks.items():
        *sizes, last = (len(attempts[-1]) for _, attempts in sorted(sink.attempts.items()))
        assert (sum(sizes), last) == (40_000, 20_000), name
        assert 4000 < max(sizes) <= 8000, name
