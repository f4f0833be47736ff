"""A block: the records of one append in one partition.

    header (128 bytes, little endian)                                   payload
    magic "MSTM" | version u8 | kind u8 | flags u16                     one Arrow record batch (IPC message, no schema),
    length u32 | payload crc32c u32 | previous u32 | count u32          or JSON (state, entries), or nothing (markers)
    schema version u32 | producer epoch u32
    base offset u64 | producer id u64 | sequence i64 | transaction u64
    appended at i64 | event time max i64 | observed up to i64 | declared watermark i64
    synced u64 | partition epoch u32 | segment u32
    parts u16 | partitions u16 | dense u32 | zero (4 bytes) | crc32c of the 124 bytes before u32

`previous` is the header checksum of the block before (of the segment's preamble for the first one): blocks are a
chain, so a whole block that once lay here, or lies elsewhere, does not pass for the next one. `synced` is the end
offset known to be on disk when the block was written: whatever lies below it was acknowledged, so if it is unreadable
that is damage, and never the torn end of a crash, even when all else that knew of it is lost. `segment` is the
checksum of the segment's preamble, which is random: a block found behind damage is known to belong there, and is not
somebody's copy of a block inside a payload.

The last three say of an append with a sequence what one partition cannot know: to how many partitions it went, how many
the topic had when its rows were placed, and how many sequences directly below it the topic has without a gap. They are
zero in all other blocks, and in blocks of version 1, which has zeros in their place: then they are not known.
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

# Kinds. Data, commit and abort take offsets; the others take none.
DATA, COMMIT, ABORT, STATE, ENTRIES = 1, 2, 3, 4, 5
MARKERS = (COMMIT, ABORT)

# Flags: the payload has these columns after the user's own.

# How much is read from a segment at once when blocks are walked in order. More is slower: 4 MiB are memory that comes
# fresh from the kernel each time, and have left the cache by the time their checksum is taken.
CHUNK_BYTES = 1 << 20


class Header(NamedTuple):
    """The header of a block, decoded; `crc` is its own checksum, to which the next block is chained."""

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
    """The header's bytes, and the header. The fields are those of `Header` without `crc`: this runs for every append."""
    packed = HEADER.pack(MAGIC, VERSION, *fields)
    crc = google_crc32c.value(packed)
    return packed + CHECKSUM.pack(crc), Header._make((*fields, crc))


def decode_header(data: bytes | pa.Buffer, position: int = 0) -> Header | None:
    """The header that begins at `position`, or None when the bytes there are not one."""
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
    """The version of a sound header that was written by a newer Mainstem; None if the bytes are not one."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC or data[4] <= VERSION:
        return None
    return data[4] if google_crc32c.value(data[: HEADER.size]) == CHECKSUM.unpack_from(data, HEADER.size)[0] else None


class Block(NamedTuple):
    """A header, its payload, and where in the segment it begins."""

    header: Header
    payload: pa.Buffer
    position: int


@dataclass(frozen=True)
class Damage:
    """Where a walk over blocks had to stop: the bytes at `position` are not the block of `offset`."""

    position: int
    offset: int


def sound(header: Header, payload: pa.Buffer) -> bool:
    """Whether the payload is the one that was written."""
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
    """The blocks between two positions of a segment, each checked; the last item is a `Damage` if one is not sound.

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
