"""The shop of `make demo` as a program of six flows.

    mainstem check examples/demo_shop.py     shows the flows, without starting them

Each shows one idea: results before a window is complete, and corrected afterwards; a join of three streams; a row with
what was true at its time; sessions; a ranking that changes; work for a queue.
"""

from collections.abc import Iterator

from mainstem import Flow, Mainstem
from mainstem.operators import aggregate, enrich, every, join, sessions, table, top, tumbling, windowed

TOPICS = {
    "orders": ("order_id STRING, customer STRING, store STRING, article STRING, amount DOUBLE, placed_at TIMESTAMP", "placed_at"),
    "payments": ("order_id STRING, method STRING, mail STRING, paid_at TIMESTAMP", "paid_at"),
    "deliveries": ("order_id STRING, courier STRING, delivered_at TIMESTAMP", "delivered_at"),
    "clicks": ("customer STRING, page STRING, clicked_at TIMESTAMP", "clicked_at"),
    "customers": ("customer STRING, city STRING, moved_at TIMESTAMP", "moved_at"),
}  # fmt: skip


def flows(stem: Mainstem) -> Iterator[Flow]:
    # The revenue of each minute: a first result every ten seconds, the whole minute, and its corrections.
    revenue = windowed(
        stem.topic("orders").stream(watermark="20 seconds"), tumbling("1 minute"), by="store",
        aggregates=["count(*) AS orders", "sum(amount) AS revenue"],
        early=every("10 seconds"), lateness="10 minutes", results="retract",
    )  # fmt: skip
    yield Flow(revenue, into=stem.view("revenue", key=["window", "store"]))

    # An order, its payment and its delivery, in whatever order they arrive.
    late = {"watermark": "4 minutes", "idle_after": "30 seconds"}
    orders = stem.topic("orders").stream(watermark="4 minutes").select("order_id", "amount", "placed_at", "record")
    payments = stem.topic("payments").stream(**late).select("order_id", "method", "paid_at", "record")
    deliveries = stem.topic("deliveries").stream(**late).select("order_id", "courier", "delivered_at", "record")
    paid = join(orders, payments, on="order_id", within=("0 seconds", "2 minutes")).withColumnRenamed(
        "event_time", "paid"
    )
    done = join(paid, deliveries, on="order_id", within=("5 minutes", "5 minutes"))
    yield Flow(
        done.select("order_id", "amount", "method", "courier", "record"), into=stem.view("delivered", key="order_id")
    )

    # Revenue by the city in which the customer lived when the order was placed.
    customers = table(stem.topic("customers").stream(**late), key="customer", order_by="moved_at")
    bought = stem.topic("orders").stream(watermark="4 minutes").select("customer", "amount", "placed_at", "record")
    placed = enrich(bought, customers, on="customer")
    cities = aggregate(placed, by="city", aggregates=["count(*) AS orders", "sum(amount) AS revenue"])
    yield Flow(cities, into=stem.view("cities", key="city"))

    # What a customer looked at without a pause of a minute.
    visits = windowed(
        stem.topic("clicks").stream(watermark="20 seconds"), sessions(gap="1 minute"), by="customer",
        aggregates="count(*) AS pages", early=every("10 seconds"),
    )  # fmt: skip
    yield Flow(visits, into=stem.view("visits", key=["customer", "window"]))

    # The three best articles.
    articles = aggregate(
        stem.topic("orders").stream(), by="article", aggregates=["count(*) AS orders", "sum(amount) AS revenue"]
    )
    yield Flow(top(articles, 3, order=["revenue DESC", "article"]), into=stem.view("best_articles", key="article"))

    # A mail for each payment; workers take them from a queue.
    mails = stem.topic("payments").stream().selectExpr("mail AS address", "concat('Thank you for ', order_id) AS text")
    yield Flow(mails, into=stem.topic("mails"))


def make_topics(stem: Mainstem) -> None:
    """Create the shop's topics, if they do not exist."""
    for name, (schema, event_time) in TOPICS.items():
        key = "customer" if name in ("clicks", "customers") else "order_id"
        stem.create_topic(name, schema=schema, key=key, event_time=event_time, partitions=2)
    stem.create_topic("mails", schema="address STRING, text STRING")
