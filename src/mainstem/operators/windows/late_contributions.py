"""Late contributions: rows that came too late for their window, each with what it would have added to it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mainstem.operators.windows.cells import POSITION, WindowAggregates
from mainstem.operators.windows.numbering import whole_column

__all__ = ["late_contributions", "late_schema"]


def late_schema(by: pa.Schema, aggregates: WindowAggregates) -> pa.Schema:
    """The key, the window, the row's time and own watermark, how far the one was behind the other, and what it held."""
    return pa.schema(
        [
            *by,
            pa.field("window_start", pa.int64()),
            pa.field("window_end", pa.int64()),
            pa.field("time", pa.int64()),
            pa.field("watermark", pa.int64()),
            pa.field("behind_us", pa.int64()),
            *POSITION,
            pa.field("rows", pa.int64()),
            *aggregates.output_schema,
            pa.field("reason", pa.string()),
        ]
    )


def late_contributions(schema: pa.Schema, rows: pa.Table, aggregates: WindowAggregates) -> pa.Table | None:
    """Of an engine's input rows those columns; None if there are none."""
    if not rows.num_rows:
        return None
    partials = rows.select(aggregates.partial_schema.names)
    finished = aggregates.finished(partials)
    time, watermark = whole_column(rows, "time"), whole_column(rows, "watermark")
    known = np.asarray(time.is_valid()) & np.asarray(watermark.is_valid())
    behind = np.asarray(watermark.fill_null(0)) - np.asarray(time.fill_null(0))
    # A row has no window if it has no time, or if the gap that it says for itself is none.
    homeless = np.asarray(whole_column(rows, "window_end").is_null())
    reasons = np.where(homeless, np.where(np.asarray(time.is_null()), "no event time", "no gap"), "too late")
    columns = {name: rows.column(name) for name in rows.column_names if name in schema.names}
    columns |= {name: finished.column(name) for name in finished.column_names}
    columns["behind_us"] = pa.array(behind, mask=~known)
    columns["reason"] = pa.array(reasons.tolist())
    return pa.table([columns[at.name].cast(at.type) for at in schema], schema=schema)
