"""Phases: what happens to cells when rows come, a timer is due, or their time is over.

A cell goes through two phases with the same rules. Before its end has come, its on-time rows are counted and shown
early; the phase closes with the on-time pane. Then its late rows are counted and shown; the phase closes when its
lateness is over, and the cell is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, Int64Array
from mainstem.operators.windows.cells import Cells, WindowAggregates
from mainstem.operators.windows.numbering import Mask, last_of_each, ordinals
from mainstem.operators.windows.panes import Panes
from mainstem.operators.windows.triggers import Trigger

__all__ = ["Arrivals", "Phase", "running"]


@dataclass(frozen=True)
class Arrivals:
    """Rows that come to cells: the number of each row's cell, how many rows it stands for, its accumulators, and its own
    watermark (where rows are counted).

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
    # The timing of a pane that a trigger shows, and of the one that closes the phase.
    timing: int
    timing_closing: int
    # Which cells close it now, and of those, which must be shown even if nothing is new.
    closing: Mask
    forced: Mask
    # Which cells' timers are due.
    waking: Mask
    now: int
    # The watermark of a pane that closes the phase: the last before that happens. And that of one that a timer shows.
    closing_own: Int64Array
    waking_own: int
    # Whether of the panes that a count of rows gives, only the last of each cell is put out.
    last_only: bool = False

    def run(self, cells: Cells, arrivals: Arrivals, panes: Panes) -> None:
        """Take the rows, and show what is to be shown."""
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
        cells.partials = cells.layout.aggregates.merged(parts, ids, cells.count)
        came = np.bincount(arrivals.cells, arrivals.rows, cells.count).astype(np.int64)
        cells.pending = cells.pending + came

    def _count(self, cells: Cells, arrivals: Arrivals, panes: Panes, rows: int) -> Mask:
        """Take rows one by one: after so many of them a pane. Gives which cells were shown."""
        ids, aggregates = arrivals.cells, cells.layout.aggregates
        place = cells.pending[ids] + ordinals(ids)
        share = place // rows
        begins = np.r_[True, (ids[1:] != ids[:-1]) | (share[1:] != share[:-1])]
        segments = np.cumsum(begins) - 1
        count = int(segments[-1]) + 1
        of_cell = ids[begins]
        first = ordinals(of_cell) == 0
        parts = pa.concat_tables([cells.partials.take(pa.array(of_cell[first])), arrivals.partials])
        merged = aggregates.merged(parts, np.r_[np.flatnonzero(first), segments], count)
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
    """Each row merged with all before it in its run; `place` says the how manieth of its run each is.

    In rounds: after the k-th each row holds 2^k rows, so that a run of 100,000 takes 17 of them.
    """
    reach = 1
    while len(place) and reach <= int(place.max()):
        rows = np.flatnonzero(place >= reach)
        both = pa.concat_tables([partials.take(pa.array(rows - reach)), partials.take(pa.array(rows))])
        merged = aggregates.merged(both, np.r_[np.arange(len(rows)), np.arange(len(rows))], len(rows))
        index = np.arange(len(place))
        index[rows] = len(place) + np.arange(len(rows))
        partials = pa.concat_tables([partials, merged]).combine_chunks().take(pa.array(index))
        reach *= 2
    return partials
