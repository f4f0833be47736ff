"""VersionsEngine: every version of each key with its validity, as a changing table.

The input is that of `table_engine.table_input`, with an order. The first part of the order is the time from which a row is
valid (any type that has an order). Of rows of a key that are valid from the same time on one counts: the one with the highest
order, then with the highest position. So a key has a sequence of rows, of which some are deletes:

    order       5        10       20      30         40
    row         Bonn     Ulm      Ulm     (delete)   Jena
    version     5-10     10-30                       40-

A version begins with a row that is not a delete and differs from the row before it in a tracked column. It ends where the next
one begins, or with a delete; its columns are those of its last row. The versions depend on the rows alone: neither on
the order in which they arrive nor on batches.

State rows: the rows of each key that count, deletes included (without their columns): a row that arrives late may be
between any two of them. A batch reads all rows of the keys in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import in_log_order, same_values
from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import key_hashes, mix
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.stage.spark_hashes import hash_columns, hashable
from mainstem.operators.tables.table_engine import POSITION
from mainstem.operators.tables.weights import emit_changes, find_groups, state_rows, value_ranks, whole
from mainstem.operators.windows.numbering import Mask, last_of_each, number_rows, numbers

__all__ = ["VersionsEngine"]

NO_VERSION = -2
NO_END = -1
REASON = "order_by is null"


@dataclass(frozen=True)
class VersionsEngine:
    """Keeps the rows of each key in their order. A value: it is sent to Spark's workers."""

    row_type: pa.DataType
    order: pa.DataType
    # The columns of the row that are the key, and those whose change begins a version.
    key: tuple[str, ...]
    track: tuple[str, ...]

    @property
    def time_type(self) -> pa.DataType:
        """The type of `valid_from` and `valid_until`."""
        return self.order.field(0).type if pa.types.is_struct(self.order) else self.order

    @property
    def state_schema(self) -> pa.Schema:
        own = [("check", pa.int64()), ("deleted", pa.bool_()), ("order", self.order), *POSITION]
        return pa.schema([*STATE_COLUMNS, *own, ("row", self.row_type)])

    @property
    def output_schema(self) -> pa.Schema:
        times = [(name, self.time_type) for name in ("valid_from", "valid_until")]
        return pa.schema([("row", self.row_type), *times, ("change", pa.string())])

    @property
    def late_schema(self) -> pa.Schema:
        keys = [(f"by_{place}", self.row_type.field(name).type) for place, name in enumerate(self.key)]
        return pa.schema([*keys, ("reason", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])

    def describe(self) -> dict[str, Any]:
        return {"versions": str(self.row_type), "order": str(self.order), "track": list(self.track)}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows)
        timeless = np.asarray(whole(rows.column("order")).is_null())
        late = self._late(rows, timeless)
        if timeless.any():
            rows = rows.filter(pa.array(~timeless))
        known = find_groups(state, numbers(rows, "group"))
        names = ["group", "check", "deleted", "order", *(name for name, _ in POSITION), "row"]
        schema = pa.schema([self.state_schema.field(name) for name in names])
        both = pa.concat_tables([known.select(names).cast(schema), rows.select(names).cast(schema)]).combine_chunks()
        slots = _Slots.of(both, self._times(both), known.num_rows)
        before, after = (self._versions(both, slots, chosen) for chosen in (slots.before, slots.after))
        return Step(
            self._output(both, slots, before, after),
            self._state(both, slots),
            late=late,
            counts={"too_late": late.num_rows} if late.num_rows else {},
        )

    def _times(self, rows: pa.Table) -> pa.Array:
        order = whole(rows.column("order"))
        return order.field(0) if pa.types.is_struct(self.order) else order

    def _versions(self, rows: pa.Table, slots: _Slots, chosen: Int64Array) -> _Versions:
        """The versions of the keys, if these rows count: for each slot a row, or -1."""
        present = np.flatnonzero(chosen >= 0)
        found = chosen[present]
        key = slots.key[present]
        deleted = np.asarray(whole(rows.column("deleted"))).astype(np.bool_)[found]
        first = np.ones(len(found), np.bool_)
        first[1:] = key[1:] != key[:-1]
        begins = ~deleted
        if len(found):
            begins[1:] &= first[1:] | deleted[:-1] | self._changed(rows, found)
        # A version ends where another one begins, with a delete, and with its key, whose first row is one of the two.
        edges = np.flatnonzero(begins | deleted)
        ends = np.r_[edges[1:], len(found)][: len(edges)]
        edges, ends = edges[begins[edges]], ends[begins[edges]]
        closed = np.r_[first, True][ends]
        made = _Versions(np.full(len(chosen), NO_VERSION, np.int64), np.full(len(chosen), -1, np.int64))
        made.until[present[edges]] = np.where(closed, NO_END, np.r_[present, NO_END][ends])
        made.row[present[edges]] = found[ends - 1]
        return made

    def _changed(self, rows: pa.Table, found: Int64Array) -> Mask:
        """Whether each of these rows, but the first, differs from the one before in a tracked column."""
        row = whole(rows.column("row"))
        same = np.ones(len(found) - 1, np.bool_)
        for name in self.track:
            values = pc.struct_field(row, [name]).take(pa.array(found))
            same &= same_values(values[1:], values[:-1])
        return ~same

    def _output(self, rows: pa.Table, slots: _Slots, before: _Versions, after: _Versions) -> pa.Table:
        there = (before.until != NO_VERSION) & (after.until != NO_VERSION)
        same = (before.until == after.until) & (before.row == after.row)
        # The same version, but of another row: it may be equal.
        other = np.flatnonzero(there & (before.until == after.until) & ~same)
        row = whole(rows.column("row"))
        same[other] = same_values(*(row.take(pa.array(made.row[other])) for made in (before, after)))
        times = self._times(rows)
        parts, places = [], []
        for made in (before, after):
            shown = np.flatnonzero((made.until != NO_VERSION) & ~same)
            until = made.until[shown]
            ends = times.take(pa.array(slots.first[until], mask=until == NO_END))
            columns = [row.take(pa.array(made.row[shown])), times.take(pa.array(slots.first[shown])), ends]
            parts.append(pa.Table.from_arrays(columns, names=["row", "valid_from", "valid_until"]))
            places.append(shown)
        weights = np.repeat(np.array([-1, 1]), [len(shown) for shown in places])
        changes = emit_changes(pa.concat_tables(parts), weights, (np.concatenate(places),))
        return pa.Table.from_arrays([whole(column) for column in changes.columns], schema=self.output_schema)

    def _state(self, rows: pa.Table, slots: _Slots) -> pa.Table:
        changed = slots.after[slots.after != slots.before]
        taken = rows.take(pa.array(changed))
        times = self._times(taken)
        hashes = hash_columns([times], len(times)) if hashable(times.type) else key_hashes([times], len(times), "time")
        deleted, row = whole(taken.column("deleted")), whole(taken.column("row"))
        columns: dict[str, object] = {
            "group": numbers(taken, "group"),
            "item": mix(numbers(taken, "check"), hashes),
            "row": pc.if_else(deleted, pa.scalar(None, row.type), row) if len(row) else row,
        }
        columns |= {name: whole(taken.column(name)) for name in taken.column_names if name not in columns}
        return state_rows(self.state_schema, columns)

    def _late(self, rows: pa.Table, timeless: Mask) -> pa.Table:
        """Rows without an order have no place among the versions."""
        taken = rows.filter(pa.array(timeless))
        row = whole(taken.column("row"))
        columns = [
            *(pc.struct_field(row, [name]) for name in self.key),
            pa.array([REASON] * taken.num_rows, pa.string()),
            *(whole(taken.column(name)) for name in ("partition", "offset")),
        ]
        return pa.Table.from_arrays(columns, schema=self.late_schema)


@dataclass(frozen=True)
class _Slots:
    """The times of each key, in order. Each has one row that counts."""

    # The number of the key, and one of the rows.
    key: Int64Array
    first: Int64Array
    # The row that counts before the batch, -1 if there is none, and after it.
    before: Int64Array
    after: Int64Array

    @classmethod
    def of(cls, rows: pa.Table, times: pa.Array, known: int) -> _Slots:
        """The first `known` rows are those of the state."""
        keys, _ = number_rows(numbers(rows, "group"), numbers(rows, "check"))
        slots, first = number_rows(keys, value_ranks(times))
        before, after = (np.full(len(first), -1, np.int64) for _ in range(2))
        before[slots[:known]] = np.arange(known)
        order = order_rows(slots, value_ranks(rows.column("order")), *(numbers(rows, name) for name, _ in POSITION))
        last = order[last_of_each(slots[order])]
        after[slots[last]] = last
        return cls(keys[first], first, before, after)


@dataclass(frozen=True)
class _Versions:
    """For each slot the version that begins there: the slot where it ends (or `NO_END`, `NO_VERSION`), and its row."""

    until: Int64Array
    row: Int64Array
