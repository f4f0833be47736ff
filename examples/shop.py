"""A shop as a program of four flows: a topic, two views and a folder of files, all derived from the log.

    mainstem check examples/shop.py          shows the flows, without starting them
    mainstem run examples/shop.py            until Ctrl-C; the next run continues from there
    python examples/shop.py [home]           the same from Python

`python -m examples.shop_events [home]` feeds it.
"""

import sys
from collections.abc import Iterator

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow, Mainstem


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


if __name__ == "__main__":
    with mainstem.open(sys.argv[1] if len(sys.argv) > 1 else "data/shop") as shop:
        make_topics(shop)
        shop.run(flows)
