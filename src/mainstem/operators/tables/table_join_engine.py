"""TableJoinEngine: joins two changing tables on their keys; the result is a changing table.

Input, one row for each insert or delete on either side:

    group, check    int64       hashes of the key; of the row itself if its key has a null: it matches nothing
    weight          int64       1 or -1
    h_0             int64       hash of the whole row
    side            int8        0 left, 1 right
    left, right     struct      the row, in the column of its side

The count of a pair is the product of the counts of its rows: its change is the product after the batch less the product
before. In an outer join (`how`) an unmatched row is in the result while the other side has no row of its key. So nothing
is deleted and inserted again unchanged.

State rows: all rows of both tables, those of one key and side in one group (`key` is the hash of the key alone). A batch
reads the rows that it changes and those that they match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.integer_order import sort_distinct
from mainstem.operators.tables.weights import (
    emit_changes,
    identify_rows,
    places_of,
    state_rows,
    sum_weights,
    weights_of,
    whole,
)
from mainstem.operators.windows.numbering import number_rows, numbers

__all__ = ["HOWS", "LEFT", "RIGHT", "TableJoinEngine"]

LEFT, RIGHT = 0, 1
# Whether pairs are emitted, and for which sides single rows: unmatched (False), or matched (True) for semi.
HOWS: dict[str, tuple[bool, dict[int, bool]]] = {
    "inner": (True, {}),
    "left": (True, {LEFT: False}),
    "right": (True, {RIGHT: False}),
    "full": (True, {LEFT: False, RIGHT: False}),
    "semi": (False, {LEFT: True}),
    "anti": (False, {LEFT: False}),
}
# This many pairs in one task take some gigabytes.
PAIRS_MAX = 20_000_000


@dataclass(frozen=True)
class TableJoinEngine:
    """Joins two changing tables. A value: it is sent to Spark's workers."""

    left_type: pa.DataType
    right_type: pa.DataType
    how: str
    # Key columns with the same name on both sides: emitted once, from the side that has a row.
    shared: tuple[str, ...] = ()
    # The maximum number of matches of a row.
    limit: int | None = None

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("key", pa.int64()), ("check", pa.int64()), ("side", pa.int8()), ("count", pa.int64())]
        return pa.schema([*STATE_COLUMNS, *own, ("left", self.left_type), ("right", self.right_type)])

    @property
    def output_schema(self) -> pa.Schema:
        keys = [(f"key_{place}", self.left_type.field(name).type) for place, name in enumerate(self.shared)]
        return pa.schema([*keys, ("left", self.left_type), ("right", self.right_type), ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        return {"join": [str(self.left_type), str(self.right_type)], "how": self.how, "shared": list(self.shared)}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        side, check = numbers(rows, "side"), numbers(rows, "check")
        key = numbers(rows, "group")
        item = mix(check, numbers(rows, "h_0"))
        group = _groups(key, side)
        firsts, change = sum_weights(weights_of(rows, "join"), group, item)
        group, item = group[firsts], item[firsts]
        known = self._find_stored(state, key[firsts], side[firsts], group, item)
        places = places_of(known, group, item)
        new = places < 0
        names = ["key", "check", "side", "left", "right"]
        schema = pa.schema([self.state_schema.field(name) for name in names])
        added = rows.take(pa.array(firsts[new])).append_column("key", pa.array(key[firsts][new])).select(names)
        table = pa.concat_tables([known.select(names).cast(schema), added.cast(schema)]).combine_chunks()
        groups, items = np.r_[numbers(known, "group"), group[new]], np.r_[numbers(known, "item"), item[new]]
        before = np.r_[numbers(known, "count"), np.zeros(int(new.sum()), np.int64)]
        after = before.copy()
        after[places[~new]] += change[~new]
        after[known.num_rows :] = change[new]
        left, right, weights = _Batch(self, table, before, after).changes()
        output = self._output(table, left, right)
        order = [np.r_[of, 0][rows_of] for rows_of in (left, right) for of in (groups, items)]
        shown = emit_changes(output, weights, order)
        put, gone = self._state(table, groups, items, before, after)
        return Step(pa.Table.from_arrays([whole(at) for at in shown.columns], schema=self.output_schema), put, gone)

    def _find_stored(
        self, state: StateTable, key: Int64Array, side: Int64Array, group: Int64Array, item: Int64Array
    ) -> pa.Table:
        """The stored rows that change, and all rows that they match.

        If the matched side emits single rows, all rows of the changed side with that key are read too, to know whether there
        are any; else a change does not read rows with the same key on the same side.
        """
        alone = HOWS[self.how][1]
        whole_sides = np.isin(side, [1 - one for one in alone])
        found = [
            state.find(sort_distinct(np.r_[_groups(key, 1 - side), group[whole_sides]])),
            state.find_items(group[~whole_sides], item[~whole_sides]),
        ]
        rows = pa.concat_tables(found).combine_chunks()
        _, firsts = number_rows(numbers(rows, "group"), numbers(rows, "item"))
        return rows.take(pa.array(firsts))

    def _output(self, table: pa.Table, left: Int64Array, right: Int64Array) -> pa.Table:
        sides = [
            whole(table.column(name)).take(pa.array(rows, mask=rows < 0))
            for name, rows in (("left", left), ("right", right))
        ]
        keys = [pc.coalesce(*(pc.struct_field(of, [name]) for of in sides)) for name in self.shared]
        names = [*(f"key_{place}" for place in range(len(keys))), "left", "right"]
        return pa.Table.from_arrays([*keys, *sides], names=names)

    def _state(
        self, table: pa.Table, group: Int64Array, items: Int64Array, before: Int64Array, after: Int64Array
    ) -> tuple[pa.Table, pa.Table]:
        put = np.flatnonzero((after != before) & (after != 0))
        gone = np.flatnonzero((after != before) & (after == 0))
        taken = table.take(pa.array(put))
        columns: dict[str, object] = {name: whole(taken.column(name)) for name in taken.column_names}
        columns |= {"group": group[put], "item": items[put], "count": after[put]}
        return state_rows(self.state_schema, columns), identify_rows(group[gone], items[gone])


class _Batch:
    """One step: all rows of the touched keys, with their counts before and after."""

    def __init__(self, engine: TableJoinEngine, table: pa.Table, before: Int64Array, after: Int64Array) -> None:
        self.engine = engine
        self.table = table
        # A row that was deleted before its insert has a negative count: it is not in the table.
        self.before, self.after = np.maximum(before, 0), np.maximum(after, 0)
        self.ids, self.firsts = number_rows(numbers(table, "key"), numbers(table, "check"))
        side = numbers(table, "side")
        self.sides = [np.flatnonzero(side == LEFT), np.flatnonzero(side == RIGHT)]
        self.changed = self.before != self.after

    def changes(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Row numbers of the left and right side of each output row, -1 for none, and the change of its count."""
        pairs, alone = HOWS[self.engine.how]
        self._check_limit()
        found = [self._pairs()] if pairs else []
        for side, met in alone.items():
            rows, weights = self._alone(side, met=met)
            nobody = np.full(len(rows), -1, np.int64)
            found.append((rows, nobody, weights) if side == LEFT else (nobody, rows, weights))
        left, right, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if len(found) > 1:
            # An unmatched row equals a pair whose other row has only nulls.
            both = [np.where(self._blank(side)[rows], 0, rows + 1) for side, rows in enumerate((left, right))]
            moved, weights = sum_weights(weights, self.ids[np.maximum(left, right)], *both)
        else:
            moved = np.flatnonzero(weights)
            weights = weights[moved]
        return left[moved], right[moved], weights

    def _blank(self, side: int) -> npt.NDArray[np.bool_]:
        """Which rows of a side have only nulls outside the shared columns; the last entry stands for no row."""
        name, of = ("left", self.engine.left_type) if side == LEFT else ("right", self.engine.right_type)
        rows = whole(self.table.column(name))
        found = np.ones(self.table.num_rows + 1, np.bool_)
        for field in of:
            if field.name not in self.engine.shared:
                found[:-1] &= np.asarray(pc.struct_field(rows, [field.name]).is_null())
        return found

    def _pairs(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        left, right = self.sides
        changed = self.changed
        # Every pair with a changed row, once.
        parts = [
            self._match(left[changed[left]], right),
            self._match(left[~changed[left]], right[changed[right]]),
        ]
        ours, theirs = (np.concatenate(rows) for rows in zip(*parts, strict=True))
        now = self.after[ours] * self.after[theirs]
        return ours, theirs, now - self.before[ours] * self.before[theirs]

    def _match(self, ours: Int64Array, theirs: Int64Array) -> tuple[Int64Array, Int64Array]:
        theirs = theirs[np.argsort(self.ids[theirs], kind="stable")]
        keys = self.ids[theirs]
        first = np.searchsorted(keys, self.ids[ours], side="left")
        counts = np.searchsorted(keys, self.ids[ours], side="right") - first
        self._check_size(ours, counts)
        earlier = np.cumsum(counts) - counts
        places = np.repeat(first - earlier, counts) + np.arange(int(counts.sum()))
        return np.repeat(ours, counts), theirs[places]

    def _check_limit(self) -> None:
        """Raise if a new row has more matches than the limit."""
        limit = self.engine.limit
        if limit is None:
            return
        for ours, theirs in (self.sides, self.sides[::-1]):
            new = ours[self.changed[ours] & (self.after[ours] > 0)]
            partners = np.bincount(self.ids[theirs], self.after[theirs] > 0, len(self.firsts))[self.ids[new]]
            if (partners > limit).any():
                most = int(np.argmax(partners))
                raise self._too_many(new[most], int(partners[most]), f"limit={limit} allows")

    def _check_size(self, ours: Int64Array, counts: Int64Array) -> None:
        if int(counts.sum()) > PAIRS_MAX:
            most = int(np.argmax(counts))
            raise self._too_many(ours[most], int(counts[most]), f"{PAIRS_MAX} pairs in one batch allow")

    def _too_many(self, row: int, partners: int, than: str) -> Invalid:
        name = "left" if self.table.column("side")[int(row)].as_py() == LEFT else "right"
        shown = self.table.column(name)[int(row)].as_py()
        return Invalid(
            f"a row of a join has {partners} partners, more than {than}",
            detail=f"It is on the {name} side: {shown}.",
            hint="Join on more columns, filter the other side, or set a higher limit=.",
        )

    def _alone(self, side: int, *, met: bool) -> tuple[Int64Array, Int64Array]:
        """Rows of a side that are emitted alone, unmatched or (met) matched ones, and the changes of their counts."""
        ours, theirs = self.sides[side], self.sides[1 - side]
        found = []
        for counts in (self.before, self.after):
            partners = np.bincount(self.ids[theirs], counts[theirs], len(self.firsts)) > 0
            found.append(counts[ours] * (partners[self.ids[ours]] == met))
        return ours, found[1] - found[0]


def _groups(key: Int64Array, side: Int64Array) -> Int64Array:
    """Rows of each side are stored in their own groups."""
    return mix(key, side)
