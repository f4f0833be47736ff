"""late_rows, on_time_rows: split a frame by each row's own watermark, before Spark's own operators see it.

A row is late if its event time is below the watermark recorded in the log when it was appended. So the two halves are
the same in every run. Spark drops late rows silently; with these functions a flow can keep them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.stage.frame_columns import columns_of, event_time_of, record_field, transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["late_rows", "on_time_rows"]


def late_rows(rows: DataFrame) -> DataFrame:
    """The late rows.

    >>> from mainstem.testing import TestStream
    >>> stream = TestStream("n INT, at TIMESTAMP", event_time="at").watermark("2026-01-01 12:00")
    >>> stream.rows([{"n": 1, "at": "2026-01-01 11:59"}, {"n": 2, "at": "2026-01-01 12:01"}]).run(late_rows).rows[0]["n"]
    1
    """
    return _split(rows, "late")


def on_time_rows(rows: DataFrame) -> DataFrame:
    """The rows that are not late; also rows without an event time, and rows before the first watermark.

    >>> from mainstem.testing import TestStream
    >>> stream = TestStream("n INT, at TIMESTAMP", event_time="at").watermark("2026-01-01 12:00")
    >>> stream.rows([{"n": 1, "at": "2026-01-01 11:59"}, {"n": 2, "at": None}]).run(on_time_rows).rows
    [{'n': 2, 'at': None}]
    """
    return _split(rows, "on time")


def _split(rows: DataFrame, which: str) -> DataFrame:
    schema = columns_of(rows)
    operator = "late_rows" if which == "late" else "on_time_rows"
    time = event_time_of(schema, operator)
    record = record_field(schema)
    if record is None or record.type.get_field_index("watermark") < 0:
        raise Invalid(
            f"{operator} needs each row's watermark, and the rows have none",
            detail=f"The columns are: {', '.join(schema.names)}. A row's watermark is in record.watermark.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select.',
        )
    name = record.name
    return transform(
        rows, lambda frame: _filter(frame, time, name, which), lambda table: _filter_arrow(table, time, name, which)
    )


def _filter(frame: DataFrame, time: str, record: str, which: str) -> DataFrame:
    from pyspark.sql import functions as F

    # A comparison with null is null, so on-time rows are the negation of `late`.
    late = F.coalesce(F.col(f"`{time}`") < F.col(f"`{record}`")["watermark"], F.lit(False))
    return frame.where(late if which == "late" else ~late)


def _filter_arrow(table: pa.Table, time: str, record: str, which: str) -> pa.Table:
    watermark = pc.struct_field(table.column(record), ["watermark"])
    late = pc.fill_null(pc.less(table.column(time), watermark), False)
    return table.filter(late if which == "late" else pc.invert(late))
