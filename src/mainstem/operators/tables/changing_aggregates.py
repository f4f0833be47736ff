"""ChangingAggregates: aggregate functions over rows that come and go.

Two ways to keep one right when rows are taken away again:

    added     count; sum and avg of whole numbers and decimals      numbers that are added and subtracted, exactly
    valued    all others                                            every value of the group, and how often it is there

A sum of doubles is valued: what is added and subtracted again leaves a rest, while a sum of the values that are there is
the same whichever way they came.

Not to be had: first, last and any_value (rows of a table have no order among them) and approx_percentile (percentile is exact
here).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.aggregates.accumulators import AggregateCall, Average
from mainstem.operators.aggregates.counted_accumulators import Counted
from mainstem.operators.aggregates.parts import Parts
from mainstem.operators.aggregates.placed_accumulators import lists_of
from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.tables.weights import whole

__all__ = ["ChangingAggregates", "Values", "no_room"]

_REFUSED = {
    "first": "Rows of a changing table have no order among them: use max_by(value, order) or min_by.",
    "last": "Rows of a changing table have no order among them: use max_by(value, order) or min_by.",
    "approx_percentile": "Every value is kept here, so that the exact one costs no more: use percentile.",
}
_MOMENTS = ("stddev_samp", "stddev_pop", "var_samp", "var_pop")
_PAIRS = ("min_by", "max_by")
_WIDE = 38


@dataclass(frozen=True)
class Values:
    """The values of one function that are there: whose, which, and how often; ordered by whose and by value."""

    ids: Int64Array
    values: pa.Array
    counts: Int64Array


@dataclass(frozen=True)
class ChangingAggregates:
    """Some functions at once. A value: it is sent to Spark's workers."""

    calls: tuple[AggregateCall, ...]

    def __post_init__(self) -> None:
        for call in self.calls:
            if call.function in _REFUSED:
                raise Invalid(
                    f"the aggregate {call.text} is not to be had of a table that changes", hint=_REFUSED[call.function]
                )

    @cached_property
    def valued(self) -> tuple[int, ...]:
        """The numbers of the functions whose values are kept."""
        return tuple(number for number, call in enumerate(self.calls) if not _is_added(call))

    @cached_property
    def _added(self) -> dict[int, pa.DataType | None]:
        """The numbers of the others, and in what their sums are kept; None for a count."""
        found: dict[int, pa.DataType | None] = {}
        for number, call in enumerate(self.calls):
            if number not in self.valued:
                found[number] = None if call.function == "count" else _sum_type(call)
        return found

    @property
    def added_fields(self) -> list[pa.Field]:
        """What is kept of a group in numbers: how many values there are, and their sum."""
        fields = []
        for number, of in self._added.items():
            fields.append(pa.field(f"a{number}_count", pa.int64()))
            fields += [] if of is None else [pa.field(f"a{number}_sum", of)]
        return fields

    def value_field(self, number: int) -> pa.Field:
        """What is kept as one value: for min_by and max_by, what decides and what is shown."""
        inputs = self.calls[number].inputs
        if self.calls[number].function in _PAIRS:
            return pa.field(f"v{number}", pa.struct([("order", inputs[1]), ("value", inputs[0])]))
        return pa.field(f"v{number}", inputs[0])

    @property
    def output_schema(self) -> pa.Schema:
        """The answers: o0, o1, ..."""
        return pa.schema([(f"o{number}", call.output) for number, call in enumerate(self.calls)])

    def described(self) -> list[list[str]]:
        """What kept state depends on."""
        return [[call.function, call.text, str(call.output), repr(call.constants)] for call in self.calls]

    # What rows come to

    def added(self, rows: pa.Table, weights: Int64Array, ids: Int64Array, count: int) -> dict[str, pa.Array]:
        """By how much the numbers of each group change, for rows of weight 1 and -1."""
        parts = Parts(ids, count)
        found: dict[str, pa.Array] = {}
        for number, of in self._added.items():
            inputs = self.calls[number].inputs
            value = whole(rows.column(f"i{number}_0")) if inputs else pa.array(weights)
            there = np.asarray(value.is_valid())
            found[f"a{number}_count"] = _plain(parts.added(pa.array(weights * there)))
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

    # The answers

    def finished(self, added: dict[str, pa.Array], values: dict[int, Values], rows: Int64Array) -> pa.Table:
        """The answers of groups that have so many rows."""
        answers = []
        for number, call in enumerate(self.calls):
            if number in self._added:
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
        return sums if call.function == "sum" else Average(number, call).finished([sums, counts], counts)


def _is_added(call: AggregateCall) -> bool:
    if call.function == "count":
        return True
    exact = bool(call.inputs) and (pa.types.is_integer(call.inputs[0]) or pa.types.is_decimal(call.inputs[0]))
    return call.function in ("sum", "avg") and exact


def _sum_type(call: AggregateCall) -> pa.DataType:
    (of,) = call.inputs
    if pa.types.is_decimal(of):
        return pa.decimal128(_WIDE, of.scale)
    # A sum of bigints may not fit into one, and an average does not mind.
    return pa.int64() if call.function == "sum" or of.bit_width < 64 else pa.decimal128(_WIDE, 0)


def _zero(of: pa.DataType) -> pa.Scalar:
    return pa.scalar(0, pa.int64()).cast(of)


def _plain(counts: pa.Array) -> pa.Array:
    return counts.fill_null(0)


def _sums(parts: Parts, values: pa.Array, call: AggregateCall) -> pa.Array:
    """Arrow's sums of whole numbers go round in silence where Spark's stop."""
    ends = pc.min_max(values).as_py() if pa.types.is_integer(values.type) else {"min": None, "max": None}
    if max(abs(ends["min"] or 0), abs(ends["max"] or 0)) * len(values) < 2**63:
        return parts.added(values)
    try:
        return parts.added(values.cast(pa.decimal128(_WIDE, 0))).cast(values.type)
    except pa.ArrowInvalid as error:
        raise no_room(call) from error


def no_room(call: AggregateCall) -> Invalid:
    """The refusal of a sum that goes beyond its type."""
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
        return _picked(values, starts, none, function)
    if function in ("max", "max_by"):
        return _picked(values, starts + sizes - 1, none, function)
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
    return kept.finished([lists_of(ids, items, count, of)], pa.array(sizes))


def _picked(values: pa.Array, places: Int64Array, none: np.ndarray, function: str) -> pa.Array:
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
    """The sum as it is, rounded once."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        # Beyond all numbers, or infinities of both signs.
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
