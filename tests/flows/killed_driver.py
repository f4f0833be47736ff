"""A program of four flows (into a topic, a view, files, and through a stage into a view) in a process that is killed at a named point, Spark and all.

    python tests/flows/killed_driver.py HOME FILES ROUND [SOURCE_POINT]

Each round appends its own rows, runs the flows until they have them, appends more, and runs on. A point of the driver
(`sink_committed:2`) is named by MAINSTEM_CRASH_AT; one of a source, which lives in processes of Spark's own, by the last
argument (`partitions:2`; `read:1` alone, since each task has a source of its own). Whoever reaches it kills the whole
process group: the driver, its Java and all.

MAINSTEM_TEST_TOGETHER names a point for each flow (`kept=sink_committed,per_store=view_checked,...`). Flows wait at theirs, in
a batch of the second rows; when all of them do, the process group is killed.
"""

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

import mainstem
from mainstem import Mainstem, crash_points
from mainstem.flows import runner, staged_batches
from mainstem.flows.flow import Flow
from mainstem.operators import tumbling, windowed
from mainstem.operators.stage.packed_source import PackedTopicSource
from mainstem.sinks import file_sink
from mainstem.spark.sources import topic_writer
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.spark.sources.topic_writer import TopicWriter
from mainstem.views.sql import sql_writer
from mainstem.views.sqlite import sqlite_writer

ROWS = 40
STORES = ["A", "B", "C", ""]
WATERMARK = "10 seconds"


def rows_of(part: int) -> list[dict]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    # Now and then one comes a minute after its time.
    return [
        {
            "order_id": f"o-{n}", "store": STORES[n % 7 % 4], "amount": n,
            "placed_at": start + timedelta(seconds=n - 60 * (n % 11 == 0)),
        }
        for n in range(part * ROWS, part * ROWS + ROWS)
    ]  # fmt: skip


def flows(stem: Mainstem, files: str) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="1 hour")
    # A remainder above 127 does not fit: such rows are rejected.
    yield Flow(
        orders.select("order_id", (F.col("amount") % 140).alias("remainder"), "record"), into=stem.topic("remainders")
    )
    yield Flow(
        orders.groupBy("store").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount")),
        into=stem.view("per_store", key="store"),
    )
    yield Flow(orders, into=stem.files(files, partition_by=["store"]), name="kept")
    counted = [F.count("*").alias("orders"), F.sum("amount").alias("amount")]
    timely = stem.topic("orders").stream(watermark=WATERMARK)
    yield Flow(
        windowed(timely, tumbling("7 seconds"), by="store", aggregates=counted),
        into=stem.view("per_window", key=["window", "store"]),
    )


def prepare(home: str) -> None:
    with mainstem.open(home) as stem:
        schema = "order_id STRING, store STRING, amount BIGINT, placed_at TIMESTAMP"
        stem.create_topic("orders", schema=schema, key="order_id", event_time="placed_at", partitions=2)
        stem.create_topic("remainders", schema="order_id STRING, remainder TINYINT", partitions=2)


def source_killed_at(point: str, group: int) -> type:
    """The source of topics, with a place at which it ends everything. Defined here, so that Spark sends it along."""
    wanted, _, times = point.partition(":")
    calls = {"n": 0}

    def reach(name: str) -> None:
        if name == wanted:
            calls["n"] += 1
            if calls["n"] == int(times or 1):
                os.killpg(group, 9)

    def killing(reader: type[TopicStreamReader]) -> type[TopicStreamReader]:
        class KillingReader(reader):  # type: ignore[misc, valid-type]
            def latestOffset(self, start, limit):  # noqa: N802 - Spark's name
                reach("latestOffset")
                return super().latestOffset(start, limit)

            def partitions(self, start, end):
                reach("partitions")
                return super().partitions(start, end)

            def read(self, partition):
                reach("read")
                return super().read(partition)

            def commit(self, end):
                reach("commit")
                return super().commit(end)

        return KillingReader

    class KillingSource(PackedTopicSource):
        def streamReader(self, schema):  # noqa: N802
            reader = super().streamReader(schema)
            reader.__class__ = killing(type(reader))
            return reader

    return KillingSource


class Together:
    """Kills the process group when each flow is at its point, from `begin` on."""

    def __init__(self, points: str, group: int) -> None:
        self._points = dict(part.split("=") for part in points.split(","))
        self._all = threading.Barrier(len(self._points), action=lambda: os.killpg(group, 9))
        self._begun = threading.Event()
        # Of the thread that has the batch.
        self._flow = threading.local()
        right = runner.check_epoch

        def check_epoch(home, run):
            self._flow.name = run.flow
            right(home, run)

        runner.check_epoch = check_epoch
        for module in (runner, staged_batches, topic_writer, sql_writer, sqlite_writer, file_sink):
            module.reach = self._reach

    def begin(self) -> None:
        self._begun.set()

    def _reach(self, name: str, batch: int | None = None) -> None:
        if self._begun.is_set() and self._points.get(getattr(self._flow, "name", None)) == name:
            self._all.wait()


def append_twice(set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """A broken build: a batch into a topic has neither number nor transaction."""
    set_attribute(TopicWriter, "committed_batch", property(lambda self: -1))
    set_attribute(TopicWriter, "_append", lambda self, fitting, *_: self._topic.append(fitting))


def main(home: str, files: str, number: str, source_point: str = "") -> None:
    group = os.getpgid(0)
    crash_points.os = types.SimpleNamespace(
        environ=os.environ, getpid=os.getpid, kill=lambda _, signal: os.killpg(group, signal)
    )
    if os.environ.get("MAINSTEM_TEST_MUTANT"):
        append_twice()
    with mainstem.open(home, spark="local[2]") as stem:
        producer = stem.producer("till")
        producer.append("orders", rows_of(2 * int(number)), sequence=2 * int(number))
        if source_point:
            stem.spark.dataSource.register(source_killed_at(source_point, group))
        together = (
            Together(os.environ["MAINSTEM_TEST_TOGETHER"], group) if "MAINSTEM_TEST_TOGETHER" in os.environ else None
        )
        only = ["remainders"] if os.environ.get("MAINSTEM_TEST_MUTANT") else None
        with stem.start(lambda stem: flows(stem, files), only=only) as running:
            running.wait_until_idle()
            if together is not None:
                together.begin()
            producer.append("orders", rows_of(2 * int(number) + 1), sequence=2 * int(number) + 1)
            running.wait_until_idle()


if __name__ == "__main__":
    main(*sys.argv[1:])
