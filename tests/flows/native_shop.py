"""A topic with a history in several sealed files of each partition, and flows whose answers depend on all that can go wrong
when it is read from files first: rows twice or not at all, changes to a key in another order, columns that came later.

Every flow goes into a sink named after a way (`native`, `plain`, `columnar`): the same program with the catch-up over files,
without it, and with rows that are computed by the reader of the topic, must give the same.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.flows.flow import Flow
from mainstem.log.topic import Topic

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = "id STRING, store STRING, amount INT, price DECIMAL(8,2), at TIMESTAMP"
LATER = "id STRING, store STRING, amount BIGINT, price DECIMAL(12,2), note STRING, at TIMESTAMP"
KEYS = 60
# True for every row; Spark must compute it, so the reader of the topic cannot compute the rows of the flow.
NOT_OVER_ARROW = "xxhash64(id) <> 0"
SINKS = ("last", "current", "counted", "copied", "kept")


class Shop:
    """Appends orders, some of them in transactions, of which some are aborted; deletes some; seals now and then."""

    def __init__(self, stem: Mainstem, seed: int, *, partitions: int = 3) -> None:
        self.chance = random.Random(seed)
        self.stem = stem
        self.topic: Topic = stem.create_topic("orders", schema=SCHEMA, key="id", event_time="at", partitions=partitions)
        for way in ("native", "plain", "columnar"):
            stem.create_topic(f"copied_{way}", schema="id STRING, amount BIGINT, price DECIMAL(16,2)", key="id")
        self._made = 0

    def rows(self, count: int) -> list[dict[str, Any]]:
        made = range(self._made, self._made + count)
        self._made += count
        # Most orders are of few keys: partitions of very different size.
        keys = [min(int(self.chance.expovariate(0.1)), KEYS - 1) for _ in made]
        return [
            {
                "id": f"o-{key}",
                "store": "ABC"[n % 3],
                "amount": n,
                "price": Decimal(n) + Decimal("0.25"),
                "at": NOON + timedelta(seconds=n),
            }
            for n, key in zip(made, keys, strict=True)
        ]

    def append(self, count: int) -> None:
        self.topic.append(self.rows(count - 6))
        for end in ("commit", "abort"):
            transaction = self.stem.transaction()
            transaction.append("orders", self.rows(3))
            getattr(transaction, end)()
        self.topic.delete([{"id": f"o-{self.chance.randrange(KEYS)}"}])

    def fill(self, segments: int, rows: int = 60) -> None:
        """So many sealed segments of each partition, half of them of an earlier schema, and a tail."""
        for number in range(segments):
            if number == segments // 2:
                self.topic.alter(schema=LATER)
            self.append(rows)
            self.topic.seal()
        self.append(rows)


def flows(stem: Mainstem, way: str, files: str, sinks: Sequence[str] = SINKS) -> Iterator[Flow]:
    """Into views (changes to a key in order; with deletions; counted), a topic and files."""
    for sink in sinks:
        orders = stem.topic("orders").stream(watermark="5 seconds" if sink == "kept" else None)
        if way != "columnar":
            orders = orders.where(NOT_OVER_ARROW)
        kept = orders.where("record.change <> 'delete'")
        if sink == "last":
            yield Flow(kept.select("id", "amount", "note"), into=stem.view(f"last_{way}", key="id"))
        elif sink == "current":
            yield Flow(orders, into=stem.view(f"current_{way}", key="id"))
        elif sink == "counted":
            counted = kept.groupBy("store").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
            yield Flow(counted, into=stem.view(f"counted_{way}", key="store"))
        elif sink == "copied":
            yield Flow(kept.selectExpr("id", "amount", "price * 2 AS price"), into=stem.topic(f"copied_{way}"))
        else:
            yield Flow(orders.where("amount % 2 = 0"), into=stem.files(f"{files}/{way}"), name=f"kept_{way}")


def answer(stem: Mainstem, way: str, files: str, sink: str) -> Any:
    """What a sink holds; of the topic each key's rows in the order in which it has them."""
    if sink == "copied":
        copied: dict[str, list[Any]] = {}
        for row in stem.topic(f"copied_{way}").to_arrow().to_pylist():
            copied.setdefault(row["id"], []).append((row["amount"], row["price"]))
        return copied
    if sink == "kept":
        rows = stem.files(f"{files}/{way}").to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
    return stem.view(f"{sink}_{way}").to_arrow().to_pylist()


def differences(stem: Mainstem, files: str, sinks: Sequence[str] = SINKS, way: str = "native") -> tuple[int, list[str]]:
    """How many rows were compared, and what a way gave that the plain one did not, or the reverse."""
    native, plain = ({sink: answer(stem, of, files, sink) for sink in sinks} for of in (way, "plain"))
    found = [
        f"{sink}: {len(native[sink])} against {len(plain[sink])} rows, e.g. {_first(native[sink], plain[sink])}"
        for sink in plain
        if native[sink] != plain[sink]
    ]
    return sum(len(rows) for rows in plain.values()), found


def _first(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        pairs = ((key, one.get(key), other.get(key)) for key in {*one, *other})
        return next((pair for pair in pairs if pair[1] != pair[2]), None)
    return next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), None)
