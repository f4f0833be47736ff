"""A program with captures and flows, from a database to a view: `stem.run(flows, captures=captures)`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import mainstem
from mainstem import Capture, Flow, Invalid
from mainstem.capture import postgres as postgres_source
from mainstem.operators import aggregate, join, table
from tests.capture.shop_database import ShopDatabase, shop_database
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

BY_CITY = (
    "SELECT city, sum(amount), count(*) FROM orders o JOIN customers c ON c.id = o.customer GROUP BY city ORDER BY city"
)


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[ShopDatabase]:
    with shop_database(postgres) as made:
        yield made


def flows(stem: mainstem.Mainstem) -> Iterator[Flow]:
    customers = table(stem.topic("shop.customers").stream(), key="id")
    orders = table(stem.topic("shop.orders").stream(), key="id")
    bought = join(
        orders.select("record", "id", "customer", "amount"),
        customers.select("record", F.col("id").alias("customer"), "city"),
        on="customer",
    )
    totals = [F.sum("amount").alias("revenue"), F.count("*").alias("orders")]
    yield Flow(aggregate(bought, by="city", aggregates=totals), into=stem.view("revenue", key="city"))


def revenue(stem: mainstem.Mainstem) -> list[tuple[Any, ...]]:
    rows = sorted(stem.view("revenue").to_arrow().to_pylist(), key=lambda row: str(row["city"]))
    return [(row["city"], row["revenue"], row["orders"]) for row in rows]


def test_a_view_of_a_join_is_what_the_database_says(shop: ShopDatabase, spark: Any, tmp_path: Path) -> None:
    def captures(stem: mainstem.Mainstem) -> Iterator[Capture]:
        yield Capture("shop", postgres_source(shop.address, tables=["customers", "orders"], slot=shop.slot))

    with mainstem.open(tmp_path / "home", spark=spark) as stem:
        stem.run(flows, captures=captures, until="idle")
        assert revenue(stem) == shop.execute(BY_CITY)

        shop.execute("UPDATE customers SET city = 'Rome' WHERE id IN (1, 2)")
        shop.execute("DELETE FROM orders WHERE id % 7 = 0")
        shop.execute("INSERT INTO orders SELECT i, 3, 2.25 FROM generate_series(1000, 1010) i")
        stem.run(flows, captures=captures, until="idle")
        assert revenue(stem) == shop.execute(BY_CITY)

        with stem.start(flows, captures=captures) as running:
            shop.execute("UPDATE orders SET amount = amount + 1")
            wait_until(lambda: revenue(stem) == shop.execute(BY_CITY))
            # A capture that fails stops the flows, and is the error of the run.
            shop.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (customer, id)")
            shop.execute("INSERT INTO orders VALUES (2000, 1, 1)")
            with pytest.raises(Invalid, match='the key of table "orders" changed'):
                running.wait()
            assert {handle.state for handle in running} == {"stopped"}
