"""Why a row of a view is as it is: flows on Spark, asked without it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.errors import Invalid
from mainstem.flows.why.lineage_file import read_lineage
from mainstem.operators import aggregate, each_row, enrich, join, sessions, table, top, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from mainstem.views.row_explanation import RowExplanation
from mainstem.views.view import View

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "order_id STRING, store STRING, amount DOUBLE, at TIMESTAMP"


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


MINUTE = {"start": at(0), "end": at(1)}


def order(number: int, store: str, amount: float, minutes: float) -> dict[str, Any]:
    return {"order_id": f"o-{number}", "store": store, "amount": amount, "at": at(minutes)}


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="30 seconds")
    payments = stem.topic("payments").stream(watermark="30 seconds").drop("store")
    rents = stem.topic("rents").stream(watermark="30 seconds")
    paid = orders.where("amount > 1").select("store", (F.col("amount") * 2).alias("paid"), "at", "record")
    minutes = windowed(
        paid, tumbling("1 minute"), by="store", aggregates="sum(paid) AS total", lateness="5 minutes", early=each_row()
    )
    yield Flow(minutes, into=stem.view("early", key=["store", "window"], history="1 day"))
    closed = windowed(paid, tumbling("1 minute"), by="store", aggregates="sum(paid) AS paid")
    totals = aggregate(closed, by="store", aggregates="sum(paid) AS total")
    yield Flow(totals, into=stem.view("closed", key="store"))
    visits = windowed(paid, sessions("20 seconds"), by="store", aggregates="sum(paid) AS total")
    yield Flow(visits, into=stem.view("visits", key=["store", "window"]))
    native = orders.groupBy("store", F.window("at", "1 minute")).agg(F.sum("amount").alias("total"))
    yield Flow(native, into=stem.view("native", key=["store", "window"]))
    yield Flow(
        join(orders, payments, on="order_id", within="2 minutes", how="left"), into=stem.view("paid", key="order_id")
    )
    yield Flow(enrich(orders, table(rents, key="store"), on="store"), into=stem.view("rented", key="order_id"))
    best = top(table(orders, key="order_id"), 2, order="amount DESC")
    yield Flow(best, into=stem.view("best", key="order_id"))
    yield Flow(aggregate(orders, by="store", aggregates="count(*) AS orders"), into=stem.view("counts", key="store"))
    plain = orders.where("amount > 1").select("store", (F.col("amount") + 1).alias("more"), "record")
    yield Flow(plain, into=stem.view("plain", key="store"))
    odd = orders.where(F.col("store").rlike("^B"))
    yield Flow(aggregate(odd, by="store", aggregates="count(*) AS orders"), into=stem.view("odd", key="store"))


@pytest.fixture(scope="module")
def home(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, datetime]:
    """The home after two runs, and a moment between them."""
    path = tmp_path_factory.mktemp("why") / "home"
    with mainstem.open(path, upkeep="manual", spark=spark) as stem:
        orders = stem.create_topic("orders", schema=SCHEMA, event_time="at", key="store")
        payments = stem.create_topic(
            "payments", schema="order_id STRING, store STRING, sum DOUBLE, paid_at TIMESTAMP", event_time="paid_at"
        )
        rents = stem.create_topic("rents", schema="store STRING, rent INT, since TIMESTAMP", event_time="since")
        rents.append(
            [{"store": "Berlin", "rent": 100, "since": at(-60)}, {"store": "Lisbon", "rent": 7, "since": at(-60)}]
        )
        orders.append([order(1, "Berlin", 10, 0.1), order(2, "Lisbon", 20, 0.2), order(3, "Berlin", 0.5, 0.3)])
        payments.append([{"order_id": "o-1", "store": "Berlin", "sum": 10.0, "paid_at": at(0.5)}])
        stem.run(flows, until="idle")
        between = datetime.now(UTC)
        orders.append([order(4, "Berlin", 30, 0.9)])
        rents.append([{"store": "Berlin", "rent": 200, "since": at(0.8)}])
        orders.append([order(5, "Berlin", 7, 3)])
        # Late, and within the lateness of one view only.
        orders.append([order(6, "Berlin", 1000, 0.5)])
        orders.append([order(7, "Lisbon", 5, 60)])
        # Too late for all.
        orders.append([order(8, "Berlin", 2000, 0.6)])
        payments.append([{"order_id": "o-9", "store": "Berlin", "sum": 1.0, "paid_at": at(60)}])
        rents.append([{"store": "Oslo", "rent": 1, "since": at(60)}])
        stem.run(flows, until="idle")
    return str(path), between


@pytest.fixture(scope="module")
def shop(home: tuple[str, datetime]) -> Iterator[Mainstem]:
    with mainstem.open(home[0], upkeep="manual") as stem:
        yield stem


def records(found: RowExplanation, topic: str = "orders", column: str = "order_id") -> list[Any]:
    assert (found.because, found.exact) == ("", True)
    return found.records[topic].column(column).to_pylist() if topic in found.records else []


def test_a_corrected_window_has_its_late_rows_and_not_those_that_were_too_late(shop: Mainstem, home: Any) -> None:
    found = shop.view("early").why(("Berlin", MINUTE))
    assert records(found) == ["o-1", "o-4", "o-6"]
    assert [it.row["total"] for it in found.shown if it.row is not None][-1] == 2080.0
    assert next(it.row["pane"]["timing"] for it in found.shown if it.row is not None) == "early"
    assert all(it.batch is not None and it.at is not None for it in found.shown)


def test_an_early_pane_has_the_records_that_had_come(shop: Mainstem, home: Any) -> None:
    found = shop.view("early").why(("Berlin", MINUTE), as_of=home[1])
    assert found.row is not None
    assert (found.row["total"], records(found)) == (20.0, ["o-1"])


def test_a_session_has_the_rows_that_it_was_made_of(shop: Mainstem) -> None:
    found = shop.view("visits").why(("Berlin", {"start": at(0.9), "end": at(0.9) + timedelta(seconds=20)}))
    assert records(found) == ["o-4"]


def test_a_sum_of_windows_has_no_records_of_windows_that_are_open(shop: Mainstem) -> None:
    found = shop.view("closed").why("Lisbon")
    assert found.row is not None
    assert (found.row["total"], records(found)) == (40.0, ["o-2"])


def test_windows_of_spark_have_their_records_without_those_that_spark_dropped(shop: Mainstem) -> None:
    found = shop.view("native").why(("Berlin", MINUTE))
    assert found.row is not None
    ids, amounts = (records(found, column=name) for name in ("order_id", "amount"))
    assert {"o-1", "o-3", "o-4"} <= set(ids)
    assert sum(amounts) == found.row["total"]


def test_pairs_and_rows_without_a_match_have_their_records(shop: Mainstem) -> None:
    pair = shop.view("paid").why("o-1")
    assert (records(pair), records(pair, "payments")) == (["o-1"], ["o-1"])
    alone = shop.view("paid").why("o-4")
    assert (records(alone), records(alone, "payments")) == (["o-4"], [])


def test_a_row_looked_up_as_of_its_time_has_the_version_that_was_valid(shop: Mainstem) -> None:
    before, after = (shop.view("rented").why(number) for number in ("o-1", "o-4"))
    assert (records(before), records(before, "rents", "rent")[0]) == (["o-1"], 100)
    assert (records(after), records(after, "rents", "rent")) == (["o-4"], [200])


def test_tables_groups_and_plain_rows_have_their_records(shop: Mainstem) -> None:
    assert records(shop.view("best").why("o-8")) == ["o-8"]
    assert records(shop.view("counts").why("Lisbon")) == ["o-2", "o-7"]
    # The last row of a key replaced the others.
    assert records(shop.view("plain").why("Lisbon")) == ["o-7"]


def test_what_cannot_be_said_is_told_with_the_offsets_of_the_batch(shop: Mainstem) -> None:
    found = shop.view("odd").why("Berlin")
    assert not found.exact
    assert "RLIKE" in found.because
    assert found.ranges["orders"]
    assert found.records == {}


def test_the_lineage_is_a_file_of_its_version(shop: Mainstem) -> None:
    assert sorted(path.name for path in Path(shop.home, "flows", "early").glob("*.json")) == [
        "does-v1.json", "flow.json", "lineage-v1.json",
    ]  # fmt: skip
    # The second run found it there.
    found = read_lineage(FlowStore(shop.home, "early"), 1)
    assert found is not None
    assert (found["epoch"], found["sink"]["key"]) == (1, ["store", "window"])
    with pytest.raises(Invalid, match="opened without its log"):
        View(shop.home, "early").why(("Berlin", MINUTE))
