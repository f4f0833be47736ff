"""Waiting rows: single rows that an engine processes in the order of their own watermarks.

A row whose own watermark is above the batch's waits in the state until the batch's reaches it: rows that belong
before it may still arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock, Int64Array, StateTable
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.windows.cells import POSITION, WAITING, CellLayout, WindowAggregates, cast_rows, find_state
from mainstem.operators.windows.numbering import Mask, later, numbers, whole_column

__all__ = ["ReadyRows", "WaitingRows", "late_contributions", "late_schema"]


# Late contributions: rows that are too late for their window, each with its aggregates.


def late_schema(by: pa.Schema, aggregates: WindowAggregates) -> pa.Schema:
    """The key, the window, the row's time, its own watermark and their difference, its position and its aggregates."""
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
    """An engine's input rows with the columns of `schema`; None if there are none."""
    if not rows.num_rows:
        return None
    partials = rows.select(aggregates.partial_schema.names)
    finished = aggregates.finish(partials)
    time, watermark = whole_column(rows, "time"), whole_column(rows, "watermark")
    known = np.asarray(time.is_valid()) & np.asarray(watermark.is_valid())
    behind = np.asarray(watermark.fill_null(0)) - np.asarray(time.fill_null(0))
    # A row has no window if its time is null, or its gap is null or not positive.
    homeless = np.asarray(whole_column(rows, "window_end").is_null())
    reasons = np.where(homeless, np.where(np.asarray(time.is_null()), "no event time", "no gap"), "too late")
    columns = {name: rows.column(name) for name in rows.column_names if name in schema.names}
    columns |= {name: finished.column(name) for name in finished.column_names}
    columns["behind_us"] = pa.array(behind, mask=~known)
    columns["reason"] = pa.array(reasons.tolist())
    return pa.table([columns[at.name].cast(at.type) for at in schema], schema=schema)


@dataclass(frozen=True)
class ReadyRows:
    """Single rows, column by column: the span of each, its own watermark, and its other columns."""

    start: Int64Array
    end: Int64Array
    watermark: Int64Array
    # The columns of state rows: group, check, by, position, accumulators.
    rows: pa.Table


class WaitingRows:
    """The rows of a batch, and waiting rows of earlier batches. For one thread."""

    def __init__(self, layout: CellLayout, rows: pa.Table, span: str | int, clock: BatchClock) -> None:
        """`span`: the length of a row's own window: a number, or the name of a column."""
        self.layout, self.rows, self.clock = layout, rows, clock
        self.time = numbers(rows, "time")
        lengths = np.full(rows.num_rows, span, np.int64) if isinstance(span, int) else numbers(rows, span)
        # A row without a length has no window, like one without a time.
        self.known = np.asarray(rows.column("time").is_valid()) & (lengths > 0)
        lengths = np.maximum(1, lengths)
        self.end = np.where(self.time > NEVER - 1 - lengths, np.int64(NEVER - 1), self.time + lengths)
        # After concurrent appends a row's watermark may be below that of the previous batch, which then applies.
        self.watermark = np.maximum(numbers(rows, "watermark", NO_TIME), clock.watermark_before)

    def over(self, lateness: int) -> Int64Array:
        """When a row's own span can no longer be corrected."""
        return later(self.end, lateness)

    def take(self, which: Mask) -> pa.Table:
        """Some rows with their own spans, as `late_contributions` takes them."""
        chosen = np.flatnonzero(which)
        rows = self.rows.take(pa.array(chosen))
        known = ~self.known[chosen]
        return (
            rows.append_column("window_start", pa.array(self.time[chosen], mask=known))
            .append_column("window_end", pa.array(self.end[chosen], mask=known))
            .append_column("rows", pa.array(np.ones(len(chosen), np.int64)))
        )

    def separate(
        self, state: StateTable, counted: Mask, *, beyond: int = 0
    ) -> tuple[pa.Table, ReadyRows, pa.Table, pa.Table]:
        """The state of the touched keys; the rows that are ready; those that wait; those that waited.

        A row is ready if the batch's watermark is at least its own plus `beyond`.
        """
        ready = self.known & counted & (later(self.watermark, beyond) <= self.clock.watermark)
        waits = self.known & counted & ~ready
        due = state.due(self.clock)
        waited = due.filter(pa.array(_waiting(due)))
        groups = np.r_[numbers(self.rows, "group")[ready], numbers(waited, "group")]
        kept = find_state(state, groups, due)
        kept = kept.filter(pa.array(~_waiting(kept)))
        now = self._build_rows(ready, beyond)
        rows = pa.concat_tables([now, waited]).combine_chunks()
        readied = ReadyRows(
            numbers(rows, "window_start"), numbers(rows, "window_end"), numbers(rows, "watermark", NO_TIME), rows
        )
        return kept, readied, self._build_rows(waits, beyond), waited.select(["group", "item"])

    def _build_rows(self, which: Mask, beyond: int) -> pa.Table:
        chosen = np.flatnonzero(which)
        rows = self.rows.take(pa.array(chosen))
        position = [numbers(rows, at.name) for at in POSITION]
        count = len(chosen)
        columns: dict[str, object] = {
            "item": tell_apart(mix(numbers(rows, "check"), np.full(count, WAITING, np.int64), *position)),
            "event_due": later(self.watermark[chosen], beyond),
            "processing_due": np.full(count, NEVER, np.int64),
            "kind": np.full(count, WAITING, np.int8),
            "window_start": self.time[chosen],
            "window_end": self.end[chosen],
            "rows": np.ones(count, np.int64),
            "watermark": self.watermark[chosen],
        }
        names = ["group", "check", *self.layout.by.names, *(at.name for at in POSITION)]
        names += self.layout.aggregates.partial_schema.names
        schema = self.layout.state_schema
        plain = cast_rows(rows.select(names), pa.schema([schema.field(name) for name in names]))
        return self.layout.build_rows(columns, plain)


def _waiting(rows: pa.Table) -> Mask:
    return np.asarray(numbers(rows, "kind") == WAITING)
