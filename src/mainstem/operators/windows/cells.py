"""Cells: the state of one key in one window, and its layout in an engine's state.

    group, item, event_due, processing_due      as in every engine
    kind            int8        0 a cell, 1 a waiting row, 2 a remembered row
    check           int64       a second hash of the key: with group it identifies the key
    by_0, by_1 ...              the key itself
    window_start    int64       of a row that waits for its session: its own span
    window_end      int64
    rows            int64       of a cell: rows since its last pane
    panes           int32       how many panes were emitted
    timing          int8        of the last pane: 0 early, 1 on time, 2 late, -1 none was emitted
    a0_sum ...                  accumulators: of all rows, or with `discard` of those since the last pane
    shown_o0 ...                the values of the last pane, if it may have to be retracted or compared
    topic, partition, offset    of a single row: its position in the log
    watermark       int64       of a single row: its own

The accumulators are one set: no kind of result needs both totals and the values since the last pane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, Int64Array, StateTable
from mainstem.operators.stage.integer_order import sort_distinct
from mainstem.operators.windows.numbering import Mask, number_rows, numbers

__all__ = [
    "CELL",
    "CellLayout",
    "Cells",
    "NOT_SHOWN",
    "POSITION",
    "REMEMBERED",
    "WAITING",
    "WindowAggregates",
    "cast_rows",
    "find_state",
]

CELL, WAITING, REMEMBERED = 0, 1, 2
NOT_SHOWN = -1

POSITION = (
    pa.field("topic", pa.int32()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
)


class WindowAggregates(Protocol):
    """Vectorized accumulators of some aggregate functions."""

    @property
    def partial_schema(self) -> pa.Schema:
        """The accumulators' columns."""

    @property
    def output_schema(self) -> pa.Schema:
        """One column for each function: o0, o1, ..."""

    def merge(self, partials: pa.Table, ids: Int64Array, count: int) -> pa.Table:
        """Accumulators with the same id, merged in the order of the rows; row i is id i."""

    def empty(self, count: int) -> pa.Table:
        """Accumulators of no rows."""

    def finish(self, partials: pa.Table) -> pa.Table:
        """The results of the functions."""


@dataclass(frozen=True)
class CellLayout:
    """The columns of the state of a window engine."""

    by: pa.Schema
    aggregates: WindowAggregates
    results: str
    # Whether a pane is compared with the previous one, or retracts it.
    keeps_shown: bool
    # Whether single rows are stored.
    keeps_rows: bool

    @cached_property
    def shown_schema(self) -> pa.Schema:
        fields = self.aggregates.output_schema if self.keeps_shown else ()
        return pa.schema([pa.field(f"shown_{at.name}", at.type) for at in fields])

    @cached_property
    def state_schema(self) -> pa.Schema:
        single = (*POSITION, pa.field("watermark", pa.int64())) if self.keeps_rows else ()
        return pa.schema(
            [
                *STATE_COLUMNS,
                pa.field("kind", pa.int8()),
                pa.field("check", pa.int64()),
                *self.by,
                pa.field("window_start", pa.int64()),
                pa.field("window_end", pa.int64()),
                pa.field("rows", pa.int64()),
                pa.field("panes", pa.int32()),
                pa.field("timing", pa.int8()),
                *self.aggregates.partial_schema,
                *self.shown_schema,
                *single,
            ]
        )

    @cached_property
    def output_schema(self) -> pa.Schema:
        pane = pa.struct([("index", pa.int32()), ("timing", pa.string()), ("final", pa.bool_())])
        return pa.schema(
            [
                *self.by,
                pa.field("window_start", pa.int64()),
                pa.field("window_end", pa.int64()),
                *self.aggregates.output_schema,
                pa.field("pane", pane),
                pa.field("change", pa.string()),
            ]
        )

    def build_rows(self, columns: dict[str, object], *tables: pa.Table) -> pa.Table:
        """State rows from arrays and tables; other columns are null."""
        given: dict[str, object] = {name: table.column(name) for table in tables for name in table.column_names}
        given |= columns
        count = len(given["group"])  # type: ignore[arg-type]
        arrays = [given[at.name] if at.name in given else pa.nulls(count, at.type) for at in self.state_schema]
        plain = [
            pa.array(array, at.type) if isinstance(array, np.ndarray) else array
            for array, at in zip(arrays, self.state_schema, strict=True)
        ]
        return pa.table(plain, schema=self.state_schema)


@dataclass
class Cells:
    """The cells that a step touches, column by column. For one thread."""

    layout: CellLayout
    partials: pa.Table
    shown: pa.Table
    # Rows since the last pane, number of panes, and timing of the last pane.
    pending: Int64Array
    panes: Int64Array
    timing: Int64Array
    # When the next timer is due.
    due: Int64Array

    @classmethod
    def of_state(cls, layout: CellLayout, kept: pa.Table, index: Int64Array) -> Cells:
        """Cells from the state: `index` is the row of each in `kept`, -1 for a new, empty cell."""
        return cls(
            layout,
            _take(kept.select(layout.aggregates.partial_schema.names), index, layout.aggregates.empty(1)),
            _take(kept.select(layout.shown_schema.names), index, _nulls(layout.shown_schema)),
            _pick(numbers(kept, "rows"), index, 0),
            _pick(numbers(kept, "panes"), index, 0),
            _pick(numbers(kept, "timing"), index, NOT_SHOWN),
            _pick(numbers(kept, "processing_due"), index, NEVER),
        )

    @property
    def count(self) -> int:
        return len(self.pending)

    def take(self, index: Int64Array) -> Cells:
        taken = pa.array(index)
        return Cells(
            self.layout,
            self.partials.take(taken),
            self.shown.take(taken) if self.layout.keeps_shown else self.shown,
            self.pending[index],
            self.panes[index],
            self.timing[index],
            self.due[index],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Cells]) -> Cells:
        """The cells of all parts, concatenated."""
        return cls(
            parts[0].layout,
            pa.concat_tables([part.partials for part in parts]).combine_chunks(),
            pa.concat_tables([part.shown for part in parts]).combine_chunks(),
            np.concatenate([part.pending for part in parts]),
            np.concatenate([part.panes for part in parts]),
            np.concatenate([part.timing for part in parts]),
            np.concatenate([part.due for part in parts]),
        )

    def clear(self, which: Mask) -> None:
        """Reset the accumulators of these cells."""
        if which.any():
            index = np.where(which, -1, np.arange(self.count))
            self.partials = _take(self.partials, index, self.layout.aggregates.empty(1))

    def build_rows(self, chosen: Int64Array, columns: dict[str, object], keys: pa.Table) -> pa.Table:
        """State rows of some cells; `columns` and `keys` have their other columns."""
        here: dict[str, object] = {
            "processing_due": self.due[chosen],
            "kind": np.full(len(chosen), CELL, np.int8),
            "rows": self.pending[chosen],
            "panes": self.panes[chosen].astype(np.int32),
            "timing": self.timing[chosen].astype(np.int8),
        }
        tables = [keys, self.partials.take(pa.array(chosen))]
        if self.layout.keeps_shown:
            tables.append(self.shown.take(pa.array(chosen)))
        return self.layout.build_rows(here | columns, *tables)


def _nulls(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(1, at.type) for at in schema], schema=schema)


def _take(rows: pa.Table, index: Int64Array, otherwise: pa.Table) -> pa.Table:
    """Rows by number; for -1 the single row of `otherwise`."""
    if not rows.num_columns:
        return rows.schema.empty_table()
    if len(index) == rows.num_rows and bool((index == np.arange(len(index))).all()):
        return rows
    both = pa.concat_tables([rows, otherwise.select(rows.column_names).cast(rows.schema)])
    return both.combine_chunks().take(pa.array(np.where(index < 0, rows.num_rows, index)))


def _pick(values: Int64Array, index: Int64Array, otherwise: int) -> Int64Array:
    picked: Int64Array = np.r_[values, np.int64(otherwise)][np.where(index < 0, len(values), index)]
    return picked


def find_state(state: StateTable, groups: Int64Array, due: pa.Table) -> pa.Table:
    """The state rows of some groups, and those that are due; each once."""
    if not len(groups):
        return due
    found = state.find(sort_distinct(groups))
    if not due.num_rows:
        return found
    both = pa.concat_tables([found, due]).combine_chunks()
    _, firsts = number_rows(numbers(both, "group"), numbers(both, "item"))
    return both if len(firsts) == both.num_rows else both.take(pa.array(firsts))


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast to exactly these fields: input columns may be not null, or large strings."""
    both = zip(rows.columns, schema, strict=True)
    columns = [column if column.type == at.type else column.cast(at.type) for column, at in both]
    return pa.table(columns, schema=pa.schema([pa.field(at.name, at.type) for at in schema]))
