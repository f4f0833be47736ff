"""A batch without rows runs only where it can give a result."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow, Mainstem
from mainstem.flows.program import Program

SETTING = "spark.sql.streaming.noDataMicroBatches.enabled"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def stem(spark: SparkSession, tmp_path: Path) -> Iterator[Mainstem]:
    # By its address: as if Mainstem had made the session.
    with mainstem.open(tmp_path / "home", upkeep="manual", spark="local[2]") as opened:
        for name in ("orders", "payments"):
            opened.create_topic(name, schema="id BIGINT, at TIMESTAMP", event_time="at", partitions=1)
        yield opened


def per_minute(stem: Mainstem) -> DataFrame:
    orders = stem.topic("orders").stream(watermark="10 seconds")
    return orders.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("orders"))


def batches_of(stem: Mainstem, appends: int) -> int:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(per_minute(stem), into=stem.view("per_minute", key="window"))

    with stem.start(flows) as running:
        for number in range(appends):
            stem.topic("orders").append([{"id": number, "at": NOON + timedelta(minutes=5 * number)}])
            running.wait_until_idle()
        running.wait_until_idle()
        return running["per_minute"].batches


def test_an_aggregate_runs_one_batch_for_an_append(stem: Mainstem) -> None:
    assert batches_of(stem, 3) == 3
    assert stem.view("per_minute").read().count() == 3
    # A late row is as late as ever: its window was evicted.
    stem.topic("orders").append([{"id": 7, "at": NOON}])
    assert batches_of(stem, 0) == 1
    assert {row["orders"] for row in stem.view("per_minute").to_arrow().to_pylist()} == {1}
    assert stem.spark.conf.get(SETTING) == "true"


def test_a_user_s_own_setting_counts(stem: Mainstem) -> None:
    stem.spark.conf.set(SETTING, "true")
    try:
        # The watermark advances with each.
        assert batches_of(stem, 3) == 6
    finally:
        stem.spark.conf.unset(SETTING)


def with_timers(stem: Mainstem) -> DataFrame:
    def seen(key: Any, frames: Any, state: Any) -> Any:
        yield from frames

    orders = stem.topic("orders").stream(watermark="10 seconds").select("id")
    return orders.groupBy("id").applyInPandasWithState(seen, "id LONG", "n LONG", "update", "NoTimeout")


def unmatched(stem: Mainstem) -> DataFrame:
    orders, payments = (stem.topic(name).stream(watermark="1 minute") for name in ("orders", "payments"))
    condition = "o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE"
    return orders.alias("o").join(payments.alias("p"), F.expr(condition), "left").select("o.id", "o.at")


@pytest.mark.parametrize(
    ("rows_of", "needs"), [(per_minute, False), (with_timers, True), (unmatched, True)], ids=lambda it: str(it)[:20]
)
def test_what_time_alone_can_give_a_result_of(stem: Mainstem, rows_of: Any, needs: bool) -> None:
    stem.create_topic("out", schema="id BIGINT, at TIMESTAMP")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        into = stem.view("out", key="window") if rows_of is per_minute else stem.view("out", key="id")
        yield Flow(rows_of(stem), into=into)

    [planned] = Program(stem, flows).flows
    assert planned.needs_empty_batches is needs
