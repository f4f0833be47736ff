"""The rows of sealed files as Spark's own file source gives them, with the columns that the topic source would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.log.record import RECORD, RECORD_MARK
from mainstem.log_on_spark.native_history import NativeHistory
from mainstem.log_on_spark.spark_types import spark_schema
from mainstem.log_on_spark.topic_read import READ_RECORD, with_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["history_rows"]

OPTIONS = {
    # Files have the age of their seal. By default Spark passes over what is a week older than the newest it has seen.
    "maxFileAge": "36500d",
    # Found by their names, which are unique: the same file by another path would be read once more.
    "fileNameOnly": "true",
    # As they were written: by the calendar that everyone uses, also before it was invented.
    "datetimeRebaseMode": "CORRECTED",
}


def history_rows(spark: SparkSession, history: NativeHistory, shown: pa.Schema, delay: int | None) -> DataFrame:
    """The portions as they are placed, with the columns of `shown`; Spark reads of them what the flow needs.

    A column that was added later is null in older files, and one that was widened is read as it is now.
    """
    record = RECORD if delay is None else READ_RECORD
    stored = shown.set(len(shown) - 1, pa.field("record", record, metadata=RECORD_MARK))
    reader = spark.readStream.schema(spark_schema(stored)).options(**OPTIONS)
    rows = reader.parquet(f"file://{history.read}")
    return rows if delay is None else with_watermark(rows, delay)
