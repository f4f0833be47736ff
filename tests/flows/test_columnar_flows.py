"""A flow whose rows the reader of its topic computes gives the same as one whose rows Spark computes, wherever it dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.batch import Batch, FlowRun, Written
from mainstem.errors import FlowFailed
from mainstem.flows import program, runner
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.operators import tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.columnar_rows import ColumnarRows, CountRows
from tests.flows.memory_sink import MemorySink
from tests.flows.native_runs import run, run_plain, run_until_dead
from tests.flows.native_shop import NOT_OVER_ARROW, Shop, differences

SINKS = ["last", "current", "copied", "kept"]
# Where a run dies, and in which batch; each continues from what the one before left, with columns or without in turn.
POINTS = [("batch_begun", 0), ("batch_written", 0), ("batch_begun", 1), ("batch_written", 2), ("batch_written", 3)]


class Counter:
    """A sink that takes columns and counts their rows."""

    kind = "counter"
    version = 1
    takes_columns = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[int, int] = {}

    @property
    def committed_batch(self) -> int:
        return max(self.rows, default=-1)

    @property
    def column_task(self) -> CountRows:
        return CountRows()

    def accept(self, schema: Any) -> None:
        """It takes all rows."""

    def writer(self, run: FlowRun, schema: Any) -> Counter:
        return self

    def write(self, rows: Any, batch: Batch) -> Written:
        raise AssertionError("it gets columns")

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        self.rows[batch.number] = sum(int(result.to_pybytes()) for result in rows.results())
        return Written(self.rows[batch.number])

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.usefixtures("one_bucket")
def test_rows_computed_over_arrow_are_those_that_spark_computes_whatever_fails(
    stem, tmp_path, monkeypatch, die_at, fault_report
):
    shop = Shop(stem, seed := 20260302)
    shop.fill(segments=2)
    files = str(tmp_path / "out")
    deaths = 0
    takes_columns = program.takes_columns
    for (point, batch), columns in zip(POINTS, cycle([True, False]), strict=False):
        for module in (program, runner):
            monkeypatch.setattr(module, "takes_columns", takes_columns if columns else lambda flow: False)
        die_at(point, batch)
        died = run_until_dead(stem, files, SINKS, "columnar")
        assert died == {f"{sink}_columnar" for sink in SINKS}, f"{point} {batch}: {died}"
        shop.append(20)
        deaths += len(died)
    die_at("")
    for module in (program, runner):
        monkeypatch.setattr(module, "takes_columns", takes_columns)
    run(stem, "columnar", files, SINKS)
    run_plain(stem, files, monkeypatch, SINKS)
    compared, found = differences(stem, files, SINKS, "columnar")
    fault_report("S1", points=deaths, compared=compared, violations=found, seed=seed, way="as columns")
    # Nothing that a dead run wrote is left beside the files.
    assert not [name for _, _, names in os.walk(f"{tmp_path}/.out.staging") for name in names]


def test_rows_are_columns_where_readers_can_compute_them_and_the_sink_takes_them(stem, tmp_path):
    orders = Shop(stem, 3, partitions=2).topic.name
    expected = {
        "whole": True,
        "filtered": True,
        "renamed": True,
        "with a watermark": True,
        "not over Arrow": False,
        "counted": False,
        "random": False,
        "into a sink that takes rows": False,
        "by folder": False,
    }

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic(orders).stream()
        frames = {
            "whole": rows,
            "filtered": rows.where("amount > 3 AND store IN ('A', 'B')"),
            "renamed": rows.selectExpr("id AS name", "record.offset"),
            "with a watermark": stem.topic(orders).stream(watermark="1 minute").select("id", "record"),
            "not over Arrow": rows.where(NOT_OVER_ARROW),
            "counted": rows.groupBy("store").count(),
            "random": rows.select("id", F.rand().alias("chance")),
        }
        for number, name in enumerate(expected):
            sink: Any = Counter(f"sink_{number}")
            if name == "into a sink that takes rows":
                sink = MemorySink("memory")
            elif name == "by folder":
                sink = stem.files(tmp_path / "by_store", partition_by="store")
            yield Flow(frames.get(name, rows), into=sink, name=f"flow_{number}")

    planned = Program(stem, flows).flows
    found = {name: flow.columnar for name, flow in zip(expected, planned, strict=True)}
    assert found == expected


def test_the_rows_of_a_batch_are_counted_though_spark_does_not_see_them(stem):
    topic = stem.create_topic("numbers", schema="n INT", partitions=2)
    sink = Counter("counter")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("numbers").stream().where("n % 2 = 0"), into=sink)

    with stem.start(flows) as running:
        for first in (0, 100, 200):
            topic.append([{"n": n} for n in range(first, first + 100)])
            running.wait_until_idle()
        topic.append([{"n": 1}])
        running.wait_until_idle()
    assert sum(sink.rows.values()) == 150
    found = stem.query('SELECT sum(rows_in) AS i, sum(rows_out) AS o FROM "mainstem.progress"').to_pylist()
    assert found == [{"i": 150, "o": 150}]


def test_a_stage_sends_its_rows_to_the_sink_as_columns_and_gives_the_same(stem, monkeypatch):
    topic = stem.create_topic(
        "orders", schema="store STRING, n BIGINT, at TIMESTAMP", event_time="at", key="store", partitions=2
    )

    def rows(stem: Mainstem, way: str) -> Any:
        orders = stem.topic("orders").stream(watermark="0 seconds")
        windows = windowed(orders, tumbling("1 minute"), by="store", aggregates="sum(n) AS total")
        # Columns, a filter and a struct behind the stage.
        shown = windows.where("total % 3 <> 0").withColumn("twice", F.col("total") * 2).withColumn("way", F.lit(way))
        return shown if way != "spark" else shown.where("xxhash64(store) <> 0")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        for way in ("columns", "spark", "plain"):
            yield Flow(rows(stem, way), into=stem.view(f"totals_{way}", key=["store", "window"]))

    takes_columns = program.takes_columns
    plain = lambda flow: takes_columns(flow) and not flow.name.endswith("plain")  # noqa: E731
    monkeypatch.setattr(program, "takes_columns", plain)
    monkeypatch.setattr(runner, "takes_columns", plain)
    with stem.start(flows) as running:
        for minute in range(6):
            at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
            topic.append([{"store": f"s{n % 7}", "n": minute + n, "at": at} for n in range(40)])
            running.wait_until_idle()
    found = {}
    for way in ("columns", "spark", "plain"):
        view = stem.view(f"totals_{way}").to_arrow().drop_columns(["way"])
        found[way] = (view.column_names, sorted(view.to_pylist(), key=repr))
    assert len(found["columns"][1]) > 5
    assert found["columns"] == found["spark"] == found["plain"]
    described = [FlowStore(stem.home, f"totals_{way}").of_version(1)["columns"] for way in found]
    assert described == [
        "from orders to windowed-0, from windowed-0 to view totals_columns",
        "from orders to windowed-0",
        "from orders to windowed-0",
    ]


def test_names_may_be_written_in_another_case(stem):
    """Spark ignores case, for columns and for fields."""
    topic = stem.create_topic("orders", schema="n INT, st STRUCT<a: INT>")
    topic.append([{"n": n, "st": {"a": n}} for n in range(4)])

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream().where("record.CHANGE = 'insert' AND ST.A > 0 AND N < 3")
        yield Flow(rows.selectExpr("N", "record.OFFSET AS at"), into=stem.topic("columns"))
        hashed = rows.where("xxhash64(N) <> 0")
        yield Flow(hashed.selectExpr("N", "record.OFFSET AS at"), into=stem.topic("spark"))

    stem.run(flows, until="idle")
    found = [stem.topic(name).to_arrow().drop_columns(["record"]).to_pylist() for name in ("columns", "spark")]
    assert found == [[{"N": 1, "at": 1}, {"N": 2, "at": 2}]] * 2


def test_a_struct_may_get_a_field_while_a_flow_runs(stem):
    topic = stem.create_topic("orders", schema="n INT, st STRUCT<a: INT>")
    topic.append([{"n": 1, "st": {"a": 1}}])

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream().select("n", "st")
        yield Flow(rows, into=stem.topic("columns"))
        yield Flow(rows.where("xxhash64(n) <> 0"), into=stem.topic("spark"))

    with stem.start(flows) as running:
        running.wait_until_idle()
        topic.alter(schema="n INT, st STRUCT<a: INT, b: STRING>")
        topic.append([{"n": 2, "st": {"a": 2, "b": "new"}}])
        running.wait_until_idle()
    found = [stem.topic(name).to_arrow().drop_columns(["record"]).to_pylist() for name in ("columns", "spark")]
    assert found == [[{"n": 1, "st": {"a": 1}}, {"n": 2, "st": {"a": 2}}]] * 2


def test_the_error_of_a_library_is_the_cause():
    text = """org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker
Traceback (most recent call last):
  File "worker.py", line 1, in main
pyarrow.lib.ArrowInvalid: No match for FieldRef.Name(OFFSET) in n: int32
"""
    cause = runner.root_cause(text)
    assert isinstance(cause, str)
    assert cause.startswith("pyarrow.lib.ArrowInvalid: No match for FieldRef.Name(OFFSET)")


def test_it_is_said_what_spark_computes(stem):
    Shop(stem, 3, partitions=2)

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream()
        yield Flow(rows.select("id"), into=Counter("whole"))
        yield Flow(rows.where(NOT_OVER_ARROW), into=stem.view("hashed", key="id"))
        yield Flow(rows.groupBy("store").count(), into=stem.view("counted", key="store"))
        yield Flow(rows, into=MemorySink("memory"))

    stem.run(flows, until="idle")
    names = ("whole", "hashed", "counted", "memory")
    assert [FlowStore(stem.home, name).of_version(1)["columns"] for name in names] == [
        "from orders to counter whole",
        "no: Spark computes xxhash64(id)",
        "no: Spark computes Aggregate",
        "no: memory memory takes rows",
    ]


def test_a_value_that_does_not_fit_is_rejected_alone(stem):
    stem.create_topic("wide", schema="n BIGINT").append([{"n": n} for n in (1, 300, 2)])
    stem.create_topic("narrow", schema="n TINYINT")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("wide").stream().select("n"), into=stem.topic("narrow"))

    stem.run(flows, until="idle")
    assert stem.topic("narrow").to_arrow().column("n").to_pylist() == [1, 2]
    [rejected] = stem.topic("narrow.rejected").to_arrow().to_pylist()
    assert rejected["row"] == '{"n": 300}'


def test_a_file_of_a_task_that_died_is_not_committed(stem, tmp_path):
    """A task wrote its file and died: another one wrote the rows again, and only its file is named."""
    stem.create_topic("numbers", schema="n INT").append([{"n": n} for n in range(5)])
    sink = stem.files(tmp_path / "out")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("numbers").stream().select("n"), into=sink)

    leftover = tmp_path / ".out.staging" / "1-columns"
    begin = type(sink).writer

    def writer(self: Any, run: FlowRun, schema: Any) -> Any:
        made = begin(self, run, schema)
        os.makedirs(leftover)
        (leftover / "died.parquet").write_bytes(b"half a file")
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(sink), "writer", writer)
        stem.run(flows, until="idle")
    assert sorted(sink.to_arrow().column("n").to_pylist()) == list(range(5))
    assert not leftover.exists()
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1


def test_an_overflow_fails_the_flow_whoever_computes_it(stem):
    stem.create_topic("numbers", schema="n BIGINT").append([{"n": 1}, {"n": 2**63 - 1}])

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("numbers").stream().where("n < 5").selectExpr("n + 1 AS more"), into=Counter("kept"))
        for sink in (Counter("columns"), MemorySink("rows")):
            yield Flow(stem.topic("numbers").stream().selectExpr("n + 1 AS more"), into=sink)

    with stem.start(flows) as running:
        running["kept"].wait_until_idle()
        for flow in ("columns", "rows"):
            with pytest.raises(FlowFailed, match="ARITHMETIC_OVERFLOW"):
                running[flow].wait_until_idle()
