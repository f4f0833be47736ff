"""Nowhere: a sink that takes rows and keeps none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.batch import Batch, FlowRun, Written
from mainstem.spark.columnar_rows import ColumnarRows, ColumnTask, CountRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Nowhere:
    """A sink that drops all rows, as Spark's own `noop` does."""

    kind = "nowhere"
    version = 1
    committed_batch = -1
    takes_columns = True
    column_task: ColumnTask = CountRows()

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(self, schema: pa.Schema) -> None:
        """It takes all rows."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> Nowhere:
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        rows.write.format("noop").mode("append").save()
        return Written(0)

    def write_columns(self, rows: ColumnarRows, batch: Batch) -> Written:
        return Written(sum(int(result.to_pybytes()) for result in rows.results()))

    def close(self) -> None:
        """Nothing is open."""
