"""E2: views rebuilt at random points, several at once, equal the live ones and DuckDB's answer.

A rebuild is a query of its own: half a second of the processor and more. So a few run at a time, and those that are done
are let go of at once. Some of a round begin before rows are appended and get these while they run; the others find them
in the log. When both versions have come to rest, they are compared row by row, and with SQL over the log.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem.flows.flow import Flow
from mainstem.flows.rebuild import Rebuild
from mainstem.stem import Mainstem

pytestmark = pytest.mark.usefixtures("one_bucket")

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "order_id INT, store STRING, amount BIGINT, placed_at TIMESTAMP"
# Of a round: how many begin before the append, and how many run at a time after it.
BEFORE, AT_ONCE = 3, 3

Rows = list[dict[str, Any]]

# For each view its key, its rows, and the same in SQL.
VIEWS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "totals": (
        "store",
        lambda rows: rows.groupBy("store").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount")),
        "SELECT store, count(*) AS orders, sum(amount)::BIGINT AS amount FROM orders WHERE amount IS NOT NULL GROUP BY 1",
    ),
    "hours": (
        "hour",
        lambda rows: rows.groupBy(F.date_trunc("hour", "placed_at").alias("hour")).agg(F.max("amount").alias("most")),
        """SELECT time_bucket(INTERVAL 1 hour, placed_at) AS hour, max(amount) AS most FROM orders
           WHERE amount IS NOT NULL GROUP BY 1""",
    ),
    "latest": (
        "order_id",
        lambda rows: rows.select("order_id", "store", "amount", "record"),
        """SELECT order_id, arg_max(store, record.offset) AS store, arg_max(amount, record.offset) AS amount FROM orders
           GROUP BY 1 HAVING arg_max(record.change, record.offset) <> 'delete'""",
    ),
    "large": (
        "order_id",
        lambda rows: rows.where("amount >= 500").select("order_id", (F.col("amount") * 2).alias("twice"), "record"),
        "SELECT order_id, arg_max(amount, record.offset) * 2 AS twice FROM orders WHERE amount >= 500 GROUP BY 1",
    ),
    "places": (
        "store",
        lambda rows: rows.select("store", F.length("store").alias("letters")),
        "SELECT DISTINCT store, length(store)::INT AS letters FROM orders WHERE amount IS NOT NULL",
    ),
}


def program(*names: str, minimum: int = 0) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        for name in names:
            key, operator, _ = VIEWS[name]
            # A tombstone has nothing but its key: only a view that knows what to do with it gets it.
            rows = stem.topic("orders").stream()
            wanted = rows if name == "latest" else rows.where(f"amount >= {minimum}")
            yield Flow(operator(wanted), into=stem.view(name, key=key))

    return flows


class Shop:
    """Orders that are placed, changed and deleted."""

    def __init__(self, stem: Mainstem, chance: random.Random) -> None:
        self._topic = stem.create_topic("orders", schema=SCHEMA, key="order_id", partitions=2)
        self._chance = chance

    def go_on(self) -> None:
        chance = self._chance
        self._topic.append(
            {
                "order_id": chance.randrange(300),
                "store": "store " + "x" * chance.randrange(20),
                "amount": chance.randrange(1_000),
                "placed_at": START + timedelta(minutes=chance.randrange(3_000)),
            }
            for _ in range(chance.randrange(1, 200))
        )
        self._topic.delete([{"order_id": chance.randrange(300)} for _ in range(chance.randrange(1, 10))])


def rows_of(stem: Mainstem, name: str, version: int) -> Rows:
    view = stem.view(name)
    with view.snapshot(version) as snapshot:
        return _sorted(snapshot.to_arrow().to_pylist(), name)


def in_sql(stem: Mainstem, name: str) -> Rows:
    return _sorted(stem.query(VIEWS[name][2]).to_pylist(), name)


def _sorted(rows: Rows, name: str) -> Rows:
    return sorted(rows, key=lambda row: row[VIEWS[name][0]])


def differences(stem: Mainstem, rebuilds: Sequence[tuple[str, Rebuild]], expected: Mapping[str, Rows]) -> list[str]:
    """What is wrong with versions that have come to rest."""
    found = []
    for name, rebuild in rebuilds:
        live, rebuilt = rows_of(stem, name, rebuild.before), rows_of(stem, name, rebuild.version)
        difference = rebuild.difference()
        if (difference.changed, difference.added, difference.removed) != (0, 0, 0) or rebuilt != live:
            found.append(f"{name}, version {rebuild.version}: not the live one: {difference}")
        if rebuilt != expected[name]:
            found.append(f"{name}, version {rebuild.version}: {rebuilt} instead of {expected[name]}")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("rounds", "each"), [(2, 1), pytest.param(20, 2, marks=pytest.mark.long)])
def test_a_view_rebuilt_at_random_points_equals_the_live_one(
    stem: Mainstem, fault_report: Callable[..., None], rounds: int, each: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    shop = Shop(stem, chance)
    shop.go_on()
    wrong: list[str] = []
    with stem.start(program(*VIEWS)) as running, ThreadPoolExecutor(AT_ONCE) as pool:
        # A view can be rebuilt from its first batch on.
        running.wait_until_idle()
        for _ in range(rounds):
            names = [*VIEWS] * each
            chance.shuffle(names)
            with ExitStack() as opened:
                early = [(name, opened.enter_context(stem.rebuild(name, program(name)))) for name in names[:BEFORE]]
                shop.go_on()
                running.wait_until_idle()
                for _, rebuild in early:
                    rebuild.wait()
                expected = {name: in_sql(stem, name) for name in VIEWS}
                wrong += differences(stem, early, expected)

            def one(name: str, expected: dict[str, Rows] = expected) -> list[str]:
                with stem.rebuild(name, program(name)) as rebuild:
                    rebuild.wait()
                    return differences(stem, [(name, rebuild)], expected)

            for found in pool.map(one, names[BEFORE:]):
                wrong += found
    assert all([version.number for version in stem.view(name).versions()] == [1] for name in VIEWS)
    points = rounds * each * len(VIEWS)
    fault_report("E2", points=points, compared=points * 2, violations=wrong, seed=seed)


def test_a_rebuild_that_leaves_rows_out_is_noticed(stem: Mainstem) -> None:
    Shop(stem, random.Random(1)).go_on()
    stem.run(program("totals", "large"), until="idle")
    with ExitStack() as opened:
        rebuilds = [
            (name, opened.enter_context(stem.rebuild(name, program(name, minimum=600)))) for name in ("totals", "large")
        ]
        for _, rebuild in rebuilds:
            rebuild.wait()
        found = differences(stem, rebuilds, {name: in_sql(stem, name) for name, _ in rebuilds})
    assert [line.partition(",")[0] for line in found] == ["totals", "totals", "large", "large"]
