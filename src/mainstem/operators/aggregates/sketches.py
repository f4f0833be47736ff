"""Sketches: HyperLogLog, an approximate count of distinct values in a few thousand bytes, and quantiles.

HyperLogLog: the last `p` bits of a value's 64-bit hash select a register, which keeps the longest run of trailing zeros of
the other bits. Sketches are merged by the maximum of each register, so the result does not depend on the order of rows.
The state has `register * 64 + run` for each non-empty register. The estimate is Ertl's ("New cardinality estimation
algorithms for HyperLogLog sketches", 2017), which needs no tables and no change of method for small numbers. The relative
standard error is 1.04 / sqrt(2 ** p).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.operators.aggregates.accumulators import AggregateCall, Parts, lists_of, whole
from mainstem.operators.aggregates.counted_accumulators import add_counts, of_type
from mainstem.operators.stage.hashes import key_hashes
from mainstem.operators.stage.spark_hashes import hash_columns, hashable

__all__ = ["Distinct", "Quantiles"]


# Quantiles with bounded state: values and counts, the values rounded as far as needed.
#
# Up to `accuracy` distinct values (10,000 by default) are stored, and the result is exact. If there are more, all values lose
# their last binary digits, four at a time, until at most that many remain. The number of dropped digits depends only on the
# values, so the result does not depend on the order of rows. Values from 1 to 1,000 keep at least 10 digits, an error of
# 0.05 percent; values over the whole range of doubles keep 2.


FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
_ITEM = pa.struct([pa.field("value", pa.float64()), pa.field("count", pa.int64())])
# The fraction of a double has 52 binary digits; dropping more would change its exponent.
_DIGITS = 52
_STEP = 4


@dataclass(frozen=True)
class Quantiles:
    """approx_percentile; its constants are the fractions (one, or a list) and the accuracy."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        counts = pa.field(f"a{self.number}_counts", pa.list_(pa.field("element", _ITEM)))
        return counts, pa.field(f"a{self.number}_dropped", pa.int32())

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    def native_row(self) -> list[str]:
        value = f"CAST(i{self.number}_0 AS DOUBLE)"
        one = f"IF({value} IS NULL, array(), array(named_struct('value', {value}, 'count', 1L)))"
        return [f"CAST({one} AS {type_to_ddl(self.fields[0].type)})", "0"]

    def native_rows(self) -> list[str]:
        value = f"CAST(i{self.number}_0 AS DOUBLE)"
        return [f"transform(collect_list({value}), v -> named_struct('value', v, 'count', 1L))", "0"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        value = whole(rows, f"i{self.number}_0").cast(pa.float64(), safe=False)
        there = np.asarray(value.is_valid())
        counts = pa.array(np.ones(there.sum(), np.int64))
        kept = pa.StructArray.from_arrays([value.filter(pa.array(there)), counts], fields=list(_ITEM))
        lists = lists_of(np.flatnonzero(there), kept, rows.num_rows, self.fields[0].type)
        return [lists, pa.array(np.zeros(rows.num_rows, np.int32))]

    def nothing(self) -> list[Any]:
        return [[], 0]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        ids, values, counts, dropped = self._counts(columns, parts)
        kept = pa.StructArray.from_arrays([pa.array(values), pa.array(counts)], fields=list(_ITEM))
        return [lists_of(ids, kept, parts.count, self.fields[0].type), pa.array(dropped.astype(np.int32))]

    def _counts(
        self, columns: Sequence[pa.Array], parts: Parts
    ) -> tuple[Int64Array, FloatArray, Int64Array, Int64Array]:
        """Ids, values and counts, sorted by id and value; and the number of digits dropped for each id."""
        kept = columns[0]
        dropped = np.zeros(parts.count, np.int64)
        np.maximum.at(dropped, parts.ids, np.asarray(columns[1]).astype(np.int64))
        items = kept.flatten()
        ids = parts.ids[np.asarray(pc.list_parent_indices(kept))]
        # -0.0 becomes 0.0.
        values = np.asarray(items.field("value")) + 0.0
        counts = np.asarray(items.field("count"))
        while True:
            ids, found, counts = add_counts(ids, pa.array(_cut(values, dropped[ids])), counts)
            values = np.asarray(found)
            over = np.bincount(ids, minlength=parts.count) > int(self.call.constants[1])
            over &= dropped < _DIGITS
            if not over.any():
                return ids, values, counts, dropped
            dropped = dropped + _STEP * over

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        count = len(columns[0])
        ids, values, counts, dropped = self._counts(columns, Parts(np.arange(count), count))
        starts = np.searchsorted(ids, np.arange(count + 1))
        # Half of the dropped range, its average, is added back.
        half = np.where(dropped[ids] > 0, np.int64(1) << np.maximum(dropped[ids] - 1, 0), 0)
        values = np.where(np.isfinite(values), (values.view(np.int64) | half).view(np.float64), values)
        answers = [self._of(values[at:end], counts[at:end]) for at, end in itertools.pairwise(starts)]
        return of_type(answers, self.call.output)

    def _of(self, values: FloatArray, counts: Int64Array) -> Any:
        if not len(values):
            return None
        ends = np.cumsum(counts)
        shares = self.call.constants[0]
        # The first value with at least that fraction of all values at or below it.
        ranks = np.maximum(np.ceil(np.atleast_1d(shares) * int(ends[-1])), 1)
        found = values[np.searchsorted(ends, ranks)].tolist()
        return found if isinstance(shares, (list, tuple)) else found[0]


def _cut(values: FloatArray, dropped: Int64Array) -> FloatArray:
    """The values without their last binary digits."""
    bits = values.view(np.int64) & ~((np.int64(1) << dropped) - 1)
    return np.where(np.isfinite(values), bits.view(np.float64), values)


_RUNS = 64


@dataclass(frozen=True)
class Distinct:
    """approx_count_distinct; its constant is the maximum relative standard error."""

    number: int
    call: AggregateCall

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(f"a{self.number}_registers", pa.list_(pa.field("element", pa.int32()))),)

    @property
    def output(self) -> pa.Field:
        return pa.field(f"o{self.number}", self.call.output)

    @property
    def _bits(self) -> int:
        return min(16, max(4, math.ceil(2 * math.log2(1.04 / float(self.call.constants[0])))))

    def _native_register(self) -> str:
        name, bits = f"i{self.number}_0", self._bits
        digest = f"xxhash64({name})"
        # A bit above the highest one bounds the run of zeros.
        rest = f"(shiftrightunsigned({digest}, {bits}) | {1 << (64 - bits)}L)"
        run = f"bit_count(~{rest} & ({rest} - 1L)) + 1"
        return f"CASE WHEN {name} IS NOT NULL THEN CAST(({digest} & {(1 << bits) - 1}L) * {_RUNS} + {run} AS INT) END"

    def native_row(self) -> list[str]:
        return [f"array_compact(array({self._native_register()}))"]

    def native_rows(self) -> list[str]:
        return [f"collect_set({self._native_register()})"]

    def of_rows(self, rows: pa.Table) -> list[pa.Array]:
        value = whole(rows, f"i{self.number}_0")
        there = np.flatnonzero(np.asarray(value.is_valid()))
        known = value.take(pa.array(there))
        hashes = hash_columns([known], len(there)) if hashable(value.type) else key_hashes([known], len(there), "")
        digests = hashes.view(np.uint64)
        bits = np.uint64(self._bits)
        rest = (digests >> bits) | (np.uint64(1) << (np.uint64(64) - bits))
        runs = np.bitwise_count(~rest & (rest - np.uint64(1))).astype(np.int64) + 1
        registers = (digests & np.uint64((1 << self._bits) - 1)).astype(np.int64)
        kept = pa.array((registers * _RUNS + runs).astype(np.int32))
        return [lists_of(there, kept, rows.num_rows, self.fields[0].type)]

    def nothing(self) -> list[Any]:
        return [[]]

    def merge(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        kept = columns[0]
        items = np.asarray(kept.flatten()).astype(np.int64)
        ids = parts.ids[np.asarray(pc.list_parent_indices(kept))]
        # Sorted by register and run, the last item of each register has the longest run.
        order = np.lexsort((items, ids))
        ids, items = ids[order], items[order]
        registers = items // _RUNS
        last = (
            np.append((ids[1:] != ids[:-1]) | (registers[1:] != registers[:-1]), True)
            if len(ids)
            else np.empty(0, bool)
        )
        longest = pa.array(items[last].astype(np.int32))
        return [lists_of(ids[last], longest, parts.count, self.fields[0].type)]

    def finish(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        count = len(columns[0])
        (kept,) = self.merge(columns, Parts(np.arange(count), count))
        runs = np.asarray(kept.flatten()).astype(np.int64) % _RUNS
        wholes = np.asarray(pc.list_parent_indices(kept)).astype(np.int64)
        width = 64 - self._bits + 2
        # The number of registers with each run; registers that are not stored have run 0.
        counts = np.bincount(wholes * width + runs, minlength=count * width).reshape(count, width).astype(float)
        counts[:, 0] = (1 << self._bits) - counts.sum(axis=1)
        return pa.array(np.rint(_estimate(counts)).astype(np.int64)).cast(self.call.output)


def _estimate(counts: FloatArray) -> FloatArray:
    """Ertl's improved estimate; one row per sketch."""
    if not len(counts):
        return np.empty(0)
    registers = counts[0].sum()
    found = registers * _tau(1 - counts[:, -1] / registers)
    for run in range(counts.shape[1] - 2, 0, -1):
        found = 0.5 * (found + counts[:, run])
    with np.errstate(divide="ignore"):
        share = found + registers * _sigma(counts[:, 0] / registers)
        return np.asarray(registers * registers / (2 * math.log(2)) / share, np.float64)


def _sigma(share: FloatArray) -> FloatArray:
    found, power, factor = share.copy(), share.copy(), 1.0
    # Each round squares a number below one: after 64 rounds it is zero.
    for _ in range(64):
        power = power * power
        found = found + power * factor
        factor *= 2
    return np.where(share == 1.0, np.inf, found)


def _tau(share: FloatArray) -> FloatArray:
    found, root, factor = 1 - share, share.copy(), 1.0
    for _ in range(64):
        root = np.sqrt(root)
        factor *= 0.5
        found = found - (1 - root) ** 2 * factor
    return np.where((share == 0.0) | (share == 1.0), 0.0, found / 3)
