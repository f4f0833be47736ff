"""The events of the shop in `examples/shop.py`: generated from a seed, as if customers clicked, ordered and paid.

python -m examples.shop_events [home]    feed a shop until Ctrl-C
"""

import contextlib
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import mainstem
from examples.shop import make_topics
from mainstem import Mainstem

# Multiples of a quarter, which a double represents exactly: their sum does not depend on the order.
ARTICLES = {"tea": 4.5, "cup": 12.0, "kettle": 39.0, "honey": 7.25, "tray": 18.0, "spoon": 2.75}
STORES = ["Berlin", "Lisbon", "Paris", "Vienna"]
COUNTRIES = ["Austria", "France", "Germany", "Portugal"]
NAMES = ["Ada", "Bo", "Cleo", "Dario", "Elif", "Finn", "Greta", "Hugo"]
PAGES = ["home", "search", "article"]
CUSTOMERS = 200
ORDERS_PER_SECOND = 20

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


def feed(stem: Mainstem) -> Iterator[int]:
    """Append the last hour if there are no orders yet, then new events as time passes.

    Yields the number of rows of each step; the hour is the first.
    """
    make_topics(stem)
    orders = stem.query("SELECT count(*) AS orders FROM orders").column("orders")[0].as_py()
    events = ShopEvents(orders)
    now = datetime.now(UTC)
    count = 0
    if not orders:
        count += append(stem, events.customers())
        steps = [events.at(now - timedelta(seconds=seconds), orders=20) for seconds in range(3600, 0, -10)]
        for first in range(0, len(steps), 60):
            some = steps[first : first + 60]
            count += append(stem, {topic: [row for step in some for row in step[topic]] for topic in some[0]})
    yield count
    while True:
        time.sleep(0.25)
        before, now = now, datetime.now(UTC)
        yield append(stem, events.at(now, orders=round((now - before).total_seconds() * ORDERS_PER_SECOND)))


if __name__ == "__main__":
    with (
        mainstem.open(sys.argv[1] if len(sys.argv) > 1 else "data/shop") as shop,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for appended in feed(shop):
            print(f"{appended} rows appended", flush=True)
