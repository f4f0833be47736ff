"""The queries of Nexmark, each once for Spark, whoever reads and writes for it, and once for DuckDB, to check it.

The frames are the same for plain Spark and for Mainstem: bids in, rows out. Ties are broken by the larger auction or the
later bid, so that an answer is one and the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK = "1 second"
SIDE_KEYS = 10_000

# Rows that only pass through go nowhere; windows are kept by key; what is joined goes on as rows.
Target = Literal["nowhere", "table", "rows"]
Mode = Literal["append", "update"]


@dataclass(frozen=True)
class Query:
    """One query: `frame(bids, side)` for Spark, `answer` as SQL over `bids` and `side` for DuckDB."""

    name: str
    title: str
    frame: Callable[[DataFrame, DataFrame], DataFrame]
    answer: str
    target: Target
    mode: Mode = "append"
    key: tuple[str, ...] = ()

    @property
    def stateful(self) -> bool:
        return bool(self.key)


def pass_through(bids: DataFrame, side: DataFrame) -> DataFrame:
    return bids.select("auction", "bidder", "price", "at", "extra")


def conversion(bids: DataFrame, side: DataFrame) -> DataFrame:
    return bids.selectExpr("auction", "bidder", "price * 0.908D AS price", "at", "extra")


def selection(bids: DataFrame, side: DataFrame) -> DataFrame:
    return bids.where("auction % 123 = 0").select("auction", "price")


def hot_items(bids: DataFrame, side: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    counts = bids.groupBy(F.window("at", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("bids"))
    return (
        counts.groupBy("window")
        .agg(F.max(F.struct("bids", "auction")).alias("hot"))
        .selectExpr("window.start AS started_at", "hot.auction", "hot.bids")
    )


def highest_bid(bids: DataFrame, side: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    highest = bids.groupBy(F.window("at", "10 seconds")).agg(
        F.max(F.struct("price", "at", "auction", "bidder")).alias("bid")
    )
    return highest.selectExpr("window.start AS started_at", "bid.price", "bid.at", "bid.auction", "bid.bidder")


def sessions(bids: DataFrame, side: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    counts = bids.groupBy(F.session_window("at", "10 seconds"), "bidder").agg(F.count("*").alias("bids"))
    return counts.selectExpr("bidder", "session_window.start AS started_at", "session_window.end AS ended_at", "bids")


def side_input(bids: DataFrame, side: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keyed = bids.withColumn("side_key", F.expr(f"auction % {SIDE_KEYS}"))
    return keyed.join(F.broadcast(side), "side_key").select("auction", "bidder", "price", "at", "value")


# DuckDB must be told that `at` is a column. Of windows in append mode the watermark must have passed the end: they are shown once, and the last ones not at all.
CLOSED = '(SELECT max("at") FROM bids) - INTERVAL 1 SECOND'

HOT_ITEMS_ANSWER = f"""
    WITH counts AS (
        SELECT time_bucket(INTERVAL 2 SECOND, "at") - step * INTERVAL 2 SECOND AS started_at, auction, count(*) AS bids
        FROM bids, range(5) AS steps(step) GROUP BY ALL
    ), hot AS (SELECT started_at, max((bids, auction)) AS hot FROM counts GROUP BY ALL)
    SELECT started_at, hot[2] AS auction, hot[1] AS bids FROM hot
    WHERE started_at + INTERVAL 10 SECOND <= {CLOSED}
"""
HIGHEST_BID_ANSWER = """
    WITH highest AS (
        SELECT time_bucket(INTERVAL 10 SECOND, "at") AS started_at, max({p: price, a: "at", u: auction, b: bidder}) AS bid
        FROM bids GROUP BY ALL
    ) SELECT started_at, bid.p AS price, bid.a AS "at", bid.u AS auction, bid.b AS bidder FROM highest
"""
SESSIONS_ANSWER = f"""
    WITH marked AS (
        SELECT bidder, "at", "at" - lag("at") OVER bidders > INTERVAL 10 SECOND AS begins FROM bids
        WINDOW bidders AS (PARTITION BY bidder ORDER BY "at")
    ), numbered AS (
        SELECT bidder, "at", count(*) FILTER (begins) OVER (PARTITION BY bidder ORDER BY "at") AS number FROM marked
    ), found AS (
        SELECT bidder, min("at") AS started_at, max("at") + INTERVAL 10 SECOND AS ended_at, count(*) AS bids
        FROM numbered GROUP BY bidder, number
    ) SELECT * FROM found WHERE ended_at <= {CLOSED}
"""

QUERIES: dict[str, Query] = {
    query.name: query
    for query in [
        Query(
            "q0",
            "pass-through",
            pass_through,
            'SELECT auction, bidder, price, "at", extra FROM bids',
            "nowhere",
        ),
        Query(
            "q1",
            "projection",
            conversion,
            'SELECT auction, bidder, price::DOUBLE * 0.908::DOUBLE AS price, "at", extra FROM bids',
            "nowhere",
        ),
        Query("q2", "filter", selection, "SELECT auction, price FROM bids WHERE auction % 123 = 0", "nowhere"),
        Query("q5", "hot items", hot_items, HOT_ITEMS_ANSWER, "table", key=("started_at",)),
        Query("q7", "highest bid", highest_bid, HIGHEST_BID_ANSWER, "table", mode="update", key=("started_at",)),
        Query("q11", "sessions", sessions, SESSIONS_ANSWER, "table", key=("bidder", "started_at")),
        Query(
            "q13",
            "side input",
            side_input,
            f'SELECT auction, bidder, price, "at", value FROM bids JOIN side ON auction % {SIDE_KEYS} = side_key',
            "rows",
        ),
    ]
}
