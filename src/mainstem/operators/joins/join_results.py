"""The output of a join: the columns of both sides, and late rows with the rows that they would have matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import numbers, whole
from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array
from mainstem.operators.stage.integer_order import order_rows

__all__ = [
    "EnrichPart",
    "EnrichResults",
    "INPUT_COLUMNS",
    "JoinLate",
    "JoinResults",
    "Part",
    "TwoSided",
    "VERSION",
    "in_order",
]


# The result of a lookup: the fact, the table's row, and its version.


TIME = pa.timestamp("us", "UTC")
# The start of validity, its end as far as known, and the position in the log.
VERSION = pa.struct([("valid_from", TIME), ("valid_until", TIME), ("partition", pa.int32()), ("offset", pa.int64())])
# Row numbers of facts and of their versions (-1 for none), the versions' ends (NEVER if unknown), and the change.
EnrichPart: TypeAlias = tuple[Int64Array, Int64Array, Int64Array, str]


@dataclass(frozen=True)
class EnrichResults:
    """`left` is the type of facts, `right` that of the table's rows; `how` is "left" or "inner"."""

    left: pa.DataType
    right: pa.DataType
    how: str = "left"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("left", self.left), ("right", self.right), ("version", VERSION), ("change", pa.string())])

    def filter_parts(self, parts: Sequence[EnrichPart]) -> list[EnrichPart]:
        """For an inner join, without the facts that have no version."""
        if self.how != "inner":
            return list(parts)
        found = [versions >= 0 for _, versions, _, _ in parts]
        return [(facts[at], versions[at], until[at], change)
                for (facts, versions, until, change), at in zip(parts, found, strict=True)]  # fmt: skip

    def table(self, rows: pa.Table, parts: Sequence[EnrichPart]) -> pa.Table:
        """Facts with their versions."""
        parts = self.filter_parts(parts)
        facts, versions, until = (
            np.concatenate([np.empty(0, np.int64), *(part[which] for part in parts)]).astype(np.int64)
            for which in range(3)
        )
        changes = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        which = pa.array(versions, mask=versions < 0)
        times = pa.array(numbers(rows, "time"), mask=numbers(rows, "time") == NO_TIME).view(TIME)
        places = [whole(rows.column(name)).take(which) for name in ("partition", "offset")]
        ends = pa.array(until, mask=(until == NEVER) | (versions < 0)).view(TIME)
        version = pa.StructArray.from_arrays(
            [times.take(which), ends, *places], fields=list(VERSION), mask=pa.array(versions < 0)
        )
        columns = [
            whole(rows.column("left")).take(pa.array(facts)),
            whole(rows.column("right")).take(which),
            version,
            pa.array([part[3] for part in parts], pa.string()).take(pa.array(changes)),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


# Row numbers of left and right rows (-1 for none; None if the right side is not emitted), and the change.
Part: TypeAlias = tuple[Int64Array, Int64Array | None, str]


@dataclass(frozen=True)
class JoinResults:
    """`left` and `right` are the types of the sides' rows; `shared`: the key columns with the same name on both sides."""

    left: pa.DataType
    right: pa.DataType
    shared: tuple[str, ...]
    # Whether the right side's columns are emitted.
    both: bool = True

    @property
    def schema(self) -> pa.Schema:
        """left, right, the shared columns of the key, the later of the two times, change."""
        shown = [("left", self.left)]
        if self.both:
            keys = [(f"key_{place}", self.left.field(name).type) for place, name in enumerate(self.shared)]
            shown += [("right", self.right), *keys, ("time", TIME)]
        return pa.schema([*shown, ("change", pa.string())])

    def table(self, rows: pa.Table, times: Int64Array, parts: Sequence[Part]) -> pa.Table:
        """The output rows of these parts, in order."""
        changes = pa.concat_arrays([pa.repeat(pa.scalar(change), len(left)) for left, _, change in parts])
        left = _concatenate([left for left, _, _ in parts])
        columns = [_take(rows.column("left"), left)]
        if self.both:
            right = _concatenate([other for _, other, _ in parts if other is not None])
            columns.append(_take(rows.column("right"), right))
            for name in self.shared:
                of_left, of_right = (pc.struct_field(column, [name]) for column in columns[:2])
                columns.append(pc.coalesce(of_left, of_right))
            later = np.maximum(_times(times, left), _times(times, right))
            columns.append(pa.array(later, mask=later == NO_TIME).view(TIME))
        return pa.Table.from_arrays([*columns, changes], schema=self.schema)


@dataclass(frozen=True)
class JoinLate:
    """Builds late rows. `left_on` and `right_on`: the key columns of each side; `types`: their types."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @property
    def schema(self) -> pa.Schema:
        keys = [(f"by_{place}", kind) for place, kind in enumerate(self.types)]
        times = [("time", TIME), ("watermark", TIME), ("reason", pa.string())]
        met = [("missed_time", TIME), ("missed_partition", pa.int32()), ("missed_offset", pa.int64())]
        places = [("partition", pa.int32()), ("offset", pa.int64())]
        return pa.schema([("side", pa.string()), *keys, *times, *places, *met])

    def rows(self, rows: pa.Table, reason: str, missed: pa.Table | None = None) -> pa.Table:
        """Late rows with the reason; `missed`: for each of them the row that it would have matched."""
        count = rows.num_rows
        right = numbers(rows, "side") == 1
        columns = [pa.array(np.where(right, "right", "left"), pa.string())]
        for left_name, right_name in zip(self.left_on, self.right_on, strict=True):
            of_left = pc.struct_field(whole(rows.column("left")), [left_name])
            of_right = pc.struct_field(whole(rows.column("right")), [right_name])
            columns.append(pc.if_else(pa.array(right), of_right, of_left))
        columns += [_show_times(numbers(rows, name)) for name in ("time", "watermark")]
        columns += [pa.repeat(pa.scalar(reason), count), rows.column("partition"), rows.column("offset")]
        if missed is None:
            columns += [
                pa.nulls(count, self.schema.field(f"missed_{name}").type) for name in ("time", "partition", "offset")
            ]
        else:
            columns += [_show_times(numbers(missed, "time")), missed.column("partition"), missed.column("offset")]
        return pa.Table.from_arrays([whole(column) for column in columns], schema=self.schema)


def in_order(rows: pa.Table, which: Int64Array) -> Int64Array:
    """Row numbers, sorted in log order."""
    return which[order_rows(*(numbers(rows, name)[which] for name in ("side", "partition", "offset")))]


def _concatenate(parts: Sequence[Int64Array]) -> Int64Array:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def _take(column: pa.ChunkedArray, rows: Int64Array) -> pa.Array:
    """Null where there is no row. If all rows are in one chunk, the others are not copied."""
    first = 0
    lowest, highest = (int(rows.min()), int(rows.max())) if len(rows) else (0, 0)
    for chunk in column.chunks:
        if first <= lowest and highest < first + len(chunk):
            return chunk.take(pa.array(rows - first))
        first += len(chunk)
    return whole(column).take(pa.array(rows, mask=rows < 0))


def _times(times: Int64Array, rows: Int64Array) -> Int64Array:
    found = np.full(len(rows), NO_TIME)
    found[rows >= 0] = times[rows[rows >= 0]]
    return found


def _show_times(microseconds: Int64Array) -> pa.Array:
    return pa.array(microseconds, mask=microseconds == NO_TIME).view(TIME)


# TwoSided: the base of engines with a left and a right side.
#
# The input (see `join_rows`) is one table for both sides:
#
#     group      int64     the first hash of the key
#     check      int64     the second one
#     keyed      bool      false if a part of the key is null: such a row matches nothing
#     side       int8      0 left, 1 right
#     partition, offset, tie, time, watermark      as in `keyed_rows`
#     taken_back bool      whether the row retracts or deletes an earlier one
#     left, right          the row, in the column of its side


INPUT_COLUMNS = (
    pa.field("group", pa.int64()),
    pa.field("check", pa.int64()),
    pa.field("keyed", pa.bool_()),
    pa.field("side", pa.int8()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("tie", pa.int64()),
    pa.field("time", pa.int64()),
    pa.field("watermark", pa.int64()),
    pa.field("taken_back", pa.bool_()),
)


class Results(Protocol):
    """Builds output rows from rows of the types `left` and `right`."""

    @property
    def left(self) -> pa.DataType: ...

    @property
    def right(self) -> pa.DataType: ...

    @property
    def schema(self) -> pa.Schema: ...


class TwoSided:
    """An engine whose output `results` builds, and whose late rows `late` builds."""

    results: Results
    late: JoinLate

    @property
    def input_schema(self) -> pa.Schema:
        """The columns of the prepared rows of both sides."""
        return pa.schema([*INPUT_COLUMNS, ("left", self.results.left), ("right", self.results.right)])

    @property
    def output_schema(self) -> pa.Schema:
        return self.results.schema

    @property
    def late_schema(self) -> pa.Schema:
        return self.late.schema
