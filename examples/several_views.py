"""Deriving several views from the same event log.

One log of facts, and beside it as many read-optimized views as there are queries; another one can be added years later,
since the log still has everything. In Mainstem each is a *view* that a *flow* maintains. The fourth one below is built
from the whole history while the other three continue; then the page that read the first one reads it instead.
"""

import random
import sys
import tempfile
from collections import Counter

from pyspark.sql import functions as F

import mainstem
from mainstem import Flow

FRUITS = ["apple", "fig", "pear"]


def sales(first: int, end: int) -> list[dict]:
    chance = random.Random(first)
    return [
        {
            "sale": number,
            "fruit": chance.choice(FRUITS),
            "customer": chance.choice("abcde"),
            "pieces": chance.randint(-1, 9),
        }
        for number in range(first, end)
    ]


def three_views(stem: mainstem.Mainstem):
    sold = stem.topic("sales").stream()
    yield Flow(sold.groupBy("fruit").agg(F.count("*").alias("sales")), into=stem.view("per_fruit", key="fruit"))
    yield Flow(sold.groupBy("customer").agg(F.sum("pieces").alias("pieces")), into=stem.view("baskets", key="customer"))
    yield Flow(sold.where("pieces < 0"), into=stem.view("returned", key="sale"))


def four_views(stem: mainstem.Mainstem):
    yield from three_views(stem)
    kept = stem.topic("sales").stream().where("pieces > 0").groupBy("fruit").agg(F.sum("pieces").alias("pieces"))
    yield Flow(kept, into=stem.view("pieces_per_fruit", key="fruit"))


def main(home: str) -> None:
    with mainstem.open(home) as stem:
        topic = stem.create_topic("sales", schema="sale bigint, fruit string, customer string, pieces bigint")
        topic.append(sales(0, 400))
        stem.run(three_views, until="idle")
        topic.append(sales(400, 600))
        stem.run(four_views, until="idle")
        found = {name: [tuple(row.values()) for row in stem.view(name).to_arrow().to_pylist()] for name in stem.views()}

    facts = sales(0, 400) + sales(400, 600)
    pieces: Counter[str] = Counter()
    for sale in facts:
        pieces[sale["fruit"]] += max(sale["pieces"], 0)
    expected = {
        "per_fruit": sorted(Counter(sale["fruit"] for sale in facts).items()),
        "baskets": [(it, sum(sale["pieces"] for sale in facts if sale["customer"] == it)) for it in "abcde"],
        "returned": [tuple(sale.values()) for sale in facts if sale["pieces"] < 0],
        "pieces_per_fruit": sorted(pieces.items()),
    }
    print("sales of each fruit    ", found["per_fruit"])
    print("pieces of each customer", found["baskets"])
    print("returned               ", len(found["returned"]), "sales")
    print("added later, from all of them:", found["pieces_per_fruit"])
    if found != expected:
        sys.exit(f"different: {found}, expected {expected}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
