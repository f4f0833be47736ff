"""ArrowWriter: gives each batch of a flow to a writer as one Arrow table; rejected rows go to their topic first."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from mainstem.batch import Batch, Written
from mainstem.crash_points import reach
from mainstem.spark.checkpoint.rejected_rows import reject
from mainstem.spark.columnar_rows import ColumnarRows, SendRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ArrowWriter", "TableWriter"]


class TableWriter(Protocol):
    """Commits batches that are Arrow tables, each once."""

    @property
    def committed_batch(self) -> int:
        """The number of the last committed batch; -1 if there is none."""

    def prepare(self, rows: pa.Table) -> Any:
        """The rows as they will be written; its `rejections` are known before anything is written."""

    def commit(self, merged: Any, batch: Batch) -> Written:
        """Commit prepared rows and the batch together."""

    def close(self) -> None: ...


class ArrowWriter:
    """Writes the batches of a flow into a view or a store."""

    def __init__(self, writer: TableWriter) -> None:
        self.writer = writer

    @property
    def committed_batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        return self.writer.committed_batch

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
        prepared = self.writer.prepare(table)
        reject(batch, table, prepared.rejections, taken=len(table) - len(prepared.rejections))
        written = self.writer.commit(prepared, batch)
        return replace(written, sink_ms=(time.perf_counter_ns() - began) // 1_000_000)

    def close(self) -> None:
        self.writer.close()
