"""Topics read and prepared by their readers for a stage: which streams are, and that nobody can tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.flows import program, staged_batches
from mainstem.flows.packed_query import packed_query
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.operators import (
    Process,
    aggregate,
    dedupe,
    distinct,
    hopping,
    join,
    process,
    sessions,
    top,
    tumbling,
    windowed,
)
from mainstem.operators.stage.keyed_rows import arrow_tie, can_tie, native_hashes, native_tie
from mainstem.operators.stage.packed_rows import Packing
from mainstem.operators.stage.spark_hashes import buckets_of, hashable, identify_keys
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.plain_read import plain_reads, read_plainly
from mainstem.spark.plan.row_expression import value_of
from mainstem.stem import Mainstem as Stem
from tests.flows.memory_sink import MemorySink

READ_BETWEEN = staged_batches._read_between
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def values(count: int) -> pa.Table:
    """All types that are hashed without Spark, with nulls in all of them."""
    chance = np.random.default_rng(5)
    whole = chance.integers(-(2**63), 2**63 - 1, count)
    texts = ["ä€z"[: number % 4] * (number % 23) for number in range(count)]
    edges = np.resize([-0.0, np.nan, np.inf, 0.0, -np.nan, -np.inf], count)
    odd = np.where(whole % 3, whole / 7, edges)
    columns = {
        "long": pa.array(whole), "int": pa.array(whole.astype(np.int32)), "short": pa.array(whole.astype(np.int16)),
        "byte": pa.array(whole.astype(np.int8)), "flag": pa.array(whole > 0), "text": pa.array(texts),
        "bytes": pa.array([text.encode() for text in texts], pa.binary()),
        "day": pa.array(whole.astype(np.int32) // 10_000).cast(pa.date32()),
        "at": pa.array(whole // 1_000).cast(pa.timestamp("us", "UTC")),
        "float": pa.array(odd.astype(np.float32)), "double": pa.array(odd),
        "decimal": pa.array([Decimal(int(number) % 10**17 - 10**16).scaleb(-2) for number in whole], pa.decimal128(18, 2)),
    }  # fmt: skip
    known = pa.array(chance.random(count) > 0.1)
    return pa.table({name: pa.array(column.to_pylist(), column.type, mask=np.asarray(~np.asarray(known)))
                     if name != "day" else column for name, column in columns.items()})  # fmt: skip


def test_a_row_has_the_group_and_the_bucket_that_spark_gives_it(spark: SparkSession) -> None:
    rows = values(500)
    assert all(hashable(kind) for kind in rows.schema.types)
    assert not hashable(pa.decimal128(19, 2))
    frame = spark.createDataFrame(rows)
    for keys in (*([name] for name in rows.schema.names), rows.schema.names):
        theirs = frame.select(*native_hashes(rows.schema, keys)).toArrow()
        group, check = identify_keys([rows.column(name).combine_chunks() for name in keys], rows.num_rows)
        assert theirs.column("group").to_pylist() == group.tolist(), keys
        assert theirs.column("check").to_pylist() == check.tolist(), keys
    # A hash of the whole row, with structs in it.
    known = np.arange(500) % 3 == 0
    parts = [rows.column(name).combine_chunks() for name in ("text", "long")]
    inner = pa.StructArray.from_arrays(parts, ["text", "long"], mask=pa.array(known))
    lists = pa.ListArray.from_arrays([0, 2, 2, *range(3, 500), 500], inner, mask=pa.array(known))[1:]
    lists = pa.concat_arrays([lists, lists[:1]])
    nested = rows.append_column("lists", lists)
    nested = nested.append_column("inner", inner).append_column(
        "outer", pa.StructArray.from_arrays([inner, parts[1]], ["a", "b"])
    )
    theirs = spark.createDataFrame(nested).select(native_tie(nested.schema)).toArrow()
    assert can_tie(nested.schema)
    assert not can_tie(pa.schema([("a", pa.struct([("b", pa.list_(pa.decimal128(20, 0)))]))]))
    assert theirs.column(0).to_pylist() == arrow_tie(nested.schema, nested).tolist()
    placed = frame.select(F.xxhash64("long", "text").alias("group")).repartition(7, "group")
    found = placed.select("group", F.spark_partition_id().alias("bucket")).toArrow()
    assert buckets_of(np.asarray(found.column("group")), 7).tolist() == found.column("bucket").to_pylist()


def made(stem: Stem) -> None:
    orders, payments = "id INT, at TIMESTAMP, kind STRING, cents BIGINT", "order INT, paid_at TIMESTAMP, ok BOOLEAN"
    stem.create_topic("orders", schema=orders, event_time="at", key="cents", partitions=2)
    stem.create_topic("payments", schema=payments, event_time="paid_at", key="order", partitions=2)


def test_which_streams_are_read_plainly(stem: Mainstem) -> None:
    made(stem)
    orders = stem.topic("orders").stream(watermark="1 minute")
    plain = orders.where("kind = 'web' AND cents > 10").withColumnRenamed("id", "order").drop("kind")
    [found] = plain_reads(plain.withColumn("appended", F.col("record.appended_at")))
    columns = dict(found.steps.columns)
    assert (columns["order"], columns["appended"]) == (["column", "id"], ["column", "record", "appended_at"])
    assert (found.request.topic, found.steps.condition is None) == ("orders", False)
    assert len(plain_reads(orders)) == 1
    computed = plain.withColumn("twice", F.col("cents") * 2).where("twice > 40").withColumn("more", F.col("twice") + 1)
    [read] = plain_reads(computed)
    twice = ["*", ["column", "cents"], ["literal", "bigint", 2]]
    assert dict(read.steps.columns)["more"] == ["+", twice, ["literal", "bigint", 1]]
    assert read.steps.condition is not None
    assert [">", twice, ["literal", "bigint", 40]] in read.steps.condition
    others = {
        "initcap(kind)": orders.withColumn("kind", F.initcap("kind")),
        "RLIKE(kind, 'w+')": orders.where("kind RLIKE 'w+'"),
        "upper(kind)": orders.where("cents > 10 AND upper(kind) = 'W'"),
        "monotonically_increasing_id()": orders.withColumn("number", F.monotonically_increasing_id()),
        "the current time": orders.where("at < current_timestamp()"),
        "Union": orders.union(orders),
        "Generate": orders.withColumn("part", F.explode(F.split("kind", ","))),
        "Aggregate": orders.groupBy("kind").count(),
    }
    assert {reason: read_plainly(rows) for reason, rows in others.items()} == {reason: reason for reason in others}
    assert [reason for reason, rows in others.items() if plain_reads(rows)] == []


def test_windows_are_computed_as_spark_does(stem: Mainstem) -> None:
    made(stem)
    window, shifted = F.window("at", "7 seconds"), F.window("at", "1 hour", "1 hour", "11 minutes")
    chosen = {"start": window["start"], "end": window["end"], "whole": window, "shifted": shifted["start"]}
    columns = [column.alias(name) for name, column in chosen.items()]
    orders = stem.topic("orders").stream(watermark="1 minute")
    # Spark has one window for a row.
    found = [plain_reads(orders.select("id", "record", *some)) for some in (columns[:3], columns[3:])]
    # Also before 1970, on the bound of a window, and just beside it.
    times = [NOON + timedelta(microseconds=beside) for beside in (-1, 0, 1)]
    times += [datetime(1969, 12, 31, tzinfo=UTC) + timedelta(seconds=7 * number) / 3 for number in range(40)]
    batch = pa.RecordBatch.from_arrays([pa.array(times, pa.timestamp("us", "UTC"))], ["at"])
    ours = {
        name: value_of(value, batch).to_pylist()
        for [read] in found
        for name, value in read.steps.columns
        if name in chosen
    }
    rows = stem.spark.createDataFrame([(at,) for at in times], "at TIMESTAMP")
    theirs = {name: rows.select(column.alias(name)).toArrow().column(0).to_pylist() for name, column in chosen.items()}
    assert ours == theirs


def test_a_window_s_bound_is_not_taken_for_another_expression(stem: Mainstem) -> None:
    made(stem)
    orders = stem.topic("orders").stream(watermark="1 minute")
    others = {
        "more than one window": orders.select("record", F.window("at", "2 minutes", "1 minute")["start"].alias("start")),
    }  # fmt: skip
    assert [name for name, rows in others.items() if plain_reads(rows)] == []


def paid(stem: Mainstem) -> Any:
    orders = stem.topic("orders").stream(watermark="1 minute").where("kind = 'web' AND length(kind) = 3").drop("kind")
    orders = orders.withColumn(
        "cents", F.expr("CASE WHEN cents % 4 = 0 THEN cents * 2 WHEN cents > 50 THEN 100 - cents END")
    )
    payments = stem.topic("payments").stream(watermark="1 minute").where("ok")
    return join(orders, payments, on={"id": "order"}, within="10 minutes", how="left", lateness="5 minutes")


class Spending(Process):
    """What each kind has spent so far."""

    output = "kind STRING, cents BIGINT"

    @dataclass
    class State:
        cents: int = 0

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for row in rows:
            state.cents += row["cents"]
            yield {"kind": key, "cents": state.cents}


# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


TOTALS = ["count(*) AS orders", "sum(cents) AS cents", "approx_count_distinct(id) AS ids", "max_by(id, cents) AS most"]


def hops(stem: Mainstem) -> Any:
    orders = stem.topic("orders").stream(watermark="1 minute").where("cents % 5 > 0")
    return windowed(
        orders, hopping("2 minutes", slide="45 seconds"), by="kind", aggregates=TOTALS, lateness="4 minutes"
    )


def chained(stem: Mainstem) -> Any:
    """Operators behind each other, the first of which corrects its windows."""
    orders = stem.topic("orders").stream(watermark="1 minute").where("cents % 5 > 0")
    some = windowed(
        orders, hopping("2 minutes", slide="45 seconds"), by="kind", aggregates=TOTALS[:2],
        lateness="4 minutes", results="retract",
    )  # fmt: skip
    some = some.where("orders > 1").withColumn("cents", F.expr("coalesce(cents, 0) * 2"))
    longer = windowed(
        some, tumbling("3 minutes"), by="kind", aggregates=["sum(orders) AS orders", "sum(cents) AS cents"],
        lateness="4 minutes", results="retract",
    )  # fmt: skip
    return top(longer.select("kind", "orders", "cents", "record"), 2, by="kind", order="orders DESC")


def several(stem: Mainstem) -> Any:
    """Operators of each kind of state, in one flow; a row of any of them is text."""
    orders = stem.topic("orders").stream(watermark="1 minute")
    shown = {
        "hopping": hops(stem),
        "sessions": windowed(orders, sessions("20 seconds"), by=["kind", "id"], aggregates=TOTALS),
        "dedupe": dedupe(orders.selectExpr("cents % 9 AS rest", "at", "record"), by="rest", within="3 minutes"),
        "process": process(orders, by="kind", using=Spending),
        "top": top(orders.select("kind", "cents", "record"), 3, by="kind", order="cents DESC"),
        "aggregate": aggregate(orders, by="kind", aggregates=["max(cents) AS cents", "count(DISTINCT id) AS ids"]),
        "distinct": distinct(orders.selectExpr("kind", "cents % 50 AS rest", "record")),
    }  # fmt: skip
    parts = []
    for name, rows in shown.items():
        row = F.to_json(F.struct(*[F.col(column) for column in rows.columns if column != "record"]))
        record = F.struct(*[F.col(f"record.{at}") for at in ("partition", "offset", "appended_at", "change")])
        parts.append(rows.select(F.lit(name).alias("of"), row.alias("row"), record.alias("record")))
    return reduce(lambda one, other: one.unionByName(other), parts)


def append(stem: Mainstem, part: int) -> None:
    """Some of both; every seventh order has no id, every eleventh payment and every thirteenth order comes much too late."""
    numbers = range(part * 40, part * 40 + 40)
    at = {number: NOON + timedelta(seconds=15 * number) for number in numbers}
    orders = [
        {
            "id": number if number % 7 else None,
            "at": at[number] - timedelta(hours=not number % 13),
            "kind": "web" if number % 3 else "shop",
            "cents": number,
        }
        for number in numbers
    ]
    payments = [
        {"order": number - number % 4, "paid_at": at[number] - timedelta(hours=not number % 11), "ok": number % 5 != 0}
        for number in numbers
    ]
    # One by one: of rows that go to two partitions at once, either may be there first and know less of time.
    for name, rows in (("orders", orders), ("payments", payments)):
        for row in rows:
            stem.topic(name).append([row])


def results(stem: Mainstem, monkeypatch: pytest.MonkeyPatch, ways: str, rows_of: Any) -> dict[str, Any]:
    """What comes of a part in each of these ways, one after the other on one checkpoint: packed (p), by Spark (s)."""
    sink = MemorySink("paid")
    used = []

    def query(*given: Any) -> Any:
        rows = packed_query(*given) if ways[part] == "p" else None
        used.append(rows is not None)
        return rows

    def between(*given: Any) -> dict[int, Packing]:
        return READ_BETWEEN(*given) if ways[part] == "p" else {}

    monkeypatch.setattr(program, "packed_query", query)
    monkeypatch.setattr(staged_batches, "_read_between", between)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(rows_of(stem), into=sink)

    for part in range(len(ways)):
        append(stem, part)
        with stem.start(flows) as running:
            running.wait_until_idle()
    assert used == [way == "p" for way in ways]
    changes = [(row["record"]["change"], {name: row[name] for name in row if name != "record"}) for row in sink.rows()]
    late = [{name: row[name] for name in row if name != "record"}
            for row in stem.topic(f"{sink.name}.late").to_arrow().to_pylist()]  # fmt: skip
    # Packed rows are eight at most in a batch, and are told as what is in them.
    told = stem.topic(PROGRESS_TOPIC).to_arrow().to_pylist()
    assert max(row["rows_in"] for row in told) > 20
    return {"changes": sorted(map(str, changes)), "late": sorted(map(str, late))}


@pytest.mark.parametrize("rows_of", [paid, hops, chained, pytest.param(several, marks=pytest.mark.long)])
def test_a_checkpoint_goes_on_packed_and_not(
    spark: SparkSession, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, rows_of: Any
) -> None:
    import mainstem

    found = {}
    for ways in ("sss", "psp"):
        with mainstem.open(tmp_path / ways, upkeep="manual", spark=spark) as stem:
            made(stem)
            found[ways] = results(stem, monkeypatch, ways, rows_of)
            if rows_of is chained:
                packed = "from orders to windowed-0, from windowed-0 to windowed-1, from windowed-1 to top-2"
                told = FlowStore(stem.home, "paid").of_version(1)["columns"]
                assert told == packed if ways.endswith("p") else packed not in told
    assert all(found["sss"].values())
    for what in ("changes", "late"):
        assert found["psp"][what] == found["sss"][what]
