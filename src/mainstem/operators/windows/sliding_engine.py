"""SlidingEngine: one window for each distinct set of rows within a span, both ends included.

As a window of that span slides over a key's rows, its set of rows changes when a row enters at its end, or has just left
at its start. So each row makes two windows: one that ends at its time, and one that starts right after it (unless that is
empty). The engine stores rows for as long as a window with them can change, finds the new pairs of row and window of a
batch, and passes these to a `WindowEngine`.

Whether a pair is on time is decided by the later of two own watermarks: the row's, and that of the first row that made
the window. So it depends only on the log; rows whose own watermark is above the batch's wait.

A batch of n rows within one span makes up to n x n pairs. Of the early panes that one batch triggers, a window emits only
the last, and only the last of the late ones: the others would be outdated at once. All of them count in
`pane.index`, so that the index of the on-time pane does not depend on the batches.

The input is `PaneEngine.single_rows`: group, check, by_0 ..., time, watermark (NO_TIME if unknown), topic, partition,
offset, accumulators. In the output `window_end` is the last moment of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.stage.integer_order import order_rows, search, sort_distinct
from mainstem.operators.windows.cells import CELL, POSITION, REMEMBERED
from mainstem.operators.windows.numbering import later, number_rows, numbers, ordinals
from mainstem.operators.windows.panes import PaneEngine
from mainstem.operators.windows.waiting_rows import ReadyRows, WaitingRows, late_contributions
from mainstem.operators.windows.window_engine import WindowEngine

__all__ = ["SlidingEngine"]


@dataclass(frozen=True)
class SlidingEngine(PaneEngine):
    """Sliding windows. A value: it is sent to Spark's workers."""

    windows = "sliding"

    # In microseconds.
    span: int = field(kw_only=True)

    @cached_property
    def cells(self) -> WindowEngine:
        return WindowEngine(
            self.by,
            self.aggregates,
            self.early,
            self.late,
            self.lateness,
            self.results,
            self.on_time,
            beside=True,
            last_only=True,
        )

    @property
    def behind(self) -> int:
        # The emitted end of a window is its last moment.
        return 1

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "span": self.span}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        came = WaitingRows(self.layout, rows, 1, clock)
        kept, ready, waits, released = came.separate(state, came.known)
        remembered = kept.filter(pa.array(numbers(kept, "kind") == REMEMBERED))
        pairs = self._pairs(remembered, ready)
        done = self.cells.step(_CellsAlone(state), pairs, clock)
        expired = numbers(remembered, "event_due") <= clock.watermark
        memory = self._memory(ready, clock)
        put = [done.put, memory, waits]
        gone = [done.gone, released, remembered.filter(pa.array(expired)).select(["group", "item"])]
        late = self._late(came)
        counts = {**done.counts, "too_late": 0 if late is None else late.num_rows}
        return Step(_inclusive(done.output), _together(put), _together(gone), late, counts, own=done.own)

    def _pairs(self, remembered: pa.Table, ready: ReadyRows) -> pa.Table:
        """New pairs of row and window, as input of the engine of cells."""
        rows = pa.concat_tables([remembered, ready.rows]).combine_chunks()
        key, _ = number_rows(numbers(rows, "group"), numbers(rows, "check"))
        busy = np.zeros(int(key.max()) + 1 if len(key) else 0, np.bool_)
        busy[key[remembered.num_rows :]] = True
        new = np.arange(rows.num_rows) >= remembered.num_rows
        chosen = np.flatnonzero(busy[key])
        rows, key, new = rows.take(pa.array(chosen)), key[chosen], new[chosen]
        time, own = numbers(rows, "window_start"), numbers(rows, "watermark")
        # Each row makes the window that ends at its time, and the one that begins after it.
        ids, firsts = number_rows(np.r_[key, key], np.r_[time - self.span, time + 1])
        start, of_key = np.r_[time - self.span, time + 1][firsts], np.r_[key, key][firsts]
        made = np.full(len(firsts), NEVER)
        np.minimum.at(made, ids, np.r_[own, own])
        known = np.zeros(len(firsts), np.bool_)
        known[ids[np.r_[~new, ~new]]] = True

        fresh, old = np.flatnonzero(new), np.flatnonzero(~new)
        row, window = _within(key[fresh], time[fresh] - self.span, time[fresh], of_key, start)
        row = fresh[row]
        # New windows include old rows too.
        unknown = np.flatnonzero(~known)
        order = old[order_rows(key[old], time[old])]
        more, place = _within(of_key[unknown], start[unknown], start[unknown] + self.span, key[order], time[order])
        row, window = np.r_[row, order[place]], np.r_[window, unknown[more]]

        end = start[window] + self.span + 1
        decided = np.maximum(own[row], made[window])
        counts = decided < later(end, self.lateness)
        row, window, end, decided = row[counts], window[counts], end[counts], decided[counts]
        table = rows.take(pa.array(row))
        given = {
            "window_start": pa.array(start[window]),
            "window_end": pa.array(end),
            "timing": pa.array((decided >= end).astype(np.int8)),
            "rows": pa.array(np.ones(len(row), np.int64)),
            "time": pa.array(time[row]),
            "watermark": pa.array(decided),
        }
        schema = self.cells.input_schema
        return pa.table([given[at.name] if at.name in given else table.column(at.name) for at in schema], schema=schema)

    def _memory(self, ready: ReadyRows, clock: BatchClock) -> pa.Table:
        """The new rows that may share a window with later ones."""
        due = later(ready.start, self.span + 2 + self.lateness)
        stays = np.flatnonzero(due > clock.watermark)
        rows = ready.rows.take(pa.array(stays))
        position = [numbers(rows, at.name) for at in POSITION]
        columns: dict[str, object] = {
            "item": tell_apart(mix(numbers(rows, "check"), np.full(len(stays), REMEMBERED, np.int64), *position)),
            "event_due": due[stays],
            "kind": np.full(len(stays), REMEMBERED, np.int8),
        }
        return self.layout.build_rows(columns, rows)

    def _late(self, came: WaitingRows) -> pa.Table | None:
        """Rows that are too late for the window that ends at their time; they may count in windows that end later."""
        rows = came.take(~came.known | (came.over(self.lateness) <= came.watermark))
        late = late_contributions(self.late_schema, rows, self.aggregates)
        if late is None:
            return None
        start = pa.array(numbers(late, "time") - self.span, mask=np.asarray(late.column("time").is_null()))
        return _inclusive(late.set_column(late.schema.get_field_index("window_start"), "window_start", start))


class _CellsAlone:
    """A state table with only its cells."""

    def __init__(self, state: StateTable) -> None:
        self.state = state

    def find(self, groups: Int64Array) -> pa.Table:
        return _cells(self.state.find(groups))

    def find_items(self, groups: Int64Array, items: Int64Array) -> pa.Table:
        return _cells(self.state.find_items(groups, items))

    def scan(self) -> pa.Table:
        return _cells(self.state.scan())

    def due(self, clock: BatchClock) -> pa.Table:
        return _cells(self.state.due(clock))


def _cells(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(numbers(rows, "kind") == CELL))


def _together(parts: list[pa.Table | None]) -> pa.Table | None:
    some = [part for part in parts if part is not None and part.num_rows]
    return pa.concat_tables(some) if some else None


def _within(
    key: Int64Array, low: Int64Array, high: Int64Array, keys: Int64Array, values: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """All pairs (i, j) with the same key and low[i] <= values[j] <= high[i]; `keys` and `values` are ordered."""
    ranked = sort_distinct(values)
    many = len(ranked) + 1
    places = keys * many + search(ranked, values)
    first = search(places, key * many + search(ranked, low))
    last = search(places, key * many + search(ranked, high, side="right"))
    left = np.repeat(np.arange(len(key)), last - first)
    return left, np.repeat(first, last - first) + ordinals(left)


def _inclusive(rows: pa.Table) -> pa.Table:
    """With the last moment of a window as its end."""
    place = rows.schema.get_field_index("window_end")
    absent = np.asarray(rows.column(place).is_null())
    end = pa.array(numbers(rows, "window_end") - 1, mask=absent)
    return rows.set_column(place, rows.schema.field(place), end)
