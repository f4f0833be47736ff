"""Keys land where Kafka's own clients put them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.rows.partitioner import NO_KEY, key_bytes, murmur2, partitions_of, split


def murmur2_of(data: bytes) -> int:
    """As in Kafka's Utils.murmur2, byte by byte; the result is Java's signed int."""
    bits, factor = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * factor & bits
        word = (word ^ word >> 24) * factor & bits
        state = (state * factor & bits) ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * factor & bits
    state = (state ^ state >> 13) * factor & bits
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Kafka's UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2_of(key) == expected
    assert murmur2(pa.array([key])).view(np.int32).tolist() == [expected]


KEYS = st.lists(st.none() | st.binary(max_size=30) | st.binary(min_size=200, max_size=300), max_size=60)


@given(KEYS, st.integers(0, 60), st.integers(0, 60), st.integers(1, 1024))
def test_a_column_is_placed_as_its_keys_one_by_one(
    keys: list[bytes | None], start: int, count: int, partitions: int
) -> None:
    column = pa.array(keys, pa.binary()).slice(min(start, len(keys)), count)
    expected = [NO_KEY if key is None else (murmur2_of(key) & 0x7FFFFFFF) % partitions for key in column.to_pylist()]
    places = partitions_of(column, partitions)
    assert places.dtype == np.int32
    assert places.tolist() == expected


def test_a_very_long_key_among_many_short_ones() -> None:
    keys = [b"k" * n for n in range(100)] + [bytes(range(256)) * 400]
    assert murmur2(pa.array(keys)).view(np.int32).tolist() == [murmur2_of(key) for key in keys]


def test_a_string_is_its_utf_8_without_a_copy() -> None:
    batch = pa.RecordBatch.from_pydict({"k": ["é", "", None]})
    keys = key_bytes(batch, ["k"])
    assert keys.to_pylist() == ["é".encode(), b"", None]
    assert keys.buffers()[2].address == batch.column("k").buffers()[2].address
    assert key_bytes(batch.slice(1), ["k"]).to_pylist() == [b"", None]


def test_other_keys_are_canonical_json() -> None:
    columns = {"n": [1, None, 3], "s": ["a", None, None], "b": [b"\0", None, b"x"]}
    batch = pa.RecordBatch.from_pydict(columns)
    assert key_bytes(batch, ["n"]).to_pylist() == [b"1", None, b"3"]
    assert key_bytes(batch, ["b"]).to_pylist() == [b"\0", None, b"x"]
    assert key_bytes(batch, ["n", "s"]).to_pylist() == [b'[1,"a"]', None, b"[3,null]"]
    assert key_bytes(batch, ["s", "n"]).to_pylist() == [b'["a",1]', None, b"[null,3]"]
    assert key_bytes(batch, []).to_pylist() == [None, None, None]


@given(st.lists(st.integers(0, 7), max_size=40))
def test_a_split_keeps_every_row_in_order(places: list[int]) -> None:
    batch = pa.RecordBatch.from_pydict({"row": pa.array(range(len(places)), pa.int64())})
    parts = split(batch, np.array(places, np.int32), 8)
    assert {partition: part.column("row").to_pylist() for partition, part in parts.items()} == {
        partition: [row for row, place in enumerate(places) if place == partition] for partition in sorted(set(places))
    }


def test_rows_of_one_partition_are_not_copied() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    assert split(batch, np.array([3, 3], np.int32), 4)[3] is batch
