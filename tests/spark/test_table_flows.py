"""Tables that change, through Spark: fifty programs against DuckDB after every step, with stops and failures; case A07.

Programs share one query, told apart by the chain of operators (`chain`) and by `case_id`. Filters, projections and unions
between the operators are Spark's own.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed, Invalid
from mainstem.flows import staged_batches
from mainstem.operators import aggregate, distinct, table, top
from mainstem.operators.stage.stage_task import StageBatch
from mainstem.operators.tables.table_join import table_join
from tests.acceptance import test_table_joins as joins
from tests.spark.memory_sink import MemorySink

NAMES = ["case_id", "a", "b", "c"]
CASES, STEPS = 10, 3
Row = dict[str, Any]


class Watched:
    """A flow into memory; what a step gave is known by its batches."""

    def __init__(self, stem: Mainstem, rows: Callable[[Mainstem], DataFrame], failing: set[int]) -> None:
        self.stem = stem
        self.sink = MemorySink("shown", failing=set(failing))
        self.rows = rows
        self._seen: set[int] = set()

    def flows(self, stem: Mainstem) -> Iterator[Flow]:
        yield Flow(self.rows(stem), into=self.sink)

    def run(self) -> None:
        """A run from its start to its end, over all that is there."""
        try:
            self.stem.run(self.flows, until="idle")
        except FlowFailed:
            self.stem.run(self.flows, until="idle")

    def new(self) -> list[list[Row]]:
        """The batches since the last time, their rows in the order in which a sink takes them."""
        new = sorted(set(self.sink.attempts) - self._seen)
        self._seen |= set(new)
        found = []
        for batch in new:
            rows = self.sink.attempts[batch][-1]
            found.append(sorted(rows, key=lambda row: (row["record"]["partition"], row["record"]["offset"])))
        return found


# Fifty programs


def tables(stem: Mainstem, read: Callable[[Any], DataFrame]) -> tuple[DataFrame, DataFrame]:
    ours = table(read(stem.topic("ours")), key=["case_id", "a"]).drop("moment")
    theirs = table(read(stem.topic("theirs")), key=["case_id", "a"], order_by="moment").drop("moment")
    return ours, theirs


def programs(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    other = theirs.select("case_id", F.col("a").alias("a2"), F.col("b").alias("b2"), F.col("c").alias("c2"), "record")
    per_b = aggregate(
        ours.where("c > case_id % 4 - 1"), by=["case_id", "b"],
        aggregates=[F.count("*").cast("int").alias("a"), (F.sum("c") + F.max("c")).alias("c")],
    )  # fmt: skip
    first = top(
        distinct(ours.union(theirs).withColumn("a", F.expr("a div 2").cast("int"))), 2,
        by=["case_id", "b"], order=[F.desc("c"), F.col("a").asc_nulls_last()],
    )  # fmt: skip
    pairs = table_join(ours, other, on={"case_id": "case_id", "a": "a2"})
    summed = aggregate(
        pairs, by=["case_id", "b"],
        aggregates=[F.countDistinct("c2").cast("int").alias("a"), F.min(F.col("c") + F.col("c2")).alias("c")],
    )  # fmt: skip
    pointing = table_join(ours, other, on={"case_id": "case_id", "b": "b2"}, how="left")
    left = distinct(pointing.select("case_id", "a", "b", F.col("c2").alias("c"), "record").union(theirs))
    full = table_join(ours, other.withColumnRenamed("a2", "a"), on={"case_id": "case_id", "a": "a"}, how="full")
    best = top(
        full.select("case_id", "a", F.coalesce("b", "b2").alias("b"), F.col("c2").alias("c"), "record"), 3,
        by="case_id", order="c DESC",
    )  # fmt: skip
    chains = {"per_b": per_b, "first": first, "summed": summed, "left": left, "best": best}
    told = [rows.select(F.lit(name).alias("chain"), *NAMES, "record") for name, rows in chains.items()]
    return reduce(DataFrame.unionByName, told)


TIES = ", ".join(f"{name} NULLS FIRST" for name in NAMES)
PAIRS = "FROM ours AS l {how} JOIN theirs AS r ON l.case_id = r.case_id AND l.{on} = r.{on}"
EXPECTED = {
    "per_b": """SELECT case_id, count(*) AS a, b, sum(c) + max(c) AS c FROM ours WHERE c > case_id % 4 - 1
        GROUP BY case_id, b""",
    "first": f"""SELECT case_id, a, b, c FROM (
        SELECT *, row_number() OVER (PARTITION BY case_id, b ORDER BY c DESC NULLS LAST, a NULLS LAST, {TIES}) AS place
        FROM (SELECT DISTINCT case_id, a // 2 AS a, b, c FROM (FROM ours UNION ALL FROM theirs))) WHERE place <= 2""",
    "summed": f"""SELECT l.case_id, count(DISTINCT r.c) AS a, l.b, min(l.c + r.c) AS c
        {PAIRS.format(how="INNER", on="a")} GROUP BY l.case_id, l.b""",
    "left": f"""SELECT DISTINCT case_id, a, b, c FROM (
        SELECT l.case_id, l.a, l.b, r.c {PAIRS.format(how="LEFT", on="b")} UNION ALL FROM theirs)""",
    "best": f"""SELECT case_id, a, b, c FROM (
        SELECT *, row_number() OVER (PARTITION BY case_id ORDER BY c DESC NULLS LAST, {TIES}) AS place FROM (
        SELECT coalesce(l.case_id, r.case_id) AS case_id, coalesce(l.a, r.a) AS a, coalesce(l.b, r.b) AS b, r.c
        {PAIRS.format(how="FULL", on="a")})) WHERE place <= 3""",
}


def newest(facts: pa.Table, order: str) -> str:
    ranked = f"SELECT *, row_number() OVER (PARTITION BY case_id, a ORDER BY {order}) AS newest FROM facts"
    return f"SELECT case_id, a, b, c FROM ({ranked}) WHERE newest = 1 AND record.change <> 'delete'"


def expected(stem: Mainstem) -> Counter[tuple[Any, ...]]:
    """All programs over what the topics have now, by DuckDB."""
    found: Counter[tuple[Any, ...]] = Counter()
    with duckdb.connect() as connection:
        for name, order in (("ours", '"record"."offset" DESC'), ("theirs", 'moment DESC, "record"."offset" DESC')):
            facts = stem.topic(name).to_arrow()
            connection.register("facts", facts)
            connection.execute(f"CREATE TABLE {name} AS {newest(facts, order)}")
        for chain, sql in EXPECTED.items():
            found.update((chain, *map(_plain, row)) for row in connection.sql(sql).fetchall())
    return found


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else int(value)


def applied(there: Counter[tuple[Any, ...]], rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """The bag with some changes in it."""
    after = Counter(there)
    for row in rows:
        after[row["chain"], *(row[name] for name in NAMES)] += 1 if row["record"]["change"] == "insert" else -1
    return Counter({row: count for row, count in after.items() if count})


def redundant(rows: list[Row]) -> list[Any]:
    """Rows that were taken back and put out again."""
    seen: dict[Any, set[str]] = {}
    for row in rows:
        seen.setdefault((row["chain"], *(row[name] for name in NAMES)), set()).add(row["record"]["change"])
    return [row for row, signs in seen.items() if len(signs) > 1]


def fact(chance: random.Random, step: int) -> Row:
    return {
        "case_id": chance.randrange(CASES),
        "a": chance.randrange(4),
        "b": chance.choice(["x", "y", "z", None]),
        "c": chance.choice([-2, 0, 1, 3, 5, None]),
        "moment": 3 * step + chance.randint(-4, 4),
    }


def test_fifty_programs_are_right_after_every_step_with_stops_and_failures(stem: Mainstem) -> None:
    chance = random.Random(11)
    schema = "case_id INT, a INT, b STRING, c BIGINT, moment INT"
    for name in ("ours", "theirs"):
        stem.create_topic(name, schema=schema, key=["case_id", "a"], partitions=2)
    watched = Watched(stem, lambda stem: programs(*tables(stem, lambda topic: topic.stream())), failing={1})
    there: Counter[tuple[Any, ...]] = Counter()
    for step in range(STEPS):
        for name in ("ours", "theirs"):
            facts = [fact(chance, step) for _ in range(40)]
            stem.topic(name).append([*facts, *facts[:5]])
            if name == "ours":
                stem.topic(name).delete([(row["case_id"], row["a"]) for row in facts[5:12]])
        # Every step is a run of its own.
        watched.run()
        for rows in watched.new():
            there = applied(there, rows)
            assert not redundant(rows), step
        assert there == expected(stem), step
    assert not watched.sink.failing
    assert len(there) > 100

    at_once = programs(*tables(stem, lambda topic: topic.read())).toArrow().to_pylist()
    assert applied(Counter(), at_once) == there


# Case A07

PRIMARY = {name: joins.HOWS[name] for name in ("inner", "outer")}
FOREIGN = {name: joins.FOREIGN[name] for name in ("left_join",)}


def case_tables(stem: Mainstem) -> DataFrame:
    """Joins of the case side by side; the others are seen without Spark."""
    left, right = (table(stem.topic(side).stream(), key=["kind", "key"]) for side in ("left", "right"))
    right = right.select("kind", F.col("key").alias("r_key"), F.col("value").alias("r_value"), "record")
    found = []
    for kind, hows, on in (("primary", PRIMARY, "key"), ("foreign", FOREIGN, "value")):
        for name, how in hows.items():
            mine, other = (rows.where(F.col("kind") == kind) for rows in (left, right))
            pairs = table_join(mine, other, on={"kind": "kind", on: "r_key"}, how=how)
            found.append(
                pairs.select(
                    F.lit(name).alias("join"),
                    "kind",
                    F.col("key").alias("l_key"),
                    F.col("value").alias("l_value"),
                    "r_value",
                    "record",
                )
            )
    return reduce(DataFrame.unionByName, found)


def told(rows: list[Row], join: str, kind: str) -> list[Any]:
    signs = {"insert": "+", "delete": "-"}
    mine = [(signs[row["record"]["change"]], row) for row in rows if (row["join"], row["kind"]) == (join, kind)]
    found = joins.told(mine, kind == "foreign")
    return [[row[0], row[1] and int(row[1]), *row[2:]] for row in found] if kind == "foreign" else found


@pytest.mark.usefixtures("one_bucket")
def test_case_a07_of_tables_in_a_stream_with_a_failure(stem: Mainstem, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three joins go on from each table, whose engine does its work once: one receipt for each bucket.
    done_twice = []
    receipts = staged_batches._receipts

    def counted(batch: StageBatch) -> dict[int, dict[str, Any]]:
        left = [name for name in os.listdir(batch.attempt) if name.endswith(".json")]
        done_twice.extend([batch.folder] if len(left) != batch.buckets else [])
        return receipts(batch)

    monkeypatch.setattr(staged_batches, "_receipts", counted)
    for side in ("left", "right"):
        stem.create_topic(side, schema="kind STRING, key STRING, value STRING", key=["kind", "key"], partitions=1)
    watched = Watched(stem, case_tables, failing={5})
    running = stem.start(watched.flows)
    for place, step in enumerate(joins.keyed_steps()):
        append(stem, "primary", step)
        for other in joins.foreign_steps():
            if other[0] == place + 1:
                append(stem, "foreign", other)
        try:
            running.wait_until_idle()
        except FlowFailed:
            running.stop()
            running = stem.start(watched.flows)
            running.wait_until_idle()
        rows = [row for batch in watched.new() for row in batch]
        for name in PRIMARY:
            wanted = joins.CASE["table_table"][name]
            assert told(rows, name, "primary") == ([wanted[str(step[0])]] if str(step[0]) in wanted else []), (
                name,
                step,
            )
        if place < len(joins.STEPS):
            for name in FOREIGN:
                wanted = [] if (name, place) == ("inner", 2) else joins.STEPS[place][name]
                assert sorted(told(rows, name, "foreign"), key=str) == sorted(wanted, key=str), (name, place)
    running.stop()
    assert not watched.sink.failing
    assert done_twice == []


def append(stem: Mainstem, kind: str, step: joins.Step) -> None:
    _, side, row = step
    topic = stem.topic({"L": "left", "R": "right"}[side])
    if joins._sign(step, kind == "foreign") == "-":
        topic.delete([(kind, str(row["key"]))])
    else:
        value = None if row["value"] is None else str(row["value"])
        topic.append([{"kind": kind, "key": str(row["key"]), "value": value}])


def test_what_is_asked_wrongly_is_told_while_the_program_is_built(stem: Mainstem) -> None:
    stem.create_topic("ours", schema="a INT, b STRING")
    rows = table(stem.topic("ours").stream(), key="a")
    with pytest.raises(Invalid, match='orders rows by "revenue"'):
        top(rows, 3, order=F.desc("revenue"))
    with pytest.raises(Invalid, match="not to be had of a table that changes"):
        aggregate(rows, by="b", aggregates=F.first("a"))


def test_a_view_s_changes_are_a_changing_table(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema="id INT, store STRING, cents BIGINT", key="id")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("orders").stream(), into=stem.view("latest", key="id"))
        changes = stem.view("latest").stream().where("cents > 0")
        best = aggregate(changes, by="store", aggregates=[F.max("cents").alias("best"), F.count("*").alias("orders")])
        yield Flow(best, into=stem.view("best", key="store"))

    with stem.start(flows) as running:
        orders.append([{"id": n, "store": "Ulm", "cents": 10 * n} for n in range(4)])
        running.wait_until_idle()
        assert stem.view("best").to_arrow().to_pylist() == [{"store": "Ulm", "best": 30, "orders": 3}]
        orders.append([{"id": 3, "store": "Bonn", "cents": 30}, {"id": 1, "store": "Ulm", "cents": 0}])
        orders.delete([2])
        running.wait_until_idle()
        assert stem.view("best").to_arrow().to_pylist() == [{"store": "Bonn", "best": 30, "orders": 1}]
