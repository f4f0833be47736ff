"""TableEngine: the newest row of each key, as a changing table.

The newest is the last in the log, or the one with the highest `order` and of those the last in the log: the one with the
highest position (partition, offset, tie), in whatever batches they arrive. A row that arrives out of order, and one equal to
the current row, change nothing.

Input (`table_input`):

    group, check             int64       hashes of the key
    deleted                  bool        the row deletes its key
    order                                decides which row is newer; missing if the log order does
    silent                   bool        a deletion in the log without an order: it deletes the rows before it; with `order` only
    partition, offset, tie               the position in the log
    row                      struct      the whole row

State rows: the newest row of each key; with `order` also its order and position. With `order` a deleted key stays in the
state, without its row: an older row may still arrive. State that was written before positions were stored has none: there
a row that arrives later is the newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import in_log_order, same_values
from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.integer_order import order_rows
from mainstem.operators.tables.weights import (
    emit_changes,
    find_groups,
    identify_rows,
    places_of,
    state_rows,
    value_ranks,
    whole,
)
from mainstem.operators.windows.numbering import number_rows, numbers, running_max

__all__ = ["TableEngine", "table_input"]

Mask = npt.NDArray[np.bool_]

POSITION = (("partition", pa.int32()), ("offset", pa.int64()), ("tie", pa.int64()))
# Below every partition, also those of deletes (see `changing`).
NOWHERE = -(2**31)


def table_input(row_type: pa.DataType, order: pa.DataType | None) -> pa.Schema:
    """The input of `step`; see above."""
    ordered = [] if order is None else [("order", order), ("silent", pa.bool_())]
    hashes = [(name, pa.int64()) for name in ("group", "check")]
    return pa.schema([*hashes, ("deleted", pa.bool_()), *ordered, *POSITION, ("row", row_type)])


@dataclass(frozen=True)
class TableEngine:
    """Keeps the newest row of each key. A value: it is sent to Spark's workers."""

    row_type: pa.DataType
    order: pa.DataType | None = None
    # Whether positions of rows tell which of two is the last; if not, it is the one that arrives later. Rows of a changing
    # table have none: deletes are numbered before all inserts.
    placed: bool = True

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        ordered = [] if self.order is None else [("order", self.order), *POSITION]
        own = [("deleted", pa.bool_()), *ordered, ("row", self.row_type)]
        return pa.schema([*STATE_COLUMNS, *own])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([("row", self.row_type), ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        return {"table": str(self.row_type), "order": str(self.order)}

    def takes(self, kept: Mapping[str, Any]) -> bool:
        """Whether it can use the described state: columns may have been added to the rows, which are null in older ones."""
        return kept.get("order") == str(self.order) and _is_part(kept.get("table", ""), self.row_type)

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows)
        group = numbers(rows, "group")
        item = mix(numbers(rows, "check"), np.zeros(len(group), np.int64))
        ids, firsts = number_rows(group, item)
        group, item = group[firsts], item[firsts]
        known = find_groups(state, group)
        places = places_of(known, group, item)
        newest, orders, stale = self._newest(rows, ids, known, places)
        # Keys whose newest row is in this batch.
        keys = np.flatnonzero(newest >= 0)
        chosen = rows.take(pa.array(newest[keys]))
        old = places[keys]
        was = (old >= 0) & ~np.r_[_flags(known), True][old]
        is_now = ~_flags(chosen)
        same = self._unchanged(known, old, chosen, was & is_now)
        output = self._output(known, old[was & ~same], chosen, is_now & ~same, group[keys], was & ~same)
        # Deleted keys are stored only with `order`.
        kept = is_now if self.order is None else np.ones(len(keys), np.bool_)
        lost = np.flatnonzero(~kept & (old >= 0))
        orders = None if orders is None else orders.take(pa.array(keys))
        put = self._state(chosen, group[keys], item[keys], orders, np.flatnonzero(kept))
        gone = identify_rows(group[keys][lost], item[keys][lost])
        return Step(output, put, gone, counts={"out_of_order": stale} if stale else {})

    def _unchanged(self, known: pa.Table, old: Int64Array, chosen: pa.Table, stay: Mask) -> Mask:
        """The keys, of those that `stay`, whose new row is equal to the old one."""
        keys = np.flatnonzero(stay)
        before, after = ((known, old[keys]), (chosen, keys))
        columns = [
            whole(rows.column("row").take(pa.array(places))).cast(self.row_type) for rows, places in (before, after)
        ]
        stay[keys] = same_values(*columns)
        return stay

    def _newest(
        self, rows: pa.Table, ids: Int64Array, known: pa.Table, places: Int64Array
    ) -> tuple[Int64Array, pa.Table | None, int]:
        """For each key the number of its newest row in this batch, -1 if the stored row is newer; the highest order, with
        its position; and the number of rows that arrived after a newer one."""
        count = len(places)
        if self.order is None:
            newest = np.full(count, -1, np.int64)
            newest[ids] = np.arange(len(ids))
            return newest, None, 0
        kept = np.flatnonzero(places >= 0)
        # The stored row comes before all others of its key.
        both = np.r_[kept, ids]
        schema = pa.schema([("order", self.order), *POSITION])
        stored = known.select(schema.names).take(pa.array(places[kept]))
        orders = pa.concat_tables([part.select(schema.names).cast(schema) for part in (stored, rows)])
        ranks = value_ranks(orders.column("order"))
        silent = np.r_[np.zeros(len(kept), np.bool_), _flags(rows, "silent")]
        if self._tied(both, ranks, kept, count):
            ranks = number_rows(ranks, *(numbers(orders, name, NOWHERE) for name, _ in POSITION))[0]
        by_key = np.argsort(both, kind="stable")
        before = np.empty(len(both), np.int64)
        before[by_key] = running_max(both[by_key], ranks[by_key])
        highest = np.empty(count, np.int64)
        by_order = order_rows(both, ranks)
        highest[both[by_order]] = by_order
        ranks = np.where(silent, before, ranks)
        stale = int((ranks < before).sum())
        best = order_rows(both, ranks)
        newest = np.full(count, -1, np.int64)
        newest[both[best]] = best - len(kept)
        return np.maximum(newest, -1), orders.take(pa.array(highest)), stale

    def _tied(self, both: Int64Array, ranks: Int64Array, kept: Int64Array, count: int) -> bool:
        """Whether a row has the order of the stored row of its key: then their positions decide.

        Rows of one batch are in the order of the log.
        """
        stored = np.full(count, -1, np.int64)
        stored[kept] = ranks[: len(kept)]
        return self.placed and bool((stored[both[len(kept) :]] == ranks[len(kept) :]).any())

    def _output(
        self, known: pa.Table, old: Int64Array, chosen: pa.Table, put: Mask, group: Int64Array, taken: Mask
    ) -> pa.Table:
        rows = pa.concat_tables([
            known.select(["row"]).take(pa.array(old)).cast(pa.schema([("row", self.row_type)])),
            chosen.select(["row"]).filter(pa.array(put)).cast(pa.schema([("row", self.row_type)])),
        ])  # fmt: skip
        weights = np.r_[np.full(len(old), -1), np.ones(int(put.sum()), np.int64)]
        order = np.r_[np.flatnonzero(taken), np.flatnonzero(put)]
        shown = emit_changes(rows, weights, (group[order], order))
        return pa.Table.from_arrays([whole(column) for column in shown.columns], schema=self.output_schema)

    def _state(
        self, chosen: pa.Table, group: Int64Array, item: Int64Array, orders: pa.Table | None, kept: Int64Array
    ) -> pa.Table:
        taken = chosen.take(pa.array(kept))
        row, deleted = whole(taken.column("row")), _flags(taken)
        columns: dict[str, object] = {
            "group": group[kept],
            "item": item[kept],
            "deleted": deleted,
            "row": pc.if_else(pa.array(deleted), pa.scalar(None, row.type), row) if len(kept) else row,
        }
        if orders is not None:
            found = orders.take(pa.array(kept))
            columns["order"] = whole(found.column("order"))
            for name, of in POSITION:
                columns[name] = whole(found.column(name)) if self.placed else pa.nulls(len(kept), of)
        return state_rows(self.state_schema, columns)


def _flags(rows: pa.Table, name: str = "deleted") -> Mask:
    return np.asarray(whole(rows.column(name))).astype(np.bool_)


def _is_part(described: str, row_type: pa.StructType) -> bool:
    """Whether a described struct has some of the fields of this one, in the same order, and no others.

    >>> now = pa.struct([("id", pa.int64()), ("city", pa.string()), ("mail", pa.string())])
    >>> [_is_part(before, now) for before in ("struct<id: int64, city: string>", "struct<id: int32>", "struct<id: int64, old: bool>")]
    [True, False, False]
    """
    rest = described.removeprefix("struct<").removesuffix(">")
    for field in row_type:
        text = str(pa.struct([field])).removeprefix("struct<").removesuffix(">")
        if rest == text or rest.startswith(f"{text}, "):
            rest = rest[len(text) + 2 :]
    return not rest
