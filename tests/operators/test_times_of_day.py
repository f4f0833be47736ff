"""Times of day: through a flow into every sink, grouped by, compared, read by Spark; and a session that does not take them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import mainstem
from mainstem.errors import Invalid
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.operators import each_row, tumbling, windowed
from mainstem.stem import Mainstem

SCHEMA = "shop STRING, opens TIME, seen_at TIMESTAMP"
SHOPS = [
    {"shop": shop, "opens": opens, "seen_at": datetime(2026, 1, 1, 12, tzinfo=UTC)}
    for shop, opens in [("A", time(8, 30)), ("B", time(9, 0, 0, 5)), ("C", None), ("D", time(8, 30)), ("E", time.max)]
]


def flows(stem: Mainstem) -> Iterator[Flow]:
    shops = stem.topic("shops").stream()
    yield Flow(shops.drop("record"), into=stem.topic("copied"))
    early = (
        stem.topic("copied").stream().where("opens < TIME'08:45:00'").select("shop", F.struct("opens").alias("when"))
    )
    yield Flow(early, into=stem.view("early", key="shop"))
    by_time = shops.where("opens IS NOT NULL").groupBy("opens").agg(F.count("*").alias("shops"))
    yield Flow(by_time, into=stem.view("by_time", key="opens"))
    timed = stem.topic("shops").stream(watermark="1 minute").where("opens IS NOT NULL")
    latest = windowed(timed, tumbling("1 hour"), by="opens", aggregates=[F.count("*").alias("shops")], early=each_row())
    yield Flow(latest.select("opens", "shops"), into=stem.view("in_windows", key="opens"))


def test_a_time_of_day_goes_wherever_a_number_does(stem: Mainstem) -> None:
    shops = stem.create_topic("shops", schema=SCHEMA, event_time="seen_at")
    shops.append(SHOPS[:3])
    shops.seal()
    shops.append(SHOPS[3:])
    counted = [
        {"opens": opens, "shops": shops} for opens, shops in [(time(8, 30), 2), (time(9, 0, 0, 5), 1), (time.max, 1)]
    ]
    stem.run(flows, until="idle")
    assert stem.topic("copied").to_arrow().drop_columns("record").to_pylist() == SHOPS
    assert stem.view("early").to_arrow().to_pylist() == [{"shop": n, "when": {"opens": time(8, 30)}} for n in "AD"]
    assert stem.view("by_time").to_arrow().to_pylist() == counted
    assert stem.view("in_windows").to_arrow().to_pylist() == counted

    def read() -> list[Any]:
        rows = stem.topic("shops").read().where("opens IS NOT NULL")
        return rows.groupBy("opens").agg(F.count("*").alias("shops")).orderBy("opens").toArrow().to_pylist()

    assert read() == counted
    # In a thread of its own, where Spark would not know of the session's settings.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(read).result() == counted
    assert stem.view("by_time").read().orderBy("opens").toArrow().to_pylist() == counted


def test_a_session_that_does_not_take_them_is_told_from_the_start(spark: SparkSession, tmp_path: Path) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.timeType.enabled", "false")
    with mainstem.open(tmp_path / "home", spark=own) as stem:
        stem.create_topic("shops", schema=SCHEMA)
        copied = lambda stem: [Flow(stem.topic("shops").stream(), into=stem.view("copied", key="shop"))]  # noqa: E731
        for subject, ask in [
            ('topic "shops"', lambda: stem.topic("shops").read()),
            ('flow "copied"', lambda: Program(stem, copied)),
        ]:
            with pytest.raises(Invalid) as refused:
                ask()
            assert (
                refused.value.summary
                == f'column "opens" of {subject} is a TIME, which this Spark session does not support'
            )
            assert "time64" in refused.value.detail
            assert "spark.sql.timeType.enabled = false" in refused.value.hint
