"""Packed rows: the rows of a topic for a stage, many of them in one binary value that Spark does not decode.

Between a topic and a stage there are often only filters, renamed columns or windows. Then the reader of the topic does all
of it over Arrow: it prepares its rows for the engine, divides them into the stage's buckets, and returns one row for
each megabyte of a bucket's rows:

    mainstem_bucket    int32     the bucket
    mainstem_packed    binary    an Arrow stream of rows as the engine takes them, without columns that have only nulls; or, if
                                 there are many, where in which file it is: "<first byte> <bytes> <path>"
    mainstem_rows      int64     the number of rows from which they were prepared, once for all buckets: a preparation may
                                 merge rows
    mainstem_stage     int32     the number of the stage, if several stages take rows of one query

So Spark shuffles a few values instead of decoding and encoding tens of thousands of rows twice. A value of some megabytes
would be copied eight times on its way through Java and the files of its shuffle; so many rows are written into a file once, and
the stage maps it. The file is in the flow's directory, beside the state that the tasks read and write anyway.
A row has the same bucket as in Spark's shuffle (`spark_hashes`): the state does not depend on whether rows are packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.spark_hashes import buckets_of
from mainstem.spark.columnar_rows import VALUE_BYTES_MAX, compute_rows, gather_rows, new_file
from mainstem.spark.plan.row_expression import Condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BUCKET", "PACKED", "STAGE", "Packing", "is_packed", "packed_markers", "unpack"]

BUCKET = "mainstem_bucket"
STAGE = "mainstem_stage"
PACKED = pa.schema(
    [(BUCKET, pa.int32()), ("mainstem_packed", pa.binary()), ("mainstem_rows", pa.int64()), (STAGE, pa.int32())]
)

# Rows prepared at once.
ROWS = 100_000
# A value has about as many bytes at most. Java copies a value several times, and a larger one out of the processor's cache.
VALUE_BYTES = 1 << 20


class ArrowPreparation(Protocol):
    """A dataclass that prepares rows over Arrow."""

    def arrow(self, table: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class Packing:
    """How a reader packs its rows for one input of a stage. A value: it is sent to Spark's workers."""

    # The rows as they are read.
    schema: pa.Schema
    # The columns of the stage's input, each with its value in the rows: ("at", ["column", "record", "appended_at"]).
    columns: tuple[tuple[str, list[Any]], ...]
    # The filter of the rows; it is applied exactly.
    condition: Condition | None
    # Converts the input to the engine's columns, `taken`; "group" is one of them.
    preparation: ArrowPreparation
    taken: pa.Schema
    buckets: int
    stage: int
    # The directory for many rows; without it they are all values.
    sent: str = ""

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a reader, as `PACKED`."""
        for rows in gather_rows(batches, ROWS):
            given = compute_rows(rows, self.columns, self.condition)
            taken = self.preparation.arrow(given).select(self.taken.names).cast(self.taken)
            if taken.num_rows:
                yield self._divide(taken, given.num_rows)

    def _divide(self, rows: pa.Table, given: int) -> pa.RecordBatch:
        """The values of each bucket with rows, all in one buffer. `given`: the number of rows before the preparation."""
        buckets = buckets_of(np.asarray(whole(rows.column("group"))), self.buckets)
        sent = rows.select([name for name in rows.schema.names if rows.column(name).null_count < rows.num_rows])
        sent = sent.take(pa.array(np.argsort(buckets, kind="stable")))
        counts = np.bincount(buckets, minlength=self.buckets)
        path = new_file(self.sent) if self.sent and sent.nbytes > VALUE_BYTES_MAX else ""
        size = sent.num_rows if path else max(1, VALUE_BYTES * sent.num_rows // max(1, sent.nbytes))
        numbers: list[int] = []
        places = [0]
        with pa.OSFile(path, "wb") if path else pa.BufferOutputStream() as target:
            for bucket, end in zip(np.flatnonzero(counts), np.cumsum(counts)[counts > 0], strict=True):
                for first in range(end - counts[bucket], end, size):
                    with pa.ipc.new_stream(target, sent.schema) as writer:
                        writer.write_table(sent.slice(first, min(size, end - first)))
                    places.append(target.tell())
                    numbers.append(int(bucket))
            if path:
                packed = pa.array(
                    [f"{first} {end - first} {path}".encode() for first, end in pairwise(places)], pa.binary()
                )
            else:
                parts = [None, pa.py_buffer(np.array(places, np.int32)), target.getvalue()]
                packed = pa.Array.from_buffers(pa.binary(), len(numbers), parts)
        once = np.where(np.arange(len(numbers)) == 0, given, 0)
        stage = np.full(len(numbers), self.stage, np.int32)
        columns = [pa.array(numbers, pa.int32()), packed, pa.array(once), pa.array(stage)]
        return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def is_packed(rows: DataFrame) -> bool:
    """Whether a frame has packed rows."""
    return bool(rows.columns == PACKED.names)


def packed_markers(rows: DataFrame, buckets: int) -> DataFrame:
    """An empty packed row for every bucket; see `stage_task`."""
    numbers = rows.sparkSession.range(0, buckets, 1, 1)
    marker = ("CAST(id AS INT)", "CAST('' AS BINARY)", "0L", "0")
    return numbers.selectExpr(*(f"{sql} AS {name}" for name, sql in zip(PACKED.names, marker, strict=True)))


def unpack(batches: Iterable[pa.RecordBatch], schema: pa.Schema, task: int) -> tuple[int, pa.Table, int]:
    """The bucket, its rows as the engine takes them, and the number of rows from which they were prepared.

    Without packed rows the bucket is the number of the task.
    """
    bucket, tables, given = task, [schema.empty_table()], 0
    for batch in batches:
        given += pc.sum(batch.column(2)).as_py() or 0
        for number, value in zip(batch.column(0), batch.column(1), strict=True):
            bucket = number.as_py()
            if not len(value.as_buffer()):
                continue
            rows = pa.ipc.open_stream(_stream_in(value.as_buffer())).read_all()
            there = set(rows.schema.names)
            columns = [rows.column(at.name) if at.name in there else pa.nulls(rows.num_rows, at.type) for at in schema]
            tables.append(pa.Table.from_arrays(columns, schema=schema))
    return bucket, pa.concat_tables(tables), given


def _stream_in(value: pa.Buffer) -> pa.Buffer:
    # Every Arrow stream begins with four bytes of ones.
    if value[:1].to_pybytes() == b"\xff":
        return value
    first, size, path = value.to_pybytes().decode().split(" ", 2)
    with pa.memory_map(path) as file:
        file.seek(int(first))
        return file.read_buffer(int(size))
