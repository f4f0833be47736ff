"""Joins by Spark itself and by Mainstem over the same topics: `python -m benchmarks.joins_program QUERY SIDE --events N`.

QUERY is q3, q8 or q20 of Nexmark; SIDE is rocksdb or memory (Spark's own join, on either of its stores) or ours. Events are
appended in parts of about a hundred thousand, and each part is waited for, so that both sides have the same batches. Runs twice
in one session, measures the second time and prints what it used; the facts have a sum over the rows that both must agree on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import mainstem
from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark import SCHEMAS, Nexmark
from benchmarks.nexmark_queries import WATERMARK
from benchmarks.windows_program import Kept
from mainstem.flows.flow import Flow
from mainstem.operators import join
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART = 100_000
STORES = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
# Which topics a query reads, and which column of its rows is added up.
QUERIES = {
    "q3": (("people", "auctions"), "auction"),
    "q8": (("people", "auctions"), "person"),
    "q20": (("bids", "auctions"), "price"),
}


def sides(stem: Mainstem, query: str, names: dict[str, str]) -> tuple[DataFrame, DataFrame, dict[str, str]]:
    """The two sides of a query, with names of their own, and by what they are joined."""
    from pyspark.sql import functions as F

    auctions = stem.topic(names["auctions"]).stream(watermark=WATERMARK)
    if query == "q20":
        bids = stem.topic(names["bids"]).stream(watermark=WATERMARK)
        named = auctions.where("category = 10").selectExpr(
            "id", "item", "description", "first_bid", "reserve", "at AS opened_at", "closes_at", "seller", "category",
            "extra AS auction_extra", "record",
        )  # fmt: skip
        return bids, named, {"auction": "id"}
    people = stem.topic(names["people"]).stream(watermark=WATERMARK)
    if query == "q3":
        chosen = people.where("state IN ('OR', 'ID', 'CA')").selectExpr(
            "id AS person", "name", "city", "state", "at", "record"
        )
        sold = auctions.where("category = 10").selectExpr("id AS auction", "seller", "at AS opened_at", "record")
        return chosen, sold, {"person": "seller"}
    window = F.window("at", "10 seconds")["start"]
    new = people.select(F.col("id").alias("person"), "name", "at", window.alias("since"), "record")
    sold = auctions.select("seller", F.col("at").alias("opened_at"), window.alias("sold_since"), "record")
    return new, sold, {"person": "seller", "since": "sold_since"}


def by_spark(left: DataFrame, right: DataFrame, on: dict[str, str]) -> DataFrame:
    """As Spark joins streams."""
    met = [left[mine] == right[other] for mine, other in on.items()]
    return left.drop("record").join(right.drop("record"), met, "inner")


def by_mainstem(left: DataFrame, right: DataFrame, on: dict[str, str]) -> DataFrame:
    """As the operator joins them: of one window within its length, else without a bound."""
    if "since" in on:
        return join(left, right, on=on, within="10 seconds")
    return join(left, right, on=on, state="unbounded")


class Feed:
    """The topics of one run, appended to part by part."""

    def __init__(self, stem: Mainstem, query: str, run: str, market: Nexmark) -> None:
        self.stem = stem
        self.market = market
        self.names = {kind: f"{kind}_{run}" for kind in QUERIES[query][0]}
        for kind, name in self.names.items():
            stem.create_topic(name, schema=SCHEMAS[kind], event_time="at", partitions=2)  # type: ignore[index]

    def parts(self) -> Iterator[int]:
        """Append the next part; how many rows it has."""
        for start in range(0, self.market.events, PART):
            appended = 0
            for kind, name in self.names.items():
                ends = [Nexmark(events=at).count(kind) for at in (start, min(start + PART, self.market.events))]  # type: ignore[arg-type]
                rows = self.market.rows(kind, *ends)  # type: ignore[arg-type]
                self.stem.topic(name).append(pa.Table.from_batches([rows]))
                appended += rows.num_rows
            yield appended


def run_once(stem: Mainstem, query: str, side: str, name: str, market: Nexmark) -> tuple[int, list[pa.Table]]:
    """All events through a join; how many rows came in, and what came out."""
    feed = Feed(stem, query, name, market)
    if side == "ours":
        sink = Kept(name)

        def flows(stem: Mainstem) -> Iterator[Flow]:
            yield Flow(by_mainstem(*sides(stem, query, feed.names)), into=sink)

        with stem.start(flows) as running:
            rows = sum(_waited(count, running.wait_until_idle) for count in feed.parts())
        return rows, sink.tables
    tables: list[pa.Table] = []
    stem.spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[side])
    with tempfile.TemporaryDirectory(dir=stem.home) as folder:
        writer = by_spark(*sides(stem, query, feed.names)).writeStream.option("checkpointLocation", folder)
        started = writer.foreachBatch(lambda rows, number: tables.append(rows.toArrow())).start()
        rows = sum(_waited(count, started.processAllAvailable) for count in feed.parts())
        started.stop()
    return rows, tables


def _waited(count: int, wait: Callable[[], Any]) -> int:
    wait()
    return count


def measure(stem: Mainstem, query: str, side: str, events: int) -> Measured:
    _ = stem.spark
    with Stopwatch() as warm_up:
        run_once(stem, query, side, "warm_up", Nexmark(events=min(events, 4 * PART)))
    with Stopwatch() as watch:
        rows, tables = run_once(stem, query, side, "measured", Nexmark(events=events))
    column = QUERIES[query][1]
    total = sum(pc.sum(table.column(column)).as_py() or 0 for table in tables)
    pairs = sum(table.num_rows for table in tables)
    batches = sum(table.num_rows > 0 for table in tables)
    return watch.measured(
        rows, warm_up_cpu_seconds=warm_up.cpu_seconds, pairs=pairs, total=float(total % 2**53), batches=batches
    )


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins_program", description=(__doc__ or ""))
    parser.add_argument("query", choices=list(QUERIES))
    parser.add_argument("side", choices=[*STORES, "ours"])
    parser.add_argument("--events", type=int, default=2_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mainstem-joins-") as home, mainstem.open(home, upkeep="manual") as stem:
        tell(measure(stem, arguments.query, arguments.side, arguments.events))


if __name__ == "__main__":
    main()
