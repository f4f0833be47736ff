"""AggregateEngine: aggregates of the groups of a changing table, as a table that changes.

What comes in is `ChangedRows`: the key is the group; i0_0, i0_1, ... the arguments of the functions; h_0, h_1, ... hashes of
the arguments of those functions whose values are kept, one after the other.

State rows, of two kinds (`number`):

    -1     the group: its key, how many rows it has (`count`), and what is added up (a0_count, a0_sum, ...)
    n      a value of function n (vn), and how often the group has it (`count`)

A group that has no rows any more is no more, and is taken out of the result. A batch reads the groups that it changes with
all their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mixed
from mainstem.operators.tables.changing_aggregates import ChangingAggregates, Values, no_room
from mainstem.operators.tables.value_ranks import value_ranks
from mainstem.operators.tables.weights import (
    changes_shown,
    found_in,
    left_out,
    places_of,
    state_rows,
    summed,
    weights_of,
    whole,
)
from mainstem.operators.windows.numbering import differ, numbered, numbers

__all__ = ["AggregateEngine"]

GROUP = -1


@dataclass(frozen=True)
class AggregateEngine:
    """Keeps aggregates right. A value: it is sent to Spark's workers."""

    by_fields: tuple[pa.Field, ...]
    aggregates: ChangingAggregates

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("check", pa.int64()), ("number", pa.int16()), ("count", pa.int64())]
        values = [self.aggregates.value_field(number) for number in self.aggregates.valued]
        return pa.schema([*STATE_COLUMNS, *own, *self.by_fields, *self.aggregates.added_fields, *values])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.by_fields, *self.aggregates.output_schema, ("change", pa.string())])

    def described(self) -> dict[str, Any]:
        return {"by": [str(field.type) for field in self.by_fields], "aggregates": self.aggregates.described()}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        return _Batch(self, state, rows).step()


class _Batch:
    """One step: the groups that rows come for are numbered, and all that happens to them happens to all at once."""

    def __init__(self, engine: AggregateEngine, state: StateTable, rows: pa.Table) -> None:
        self.engine, self.aggregates = engine, engine.aggregates
        self.rows = rows
        self.weights = weights_of(rows, "aggregate")
        group, check = numbers(rows, "group"), numbers(rows, "check")
        self.ids, firsts = numbered(group, check)
        self.count = len(firsts)
        self.group, self.check = group[firsts], check[firsts]
        self.item = mixed(self.check, np.full(self.count, GROUP, np.int64))
        self.by = rows.select([field.name for field in engine.by_fields]).take(pa.array(firsts))
        self.known = found_in(state, self.group)
        self.places = places_of(self.known, self.group, self.item)
        # Of each row of state that is known, the number of its group; -1 if that has the same hash and is another one.
        both, first = numbered(
            np.r_[self.group, numbers(self.known, "group")], np.r_[self.check, numbers(self.known, "check")]
        )
        numbers_of = np.full(len(first), -1, np.int64)
        numbers_of[both[: self.count]] = np.arange(self.count)
        self.known_ids = numbers_of[both[self.count :]]
        self.put: list[pa.Table] = []
        self.gone: list[pa.Table] = []

    def step(self) -> Step:
        before, change = self._known_numbers(), self._changed_numbers()
        after = {name: self._sum(name, before[name], change[name]) for name in before}
        values = {number: self._values(number, place) for place, number in enumerate(self.aggregates.valued)}
        rows = [np.maximum(np.asarray(numbers_of["count"]), 0) for numbers_of in (before, after)]
        answers = [
            self.aggregates.finished(numbers_of, {at: pair[time] for at, pair in values.items()}, rows[time])
            for time, numbers_of in enumerate((before, after))
        ]
        self._keep_groups(before, after, change)
        output = self._output(answers, rows[0] > 0, rows[1] > 0)
        return Step(output, pa.concat_tables(self.put), pa.concat_tables(self.gone))

    # The numbers of groups

    def _sum(self, name: str, one: pa.Array, other: pa.Array) -> pa.Array:
        try:
            if pa.types.is_decimal(one.type):
                # A sum of two is of a wider type.
                wide = pa.decimal256(60, one.type.scale)
                return pc.add(one.cast(wide), other.cast(wide)).cast(one.type)
            return pc.add_checked(one, other)
        except pa.ArrowInvalid as error:
            raise no_room(self.aggregates.calls[int(name[1:].partition("_")[0])]) from error

    def _known_numbers(self) -> dict[str, pa.Array]:
        places = pa.array(self.places, mask=self.places < 0)
        found = {}
        for name in ("count", *(field.name for field in self.aggregates.added_fields)):
            column = whole(self.known.column(name)).take(places)
            found[name] = column.fill_null(pa.scalar(0).cast(column.type))
        return found

    def _changed_numbers(self) -> dict[str, pa.Array]:
        rows = np.bincount(self.ids, self.weights, self.count).astype(np.int64)
        return {"count": pa.array(rows), **self.aggregates.added(self.rows, self.weights, self.ids, self.count)}

    def _keep_groups(
        self, before: dict[str, pa.Array], after: dict[str, pa.Array], change: dict[str, pa.Array]
    ) -> None:
        moved = np.zeros(self.count, np.bool_)
        for column in change.values():
            moved |= np.asarray(pc.not_equal(column, pa.scalar(0).cast(column.type)))
        there = np.asarray(after["count"]) != 0
        put, gone = np.flatnonzero(moved & there), np.flatnonzero(~there & (self.places >= 0))
        self.gone.append(left_out(self.group[gone], self.item[gone]))
        taken = self.by.take(pa.array(put))
        columns: dict[str, object] = {name: column.take(pa.array(put)) for name, column in after.items()}
        columns |= {field.name: whole(taken.column(field.name)) for field in self.engine.by_fields}
        columns |= {"group": self.group[put], "item": self.item[put], "check": self.check[put]}
        columns["number"] = np.full(len(put), GROUP, np.int16)
        self.put.append(self._stored(columns, len(put)))

    def _stored(self, columns: dict[str, object], count: int) -> pa.Table:
        schema = self.engine.state_schema
        nothing = {at.name: pa.nulls(count, at.type) for at in list(schema)[len(STATE_COLUMNS) :]}
        return state_rows(schema, {**nothing, **columns})

    # The values of groups

    def _values(self, number: int, place: int) -> tuple[Values, Values]:
        """The values of one function before and after; what changes is kept."""
        field = self.aggregates.value_field(number)
        value, there = self.aggregates.value(self.rows, number)
        ids, weights = self.ids[there], self.weights[there]
        item = mixed(self.check[ids], np.full(len(ids), number), numbers(self.rows, f"h_{place}")[there])
        firsts, change = summed(weights, self.group[ids], item)
        ids, item = ids[firsts], item[firsts]
        old = np.flatnonzero((numbers(self.known, "number") == number) & (self.known_ids >= 0))
        known = self.known.take(pa.array(old))
        places = places_of(known, self.group[ids], item)
        new = places < 0
        both = pa.concat_arrays(
            [
                whole(known.column(field.name)).cast(field.type),
                value.take(pa.array(firsts[new])).cast(field.type),
            ]
        )
        all_ids, items = np.r_[self.known_ids[old], ids[new]], np.r_[numbers(known, "item"), item[new]]
        before = np.r_[numbers(known, "count"), np.zeros(int(new.sum()), np.int64)]
        after = before.copy()
        after[places[~new]] += change[~new]
        after[len(old) :] = change[new]
        self._keep_values(number, all_ids, items, both, before, after)
        order = np.lexsort((items, value_ranks(both), all_ids))
        return _present(order, all_ids, both, before), _present(order, all_ids, both, after)

    def _keep_values(
        self, number: int, ids: Int64Array, items: Int64Array, values: pa.Array, before: Int64Array, after: Int64Array
    ) -> None:
        put = np.flatnonzero((before != after) & (after != 0))
        gone = np.flatnonzero((before != after) & (after == 0))
        self.gone.append(left_out(self.group[ids[gone]], items[gone]))
        columns: dict[str, object] = {
            "group": self.group[ids[put]],
            "item": items[put],
            "check": self.check[ids[put]],
            "number": np.full(len(put), number, np.int16),
            "count": after[put],
            f"v{number}": values.take(pa.array(put)),
        }
        self.put.append(self._stored(columns, len(put)))

    # What is shown

    def _output(self, answers: list[pa.Table], was: np.ndarray, now: np.ndarray) -> pa.Table:
        same = was & now
        same[same] = ~differ(*(table.filter(pa.array(same)) for table in answers))
        places = [np.flatnonzero(was & ~same), np.flatnonzero(now & ~same)]
        shown = []
        for table, rows in zip(answers, places, strict=True):
            taken = [*self.by.take(pa.array(rows)).columns, *table.take(pa.array(rows)).columns]
            shown.append(pa.Table.from_arrays([whole(column) for column in taken], schema=self._plain))
        weights = np.r_[np.full(len(places[0]), -1), np.ones(len(places[1]), np.int64)]
        which = np.concatenate(places)
        output = changes_shown(pa.concat_tables(shown), weights, (self.group[which], self.item[which]))
        return pa.Table.from_arrays([whole(at) for at in output.columns], schema=self.engine.output_schema)

    @property
    def _plain(self) -> pa.Schema:
        return pa.schema([*self.engine.by_fields, *self.aggregates.output_schema])


def _present(order: Int64Array, ids: Int64Array, values: pa.Array, counts: Int64Array) -> Values:
    there = order[counts[order] > 0]
    return Values(ids[there], values.take(pa.array(there)), counts[there])
