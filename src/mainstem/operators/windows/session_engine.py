"""SessionEngine: session windows, each as long as rows follow one another within a gap.

Sessions are built in the order of the rows' own watermarks, which are recorded in the log: before a row with
the watermark v is processed, the sessions that end at or before v are emitted on time, and those whose lateness is over
are evicted; then the row joins the sessions that it overlaps. A row whose watermark is above the batch's waits in the
state, so that every split into batches gives the same result. A row is too late if its own span, [time, time + gap), and
the lateness are over.

With touching="join" a row at the very end of a session belongs to it, and with the watermark v a row at v is not late.
So there a session closes when the watermark is past its end.

A session that grows is another window: the results of the old one are retracted (`discard` retracts nothing),
and its panes are counted from 0. So a late row may join two closed sessions: both are retracted, and one is emitted.

Input (`input_schema`), single rows:

    group, check                int64       hashes of the key
    by_0, by_1, ...                         the key
    time                        int64       null in rows that have no event time
    watermark                   int64       the row's own; NO_TIME if unknown
    gap                         int64       in microseconds; if null or not positive, the row goes to the late rows
    topic, partition, offset                the position in the log
    a0_sum, ...                             accumulators

Rows are processed in rounds over all keys at once. A round takes from every run of connected rows as many as come
before any of its sessions can close; usually all of them. Only if a trigger counts rows, or late rows join closed
sessions, a round takes one row of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.windows.cells import Cells
from mainstem.operators.windows.numbering import Mask, later, ordinals, running_max
from mainstem.operators.windows.panes import PaneEngine
from mainstem.operators.windows.waiting_rows import ReadyRows, WaitingRows, late_contributions
from mainstem.operators.windows.window_rounds import ChangingWindows, WindowRounds

__all__ = ["SessionEngine", "SessionRounds"]


# SessionRounds: one step of sessions. Rows and sessions that overlap, directly or through others, are a component.


class SessionRounds(WindowRounds):
    """The sessions of some keys, and their new rows. For one thread."""

    def __init__(self, engine: SessionEngine, kept: pa.Table, ready: ReadyRows, clock: BatchClock) -> None:
        self.joins = engine.touching == "join"
        super().__init__(engine, kept, ready, clock)

    def _components(self, key: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
        order = order_rows(key, start, end)
        component = np.empty(len(order), np.int64)
        component[order] = self._runs(key[order], start[order], end[order])
        return component

    def _runs(self, key: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
        """Numbers of overlapping runs; the spans are sorted by key and start."""
        if not len(key):
            return key
        ends = running_max(key, end)
        apart = start[1:] > ends[:-1] if self.joins else start[1:] >= ends[:-1]
        return np.cumsum(np.r_[False, (key[1:] != key[:-1]) | apart])

    def _run_lengths(self, sessions: ChangingWindows) -> Int64Array:
        """The number of rows before a session can close."""
        count = len(self.active)
        if self._counts_early:
            return np.ones(count, np.int64)
        at_row = np.repeat(np.arange(count), self.ends - self.next)
        rows = np.repeat(self.next, self.ends - self.next) + ordinals(at_row)
        opened = np.flatnonzero(~sessions.closed)
        at_session = np.searchsorted(self.active, sessions.component[opened])
        at = np.r_[at_session, at_row]
        # Sessions first, then rows in their order.
        order = np.argsort(at, kind="stable")
        at = at[order]
        start = np.r_[sessions.start[opened], self.row_start[rows]][order]
        end = np.r_[sessions.end[opened], self.row_end[rows]][order]
        is_row = np.r_[np.zeros(len(at_session), np.bool_), np.ones(len(rows), np.bool_)][order]
        own = np.r_[np.full(len(at_session), -NEVER), self.row_watermark[rows]][order]
        first = np.r_[True, at[1:] != at[:-1]]
        highest, lowest, soonest = running_max(at, end), -running_max(at, -start), -running_max(at, -end)
        overlaps = self._overlap(start[1:], end[1:], lowest[:-1], highest[:-1])
        # While all before is one session, the bound is its end; else the earliest end.
        apart = np.cumsum(~np.r_[True, overlaps] & ~first)
        whole = apart == np.maximum.accumulate(np.where(first, apart, 0))
        bound = np.where(whole, highest, soonest)
        stops = is_row & ~first & (own >= self._closes(np.r_[NEVER, bound[:-1]]))
        first_row = is_row & ~np.r_[False, is_row[:-1] & (at[1:] == at[:-1])]
        # A row that may join closed sessions is taken alone.
        late = is_row & self._overlap(start, end, *self._closed_span(sessions, at))
        stops = (stops | late) & ~first_row
        stopped = np.cumsum(stops)
        before = np.maximum.accumulate(np.where(first, stopped - stops, 0))
        taken = np.bincount(at[is_row & (stopped == before)], minlength=count).astype(np.int64)
        taken[at[late & first_row]] = 1
        return taken

    def _overlap(self, start: Int64Array, end: Int64Array, low: Int64Array, high: Int64Array) -> Mask:
        """Which spans [start, end) overlap [low, high), or touch it if `joins`."""
        if self.joins:
            return np.asarray((start <= high) & (end >= low))
        return np.asarray((start < high) & (end > low))

    def _closed_span(self, sessions: ChangingWindows, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The span of the closed sessions, for each component in `at`."""
        low, high = np.full(len(self.active), NEVER), np.full(len(self.active), -NEVER)
        closed = np.flatnonzero(sessions.closed)
        places = np.searchsorted(self.active, sessions.component[closed])
        np.minimum.at(low, places, sessions.start[closed])
        np.maximum.at(high, places, sessions.end[closed])
        return low[at], high[at]

    def _merge(self, sessions: ChangingWindows, rows: Int64Array) -> ChangingWindows:
        """The sessions with these rows merged in."""
        engine, old = self.engine, len(sessions.key)
        component = np.r_[sessions.component, self.row_component[rows]]
        start, end = np.r_[sessions.start, self.row_start[rows]], np.r_[sessions.end, self.row_end[rows]]
        order = order_rows(component, start, end)
        ids = np.empty(len(order), np.int64)
        ids[order] = self._runs(component[order], start[order], end[order])
        count = int(ids.max()) + 1
        new_start, new_end = np.full(count, NEVER), np.full(count, -NEVER)
        np.minimum.at(new_start, ids, start)
        np.maximum.at(new_end, ids, end)
        came = np.bincount(ids[old:], minlength=count)
        cells = sessions.cells
        watermark, first = np.full(count, NO_TIME), np.full(count, NEVER)
        np.maximum.at(watermark, ids[old:], self.row_watermark[rows])
        np.minimum.at(first, ids[old:], self.row_watermark[rows])
        last = np.full(count, -1, np.int64)
        last[ids[:old]] = np.arange(old)
        was = np.maximum(last, 0)
        closed = np.where(came > 0, self._closes(new_end) <= watermark, sessions.closed[was] if old else False)
        stays = (last >= 0) & (np.bincount(ids[:old], minlength=count) == 1)
        if old:
            stays &= (sessions.start[was] == new_start) & (sessions.end[was] == new_end)
        grown = np.flatnonzero(~stays[ids[:old]])
        self._take_back(sessions, grown, first[ids[grown]])
        merged = Cells.of_state(self.layout, self.layout.state_schema.empty_table(), np.full(count, -1))
        if stays.any():
            merged = Cells.concatenate([cells, merged]).take(np.where(stays, was, old + np.arange(count)))
        parts = pa.concat_tables([cells.partials, self.row_partials.take(pa.array(rows))])
        merged.partials = self.layout.aggregates.merge(parts, ids, count)
        before = np.zeros(count, np.int64)
        np.add.at(before, ids[:old], cells.pending)
        merged.pending = before + came
        due = [np.int64(NEVER if at is None else at.due(self.clock.now)) for at in (engine.early, engine.late_trigger)]
        merged.due = np.where(came > 0, np.where(closed, due[1], due[0]), np.int64(NEVER))
        np.minimum.at(merged.due, ids[:old], cells.due)
        key = np.empty(count, np.int64)
        key[ids] = np.r_[sessions.key, self.row_key[rows]]
        found = np.empty(count, np.int64)
        found[ids] = component
        made = ChangingWindows(key, found, new_start, new_end, closed, np.full(count, NO_TIME), merged)
        self._emit_counted(made, came > 0, watermark)
        return made


@dataclass(frozen=True)
class SessionEngine(PaneEngine):
    """Sessions. A value: it is sent to Spark's workers."""

    windows = "sessions"

    # split | join: whether rows exactly one gap apart are two sessions or one.
    touching: str = field(default="split", kw_only=True)

    @property
    def input_schema(self) -> pa.Schema:
        """The input of `step`; see above."""
        return self.single_rows(pa.field("gap", pa.int64()))

    @property
    def closes_after(self) -> int:
        return 1 if self.touching == "join" else 0

    @property
    def behind(self) -> int:
        return self.closes_after

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "touching": self.touching}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        came = WaitingRows(self.layout, rows, "gap", clock)
        over = came.over(self.closes_after + self.lateness)
        too_late = came.take(came.known & (over <= came.watermark))
        kept, ready, waits, released = came.separate(state, over > came.watermark)
        if not (rows.num_rows or kept.num_rows or ready.rows.num_rows):
            return Step(self.output_schema.empty_table())
        rounds = SessionRounds(self, kept, ready, clock)
        late_rows = int((later(ready.end, self.closes_after) <= ready.watermark).sum())
        rounds.run()
        put, gone = rounds.state()
        timeless = came.take(~came.known)
        late = late_contributions(self.late_schema, pa.concat_tables([too_late, timeless]), self.aggregates)
        put = pa.concat_tables([put, waits])
        gone = pa.concat_tables([gone, released])
        counts = {"late": late_rows, "too_late": too_late.num_rows + timeless.num_rows}
        put, gone = put if put.num_rows else None, gone if gone.num_rows else None
        return Step(rounds.output(), put, gone, late, counts, own=rounds.own())
