"""Spark's hashes over Arrow and numpy: a row has the same group and bucket with Spark and without.

`xxhash64` hashes keys (`keyed_rows.native_hashes`); murmur3 assigns rows to the partitions of a shuffle. State that was
written with one implementation is continued with the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import Int64Array

__all__ = ["buckets_of", "hash_columns", "hashable", "identify_keys"]

UInt64Array = npt.NDArray[np.uint64]
UInt32Array = npt.NDArray[np.uint32]

SEED = 42
# The digits of decimals that fit into 64 bits.
LONG_DIGITS = 18
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    )
)  # fmt: skip


def hashable(kind: pa.DataType) -> bool:
    """Whether values of a type are hashed here as Spark does."""
    plain = (
        pa.types.is_boolean,
        pa.types.is_signed_integer,
        pa.types.is_float32,
        pa.types.is_float64,
        pa.types.is_date32,
        pa.types.is_string,
        pa.types.is_binary,
    )
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    # Longer decimals are hashed as bytes.
    return any(is_of(kind) for is_of in plain) or (pa.types.is_decimal128(kind) and kind.precision <= LONG_DIGITS)


def identify_keys(columns: Sequence[pa.Array], count: int) -> tuple[Int64Array, Int64Array]:
    """`group` and `check` of keys; see `keyed_rows.native_hashes`."""
    if not columns:
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    nulls = [column.is_null() for column in columns]
    check = hash_columns([pa.repeat(pa.scalar("check"), 1)], 1)
    return hash_columns(columns, count), hash_columns([*columns, *nulls], count, int(check[0]))


def hash_columns(columns: Sequence[pa.Array], count: int, seed: int = SEED) -> Int64Array:
    """`xxhash64` of some columns: the hash of a column is the seed of the next; a null leaves it unchanged.
    Fields of structs and elements of lists are as columns.

    >>> hash_columns([pa.array([1, None]), pa.array(["Spark", "Spark"])], 2).tolist()
    [5232548436287321068, -4294468057691064905]
    """
    found = np.full(count, np.int64(seed)).view(np.uint64)
    for column in columns if count else ():
        found = _hash(column, found)
    return found.view(np.int64)


def buckets_of(groups: Int64Array, count: int) -> Int64Array:
    """Which of `count` partitions rows of these groups go to.

    >>> buckets_of(np.array([0, 1, 2, -5]), 7).tolist()
    [4, 5, 5, 2]
    """
    words = np.ascontiguousarray(groups, np.int64).view(np.uint32).reshape(-1, 2)
    found = np.full(len(groups), SEED, np.uint32)
    for word in (words[:, 0], words[:, 1]):
        mixed = _rotate32(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found = _rotate32(found ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(8)
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    found ^= found >> np.uint32(16)
    # Signed; numpy's remainder is never negative.
    return found.view(np.int32).astype(np.int64) % count


def _hash(column: pa.Array, seeds: UInt64Array) -> UInt64Array:
    if pa.types.is_struct(column.type):
        for part in column.flatten():
            seeds = _hash(part, seeds)
        return seeds
    if pa.types.is_list(column.type):
        return _list(column, seeds)
    found = _text(column, seeds) if _is_text(column.type) else _number(column, seeds)
    return np.where(np.asarray(column.is_null()), seeds, found) if column.null_count else found


def _list(column: pa.Array, seeds: UInt64Array) -> UInt64Array:
    """One element of all lists at a time."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    firsts = np.asarray(column.offsets)[:-1]
    found = seeds.copy()
    for place in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > place)
        found[rows] = _hash(column.values.take(pa.array(firsts[rows] + place)), found[rows])
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _number(column: pa.Array, seeds: UInt64Array) -> UInt64Array:
    kind = column.type
    if pa.types.is_floating(kind):
        width = np.int32 if pa.types.is_float32(kind) else np.int64
        # -0.0 becomes 0.0, and every NaN the same one.
        known = np.asarray(pc.fill_null(column, 0.0)) + kind.to_pandas_dtype()(0)
        known[np.isnan(known)] = np.nan
        column = pa.array(known.view(width))
        kind = column.type
    elif pa.types.is_decimal(kind):
        # The low half of each number has all of it.
        low = np.frombuffer(column.buffers()[1], np.int64)[::2][column.offset : column.offset + len(column)]
        column = pa.array(np.where(np.asarray(column.is_valid()), low, 0))
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_int64(kind):
        values = np.asarray(pc.fill_null(column.cast(pa.int64()), 0)).view(np.uint64)
        return _mix(_word(seeds + _P5 + np.uint64(8), values))
    plain = column.cast(pa.int8() if pa.types.is_boolean(kind) else pa.int32())
    values = np.asarray(pc.fill_null(plain, 0)).astype(np.int32)
    return _mix(_half_word(seeds + _P5 + np.uint64(4), values.view(np.uint32)))


def _text(column: pa.Array, seeds: UInt64Array) -> UInt64Array:
    """All texts at once, word by word; each step processes those that are long enough."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    data = column.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    at, lengths = offsets[:-1], np.diff(offsets)
    found = _stripes(content, at, lengths, seeds) + lengths.view(np.uint64)
    at, left = at + lengths // 32 * 32, lengths % 32
    for place in range(3):
        rows = _those(left // 8 > place)
        found[rows] = _word(found[rows], _there(content, at[rows] + 8 * place, np.uint64))
    at, left = at + left // 8 * 8, left % 8
    rows = _those(left >= 4)
    found[rows] = _half_word(found[rows], _there(content, at[rows], np.uint32))
    at, left = at + left // 4 * 4, left % 4
    for place in range(3):
        rows = _those(left > place)
        found[rows] = _rotate(found[rows] ^ (content[at[rows] + place].astype(np.uint64) * _P5), 11) * _P1
    return _mix(found)


def _stripes(content: npt.NDArray[np.uint8], at: Int64Array, lengths: Int64Array, seeds: UInt64Array) -> UInt64Array:
    """The hashes of the whole stripes of 32 bytes."""
    found = seeds + _P5
    count = lengths // 32
    # The longest first: texts with stripes left are a prefix, and one very long text costs the others nothing.
    long = np.flatnonzero(count)
    long = long[np.argsort(-count[long], kind="stable")]
    if not len(long):
        return found
    at, count, seeds = at[long], count[long], seeds[long]
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds + np.uint64(0), seeds - _P1]
    going_on = np.searchsorted(-count, -np.arange(int(count[0])), side="left").tolist()
    for number, rows in enumerate(going_on):
        for place, lane in enumerate(lanes):
            word = _there(content, at[:rows] + (32 * number + 8 * place), np.uint64)
            lane[:rows] = _rotate(lane[:rows] + word * _P2, 31) * _P1
    mixed = sum((_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.uint64(0) * seeds)
    for lane in lanes:
        mixed = (mixed ^ (_rotate(lane * _P2, 31) * _P1)) * _P1 + _P4
    found[long] = mixed
    return found


def _those(mask: npt.NDArray[np.bool_]) -> Any:
    """The rows of a mask, as the cheapest index."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _there(content: npt.NDArray[np.uint8], places: Int64Array, kind: type[np.unsignedinteger[Any]]) -> Any:
    """The integers that begin at these bytes."""
    size = np.dtype(kind).itemsize
    if not len(places):
        return np.empty(0, kind)
    at_each_byte: Any = np.ndarray((len(content) - size + 1,), kind, content.data, strides=(1,))
    return at_each_byte[places]


def _word(found: UInt64Array, words: UInt64Array) -> UInt64Array:
    return _rotate(found ^ (_rotate(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _half_word(found: UInt64Array, words: UInt32Array) -> UInt64Array:
    return _rotate(found ^ (words.astype(np.uint64) * _P1), 23) * _P2 + _P3


def _mix(found: UInt64Array) -> UInt64Array:
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))


def _rotate(numbers: UInt64Array, by: int) -> UInt64Array:
    return (numbers << np.uint64(by)) | (numbers >> np.uint64(64 - by))


def _rotate32(numbers: UInt32Array, by: int) -> UInt32Array:
    return (numbers << np.uint32(by)) | (numbers >> np.uint32(32 - by))
