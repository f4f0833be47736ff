"""Accumulators that keep values with their counts: exact results, and sketches with bounded state.

    collect_set, count_distinct, mode, median, percentile, histogram_numeric     every value is stored
    approx_top_k     at most `tracked` distinct values; a count is too low by at most rows / tracked, never too high

All but the last give the same result for every order of the rows. (approx_percentile: see `sketches`.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.operators.aggregates.accumulators import AggregateCall, Parts, lists_of, whole

__all__ = ["Counted", "add_counts", "closest_bins", "of_type", "percentile_of"]


# A histogram with adaptive bins: the two closest bins are merged until at most `bins` remain.
#
# Ben-Haim and Tom-Tov, "A streaming parallel decision tree algorithm", as Spark's histogram_numeric; here over all values
# at once, so that the result does not depend on their order.


def closest_bins(values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], bins: int) -> list[tuple[float, int]]:
    """Middle and count of at most `bins` bins, sorted by middle; `values` are sorted and distinct.

    >>> closest_bins(np.array([1.0, 2.0, 10.0]), np.array([1, 1, 4]), 2)
    [(1.5, 2), (10.0, 4)]
    """
    middles, sizes = values.tolist(), counts.tolist()
    after = [*range(1, len(middles)), -1]
    before = list(range(-1, len(middles) - 1))
    # A merge changes the stamp of a bin, which invalidates its heap entries.
    stamp = [0] * len(middles)
    gaps = [(middles[at + 1] - middles[at], at, 0, 0) for at in range(len(middles) - 1)]
    heapq.heapify(gaps)
    alive = len(middles)
    while alive > bins and gaps:
        _, left, left_stamp, right_stamp = heapq.heappop(gaps)
        right = after[left]
        if stamp[left] != left_stamp or right < 0 or stamp[right] != right_stamp:
            continue
        size = sizes[left] + sizes[right]
        middles[left] = (middles[left] * sizes[left] + middles[right] * sizes[right]) / size
        sizes[left] = size
        stamp[left] += 1
        stamp[right] = -1
        after[left] = after[right]
        if after[left] >= 0:
            before[after[left]] = left
        alive -= 1
        for first, second in ((before[left], left), (left, after[left])):
            if first >= 0 and second >= 0:
                heapq.heappush(gaps, (middles[second] - middles[first], first, stamp[first], stamp[second]))
    return [(middles[at], sizes[at]) for at in range(len(middles)) if stamp[at] >= 0]


FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

# Functions that need only the distinct values.
_SETS = ("collect_set", "count_distinct")
# Functions of numbers: values are stored as doubles.
_NUMERIC = ("median", "percentile", "histogram_numeric")


@dataclass(frozen=True)
class Counted:
    """Values with their counts, and the functions computed from them.

    Constants: percentile: the fractions (one, or a list); approx_top_k: the number of results and of tracked values;
    histogram_numeric: the number of bins.
    """

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        item = pa.struct([pa.field("value", self._value), pa.field("count", pa.int64())])
        return (pa.field(f"a{self.number}_counts", pa.list_(pa.field("element", item))),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    @property
    def _value(self) -> pa.DataType:
        return pa.float64() if self.call.function in _NUMERIC else self.call.inputs[0]

    def native_row(self) -> list[str]:
        value = self._native_value()
        one = f"IF({value} IS NULL, array(), array(named_struct('value', {value}, 'count', 1L)))"
        return [f"CAST({one} AS {type_to_ddl(self.fields[0].type)})"]

    def native_rows(self) -> list[str]:
        collect = "collect_set" if self.call.function in _SETS else "collect_list"
        return [f"transform({collect}({self._native_value()}), v -> named_struct('value', v, 'count', 1L))"]

    def _native_value(self) -> str:
        return f"CAST(i{self.number}_0 AS {type_to_ddl(self._value)})"

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        value = whole(rows, f"i{self.number}_0").cast(self._value, safe=False)
        there = np.asarray(value.is_valid())
        kept = self._items(value.filter(pa.array(there)), pa.array(np.ones(there.sum(), np.int64)))
        return [lists_of(np.flatnonzero(there), kept, rows.num_rows, self.fields[0].type)]

    def _items(self, values: pa.Array, counts: pa.Array) -> pa.StructArray:
        return pa.StructArray.from_arrays([values, counts], fields=list(self.fields[0].type.value_type))

    def nothing(self) -> list[Any]:
        return [[]]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        ids, values, counts = self._counts(columns[0], parts.ids, parts.count)
        return [lists_of(ids, self._items(values, pa.array(counts)), parts.count, self.fields[0].type)]

    def _counts(self, kept: pa.Array, ids: Int64Array, count: int) -> tuple[Int64Array, pa.Array, Int64Array]:
        """Ids, values and counts, each value once per id, sorted by id and value; for approx_top_k within its bound."""
        items = kept.flatten()
        of = ids[np.asarray(pc.list_parent_indices(kept))]
        values = items.field("value")
        if pa.types.is_floating(values.type):
            # -0.0 becomes 0.0.
            values = pc.add(values, pa.scalar(0.0, values.type))
        found = add_counts(of, values, np.asarray(items.field("count")))
        if self.call.function == "approx_top_k":
            return _most_frequent(*found, count, int(self.call.constants[1]))
        return found

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        count = len(columns[0])
        ids, values, counts = self._counts(columns[0], np.arange(count), count)
        function, output = self.call.function, self.call.output
        if function == "collect_set":
            return lists_of(ids, values, count, output)
        starts = np.searchsorted(ids, np.arange(count + 1))
        if function == "count_distinct":
            return pa.array(np.diff(starts)).cast(output)
        if function == "mode":
            if not len(ids):
                return pa.nulls(count, output)
            # Of equally frequent values the smallest.
            best = np.lexsort((np.arange(len(ids)), -counts, ids))[starts[:-1].clip(max=len(ids) - 1)]
            return values.take(pa.array(best, mask=np.diff(starts) == 0)).cast(output)
        spans = [slice(first, end) for first, end in itertools.pairwise(starts)]
        if function == "approx_top_k":
            return pa.array([self._top(values.slice(at.start, at.stop - at.start), counts[at]) for at in spans], output)
        numbers = np.asarray(values)
        answers = [self._of_numbers(numbers[at], counts[at]) for at in spans]
        return of_type(answers, output)

    def _top(self, values: pa.Array, counts: Int64Array) -> list[dict[str, Any]]:
        first = np.argsort(-counts, kind="stable")[: int(self.call.constants[0])]
        found = zip(values.take(pa.array(first)).to_pylist(), counts[first].tolist(), strict=True)
        return [{"item": value, "count": count} for value, count in found]

    def _of_numbers(self, values: FloatArray, counts: Int64Array) -> Any:
        if not len(values):
            return None
        if self.call.function == "histogram_numeric":
            bins = closest_bins(values, counts, int(self.call.constants[0]))
            return [{"x": middle, "y": float(count)} for middle, count in bins]
        shares = 0.5 if self.call.function == "median" else self.call.constants[0]
        ends = np.cumsum(counts)
        found = [percentile_of(values, ends, share) for share in np.atleast_1d(shares)]
        return found if isinstance(shares, (list, tuple)) else found[0]


def add_counts(ids: Int64Array, values: pa.Array, counts: Int64Array) -> tuple[Int64Array, pa.Array, Int64Array]:
    """Each value once per id with its total count, sorted by id and value."""
    table = pa.table({"id": pa.array(ids), "value": values, "count": counts})
    found = table.group_by(["id", "value"], use_threads=False).aggregate([("count", "sum")])
    found = found.sort_by([("id", "ascending"), ("value", "ascending")]).combine_chunks()
    columns = [whole(found, name) for name in ("id", "value", "count_sum")]
    return np.asarray(columns[0]), columns[1], np.asarray(columns[2])


def _most_frequent(
    ids: Int64Array, values: pa.Array, counts: Int64Array, count: int, most: int
) -> tuple[Int64Array, pa.Array, Int64Array]:
    """At most `most` values per id: the count of the next most frequent one is subtracted from all (Misra and Gries)."""
    sizes = np.bincount(ids, minlength=count)
    if not (sizes > most).any():
        return ids, values, counts
    starts = np.concatenate(([0], np.cumsum(sizes)))
    off = np.zeros(count, np.int64)
    for over in np.flatnonzero(sizes > most):
        of = counts[starts[over] : starts[over + 1]]
        off[over] = np.partition(of, len(of) - most - 1)[len(of) - most - 1]
    left = counts - off[ids]
    stay = left > 0
    return ids[stay], values.filter(pa.array(stay)), left[stay]


def percentile_of(values: FloatArray, ends: Int64Array, share: float) -> float:
    """The percentile, interpolated linearly between two values; `ends` are the running sums of the counts."""
    place = share * (int(ends[-1]) - 1)
    low, high = (
        float(values[np.searchsorted(ends, int(at), side="right")]) for at in (np.floor(place), np.ceil(place))
    )
    return low if low == high else float((np.ceil(place) - place) * low + (place - np.floor(place)) * high)


def of_type(answers: list[Any], of: pa.DataType) -> pa.Array:
    """Doubles cast to Spark's result type; integers are truncated, as by Spark's cast."""
    if pa.types.is_list(of) and pa.types.is_struct(of.value_type):
        middle = of.value_type.field("x").type
        kept = [None if bins is None else [{**one, "x": _as(one["x"], middle)} for one in bins] for bins in answers]
        return pa.array(kept, of)
    if pa.types.is_list(of):
        return pa.array([None if of_row is None else [_as(v, of.value_type) for v in of_row] for of_row in answers], of)
    return pa.array([_as(value, of) for value in answers], of)


def _as(value: float | None, of: pa.DataType) -> Any:
    if value is None or pa.types.is_floating(of):
        return value
    if pa.types.is_integer(of):
        return int(value)
    return pa.scalar(value).cast(of, safe=False).as_py()
