"""ValidityEngine: windows from each row's time to that of the next row of its key: how long a value is valid.

The windows of a key are adjacent, and the last is open until all rows have arrived. A row splits the window in
which its time falls; the results of that window are retracted (`discard` retracts nothing). Rows of one time are
in one window.

Rows split windows in the order of their own watermarks, which are recorded in the log: a row is on time if its own
watermark is below the current end of that window, late if it is below that end plus the lateness, else too late. Of rows
with the same watermark the earlier one is first. Rows wait until the batch's watermark is above their own, since a row
with the same watermark may still arrive before them.

The input is `PaneEngine.single_rows`: group, check, by_0 ..., time, watermark (NO_TIME if unknown), topic, partition,
offset, accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.windows.cells import NOT_SHOWN, Cells
from mainstem.operators.windows.numbering import Mask, later, number_rows, ordinals
from mainstem.operators.windows.panes import PaneEngine
from mainstem.operators.windows.waiting_rows import ReadyRows, WaitingRows, late_contributions
from mainstem.operators.windows.window_rounds import ChangingWindows, RoundsEngine, WindowRounds

__all__ = ["ValidityEngine", "ValidityRounds", "next_earlier"]


# ValidityRounds: one step of windows that last from each row's time to the next one's. A key is a component.


END = NEVER - 1


class ValidityRounds(WindowRounds):
    """The windows of some keys, and their new rows. For one thread."""

    # The position of a row from another stage is not determined by the log, and the result must not depend on it.
    by_time = True

    def __init__(self, engine: RoundsEngine, kept: pa.Table, ready: ReadyRows, clock: BatchClock) -> None:
        super().__init__(engine, kept, ready, clock)
        self._dropped: list[pa.Table] = []
        self.late_count = 0

    def _components(self, key: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
        return key

    def _affected(self, key: Int64Array, start: Int64Array, due: Mask) -> Mask:
        """Windows with new rows; the first of a key for rows before it; and those after one that may be evicted, at whose start
        the windows of earlier rows then end."""
        count = len(due)
        # Of equal times windows come before rows.
        order = order_rows(key, start)
        windows = np.flatnonzero(order < count)
        found = np.zeros(count, np.bool_)
        if not len(windows):
            return found
        rows = np.flatnonzero(order >= count)
        # For each row the place, among the windows, of the last one before it, or else of the first one of its key.
        place = np.searchsorted(windows, rows) - 1
        of_window, of_row = key[order[windows]], key[order[rows]]
        place += (place < 0) | (of_window[place] != of_row)
        place = place[(place < len(windows))]
        found[order[windows[place]]] = True
        after = np.r_[False, due[order[windows]][:-1] & (of_window[1:] == of_window[:-1])]
        found[order[windows[after]]] = True
        return found

    def _order_rows(self, ready: ReadyRows, key: Int64Array, component: Int64Array) -> Int64Array:
        order = super()._order_rows(ready, key, component)
        self.rows = ready.rows.take(pa.array(order))
        return order

    def _run_lengths(self, windows: ChangingWindows) -> Int64Array:
        """All rows up to the first that falls into a window that has closed by then."""
        count = len(self.active)
        lengths = self.ends - self.next
        at = np.repeat(np.arange(count), lengths)
        rows = np.repeat(self.next, lengths) + ordinals(at)
        self.row_next = np.zeros(len(self.row_start), np.int64)
        self.row_next[rows] = self._next_times(windows, rows, at)
        if self._counts_early:
            return np.ones(count, np.int64)
        stops = (self.row_watermark[rows] >= self.row_next[rows]) & (ordinals(at) > 0)
        stopped = np.cumsum(stops)
        first = np.cumsum(lengths) - lengths
        before = np.repeat(stopped[first] - stops[first], lengths)
        taken = np.bincount(at[stopped == before], minlength=count).astype(np.int64)
        # A late row is taken alone.
        late = self.row_watermark[self.next] >= self.row_next[self.next]
        return np.where(late, 1, taken)

    def _next_times(self, windows: ChangingWindows, rows: Int64Array, at: Int64Array) -> Int64Array:
        """For each row the next time of its key, of the windows and of the rows before it."""
        of_window = np.searchsorted(self.active, windows.component)
        ends = np.arange(len(self.active))
        # At the end of a window there is another one, which need not be among these.
        key = np.r_[of_window, at, ends, of_window]
        time = np.r_[windows.start, self.row_start[rows], np.full(len(ends), END), windows.end]
        rank = np.r_[np.full(len(of_window), -1), ordinals(at), np.full(len(ends) + len(of_window), -2)]
        # Of several with the same time only the first counts.
        block, firsts = number_rows(key, time)
        first_rank = np.full(len(firsts), NEVER)
        np.minimum.at(first_rank, block, rank)
        following = next_earlier(first_rank)
        mine = slice(len(of_window), len(of_window) + len(rows))
        place, own = np.minimum(block[mine] + 1, len(firsts) - 1), rank[mine]
        while (beyond := first_rank[place] >= own).any():
            place = np.where(beyond, following[place], place)
        return np.asarray(time[firsts][place], np.int64)

    def _merge(self, windows: ChangingWindows, rows: Int64Array) -> ChangingWindows:
        late = self.row_watermark[rows] >= self.row_next[rows]
        gone = late & (self.row_watermark[rows] >= later(self.row_next[rows], self.engine.lateness))
        self._drop(rows[gone])
        rows, late = rows[~gone], late[~gone]
        self.late_count += int(late.sum())
        if not len(rows):
            return windows
        old = len(windows.key)
        component = np.r_[windows.component, self.row_component[rows]]
        time = np.r_[windows.start, self.row_start[rows]]
        ids, firsts = number_rows(component, time)
        count = len(firsts)
        start, of = time[firsts], component[firsts]
        end = np.r_[start[1:], END]
        end[np.r_[of[1:] != of[:-1], True]] = END
        was = np.full(count, -1, np.int64)
        was[ids[:old]] = np.arange(old)
        end = np.minimum(end, _ends_of_parts(windows, was, of, start))
        cells = windows.cells
        came = np.bincount(ids[old:], minlength=count)
        stays = was >= 0
        stays[stays] = windows.end[was[stays]] == end[stays]
        divided = (was >= 0) & ~stays
        # A late or counted row is taken alone: then both are its own watermark.
        first, watermark = self._watermarks(rows, of)
        self._take_back(windows, was[divided], first[divided])
        closed = np.zeros(count, np.bool_)
        closed[was >= 0] = windows.closed[was[was >= 0]]
        # The window of a late row is closed, like the one that it splits.
        closed[ids[old:][late]] = True
        empty = Cells.of_state(self.layout, self.layout.state_schema.empty_table(), np.full(1, -1))
        merged = Cells.concatenate([cells, empty]).take(np.where(stays, was, old))
        parts = pa.concat_tables([cells.partials, self.row_partials.take(pa.array(rows))])
        merged.partials = self.layout.aggregates.merge(parts, ids, count)
        pending = np.r_[cells.pending, 0][was]
        if self.layout.results != "discard":
            # Retracted windows are emitted again.
            again = divided & (np.r_[cells.timing, NOT_SHOWN][was] != NOT_SHOWN)
            pending = np.where(again, np.maximum(pending, 1), pending)
        merged.pending = pending + came
        engine, now = self.engine, self.clock.now
        due = [np.int64(NEVER if at is None else at.due(now)) for at in (engine.early, engine.late_trigger)]
        merged.due = np.minimum(np.r_[cells.due, NEVER][was], np.where(closed, due[1], due[0]))
        merged.due[merged.pending == 0] = NEVER
        merged.due[stays & (came == 0)] = cells.due[was[stays & (came == 0)]]
        key = np.r_[windows.key, self.row_key[rows]][firsts]
        made = ChangingWindows(
            key, of, start, end, closed, self._maker_watermarks(windows, was, of, ids[old:], rows), merged
        )
        self._emit_counted(made, (came > 0) | divided, watermark)
        return made

    def _maker_watermarks(
        self, windows: ChangingWindows, was: Int64Array, of: Int64Array, ids: Int64Array, rows: Int64Array
    ) -> Int64Array:
        """The watermark of the row that made each window: the later of the rows at its start and its end."""
        first = np.full(len(was), NEVER)
        np.minimum.at(first, ids, self.row_watermark[rows])
        begun = np.where(was < 0, first, NO_TIME)
        ended = np.r_[begun[1:], NO_TIME]
        ended[np.r_[of[1:] != of[:-1], True]] = NO_TIME
        return np.asarray(np.maximum(np.r_[windows.made, NO_TIME][was], np.maximum(begun, ended)), np.int64)

    def _watermarks(self, rows: Int64Array, components: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The lowest and the highest own watermark of the rows of each of these components."""
        of = np.searchsorted(self.active, self.row_component[rows])
        lowest, highest = np.full(len(self.active), NEVER), np.full(len(self.active), NO_TIME)
        np.minimum.at(lowest, of, self.row_watermark[rows])
        np.maximum.at(highest, of, self.row_watermark[rows])
        mine = np.searchsorted(self.active, components)
        return lowest[mine], highest[mine]

    def _drop(self, rows: Int64Array) -> None:
        if not len(rows):
            return
        dropped = self.rows.take(pa.array(rows))
        dropped = dropped.append_column("time", pa.array(self.row_start[rows]))
        place = dropped.schema.get_field_index("window_end")
        self._dropped.append(dropped.set_column(place, "window_end", pa.array(self.row_next[rows])))

    def too_late(self) -> pa.Table:
        """Rows that were too late, each with the window that it would have had."""
        none = self.rows.slice(0, 0).append_column("time", pa.array([], pa.int64()))
        return pa.concat_tables([none, *self._dropped])


def _ends_of_parts(windows: ChangingWindows, was: Int64Array, of: Int64Array, start: Int64Array) -> Int64Array:
    """For each new window the end of the old one that it is a part of; END if of none. `was`: the old window with the same
    start, or -1; `of` and `start`: the component and the start of the new ones, ordered."""
    last = np.maximum.accumulate(np.where(was >= 0, np.arange(len(was)), -1))
    end = np.r_[windows.end, END][was[last]]
    return np.where((last >= 0) & (of[last] == of) & (end > start), end, END)


def next_earlier(ranks: Int64Array) -> Int64Array:
    """For each place the next one with a lower rank; itself if there is none.

    By pointer jumping, so that few rounds are needed.

    >>> next_earlier(np.array([3, 4, 1, 2]))
    array([2, 2, 2, 3])
    """
    count = len(ranks)
    places = np.arange(count)
    found = np.minimum(places + 1, count - 1)
    while True:
        beyond = (ranks[found] > ranks) & (found != places) & (found[found] != found)
        if not beyond.any():
            break
        found = np.where(beyond, found[found], found)
    return np.where(ranks[found] < ranks, found, places)


@dataclass(frozen=True)
class ValidityEngine(PaneEngine):
    """Validity windows. A value: it is sent to Spark's workers."""

    windows = "validity"

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        came = WaitingRows(self.layout, rows, 1, clock)
        kept, ready, waits, released = came.separate(state, came.known, beyond=1)
        if not (rows.num_rows or kept.num_rows or ready.rows.num_rows):
            return Step(self.output_schema.empty_table())
        rounds = ValidityRounds(self, kept, ready, clock)
        rounds.run()
        put, gone = rounds.state()
        put, gone = pa.concat_tables([put, waits]), pa.concat_tables([gone, released])
        late = [late_contributions(self.late_schema, part, self.aggregates)
                for part in (rounds.too_late(), came.take(~came.known))]  # fmt: skip
        given = [part for part in late if part is not None]
        too_late = pa.concat_tables(given) if given else None
        counts = {"late": rounds.late_count, "too_late": 0 if too_late is None else too_late.num_rows}
        put, gone = put if put.num_rows else None, gone if gone.num_rows else None
        return Step(rounds.output(), put, gone, too_late, counts, own=rounds.own())
