"""TopEngine: the first `limit` rows of each group in an order, as a changing table.

The input is `ChangedRows`: the key is the group, h_0 the hash of the whole row, order_0, order_1, ... the values of the
order. Rows with equal values are ordered by their columns from left to right, so that the result depends on the rows
alone.

State rows: all rows of each group, since any of them may become one of the first when others are deleted. A batch
reads all rows of the groups that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.tables.weights import (
    emit_changes,
    find_groups,
    identify_rows,
    places_of,
    state_rows,
    sum_weights,
    value_ranks,
    weights_of,
    whole,
)
from mainstem.operators.windows.numbering import number_rows, numbers

if TYPE_CHECKING:
    pass

__all__ = ["OrderPart", "TopEngine"]


@dataclass(frozen=True)
class OrderPart:
    """One part of an order. By default nulls are first if ascending and last if descending, as in Spark."""

    descending: bool
    nulls_first: bool
    text: str


@dataclass(frozen=True)
class TopEngine:
    """Keeps the first rows of each group. A value: it is sent to Spark's workers."""

    limit: int
    row_type: pa.DataType
    order_types: tuple[pa.DataType, ...]
    parts: tuple[OrderPart, ...]

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        orders = [(f"order_{place}", of) for place, of in enumerate(self.order_types)]
        return pa.schema(
            [*STATE_COLUMNS, ("check", pa.int64()), ("count", pa.int64()), *orders, ("row", self.row_type)]
        )

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([("row", self.row_type), ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        orders = [[str(of), part.text] for of, part in zip(self.order_types, self.parts, strict=True)]
        return {"top": self.limit, "row": str(self.row_type), "order": orders}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        group, check = numbers(rows, "group"), numbers(rows, "check")
        item = mix(check, numbers(rows, "h_0"))
        firsts, change = sum_weights(weights_of(rows, "top"), group, item)
        known = find_groups(state, group[firsts])
        places = places_of(known, group[firsts], item[firsts])
        new = places < 0
        # All rows of the groups: stored rows, then new ones.
        added = rows.take(pa.array(firsts[new]))
        names = ["group", "check", *self._orders, "row"]
        schema = pa.schema([self.state_schema.field(name) for name in names])
        table = pa.concat_tables([known.select(names).cast(schema), added.select(names).cast(schema)]).combine_chunks()
        items = np.r_[numbers(known, "item"), item[firsts][new]]
        before = np.r_[numbers(known, "count"), np.zeros(int(new.sum()), np.int64)]
        after = before.copy()
        after[places[~new]] += change[~new]
        after[known.num_rows :] = change[new]
        moved = self._among_the_first(table, items, after) - self._among_the_first(table, items, before)
        shown = np.flatnonzero(moved)
        output = emit_changes(
            table.select(["row"]).take(pa.array(shown)), moved[shown], (numbers(table, "group")[shown], items[shown])
        )
        put, gone = self._state(table, items, before, after)
        return Step(pa.Table.from_arrays([whole(at) for at in output.columns], schema=self.output_schema), put, gone)

    @property
    def _orders(self) -> list[str]:
        return [f"order_{place}" for place in range(len(self.parts))]

    def _among_the_first(self, table: pa.Table, items: Int64Array, counts: Int64Array) -> Int64Array:
        """How often each row is among the first of its group; `counts`: how often the group has it."""
        present = np.flatnonzero(counts > 0)
        found = np.zeros(len(counts), np.int64)
        if not len(present):
            return found
        chosen = table.take(pa.array(present))
        ids, _ = number_rows(numbers(chosen, "group"), numbers(chosen, "check"))
        order = self._sort(chosen, ids, items[present])
        many, ids = counts[present][order], ids[order]
        ends = np.cumsum(many)
        begins = np.r_[True, ids[1:] != ids[:-1]]
        earlier = ends - many
        of_group = np.maximum.accumulate(np.where(begins, earlier, 0))
        found[present[order]] = np.clip(self.limit - (earlier - of_group), 0, many)
        return found

    def _sort(self, rows: pa.Table, ids: Int64Array, items: Int64Array) -> Int64Array:
        """The rows sorted by group and order."""
        keys = [ids]
        for name, part in zip(self._orders, self.parts, strict=True):
            keys.append(_ranks(whole(rows.column(name)), part))
        row = whole(rows.column("row"))
        keys += [value_ranks(pc.struct_field(row, [place])) for place in range(self.row_type.num_fields)]
        return np.lexsort((items, *reversed(keys)))

    def _state(
        self, table: pa.Table, items: Int64Array, before: Int64Array, after: Int64Array
    ) -> tuple[pa.Table, pa.Table]:
        group = numbers(table, "group")
        put = np.flatnonzero((after != before) & (after != 0))
        gone = np.flatnonzero((after != before) & (after == 0))
        taken = table.take(pa.array(put))
        columns: dict[str, object] = {name: whole(taken.column(name)) for name in ("check", *self._orders, "row")}
        columns |= {"group": group[put], "item": items[put], "count": after[put]}
        return state_rows(self.state_schema, columns), identify_rows(group[gone], items[gone])


def _ranks(values: pa.Array | pa.ChunkedArray, part: OrderPart) -> Int64Array:
    """Ranks of the values in the order of `part`, equal for equal values."""
    ranks = value_ranks(values)
    beyond = len(ranks) + 2
    return np.where(ranks == 0, -beyond if part.nulls_first else beyond, -ranks if part.descending else ranks)
