"""A view checked against the log: right ones, a row that somebody changed, and one that other code had written."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from mainstem.batch import Batch, FlowRun
from mainstem.errors import FlowNotFound, Invalid
from mainstem.flows.flow import Flow
from mainstem.operators import tumbling, windowed
from mainstem.stem import Mainstem
from mainstem.views.view import View

pytestmark = pytest.mark.usefixtures("one_bucket")

SCHEMA = "order_id STRING, store STRING, amount BIGINT"


def program(factor: int = 1, **settings: Any) -> Any:
    def flows(stem: Mainstem):
        orders = stem.topic("orders").stream().withColumn("amount", F.col("amount") * factor)
        per_store = orders.groupBy("store").agg(F.sum("amount").alias("revenue"))
        yield Flow(per_store, into=stem.view("revenue", key="store", **settings))

    return flows


def append(stem: Mainstem, *amounts: tuple[str, int], topic: str = "orders") -> None:
    stem.topic(topic).append([{"order_id": "o", "store": store, "amount": amount} for store, amount in amounts])


@pytest.fixture
def shop(stem: Mainstem) -> Mainstem:
    stem.create_topic("orders", schema=SCHEMA)
    return stem


def made_by_hand(stem: Mainstem, name: str) -> None:
    """A view as its flow would have made it, without Spark."""
    run, rows = FlowRun(name, 1), pa.table({"store": ["Berlin"], "revenue": pa.array([1], pa.int64())})
    writer = View(stem.home, name, key="store").writer(run, rows.schema)
    writer.apply(rows, Batch(0, run, {"orders": {0: 1}}))
    writer.close()


def left_behind(stem: Mainstem) -> list[str]:
    """What a check would have left."""
    return [
        str(path) for folder in ("checks", "flows", "topics") for path in Path(stem.home, folder).glob("*check*")
    ] + [str(path) for path in Path(stem.home, "checks").glob("*")]


def test_a_view_that_is_right_and_one_row_changed_by_hand(shop):
    append(shop, ("Berlin", 1), ("Lisbon", 2))
    shop.run(program(), until="idle")
    append(shop, ("Lisbon", 3), ("Osaka", 4), ("Berlin", 5))
    shop.run(program(), until="idle")
    # Not applied yet: the check goes no further than the view.
    append(shop, ("Osaka", 100))

    found = shop.check_view("revenue", program())
    assert (found.right, found.rows, found.compared, found.token, found.replays) == (True, 3, 3, "orders@0:5", 1)
    assert (found.running, found.first, found.wrong) == (None, None, ())
    assert left_behind(shop) == []

    with sqlite3.connect(f"{shop.home}/views/revenue/v1.sqlite") as connection:
        connection.execute("UPDATE rows SET revenue = 6000 WHERE store = 'Berlin'")
    connection.close()
    found = shop.check_view("revenue", program())
    [wrong] = found.wrong
    assert (wrong.key, wrong.shown, wrong.expected) == (
        ("Berlin",), {"store": "Berlin", "revenue": 6000}, {"store": "Berlin", "revenue": 6},
    )  # fmt: skip
    # The last record that changed it is the first from which on it is not what it should be; and no batch wrote this.
    assert (found.first.row, found.first.record, found.first.cause) == (wrong, ("orders", 0, 4), "store")
    assert (found.first.start, found.first.end) == ({"orders": {0: 2}}, {"orders": {0: 5}})
    assert left_behind(shop) == []


def with_returns(factor: int = 1, **settings: Any) -> Any:
    """The same from two topics, of which each is cut for itself."""

    def flows(stem: Mainstem):
        orders, returns = (stem.topic(name).stream() for name in ("orders", "returns"))
        both = orders.select("store", F.col("amount") * factor).toDF("store", "amount")
        both = both.union(returns.select("store", -F.col("amount")))
        yield Flow(
            both.groupBy("store").agg(F.sum("amount").alias("revenue")), into=stem.view("net", key="store", **settings)
        )

    return flows


def test_a_view_of_two_topics_that_other_code_has_written_since(shop):
    shop.create_topic("returns", schema=SCHEMA)
    append(shop, ("Berlin", 1), ("Lisbon", 2))
    append(shop, ("Berlin", 1), topic="returns")
    shop.run(with_returns(history="1 day"), until="idle")
    # Its checkpoint takes the change: what is kept is the same.
    append(shop, ("Osaka", 4), ("Lisbon", 7), ("Lisbon", 9))
    append(shop, ("Lisbon", 1), topic="returns")
    shop.run(with_returns(factor=2), until="idle")
    append(shop, ("Berlin", 1))
    shop.run(with_returns(factor=2), until="idle")

    before = shop.view("net").read(as_of="orders@0:2;returns@0:1")
    assert sorted(map(tuple, before.collect())) == [("Berlin", 0), ("Lisbon", 2)]

    found = shop.check_view("net", with_returns(), sample=1000)
    assert [(row.key, row.shown["revenue"], row.expected["revenue"]) for row in found.wrong] == [
        (("Berlin",), 2, 1), (("Lisbon",), 33, 17), (("Osaka",), 8, 4),
    ]  # fmt: skip
    assert (found.token, found.replays) == ("orders@0:6;returns@0:2", 5)
    assert (found.first.cause, found.first.start, found.first.end) == (
        "batch", {"orders": {0: 2}, "returns": {0: 1}}, {"orders": {0: 5}, "returns": {0: 2}},
    )  # fmt: skip
    # Of the batch with offsets 2 to 4: Lisbon is at 3 and 4.
    assert (found.first.row.key, found.first.record) == (("Lisbon",), ("orders", 0, 3))
    assert left_behind(shop) == []


def test_what_cannot_be_made_again_is_refused(shop):
    append(shop, ("Berlin", 1))
    made_by_hand(shop, "revenue")
    with pytest.raises(FlowNotFound):
        shop.check_view("revenue", lambda stem: [])
    with pytest.raises(Invalid, match="sample is 0"):
        shop.check_view("revenue", program(), sample=0)

    def from_latest(stem: Mainstem):
        rows = stem.topic("orders").stream(start="latest").selectExpr("store", "amount AS revenue")
        yield Flow(rows, into=stem.view("latest", key="store"))

    def from_a_view(stem: Mainstem):
        yield Flow(
            stem.view("revenue").stream().select("store", "revenue", "record"), into=stem.view("copy", key="store")
        )

    for flows, name, says in (
        (from_latest, "latest", 'starts at "latest"'),
        (from_a_view, "copy", "does not read topics only, but also view revenue"),
    ):
        made_by_hand(shop, name)
        with pytest.raises(Invalid) as refused:
            shop.check_view(name, flows)
        assert says in refused.value.detail
        assert refused.value.hint
    assert left_behind(shop) == []


def test_on_kafka_a_view_is_checked_up_to_what_it_has_applied(on_kafka):
    on_kafka.create_topic("orders", schema=SCHEMA)
    append(on_kafka, ("Berlin", 1), ("Lisbon", 2))
    on_kafka.run(program(), until="idle")
    append(on_kafka, ("Berlin", 5))

    found = on_kafka.check_view("revenue", program())
    assert (found.right, found.rows, found.compared, found.replays) == (True, 2, 2, 1)
    assert left_behind(on_kafka) == []


def late_windows(stem: Mainstem):
    rows = stem.topic("scores").stream(watermark="0 seconds")
    totals = windowed(rows, tumbling("1 minute"), by="team", aggregates="sum(score) AS total", lateness="5 minutes")
    yield Flow(totals, into=stem.view("totals", key=["team", "window"]))


def test_whether_a_result_was_final_in_its_batch_makes_no_view_wrong(stem):
    stem.create_topic("scores", schema="team STRING, score INT, at TIMESTAMP", event_time="at")
    for minute in (0, 2, 20):
        stem.topic("scores").append([{"team": "red", "score": 1, "at": datetime(2026, 1, 1, 12, minute, tzinfo=UTC)}])
        stem.run(late_windows, until="idle")
    panes = [row["pane"] for row in stem.view("totals").to_arrow().sort_by("total").to_pylist()]
    # In three batches the first result was not final yet; in one batch it would be.
    assert {pane["final"] for pane in panes} == {True, False}

    assert stem.check_view("totals", late_windows).right
