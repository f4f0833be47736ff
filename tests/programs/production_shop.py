"""A shop as a program of four flows, with its events from a seed: Spark's own windows and joins, a topic and a folder of files.

For `test_production_examples`, which runs it embedded and on Kafka with a cluster, and compares.
"""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from pyspark.sql import functions as F

from mainstem import Flow, Mainstem

# Multiples of a quarter, which a double represents exactly: their sum does not depend on the order.
ARTICLES = {"tea": 4.5, "cup": 12.0, "kettle": 39.0, "honey": 7.25, "tray": 18.0, "spoon": 2.75}
STORES = ["Berlin", "Lisbon", "Paris", "Vienna"]
COUNTRIES = ["Austria", "France", "Germany", "Portugal"]
NAMES = ["Ada", "Bo", "Cleo", "Dario", "Elif", "Finn", "Greta", "Hugo"]
PAGES = ["home", "search", "article"]
CUSTOMERS = 200

Rows = dict[str, list[dict]]


class ShopEvents:
    """The events of a shop that has had this many orders; the same ones for the same number."""

    def __init__(self, orders: int) -> None:
        self._chance = random.Random(orders)
        self._number = orders
        # Orders to be paid, with the time: sooner or later; one in ten is never paid.
        self._unpaid: list[tuple[datetime, str]] = []

    def customers(self) -> Rows:
        pick = self._chance.choice
        ids = [f"c-{number}" for number in range(CUSTOMERS)]
        return {"customers": [{"customer_id": it, "name": pick(NAMES), "country": pick(COUNTRIES)} for it in ids]}

    def at(self, now: datetime, orders: int) -> Rows:
        """This many orders at this time, the clicks that led to them, and the payments due by then."""
        placed, clicks = [], []
        for _ in range(orders):
            placed.append(order := self._order(now))
            pages = [*PAGES[: self._chance.randint(1, 3)], "basket"]
            clicks += [{"customer_id": order["customer_id"], "page": page, "clicked_at": now} for page in pages]
            if self._chance.random() < 0.9:
                self._unpaid.append((now + timedelta(seconds=self._chance.expovariate(1 / 20)), order["order_id"]))
        due = [order_id for at, order_id in self._unpaid if at <= now]
        self._unpaid = [(at, order_id) for at, order_id in self._unpaid if at > now]
        methods = [self._chance.choice(["card", "transfer"]) for _ in due]
        payments = [
            {"order_id": order_id, "method": method, "paid_at": now}
            for order_id, method in zip(due, methods, strict=True)
        ]
        return {"orders": placed, "payments": payments, "clicks": clicks}

    def _order(self, now: datetime) -> dict:
        article = self._chance.choice(list(ARTICLES))
        self._number += 1
        return {
            "order_id": f"o-{self._number}",
            "customer_id": f"c-{self._chance.randrange(CUSTOMERS)}",
            "store": self._chance.choice(STORES),
            "article": article,
            "amount": ARTICLES[article] * self._chance.randint(1, 5),
            "placed_at": now,
        }


def append(stem: Mainstem, rows: Rows) -> int:
    # Atomic over several topics.
    with stem.transaction() as transaction:
        for topic, some in rows.items():
            transaction.append(topic, some)
    return sum(len(some) for some in rows.values())


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="10 minutes")
    payments = stem.topic("payments").stream(watermark="10 minutes")

    # Large orders, for the readers of that topic.
    yield Flow(orders.where("amount > 150"), into=stem.topic("big_orders"))

    # The revenue of each store in windows of five minutes: updated with every batch.
    per_store = orders.groupBy(F.window("placed_at", "5 minutes"), "store").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("revenue")
    )
    yield Flow(per_store, into=stem.view("revenue", key=["window", "store"]))

    # An order and its payment, whichever came first. The time bound lets Spark evict rows that can no longer match.
    in_time = F.expr("paid_for = order_id AND paid_at BETWEEN placed_at AND placed_at + INTERVAL 15 MINUTES")
    paid = payments.select(F.col("order_id").alias("paid_for"), "method", "paid_at")
    paid_orders = orders.join(paid, in_time).select(
        "order_id", "customer_id", "amount", "method", "placed_at", "paid_at"
    )
    yield Flow(paid_orders, into=stem.view("paid_orders", key="order_id"))

    # For the warehouse: Parquet files, one folder per page.
    clicks = stem.topic("clicks").stream().drop("record")
    yield Flow(clicks, into=stem.files(f"{stem.home}/files/clicks", partition_by=["page"]))


def make_topics(stem: Mainstem) -> None:
    """Create the shop's topics, if they do not exist."""
    orders = "order_id string, customer_id string, store string, article string, amount double, placed_at timestamp"
    payments = "order_id string, method string, paid_at timestamp"
    clicks = "customer_id string, page string, clicked_at timestamp"
    customers = "customer_id string, name string, country string"
    stem.create_topic("orders", schema=orders, key="order_id", event_time="placed_at", partitions=2)
    stem.create_topic("payments", schema=payments, key="order_id", event_time="paid_at", partitions=2)
    stem.create_topic("clicks", schema=clicks, key="customer_id", event_time="clicked_at", partitions=2)
    stem.create_topic("customers", schema=customers, key="customer_id", keep="latest per key")
