"""WindowRounds: one step of windows that depend on the rows of a key, in rounds over all keys at once.

Windows and rows that affect each other are a *component*. In each round every component that has rows left
first closes its windows at the own watermark of its next row, and then takes a *run* of rows: as many as are
before any window of it can close. How many that is, and how they change the windows, depends on the kind of
window.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock, Int64Array
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.windows.cells import NOT_SHOWN, POSITION, CellLayout, Cells, WindowAggregates, cast_rows
from mainstem.operators.windows.numbering import Mask, last_of_each, later, number_rows, numbers, ordinals
from mainstem.operators.windows.panes import DELETE, EARLY, LATE, ON_TIME, Panes, pane_rows, with_final
from mainstem.operators.windows.triggers import Trigger
from mainstem.operators.windows.waiting_rows import ReadyRows

__all__ = ["Arrivals", "ChangingWindows", "Phase", "RoundsEngine", "WindowRounds", "running"]


# Phases: what happens to cells when rows arrive, a timer is due, or their time is over.
#
# A cell has two phases with the same rules. Until its end, its on-time rows are counted and emitted early; the phase closes
# with the on-time pane. Then its late rows are counted and emitted; the phase closes when its lateness is over, and the
# cell is evicted.


@dataclass(frozen=True)
class Arrivals:
    """New rows of cells: the cell of each, the number of rows in it, its accumulators, and its own watermark (if rows are
    counted).

    Ordered by cell, and within a cell as in the log.
    """

    cells: Int64Array
    rows: Int64Array
    partials: pa.Table
    own: Int64Array


@dataclass(frozen=True)
class Phase:
    """One phase of cells in one step."""

    trigger: Trigger | None
    # The timing of a pane that a trigger emits, and of the one that closes the phase.
    timing: int
    timing_closing: int
    # Which cells close it now, and which of them must be emitted even if unchanged.
    closing: Mask
    forced: Mask
    # Which cells' timers are due.
    waking: Mask
    now: int
    # The watermark of a pane that closes the phase (the last before it closes), and of one that a timer emits.
    closing_own: Int64Array
    waking_own: int
    # Whether of the panes that a row count triggers only the last of each cell is emitted.
    last_only: bool = False

    def run(self, cells: Cells, arrivals: Arrivals, panes: Panes) -> None:
        """Add the rows, and emit the panes that are due."""
        before = cells.pending
        fired = np.zeros(cells.count, np.bool_)
        if len(arrivals.cells):
            if self.trigger is not None and self.trigger.rows is not None:
                fired = self._count(cells, arrivals, panes, self.trigger.rows)
            else:
                self._add(cells, arrivals)
        pending = cells.pending
        new = pending > 0
        shows = (self.closing & (self.forced | new)) | (self.waking & ~fired & new)
        ids = np.flatnonzero(shows)
        if len(ids):
            timing = np.where(self.closing[ids], self.timing_closing, self.timing)
            own = np.where(self.closing, self.closing_own, self.waking_own)[ids]
            panes.show(ids, cells.partials.take(pa.array(ids)), timing, (self.forced & self.closing)[ids], own)
            if cells.layout.results == "discard":
                cells.clear(shows)
            cells.pending = np.where(shows, 0, pending)
        began = fired | (before == 0)
        due = NEVER if self.trigger is None else self.trigger.due(self.now)
        cells.due = np.where(cells.pending == 0, np.int64(NEVER), np.where(began, np.int64(due), cells.due))

    def _add(self, cells: Cells, arrivals: Arrivals) -> None:
        parts = pa.concat_tables([cells.partials, arrivals.partials])
        ids = np.r_[np.arange(cells.count), arrivals.cells]
        cells.partials = cells.layout.aggregates.merge(parts, ids, cells.count)
        came = np.bincount(arrivals.cells, arrivals.rows, cells.count).astype(np.int64)
        cells.pending = cells.pending + came

    def _count(self, cells: Cells, arrivals: Arrivals, panes: Panes, rows: int) -> Mask:
        """Add rows one by one, with a pane after every `rows` of them. Returns which cells were emitted."""
        ids, aggregates = arrivals.cells, cells.layout.aggregates
        place = cells.pending[ids] + ordinals(ids)
        share = place // rows
        begins = np.r_[True, (ids[1:] != ids[:-1]) | (share[1:] != share[:-1])]
        segments = np.cumsum(begins) - 1
        count = int(segments[-1]) + 1
        of_cell = ids[begins]
        first = ordinals(of_cell) == 0
        parts = pa.concat_tables([cells.partials.take(pa.array(of_cell[first])), arrivals.partials])
        merged = aggregates.merge(parts, np.r_[np.flatnonzero(first), segments], count)
        discards = cells.layout.results == "discard"
        so_far = running(aggregates, merged, ordinals(of_cell)) if self.last_only or not discards else merged
        merged = merged if discards else so_far
        full = (place[last_of_each(segments)] + 1) % rows == 0
        shown = np.flatnonzero(full)
        timing = np.full(len(shown), self.timing, np.int64)
        own = arrivals.own[last_of_each(segments)][shown]
        values, unforced = so_far.take(pa.array(shown)), np.zeros(len(shown), np.bool_)
        panes.show(of_cell[shown], values, timing, unforced, own, last_only=self.last_only)
        last = np.flatnonzero(last_of_each(of_cell))
        touched = of_cell[last]
        index = np.arange(cells.count)
        index[touched] = cells.count + last
        cells.partials = pa.concat_tables([cells.partials, merged]).combine_chunks().take(pa.array(index))
        cells.pending = cells.pending.copy()
        cells.pending[touched] = (place[last_of_each(ids)] + 1) % rows
        fired = np.zeros(cells.count, np.bool_)
        fired[of_cell[shown]] = True
        if discards:
            empty = np.zeros(cells.count, np.bool_)
            empty[touched[full[last]]] = True
            cells.clear(empty)
        return fired


def running(aggregates: WindowAggregates, partials: pa.Table, place: Int64Array) -> pa.Table:
    """Each row merged with all before it in its run; `place` is its index in the run.

    In rounds: after round k each row covers 2^k rows, so that a run of 100,000 takes 17 rounds.
    """
    reach = 1
    while len(place) and reach <= int(place.max()):
        rows = np.flatnonzero(place >= reach)
        both = pa.concat_tables([partials.take(pa.array(rows - reach)), partials.take(pa.array(rows))])
        merged = aggregates.merge(both, np.r_[np.arange(len(rows)), np.arange(len(rows))], len(rows))
        index = np.arange(len(place))
        index[rows] = len(place) + np.arange(len(rows))
        partials = pa.concat_tables([partials, merged]).combine_chunks().take(pa.array(index))
        reach *= 2
    return partials


class RoundsEngine(Protocol):
    """What rounds need of their engine."""

    @property
    def by(self) -> pa.Schema: ...
    @property
    def layout(self) -> CellLayout: ...
    @property
    def early(self) -> Trigger | None: ...
    @property
    def late_trigger(self) -> Trigger | None: ...
    @property
    def lateness(self) -> int: ...
    @property
    def on_time(self) -> str: ...
    @property
    def closes_after(self) -> int: ...


@dataclass
class ChangingWindows:
    """Some windows, column by column."""

    key: Int64Array
    component: Int64Array
    start: Int64Array
    end: Int64Array
    # Whether the on-time pane was emitted, or would have been.
    closed: Mask
    # The own watermark of the row that made the window as it is, if it may be past the window's end.
    made: Int64Array
    cells: Cells

    def take(self, index: Int64Array) -> ChangingWindows:
        return ChangingWindows(
            self.key[index],
            self.component[index],
            self.start[index],
            self.end[index],
            self.closed[index],
            self.made[index],
            self.cells.take(index),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[ChangingWindows]) -> ChangingWindows:
        return cls(
            np.concatenate([part.key for part in parts]),
            np.concatenate([part.component for part in parts]),
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
            np.concatenate([part.closed for part in parts]),
            np.concatenate([part.made for part in parts]),
            Cells.concatenate([part.cells for part in parts]),
        )


class WindowRounds:
    """The windows of some keys, and their new rows. For one thread."""

    # Whether rows with the same watermark are ordered by time before their position in the log.
    by_time: ClassVar[bool] = False

    def __init__(self, engine: RoundsEngine, kept: pa.Table, ready: ReadyRows, clock: BatchClock) -> None:
        self.engine, self.layout, self.clock = engine, engine.layout, clock
        self._output: list[pa.Table] = []
        # The watermark of each output row.
        self._own: list[Int64Array] = []
        # The window of each output row, and the evicted windows: key, start and end.
        self._shown: list[Int64Array] = []
        self._forgotten: list[Int64Array] = []
        count = kept.num_rows
        names = ["group", "check", *engine.by.names]
        schema = pa.schema([self.layout.state_schema.field(name) for name in names])
        both = pa.concat_tables([cast_rows(part.select(names), schema) for part in (kept, ready.rows)]).combine_chunks()
        key, firsts = number_rows(numbers(both, "group"), numbers(both, "check"))
        self.keys = both.take(pa.array(firsts))
        start = np.r_[numbers(kept, "window_start"), ready.start]
        end = np.r_[numbers(kept, "window_end"), ready.end]
        component = self._components(key, start, end)
        busy = np.zeros(int(component.max()) + 1 if len(component) else 0, np.bool_)
        busy[component[count:]] = True
        due = (numbers(kept, "event_due") <= clock.watermark) | (numbers(kept, "processing_due") <= clock.now)
        chosen = np.flatnonzero((busy[component[:count]] & self._affected(key, start, due)) | due)
        # The touched state rows: those that are not put again at the end are deleted.
        self._before = kept.take(pa.array(chosen)).select(["group", "item"])
        windows = ChangingWindows(
            key[chosen],
            component[chosen],
            start[chosen],
            end[chosen],
            (numbers(kept, "event_due") > self._closes(end[:count]))[chosen],
            np.full(len(chosen), NO_TIME),
            Cells.of_state(self.layout, kept, chosen),
        )
        active = busy[windows.component]
        self.pool = windows.take(np.flatnonzero(active))
        self.done = [windows.take(np.flatnonzero(~active))]
        self._order_rows(ready, key[count:], component[count:])

    def _closes(self, end: Int64Array) -> Int64Array:
        """The watermark at which windows with these ends close."""
        return later(end, self.engine.closes_after)

    @abstractmethod
    def _components(self, key: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
        """Component numbers: equal for windows and rows that affect each other."""

    def _affected(self, key: Int64Array, start: Int64Array, due: Mask) -> Mask:
        """Which of the stored windows, the first of `key` and `start`, the new rows, the others, may change if they are of
        one component. `due`: the stored windows that wake."""
        return np.ones(len(due), np.bool_)

    @abstractmethod
    def _run_lengths(self, windows: ChangingWindows) -> Int64Array:
        """The number of rows that each active component takes in this round."""

    @abstractmethod
    def _merge(self, windows: ChangingWindows, rows: Int64Array) -> ChangingWindows:
        """The windows with these rows merged in."""

    @property
    def _counts_early(self) -> bool:
        return self.engine.early is not None and self.engine.early.rows is not None

    def _order_rows(self, ready: ReadyRows, key: Int64Array, component: Int64Array) -> Int64Array:
        """Sort rows by component, own watermark and position; `next` and `ends`: the next row and the end of each component."""
        position = [ready.start] if self.by_time else []
        position += [numbers(ready.rows, at.name) for at in POSITION]
        order = order_rows(component, ready.watermark, *position)
        self.row_key, self.row_component = key[order], component[order]
        self.row_start, self.row_end, self.row_watermark = ready.start[order], ready.end[order], ready.watermark[order]
        self.row_partials = ready.rows.select(self.layout.aggregates.partial_schema.names).take(pa.array(order))
        begins = np.ones(len(order), np.bool_)
        begins[1:] = self.row_component[1:] != self.row_component[:-1]
        self.next = np.flatnonzero(begins)
        self.active = self.row_component[self.next]
        self.ends = np.r_[self.next[1:], len(order)][: len(self.next)].astype(np.int64)
        return order

    # The rounds

    def run(self) -> None:
        while len(self.active):
            self._round()
        self.pool = ChangingWindows.concatenate([self.pool, *self.done])
        now = np.full(len(self.pool.key), self.clock.watermark, np.int64)
        self.pool = self._close(self.pool, now, ends_batch=True)

    def _round(self) -> None:
        at = np.searchsorted(self.active, self.pool.component)
        windows = self._close(self.pool, self.row_watermark[self.next[at]], ends_batch=False)
        taken = self._run_lengths(windows)
        rows = np.repeat(self.next, taken) + ordinals(np.repeat(np.arange(len(taken)), taken))
        self.pool = self._merge(windows, rows)
        self.next = self.next + taken
        left = self.next < self.ends
        if not left.all():
            busy = left[np.searchsorted(self.active, self.pool.component)]
            self.done.append(self.pool.take(np.flatnonzero(~busy)))
            self.pool = self.pool.take(np.flatnonzero(busy))
            self.active, self.next, self.ends = self.active[left], self.next[left], self.ends[left]

    def _close(self, windows: ChangingWindows, watermark: Int64Array, *, ends_batch: bool) -> ChangingWindows:
        """Emit the on-time panes of windows that the watermark closes, evict those beyond their lateness; timers come last."""
        engine, cells, now = self.engine, windows.cells, self.clock.now
        woken = (cells.due <= now) & ends_batch
        closes = self._closes(windows.end)
        closing = ~windows.closed & (closes <= watermark)
        closed = windows.closed | closing
        expired = closed & (later(closes, engine.lateness) <= watermark)
        waking = woken & ~closed, woken & windows.closed & ~expired
        if not (closing.any() or expired.any() or woken.any()):
            return windows
        panes = Panes(self.layout, cells)
        nothing = np.zeros(cells.count, np.bool_)
        none = _no_arrivals(cells)
        forced, before = closing & (engine.on_time == "always"), self.clock.watermark_before
        own = np.maximum(closes - 1, windows.made)
        Phase(engine.early, EARLY, ON_TIME, closing, forced, waking[0], now, own, before).run(cells, none, panes)
        if engine.lateness:
            over = later(closes, engine.lateness) - 1
            Phase(engine.late_trigger, LATE, LATE, expired, nothing, waking[1], now, over, before).run(
                cells, none, panes
            )
        self._put_out(windows, panes)
        windows.closed = closed
        if not expired.any():
            return windows
        self._forgotten.append(_ids(windows)[expired])
        return windows.take(np.flatnonzero(~expired))

    def _take_back(self, windows: ChangingWindows, which: Int64Array, own: Int64Array) -> None:
        """Retract the emitted panes of replaced windows. `own`: the watermark of the row that replaces each of them."""
        was_shown = windows.cells.timing[which] != NOT_SHOWN
        which, own = which[was_shown], own[was_shown]
        if self.layout.results == "discard" or not self.layout.keeps_shown or not len(which):
            return
        cells = windows.cells
        values = cells.shown.rename_columns(self.layout.aggregates.output_schema.names)
        nothing = np.zeros(len(which), np.bool_)
        index, timing = cells.panes[which] - 1, cells.timing[which]
        change = np.full(len(which), DELETE)
        keys = self._name_windows(windows)
        self._output.append(pane_rows(self.layout, keys, which, values, which, index, timing, nothing, change))
        self._shown.append(_ids(windows)[which])
        self._own.append(own)

    def _emit_counted(self, windows: ChangingWindows, came: Mask, own: Int64Array) -> None:
        """Emit the panes of triggers that count rows; `own`: the watermark of the last row of each window."""
        for trigger, timing, of in (
            (self.engine.early, EARLY, ~windows.closed),
            (self.engine.late_trigger, LATE, windows.closed),
        ):
            if trigger is None or trigger.rows is None:
                continue
            full = came & of & (windows.cells.pending >= trigger.rows)
            if full.any():
                panes, none = Panes(self.layout, windows.cells), np.zeros(len(full), np.bool_)
                # As a closing pane, which has the watermark of a row, not of the batch.
                phase = Phase(trigger, timing, timing, full, none, none, self.clock.now, own, NO_TIME)
                phase.run(windows.cells, _no_arrivals(windows.cells), panes)
                self._put_out(windows, panes)

    # Output and state

    def _name_windows(self, windows: ChangingWindows) -> pa.Table:
        keys = self.keys.take(pa.array(windows.key))
        return keys.append_column("window_start", pa.array(windows.start)).append_column(
            "window_end", pa.array(windows.end)
        )

    def _put_out(self, windows: ChangingWindows, panes: Panes) -> None:
        rows, cells, own = panes.output(self._name_windows(windows), np.zeros(len(windows.key), np.bool_))
        if rows.num_rows:
            self._output.append(rows)
            self._shown.append(_ids(windows)[cells])
            self._own.append(own)

    def own(self) -> Int64Array:
        """The watermark of each row of the output."""
        return np.concatenate([np.empty(0, np.int64), *self._own])

    def output(self) -> pa.Table:
        """The emitted rows; the last pane of an evicted window is final."""
        rows = pa.concat_tables([self.layout.output_schema.empty_table(), *self._output]).combine_chunks()
        if not (self._shown and self._forgotten):
            return rows
        shown, forgotten = np.concatenate(self._shown), np.concatenate(self._forgotten)
        ids, _ = number_rows(*np.concatenate([shown, forgotten]).T)
        last = np.full(int(ids.max()) + 1, -1, np.int64)
        # In order, so that the last row of a window overwrites the others.
        last[ids[: len(shown)]] = np.arange(len(shown))
        final = np.zeros(len(shown), np.bool_)
        ends = last[ids[len(shown) :]]
        final[ends[ends >= 0]] = True
        place = rows.schema.get_field_index("pane")
        return rows.set_column(place, rows.schema.field(place), with_final(rows.column(place), final))

    def state(self) -> tuple[pa.Table, pa.Table]:
        """The state rows to upsert, and those to delete."""
        windows = self.pool
        keys = self._name_windows(windows)
        item = mix(numbers(keys, "check"), windows.start, windows.end)
        closes = self._closes(windows.end)
        due = np.where(windows.closed, later(closes, self.engine.lateness), closes)
        put = windows.cells.build_rows(np.arange(len(item)), {"item": item, "event_due": due}, keys)
        both = np.r_[numbers(put, "group"), numbers(self._before, "group")], np.r_[item, numbers(self._before, "item")]
        ids, firsts = number_rows(*both)
        gone = firsts[ids[len(item) :]] >= len(item)
        return put, self._before.filter(pa.array(gone))


def _no_arrivals(cells: Cells) -> Arrivals:
    nothing = np.empty(0, np.int64)
    return Arrivals(nothing, nothing, cells.partials.slice(0, 0), nothing)


def _ids(windows: ChangingWindows) -> Int64Array:
    return np.stack([windows.key, windows.start, windows.end], axis=1)
