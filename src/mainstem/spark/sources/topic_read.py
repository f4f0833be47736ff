"""A snapshot of a topic as a DataFrame: a native scan of frozen Parquet files.

The files stay for as long as Spark uses the scan: every frame derived from it, cached or not, refers to the same
relation in Spark's memory, and a weak reference there shows when the last one is gone. It is checked when the next read
begins, and at the end of the process; the files of a killed process are removed by the next one.
"""

from __future__ import annotations

import atexit
import threading
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from mainstem.log.frozen_topic import FrozenTopic, remove_left_behind
from mainstem.log.log import TopicBackend
from mainstem.log.partition_reads import Position
from mainstem.log.record import RECORD, RECORD_MARK
from mainstem.log.watermark import TIME, WATERMARKED_RECORD
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["READ_RECORD", "read_topic", "with_watermark"]


# Sealed files have the first two, files written for this read have the last; the others are null.
READ_RECORD = pa.struct([*RECORD, ("observed_up_to", TIME), ("stated_watermark", TIME), ("watermark", TIME)])


class _Read(NamedTuple):
    """Files that are in use for as long as Spark has one of the relations."""

    spark: SparkSession
    frozen: FrozenTopic
    relations: list[Any]

    def over(self) -> bool:
        context = self.spark.sparkContext
        return context._jsc is None or all(relation.get() is None for relation in self.relations)


_reads: list[_Read] = []
_guard = threading.Lock()


def read_topic(
    spark: SparkSession, topic: TopicBackend, home: str, shown: pa.Schema, start: Position, stop: Position,
    delay: int | None,
) -> DataFrame | None:  # fmt: skip
    """The records between two positions, with the columns of `shown`; None if the log has no files of its own."""
    _remove_unused(home)
    frozen = topic.freeze(home, start, stop, delay)
    if frozen is None:
        return None
    try:
        rows = _scan(spark, frozen, shown, delay)
        relations = [spark._jvm.java.lang.ref.WeakReference(found) for found in _relations(rows)]  # type: ignore[union-attr]
    except BaseException:
        frozen.remove()
        raise
    with _guard:
        _reads.append(_Read(spark, frozen, relations))
    return rows


def _scan(spark: SparkSession, frozen: FrozenTopic, shown: pa.Schema, delay: int | None) -> DataFrame:
    from pyspark.sql import functions as F

    record = RECORD if delay is None else READ_RECORD
    stored = shown.set(len(shown) - 1, pa.field("record", record, metadata=RECORD_MARK))
    reader = spark.read.schema(spark_schema(stored))
    rows = reader.parquet(frozen.whole)
    if frozen.cuts:
        wanted = (
            (F.col("record.partition") == cut.partition)
            & (F.col("record.offset") >= cut.first)
            & (F.col("record.offset") < cut.end)
            for cut in frozen.cuts
        )
        rows = rows.union(reader.parquet(frozen.cut).where(reduce(or_, wanted)))
    return rows if delay is None else with_watermark(rows, delay)


def with_watermark(rows: DataFrame, delay: int) -> DataFrame:
    """The rows with the watermark of each record instead of the two columns that it is computed from."""
    from pyspark.sql import functions as F

    observed = F.col("record.observed_up_to") - F.expr(f"INTERVAL '{delay / 1_000_000:.6f}' SECOND")
    known = F.greatest(observed, F.col("record.stated_watermark"), F.col("record.watermark"))
    assert READ_RECORD.field(len(READ_RECORD) - 1).name == WATERMARKED_RECORD.field(len(RECORD)).name
    changed = F.col("record").withField("watermark", known).dropFields("observed_up_to", "stated_watermark")
    marks = {name.decode(): value.decode() for name, value in RECORD_MARK.items()}
    return rows.select(*rows.columns[:-1], changed.alias("record", metadata=marks))


def _relations(rows: DataFrame) -> list[Any]:
    """The relations of the scanned files, which all frames derived from these rows refer to."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    return [
        leaf.relation() if leaf.getClass().getSimpleName() == "LogicalRelation" else leaf.table()
        for leaf in (leaves.apply(index) for index in range(leaves.size()))
    ]


def _remove_unused(home: str) -> None:
    remove_left_behind(home)
    with _guard:
        for read in [read for read in _reads if read.over()]:
            read.frozen.remove()
            _reads.remove(read)


@atexit.register
def _remove_all() -> None:
    with _guard:
        while _reads:
            _reads.pop().frozen.remove()
