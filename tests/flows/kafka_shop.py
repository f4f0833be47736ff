"""A program for the embedded log and for Kafka: a topic, Spark's own state into a view, windows into a view."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from mainstem.flows.flow import Flow
from mainstem.operators import tumbling, windowed
from mainstem.stem import Mainstem

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "order_id BIGINT, store STRING, amount DECIMAL(12, 2), at TIMESTAMP"


def orders(first: int, count: int) -> list[dict[str, Any]]:
    """So many orders, one a second, of three stores."""
    return [
        {
            "order_id": number,
            "store": f"store {number % 3}",
            "amount": number % 97,
            "at": BEGIN + timedelta(seconds=number),
        }
        for number in range(first, first + count)
    ]


def prepare(stem: Mainstem) -> None:
    stem.create_topic("orders", schema=SCHEMA, key="order_id", event_time="at", partitions=2)
    stem.create_topic("big_orders", schema=SCHEMA, key="store", event_time="at", partitions=2)


def flows(stem: Mainstem) -> Iterator[Flow]:
    rows = stem.topic("orders").stream(watermark="20 seconds")
    yield Flow(rows.where("amount > 90").drop("record"), into=stem.topic("big_orders"))
    totals = rows.groupBy("store").agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    yield Flow(totals, into=stem.view("revenue", key="store"))
    minutes = windowed(rows, tumbling("1 minute"), by="store", aggregates=[F.sum("amount").alias("revenue")])
    yield Flow(minutes, into=stem.view("minutes", key=["window", "store"]))


def answers(stem: Mainstem) -> dict[str, list[str]]:
    """What a reader of the log and the views sees, in one order."""
    big = stem.topic("big_orders").to_arrow().drop_columns(["record"])
    views = {name: stem.view(name).to_arrow() for name in ("revenue", "minutes")}
    return {name: sorted(map(str, rows.to_pylist())) for name, rows in {"big_orders": big, **views}.items()}
