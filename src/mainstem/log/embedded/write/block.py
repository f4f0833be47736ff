"""A block: the records of one append in one partition.

    header (128 bytes, little endian)                                   payload
    magic "MSTM" | version u8 | kind u8 | flags u16                     one Arrow record batch (IPC message, no schema),
    length u32 | payload crc32c u32 | previous u32 | count u32          or JSON (state, entries), or nothing (markers)
    schema version u32 | producer epoch u32
    base offset u64 | producer id u64 | sequence i64 | transaction u64
    appended at i64 | event time max i64 | observed up to i64 | declared watermark i64
    synced u64 | partition epoch u32 | segment u32
    parts u16 | partitions u16 | dense u32 | zero (4 bytes) | crc32c of the 124 bytes before u32

`previous` is the header checksum of the block before (of the segment's preamble for the first one): blocks form a
chain, so a stale or misplaced block is not accepted. `synced` is the end offset known to be synced when the block was
written: records below it were acknowledged, so if they are unreadable that is damage, not a torn write, even if all
other metadata is lost. `segment` is the checksum of the segment's preamble, which is random: it shows that a block
found after damage belongs to the segment, and is not a copy inside a payload.

The last three describe an append with a sequence: the number of partitions it went to, the number of partitions of the
topic when its rows were placed, and how many sequences directly below it the topic has without a gap. They are zero in
all other blocks, and in blocks of version 1, where they are unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from mainstem.durable_files import Files

MAGIC = b"MSTM"
VERSION = 2
HEADER = struct.Struct("<4sBBHIIIIIIQQqQqqqqQIIHHI4x")
HEADER_BYTES = HEADER.size + 4
CHECKSUM = struct.Struct("<I")

# Kinds. Data, commit and abort take offsets; state and entries take none.
DATA, COMMIT, ABORT, STATE, ENTRIES = 1, 2, 3, 4, 5
MARKERS = (COMMIT, ABORT)

# Flags: the payload has these columns after the user's.

# Chunk size when blocks are read in order. Larger chunks are slower: at 4 MiB each one is new memory from the kernel,
# and is out of the CPU cache when its checksum is computed.
CHUNK_BYTES = 1 << 20


class Header(NamedTuple):
    """The decoded header of a block; `crc` is its own checksum, to which the next block is chained."""

    kind: int
    flags: int
    length: int
    payload_crc: int
    previous: int
    count: int  # type: ignore[assignment]  # a tuple's own count() is not needed here
    schema_version: int
    producer_epoch: int
    base_offset: int
    producer_id: int
    sequence: int
    transaction: int
    appended_at: int
    event_time_max: int
    observed_up_to: int
    stated_watermark: int
    synced: int
    epoch: int
    segment: int
    parts: int
    partitions: int
    dense: int
    crc: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.length


def encode_header(*fields: int) -> tuple[bytes, Header]:
    """The header's bytes, and the header. Takes the fields of `Header` without `crc` as a tuple: every append calls
    this."""
    packed = HEADER.pack(MAGIC, VERSION, *fields)
    crc = google_crc32c.value(packed)
    return packed + CHECKSUM.pack(crc), Header._make((*fields, crc))


def decode_header(data: bytes | pa.Buffer, position: int = 0) -> Header | None:
    """The header that begins at `position`, or None if the bytes are invalid."""
    end = position + HEADER_BYTES
    packed = bytes(data[position:end])
    if len(packed) < HEADER_BYTES or packed[:4] != MAGIC:
        return None
    (crc,) = CHECKSUM.unpack_from(packed, HEADER.size)
    if google_crc32c.value(packed[: HEADER.size]) != crc:
        return None
    fields = HEADER.unpack_from(packed)
    if not 1 <= fields[1] <= VERSION:
        return None
    return Header._make((*fields[2:], crc))


def newer_version(data: bytes) -> int | None:
    """The version of a valid header written by a newer Mainstem; None if the bytes are invalid."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC or data[4] <= VERSION:
        return None
    return data[4] if google_crc32c.value(data[: HEADER.size]) == CHECKSUM.unpack_from(data, HEADER.size)[0] else None


class Block(NamedTuple):
    """A header, its payload, and its position in the segment."""

    header: Header
    payload: pa.Buffer
    position: int


@dataclass(frozen=True)
class Damage:
    """The end of a walk over blocks: the bytes at `position` are not the block that begins with `offset`."""

    position: int
    offset: int


def sound(header: Header, payload: pa.Buffer) -> bool:
    """Whether the payload matches its checksum."""
    return len(payload) == header.length and google_crc32c.value(payload) == header.payload_crc


def walk(
    files: Files,
    handle: int,
    position: int,
    end: int,
    *,
    offset: int,
    previous: int | None = None,
) -> Iterator[Block | Damage]:
    """The verified blocks between two positions of a segment; the last item is a `Damage` if a block is invalid.

    `offset` is the offset that the first block must have, `previous` the checksum that it must be chained to.
    Reads in chunks, so that a segment of small blocks costs few system calls.
    """
    chunk = pa.py_buffer(b"")
    chunk_at = position
    while position < end:
        at = position - chunk_at
        header = decode_header(chunk, at) if at + HEADER_BYTES <= len(chunk) else None
        if header is None or at + header.size > len(chunk):
            wanted = CHUNK_BYTES if header is None else max(CHUNK_BYTES, header.size)
            chunk_at, at = position, 0
            chunk = files.read_buffer(handle, min(wanted, end - position), position)
            header = decode_header(chunk)
            if header is not None and header.size > len(chunk) and header.size <= end - position:
                chunk = files.read_buffer(handle, header.size, position)
        if (
            header is None
            or header.base_offset != offset
            or (previous is not None and header.previous != previous)
            or at + header.size > len(chunk)
            or not sound(header, payload := chunk.slice(at + HEADER_BYTES, header.length))
        ):
            yield Damage(position, offset)
            return
        yield Block(header, payload, position)
        position += header.size
        offset = header.end_offset
        previous = header.crc
