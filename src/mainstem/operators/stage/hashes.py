"""Hashes of keys and mixes of numbers, over Arrow and numpy.

Where Spark prepares an engine's rows it hashes keys itself (xxhash64). These are used without Spark. The two may differ,
because a state is always continued with the hashes with which it was started.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.stage.spark_hashes import buckets_of

__all__ = ["bucket_groups", "key_hashes", "mix", "tell_apart", "text_hash"]

# The constants of splitmix64, a mixer whose every output bit depends on every input bit.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(*numbers: Int64Array) -> Int64Array:
    """One hash of several integer columns for each row.

    >>> one, two = mix(np.array([1, 1]), np.array([2, 3]))
    >>> one != two
    np.True_
    """
    found = np.zeros(len(numbers[0]), np.uint64)
    for part in numbers:
        found = (found ^ np.asarray(part, np.int64).view(np.uint64)) + _STEP
        found = (found ^ (found >> np.uint64(30))) * _FIRST
        found = (found ^ (found >> np.uint64(27))) * _SECOND
        found ^= found >> np.uint64(31)
    return found.view(np.int64)


def tell_apart(items: Int64Array) -> Int64Array:
    """The ids of rows, those that are equal made different: each but the first is mixed with its number among them.

    Rows of one position in the log are in one batch, but a stream may have several of them: a union of a topic with itself, or
    a look-up that finds two rows of a table.

    >>> first, second, third = tell_apart(np.array([7, 5, 7])).tolist()
    >>> (first, second, third not in (5, 7))
    (7, 5, True)
    """
    ordered = np.sort(items)
    if not (ordered[1:] == ordered[:-1]).any():
        return items
    order = np.argsort(items, kind="stable")
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    place = np.arange(len(items)) - np.repeat(firsts, np.diff(np.r_[firsts, len(items)]))
    found = items.copy()
    found[order] = np.where(place > 0, mix(ordered, place), ordered)
    return found


def text_hash(text: str) -> int:
    """A 64-bit hash of a text, the same in every process.

    >>> text_hash("close") == text_hash("close") != text_hash("open")
    True
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def key_hashes(columns: list[pa.ChunkedArray], count: int, salt: str) -> Int64Array:
    """A hash of each row's key; different for each salt."""
    found = np.full(count, text_hash(salt), np.int64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_floating(whole.type):
            # In SQL 0.0 equals -0.0; adding zero gives 0.0.
            whole = pc.add(whole, pa.scalar(0.0, whole.type))
        if pa.types.is_nested(whole.type):
            hashes = np.array([text_hash(f"{salt}{value!r}") for value in whole.to_pylist()], np.int64)
        else:
            # Many rows share a key: each distinct value is hashed once.
            encoded = pc.dictionary_encode(whole, null_encoding="encode")
            values = [text_hash(f"{salt}{value!r}") for value in encoded.dictionary.to_pylist()]
            hashes = np.array([*values, 0], np.int64)[np.asarray(encoded.indices)]
        found = mix(found, hashes)
    return found


@lru_cache(maxsize=64)
def bucket_groups(buckets: int) -> tuple[int, ...]:
    """For each bucket a group that `repartition` puts there, always the same one."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < buckets:
        group = text_hash(f"bucket {candidate}")
        found.setdefault(int(buckets_of(np.array([group]), buckets)[0]), group)
        candidate += 1
    return tuple(found[bucket] for bucket in range(buckets))
