"""Aggregates: the aggregate functions of one operator, and their common state.

    rows  ->  partials (a0_sum, a1_count, ... and `a_rows`)  --merged-->  partials  --finished-->  results (o0, o1, ...)

This module defines the supported functions and the accumulator of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.aggregates.accumulators import (
    Accumulator,
    Added,
    AggregateCall,
    Average,
    Collected,
    Extreme,
    Int64Array,
    Moments,
    Parts,
    Placed,
    whole,
)
from mainstem.operators.aggregates.counted_accumulators import Counted
from mainstem.operators.aggregates.sketches import Distinct, Quantiles
from mainstem.operators.stage.spark_hashes import hashable

__all__ = ["FUNCTIONS", "Aggregates", "no_such_aggregate", "not_of_corrections"]

# The number of rows of a partial: a sum of no rows is 0, a sum of rows without values is null.
ROWS = pa.field("a_rows", pa.int64())

_ACCUMULATORS: dict[str, Any] = {
    "sum": Added,
    "count": Added,
    "signed_count": Added,
    "min": Extreme,
    "max": Extreme,
    "avg": Average,
    "first": Placed,
    "last": Placed,
    "min_by": Placed,
    "max_by": Placed,
    "stddev_samp": Moments,
    "stddev_pop": Moments,
    "var_samp": Moments,
    "var_pop": Moments,
    "collect_list": Collected,
    "collect_set": Counted,
    "count_distinct": Counted,
    "mode": Counted,
    "median": Counted,
    "percentile": Counted,
    "histogram_numeric": Counted,
    "approx_count_distinct": Distinct,
    "approx_percentile": Quantiles,
    "approx_top_k": Counted,
}
# The supported functions: those above, and some made of them (count_if is a count, bool_or a maximum).
FUNCTIONS = tuple(
    sorted({*_ACCUMULATORS, "any_value", "bool_and", "bool_or", "count_if"} - {"count_distinct", "signed_count"})
)


@dataclass(frozen=True)
class Aggregates:
    """The functions of one operator. A value: it is sent to Spark's workers."""

    calls: tuple[AggregateCall, ...]

    def __post_init__(self) -> None:
        for call in self.calls:
            if call.function not in _ACCUMULATORS:
                raise no_such_aggregate(call.text, call.function)
            if _ACCUMULATORS[call.function] is Counted and pa.types.is_nested(call.inputs[0]):
                raise Invalid(
                    f"{call.text} is not supported: its values are lists, maps or structs",
                    detail="Only values of simple types can be compared.",
                    hint="Convert it to a simple value: F.to_json(...), or a field of the struct.",
                )

    @cached_property
    def _accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(_ACCUMULATORS[call.function](number, call) for number, call in enumerate(self.calls))

    @cached_property
    def partial_schema(self) -> pa.Schema:
        """The columns of the state."""
        return pa.schema([ROWS, *(field for kept in self._accumulators for field in kept.fields)])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of the results: o0, o1, ..."""
        return pa.schema([kept.output for kept in self._accumulators])

    @property
    def packable(self) -> bool:
        """Whether `of_rows` gives the same partials as Spark."""
        return all(hashable(call.inputs[0]) for call in self.calls if call.function == "approx_count_distinct")

    @property
    def mergeable(self) -> bool:
        """Whether the partials of some rows may be merged before those of others are known, with the same results."""
        return not any(call.function == "approx_top_k" for call in self.calls)

    def describe(self) -> list[list[str]]:
        """What the stored partials depend on."""
        return [[call.function, call.text, str(call.output), repr(call.constants)] for call in self.calls]

    # Partials of rows

    def native_row(self) -> list[str]:
        """SQL for each column of `partial_schema`, of single rows."""
        return self._alias(["1L", *(sql for kept in self._accumulators for sql in kept.native_row())])

    def native_rows(self) -> list[str]:
        """SQL for each column of `partial_schema`, aggregates over many rows."""
        return self._alias(["count(*)", *(sql for kept in self._accumulators for sql in kept.native_rows())])

    def _alias(self, texts: Sequence[str]) -> list[str]:
        return [f"{sql} AS {name}" for sql, name in zip(texts, self.partial_schema.names, strict=True)]

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """The partials of single rows, whose arguments are columns i0_0, i0_1, i1_0, ..."""
        columns = [pa.array(np.ones(rows.num_rows, np.int64))]
        for kept in self._accumulators:
            columns += kept.of_rows(rows)
        return pa.Table.from_arrays(columns, schema=self.partial_schema)

    # Merging and results

    def merge(self, partials: pa.Table, ids: Int64Array, count: int) -> pa.Table:
        """Partials with the same id (0 to count - 1) merged, in the order of the rows; row i is id i."""
        parts = Parts(np.asarray(ids, np.int64), count)
        columns = self._columns(partials)
        rows = parts.sum(columns[ROWS.name]).fill_null(0)
        merged = [rows]
        for kept in self._accumulators:
            merged += kept.merge([columns[field.name] for field in kept.fields], parts)
        return self._without_gaps(pa.Table.from_arrays(merged, schema=self.partial_schema), parts)

    def empty(self, count: int) -> pa.Table:
        """The partials of no rows."""
        values = [0, *(value for kept in self._accumulators for value in kept.nothing())]
        columns = [_repeat(value, count, field.type) for value, field in zip(values, self.partial_schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=self.partial_schema)

    def finish(self, partials: pa.Table) -> pa.Table:
        """The results of the functions."""
        columns = self._columns(partials)
        answers = [
            kept.finish([columns[field.name] for field in kept.fields], columns[ROWS.name]).cast(kept.output.type)
            for kept in self._accumulators
        ]
        return pa.Table.from_arrays(answers, schema=self.output_schema)

    def _columns(self, partials: pa.Table) -> dict[str, pa.Array]:
        """One array each, cast to the types of the schema: Spark names list elements differently."""
        found = {field.name: whole(partials, field.name) for field in self.partial_schema}
        return {
            field.name: found[field.name]
            if found[field.name].type == field.type
            else found[field.name].cast(field.type)
            for field in self.partial_schema
        }

    def _without_gaps(self, merged: pa.Table, parts: Parts) -> pa.Table:
        """An id without parts gets the empty state, not nulls."""
        if (parts.sizes > 0).all():
            return merged
        both = pa.concat_tables([merged, self.empty(1)]).combine_chunks()
        return both.take(pa.array(np.where(parts.sizes > 0, np.arange(parts.count), parts.count)))


def no_such_aggregate(text: str, function: str) -> Invalid:
    """The error for a function without an accumulator."""
    return Invalid(
        f"the aggregate {text} is not supported in a window",
        detail=f"Supported are: {', '.join(FUNCTIONS)}; count also of DISTINCT values, and all of them in arithmetic "
        "expressions and with FILTER (WHERE ...).",
        hint=did_you_mean(function, FUNCTIONS)
        or "Use one of these, or collect_list and then a function over the list.",
    )


def not_of_corrections(text: str) -> Invalid:
    """The error for a function that cannot subtract a row."""
    return Invalid(
        f"the aggregate {text} is not supported over windows that are retracted",
        detail='The rows are windows with results="retract": a retracted row must be subtracted, which only sum and '
        "count can do.",
        hint="Use sum and count (an average is one divided by the other), or windows that are emitted once.",
    )


def _repeat(value: Any, count: int, of: pa.DataType) -> pa.Array:
    return pa.array([value] * count, of) if isinstance(value, list) else pa.repeat(pa.scalar(value, of), count)
