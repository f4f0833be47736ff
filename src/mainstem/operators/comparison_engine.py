"""ComparisonEngine: each row of a changing table of windows beside the row of the same key some time earlier.

Input, one row for each change to a window of a key:

    group, check, by_0 ...          the key
    start, end           int64      the window, in microseconds; NO_TIME if unbounded
    change               string     insert | update | delete
    partition, offset, tie          order the changes
    v_0 ...                         the values

State: the rows, by key and window. A row is evicted when neither the later window that is compared with it nor a
correction can need it. A correction changes two rows: its own, and the later one that is compared with it. A
window without a start (all of time) has no earlier window to compare with; one without an end is kept until it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import in_log_order, numbers
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.integer_order import sort_distinct

__all__ = ["ComparisonEngine", "WINDOW", "comparable"]

TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
_IDENTITY = ["group", "check", "start"]


def comparable(data_type: pa.DataType) -> bool:
    """Whether one value can be divided by another."""
    kinds = pa.types
    return bool(kinds.is_integer(data_type) or kinds.is_floating(data_type) or kinds.is_decimal(data_type))


@dataclass(frozen=True)
class ComparisonEngine:
    """Compares with the window `earlier` before; accepts corrections for `lateness` after a window's end. In microseconds."""

    by_fields: tuple[pa.Field, ...]
    # v_0, v_1, ...
    values: tuple[pa.Field, ...]
    earlier: int
    lateness: int

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("check", pa.int64()), *self.by_fields, ("start", pa.int64()), ("end", pa.int64()), *self.values]
        return pa.schema([*STATE_COLUMNS, *own])

    @property
    def output_schema(self) -> pa.Schema:
        compared = []
        for place, value in enumerate(self.values):
            compared += [value, pa.field(f"e_{place}", value.type)]
            compared += [pa.field(f"r_{place}", pa.float64())] if comparable(value.type) else []
        return pa.schema([*self.by_fields, ("window", WINDOW), *compared, ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        by, values = ([str(column.type) for column in columns] for columns in (self.by_fields, self.values))
        return {"compare_with": self.earlier, "by": by, "values": values, "lateness": self.lateness}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        changed = _last_changes(in_log_order(rows))
        before = state.find(sort_distinct(numbers(changed, "group")))
        deleted = pc.equal(changed.column("change"), "delete")
        present = changed.filter(pc.invert(deleted))
        untouched = _without(before, changed)
        current = pa.concat_tables([self._plain(untouched), self._plain(present)])
        # Unchanged later rows that are compared with a changed one.
        later = self._plain(_matching(untouched, _shift_windows(changed, self.earlier)))
        shown = pa.concat_tables([
            self._compare(later, current, pa.array(["update"] * later.num_rows, pa.string())),
            self._compare(self._plain(present), current, _changes(present, before)),
            self._compare(self._plain(_matching(before, changed.filter(deleted))), current, None),
        ])  # fmt: skip
        order = np.lexsort((numbers(shown, "check"), numbers(shown, "group"), numbers(shown, "start")))
        put, gone = self._update_state(present, before, changed.filter(deleted), state.due(clock), clock)
        return Step(output=shown.take(pa.array(order)).select(self.output_schema.names), put=put, gone=gone)

    def _plain(self, rows: pa.Table) -> pa.Table:
        """Identity, window and values of rows from the state or from a batch."""
        columns = [("group", pa.int64()), *list(self.state_schema)[len(STATE_COLUMNS) :]]
        schema = pa.schema(columns)
        return rows.select(schema.names).cast(schema)

    def _compare(self, rows: pa.Table, current: pa.Table, changes: pa.Array | None) -> pa.Table:
        """Rows beside the earlier ones; as deletes if `changes` is None."""
        if changes is None:
            changes = pa.array(["delete"] * rows.num_rows, pa.string())
        places = _places(_shift_windows(rows, -self.earlier), current)
        found = current.take(pa.array(places, mask=places < 0))
        columns: dict[str, Any] = {name: rows.column(name) for name in (*_IDENTITY, *_names(self.by_fields))}
        times = [_times(numbers(rows, name)) for name in ("start", "end")]
        columns["window"] = pa.StructArray.from_arrays(times, fields=list(WINDOW))
        for place, value in enumerate(self.values):
            this, other = rows.column(value.name), found.column(value.name)
            columns |= {value.name: this, f"e_{place}": other}
            if comparable(value.type):
                columns[f"r_{place}"] = _ratio(this, other)
        wanted = [pa.field(name, pa.int64()) for name in _IDENTITY]
        schema = pa.schema([*wanted, *self.output_schema])
        columns["change"] = changes
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _update_state(
        self, present: pa.Table, before: pa.Table, deleted: pa.Table, due: pa.Table, clock: BatchClock
    ) -> tuple[pa.Table, pa.Table]:
        ends = numbers(present, "end")
        event_due = np.where(ends == NO_TIME, NEVER, ends + self.earlier + self.lateness)
        lasting = event_due > clock.watermark
        own = {
            "item": mix(numbers(present, "check"), numbers(present, "start")),
            "event_due": event_due,
            "processing_due": np.full(len(ends), NEVER),
        }
        put = pa.Table.from_arrays(
            [pa.array(own[name]) if name in own else present.column(name) for name in self.state_schema.names],
            names=self.state_schema.names,
        )
        put = put.cast(self.state_schema).filter(pa.array(lasting))
        gone = pa.concat_tables([
            _matching(before, deleted).select(["group", "item"]),
            # A row that is due, but written again in this batch with a later due time, stays.
            _without(due, put).select(["group", "item"]),
        ])  # fmt: skip
        return put, gone


def _names(fields: tuple[pa.Field, ...]) -> list[str]:
    return [column.name for column in fields]


def _last_changes(rows: pa.Table) -> pa.Table:
    """The last change to each window of each key, in order."""
    if not rows.num_rows:
        return rows
    keys = [numbers(rows, name) for name in reversed(_IDENTITY)]
    order = np.lexsort((np.arange(rows.num_rows), *keys))
    last = np.ones(len(order), np.bool_)
    last[:-1] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return rows.take(pa.array(np.sort(order[last])))


def _shift_windows(rows: pa.Table, span: int) -> pa.Table:
    """The same keys with the window shifted by `span`; NEVER if it has no start."""
    start = numbers(rows, "start")
    moved = np.where(start == NO_TIME, NEVER, start + span)
    return pa.table({"group": rows.column("group"), "check": rows.column("check"), "start": moved})


def _times(microseconds: Int64Array) -> pa.Array:
    return pa.array(microseconds, mask=microseconds == NO_TIME).view(TIME)


def _places(wanted: pa.Table, rows: pa.Table) -> Int64Array:
    """For each wanted identity the number of the row that has it; -1 if none has."""
    count = wanted.num_rows
    if not count or not rows.num_rows:
        return np.full(count, -1, np.int64)
    theirs = rows.select(_IDENTITY).append_column("place", pa.array(np.arange(rows.num_rows)))
    ours = wanted.select(_IDENTITY).append_column("number", pa.array(np.arange(count)))
    joined = ours.join(theirs, keys=_IDENTITY, join_type="inner")
    found = np.full(count, -1, np.int64)
    found[numbers(joined, "number")] = numbers(joined, "place")
    return found


def _matching(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows whose identity is in `wanted`."""
    return rows.filter(pa.array(_places(rows, wanted) >= 0))


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows whose identity is not in `others`."""
    return rows.filter(pa.array(_places(rows, others) < 0))


def _changes(present: pa.Table, before: pa.Table) -> pa.Array:
    return pa.array(np.where(_places(present, before) >= 0, "update", "insert"), pa.string())


def _ratio(this: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    divisor = pc.cast(other, pa.float64())
    known = pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
    return pc.divide(pc.cast(this, pa.float64()), known)
