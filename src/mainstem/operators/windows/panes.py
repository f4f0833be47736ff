"""Panes: the results of cells in one step, in order, and their output rows.

A pane whose row would equal the last one is not emitted, unless it must be (the on-time one). By
`results`:

    discard      the values of the rows since the last pane, as an insert
    accumulate   the values of all rows: an insert, then updates
    retract      the same as inserts, each after a delete of the row that it replaces
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.windows.cells import NOT_SHOWN, POSITION, CellLayout, Cells, WindowAggregates
from mainstem.operators.windows.numbering import Mask, differ, last_of_each, ordinals
from mainstem.operators.windows.triggers import Trigger, each_row
from mainstem.operators.windows.waiting_rows import late_schema

__all__ = [
    "BATCH_DEPENDENT",
    "COUNTS",
    "DELETE",
    "EARLY",
    "LATE",
    "ON_TIME",
    "PaneEngine",
    "Panes",
    "pane_rows",
    "with_final",
]


# PaneEngine: the base of all window engines: the key, the aggregates, and when panes are emitted.


@dataclass(frozen=True)
class PaneEngine:
    """The base of a window engine; by default its input is single rows."""

    # The name of these windows in the description of the state.
    windows: ClassVar[str]

    # The key's columns: by_0, by_1, ...
    by: pa.Schema
    aggregates: WindowAggregates
    early: Trigger | None = None
    # With a lateness the default is each row.
    late: Trigger | None = None
    # In microseconds.
    lateness: int = 0
    # discard | accumulate | retract
    results: str = "accumulate"
    # always | if changed
    on_time: str = "always"

    @cached_property
    def late_trigger(self) -> Trigger | None:
        return (self.late or each_row()) if self.lateness else None

    @property
    def closes_after(self) -> int:
        """How far the watermark is past the end of a window when it closes: 1 if a row at the end belongs to it."""
        return 0

    @property
    def behind(self) -> int:
        """How far the watermark may be past the last moment of a window (its `end` less 1) before its on-time pane."""
        return 0

    @property
    def keeps_rows(self) -> bool:
        """Whether the state has columns for single rows."""
        return True

    @cached_property
    def layout(self) -> CellLayout:
        again = self.early is not None or self.lateness > 0
        return CellLayout(self.by, self.aggregates, self.results, again and self.results != "discard", self.keeps_rows)

    @property
    def state_schema(self) -> pa.Schema:
        return self.layout.state_schema

    @property
    def output_schema(self) -> pa.Schema:
        return self.layout.output_schema

    @property
    def late_schema(self) -> pa.Schema:
        return late_schema(self.by, self.aggregates)

    @property
    def input_schema(self) -> pa.Schema:
        """The input of `step`: single rows."""
        return self.single_rows()

    def single_rows(self, *more: pa.Field) -> pa.Schema:
        """Single rows with their own watermarks and positions, and further columns."""
        return pa.schema(
            [
                pa.field("group", pa.int64()),
                pa.field("check", pa.int64()),
                *self.by,
                pa.field("time", pa.int64()),
                pa.field("watermark", pa.int64()),
                *more,
                *POSITION,
                *self.aggregates.partial_schema,
            ]
        )

    def describe(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "state": [[at.name, str(at.type)] for at in self.state_schema],
            "results": self.results,
            "lateness": self.lateness,
        }


# The field of `pane` that depends on how the log is split into batches. A pane is final if its window and lateness were over at
# the end of the batch that emitted it: a batch that ends earlier emits the same pane, which is not final yet.
BATCH_DEPENDENT = "final"
# The field that counts panes: with early results of sessions, or by processing time, it depends on the batches too.
COUNTS = "index"

EARLY, ON_TIME, LATE = 0, 1, 2
TIMINGS = pa.array(["early", "on_time", "late"])
CHANGES = pa.array(["insert", "update", "delete"])
INSERT, UPDATE, DELETE = 0, 1, 2


@dataclass(frozen=True)
class _Shown:
    """Panes: the cell of each, its index, timing and values."""

    cells: Int64Array
    index: Int64Array
    timing: Int64Array
    values: pa.Table
    # The watermark of each.
    own: Int64Array

    def take(self, chosen: Int64Array) -> _Shown:
        values = self.values.take(pa.array(chosen))
        return _Shown(self.cells[chosen], self.index[chosen], self.timing[chosen], values, self.own[chosen])


class Panes:
    """Collects the panes of one step over the same cells. For one thread."""

    def __init__(self, layout: CellLayout, cells: Cells) -> None:
        self.layout = layout
        self.cells = cells
        nothing = np.zeros(cells.count, np.int64)
        self._before = _Shown(np.arange(cells.count), cells.panes - 1, cells.timing, self._rename(cells.shown), nothing)
        self._shown: list[_Shown] = []

    def show(
        self,
        ids: Int64Array,
        partials: pa.Table,
        timing: Int64Array,
        forced: Mask,
        own: Int64Array,
        *,
        last_only: bool = False,
    ) -> None:
        """Emit panes of these cells, which are sorted, if they changed or are `forced`. `own`: their watermarks. With
        `last_only` all panes of a cell are counted, but only the last is emitted."""
        cells = self.cells
        if not len(ids):
            return
        values = self.layout.aggregates.finish(partials)
        if self.layout.keeps_shown and self.layout.results != "discard":
            put = forced | self._changed(ids, values)
            if not put.all():
                chosen = np.flatnonzero(put)
                ids, timing, values, own = ids[chosen], timing[chosen], values.take(pa.array(chosen)), own[chosen]
        shown = _Shown(ids, cells.panes[ids] + ordinals(ids), timing, values, own)
        last = np.flatnonzero(last_of_each(ids))
        self._shown.append(shown.take(last) if last_only else shown)
        cells.panes[ids[last]] = shown.index[last] + 1
        cells.timing = cells.timing.copy()
        cells.timing[ids[last]] = timing[last]
        if self.layout.keeps_shown:
            index = np.arange(cells.count)
            index[ids[last]] = cells.count + last
            renamed = values.rename_columns(self.layout.shown_schema.names).cast(self.layout.shown_schema)
            cells.shown = pa.concat_tables([cells.shown, renamed]).combine_chunks().take(pa.array(index))

    def _changed(self, ids: Int64Array, values: pa.Table) -> Mask:
        """Which of these differ from the previous pane of their cell."""
        places = np.arange(len(ids))
        again = np.r_[False, ids[1:] == ids[:-1]]
        before = self._rename(self.cells.shown)
        all_values = pa.concat_tables([before, values.cast(before.schema)]).combine_chunks()
        index = np.where(again, before.num_rows + places - 1, ids)
        new = ~again & (self.cells.timing[ids] == NOT_SHOWN)
        return np.asarray(new | differ(values, all_values.take(pa.array(index))))

    def _rename(self, shown: pa.Table) -> pa.Table:
        return shown.rename_columns(self.layout.aggregates.output_schema.names) if self.layout.keeps_shown else shown

    def output(self, keys: pa.Table, final: Mask) -> tuple[pa.Table, Int64Array, Int64Array]:
        """The rows, cell by cell, with the cell and watermark of each; a retraction has the watermark of its replacement.

        `keys`: the columns of each cell; `final`: the cells that emit no more panes.
        """
        schema = self.layout.output_schema
        if not self._shown:
            return schema.empty_table(), np.empty(0, np.int64), np.empty(0, np.int64)
        ids = np.concatenate([shown.cells for shown in self._shown])
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        index = np.concatenate([shown.index for shown in self._shown])[order]
        timing = np.concatenate([shown.timing for shown in self._shown])[order]
        own = np.concatenate([shown.own for shown in self._shown])[order]
        values = pa.concat_tables([shown.values for shown in self._shown])
        ends = last_of_each(ids) & final[ids]
        before = self._before
        again = np.r_[False, ids[1:] == ids[:-1]]
        # Not every counted pane was emitted, so the index does not show whether one was.
        replacing = again | (before.timing[ids] != NOT_SHOWN)
        change = np.where(replacing & (self.layout.results == "accumulate"), UPDATE, INSERT)
        if self.layout.results != "retract" or not replacing.any():
            return pane_rows(self.layout, keys, ids, values, order, index, timing, ends, change), ids, own
        # Each row after the one that it replaces: the previous row here, or that of an earlier batch.
        replaced = np.flatnonzero(replacing)
        again = again[replaced]
        replaces = np.where(again, order[replaced - 1], values.num_rows + ids[replaced])
        numbered = np.where(again, index[replaced - 1], before.index[ids[replaced]])
        told = np.where(again, timing[replaced - 1], before.timing[ids[replaced]])
        values = pa.concat_tables([values, before.values.cast(values.schema)])
        places = np.argsort(np.r_[replaced * 2, np.arange(len(ids)) * 2 + 1], kind="stable")
        of_rows = np.r_[ids[replaced], ids][places]
        rows = pane_rows(
            self.layout,
            keys,
            of_rows,
            values,
            np.r_[replaces, order][places],
            np.r_[numbered, index][places],
            np.r_[told, timing][places],
            np.r_[np.zeros(len(replaced), np.bool_), ends][places],
            np.r_[np.full(len(replaced), DELETE), change][places],
        )
        return rows, of_rows, np.r_[own[replaced], own][places]


def pane_rows(
    layout: CellLayout,
    keys: pa.Table,
    ids: Int64Array,
    values: pa.Table,
    taken: Int64Array,
    index: Int64Array,
    timing: Int64Array,
    final: Mask,
    change: Int64Array,
) -> pa.Table:
    """Output rows: rows `ids` of `keys`, rows `taken` of `values`, and the other columns as given."""
    schema = layout.output_schema
    arrays = [pa.array(index.astype(np.int32)), TIMINGS.take(pa.array(timing)), pa.array(final)]
    pane = pa.StructArray.from_arrays(arrays, fields=list(schema.field("pane").type))
    named = keys.take(pa.array(ids))
    columns = [named.column(at.name) for at in schema if at.name in keys.column_names]
    columns += values.combine_chunks().take(pa.array(taken)).cast(layout.aggregates.output_schema).columns
    return pa.table([*columns, pane, CHANGES.take(pa.array(change))], schema=schema)


def with_final(panes: pa.ChunkedArray, final: Mask) -> pa.Array:
    """The column `pane` with a new `final`."""
    whole = panes.combine_chunks()
    structs = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    index, timing, _ = structs.flatten()
    return pa.StructArray.from_arrays([index, timing, pa.array(final)], fields=list(structs.type))
