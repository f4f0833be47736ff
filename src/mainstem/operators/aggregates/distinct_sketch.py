"""HyperLogLog: about how many different values there were, in a few thousand bytes.

Of each value's 64-bit hash the last `p` bits choose a register, and the register keeps the longest run of zeros that the
other bits began with. Two sketches are merged by the larger of each register, so the answer does not depend on how the
rows came. Kept is `register * 64 + run` for registers that are not empty. The estimate is Ertl's ("New cardinality
estimation algorithms for HyperLogLog sketches", 2017), which needs no tables and no change of method for small numbers.
The relative standard error is 1.04 / sqrt(2 ** p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.aggregates.accumulators import AggregateCall, whole
from mainstem.operators.aggregates.parts import Parts
from mainstem.operators.aggregates.placed_accumulators import lists_of
from mainstem.operators.stage.hashes import key_hashes

__all__ = ["Distinct"]

FloatArray = npt.NDArray[np.float64]
_RUNS = 64


@dataclass(frozen=True)
class Distinct:
    """approx_count_distinct; its constant is the relative standard error that is allowed."""

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
        # One bit beyond the last ends a run of zeros that has no end.
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
        digests = key_hashes([value.take(pa.array(there))], len(there), "distinct").view(np.uint64)
        bits = np.uint64(self._bits)
        rest = (digests >> bits) | (np.uint64(1) << (np.uint64(64) - bits))
        runs = np.bitwise_count(~rest & (rest - np.uint64(1))).astype(np.int64) + 1
        registers = (digests & np.uint64((1 << self._bits) - 1)).astype(np.int64)
        kept = pa.array((registers * _RUNS + runs).astype(np.int32))
        return [lists_of(there, kept, rows.num_rows, self.fields[0].type)]

    def nothing(self) -> list[Any]:
        return [[]]

    def merged(self, columns: Sequence[pa.Array], parts: Parts) -> list[pa.Array]:
        kept = columns[0]
        items = np.asarray(kept.flatten()).astype(np.int64)
        ids = parts.ids[np.asarray(pc.list_parent_indices(kept))]
        # Sorted by register and then by run, the last of each register is the longest.
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

    def finished(self, columns: Sequence[pa.Array], rows: pa.Array) -> pa.Array:
        count = len(columns[0])
        (kept,) = self.merged(columns, Parts(np.arange(count), count))
        runs = np.asarray(kept.flatten()).astype(np.int64) % _RUNS
        wholes = np.asarray(pc.list_parent_indices(kept)).astype(np.int64)
        width = 64 - self._bits + 2
        # How many registers have each run; those that are not kept have none.
        counts = np.bincount(wholes * width + runs, minlength=count * width).reshape(count, width).astype(float)
        counts[:, 0] = (1 << self._bits) - counts.sum(axis=1)
        return pa.array(np.rint(_estimate(counts)).astype(np.int64)).cast(self.call.output)


def _estimate(counts: FloatArray) -> FloatArray:
    """Ertl's improved estimate, a row for each sketch."""
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
    # Each round squares a number below one: 64 rounds leave nothing of it.
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
