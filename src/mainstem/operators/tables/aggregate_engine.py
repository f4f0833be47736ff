"""AggregateEngine: aggregates of the groups of a changing table, as a changing table.

The input is `ChangedRows`: the key is the group; i0_0, i0_1, ... are the arguments of the functions; h_0, h_1, ... hashes of
the arguments of those functions whose values are stored.

State rows, of two kinds (`number`):

    -1     the group: its key, its number of rows (`count`), and its sums (a0_count, a0_sum, ...)
    n      a value of function n (vn), and how often the group has it (`count`)

A group without rows is evicted and deleted from the result. A batch reads the groups that it changes with
all their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.aggregates.accumulators import AggregateCall, Average, Parts, lists_of
from mainstem.operators.aggregates.counted_accumulators import Counted
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
from mainstem.operators.windows.numbering import differ, number_rows, numbers

__all__ = ["AggregateEngine", "ChangingAggregates", "Values", "no_room"]


# ChangingAggregates: aggregate functions over rows that are inserted and deleted.
#
# There are two kinds of state:
#
#     added     count; sum and avg of integers and decimals           numbers that are added and subtracted, exactly
#     valued    all others                                            every value of the group, with its count
#
# A sum of doubles is valued: adding and subtracting leaves a rounding error, while the sum of the current values does not
# depend on their order.
#
# Not supported: first, last and any_value (rows of a table have no order) and approx_percentile (percentile is exact here).


_REFUSED = {
    "first": "Rows of a changing table have no order: use max_by(value, order) or min_by.",
    "last": "Rows of a changing table have no order: use max_by(value, order) or min_by.",
    "approx_percentile": "All values are kept here, so the exact result costs no more: use percentile.",
}
_MOMENTS = ("stddev_samp", "stddev_pop", "var_samp", "var_pop")
_PAIRS = ("min_by", "max_by")
_WIDE = 38


@dataclass(frozen=True)
class Values:
    """The current values of one function: group, value and count; sorted by group and value."""

    ids: Int64Array
    values: pa.Array
    counts: Int64Array


@dataclass(frozen=True)
class ChangingAggregates:
    """The functions of one operator. A value: it is sent to Spark's workers."""

    calls: tuple[AggregateCall, ...]

    def __post_init__(self) -> None:
        for call in self.calls:
            if call.function in _REFUSED:
                raise Invalid(
                    f"the aggregate {call.text} is not supported over a changing table", hint=_REFUSED[call.function]
                )

    @cached_property
    def valued_calls(self) -> tuple[int, ...]:
        """The numbers of the functions whose values are stored."""
        return tuple(number for number, call in enumerate(self.calls) if not _is_added(call))

    @cached_property
    def _added_types(self) -> dict[int, pa.DataType | None]:
        """The numbers of the others, and the types of their sums; None for a count."""
        found: dict[int, pa.DataType | None] = {}
        for number, call in enumerate(self.calls):
            if number not in self.valued_calls:
                found[number] = None if call.function == "count" else _sum_type(call)
        return found

    @property
    def added_fields(self) -> list[pa.Field]:
        """The state of a group: the number of values, and their sum."""
        fields = []
        for number, of in self._added_types.items():
            fields.append(pa.field(f"a{number}_count", pa.int64()))
            fields += [] if of is None else [pa.field(f"a{number}_sum", of)]
        return fields

    def value_field(self, number: int) -> pa.Field:
        """A stored value: for min_by and max_by, the order and the value."""
        inputs = self.calls[number].inputs
        if self.calls[number].function in _PAIRS:
            return pa.field(f"v{number}", pa.struct([("order", inputs[1]), ("value", inputs[0])]))
        return pa.field(f"v{number}", inputs[0])

    @property
    def output_schema(self) -> pa.Schema:
        """The results: o0, o1, ..."""
        return pa.schema([(f"o{number}", call.output) for number, call in enumerate(self.calls)])

    def describe(self) -> list[list[str]]:
        """What the stored state depends on."""
        return [[call.function, call.text, str(call.output), repr(call.constants)] for call in self.calls]

    # Arguments of rows

    def sum_changes(self, rows: pa.Table, weights: Int64Array, ids: Int64Array, count: int) -> dict[str, pa.Array]:
        """The changes of each group's counts and sums, for rows of weight 1 and -1."""
        parts = Parts(ids, count)
        found: dict[str, pa.Array] = {}
        for number, of in self._added_types.items():
            inputs = self.calls[number].inputs
            value = whole(rows.column(f"i{number}_0")) if inputs else pa.array(weights)
            there = np.asarray(value.is_valid())
            found[f"a{number}_count"] = _plain(parts.sum(pa.array(weights * there)))
            if of is not None:
                wide = value.cast(of)
                signed = pc.if_else(pa.array(weights < 0), pc.negate(wide), wide) if len(wide) else wide
                found[f"a{number}_sum"] = _sums(parts, signed, self.calls[number]).fill_null(_zero(of))
        return found

    def value(self, rows: pa.Table, number: int) -> tuple[pa.Array, Int64Array]:
        """The values of one function, and which rows have one."""
        names = [f"i{number}_{place}" for place in range(len(self.calls[number].inputs))]
        columns = [whole(rows.column(name)) for name in names]
        if self.calls[number].function not in _PAIRS:
            there = np.flatnonzero(np.asarray(columns[0].is_valid()))
            return columns[0].take(pa.array(there)), there
        shown, order, counts = columns
        there = np.flatnonzero(np.asarray(order.is_valid()) & np.asarray(counts.fill_null(False)))
        taken = [order.take(pa.array(there)), shown.take(pa.array(there))]
        return pa.StructArray.from_arrays(taken, fields=list(self.value_field(number).type)), there

    # Results

    def finish(self, added: dict[str, pa.Array], values: dict[int, Values], rows: Int64Array) -> pa.Table:
        """The results of groups; `rows` is the number of rows of each."""
        answers = []
        for number, call in enumerate(self.calls):
            if number in self._added_types:
                found = self._of_numbers(number, call, added)
            else:
                found = _of_values(replace(call), number, values[number], len(rows))
            answers.append(whole(found).cast(call.output))
        return pa.Table.from_arrays(answers, schema=self.output_schema)

    def _of_numbers(self, number: int, call: AggregateCall, added: dict[str, pa.Array]) -> pa.Array:
        counts = added[f"a{number}_count"]
        if call.function == "count":
            return counts
        sums = pc.if_else(pc.equal(counts, 0), None, added[f"a{number}_sum"])
        return sums if call.function == "sum" else Average(number, call).finish([sums, counts], counts)


def _is_added(call: AggregateCall) -> bool:
    if call.function == "count":
        return True
    exact = bool(call.inputs) and (pa.types.is_integer(call.inputs[0]) or pa.types.is_decimal(call.inputs[0]))
    return call.function in ("sum", "avg") and exact


def _sum_type(call: AggregateCall) -> pa.DataType:
    (of,) = call.inputs
    if pa.types.is_decimal(of):
        return pa.decimal128(_WIDE, of.scale)
    # The sum of bigints for an average may overflow a bigint.
    return pa.int64() if call.function == "sum" or of.bit_width < 64 else pa.decimal128(_WIDE, 0)


def _zero(of: pa.DataType) -> pa.Scalar:
    return pa.scalar(0, pa.int64()).cast(of)


def _plain(counts: pa.Array) -> pa.Array:
    return counts.fill_null(0)


def _sums(parts: Parts, values: pa.Array, call: AggregateCall) -> pa.Array:
    """Sums that raise on overflow; Arrow's sums of integers wrap around silently."""
    ends = pc.min_max(values).as_py() if pa.types.is_integer(values.type) else {"min": None, "max": None}
    if max(abs(ends["min"] or 0), abs(ends["max"] or 0)) * len(values) < 2**63:
        return parts.sum(values)
    try:
        return parts.sum(values.cast(pa.decimal128(_WIDE, 0))).cast(values.type)
    except pa.ArrowInvalid as error:
        raise no_room(call) from error


def no_room(call: AggregateCall) -> Invalid:
    """The error for a sum that overflows its type."""
    return Invalid(
        f"{call.text} does not fit into a bigint",
        detail="The sum of a group is beyond 9223372036854775807.",
        hint="Sum a wider type: F.sum(F.col(...).cast('decimal(38,0)')).",
    )


def _of_values(call: AggregateCall, number: int, found: Values, count: int) -> pa.Array:
    ids, values, counts = found.ids, found.values, found.counts
    function = call.function
    sizes = np.bincount(ids, minlength=count)
    starts = np.cumsum(sizes) - sizes
    none = sizes == 0
    if function in ("min", "min_by"):
        return _pick(values, starts, none, function)
    if function in ("max", "max_by"):
        return _pick(values, starts + sizes - 1, none, function)
    if function in ("count_distinct", "approx_count_distinct"):
        return pa.array(sizes)
    if function == "collect_set":
        return lists_of(ids, values, count, call.output)
    if function == "collect_list":
        many = np.repeat(np.arange(len(ids)), counts)
        return lists_of(ids[many], values.take(pa.array(many)), count, call.output)
    if function in ("sum", "avg"):
        return _float_sums(function, ids, values, counts, count)
    if function in _MOMENTS:
        return _moments(function, ids, values, counts, count)
    kept = Counted(number, call)
    of = kept.fields[0].type
    items = pa.StructArray.from_arrays(
        [values.cast(of.value_type.field("value").type, safe=False), pa.array(counts)], fields=list(of.value_type)
    )
    return kept.finish([lists_of(ids, items, count, of)], pa.array(sizes))


def _pick(values: pa.Array, places: Int64Array, none: np.ndarray, function: str) -> pa.Array:
    if not len(values):
        return pa.nulls(len(none), values.type.field("value").type if function in _PAIRS else values.type)
    taken = values.take(pa.array(np.minimum(places, len(values) - 1), mask=none))
    return pc.struct_field(taken, ["value"]) if function in _PAIRS else taken


def _float_sums(function: str, ids: Int64Array, values: pa.Array, counts: Int64Array, count: int) -> pa.Array:
    numbers = np.asarray(values.cast(pa.float64()))
    sizes = np.bincount(ids, minlength=count)
    ends = np.cumsum(sizes)
    answers: list[float | None] = []
    for first, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        many = counts[first:end]
        total = _exact_sum(np.repeat(numbers[first:end], many)) if end > first else None
        answers.append(total if total is None or function == "sum" else total / int(many.sum()))
    return pa.array(answers, pa.float64())


def _exact_sum(numbers: Sequence[float] | Any) -> float:
    """The exact sum, rounded once."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        # An overflow, or infinities of both signs.
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(numbers))


def _moments(function: str, ids: Int64Array, values: pa.Array, counts: Int64Array, count: int) -> pa.Array:
    numbers = np.asarray(values.cast(pa.float64(), safe=False))
    many = np.bincount(ids, counts, count)
    less = 1 if function.endswith("samp") else 0
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.bincount(ids, counts * numbers, count) / many
        squares = np.bincount(ids, counts * (numbers - means[ids]) ** 2, count)
        found = squares / (many - less)
        found = np.sqrt(found) if function.startswith("stddev") else found
    return pa.array(found, mask=many <= less)


GROUP = -1


@dataclass(frozen=True)
class AggregateEngine:
    """Maintains aggregates. A value: it is sent to Spark's workers."""

    by_fields: tuple[pa.Field, ...]
    aggregates: ChangingAggregates

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        own = [("check", pa.int64()), ("number", pa.int16()), ("count", pa.int64())]
        values = [self.aggregates.value_field(number) for number in self.aggregates.valued_calls]
        return pa.schema([*STATE_COLUMNS, *own, *self.by_fields, *self.aggregates.added_fields, *values])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.by_fields, *self.aggregates.output_schema, ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        return {"by": [str(field.type) for field in self.by_fields], "aggregates": self.aggregates.describe()}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        return _Batch(self, state, rows).step()


class _Batch:
    """One step: the touched groups are numbered, and processed all at once."""

    def __init__(self, engine: AggregateEngine, state: StateTable, rows: pa.Table) -> None:
        self.engine, self.aggregates = engine, engine.aggregates
        self.rows = rows
        self.weights = weights_of(rows, "aggregate")
        group, check = numbers(rows, "group"), numbers(rows, "check")
        self.ids, firsts = number_rows(group, check)
        self.count = len(firsts)
        self.group, self.check = group[firsts], check[firsts]
        self.item = mix(self.check, np.full(self.count, GROUP, np.int64))
        self.by = rows.select([field.name for field in engine.by_fields]).take(pa.array(firsts))
        self.known = find_groups(state, self.group)
        self.places = places_of(self.known, self.group, self.item)
        # For each stored row the number of its group; -1 for another group with the same hash.
        both, first = number_rows(
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
        values = {number: self._values(number, place) for place, number in enumerate(self.aggregates.valued_calls)}
        rows = [np.maximum(np.asarray(numbers_of["count"]), 0) for numbers_of in (before, after)]
        answers = [
            self.aggregates.finish(numbers_of, {at: pair[time] for at, pair in values.items()}, rows[time])
            for time, numbers_of in enumerate((before, after))
        ]
        self._keep_groups(before, after, change)
        output = self._output(answers, rows[0] > 0, rows[1] > 0)
        return Step(output, pa.concat_tables(self.put), pa.concat_tables(self.gone))

    # Counts and sums of groups

    def _sum(self, name: str, one: pa.Array, other: pa.Array) -> pa.Array:
        try:
            if pa.types.is_decimal(one.type):
                # Arrow's sum of two decimals has a wider type.
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
        return {"count": pa.array(rows), **self.aggregates.sum_changes(self.rows, self.weights, self.ids, self.count)}

    def _keep_groups(
        self, before: dict[str, pa.Array], after: dict[str, pa.Array], change: dict[str, pa.Array]
    ) -> None:
        moved = np.zeros(self.count, np.bool_)
        for column in change.values():
            moved |= np.asarray(pc.not_equal(column, pa.scalar(0).cast(column.type)))
        there = np.asarray(after["count"]) != 0
        put, gone = np.flatnonzero(moved & there), np.flatnonzero(~there & (self.places >= 0))
        self.gone.append(identify_rows(self.group[gone], self.item[gone]))
        taken = self.by.take(pa.array(put))
        columns: dict[str, object] = {name: column.take(pa.array(put)) for name, column in after.items()}
        columns |= {field.name: whole(taken.column(field.name)) for field in self.engine.by_fields}
        columns |= {"group": self.group[put], "item": self.item[put], "check": self.check[put]}
        columns["number"] = np.full(len(put), GROUP, np.int16)
        self.put.append(self._build_rows(columns, len(put)))

    def _build_rows(self, columns: dict[str, object], count: int) -> pa.Table:
        schema = self.engine.state_schema
        nothing = {at.name: pa.nulls(count, at.type) for at in list(schema)[len(STATE_COLUMNS) :]}
        return state_rows(schema, {**nothing, **columns})

    # The values of groups

    def _values(self, number: int, place: int) -> tuple[Values, Values]:
        """The values of one function before and after; changes are stored."""
        field = self.aggregates.value_field(number)
        value, there = self.aggregates.value(self.rows, number)
        ids, weights = self.ids[there], self.weights[there]
        item = mix(self.check[ids], np.full(len(ids), number), numbers(self.rows, f"h_{place}")[there])
        firsts, change = sum_weights(weights, self.group[ids], item)
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
        return _keep_present(order, all_ids, both, before), _keep_present(order, all_ids, both, after)

    def _keep_values(
        self, number: int, ids: Int64Array, items: Int64Array, values: pa.Array, before: Int64Array, after: Int64Array
    ) -> None:
        put = np.flatnonzero((before != after) & (after != 0))
        gone = np.flatnonzero((before != after) & (after == 0))
        self.gone.append(identify_rows(self.group[ids[gone]], items[gone]))
        columns: dict[str, object] = {
            "group": self.group[ids[put]],
            "item": items[put],
            "check": self.check[ids[put]],
            "number": np.full(len(put), number, np.int16),
            "count": after[put],
            f"v{number}": values.take(pa.array(put)),
        }
        self.put.append(self._build_rows(columns, len(put)))

    # Output

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
        output = emit_changes(pa.concat_tables(shown), weights, (self.group[which], self.item[which]))
        return pa.Table.from_arrays([whole(at) for at in output.columns], schema=self.engine.output_schema)

    @property
    def _plain(self) -> pa.Schema:
        return pa.schema([*self.engine.by_fields, *self.aggregates.output_schema])


def _keep_present(order: Int64Array, ids: Int64Array, values: pa.Array, counts: Int64Array) -> Values:
    there = order[counts[order] > 0]
    return Values(ids[there], values.take(pa.array(there)), counts[there])
