"""A program is built when it is started, not for its batches; what must be new in every batch is told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import Invalid
from mainstem.flows.program import Program
from mainstem.operators import aggregate, dedupe, enrich, join, table, top, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.memory_sink import MemorySink

START = datetime(2026, 1, 1, tzinfo=UTC)


class Counted:
    """A program that counts how often it is built."""

    def __init__(self, *rows: Callable[[Mainstem], Any], name: str = "sink") -> None:
        self._rows = rows
        self.sinks = [MemorySink(f"{name}_{number}") for number in range(len(rows))]
        self.builds = 0

    def __call__(self, stem: Mainstem) -> Iterator[Flow]:
        self.builds += 1
        for rows, sink in zip(self._rows, self.sinks, strict=True):
            yield Flow(rows(stem), into=sink)


def orders(stem: Mainstem) -> Any:
    return stem.topic("orders").stream(watermark="0 seconds")


def made(stem: Mainstem) -> Any:
    return stem.create_topic(
        "orders", schema="store STRING, n BIGINT, at TIMESTAMP", event_time="at", key="store", partitions=2
    )


def appended(topic: Any, batch: int) -> None:
    topic.append(
        [{"store": f"s{n % 3}", "n": 10 * batch + n, "at": START + timedelta(minutes=batch)} for n in range(6)]
    )


def built_for(stem: Mainstem, sink: MemorySink) -> str:
    return str(FlowStore(stem.home, sink.name).of_version(1)["built"])


def windows(rows: Any) -> Any:
    return windowed(rows, tumbling("1 minute"), by="store", aggregates="sum(n) AS total")


def chained(stem: Mainstem) -> Any:
    """Two stages and columns between and behind them."""
    shown = windows(orders(stem)).withColumn("double", F.col("total") * 2)
    return windowed(shown, tumbling("3 minutes"), by="store", aggregates="sum(double) AS total").select(
        "store", (F.col("total") + 1).alias("more"), "record"
    )


def twice(stem: Mainstem) -> Any:
    """The rows of a stage go to two places, one of them with a watermark of Spark's."""
    shown = windows(orders(stem)).withColumn("ended", F.col("window.end")).withWatermark("ended", "1 minute")
    return shown.where("total > 10").select("store", "record").unionByName(shown.select("store", "record"))


def paired(stem: Mainstem) -> Any:
    right = orders(stem).selectExpr("store", "n AS other", "at AS other_at", "record")
    pairs = join(orders(stem), right, on="store", within="0 seconds")
    return pairs.where("n <> other").select("store", "n", "other", "record")


def looked_up(stem: Mainstem) -> Any:
    stores = table(orders(stem).selectExpr("store", "n AS newest", "at AS since", "record"), key="store")
    return enrich(orders(stem), stores, on="store").select("store", "n", "newest", "record")


def ranked(stem: Mainstem) -> Any:
    newest = table(orders(stem), key="store").select("store", "n", "record")
    sums = aggregate(newest, by="store", aggregates=F.sum("n").alias("total"))
    return top(sums, 2, order=F.desc("total"))


def once(stem: Mainstem) -> Any:
    return dedupe(orders(stem).where("n % 2 = 0"), by="store", within="1 minute").select("store", "n", "record")


@pytest.mark.usefixtures("one_bucket")
def test_batches_do_not_build_the_program_again(stem: Mainstem) -> None:
    topic = made(stem)
    programs = [chained, twice, paired, looked_up, ranked, once]
    program = Counted(*programs)
    with stem.start(program) as running:
        appended(topic, 0)
        running.wait_until_idle()
        builds = program.builds
        for batch in range(1, 3):
            appended(topic, batch)
            running.wait_until_idle()
        batches = [handle.batches for handle in running]
        assert program.builds == builds
    assert min(batches) >= 3
    assert [built_for(stem, sink) for sink in program.sinks] == [""] * len(programs)
    # Built for every batch, the same programs give the same.
    anew = Counted(*[_built_for_every_batch(rows) for rows in programs], name="anew")
    with stem.start(anew) as running:
        running.wait_until_idle()
    for one, other in zip(program.sinks, anew.sinks, strict=True):
        assert _facts(one) == _facts(other), one.name


def _built_for_every_batch(rows: Callable[[Mainstem], Any]) -> Callable[[Mainstem], Any]:
    return lambda stem: rows(stem).where("rand() < 2")


def _facts(sink: MemorySink) -> dict[str, int]:
    """What was put out and not taken back."""
    found: dict[str, int] = {}
    for row in sink.rows():
        change = row.pop("record")["change"]
        found[str(row)] = found.get(str(row), 0) + (-1 if change == "delete" else 1)
    return {row: count for row, count in found.items() if count}


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        ("rand() < 2", "it has a function that is not deterministic, such as rand()"),
        ("current_timestamp() > '2000-01-01'", "it has a function of the present, such as current_timestamp()"),
        ("total > (SELECT 1)", "it has a query within an expression"),
        ("EXISTS", "it reads a table or files that may change (LogicalRelation)"),
    ],
)
def test_what_must_be_new_in_every_batch_is_built_for_it(stem: Mainstem, behind: str, why: str, tmp_path: Any) -> None:
    topic = made(stem)
    allowed = str(tmp_path / "allowed")
    stem.spark.createDataFrame([("s0",)], "store STRING").write.parquet(allowed)

    def rows(stem: Mainstem) -> Any:
        shown = windows(orders(stem))
        if behind == "EXISTS":
            return shown.join(stem.spark.read.parquet(allowed), on="store", how="left_semi")
        return shown.where(behind)

    program = Counted(rows)
    with stem.start(program) as running:
        appended(topic, 0)
        running.wait_until_idle()
        builds = program.builds
        appended(topic, 1)
        running.wait_until_idle()
    assert program.builds > builds
    assert built_for(stem, program.sinks[0]) == why


def test_a_program_that_changes_between_builds_is_refused_at_the_start(stem: Mainstem) -> None:
    made(stem)
    program = Counted(lambda stem: orders(stem).where(f"n > {program.builds}"))
    with pytest.raises(Invalid) as refused:
        stem.start(program)
    assert refused.value.summary == 'flow "sink_0" is not deterministic: it changed between two builds'
    assert "(n# > cast(1 as bigint))" in str(refused.value)
    assert "(n# > cast(2 as bigint))" in str(refused.value)


def test_flows_that_come_and_go_are_refused(stem: Mainstem) -> None:
    made(stem)
    calls: list[int] = []

    def flows(stem: Mainstem) -> Iterator[Flow]:
        calls.append(1)
        if len(calls) % 2:
            yield Flow(orders(stem), into=MemorySink("sometimes"))

    with pytest.raises(Invalid, match="the program is not deterministic"):
        stem.start(flows)


def test_what_only_looks_different_in_a_plan_is_no_change(stem: Mainstem) -> None:
    """Seeds that nobody chose, and numbers that Spark gives."""
    made(stem)
    program = Counted(
        lambda stem: orders(stem).withColumn("chance", F.rand()).withColumn("id", F.expr("uuid()")),
        lambda stem: windows(orders(stem)).sample(0.5),
        lambda stem: orders(stem).withColumn("more", F.transform(F.array("n"), lambda n: n + 1)),
        lambda stem: stem.spark.sql("WITH some AS (SELECT * FROM {rows}) SELECT * FROM some", rows=orders(stem)),
    )
    Program(stem, program)
    assert program.builds == 2
