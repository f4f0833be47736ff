"""Streams joined with small tables, and unions of streams, over Arrow: the same as in Spark, in either way."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import Unavailable, summary_of
from mainstem.flows import program, runner
from mainstem.flows.packed_query import packed_query
from mainstem.flows.staged_batches import stages_of
from mainstem.log.activity import read_activity
from mainstem.operators import aggregate, dedupe, table, tumbling, windowed
from mainstem.operators.stage.packed_reader import packing_of, to_option
from mainstem.spark import look_up
from mainstem.spark.build import Build
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.columnar_rows import ColumnPacking, SendRows
from mainstem.spark.plan import static_table
from mainstem.spark.plan.plain_read import can_read_plainly, plain_reads, read_plainly
from mainstem.spark.spark_types import arrow_schema
from tests.waiting import wait_until

# Another NaN than that of Python.
ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [None, 0, 1, -1, 2**31, 2**63 - 1, -(2**63)]),
    "i": (pa.int32(), [None, 0, 1, -1, 2**31 - 1]),
    "x": (pa.float64(), [None, 0.0, -0.0, math.nan, ODD_NAN, math.inf, 1.5]),
    "f": (pa.float32(), [None, 0.0, -0.0, math.nan, -math.inf, 1.5]),
    "s": (pa.string(), [None, "", "a", "A", "ä", "a "]),
    "raw": (pa.binary(), [None, b"", b"\x00", b"a"]),
    "m": (pa.decimal128(8, 2), [None, Decimal("0.00"), Decimal("1.50"), Decimal("-999999.99")]),
    "d": (pa.date32(), [None, date(1970, 1, 1), date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [None, datetime(1969, 12, 31, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]),
    "yes": (pa.bool_(), [None, True, False]),
}  # fmt: skip
SQL = "n BIGINT, i INT, x DOUBLE, f FLOAT, s STRING, raw BINARY, m DECIMAL(8, 2), d DATE, at TIMESTAMP, yes BOOLEAN"


def some_rows(count: int, seed: int, prefix: str = "") -> pa.Table:
    chance = random.Random(seed)
    columns = {
        f"{prefix}{name}": pa.array([chance.choice(edges) for _ in range(count)], kind)
        for name, (kind, edges) in EDGES.items()
    }
    return pa.table(columns)


NAMES = ("sold", "regions", "last_packed", "last_by_spark")

Join = Callable[[DataFrame, DataFrame], DataFrame]

# Of a stream (or the same rows in Spark) with a table whose columns have names that begin with `t_`.
JOINS: dict[str, Join] = {
    "whole numbers": lambda rows, table: rows.join(table, rows["n"] == table["t_n"]),
    "of different types": lambda rows, table: rows.join(table, rows["i"] == table["t_n"], "left"),
    "real numbers": lambda rows, table: rows.join(table, rows["x"] == table["t_x"], "left"),
    "single precision": lambda rows, table: rows.join(table, rows["f"] == table["t_f"]).select("n", "f", "t_f", "t_s"),
    "text on the other side": lambda rows, table: table.join(rows, table["t_s"] == rows["s"], "right"),
    "several keys": lambda rows, table: rows.join(
        table, (rows["s"] == table["t_s"]) & (rows["yes"] == table["t_yes"]) & (table["t_x"] == rows["x"]), "left"
    ),
    "bytes, decimals, dates, times": lambda rows, table: rows.join(
        table,
        (rows["raw"] == table["t_raw"]) & (rows["m"] == table["t_m"]) & (rows["d"] == table["t_d"])
        & (rows["at"] == table["t_at"]),
    ),
    "with a match": lambda rows, table: rows.join(table, rows["i"] == table["t_i"], "left_semi"),
    "without a match": lambda rows, table: rows.join(table.where("t_n = 1"), rows["n"] == table["t_n"], "left_anti"),
    "with another condition": lambda rows, table: rows.join(
        table, (rows["s"] == table["t_s"]) & (rows["x"] < table["t_x"])
    ),
    "a key that spark computes": lambda rows, table: rows.join(table, rows["s"] == F.upper(table["t_s"]), "left"),
    "filtered, twice": lambda rows, table: (
        rows.where("i >= 0").join(table.select("t_s", "t_i"), rows["s"] == table["t_s"]).where("t_i < i + 1L")
        .join(table.selectExpr("t_n AS u_n", "t_m AS u_m").where("u_m > 0"), F.col("t_i") == F.col("u_n"), "left")
        .selectExpr("n", "t_i + 1L AS more", "coalesce(u_m, m) AS m")
    ),
}  # fmt: skip


def over_arrow(rows: DataFrame, table: pa.Table) -> pa.Table:
    """The rows of a stream, computed as its reader would, from a text."""
    [read] = plain_reads(rows)
    steps, schema = read.steps, arrow_schema(rows.schema).remove_metadata()
    packing = ColumnPacking(read.schema, steps.columns, steps.condition, schema, SendRows(), steps.look_ups)
    results = packing_of(to_option(packing)).pack(table.to_batches(max_chunksize=120))
    values = [value.as_buffer() for result in results for value in result.column(1)]
    return pa.concat_tables([schema.empty_table(), *(pa.ipc.open_stream(it).read_all() for it in values if it.size)])


def shown(rows: pa.Table) -> list[str]:
    return [repr(row) for row in rows.to_pylist()]


def test_a_join_with_a_table_gives_what_spark_gives(stem: Mainstem, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order: Spark sends such a table to all tasks."""
    stem.create_topic("orders", schema=SQL)
    stream = stem.topic("orders").stream().drop("record")
    rows, side_rows = some_rows(300, 1), some_rows(40, 2, "t_")
    frame, side = stem.spark.createDataFrame(rows), stem.spark.createDataFrame(side_rows)
    empty = stem.spark.createDataFrame([], side.schema)
    for name, join in JOINS.items():
        ours, theirs = over_arrow(join(stream, side), rows), join(frame, side).toArrow()
        assert ours.num_rows, name
        assert shown(ours) == shown(theirs.cast(ours.schema)), name
        assert can_read_plainly(join(stream, side)), name
    for name in ("real numbers", "whole numbers", "without a match"):
        ours = over_arrow(JOINS[name](stream, empty), rows)
        assert sorted(shown(ours)) == sorted(shown(JOINS[name](frame, empty).toArrow().cast(ours.schema))), name
    joined = JOINS["several keys"](stream, side)
    whole = over_arrow(joined, rows)
    # One row after the other.
    monkeypatch.setattr(look_up, "BYTES_AT_ONCE", 1)
    assert shown(over_arrow(joined, rows)) == shown(whole)


def test_which_joins_are_left_to_spark(stem: Mainstem, tmp_path: Any) -> None:
    stem.create_topic("orders", schema=f"{SQL}, many ARRAY<INT>")
    spark, rows = stem.spark, stem.topic("orders").stream()
    side = spark.createDataFrame(some_rows(3, 2, "t_"))
    by_number = rows["n"] == side["t_n"]
    path = tmp_path / "side.parquet"
    pq.write_table(pa.table({"t_n": [1]}), path)
    gone = spark.read.parquet(str(path))
    path.unlink()
    lines = spark.createDataFrame(spark.sparkContext.textFile(__file__).map(lambda line: (1,)), "t_n BIGINT")
    cached = spark.createDataFrame(pa.table({"t_n": [7]})).cache()
    large = f"a join with a table of more than {static_table.ROWS_MAX:,} rows or 16 MB"
    refused = [
        ("a join without equal keys", rows.join(side, rows["n"].eqNullSafe(side["t_n"]))),
        ("(x < t_x)", rows.join(side, by_number & (rows["x"] < side["t_x"]), "left")),
        ("Join FULL OUTER", rows.join(side, by_number, "full")),
        ("Join CROSS", rows.crossJoin(side)),
        ("Join", rows.join(stem.topic("orders").stream().select(F.col("n").alias("o")), F.col("o") == rows["i"])),
        ("a join behind a column that can fail", rows.withColumn("more", F.col("n") + 1).join(side, by_number)),
        (large, rows.join(spark.range(static_table.ROWS_MAX + 1), F.col("id") == rows["n"])),
        (large, rows.join(spark.range(10**9), F.col("id") == rows["n"])),
        ("a join with a table that may differ in every batch", rows.join(side.where("rand() < 0.5"), by_number)),
        ("a join with a table that has a query within an expression",
         rows.join(side.where("t_i < (SELECT max(id) FROM range(3))"), by_number)),
        ("a join with a table that may change (LogicalRDD)", rows.join(lines, F.col("t_n") == rows["n"])),
        ("a join with a table that cannot be read", rows.join(gone, F.col("t_n") == rows["n"])),
        ("a join with a table that has the type array<bigint>",
         rows.join(side.withColumn("all", F.array("t_n")), by_number)),
        ("a join with a cached table", rows.join(cached, F.col("t_n") == rows["n"])),
        ("initcap(s)", rows.join(side, F.initcap(rows["s"]) == side["t_s"])),
        ("Union", rows.union(rows)),
    ]  # fmt: skip
    found = [read_plainly(joined) for _, joined in refused]
    cached.unpersist()
    assert found == [reason for reason, _ in refused]


def test_rows_of_one_position_are_packed_where_their_order_is_that_of_spark(stem: Mainstem) -> None:
    for name in ("orders", "returns"):
        stem.create_topic(name, schema="id INT, at TIMESTAMP", event_time="at")
    one, two = (stem.spark.createDataFrame(pa.table({"t": pa.array(ids, pa.int32())})) for ids in ([1, 2], [1, 1]))

    def is_packed(operator: Callable[[DataFrame], DataFrame], side: DataFrame | None = None) -> bool:
        build = Build()
        with build.enter():
            orders, returns = (stem.topic(name).stream(watermark="1 minute") for name in ("orders", "returns"))
            joined = orders.union(returns) if side is None else orders.join(side, orders["id"] == side["t"]).drop("t")
            stages = stages_of(operator(joined), build.stages, "flow")
            return packed_query(stages, {stages[0].name: 2}) is not None

    windows: Any = lambda rows: windowed(rows, tumbling("1 minute"), by="id", aggregates="count(*) AS n")  # noqa: E731
    deduped: Any = lambda rows: dedupe(rows, by="id", within="1 minute")  # noqa: E731
    assert [is_packed(windows), is_packed(windows, two), is_packed(windows, one)] == [False, False, True]
    assert [is_packed(deduped), is_packed(deduped, two), is_packed(deduped, one)] == [True, True, True]


def test_a_flow_goes_on_with_look_ups_and_unions_over_arrow_and_in_spark(
    stem: Mainstem, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one checkpoint in turns; then the file of the table is written again while the flows run."""
    for name in ("web", "shop"):
        # With one partition, rows of both have the same positions.
        stem.create_topic(name, schema="store INT, cents BIGINT")
    stores = str(tmp_path / "stores of all.parquet")
    regions = [(1, "north"), (2, "south"), (2, "west"), (None, "none")]

    def write(pairs: list[tuple[int | None, str]]) -> None:
        pq.write_table(
            pa.table({"id": pa.array([it for it, _ in pairs], pa.int32()), "region": [it for _, it in pairs]}), stores
        )

    def united(stem: Mainstem) -> DataFrame:
        web = stem.topic("web").stream().where("cents > 10").select("store", "cents", "record")
        shop = stem.topic("shop").stream().selectExpr("store", "cents - 0.5D AS cents", "record")
        side = stem.spark.read.parquet(stores)
        both = web.withColumn("cents", F.col("cents").cast("double")).union(shop)
        return both.join(F.broadcast(side), both["store"] == side["id"], "left").drop("id")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(united(stem).select("store", "cents", "region"), into=stem.topic("sold"))
        kept = united(stem).where("region <> 'none'")
        yield Flow(
            aggregate(kept, by="region", aggregates="sum(cents) AS cents"), into=stem.view("regions", key="region")
        )
        for name in ("last_packed", "last_by_spark"):
            last = table(united(stem).withColumn("n", F.ceil("cents")), key="n", name=name)
            yield Flow(last.drop("record"), into=stem.view(name, key="n"))

    expected: list[tuple[int | None, float, str | None]] = []
    columns, packed = program.takes_columns, program.packed_query
    told = []

    def append(first: int) -> None:
        for name in ("web", "shop"):
            rows = [{"store": [None, 1, 2, 3][n % 4], "cents": n} for n in range(first, first + 40)]
            stem.topic(name).append(rows)
            for row in rows:
                cents = float(row["cents"]) if name == "web" else row["cents"] - 0.5
                there = [region for it, region in regions if it is not None and it == row["store"]] or [None]
                if name == "shop" or row["cents"] > 10:
                    expected.extend((row["store"], cents, region) for region in there)

    write(regions)
    for part, way in enumerate("psp"):
        for module in (program, runner):
            monkeypatch.setattr(module, "takes_columns", columns if way == "p" else lambda flow: False)
        pack = lambda stages, *more: packed(stages, *more) if stages[0].name != "last_by_spark" else None  # noqa: E731
        monkeypatch.setattr(program, "packed_query", pack if way == "p" else lambda *_: None)
        append(part * 40)
        with stem.start(flows) as running:
            running.wait_until_idle()
            told.append([FlowStore(stem.home, name).of_version(1)["columns"] for name in NAMES])
            if part == 2:
                regions[0] = (1, "east")
                write(regions)
                append(120)
                running.wait_until_idle()
    sold = [(row["store"], row["cents"], row["region"]) for row in stem.topic("sold").to_arrow().to_pylist()]
    assert Counter(sold) == Counter(expected)
    sums: Counter[str] = Counter()
    for _, cents, region in expected:
        sums.update({region: cents} if region is not None else {})
    assert {row["region"]: row["cents"] for row in stem.view("regions").to_arrow().to_pylist()} == sums
    last = [stem.view(name).to_arrow().sort_by("n").to_pylist() for name in NAMES[2:]]
    # Of rows of one batch with one position a hash of the row tells which is the last.
    assert last[0][:120] == last[1][:120]
    # What was appended while the flows ran may reach each of them in two batches: between topics there is no order.
    for rows in last:
        assert [row["n"] for row in rows] == list(range(160))
        assert {(row["store"], row["cents"], row["region"]) for row in rows} <= set(expected)
    packed_all = [
        "from shop, web to topic sold", "from web, shop to aggregate-0, from aggregate-0 to view regions",
        "from web, shop to last_packed, from last_packed to view last_packed",
    ]  # fmt: skip
    assert told[0][:3] == told[2][:3] == packed_all
    assert told[1][:2] == ["no: topic sold takes rows", "no: Spark computes Union"]


@pytest.mark.parametrize("read", ["over arrow", "in spark"])
def test_a_table_that_is_away_for_a_moment_is_waited_for(stem: Mainstem, tmp_path: Any, read: str) -> None:
    stem.create_topic("orders", schema="store STRING")
    path = tmp_path / "all stores.csv"
    path.write_text("A,Aachen\n")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        side = stem.spark.read.csv(str(path), schema="store STRING, city STRING")
        rows = (
            stem.topic("orders").stream().select("store" if read == "over arrow" else F.initcap("store").alias("store"))
        )
        yield Flow(rows.join(side, "store"), into=stem.topic("out"))

    with stem.start(flows) as running:
        stem.topic("orders").append([{"store": "A"}])
        running.wait_until_idle()
        path.unlink()
        stem.topic("orders").append([{"store": "A"}])
        wait_until(lambda: running["out"].state == "waiting to restart")
        wait_until(lambda: str(path) in summary_of(running["out"].retried_after))
        path.write_text("A,Aalen\n")
        running.wait_until_idle()
    assert [row["city"] for row in stem.topic("out").to_arrow().to_pylist()] == ["Aachen", "Aalen"]
    happened = list(read_activity(stem.log, 0, {"out"}))
    # One wait, however often it tried.
    assert [row["what"] for row in happened] == ["begun", "waiting", "restarted", "ended"]
    assert all(happened[1][part] for part in ("text", "detail", "hint"))
    path.unlink()
    with pytest.raises(Unavailable) as missing:
        stem.start(flows)
    assert missing.value.parts() == [
        f'the program reads "{path}", which does not exist',
        "Detail: It may have been removed, or is being written again.",
        "Hint: Write the file, or correct the path. A flow that already runs retries until it is there.",
    ]
