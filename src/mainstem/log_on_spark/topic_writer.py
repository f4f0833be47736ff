"""TopicWriter: the batches of a flow into a topic, each once.

A batch is one transaction of the flow's producer; its appends carry sequences that begin at the batch's number times a
thousand. Since a transaction is seen whole or not at all, one sequence of a batch in any partition means that all of
it is there. A later run of the flow opens the producer anew, and this one is fenced. Rows that the topic cannot take
are appended to the topic of the flow's rejected rows in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.crash_points import reach
from mainstem.errors import InvalidRows
from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.topic import Topic
from mainstem.log_on_spark.fitting_rows import fitting_rows
from mainstem.log_on_spark.flow_run import Batch, FlowRun, Written
from mainstem.log_on_spark.rejected_rows import Rejection, reject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TopicWriter", "flow_producer", "taken_away_first"]

APPENDS_MAX = 1000
# An append is read and checked as a whole: this many rows are enough to be fast.
APPEND_ROWS = 131_072
# Longer than any batch takes to be written; the next run does not wait for it, since it fences this one.
TIMEOUT = "10 minutes"


def flow_producer(log: Log, run: FlowRun) -> Producer:
    """The producer under whose name a flow appends. A rebuilt version begins with its own sequences."""
    return Producer(log, log.open_producer(f"mainstem.flow.{run.flow}.v{run.version}"))


def taken_away_first(rows: pa.Table) -> pa.Table:
    """Rows of a changing table with those first that are taken away, whose `partition` is below 0: the old and the new row
    of a key may be from two tasks, and who reads the topic goes by its order. Others stay as they are."""
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
    def held(self) -> int:
        """The last batch that is in; -1 if there is none."""
        return self._producer.kept_sequence(self._topic) // APPENDS_MAX

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        table = taken_away_first(rows.toArrow())
        reach("sink_rows_computed")
        return self.append(table, batch)

    def append(self, table: pa.Table, batch: Batch) -> Written:
        """Append the rows of a batch, and those that do not fit to the topic of the rejected."""
        try:
            self._append(table, batch)
        except InvalidRows:
            # The transaction is aborted. Rare: so only now every row is looked at.
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
