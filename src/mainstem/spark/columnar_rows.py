"""ColumnarRows: the rows of a batch as Arrow columns, which Spark passes on without decoding them.

If a flow has no state, and its steps can be computed over Arrow (`plain_read`), the reader of its topic computes them and gives
the rows to the *column task* of the sink. Spark gets one row for each result of the task:

    mainstem_read      int64     the number of rows that the task got for it
    mainstem_result    binary    the result: an Arrow stream of rows, the path of a file that the task wrote, a count

The results go to the sink's writer, which commits them with the batch. Offsets are the same as without columns, so a
checkpoint can be used with either.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.batch import Batch, Written
from mainstem.spark.plan.row_expression import Condition, condition_mask, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "RESULTS",
    "VALUE_BYTES_MAX",
    "ColumnPacking",
    "ColumnTask",
    "ColumnWriter",
    "ColumnarRows",
    "CountRows",
    "SendRows",
    "StageFile",
    "compute_rows",
    "gather_rows",
    "has_results",
    "new_file",
]

RESULTS = pa.schema([("mainstem_read", pa.int64()), ("mainstem_result", pa.binary())])
# Rows that are computed at once: with fewer the calls to Arrow cost more than the values.
ROWS_MIN = 10_000
BYTES_MAX = 32 << 20
# Rows of more bytes than this go into a file, where driver and tasks share a folder. To make and to map a file costs as much
# as to send some hundred kilobytes.
VALUE_BYTES_MAX = 1 << 20


# In the readers


class ColumnTask(Protocol):
    """What a reader does with the rows of its slice for a sink. A dataclass: it is sent to Spark's workers as text."""

    def run(self, tables: Iterator[pa.Table]) -> Iterator[bytes | pa.Buffer]:
        """The results for the writer. A task may run twice; then the results of one run are used."""


@dataclass(frozen=True)
class SendRows:
    """Sends the rows to the driver, as Arrow streams.

    If the driver and the tasks share a `folder`, many rows go into a file there, and the result is its path: as a value of a
    row, they would be copied five times on their way through Java.
    """

    folder: str = ""

    def run(self, tables: Iterator[pa.Table]) -> Iterator[bytes | pa.Buffer]:
        few: list[pa.Table] = []
        size = 0
        for table in tables:
            few.append(table)
            size += table.nbytes
            if self.folder and size > VALUE_BYTES_MAX:
                yield self._write_file(chain(few, tables))
                return
            if not self.folder:
                yield _stream(few.pop())
        if few:
            yield _stream(pa.concat_tables(few))

    def _write_file(self, tables: Iterable[pa.Table]) -> bytes:
        path = new_file(self.folder)
        with ExitStack() as opened:
            file = opened.enter_context(pa.OSFile(path, "wb"))
            writer: pa.ipc.RecordBatchStreamWriter | None = None
            for table in tables:
                if writer is None:
                    writer = opened.enter_context(pa.ipc.new_stream(file, table.schema))
                writer.write_table(table)
        return path.encode()


def new_file(folder: str) -> str:
    """An empty file in a folder for rows on their way, which is made if it is not there."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = f"{folder}/{uuid.uuid4().hex}.arrows"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return path


def _stream(table: pa.Table) -> pa.Buffer:
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


def _read_sent(result: pa.Buffer) -> pa.Table:
    """The rows of one result of `SendRows`."""
    # A path: every Arrow stream begins with four bytes of ones.
    if result[:1].to_pybytes() == b"/":
        path = result.to_pybytes().decode()
        rows = pa.ipc.open_stream(pa.memory_map(path)).read_all()
        # The rows stay mapped, and nothing of the file needs to reach the disk.
        os.remove(path)
        return rows
    return pa.ipc.open_stream(result).read_all()


@dataclass(frozen=True)
class StageFile:
    """Writes the rows into a Parquet file in a folder; the result is its name and the number of rows."""

    folder: str

    def run(self, tables: Iterator[pa.Table]) -> Iterator[bytes | pa.Buffer]:
        import pyarrow.parquet as pq

        first = next(tables, None)
        if first is None:
            return
        os.makedirs(self.folder, exist_ok=True)
        name, rows = f"{uuid.uuid4().hex}.parquet", first.num_rows
        with pq.ParquetWriter(f"{self.folder}/{name}", first.schema, compression="snappy") as writer:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
        yield json.dumps([name, rows]).encode()


@dataclass(frozen=True)
class CountRows:
    """Counts the rows and drops them."""

    def run(self, tables: Iterator[pa.Table]) -> Iterator[bytes | pa.Buffer]:
        yield str(sum(table.num_rows for table in tables)).encode()


@dataclass(frozen=True)
class ColumnPacking:
    """How a reader computes the rows of a flow, and what it does with them."""

    # The rows as they are read.
    schema: pa.Schema
    # The columns of the flow, each with its value in the rows that are read; and the exact filter.
    columns: tuple[tuple[str, list[Any]], ...]
    condition: Condition | None
    # The rows of the flow.
    rows: pa.Schema
    task: ColumnTask

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results for all rows of a reader, as `RESULTS`."""
        read = 0

        def tables() -> Iterator[pa.Table]:
            nonlocal read
            for table in gather_rows(batches, ROWS_MIN):
                rows = compute_rows(table, self.columns, self.condition)
                read += rows.num_rows
                if rows.num_rows:
                    yield rows.cast(self.rows)

        for result in self.task.run(tables()):
            yield _result(read, result)
            read = 0
        if read:
            yield _result(read, b"")


def _result(read: int, result: bytes | pa.Buffer) -> pa.RecordBatch:
    size = len(result) if isinstance(result, bytes) else result.size
    ends = pa.array([0, size], pa.int32()).buffers()[1]
    data = pa.py_buffer(result) if isinstance(result, bytes) else result
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    return pa.RecordBatch.from_arrays([pa.array([read], pa.int64()), value], schema=RESULTS)


def compute_rows(table: pa.Table, columns: Sequence[tuple[str, list[Any]]], condition: Condition | None) -> pa.Table:
    """These columns of the rows for which the condition is true."""
    batches = table.to_batches()
    if len(batches) != 1:
        batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    [batch] = batches
    if condition is not None:
        mask = condition_mask(condition, batch)
        batch = batch if pc.all(mask).as_py() else batch.filter(mask)
    arrays = values_of([value for _, value in columns], batch)
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


def gather_rows(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[pa.Table]:
    """Small batches together: a block of the log may have one row."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= rows_min or size >= BYTES_MAX:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


# In the driver


def has_results(rows: DataFrame) -> bool:
    """Whether a frame has the results of column tasks."""
    return bool(rows.columns == RESULTS.names)


class ColumnarRows:
    """The results of the column tasks of one batch, for its writer."""

    def __init__(self, frame: DataFrame, schema: pa.Schema) -> None:
        self._frame = frame
        # The rows of the flow, without the marks of their columns.
        self._schema = schema.remove_metadata()
        # The number of rows that the tasks got; known after the results were taken.
        self.rows_read = 0

    def results(self) -> list[pa.Buffer]:
        """The results that are not empty, in the order of the readers' slices. This runs the batch."""
        found = self._frame.toArrow()
        self.rows_read = pc.sum(found.column(0)).as_py() or 0
        return [value.as_buffer() for value in found.column(1) if len(value.as_buffer())]

    def to_table(self) -> pa.Table:
        """The rows that `SendRows` sent."""
        tables = [_read_sent(result) for result in self.results()]
        return pa.concat_tables([self._schema.empty_table(), *tables])


@runtime_checkable
class ColumnWriter(Protocol):
    """A writer of a flow's batches that also takes columns."""

    @property
    def column_task(self) -> ColumnTask | None:
        """What readers do with the rows; None if this writer takes rows only."""

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        """Commit the results of the tasks and the batch's number together."""
