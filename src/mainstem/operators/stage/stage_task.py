"""The tasks of a stage in Spark's workers: one step of the engine per bucket, which reads and writes its state.

A task writes three kinds of files: the runs of the bucket's state, the late rows, and last a *receipt* that
names both. The next operator gets its rows directly. The driver collects the receipts when the sink has committed the
batch; if the task of a bucket ran twice it takes either receipt, since both are equal.

The bucket of a task follows from its rows, not from its number among Spark's tasks: if the output of a stage goes into a
union, or to several places, the tasks of other rows are numbered with it, and another batch may have more of them. A task
without rows could not know its bucket, so then every bucket gets a *marker*: a row that has only a group.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mainstem.crash_points import reach
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD
from mainstem.operators.stage.engine import NEVER, BatchClock, Engine, Step
from mainstem.operators.stage.hashes import bucket_groups
from mainstem.operators.stage.packed_rows import BUCKET, PACKED, Packing, is_packed, packed_markers, unpack
from mainstem.operators.stage.spark_hashes import buckets_of
from mainstem.operators.stage.stage import StageSpec, stage_schema
from mainstem.operators.stage.state_run_file import RunEntry
from mainstem.operators.stage.state_runs import MemoryState, StateRuns, next_due
from mainstem.spark.columnar_rows import RESULTS, ColumnPacking
from mainstem.spark.sources.worker_memory import spare_collections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BucketState", "END_OF_TIME", "StageBatch", "add_record", "at_once", "through_stage"]

# The watermark when all rows have arrived.
END_OF_TIME = NEVER - 1


@dataclass(frozen=True)
class BucketState:
    """A bucket of a stage in a manifest: its runs, its number of live state rows, and of rows emitted so far."""

    runs: tuple[RunEntry, ...] = ()
    live: int = 0
    given: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"runs": [run.to_json() for run in self.runs], "live": self.live, "given": self.given}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BucketState:
        return cls(tuple(RunEntry(**run) for run in content["runs"]), content["live"], content["given"])


@dataclass(frozen=True)
class StageBatch:
    """One batch of one stage, as its tasks get it."""

    engine: Engine
    # The directory of the runs, and that of the receipts of this attempt at the batch.
    folder: str
    attempt: str
    number: int
    clock: BatchClock
    buckets: int
    state: Mapping[int, BucketState] = field(default_factory=dict)
    # As in `StageSpec`.
    behind: int = 0
    # Whether each bucket has a marker among its rows; if not, the number of a task is that of its bucket.
    marked: bool = False

    def find_bucket(self, rows: pa.Table, task: int) -> tuple[int, pa.Table]:
        """The bucket of these rows, and the rows without markers."""
        if self.buckets == 1 or not rows.num_rows:
            return min(task, self.buckets - 1), rows
        groups = np.asarray(rows.column("group").combine_chunks())
        bucket = int(buckets_of(groups[:1], self.buckets)[0])
        for place in np.flatnonzero(groups == bucket_groups(self.buckets)[bucket])[::-1].tolist():
            row = rows.slice(place, 1)
            # A key may have that hash too; but its rows have other columns that are not null.
            if all(row.column(name).null_count for name in row.column_names if name != "group"):
                rows = pa.concat_tables([rows.slice(0, place), rows.slice(place + 1)])
        return bucket, rows

    def step(self, bucket: int, rows: pa.Table, given: int | None = None) -> pa.Table:
        """Process a bucket's rows: write its state and receipt, and return the output rows.

        `given`: the number of rows from which they were prepared, if it is another one.
        """
        began = time.perf_counter_ns()
        before = self.state.get(bucket, BucketState())
        state = StateRuns(self.folder, before.runs, self.engine.state_schema, before.live)
        done = self.engine.step(state, rows, self.clock)
        runs = state.after(done, self.number)
        reach("stage_runs_written")
        after = BucketState(tuple(runs), state.live, before.given + done.output.num_rows)
        late = self._leave_late(bucket, done)
        taken = rows.num_rows if given is None else given
        self._leave_receipt(bucket, after, done, late, taken, (time.perf_counter_ns() - began) // 1_000_000)
        return add_record(done, bucket, before.given, self.clock, self.behind)

    def _leave_late(self, bucket: int, done: Step) -> str:
        if done.late is None or not done.late.num_rows:
            return ""
        path = f"{self.attempt}/late-{bucket}-{uuid.uuid4().hex}.arrow"
        with open(path, "wb") as file, pa.ipc.new_file(file, done.late.schema) as writer:
            writer.write_table(done.late)
        return path

    def _leave_receipt(self, bucket: int, after: BucketState, done: Step, late: str, taken: int, ms: int) -> None:
        event, processing = next_due(self.folder, after.runs, self.clock)
        receipt = {
            "bucket": bucket, "state": after.to_json(), "late": late, "counts": dict(done.counts),
            "event_due": event, "processing_due": processing, "in": taken, "out": done.output.num_rows,
            "ms": ms,
        }  # fmt: skip
        name = f"{self.attempt}/{uuid.uuid4().hex}"
        with open(f"{name}.part", "w", encoding="utf-8") as file:
            json.dump(receipt, file)
        os.rename(f"{name}.part", f"{name}.json")


def add_record(done: Step, bucket: int, given: int, clock: BatchClock, behind: int = 0) -> pa.Table:
    """The output of an engine, with `record` in place of `change`. `behind`: as in `StageSpec`."""
    output, count = done.output, done.output.num_rows
    change = output.column("change").combine_chunks()
    values = [
        pa.array(np.full(count, bucket, np.int32)),
        pa.array(np.arange(given, given + count, dtype=np.int64)),
        _times(clock.now, count),
        change.combine_chunks() if isinstance(change, pa.ChunkedArray) else change,
        pa.nulls(count, WATERMARKED_RECORD.field("headers").type),
        _own_watermarks(done, clock, behind),
    ]
    record = pa.StructArray.from_arrays(values, fields=list(WATERMARKED_RECORD))
    return output.drop_columns(["change"]).append_column("record", record)


def _own_watermarks(done: Step, clock: BatchClock, behind: int) -> pa.Array:
    """The watermark of each row, by which later stages decide whether it is late.

    If the engine knows it, it follows from the input rows, and does not depend on how they are split into batches. It is never
    below the watermark of the previous batch: later stages rely on that.
    """
    if done.own is None or clock.watermark == END_OF_TIME:
        return _times(clock.earlier(behind).watermark_before, done.output.num_rows)
    own = np.maximum(done.own, clock.watermark_before)
    known = own != NO_TIME
    return pa.array(np.where(known, own - behind, 0), mask=~known).view(pa.timestamp("us", "UTC"))


def _times(at: int, count: int) -> pa.Array:
    """A time for every row; null where there is none."""
    known = None if at in (NO_TIME, END_OF_TIME) else at
    return pa.repeat(pa.scalar(known, pa.int64()), count).view(pa.timestamp("us", "UTC"))


def _cast_batches(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast to exactly the types of the stage's schema."""
    plain = pa.schema([pa.field(at.name, at.type) for at in schema])
    yield from rows.select(plain.names).cast(plain).to_batches()


def through_stage(
    prepared: DataFrame, spec: StageSpec, batch: StageBatch, output: Packing | ColumnPacking | None = None
) -> DataFrame:
    """The output rows of a stage for the prepared rows of a batch; with `output`, packed for the next stage, or the results of
    a column task."""

    def one_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        spare_collections()
        given = None
        if taken is None:
            bucket, rows = batch.find_bucket(_collect(batches, empty), context.partitionId())
        else:
            bucket, rows, given = unpack(batches, taken, context.partitionId())
        shown = _cast_batches(batch.step(bucket, rows, given), schema)
        yield from shown if output is None else output.pack(shown)

    schema, empty = stage_schema(spec.engine), _empty(prepared)
    given_schema = schema if output is None else PACKED if isinstance(output, Packing) else RESULTS
    taken = spec.packed if is_packed(prepared) else None
    if taken is not None:
        rows = prepared.union(packed_markers(prepared, batch.buckets)) if batch.marked else prepared
        return _map(rows.repartitionById(batch.buckets, BUCKET), one_bucket, given_schema)
    if spec.broadcasts:
        prepared = _spread(prepared, batch.buckets)
    if batch.marked and batch.buckets > 1:
        markers = prepared.sparkSession.range(0, batch.buckets, 1, 1)
        markers = markers.selectExpr(f"element_at({_groups_sql(batch.buckets)}, CAST(id AS INT) + 1) AS group")
        prepared = prepared.unionByName(markers, allowMissingColumns=True)
    return _map(prepared.repartition(batch.buckets, "group"), one_bucket, given_schema)


def _spread(prepared: DataFrame, buckets: int) -> DataFrame:
    """The rows, those of broadcast inputs once for each bucket."""
    from pyspark.sql import functions as F

    everywhere = F.expr(_groups_sql(buckets))
    group = F.explode(F.when(F.col("group").isNull(), everywhere).otherwise(F.array("group"))).alias("group")
    return prepared.select(*[group if name == "group" else F.col(name) for name in prepared.columns])


def _groups_sql(buckets: int) -> str:
    return f"array({', '.join(f'{group}L' for group in bucket_groups(buckets))})"


def at_once(prepared: DataFrame, spec: StageSpec) -> DataFrame:
    """The output rows of a stage for prepared batch rows, after which no more arrive."""
    engine = spec.engine
    clock = BatchClock(watermark=END_OF_TIME, now=END_OF_TIME, appended=END_OF_TIME)
    schema = stage_schema(engine)

    def one_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        done = engine.step(MemoryState(engine.state_schema), _collect(batches, empty), clock)
        yield from _cast_batches(add_record(done, context.partitionId(), 0, clock), schema)

    empty = _empty(prepared)
    count = int(prepared.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    if spec.broadcasts:
        prepared = _spread(prepared, count)
    return _map(prepared.repartition(count, "group"), one_bucket, schema)


def _empty(prepared: DataFrame) -> pa.Table:
    """An empty table with the columns of a frame, for the tasks of buckets without rows."""
    from mainstem.spark.spark_types import arrow_schema

    return pa.schema([pa.field(at.name, at.type) for at in arrow_schema(prepared.schema)]).empty_table()


def _collect(batches: Iterator[pa.RecordBatch], empty: pa.Table) -> pa.Table:
    given = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(given) if given else empty


def _map(rows: DataFrame, function: Callable[[Any], Any], schema: pa.Schema) -> DataFrame:
    from mainstem.spark.spark_types import spark_schema

    return rows.mapInArrow(function, spark_schema(schema))
