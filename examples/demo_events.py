"""The events of the shop in `examples/demo_shop.py`, generated from a seed.

Customers click, order and pay, and some of them move. Couriers deliver; Mira also sells at the door, and is offline for some
minutes: then she uploads everything. One mail has an address that nobody can write to.
"""

import random
from datetime import datetime, timedelta

# Multiples of a quarter, which a double represents exactly: their sum does not depend on the order.
ARTICLES = {"tea": 4.5, "cup": 12.0, "kettle": 39.0, "honey": 7.25, "tray": 18.0, "spoon": 2.75}
STORES = ["Berlin", "Lisbon", "Vienna"]
CITIES = ["Graz", "Jena", "Lyon", "Porto"]
PAGES = ["home", "search", "article", "basket"]
CUSTOMERS = 40

Rows = dict[str, list[dict]]


class DemoEvents:
    """The events of a shop, second by second from `begin`. Mira is offline from `offline` on, until `online` if that is set."""

    def __init__(self, begin: datetime, offline: datetime) -> None:
        self._chance = random.Random(7)
        self._begin = begin
        self.offline = offline
        self.online: datetime | None = None
        self._number = 0
        # What happens later because of earlier events: the moment, the topic, the row, and whether Mira's phone sends it.
        self._due: list[tuple[datetime, str, dict, bool]] = []
        self._kept: list[tuple[str, dict]] = []

    def customers(self) -> Rows:
        """Where everybody lives at first."""
        return {"customers": [self._moved(number, self._begin) for number in range(CUSTOMERS)]}

    def second(self, now: datetime, orders: int) -> Rows:
        """What is appended in this second."""
        rows: Rows = {name: [] for name in ("orders", "payments", "deliveries", "clicks", "customers")}
        for _ in range(orders):
            self._order(now - timedelta(milliseconds=self._chance.randrange(1000)))
        if self._chance.random() < 0.05:
            rows["customers"].append(self._moved(self._chance.randrange(CUSTOMERS), now))
        due, self._due = [one for one in self._due if one[0] <= now], [one for one in self._due if one[0] > now]
        offline = now >= self.offline and (self.online is None or now < self.online)
        for _, topic, row, by_mira in sorted(due, key=lambda one: one[0]):
            if by_mira and offline:
                self._kept.append((topic, row))
            else:
                rows[topic].append(row)
        if not offline:
            for topic, row in self._kept:
                rows[topic].append(row)
            self._kept = []
        return rows

    def _moved(self, number: int, at: datetime) -> dict:
        return {"customer": f"c-{number}", "city": self._chance.choice(CITIES), "moved_at": at}

    def _order(self, at: datetime) -> None:
        chance = self._chance
        self._number += 1
        order_id, customer = f"o-{self._number}", f"c-{chance.randrange(CUSTOMERS)}"
        article = chance.choice(list(ARTICLES))
        amount = ARTICLES[article] * chance.randint(1, 5)
        # One in seven is sold at the door, by Mira.
        store, by_mira = chance.choice(STORES), chance.randrange(7) == 0
        order = {"order_id": order_id, "customer": customer, "store": store, "article": article, "amount": amount}
        self._due.append((at, "orders", {**order, "placed_at": at}, by_mira))
        for number, page in enumerate(PAGES):
            clicked = at - timedelta(seconds=2 * (len(PAGES) - number))
            self._due.append((at, "clicks", {"customer": customer, "page": page, "clicked_at": clicked}, False))
        if chance.random() < 0.9:
            paid = at + timedelta(seconds=min(60, chance.expovariate(1 / 8)))
            # A mail that can never be sent.
            mail = f"{customer}@shop.example" if self._number % 200 else "nobody"
            payment = {
                "order_id": order_id,
                "method": chance.choice(["card", "transfer"]),
                "mail": mail,
                "paid_at": paid,
            }
            self._due.append((paid, "payments", payment, False))
            brought = paid + timedelta(seconds=chance.randint(20, 90))
            courier = "Mira" if by_mira else chance.choice(["Jon", "Lea"])
            delivery = {"order_id": order_id, "courier": courier, "delivered_at": brought}
            self._due.append((brought, "deliveries", delivery, by_mira))
