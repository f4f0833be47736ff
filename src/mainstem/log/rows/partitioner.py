"""The partition of a key: the same as that of Kafka's own clients, so both logs agree.

A key's bytes are the UTF-8 of one string column or the bytes of one binary column; the canonical JSON of one column of
another type; and the canonical JSON array of several columns. A row whose key columns are all null has no key. The
partition is murmur2 of the bytes, its highest bit cleared, modulo the number of partitions.

murmur2 is written here over whole Arrow columns: step i mixes the i-th word of every key that is long enough. A
thousand keys cost about what ten cost one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.log.rows.canonical_json import canonical_json, canonical_json_of_rows

__all__ = ["NO_KEY", "key_bytes", "murmur2", "partitions_of", "split"]

# The result of `partitions_of` for a row without a key.
NO_KEY = -1

# The constants of murmur2 as Kafka has them (org.apache.kafka.common.utils.Utils).
_SEED = np.uint32(0x9747B28C)
_FACTOR = np.uint32(0x5BD1E995)
_SHIFT = np.uint32(24)
_POSITIVE = np.uint32(0x7FFFFFFF)
_BITS_32 = 0xFFFFFFFF
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
# With fewer keys left, numpy's cost per call exceeds that of plain Python.
_TOGETHER_MIN = 24

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]


def key_bytes(batch: pa.RecordBatch, key_columns: Sequence[str]) -> pa.BinaryArray:
    """The key of each row as bytes, null where there is none.

    >>> batch = pa.RecordBatch.from_pydict({"store": ["Berlin", None], "number": [7, None]})
    >>> key_bytes(batch, ["store"]).to_pylist(), key_bytes(batch, ["store", "number"]).to_pylist()
    ([b'Berlin', None], [b'["Berlin",7]', None])
    """
    columns = [batch.column(name) for name in key_columns]
    if not columns:
        return pa.nulls(batch.num_rows, pa.binary())
    if len(columns) == 1:
        column = columns[0]
        if kinds.is_binary(column.type):
            return column
        # A view of the string column as bytes: nothing is copied.
        return (column if kinds.is_string(column.type) else canonical_json(column)).view(pa.binary())
    keys = canonical_json_of_rows(columns).view(pa.binary())
    if all(column.null_count for column in columns):
        nothing = columns[0].is_null()
        for column in columns[1:]:
            nothing = pc.and_(nothing, column.is_null())
        keys = pc.if_else(nothing, None, keys)
    return keys


def partitions_of(keys: pa.BinaryArray, partitions: int) -> Int32Array:
    """The partition of each key, `NO_KEY` where the key is null.

    >>> partitions_of(pa.array([b"foobar", None], pa.binary()), 4).tolist()
    [2, -1]
    """
    places = ((murmur2(keys) & _POSITIVE) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        places[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return places


def murmur2(keys: pa.BinaryArray) -> UInt32Array:
    """Kafka's 32-bit hash of each value; arbitrary for a null.

    >>> murmur2(pa.array([b"21"], pa.binary())).view("int32").tolist()
    [-973932308]
    """
    if len(keys) == 0:
        return np.empty(0, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    # int64: positions index arrays, and numpy would convert narrower ones each time.
    ends = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    starts, ends = ends[:-1], ends[1:]
    lengths = ends - starts
    words = _words(data_buffer, int(starts[0]), int(ends[-1]))
    starts, ends = starts - starts[0], ends - starts[0]

    hashes = lengths.astype(np.uint32) ^ _SEED
    _mix_words(hashes, starts, lengths >> 2, words)
    _mix_tails(hashes, ends, lengths & 3, words)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _words(buffer: pa.Buffer | None, start: int, end: int) -> UInt32Array:
    """The little-endian word that begins at each byte of the keys; a view over the buffer, nothing is copied."""
    data = b"" if buffer is None else memoryview(buffer)[start:end]
    if len(data) < 4:
        data = bytes(data).ljust(4, b"\0")
    return np.ndarray((len(data) - 3,), np.dtype("<u4"), data, strides=(1,))


def _mix_words(hashes: UInt32Array, starts: Int64Array, counts: Int64Array, words: UInt32Array) -> None:
    # Words that every key has: no list of rows is needed.
    fewest = int(counts.min()) if len(counts) >= _TOGETHER_MIN else 0
    for index in range(fewest):
        hashes *= _FACTOR
        hashes ^= _mix(words[starts + 4 * index])
    rows = np.flatnonzero(counts > fewest)
    index = fewest
    while len(rows) >= _TOGETHER_MIN:
        hashes[rows] = (hashes[rows] * _FACTOR) ^ _mix(words[starts[rows] + 4 * index])
        index += 1
        rows = rows[counts[rows] > index]
    for row in rows.tolist():
        # The last few long keys, one by one.
        first = int(starts[row]) + 4 * index
        state = int(hashes[row])
        for word in _mix(words[first : int(starts[row]) + 4 * int(counts[row]) : 4].copy()).tolist():
            state = (state * 0x5BD1E995 & _BITS_32) ^ word
        hashes[row] = state


def _mix(chosen: UInt32Array) -> UInt32Array:
    chosen *= _FACTOR
    chosen ^= chosen >> _SHIFT
    chosen *= _FACTOR
    return chosen


def _mix_tails(hashes: UInt32Array, ends: Int64Array, lengths: Int64Array, words: UInt32Array) -> None:
    """The one to three bytes after a key's last whole word, read as part of the word that ends with the key."""
    rows = np.flatnonzero(lengths)
    if len(rows) == 0:
        return
    ends, lengths = ends[rows], lengths[rows]
    # The word that ends with a key in the first three bytes would start before the buffer: it starts at 0 instead.
    begins = np.maximum(ends - 4, 0)
    shifts = (8 * (ends - lengths - begins)).astype(np.uint32)
    tails = (words[begins] >> shifts) & _TAIL_MASKS[lengths]
    hashes[rows] = (hashes[rows] ^ tails) * _FACTOR


def split(batch: pa.RecordBatch, partition_of: Int32Array, partitions: int) -> dict[int, pa.RecordBatch]:
    """The rows of each partition that gets any, in their given order; every row must have a partition.

    >>> batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    >>> {partition: rows["n"].to_pylist() for partition, rows in split(batch, np.array([1, 0, 1]), 2).items()}
    {0: [2], 1: [1, 3]}
    """
    if batch.num_rows == 0:
        return {}
    counts = np.bincount(partition_of, minlength=partitions)
    present = np.flatnonzero(counts).tolist()
    if len(present) == 1:
        return {present[0]: batch}
    # Narrow numbers are sorted by radix, in linear time; stable, so the order within a partition stays.
    order = np.argsort(partition_of.astype(np.int16), kind="stable")
    ordered = batch.take(pa.array(order))
    starts = np.cumsum(counts) - counts
    return {partition: ordered.slice(int(starts[partition]), int(counts[partition])) for partition in present}
