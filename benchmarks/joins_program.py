"""Joins by Spark itself and by Mainstem over the same topics: `python -m benchmarks.joins_program QUERY SIDE --rows N`.

QUERY is q3, q8, q18 or q20 of Nexmark; SIDE is rocksdb or memory (Spark's own operator, on either of its stores) or ours. Rows of
the query's topics are appended in parts of a hundred thousand (`--part`), and each part is waited for, so that both sides have the
same batches; with `--behind` all of them are there before the query begins. Runs twice in one session, measures the second time and prints
what it used; the facts have a sum over the rows that both must agree on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import mainstem
from benchmarks import process_tree
from benchmarks.measured_run import Measured, Stopwatch, tell
from benchmarks.nexmark import SCHEMAS, Kind, Nexmark
from benchmarks.nexmark_queries import WATERMARK
from benchmarks.windows_program import Kept
from mainstem.flows.flow import Flow
from mainstem.operators import join, table
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART = 100_000
STORES = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
# Which topics a query reads, and which column of its rows is added up.
QUERIES: dict[str, tuple[tuple[Kind, ...], str]] = {
    "q3": (("people", "auctions"), "auction"),
    "q8": (("people", "auctions"), "person"),
    "q18": (("bids",), "at"),
    "q20": (("bids", "auctions"), "price"),
}
# Of the latest bid of a bidder in an auction.
PAIR = ["bidder", "auction"]


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


def by_spark(stem: Mainstem, query: str, names: dict[str, str]) -> DataFrame:
    """As Spark joins streams, and keeps the latest."""
    from pyspark.sql import functions as F

    if query == "q18":
        bids = stem.topic(names["bids"]).stream(watermark=WATERMARK).drop("record")
        latest = bids.groupBy(*PAIR).agg(F.max_by(F.struct(*bids.columns), "at").alias("bid"))
        return latest.select("bid.*")
    left, right, on = sides(stem, query, names)
    met = [left[mine] == right[other] for mine, other in on.items()]
    return left.drop("record").join(right.drop("record"), met, "inner")


def by_mainstem(stem: Mainstem, query: str, names: dict[str, str]) -> DataFrame:
    """As the operators do: rows of one window within its length, else without a bound."""
    if query == "q18":
        return table(stem.topic(names["bids"]).stream(watermark=WATERMARK), key=PAIR, order_by="at")
    left, right, on = sides(stem, query, names)
    if "since" in on:
        return join(left, right, on=on, within="10 seconds")
    return join(left, right, on=on, state="unbounded")


class Feed:
    """The topics of one run, appended to part by part."""

    def __init__(self, stem: Mainstem, query: str, run: str, rows: int, part: int = PART) -> None:
        self.stem = stem
        # Of all events only some are in these topics.
        of_a_thousand = sum(Nexmark(events=1_000).count(kind) for kind in QUERIES[query][0])
        self.market = Nexmark(events=rows * 1_000 // of_a_thousand)
        self.part = part * 1_000 // of_a_thousand
        # Whatever is appended at once comes in batches as large as the flow takes them.
        self.appended = 0
        self.names = {kind: f"{kind}_{run}" for kind in QUERIES[query][0]}
        for kind, name in self.names.items():
            stem.create_topic(name, schema=SCHEMAS[kind], event_time="at", partitions=2)

    def parts(self) -> Iterator[int]:
        """Append the next part; how many rows it has."""
        for start in range(0, self.market.events, self.part):
            appended = 0
            for kind, name in self.names.items():
                ends = [Nexmark(events=at).count(kind) for at in (start, min(start + self.part, self.market.events))]
                rows = self.market.rows(kind, *ends)
                self.stem.topic(name).append(pa.Table.from_batches([rows]))
                appended += rows.num_rows
            yield appended

    def append_all(self) -> None:
        """Append all parts, before anybody reads them."""
        self.appended = sum(self.parts())

    def through(self, wait: Callable[[], Any]) -> int:
        """Append part by part, and wait for each; how many rows there were."""
        if self.appended:
            wait()
            return self.appended
        rows = 0
        for count in self.parts():
            wait()
            rows += count
        return rows


def run_once(stem: Mainstem, query: str, side: str, name: str, feed: Feed) -> tuple[int, list[pa.Table]]:
    """All events through a query; how many rows came in, and what came out."""
    if side == "ours":
        sink = Kept(name)

        def flows(stem: Mainstem) -> Iterator[Flow]:
            yield Flow(by_mainstem(stem, query, feed.names), into=sink)

        with stem.start(flows) as running:
            rows = feed.through(running.wait_until_idle)
        return rows, sink.tables
    tables: list[pa.Table] = []
    stem.spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[side])
    with tempfile.TemporaryDirectory(dir=stem.home) as folder:
        writer = by_spark(stem, query, feed.names).writeStream.option("checkpointLocation", folder)
        writer = writer.outputMode("update" if query == "q18" else "append")
        started = writer.foreachBatch(lambda rows, number: tables.append(rows.toArrow())).start()
        rows = feed.through(started.processAllAvailable)
        started.stop()
    return rows, tables


def answer(query: str, tables: list[pa.Table]) -> dict[str, float]:
    """How many rows there are at the end, and a sum over them."""
    if query == "q18":
        tables = [_last_of_each(tables)]
    column = QUERIES[query][1]
    values = [table.column(column) for table in tables]
    values = [it.cast(pa.int64()) if pa.types.is_timestamp(it.type) else it for it in values]
    total = sum(pc.sum(it).as_py() or 0 for it in values)
    return {"pairs": sum(it.num_rows for it in tables), "total": float(total % 2**53)}


def _last_of_each(tables: list[pa.Table]) -> pa.Table:
    """The row of each pair that came last; of rows put in and taken away those that are put in."""
    names = [*PAIR, "at"]
    whole = pa.concat_tables(
        [
            it.filter(pc.not_equal(pc.struct_field(it.column("record"), "change"), "delete")).select(names)
            if "record" in it.schema.names
            else it.select(names)
            for it in tables
        ]
    )
    ids = np.asarray(whole.column(PAIR[0])) * 2**31 + np.asarray(whole.column(PAIR[1]))
    _, last = np.unique(ids[::-1], return_index=True)
    return whole.take(pa.array(len(ids) - 1 - last))


def measure(stem: Mainstem, query: str, side: str, rows: int, part: int = PART, *, behind: bool = False) -> Measured:
    _ = stem.spark
    feeds = {name: Feed(stem, query, name, rows, part) for name in ("warm_up", "measured")}
    if behind:
        for feed in feeds.values():
            feed.append_all()
    with Stopwatch() as warm_up:
        run_once(stem, query, side, "warm_up", feeds["warm_up"])
    with Stopwatch() as watch:
        rows, tables = run_once(stem, query, side, "measured", feeds["measured"])
    batches = sum(it.num_rows > 0 for it in tables)
    return watch.measured(rows, warm_up_cpu_seconds=warm_up.cpu_seconds, batches=batches, **answer(query, tables))


def main() -> None:
    process_tree.adopt_orphans()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins_program", description=(__doc__ or ""))
    parser.add_argument("query", choices=list(QUERIES))
    parser.add_argument("side", choices=[*STORES, "ours"])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--part", type=int, default=PART)
    parser.add_argument("--behind", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mainstem-joins-") as home, mainstem.open(home, upkeep="manual") as stem:
        found = measure(stem, arguments.query, arguments.side, arguments.rows, arguments.part, behind=arguments.behind)
        tell(found)


if __name__ == "__main__":
    main()
