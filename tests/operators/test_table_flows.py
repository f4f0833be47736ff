"""Tables that change, as flows: case A07, the changes of a view, and what is told while a program is built."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed, Invalid
from mainstem.flows import staged_batches
from mainstem.operators import aggregate, table, top
from mainstem.operators.stage.stage_task import StageBatch
from mainstem.operators.tables.table_join import table_join
from tests.acceptance import test_table_joins as joins
from tests.flows.memory_sink import MemorySink

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

    def new(self) -> list[list[Row]]:
        """The batches since the last time, their rows in the order in which a sink takes them."""
        new = sorted(set(self.sink.attempts) - self._seen)
        self._seen |= set(new)
        found = []
        for batch in new:
            rows = self.sink.attempts[batch][-1]
            found.append(sorted(rows, key=lambda row: (row["record"]["partition"], row["record"]["offset"])))
        return found


# Case A07: the joins of it that go through Spark, the others are seen without.

FOREIGN = {name: joins.FOREIGN[name] for name in ("left_join",)}


def case_tables(stem: Mainstem, primary: Sequence[str]) -> DataFrame:
    """Joins of the case side by side."""
    left, right = (table(stem.topic(side).stream(), key=["kind", "key"]) for side in ("left", "right"))
    right = right.select("kind", F.col("key").alias("r_key"), F.col("value").alias("r_value"), "record")
    found = []
    by_key = {name: joins.HOWS[name] for name in primary}
    for kind, hows, on in (("primary", by_key, "key"), ("foreign", FOREIGN, "value")):
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


# Every step is a batch. The first nine put in, change and take away rows on both sides, and are all that the foreign key has.
@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
@pytest.mark.parametrize(
    ("primary", "steps"),
    [
        pytest.param(["outer"], 9, id="some"),
        pytest.param(["inner", "outer"], len(joins.keyed_steps()), marks=pytest.mark.long, id="all"),
    ],
)
def test_case_a07_of_tables_in_a_stream_with_a_failure(
    stem: Mainstem, monkeypatch: pytest.MonkeyPatch, primary: list[str], steps: int
) -> None:
    # Several joins go on from each table, whose engine does its work once: one receipt for each bucket.
    done_twice = []
    receipts = staged_batches._receipts

    def counted(batch: StageBatch) -> dict[int, dict[str, Any]]:
        left = [name for name in os.listdir(batch.attempt) if name.endswith(".json")]
        done_twice.extend([batch.folder] if len(left) != batch.buckets else [])
        return receipts(batch)

    monkeypatch.setattr(staged_batches, "_receipts", counted)
    for side in ("left", "right"):
        stem.create_topic(side, schema="kind STRING, key STRING, value STRING", key=["kind", "key"], partitions=1)
    watched = Watched(stem, lambda stem: case_tables(stem, primary), failing={5})
    running = stem.start(watched.flows)
    for place, step in enumerate(joins.keyed_steps()[:steps]):
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
        for name in primary:
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
    with pytest.raises(Invalid, match="not supported over a changing table"):
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
