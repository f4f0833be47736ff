"""The queries of Nexmark: each once as plain Spark writes it, once as Mainstem does, and once for DuckDB, to check both.

A frame is a function of the inputs: streams of `people`, `auctions` and `bids`, and the table `side`. Ties are broken by the
larger auction or the later bid, so that an answer is the same in every run. To try another way to write a query, change its
`mainstem` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.nexmark_events import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK = "1 second"
SIDE_KEYS = 10_000

Inputs: TypeAlias = "Mapping[str, DataFrame]"
Frame: TypeAlias = "Callable[[Inputs], DataFrame]"


@dataclass(frozen=True)
class Query:
    """One query. `answer` is SQL over `people`, `auctions`, `bids` and `side`; columns that it lacks are not compared."""

    name: str
    title: str
    spark: Frame
    mainstem: Frame
    answer: str
    # What it reads, and whether with a watermark.
    reads: tuple[Kind, ...] = ("bids",)
    watermark: bool = False
    # What tells its rows apart. If rows are replaced (update mode), the last one with a key counts.
    key: tuple[str, ...] = ()
    updates: bool = False
    # Which rows are compared, as SQL. A watermark is the lowest of all partitions, so the last windows may still be open.
    compared: str = "TRUE"


def pass_through(inputs: Inputs) -> DataFrame:
    return inputs["bids"].select("auction", "bidder", "price", "at", "extra")


def conversion(inputs: Inputs) -> DataFrame:
    return inputs["bids"].selectExpr("auction", "bidder", "price * 0.908D AS price", "at", "extra")


def selection(inputs: Inputs) -> DataFrame:
    return inputs["bids"].where("auction % 123 = 0").select("auction", "price")


def people_of_three_states(inputs: Inputs) -> DataFrame:
    return inputs["people"].where("state IN ('OR', 'ID', 'CA')")


def local_sellers_by_spark(inputs: Inputs) -> DataFrame:
    people = people_of_three_states(inputs).selectExpr("id AS person", "name", "city", "state")
    sold = inputs["auctions"].where("category = 10").selectExpr("id AS auction", "seller")
    return people.join(sold, people["person"] == sold["seller"]).select("name", "city", "state", "auction")


def local_sellers(inputs: Inputs) -> DataFrame:
    from mainstem.operators import join

    people = people_of_three_states(inputs).selectExpr("id AS person", "name", "city", "state", "at", "record")
    sold = inputs["auctions"].where("category = 10").selectExpr("id AS auction", "seller", "at AS opened_at", "record")
    met = join(people, sold, on={"person": "seller"}, state="unbounded")
    return met.select("name", "city", "state", "auction")


def hot_items(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    from mainstem.operators import hopping, tumbling, windowed

    counts = windowed(
        inputs["bids"], hopping("10 seconds", slide="2 seconds"), by="auction", aggregates="count(*) AS bids"
    )
    # A window ends every two seconds: all counts of one window are in one of these.
    hot = windowed(counts, tumbling("2 seconds"), aggregates=F.max(F.struct("bids", "auction")).alias("hot"))
    return hot.selectExpr("window.end - INTERVAL 10 SECONDS AS started_at", "hot.auction", "hot.bids")


def hot_items_by_spark(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("at", "10 seconds", "2 seconds")
    counts = inputs["bids"].groupBy(window, "auction").agg(F.count("*").alias("bids"))
    hot = counts.groupBy("window").agg(F.max(F.struct("bids", "auction")).alias("hot"))
    return hot.selectExpr("window.start AS started_at", "hot.auction", "hot.bids")


def highest_bid(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    from mainstem.operators import tumbling, windowed

    bid = F.max(F.struct("price", "at", "auction", "bidder")).alias("bid")
    highest = windowed(inputs["bids"], tumbling("10 seconds"), aggregates=bid)
    return highest.selectExpr("window.start AS started_at", "bid.price", "bid.at", "bid.auction", "bid.bidder")


def highest_bid_by_spark(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    bid = F.max(F.struct("price", "at", "auction", "bidder")).alias("bid")
    highest = inputs["bids"].groupBy(F.window("at", "10 seconds")).agg(bid)
    return highest.selectExpr("window.start AS started_at", "bid.price", "bid.at", "bid.auction", "bid.bidder")


def new_sellers_by_spark(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    # Spark evicts the state of a join by windows only if it is told to join the windows themselves.
    window = F.window("at", "10 seconds")
    new = inputs["people"].select(F.col("id").alias("person"), "name", window.alias("since"))
    sold = inputs["auctions"].select("seller", window.alias("sold_since"))
    met = new.join(sold, (new["person"] == sold["seller"]) & (new["since"] == sold["sold_since"]))
    return met.selectExpr("person", "name", "since.start AS since")


def new_sellers(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    from mainstem.operators import join

    start = F.window("at", "10 seconds")["start"]
    new = inputs["people"].select(F.col("id").alias("person"), "name", "at", start.alias("since"), "record")
    sold = inputs["auctions"].select("seller", F.col("at").alias("opened_at"), start.alias("sold_since"), "record")
    met = join(new, sold, on={"person": "seller", "since": "sold_since"}, within="10 seconds")
    return met.select("person", "name", "since")


def bids_in_sessions(inputs: Inputs) -> DataFrame:
    from mainstem.operators import sessions, windowed

    counts = windowed(inputs["bids"], sessions("10 seconds"), by="bidder", aggregates="count(*) AS bids")
    return counts.selectExpr("bidder", "window.start AS started_at", "window.end AS ended_at", "bids")


def bids_in_sessions_by_spark(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    session = F.session_window("at", "10 seconds").alias("session")
    counts = inputs["bids"].groupBy(session, "bidder").agg(F.count("*").alias("bids"))
    return counts.selectExpr("bidder", "session.start AS started_at", "session.end AS ended_at", "bids")


def side_input(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    keyed = inputs["bids"].withColumn("side_key", F.expr(f"auction % {SIDE_KEYS}"))
    return keyed.join(F.broadcast(inputs["side"]), "side_key").select("auction", "bidder", "price", "at", "value")


def last_bids_by_spark(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    bids = inputs["bids"]
    last = bids.groupBy("bidder", "auction").agg(F.max_by(F.struct(*bids.columns), "at").alias("bid"))
    return last.select("bid.*")


def last_bids(inputs: Inputs) -> DataFrame:
    from mainstem.operators import table

    return table(inputs["bids"], key=["bidder", "auction"], order_by="at")


AUCTION_OF_A_BID = [
    "id", "item", "description", "first_bid", "reserve", "at AS opened_at", "closes_at", "seller", "category",
    "extra AS auction_extra",
]  # fmt: skip


def expanded_bids_by_spark(inputs: Inputs) -> DataFrame:
    auctions = inputs["auctions"].where("category = 10").selectExpr(*AUCTION_OF_A_BID)
    return inputs["bids"].join(auctions, inputs["bids"]["auction"] == auctions["id"])


def expanded_bids(inputs: Inputs) -> DataFrame:
    from mainstem.operators import join

    auctions = inputs["auctions"].where("category = 10").selectExpr(*AUCTION_OF_A_BID, "record")
    return join(inputs["bids"], auctions, on={"auction": "id"}, state="unbounded").drop("event_time", "record")


# DuckDB must be told that `at` is a column. In append mode a window is emitted when the watermark has passed its end: the
# last ones are not.
CLOSED = '(SELECT max("at") FROM bids) - INTERVAL 1 SECOND'

HOT_ITEMS_ANSWER = f"""
    WITH counts AS (
        SELECT time_bucket(INTERVAL 2 SECOND, "at") - step * INTERVAL 2 SECOND AS started_at, auction, count(*) AS bids
        FROM bids, range(5) AS steps(step) GROUP BY ALL
    ), hot AS (SELECT started_at, max((bids, auction)) AS hot FROM counts GROUP BY ALL)
    SELECT started_at, hot[2] AS auction, hot[1] AS bids FROM hot
    WHERE started_at + INTERVAL 10 SECOND <= {CLOSED}
"""
HIGHEST_BID_ANSWER = f"""
    WITH highest AS (
        SELECT time_bucket(INTERVAL 10 SECOND, "at") AS started_at, max({{p: price, a: "at", u: auction, b: bidder}}) AS bid
        FROM bids GROUP BY ALL
    ) SELECT started_at, bid.p AS price, bid.a AS "at", bid.u AS auction, bid.b AS bidder FROM highest
    WHERE started_at + INTERVAL 10 SECOND <= {CLOSED}
"""
NEW_SELLERS_ANSWER = """
    SELECT people.id AS person, name, time_bucket(INTERVAL 10 SECOND, people."at") AS since
    FROM people JOIN auctions ON people.id = seller
    AND time_bucket(INTERVAL 10 SECOND, people."at") = time_bucket(INTERVAL 10 SECOND, auctions."at")
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
EXPANDED_BIDS_ANSWER = """
    SELECT bids.*, item, description, first_bid, reserve, auctions."at" AS opened_at, closes_at, seller, category,
        auctions.extra AS auction_extra
    FROM bids JOIN auctions ON auction = id WHERE category = 10
"""

QUERIES: dict[str, Query] = {
    query.name: query
    for query in [
        Query(
            "q0", "pass-through", pass_through, pass_through,
            'SELECT auction, bidder, price, "at", extra FROM bids',
            key=("auction", "bidder", "price", "at"),
        ),
        Query(
            "q1", "projection", conversion, conversion,
            'SELECT auction, bidder, price::DOUBLE * 0.908::DOUBLE AS price, "at", extra FROM bids',
        ),
        Query("q2", "filter", selection, selection, "SELECT auction, price FROM bids WHERE auction % 123 = 0"),
        Query(
            "q3", "local sellers", local_sellers_by_spark, local_sellers,
            "SELECT name, city, state, auctions.id AS auction FROM people JOIN auctions ON people.id = seller "
            "WHERE category = 10 AND state IN ('OR', 'ID', 'CA')",
            reads=("people", "auctions"),
        ),
        Query("q5", "hot items", hot_items_by_spark, hot_items, HOT_ITEMS_ANSWER, watermark=True, key=("started_at",)),
        Query(
            "q7", "highest bid", highest_bid_by_spark, highest_bid, HIGHEST_BID_ANSWER,
            watermark=True, key=("started_at",),
        ),
        Query(
            "q8", "new sellers", new_sellers_by_spark, new_sellers, NEW_SELLERS_ANSWER,
            reads=("people", "auctions"), watermark=True,
        ),
        Query(
            "q11", "sessions", bids_in_sessions_by_spark, bids_in_sessions, SESSIONS_ANSWER, watermark=True,
            key=("bidder", "started_at"), compared=f"ended_at <= {CLOSED} - INTERVAL 0.1 SECOND",
        ),
        Query(
            "q13", "side input", side_input, side_input,
            f'SELECT auction, bidder, price, "at", value FROM bids JOIN side ON auction % {SIDE_KEYS} = side_key',
        ),
        Query(
            "q18", "last bids", last_bids_by_spark, last_bids,
            'SELECT bidder, auction, max("at") AS "at" FROM bids GROUP BY ALL',
            key=("bidder", "auction"), updates=True,
        ),
        Query(
            "q20", "expanded bids", expanded_bids_by_spark, expanded_bids, EXPANDED_BIDS_ANSWER,
            reads=("bids", "auctions"), key=("auction", "bidder", "price", "at"),
        ),
    ]
}  # fmt: skip
