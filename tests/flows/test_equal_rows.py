"""Equal rows of one position in the log, which a union of a topic with itself gives: operators count each of them in every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.operators import enrich, join, sliding, table, windowed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def flows(stem: Mainstem) -> Iterator[Flow]:
    def orders():
        once, again = (stem.topic("orders").stream(watermark="10 seconds") for _ in range(2))
        return once.union(again)

    def payments():
        return stem.topic("payments").stream(watermark="10 seconds")

    joined = join(orders(), payments(), on={"id": "order"}, within="1 minute")
    yield Flow(joined.drop("record"), into=stem.topic("paid"))
    known = table(payments(), key="order")
    yield Flow(enrich(orders(), known, on={"id": "order"}, at="at").select("id", "cents"), into=stem.topic("known"))
    counted = windowed(orders(), sliding("30 seconds"), by="id", aggregates=F.count("*").alias("orders"))
    yield Flow(counted, into=stem.topic("counted"))


def test_equal_rows_are_counted_each_in_later_batches_too(stem: Mainstem):
    orders = stem.create_topic("orders", schema="id INT, at TIMESTAMP", event_time="at")
    payments = stem.create_topic(
        "payments", schema="order INT, cents INT, paid_at TIMESTAMP", key="order", event_time="paid_at"
    )
    orders.append([{"id": 1, "at": NOON}])
    payments.append([{"order": 1, "cents": 100, "paid_at": NOON}])
    stem.run(flows, until="idle")
    orders.append([{"id": 1, "at": NOON + timedelta(seconds=5)}])
    payments.append([{"order": 1, "cents": 200, "paid_at": NOON + timedelta(seconds=5)}])
    stem.run(flows, until="idle")
    for topic in (orders, payments):
        stem.producer("clock").declare_watermark(topic, NOON + timedelta(hours=1))
    stem.run(flows, until="idle")

    def count(topic: str, column: str) -> Counter[int]:
        return Counter(stem.topic(topic).to_arrow().column(column).to_pylist())

    # Two times two orders with each payment; two orders with each price; windows of two, then of all four.
    assert count("paid", "cents") == {100: 4, 200: 4}
    assert count("known", "cents") == {100: 2, 200: 2}
    assert set(count("counted", "orders")) == {2, 4}
