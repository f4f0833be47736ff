"""LookUp: rows of a stream joined with a small table that does not change, by the reader of their topic.

As Spark's joins: null matches nothing, NaN is NaN, -0.0 is 0.0, and a row that meets several rows of the table becomes as many.
The rows keep their order, and those that one row becomes have that of a hash join. The table is sent to the readers as a part
of the packing. One made of files is checked before every batch (`check`): a changed file restarts the flow, which reads the
table again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Unavailable
from mainstem.spark.plan.row_expression import Condition, Expression, condition_mask, values_of

__all__ = ["How", "LookUp", "TableFile", "state_of_files", "through_look_ups"]

How = Literal["inner", "left", "semi", "anti"]
# Path, inode, bytes, and when it was written, in nanoseconds. Not the time of its last change of any kind: that of a hard link.
TableFile = tuple[str, int, int, int]

# Bytes that the rows of tables may add at once. Spark passes row after row on; here all are in memory.
BYTES_AT_ONCE = 64 << 20


def state_of_files(paths: Iterable[str]) -> tuple[TableFile, ...]:
    """What tells whether files have changed; raises OSError if one is missing."""
    found = [(path, os.stat(path)) for path in sorted(paths)]
    return tuple((path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found)


@dataclass(frozen=True)
class LookUp:
    """One join of a stream with a table. A value: it is sent to Spark's workers."""

    # The exact filter of the stream's rows before the join, and their keys.
    condition: Condition | None
    keys: tuple[Expression, ...]
    # As the join type, with the stream on the left. "semi" and "anti" keep the rows with or without a match.
    how: How
    # As many columns as there are keys, then those that the join adds to the rows.
    table: pa.RecordBatch
    # The files that the table was read from.
    files: tuple[TableFile, ...] = ()

    def with_columns(self, names: Collection[str]) -> LookUp:
        """The same, which adds only those of its columns that have one of these names."""
        known = self.table.schema.names
        added = [name for name in known[len(self.keys) :] if name in names]
        return replace(self, table=self.table.select([*known[: len(self.keys)], *added]))

    def check(self) -> None:
        """Raise `Unavailable` if a file of the table is no longer what it was."""
        try:
            changed = set(self.files) - set(state_of_files(path for path, *_ in self.files))
        except OSError:
            changed = set(self.files)
        if changed:
            raise Unavailable(
                f'the table "{min(changed)[0]}", which rows are joined with, has changed',
                detail="Its file was written again or removed since the flow read it.",
                hint="The flow restarts by itself and reads the table again.",
            )

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that reach the join."""
        return rows if self.condition is None else _keep(rows, condition_mask(self.condition, rows))

    def join(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows behind the join, with the columns of the table."""
        numbers = self._index.find(values_of(self.keys, rows))
        if self.how == "anti":
            return _keep(rows, pc.is_null(numbers))
        if self.how != "left":
            rows, numbers = _keep(rows, pc.is_valid(numbers)), numbers.drop_null()
        if self.how == "semi":
            return rows
        if self._index.most <= 1:
            places = self._index.order.take(numbers)
        else:
            times, places = self._index.expand(numbers)
            rows = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), times)))
        added = self.table.select(self.table.schema.names[len(self.keys) :])
        columns = [*rows.columns, *(column.take(places) for column in added.columns)]
        return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *added.schema.names])

    @cached_property
    def _index(self) -> _Index:
        return _Index(self.table.columns[: len(self.keys)])

    @property
    def rows_most(self) -> int:
        """How many rows a row can become."""
        return max(1, self._index.most)

    @cached_property
    def bytes_most(self) -> int:
        """About how many bytes the table adds to a row at most."""
        found = 0
        for column in self.table.columns[len(self.keys) :]:
            text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
            found += 16 + ((pc.max(pc.binary_length(column)).as_py() or 0) if text else 0)
        return found


def through_look_ups(rows: pa.RecordBatch, look_ups: Sequence[LookUp]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows behind all joins, in as many parts as memory needs, each with the number of rows that reached the first one."""
    most = float(np.prod([it.rows_most for it in look_ups], dtype=float))
    size = max(1, int(BYTES_AT_ONCE / most / (1 + sum(it.bytes_most for it in look_ups))))
    for first in range(0, rows.num_rows, size):
        part = look_ups[0].keep(rows.slice(first, size))
        count = part.num_rows
        part = look_ups[0].join(part)
        for look_up in look_ups[1:]:
            part = look_up.join(look_up.keep(part))
        yield count, part


class _Index:
    """The rows of a table by their keys, each distinct key with a number."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        # The values of each key; from the second one on also the pairs of it and the number of those before.
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        numbers: Any = None
        for key in map(_normalize, keys):
            self._values.append(key.unique().drop_null())
            found = pc.index_in(key, value_set=self._values[-1])
            if numbers is not None:
                pair = _pair(numbers, found, len(self._values[-1]))
                self._pairs.append(pair.unique().drop_null())
                found = pc.index_in(pair, value_set=self._pairs[-1])
            numbers = found
        # The last row of the table first, as in Spark's hash joins.
        known = np.asarray(numbers.drop_null())[::-1]
        places = np.flatnonzero(np.asarray(numbers.is_valid()))[::-1][np.argsort(known, kind="stable")]
        # The places of the table's rows in the order of their numbers; at last the one of no row, as of a number more.
        self.order = pa.array([*places.tolist(), None], pa.int32())
        counts = np.bincount(known, minlength=len((self._pairs or self._values)[-1]))
        self.most = int(counts.max(initial=0))
        self._counts = np.append(counts, 1)
        self._firsts = np.append(0, np.cumsum(counts))

    def find(self, keys: Sequence[pa.Array]) -> pa.Array:
        """The number of each row's key; null if the table does not have it."""
        numbers: Any = None
        for place, key in enumerate(map(_normalize, keys)):
            found = pc.index_in(key, value_set=self._values[place])
            if numbers is not None:
                pair = _pair(numbers, found, len(self._values[place]))
                found = pc.index_in(pair, value_set=self._pairs[place - 1])
            numbers = found
        return numbers

    def expand(self, numbers: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """How often each row is repeated, and for each of these the place of a row of the table; null if it has none."""
        known = np.asarray(pc.fill_null(numbers, len(self._counts) - 1))
        times = self._counts[known]
        ends = np.cumsum(times)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - times, times)
        return times, self.order.take(pa.array(np.repeat(self._firsts[known], times) + within))


def _pair(numbers: pa.Array, values: pa.Array, count: int) -> pa.Array:
    """Two numbers as one; null if one of them is."""
    return pc.add(pc.multiply(numbers.cast(pa.int64()), count), values)


def _normalize(key: pa.Array) -> pa.Array:
    """With one NaN and one zero."""
    if not pa.types.is_floating(key.type):
        return key
    key = pc.if_else(pc.is_nan(key), pa.scalar(np.nan, key.type), key)
    return pc.add(key, pa.scalar(0.0, key.type))


def _keep(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return rows if mask.true_count == rows.num_rows else rows.filter(mask)
