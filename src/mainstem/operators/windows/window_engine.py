"""WindowEngine: windows that depend on a row's time alone (tumbling, hopping, cumulating, calendar, everything).

Rows arrive with their windows, and with whether they are on time for them: by the row's own watermark, which is recorded
in the log. So an on-time pane has the same rows however they are split into batches. Late rows that arrive before their
window's on-time pane wait for it.

Input (`input_schema`), one row for each row and window, or pre-aggregated by key, window and timing:

    group, check                    int64       hashes of the key
    by_0, by_1, ...                             the key
    window_start, window_end        int64       null in rows that have no event time (timing 2)
    timing                          int8        0 on time, 1 late, 2 too late
    rows                            int64       number of rows in these accumulators
    a0_sum, ...                                 accumulators
    time, watermark                 int64       of single rows (timing 2, or where a trigger counts rows), else null
    topic, partition, offset                    of single rows, else null
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.windows.cells import CELL, POSITION, WAITING, CellLayout, Cells, cast_rows, find_state
from mainstem.operators.windows.numbering import Mask, later, number_rows, numbers
from mainstem.operators.windows.panes import EARLY, LATE, ON_TIME, PaneEngine, Panes
from mainstem.operators.windows.triggers import Trigger
from mainstem.operators.windows.waiting_rows import late_contributions
from mainstem.operators.windows.window_rounds import Arrivals, Phase

__all__ = ["WindowEngine"]

ON_TIME_ROW, LATE_ROW, TOO_LATE_ROW = 0, 1, 2


@dataclass(frozen=True)
class WindowEngine(PaneEngine):
    """Windows that are assigned in advance. A value: it is sent to Spark's workers."""

    windows = "fixed"

    # Whether the state has columns for single rows, which another engine stores beside the cells.
    beside: bool = field(default=False, kw_only=True)
    # Whether a window emits only the last early and the last late pane that the rows of one batch trigger.
    last_only: bool = field(default=False, kw_only=True)

    @property
    def keeps_rows(self) -> bool:
        return self.beside or self._counts(self.late_trigger)

    @staticmethod
    def _counts(trigger: Trigger | None) -> bool:
        return trigger is not None and trigger.rows is not None

    @property
    def input_schema(self) -> pa.Schema:
        """The input of `step`; see above."""
        return pa.schema(
            [
                pa.field("group", pa.int64()),
                pa.field("check", pa.int64()),
                *self.by,
                pa.field("window_start", pa.int64()),
                pa.field("window_end", pa.int64()),
                pa.field("timing", pa.int8()),
                pa.field("rows", pa.int64()),
                *self.aggregates.partial_schema,
                pa.field("time", pa.int64()),
                pa.field("watermark", pa.int64()),
                *POSITION,
            ]
        )

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows, late = self._divide(rows, clock)
        kept = find_state(state, numbers(rows, "group"), state.due(clock))
        if not (rows.num_rows or kept.num_rows or late.num_rows):
            return Step(self.output_schema.empty_table())
        return _Batch(self, kept, rows, clock).step(late)

    def _divide(self, rows: pa.Table, clock: BatchClock) -> tuple[pa.Table, pa.Table]:
        """Rows to process, and rows that are too late."""
        timing = numbers(rows, "timing")
        end = numbers(rows, "window_end")
        gone = (timing == TOO_LATE_ROW) | (later(end, self.lateness) <= clock.watermark_before)
        # After concurrent appends a row may arrive for a window that was emitted: it is late.
        timing = np.where((timing == ON_TIME_ROW) & (end <= clock.watermark_before), LATE_ROW, timing)
        rows = rows.set_column(rows.schema.get_field_index("timing"), "timing", pa.array(timing.astype(np.int8)))
        if not gone.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~gone)), rows.filter(pa.array(gone))


class _Batch:
    """One step: the touched cells are numbered, and processed all at once."""

    def __init__(self, engine: WindowEngine, kept: pa.Table, rows: pa.Table, clock: BatchClock) -> None:
        self.engine, self.clock, self.layout = engine, clock, engine.layout
        kind = numbers(kept, "kind")
        both = pa.concat_tables([_keys(kept, engine.by), _keys(rows, engine.by)]).combine_chunks()
        start, end = numbers(both, "window_start"), numbers(both, "window_end")
        item = mix(numbers(both, "check"), start, end)
        ids, _ = number_rows(numbers(both, "group"), item)
        due = (numbers(kept, "event_due") <= clock.watermark) | (numbers(kept, "processing_due") <= clock.now)
        touched = np.zeros(int(ids.max()) + 1 if len(ids) else 0, np.bool_)
        touched[ids[np.r_[due, np.ones(rows.num_rows, np.bool_)]]] = True
        # Untouched cells of the same keys stay unchanged.
        chosen = np.flatnonzero(touched[ids])
        renumbered = np.cumsum(touched) - 1
        ids = renumbered[ids[chosen]]
        self.count = int(touched.sum())
        firsts = np.empty(self.count, np.int64)
        firsts[ids[::-1]] = chosen[::-1]
        old = chosen < kept.num_rows
        kept_rows, kept_ids = chosen[old], ids[old]
        self.rows, self.row_cells = rows, ids[~old]
        cells = kind[kept_rows] == CELL
        index = np.full(self.count, -1, np.int64)
        index[kept_ids[cells]] = kept_rows[cells]
        self.cells = Cells.of_state(self.layout, kept, index)
        self.kept = index >= 0
        # Of stored cells: whether the on-time pane is still to come.
        event_due = numbers(kept, "event_due")
        self.was_open = np.zeros(self.count, np.bool_)
        self.was_open[self.kept] = event_due[index[self.kept]] == end[firsts][self.kept]
        self.waiting, self.waiting_cells = kept.take(pa.array(kept_rows[~cells])), kept_ids[~cells]
        self.keys = both.take(pa.array(firsts))
        self.item = item[firsts]
        self.end = end[firsts]

    def step(self, too_late: pa.Table) -> Step:
        engine, cells, watermark, now = self.engine, self.cells, self.clock.watermark, self.clock.now
        panes = Panes(self.layout, cells)
        expiry = later(self.end, engine.lateness)
        was_open = self.was_open
        woken = cells.due <= now
        timing = numbers(self.rows, "timing")
        on_time, over = timing == ON_TIME_ROW, self.end <= watermark
        arrivals = self._arrivals(self.rows, self.row_cells, on_time, engine.early)
        opened = was_open.copy()
        opened[arrivals.cells] = True
        closing = opened & over
        forced = closing & (engine.on_time == "always")
        waking = was_open & ~over & woken
        before = self.clock.watermark_before
        early = Phase(
            engine.early, EARLY, ON_TIME, closing, forced, waking, now, self.end - 1, before, engine.last_only
        )
        early.run(cells, arrivals, panes)

        rows, ids = self._late_rows(over, timing)
        arrivals = self._arrivals(rows, ids, np.ones(len(ids), np.bool_), engine.late_trigger)
        existing = self.kept | opened
        existing[arrivals.cells] = True
        expired = existing & (expiry <= watermark)
        nothing = np.zeros(self.count, np.bool_)
        # The on-time pane cancels earlier timers.
        waking = self.kept & ~was_open & ~expired & woken
        if engine.lateness and (over & existing).any():
            late = Phase(
                engine.late_trigger, LATE, LATE, expired, nothing, waking, now, expiry - 1, before, engine.last_only
            )
            late.run(cells, arrivals, panes)
        put, gone = self._state(existing & ~expired, np.where(over, expiry, self.end), expired, over, timing)
        aside = late_contributions(engine.late_schema, too_late, engine.aggregates)
        counts = {"late": int(numbers(self.rows, "rows")[timing == LATE_ROW].sum()), "too_late": _rows_in(too_late)}
        output, _, own = panes.output(self.keys, expired)
        return Step(output, put, gone, aside, counts, own=own)

    def _arrivals(self, rows: pa.Table, ids: Int64Array, which: Mask, trigger: Trigger | None) -> Arrivals:
        """Rows of cells; if a trigger counts rows, sorted by cell and log position."""
        chosen = np.flatnonzero(which)
        if trigger is not None and trigger.rows is not None and len(chosen):
            position = [numbers(rows, at.name)[chosen] for at in POSITION]
            chosen = chosen[order_rows(ids[chosen], *position)]
        picked = (
            rows if len(chosen) == rows.num_rows and (chosen == np.arange(len(chosen))).all() else rows.take(chosen)
        )
        own = numbers(picked, "watermark", NO_TIME) if "watermark" in picked.column_names else np.zeros(0, np.int64)
        return Arrivals(ids[chosen], numbers(picked, "rows"), _partials(picked, self.layout), own)

    def _late_rows(self, over: Mask, timing: Int64Array) -> tuple[pa.Table, Int64Array]:
        """The late rows of windows that have ended: those of this batch, and those that waited."""
        names = [*self.layout.aggregates.partial_schema.names, "rows"]
        if self.layout.keeps_rows:
            names += [*(at.name for at in POSITION), "watermark"]
        now = np.flatnonzero((timing == LATE_ROW) & over[self.row_cells])
        waited = np.flatnonzero(over[self.waiting_cells])
        fields = pa.schema([self.layout.state_schema.field(name) for name in names])
        parts = [
            cast_rows(self.waiting.select(names).take(waited), fields),
            cast_rows(self.rows.select(names).take(now), fields),
        ]
        return pa.concat_tables(parts).combine_chunks(), np.r_[self.waiting_cells[waited], self.row_cells[now]]

    def _state(
        self, stays: Mask, due: Int64Array, expired: Mask, over: Mask, timing: Int64Array
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """The state rows to upsert, and those to delete."""
        cells = self.cells
        kept = np.flatnonzero(stays)
        columns: dict[str, object] = {"item": self.item[kept], "event_due": due[kept]}
        cell_rows = cells.build_rows(kept, columns, self.keys.take(pa.array(kept)))
        put = pa.concat_tables([cell_rows, self._waiting(over, timing)])
        released = self.waiting.filter(pa.array(over[self.waiting_cells])).select(["group", "item"])
        forgotten = np.flatnonzero(expired & self.kept)
        group = np.r_[numbers(self.keys, "group")[forgotten], numbers(released, "group")]
        items = np.r_[self.item[forgotten], numbers(released, "item")]
        gone = pa.table([group, items], schema=pa.schema(STATE_COLUMNS[:2]))
        return put if put.num_rows else None, gone if gone.num_rows else None

    def _waiting(self, over: Mask, timing: Int64Array) -> pa.Table:
        """Late rows that arrived before the on-time pane of their window."""
        now = np.flatnonzero((timing == LATE_ROW) & ~over[self.row_cells])
        rows, ids = self.rows.take(now), self.row_cells[now]
        if self.layout.keeps_rows:
            position = [numbers(rows, at.name) for at in POSITION]
            columns: dict[str, object] = {at.name: rows.column(at.name).cast(at.type) for at in POSITION}
            columns["watermark"] = rows.column("watermark")
            item = tell_apart(mix(self.item[ids], *position))
            partials, count = _partials(rows, self.layout), numbers(rows, "rows")
        else:
            # One state row for all waiting rows of a window.
            columns = {}
            before = np.flatnonzero(np.isin(self.waiting_cells, ids))
            some, firsts = number_rows(np.r_[self.waiting_cells[before], ids])
            waiting = self.waiting.take(before)
            parts = pa.concat_tables([_partials(waiting, self.layout), _partials(rows, self.layout)])
            partials = self.layout.aggregates.merge(parts, some, len(firsts)) if len(firsts) else parts
            count = np.bincount(some, np.r_[numbers(waiting, "rows"), numbers(rows, "rows")], len(firsts)).astype(
                np.int64
            )
            ids = np.r_[self.waiting_cells[before], ids][firsts]
            item = mix(self.item[ids], np.full(len(ids), WAITING, np.int64))
        columns |= {
            "item": item,
            "event_due": self.end[ids],
            "processing_due": np.full(len(ids), NEVER, np.int64),
            "kind": np.full(len(ids), WAITING, np.int8),
            "rows": count,
        }
        return self.layout.build_rows(columns, self.keys.take(pa.array(ids)), partials)


def _keys(rows: pa.Table, by: pa.Schema) -> pa.Table:
    names = ["group", "check", *by.names, "window_start", "window_end"]
    types = [pa.int64(), pa.int64(), *by.types, pa.int64(), pa.int64()]
    return cast_rows(rows.select(names), pa.schema(list(zip(names, types, strict=True))))


def _partials(rows: pa.Table, layout: CellLayout) -> pa.Table:
    schema = layout.aggregates.partial_schema
    return cast_rows(rows.select(schema.names), schema)


def _rows_in(rows: pa.Table) -> int:
    return int(numbers(rows, "rows").sum())
