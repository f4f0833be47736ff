"""Joins as flows: behind each other, with windows between them; and what a program with joins is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mainstem import Flow, Mainstem
from mainstem.errors import Invalid
from mainstem.flows.program import Program
from mainstem.operators import join, tumbling, windowed
from mainstem.testing import TestStream, TestStreams


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
        "rows are evicted when the watermark is past them by 2 hours on the left, 1 hour on the right"
    )
    assert planned.warnings() == []

    def mixed(stem: Mainstem) -> Iterator[Flow]:
        orders = stem.topic("orders").stream(watermark="1 minute")
        yield Flow(join(orders, stem.topic("payments").read(), on="order", within="1 hour"), into=stem.topic("paid"))

    with pytest.raises(Invalid, match="join cannot combine a stream with batch rows"):
        Program(stem, mixed)
