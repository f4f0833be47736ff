"""Blocks: what is written comes back, and nothing else passes for a block."""

import random

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.embedded.write.block import (
    CHUNK_BYTES,
    DATA,
    HEADER_BYTES,
    MAGIC,
    Block,
    Damage,
    decode_header,
    encode_header,
    newer_version,
    walk,
)
from mainstem.log.watermark import NO_TIME
from tests.log.embedded.memory_files import MemoryFiles

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
fields = st.tuples(
    st.integers(0, 255), u16, u32, u32, u32, u32, u32, u32, u64, u64, i64, u64, i64, i64, i64, i64, u64, u32, u32,
    u16, u16, u32,
)  # fmt: skip


@given(fields)
def test_a_header_comes_back(values):
    packed, header = encode_header(*values)
    assert len(packed) == HEADER_BYTES == 128
    assert decode_header(packed) == header
    assert tuple(header[:-1]) == values
    assert decode_header(pa.py_buffer(b"before" + packed), 6) == header


@given(fields, st.integers(0, HEADER_BYTES * 8 - 1))
def test_a_header_with_one_bit_flipped_is_none(values, bit):
    packed = bytearray(encode_header(*values)[0])
    packed[bit // 8] ^= 1 << bit % 8
    assert decode_header(bytes(packed)) is None


@given(fields, u16)
def test_a_header_of_version_1_is_read_and_of_a_newer_one_is_told_from_damage(values, version):
    """Version 1 ends in 12 zero bytes: of those it says nothing."""
    plain = bytearray(encode_header(*values[:-3], 0, 0, 0)[0])

    def of_version(number: int) -> bytes:
        plain[4] = number
        return bytes(plain[:-4]) + google_crc32c.value(bytes(plain[:-4])).to_bytes(4, "little")

    old = decode_header(of_version(1))
    assert old is not None
    assert (tuple(old[:-4]), old[-4:-1]) == (values[:-3], (0, 0, 0))
    assert newer_version(of_version(1)) is None
    newer = of_version(max(3, version % 256))
    assert (decode_header(newer), newer_version(newer)) == (None, newer[4])
    assert newer_version(newer[:-1] + bytes([newer[-1] ^ 1])) is None


@given(st.binary(max_size=300))
def test_other_bytes_are_no_header(data):
    assert decode_header(data) is None
    assert decode_header(MAGIC + data) is None


def chained(payloads: list[bytes], *, offset: int = 0, previous: int = 7) -> tuple[bytes, list[int]]:
    """A run of blocks of one record each, and where each begins."""
    data, positions = b"", []
    for payload in payloads:
        packed, header = encode_header(
            DATA, 0, len(payload), google_crc32c.value(payload), previous, 1, 0, 0, offset, 0, -1, 0,
            5, NO_TIME, NO_TIME, NO_TIME, 0, 1, 99, 0, 0, 0,
        )  # fmt: skip
        positions.append(len(data))
        data += packed + payload
        offset, previous = header.end_offset, header.crc
    return data, positions


def walked(data: bytes, *, start: int = 0, offset: int = 0, previous: int | None = 7) -> list[Block | Damage]:
    files = MemoryFiles()
    files.put("/segment", data)
    return list(walk(files, files.open("/segment"), start, len(data), offset=offset, previous=previous))


SIZES = [
    [0, 1, 5, 1_000],
    [CHUNK_BYTES - HEADER_BYTES, 3],
    [CHUNK_BYTES - 2 * HEADER_BYTES - 10, 7, 7, 7],
    [CHUNK_BYTES - 2 * HEADER_BYTES + 10, 7, CHUNK_BYTES * 2, 9],
    [10] * 500,
]


@pytest.mark.parametrize("sizes", SIZES, ids=["small", "a chunk", "just below a chunk", "larger than a chunk", "many"])
def test_a_walk_finds_every_block(sizes):
    payloads = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    data, positions = chained(payloads)
    found = walked(data)
    assert [block.payload.to_pybytes() for block in found] == payloads
    assert [block.position for block in found] == positions


def test_a_walk_reads_in_chunks():
    files = MemoryFiles()
    data, _ = chained([b"x" * 100] * 1_000)
    files.put("/segment", data)
    handle = files.open("/segment")
    before = files.calls
    assert len(list(walk(files, handle, 0, len(data), offset=0))) == 1_000
    assert files.calls - before == 1


def test_a_walk_ends_at_the_first_unsound_block():
    data, positions = chained([b"a" * 50, b"b" * 50, b"c" * 50])
    torn = data[: positions[2] - 3] + b"???" + data[positions[2] :]
    assert walked(torn)[1:] == [Damage(positions[1], 1)]
    assert walked(data[:-1])[2:] == [Damage(positions[2], 2)]
    assert walked(data + b"more")[3:] == [Damage(len(data), 3)]


def test_a_block_of_another_place_is_not_the_next_one():
    data, positions = chained([b"a", b"b", b"c"])
    other, _ = chained([b"B", b"C"], offset=1, previous=8)
    first = data[: positions[1]]
    assert walked(first + other)[1:] == [Damage(positions[1], 1)]
    assert walked(first + data[positions[2] :])[1:] == [Damage(positions[1], 1)]
    assert walked(data, previous=6) == [Damage(0, 0)]
    assert walked(data, offset=1) == [Damage(0, 1)]
    # Who does not know what comes before takes the first block at its word, and the others by the chain.
    assert len(walked(other, offset=1, previous=None)) == 2
