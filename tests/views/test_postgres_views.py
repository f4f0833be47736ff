"""A program whose views are in PostgreSQL: only the opening line differs. Flows into views, views into flows, a rebuild."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.stem import Mainstem
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream()
    totals = orders.groupBy("store").agg(F.sum("amount").alias("revenue"), F.max("placed_at").alias("last_at"))
    yield Flow(totals, into=stem.view("revenue", key="store"))
    large = stem.view("revenue").stream().where("revenue >= 10")
    yield Flow(large.select("store", "revenue", "record"), into=stem.view("large", key="store"))


def twice(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream()
    totals = orders.groupBy("store").agg((F.sum("amount") * 2).alias("revenue"), F.max("placed_at").alias("last_at"))
    yield Flow(totals, into=stem.view("revenue", key="store"))


def order(number: int, store: str, amount: str) -> dict[str, object]:
    placed_at = datetime(2026, 1, 1, 12, 0, number, tzinfo=UTC)
    return {"order_id": number, "store": store, "amount": Decimal(amount), "placed_at": placed_at}


@contextmanager
def starting_when_told(postgres: PostgresServer) -> Iterator[None]:
    """The server starts when somebody says that it is not there."""

    class Starter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logging.getLogger("mainstem.waiting").removeHandler(self)
            postgres.start()

    logging.getLogger("mainstem.waiting").addHandler(Starter())
    yield


def test_a_program_keeps_its_views_in_postgresql(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = postgres.new_address()
    with mainstem.open(tmp_path / "home", views=address, spark=spark, upkeep="manual") as stem:
        schema = "order_id INT, store STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"
        orders = stem.create_topic("orders", schema=schema, key="order_id", partitions=2)
        orders.append([order(1, "Berlin", "12.50"), order(2, "Lisbon", "7.00")])
        # The database is about to start when the program is built: whoever runs it is told, and it goes on.
        postgres.stop(signal.SIGKILL)
        with caplog.at_level(logging.WARNING, "mainstem.waiting"), starting_when_told(postgres):
            running = stem.start(flows)
        assert "127.0.0.1" in caplog.text
        assert "cannot be reached; trying again" in caplog.text
        with running:
            running.wait_until_idle()
            # Flows wait until it is back, and go on.
            postgres.restart(signal.SIGKILL)
            placed = orders.append([order(3, "Lisbon", "3.25"), order(4, "Quito", "1.00")])
            running.wait_until_idle()

        revenue, large = stem.view("revenue"), stem.view("large")
        assert stem.views() == ["large", "revenue"]
        assert str(revenue.get("Lisbon", after=placed.token)["revenue"]) == "10.25"
        # The token of a topic holds also in a view that is made from the first one.
        assert str(large.get("Lisbon", after=placed.token)["revenue"]) == "10.25"
        assert large.query("SELECT list(store ORDER BY store) AS s FROM large").to_pylist() == [
            {"s": ["Berlin", "Lisbon"]}
        ]
        read = {row["store"]: row["last_at"] for row in revenue.read().select("store", "last_at").collect()}
        assert len(read) == 3

        # Built anew beside the live one, by a program that was changed; readers see the one, then the other.
        with stem.rebuild("revenue", twice) as rebuild:
            rebuild.wait()
            difference = rebuild.difference()
            assert (difference.same, difference.changed) == (0, 3)
            rebuild.apply()
        with psycopg.connect(address) as anyone:
            plain = anyone.execute("SELECT store, revenue::text FROM revenue ORDER BY store").fetchall()
        assert plain == [("Berlin", "25.00"), ("Lisbon", "20.50"), ("Quito", "2.00")]
        revenue.use(1)
        assert str(revenue.get("Quito")["revenue"]) == "1.00"

        # What Spark shows of a plan, and all that was written down: never the password.
        stream = revenue.stream()._jdf
        seen = [stream.queryExecution().toString(), stream.logicalPlan().toJSON()]
    seen += [path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        seen += [path.read_text(errors="replace") for path in [Path(f"/proc/{pid}/cmdline")] if path.exists()]
    for secret in (PASSWORD, QUOTED_PASSWORD):
        assert not [text[:500] for text in seen if secret in text]
