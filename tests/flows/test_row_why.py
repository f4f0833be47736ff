"""Why a row of a view is as it is: flows on Spark, asked without it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F

from mainstem import Flow
from mainstem.operators import tumbling, windowed
from mainstem.stem import Mainstem
from mainstem.views.row_explanation import RowExplanation

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "order_id STRING, store STRING, amount DOUBLE, at TIMESTAMP"


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def window(minutes: float, size: float = 1) -> dict[str, datetime]:
    return {"start": at(minutes), "end": at(minutes + size)}


def orders_of(stem: Mainstem, **settings: Any) -> Any:
    return stem.create_topic("orders", schema=SCHEMA, event_time="at", key="store", partitions=1, **settings)


def order(number: int, store: str, amount: float, minutes: float) -> dict[str, Any]:
    return {"order_id": f"o-{number}", "store": store, "amount": amount, "at": at(minutes)}


def ids(found: RowExplanation, topic: str = "orders", column: str = "order_id") -> list[Any]:
    return found.records[topic].column(column).to_pylist() if topic in found.records else []


def test_a_window_of_filtered_rows_is_made_of_its_records_without_the_late_ones(stem: Mainstem) -> None:
    orders = orders_of(stem)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream(watermark="30 seconds").where("amount > 1")
        paid = rows.select("store", (F.col("amount") * 2).alias("paid"), "at", "record")
        found = windowed(paid, tumbling("1 minute"), by="store", aggregates="sum(paid) AS total")
        yield Flow(found, into=stem.view("revenue", key=["store", "window"]))

    orders.append([order(1, "Berlin", 10, 0.1), order(2, "Lisbon", 20, 0.2), order(3, "Berlin", 0.5, 0.3)])
    orders.append([order(4, "Berlin", 30, 0.9)])
    orders.append([order(5, "Berlin", 7, 3)])
    orders.append([order(6, "Berlin", 1000, 0.5)])
    stem.run(flows, until="idle")
    found = stem.view("revenue").why(("Berlin", window(0)))
    assert found.row is not None
    assert found.because == ""
    assert found.exact
    assert ids(found) == ["o-1", "o-4"]
    assert found.total == 2
    assert [it.row["total"] for it in found.shown if it.row] == [80.0]
    assert found.shown[0].batch is not None
