"""TopicWriter: writes the batches of a flow into a topic, exactly once.

A batch is one transaction of the flow's producer; its appends have sequences that start at the batch's number times a
thousand. Since a transaction is visible completely or not at all, one sequence of a batch in any partition means that
the batch is committed. A newer run of the flow opens the producer again, and this one is fenced. Rejected rows
are appended to the topic of the flow's rejected rows in the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.batch import Batch, FlowRun, Written
from mainstem.crash_points import reach
from mainstem.errors import InvalidRows
from mainstem.log.log import Log, TopicBackend, no_such_topic
from mainstem.log.producer import Producer
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.names import check_own_name
from mainstem.spark.build import current_build
from mainstem.spark.checkpoint.rejected_rows import Rejection, reject
from mainstem.spark.columnar_rows import ColumnarRows, SendRows
from mainstem.spark.sources.spark_topic import SparkTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NewTopic", "TopicWriter", "derive_settings", "fitting_rows", "flow_producer", "put_retractions_first"]


# Which rows of a table fit a topic, and why the others do not.


def fitting_rows(table: pa.Table, settings: TopicSettings) -> tuple[pa.Table, list[Rejection]]:
    """The rows that fit, and for each other row its number and the reason.

    A check reports one row that does not fit. So the table is halved until every part fits or is one row: that costs
    nothing if all rows fit, as they nearly always do, and little if few do not.

    >>> settings = TopicSettings.of("t", schema="n TINYINT")
    >>> rows, rejections = fitting_rows(pa.table({"n": pa.array([1, 300, 2], pa.int64())}), settings)
    >>> rows.column("n").to_pylist(), rejections
    ([1, 2], [Rejection(row=1, reason='300 does not fit column "n", which is TINYINT')])
    """
    rejections = []
    parts = [(0, len(table))]
    while parts:
        first, count = parts.pop()
        try:
            check_rows(table.slice(first, count), settings)
        except InvalidRows as error:
            if count > 1:
                half = count // 2
                parts += [(first + half, count - half), (first, half)]
                continue
            # "row 0: 300 does not fit ...": the number within the checked part is meaningless.
            reason = error.summary.removeprefix("row 0: ").removeprefix("row 0 ")
            rejections.append(Rejection(first, reason))
    if not rejections:
        return table, rejections
    fit = np.ones(len(table), dtype=np.bool_)
    fit[[rejection.row for rejection in rejections]] = False
    return table.filter(pa.array(fit)), rejections


APPENDS_MAX = 1000
# An append is checked as a whole: this many rows are enough to be fast.
APPEND_ROWS = 131_072
# Longer than any batch takes to be written; the next run does not wait for it, since it fences this one.
TIMEOUT = "10 minutes"


def flow_producer(log: Log, run: FlowRun) -> Producer:
    """The name of the flow's producer. A rebuilt version starts its own sequences."""
    return Producer(log, log.open_producer(f"mainstem.flow.{run.flow}.v{run.version}"))


def put_retractions_first(rows: pa.Table) -> pa.Table:
    """Rows of a changing table with retractions (`partition` below 0) first: the old and the new row of a key may be from
    two tasks, and readers rely on the order of the topic. Other rows are unchanged."""
    if "record" not in rows.column_names or not rows.num_rows:
        return rows
    partition = pc.struct_field(rows.column("record"), ["partition"])
    put_in = np.asarray(pc.fill_null(pc.greater_equal(partition, 0), True))
    return rows if put_in.all() else rows.take(pa.array(np.argsort(put_in, kind="stable")))


class TopicWriter:
    """Writes for one run of a flow. For one thread."""

    def __init__(self, log: Log, topic: Topic, run: FlowRun) -> None:
        self._topic = topic
        self._producer = flow_producer(log, run)

    @property
    def committed_batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        return self._producer.kept_sequence(self._topic) // APPENDS_MAX

    @property
    def column_task(self) -> SendRows:
        return SendRows()

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        return self._write(rows.toArrow(), batch)

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        return self._write(rows.to_table(), batch)

    def _write(self, table: pa.Table, batch: Batch) -> Written:
        reach("sink_rows_computed")
        began = time.perf_counter_ns()
        written = self.append(put_retractions_first(table), batch)
        return replace(written, sink_ms=(time.perf_counter_ns() - began) // 1_000_000)

    def append(self, table: pa.Table, batch: Batch) -> Written:
        """Append the rows of a batch, and the rejected rows to their topic."""
        try:
            self._append(table, batch)
        except InvalidRows:
            # The transaction is aborted. This is rare, so rows are checked one by one only now.
            fitting, rejections = fitting_rows(table, self._topic.settings)
            self._append(fitting, batch, table, rejections)
            return Written(len(fitting), len(rejections))
        return Written(len(table))

    def _append(
        self, fitting: pa.Table, batch: Batch, table: pa.Table | None = None, rejections: Sequence[Rejection] = ()
    ) -> None:
        size = max(APPEND_ROWS, -(-len(fitting) // (APPENDS_MAX - 1)))
        with self._producer.transaction(timeout=TIMEOUT) as transaction:
            reject(batch, table, rejections, taken=len(fitting), transaction=transaction)
            for number, first in enumerate(range(0, len(fitting), size)):
                part = fitting.slice(first, size)
                transaction.append(self._topic, part, sequence=batch.number * APPENDS_MAX + number)
                reach("sink_rows_written")
            reach("before_sink_commit")
        reach("sink_committed")

    def close(self) -> None:
        """Nothing is open between batches."""


# NewTopic: a topic that does not exist yet; a flow of the program creates it.


# The default number of partitions: about the cores of most machines.
PARTITIONS = 4


class NewTopic(SparkTopic):
    """A topic that does not exist yet, by its name. Its settings come from the rows of the flow that creates it:
    the marks on their columns say which of them are key and event time."""

    def __init__(self, log: Log, name: str, home: str, session: Callable[[], SparkSession]) -> None:
        self._name = check_own_name(name, "topic")
        self._log = log
        self._home = home
        self._session = session
        build = current_build()
        self._planned = None if build is None else build.schemas.get(f"topic:{name}")

    @property
    def name(self) -> str:
        return self._name

    @property
    def settings(self) -> TopicSettings:
        if self._planned is None:
            raise no_such_topic(self._name, self._log.title, self._log.topic_names())
        return derive_settings(self._name, self._planned)

    @property
    def backend(self) -> TopicBackend:  # type: ignore[override]
        return self._log.open_topic(self._name)

    def accept(self, schema: pa.Schema) -> None:
        derive_settings(self._name, schema)

    def writer(self, run: FlowRun, schema: pa.Schema) -> TopicWriter:
        backend = self._log.create_topic(derive_settings(self._name, schema))
        topic = SparkTopic(self._log, backend, self._home, self._session)
        return topic.writer(run, schema)


def derive_settings(name: str, schema: pa.Schema) -> TopicSettings:
    """The settings of a topic for rows of this schema."""
    fields = [field for field in schema if field.name != "record"]
    keys = {}
    event_time = None
    for field in fields:
        marks = field.metadata or {}
        if b"mainstem.key" in marks:
            keys[int(marks[b"mainstem.key"])] = field.name
        if b"mainstem.event_time" in marks and pa.types.is_timestamp(field.type):
            event_time = field.name
    # A part of a key is not used as the key: it would group other rows.
    whole = sorted(keys) == list(range(len(keys)))
    key = tuple(keys[place] for place in sorted(keys)) if whole and keys else None
    plain = pa.schema([field.remove_metadata() for field in fields])
    return TopicSettings.of(name, schema=plain, key=key, event_time=event_time, partitions=PARTITIONS)
