"""Joins through Spark: against the naive one, whatever fails; and behind each other, with windows between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mainstem import Flow, Mainstem
from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.flows.program import Program
from mainstem.flows.staged_batches import StagedBatches
from mainstem.log_on_spark.flow_store import FlowStore
from mainstem.operators import join, tumbling, windowed
from mainstem.operators.stage.stage_manifest import StageManifests
from mainstem.testing import TestStream, TestStreams
from mainstem.testing.scripted_log import Append
from tests.operators.naive_join import Shown, Terms, judged, read, written
from tests.spark.batch_faults import FAULTS, FaultyRun, RereadingSink

LONG = "36500 days"
END = datetime(2027, 1, 1, tzinfo=UTC)
DELAY = "4 microseconds"
SEED = 11
KEYS = 40
ASKED = Terms("full", 4, 10, 3)


class JoinFlow:
    """A join of two topics, into a sink in memory."""

    def __init__(self, stem: Mainstem) -> None:
        self.stem = stem
        self.sink = RereadingSink("joined")
        columns = {"left": ("number", "at"), "right": ("other", "other_at")}
        for side, (number, at) in columns.items():
            schema = f"{number} INT, key INT, {at} TIMESTAMP"
            stem.create_topic(side, schema=schema, event_time=at, partitions=2, idle_after=LONG, ahead_max=LONG)

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        left, right = (stem.topic(side).stream(watermark=DELAY) for side in ("left", "right"))
        yield Flow(join(left, right, **ASKED.asked()).select("number", "other", "record"), into=self.sink)

    def given(self) -> Counter[Shown]:
        """What stands in the end."""
        found: Counter[Shown] = Counter()
        for _, attempts in sorted(self.sink.attempts.items()):
            for row in attempts[-1]:
                found[row["number"], row["other"]] += -1 if row["record"]["change"] == "delete" else 1
        assert min(found.values(), default=0) >= 0
        return +found

    def differences(self) -> list[str]:
        """Where what was given is not what the naive join gives, of what stands and of what came too late."""
        rows = [
            row
            for side in ("left", "right")
            for row in read(side, self.stem.topic(side).read(watermark=DELAY).toArrow())
        ]
        late = self.stem.topic("joined.late").to_arrow().to_pylist()
        shown, missed, _ = judged(rows, ASKED, as_us(END))
        told = Counter(
            (row["side"], (row["partition"], row["offset"]),
             None if row["missed_offset"] is None else (row["missed_partition"], row["missed_offset"]))
            for row in late
        )  # fmt: skip
        return [
            f"{what}: {one - other} and not {other - one}"
            for what, one, other in (("shown", self.given(), shown), ("late", told, missed))
            if one != other
        ]


def ran(stem: Mainstem, folder: Path, faults: list[str]) -> tuple[JoinFlow, list[str]]:
    """Rows of both topics in so many steps, each with its fault, and then the end of time."""
    script = written(Random(SEED), keys=KEYS, steps=8 * len(faults), rows=2 * KEYS // 4)
    appends = [step for step in script.steps if isinstance(step, Append) and step.rows.num_rows]
    flow = JoinFlow(stem)
    run = FaultyRun(stem, flow.flows, flow.sink, folder)

    def append(part: list[Append]) -> None:
        for step in part:
            stem.topic(step.stream).append(step.rows, partition=step.partition)

    try:
        for place, fault in enumerate(faults):
            part = appends[place * len(appends) // len(faults) : (place + 1) * len(appends) // len(faults)]
            run.step(lambda part=part: append(part), fault)  # type: ignore[misc]
        for side in ("left", "right"):
            run.step(lambda side=side: stem.producer(f"end_{side}").state_watermark(side, END))  # type: ignore[misc]
    finally:
        run.stop()
    return flow, run.struck


def test_joins_give_what_the_naive_join_gives_whatever_fails(stem: Mainstem, tmp_path: Path) -> None:
    flow, struck = ran(stem, tmp_path, list(FAULTS))
    assert struck == list(FAULTS)
    assert flow.differences() == []
    assert sum(flow.given().values()) > 50
    # Whatever was done again was the same, and nothing is kept of what is over.
    for attempts in flow.sink.attempts.values():
        assert len({str(sorted(map(str, attempt))) for attempt in attempts}) == 1
    stages = (StageManifests(_checkpoint(stem)).last() or {})["stages"]
    assert [bucket["live"] for stage in stages.values() for bucket in stage["state"].values()] == [0, 0]


def _checkpoint(stem: Mainstem) -> str:
    return FlowStore(stem.home, "joined").checkpoint(1)


def test_a_join_that_forgets_what_it_kept_when_it_is_started_again_is_found(
    stem: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StagedBatches._before
    monkeypatch.setattr(
        StagedBatches, "_before", lambda self, number: {} if self._last is None else right(self, number)
    )
    flow, _ = ran(stem, tmp_path, ["", "batch_begun"])
    assert flow.differences()


# Behind each other


def at(minute: int) -> str:
    return f"2026-01-01 12:{minute:02d}:00"


def test_joins_and_windows_behind_each_other_give_the_same_with_spark(spark: Any) -> None:
    """A stage whose inputs are a topic and another stage; a window behind rows that are shown late."""
    script = TestStreams(
        shown=TestStream("ad STRING, shown_at TIMESTAMP", event_time="shown_at"),
        clicks=TestStream("ad STRING, clicked_at TIMESTAMP", event_time="clicked_at"),
    )
    script = script.rows("shown", [{"ad": ad, "shown_at": at(minute)} for ad, minute in (("a", 1), ("b", 2), ("c", 4))])
    script = script.rows("clicks", [{"ad": "a", "clicked_at": at(3)}, {"ad": None, "clicked_at": at(3)}]).kill()
    for minute in (12, 16):
        script = script.watermark("shown", at(minute)).watermark("clicks", at(minute))
    script = script.rows("clicks", [{"ad": "b", "clicked_at": at(5)}]).kill()
    script = script.watermark("shown", at(50)).watermark("clicks", at(50))

    def rates(shown: Any, clicks: Any) -> Any:
        pairs = join(shown, clicks, on="ad", within="10 minutes", how="left")
        counts = ["count(*) AS shown", "count(clicked_at) AS clicked"]
        per_ad = windowed(pairs, tumbling("5 minutes"), by="ad", aggregates=counts)
        return join(shown, per_ad, on="ad", within="10 minutes", how="left")

    alone, with_spark = script.run(rates), script.run_on_spark(rates, spark)
    assert sorted(map(str, with_spark.changes)) == sorted(map(str, alone.changes))
    assert sorted((row["ad"], row["shown"], row["clicked"]) for row in alone.rows) == [
        ("a", 1, 1), ("b", 1, 0), ("c", 1, 0)
    ]  # fmt: skip
    assert [row["reason"] for row in with_spark.late] == [row["reason"] for row in alone.late]
    assert sorted(with_spark.state_rows.values()) == sorted(alone.state_rows.values())


def test_what_a_program_with_joins_is_told(stem: Mainstem) -> None:
    stem.create_topic("orders", schema="order INT, at TIMESTAMP", event_time="at")
    stem.create_topic("payments", schema="order INT, paid_at TIMESTAMP", event_time="paid_at")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        orders, payments = (stem.topic(name).stream(watermark="1 minute") for name in ("orders", "payments"))
        paid = join(orders, payments, on="order", within=("0 seconds", "1 hour"))
        yield Flow(paid, into=stem.view("paid", key="order"))

    [planned] = Program(stem, flows).flows
    [operator] = planned.operators
    assert operator.bounded_by == (
        "rows are forgotten when the watermark is past them by 2 hours on the left, 1 hour on the right"
    )
    assert planned.warnings() == []

    def mixed(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topic("orders").stream(watermark="1 minute")
        yield Flow(join(orders, stem.topic("payments").read(), on="order", within="1 hour"), into=stem.topic("paid"))

    with pytest.raises(Invalid, match="join is given a stream and rows that are none"):
        Program(stem, mixed)
