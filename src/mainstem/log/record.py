"""The `record` struct: the metadata of a row.

    record: struct
        partition    int32
        offset       int64
        appended_at  timestamp[us, UTC]
        change       string                   insert | update | delete
        headers      list<struct<key: string, value: binary>>    null if a record has none

It is the last column of every batch read from a topic. Most of its values are the same for all rows of a block, so
they are slices of cached arrays: 10,000 rows cost a few dozen microseconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "CHANGE",
    "CHANGES",
    "CHANGING_MARK",
    "CORRECTED_MARK",
    "EVENT_TIME_MARK",
    "HEADERS",
    "ORIGIN",
    "RECORD",
    "RECORD_MARK",
    "is_origin",
    "next_offset",
    "record_array",
    "record_schema",
]

CHANGES = ("insert", "update", "delete")
CHANGE = pa.string()
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
APPENDED_AT = pa.timestamp("us", "UTC")
RECORD = pa.struct(
    [("partition", pa.int32()), ("offset", pa.int64()), ("appended_at", APPENDED_AT), ("change", CHANGE),
     ("headers", HEADERS)]
)  # fmt: skip
_RECORD_FIELDS = list(RECORD)
# Where a row of a captured table comes from: the column `origin`. `position`: of the commit, in the source's own form;
# `number`: the place in its transaction, from 1; `committed_at`: of a row that a snapshot read, when it was read.
ORIGIN = pa.struct(
    [("position", pa.string()), ("transaction", pa.int64()), ("number", pa.int64()), ("committed_at", APPENDED_AT),
     ("snapshot", pa.bool_())]
)  # fmt: skip
# Field metadata, which survives select and rename in Spark: operators find these columns by it.
RECORD_MARK = {b"mainstem.record": b"1"}
EVENT_TIME_MARK = {b"mainstem.event_time": b"1"}
# In addition, on the `record` of a changing table: its rows are inserts and deletions.
CHANGING_MARK = {b"mainstem.changing": b"1"}
# The same, on the rows of a stream: some retract an earlier row.
CORRECTED_MARK = {b"mainstem.corrected": b"1"}

# A block rarely has more rows; for more, larger arrays are made, in powers of two.
_CACHED_ROWS_MIN = 65_536

Int64Array = npt.NDArray[np.int64]


def record_array(
    partition: int,
    offsets: int | Int64Array | pa.Array,
    appended_at: int | Int64Array | pa.Array,
    *,
    count: int,
    change: pa.Array | None = None,
    headers: pa.Array | None = None,
) -> pa.StructArray:
    """The `record` of `count` rows of one partition.

    `offsets`: the first offset of consecutive rows, or one for each row. `appended_at`: microseconds, for all or for
    each. Without `change` every row is an insert; without `headers` no row has any.

    >>> record_array(0, 41, 0, count=2).field("offset").to_pylist()
    [41, 42]
    """
    rows = _cached_rows(count)
    if isinstance(offsets, int):
        # In Arrow's memory pool: memory fresh from the kernel would cost more than filling it.
        numbers = _new_numbers(count)
        np.add(_count_up(rows)[:count], offsets, out=np.frombuffer(numbers, np.int64))
        offsets = pa.Array.from_buffers(pa.int64(), count, [None, numbers], 0)
    if isinstance(appended_at, int):
        times = _new_numbers(count)
        np.frombuffer(times, np.int64).fill(appended_at)
        appended_at = pa.Array.from_buffers(APPENDED_AT, count, [None, times], 0)
    return pa.StructArray.from_arrays(
        [
            _one_partition(partition, rows).slice(0, count),
            _reinterpret(offsets, pa.int64(), count),
            _reinterpret(appended_at, APPENDED_AT, count),
            _all_inserts(rows).slice(0, count) if change is None else change,
            _no_headers(rows).slice(0, count) if headers is None else headers,
        ],
        fields=_RECORD_FIELDS,
    )


def _new_numbers(count: int) -> pa.Buffer:
    return pa.allocate_buffer(8 * count)


def record_schema(schema: pa.Schema, event_time: str | None = None, *, record: pa.DataType = RECORD) -> pa.Schema:
    """The schema of rows read from a topic: its columns, then `record`, with the marks.

    >>> record_schema(pa.schema({"n": pa.int64()})).field("record").metadata
    {b'mainstem.record': b'1'}
    """
    fields = [
        field.with_metadata({**(field.metadata or {}), **EVENT_TIME_MARK}) if field.name == event_time else field
        for field in schema
    ]
    return pa.schema([*fields, pa.field("record", record, metadata=RECORD_MARK)])


def _reinterpret(values: npt.NDArray[Any] | pa.Array, data_type: pa.DataType, count: int) -> pa.Array:
    """Numbers as an array of a type of the same width; the buffer is shared."""
    if isinstance(values, pa.Array):
        return values if values.type.equals(data_type) else values.view(data_type)
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(values)], 0)


def _cached_rows(count: int) -> int:
    return max(_CACHED_ROWS_MIN, 1 << (count - 1).bit_length()) if count else _CACHED_ROWS_MIN


# Few partitions are read at a time.
@lru_cache(maxsize=16)
def _one_partition(partition: int, count: int) -> pa.Int32Array:
    return pa.repeat(pa.scalar(partition, pa.int32()), count)


# At most two sizes: arrays for very large batches should not stay in memory forever.
@lru_cache(maxsize=2)
def _all_inserts(count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar("insert", CHANGE), count)


@lru_cache(maxsize=2)
def _count_up(count: int) -> Int64Array:
    return np.arange(count, dtype=np.int64)


@lru_cache(maxsize=2)
def _no_headers(count: int) -> pa.ListArray:
    return pa.nulls(count, HEADERS)


def is_origin(field: pa.Field) -> bool:
    """Whether a column is the `origin` of captured rows. Operators and sinks leave it out, as they do `record`."""
    if field.name != "origin" or not pa.types.is_struct(field.type):
        return False
    # Spark may have changed the time zone of a time, and whether a field may be null.
    return [one.name for one in field.type] == [one.name for one in ORIGIN]


def next_offset(batch: pa.RecordBatch) -> int:
    """The next offset after a batch."""
    return int(batch.column("record").field("offset")[-1].as_py()) + 1
