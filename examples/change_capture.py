"""Change data capture (CDC): views that follow a database, with its updates and deletes.

A cache or an index that is filled beside a database differs from it after the first missed update. In Mainstem a
*capture* copies every change of the tables into topics, whole transactions in the order of their commits; `table` applies
them, and a view over a join of two tables stays what the same query says in the database.
"""

import random
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pyspark.sql import functions as F

import mainstem
from mainstem import Capture, Flow
from mainstem.capture import sqlite
from mainstem.operators import aggregate, join, table

CITIES = ("Bonn", "Oslo", "Rome")
BY_CITY = """
    SELECT city, count(*), sum(cents) FROM orders JOIN customers ON customers.id = customer GROUP BY city ORDER BY city
"""


def flows(stem: mainstem.Mainstem) -> Iterator[Flow]:
    customers = table(stem.topic("shop.customers").stream(), key="id")
    orders = table(stem.topic("shop.orders").stream(), key="id")
    bought = join(
        orders.select("record", "id", "customer", "cents"),
        customers.select("record", F.col("id").alias("customer"), "city"),
        on="customer",
    )
    totals = [F.count("*").alias("orders"), F.sum("cents").alias("cents")]
    yield Flow(aggregate(bought, by="city", aggregates=totals), into=stem.view("by_city", key="city"))


def write(connection: sqlite3.Connection, chance: random.Random) -> None:
    """A day of the shop: new orders, changed and cancelled ones, and customers who move or leave."""
    for _ in range(100):
        customer, order = chance.randrange(20), chance.randrange(400)
        with connection:
            match chance.randrange(5):
                case 0 | 1:
                    row = (order, customer, chance.randrange(100, 9_000))
                    connection.execute("INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)
                case 2:
                    connection.execute("UPDATE orders SET cents = cents + 50 WHERE id % 40 = ?", [order % 40])
                case 3:
                    city = chance.choice(CITIES)
                    connection.execute("UPDATE customers SET city = ? WHERE id = ?", [city, customer])
                case 4:
                    connection.execute("DELETE FROM orders WHERE customer = ?", [customer])


def main(home: str) -> None:
    chance = random.Random(11)
    path = Path(home) / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            connection.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, city TEXT)")
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER)")
            connection.executemany("INSERT INTO customers VALUES (?, ?)", [(i, CITIES[i % 3]) for i in range(20)])

        def captures(_: mainstem.Mainstem) -> Iterator[Capture]:
            yield Capture("shop", sqlite(path, tables=["customers", "orders"]))

        with mainstem.open(Path(home) / "home") as stem:
            for day in (1, 2):
                write(connection, chance)
                stem.run(flows, captures=captures, until="idle")
                found = sorted(tuple(row.values()) for row in stem.view("by_city").to_arrow().to_pylist())
                expected = connection.execute(BY_CITY).fetchall()
                print(f"day {day}: " + ", ".join(f"{city} {count} orders, {cents}" for city, count, cents in found))
                if found != expected:
                    sys.exit(f"different: {found}, expected {expected}")
            records = stem.topic("shop.orders").to_arrow().column("record").to_pylist()
    counts = Counter(record["change"] for record in records)
    print(f"changes of orders: {', '.join(f'{count} {change}' for change, count in sorted(counts.items()))}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
