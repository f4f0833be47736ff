"""Unbundling databases: an index, a lake and a cache that follow one source of truth.

A database keeps its own indexes, caches and materialized views current, in one product. With a log of changes, separate
systems can be kept current in the same way, each good at one thing. In Mainstem a *capture* copies the changes of the
database into topics, and flows keep *stores* and *views* equal to them. One that loses its data is filled again from the
log, and `stem.compare` tells whether each has what the log has.
"""

import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import mainstem
from mainstem import Capture, Flow
from mainstem.capture import sqlite
from mainstem.operators import table

COLORS, THINGS = ("red", "blue", "green"), ("shoes", "hat", "bag", "scarf")


def write(connection: sqlite3.Connection, chance: random.Random) -> None:
    """A day of the shop: products come, change their price, and go."""
    for _ in range(100):
        product, title = chance.randrange(60), f"{chance.choice(COLORS)} {chance.choice(THINGS)}"
        with connection:
            if chance.random() < 0.3:
                connection.execute("DELETE FROM products WHERE id = ?", [product])
            else:
                row = (product, title, chance.randrange(100, 9_000))
                connection.execute(
                    "INSERT INTO products VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET cents = cents + 5", row
                )


def main(home: str) -> None:
    path, lake, chance = Path(home) / "shop.db", Path(home) / "lake", random.Random(24)

    def captures(_: mainstem.Mainstem) -> Iterator[Capture]:
        yield Capture("shop", sqlite(path, tables=["products"]))

    def flows(stem: mainstem.Mainstem) -> Iterator[Flow]:
        products = table(stem.topic("shop.products").stream(), key="id")
        yield Flow(products, into=stem.search_index("products", key="id", text="title"))
        yield Flow(products, into=stem.delta(lake, key="id", name="lake"))
        yield Flow(products, into=stem.view("cache", key="id"))

    with closing(sqlite3.connect(path)) as connection, mainstem.open(Path(home) / "home") as stem:
        connection.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT, cents INTEGER)")
        for day in (1, 2):
            write(connection, chance)
            stem.run(flows, captures=captures, until="idle")
            expected = connection.execute("SELECT * FROM products ORDER BY id").fetchall()
            index = stem.search_index("products")
            stores = {"index": index, "lake": stem.delta(lake, key="id", name="lake"), "cache": stem.view("cache")}
            for name, store in stores.items():
                found = stem.compare(stem.topic("shop.products"), store)
                rows = [tuple(row.values()) for row in store.to_arrow().to_pylist()]
                if rows != expected or not found.equal:
                    sys.exit(f"different: {name} has {rows}, expected {expected}; {found}")
                print(f"day {day}: {name:5} {found.same} same, {found.changed} different", end="")
                print(f", version {store.status.version}" if name == "lake" else "")
            red = [row["id"] for row in index.search("red shoes", limit=100)]
            if sorted(red) != [row[0] for row in expected if row[1] == "red shoes"]:
                sys.exit(f"different: {red}")
            print(f"day {day}: {len(red)} red shoes in the index, of {len(expected)} products in the database")
            shutil.rmtree(lake)  # after the first day the lake is lost
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
