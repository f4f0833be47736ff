"""A segment of blocks: the active one, and closed ones that are not sealed yet.

    preamble (64 bytes): magic "MAINSTEM" | format u32 | epoch u32 | base offset u64 | created at i64 | id (16 bytes)
                         zero (12 bytes) | crc32c of the 60 bytes before u32
    block, block, ...    the first is always a state block: the state of all records before the segment

Its name is its base offset and the partition's epoch at its creation, `00000000000000000042-000001.blocks`; it ends
where the next one begins. A segment is ignored if one of a higher epoch begins at or before its base: a take-over has
abandoned it. One writer at a time (the partition's lock), any number of readers. After a crash the last segment may end
in a partial block; `crash_recovery` truncates it.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import google_crc32c

from mainstem.durable_files import Files
from mainstem.errors import CorruptBlock, NewerFormat
from mainstem.log.embedded.write.block import (
    DATA,
    ENTRIES,
    HEADER_BYTES,
    MARKERS,
    VERSION,
    Block,
    Damage,
    Header,
    decode_header,
    newer_version,
    walk,
)
from mainstem.log.embedded.write.block import MAGIC as BLOCK_MAGIC

__all__ = [
    "ActiveSegment",
    "ENTRY",
    "PREAMBLE_BYTES",
    "SegmentIndex",
    "SegmentName",
    "UNFINISHED",
    "all_segments_in",
    "deserves_entry",
    "encode_entry",
    "encode_preamble",
    "missing_records",
    "published_segments",
    "segments_in",
]

PREAMBLE = struct.Struct("<8sIIQq16s12x")
PREAMBLE_BYTES = PREAMBLE.size + 4
CHECKSUM = struct.Struct("<I")
MAGIC = b"MAINSTEM"
FORMAT = 1

# The suffix of a segment that is still being created.
UNFINISHED = ".new"

NAME = re.compile(r"(\d{20})-(\d{6,})\.blocks")

# Chunk size when only headers are read: enough for some hundred small blocks. Payloads of large ones are skipped; there
# a page is enough.
HEADERS_CHUNK_BYTES = 128 << 10
HEADERS_CHUNK_BYTES_MIN = 4 << 10

# Chunk size when searching for a header byte by byte.
SEARCH_CHUNK_BYTES = 4 << 20


class SegmentName(NamedTuple):
    """The name of a segment of blocks; names sort in the order of the segments."""

    base: int
    epoch: int

    def path(self, folder: str) -> str:
        return f"{folder}/{self.base:020d}-{self.epoch:06d}.blocks"

    def index_path(self, folder: str) -> str:
        return f"{folder}/{self.base:020d}-{self.epoch:06d}.index"


def all_segments_in(names: Iterable[str]) -> list[SegmentName]:
    """The segments of blocks among the names of a directory, in order, with the ignored ones."""
    return sorted(SegmentName(int(match[1]), int(match[2])) for match in map(NAME.fullmatch, names) if match)


def segments_in(names: Iterable[str]) -> list[SegmentName]:
    """The segments of blocks among the names of a directory, in order, without the ignored ones."""
    counted: list[SegmentName] = []
    for name in all_segments_in(names):
        while counted and counted[-1].base == name.base:
            counted.pop()  # sorted by epoch after base: the later one counts
        if not counted or name.epoch >= counted[-1].epoch:
            counted.append(name)
    return counted


def published_segments(names: list[str], segment: int, epoch: int) -> list[SegmentName]:
    """The segments up to the one with the published end, in order.

    The one after it may still be incomplete.
    """
    return [*(name for name in segments_in(names) if name.base < segment), SegmentName(segment, epoch)]


class Preamble(NamedTuple):
    """The head of a segment file; the first block is chained to its checksum."""

    epoch: int
    base: int
    created_at: int
    crc: int


def encode_preamble(name: SegmentName, created_at: int) -> tuple[bytes, int]:
    packed = PREAMBLE.pack(MAGIC, FORMAT, name.epoch, name.base, created_at, os.urandom(16))
    crc = google_crc32c.value(packed)
    return packed + CHECKSUM.pack(crc), crc


def read_preamble(files: Files, handle: int, path: str) -> Preamble | None:
    """The preamble, or None if the bytes are invalid."""
    data = files.pread(handle, PREAMBLE_BYTES, 0)
    if len(data) < PREAMBLE_BYTES or data[: len(MAGIC)] != MAGIC:
        return None
    crc = google_crc32c.value(data[: PREAMBLE.size])
    if crc != CHECKSUM.unpack_from(data, PREAMBLE.size)[0]:
        return None
    _, version, epoch, base, created_at, _ = PREAMBLE.unpack_from(data)
    if version > FORMAT:
        raise NewerFormat.of(f'segment "{path}"', version, FORMAT)
    return Preamble(epoch, base, created_at, crc)


class ActiveSegment:
    """A segment file of blocks, open for reading and, if the caller holds the partition's lock, for writing."""

    def __init__(self, files: Files, folder: str, name: SegmentName) -> None:
        self.name = name
        self.path = name.path(folder)
        self._files = files
        self._users = 1
        self._guard = threading.Lock()
        self.handle = files.open(self.path)

    def share(self) -> ActiveSegment:
        """The same segment, with one more user; the file is closed when all users have closed it."""
        with self._guard:
            self._users += 1
        return self

    def close(self) -> None:
        with self._guard:
            self._users -= 1
            if self._users:
                return
        self._files.close(self.handle)

    def size(self) -> int:
        return self._files.size(self.handle)

    def preamble(self) -> Preamble | None:
        return read_preamble(self._files, self.handle, self.path)

    def header_at(self, position: int) -> Header | None:
        return decode_header(self._files.pread(self.handle, HEADER_BYTES, position))

    def walk(self, position: int, end: int, offset: int, previous: int | None = None) -> Iterator[Block | Damage]:
        """The verified blocks between two positions; see `block.walk`."""
        return walk(self._files, self.handle, position, end, offset=offset, previous=previous)

    def blocks(self, position: int, end: int, offset: int, until: int | None = None) -> Iterator[Block]:
        """The blocks of a published range: an invalid one is damage. `until`: the offset after the range."""
        for item in self.walk(position, end, offset):
            if isinstance(item, Damage):
                raise self.corrupt(item, end, until)
            yield item

    def headers(self, position: int, end: int) -> Iterator[tuple[int, Header]]:
        """Headers and their positions, without the payloads; stops at the first invalid one."""
        chunk, chunk_at = b"", position
        wanted = HEADERS_CHUNK_BYTES
        while position < end:
            if position + HEADER_BYTES > chunk_at + len(chunk):
                chunk_at = position
                chunk = self._files.pread(self.handle, min(wanted, end - position), position)
            header = decode_header(chunk, position - chunk_at)
            if header is None:
                return
            yield position, header
            position += header.size
            wanted = HEADERS_CHUNK_BYTES if header.size < HEADERS_CHUNK_BYTES // 4 else HEADERS_CHUNK_BYTES_MIN

    def next_sound(self, position: int, end: int) -> tuple[int, Header] | None:
        """The first valid block at or after a position, wherever it begins: the first one after damage."""
        return next(self.sound_after(position, end), None)

    def sound_after(self, position: int, end: int) -> Iterator[tuple[int, Header]]:
        """Blocks of this segment with valid headers, wherever they begin: those after damage."""
        preamble = self.preamble()
        while position < end:
            chunk = self._files.pread(self.handle, min(SEARCH_CHUNK_BYTES, end - position), position)
            if len(chunk) < HEADER_BYTES:
                return
            at = chunk.find(BLOCK_MAGIC)
            while 0 <= at <= len(chunk) - HEADER_BYTES:
                header = decode_header(chunk, at)
                if header is not None and (preamble is None or header.segment == preamble.crc):
                    yield position + at, header
                at = chunk.find(BLOCK_MAGIC, at + 1)
            # A header may span two chunks.
            position += len(chunk) - HEADER_BYTES + 1

    def corrupt(self, damage: Damage, end: int, until: int | None = None) -> CorruptBlock | NewerFormat:
        """The error that names file, byte and the exact range that cannot be read.

        `until` is the offset after the segment, if known.
        """
        version = newer_version(self._files.pread(self.handle, HEADER_BYTES, damage.position))
        if version is not None:
            return NewerFormat.of(f'the block at byte {damage.position} of segment "{self.path}"', version, VERSION)
        after = self.next_sound(damage.position + 1, end)
        behind = after[1].base_offset if after else until
        last = None if behind is None else max(behind - 1, damage.offset)
        upto = "the end of the segment" if last is None else f"offset {last}"
        return CorruptBlock(
            f'segment "{self.path}" is damaged at byte {damage.position}',
            detail=f"Records from offset {damage.offset} up to {upto} cannot be read: a checksum does not match.",
            hint="Nothing was changed. Restore the file from a copy, or skip the damaged range with a later start.",
            path=self.path,
            position=damage.position,
            first_offset=damage.offset,
            last_offset=last,
        )


def missing_records(title: str, path: str, first: int, behind: int) -> CorruptBlock:
    """The error for records below `behind` that no file has: `path` was removed, or truncated at the end of a block."""
    if behind <= first:
        return CorruptBlock(
            f'segment "{path}" is missing',
            detail=f"The next records of {title} belong in it: the file was removed.",
            hint="Nothing was changed. Restore the file from a copy.",
            path=path,
            position=0,
            first_offset=first,
        )
    return CorruptBlock(
        f"records {first} to {behind - 1} of {title} are missing",
        detail=f'They are neither sealed nor in an active segment: a file was removed or truncated. File: "{path}".',
        hint="Nothing was changed. Restore the file from a copy, or skip these records with a later start.",
        path=path,
        position=0,
        first_offset=first,
        last_offset=behind - 1,
    )


# The index of a segment: finds the block that holds an offset, or that was appended at a time.
#
# Sparse: an entry for the first block, and for each that begins 4 KiB or more after the last one with an entry. Entries
# are sorted, 24 bytes each, and found by bisection; append times never decrease, so one file serves both searches:
#
#     offset u64 | position u64 | appended at i64
#
# Not checksummed and not synced: an entry is valid only if it points to a block with that offset. Otherwise a reader
# starts earlier, and the next writer that opens the partition rebuilds the file from the segment, byte for byte the
# same. One writer, which holds the partition's write lock; any number of readers.


ENTRY = struct.Struct("<QQq")
EVERY_BYTES = 4096

Entry = tuple[int, int, int]


def deserves_entry(header: Header, position: int, entries: int, last_position: int) -> bool:
    """Whether the block at `position` gets an entry, given the number of entries and the position of the last one."""
    takes_offsets = header.kind in (DATA, ENTRIES, *MARKERS) and header.count > 0
    return takes_offsets and (entries == 0 or position - last_position >= EVERY_BYTES)


def encode_entry(header: Header, position: int) -> bytes:
    return ENTRY.pack(header.base_offset, position, header.appended_at)


def entries_of(segment: ActiveSegment, end: int) -> bytes:
    """The complete index of a segment up to a position, computed from its blocks."""
    entries: list[bytes] = []
    last = 0
    for position, header in segment.headers(PREAMBLE_BYTES, end):
        if deserves_entry(header, position, len(entries), last):
            entries.append(encode_entry(header, position))
            last = position
    return b"".join(entries)


class SegmentIndex:
    """The index of one segment, for readers."""

    def __init__(self, files: Files, path: str) -> None:
        self._path = path
        self._files = files

    def find_offset(self, segment: ActiveSegment, offset: int) -> tuple[int, int] | None:
        """Position and base offset of a block at or before the one that holds `offset`; None: read from the
        beginning."""
        return self._find(segment, lambda entry: entry[0] <= offset)

    def find_time(self, segment: ActiveSegment, at: int) -> tuple[int, int] | None:
        """Position and base offset of a block such that all earlier blocks were appended before `at`."""
        return self._find(segment, lambda entry: entry[2] < at)

    def _find(self, segment: ActiveSegment, before: Callable[[Entry], bool]) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            handle = self._files.open(self._path)
            try:
                entry = self._bisect(handle, before)
            finally:
                self._files.close(handle)
            if entry is None:
                return None
            offset, position, appended_at = entry
            header = segment.header_at(position)
            # The entry is verified against the block: a damaged or outdated index costs only time.
            if header is not None and header.base_offset == offset and header.appended_at == appended_at:
                return position, offset
        return None

    def _bisect(self, handle: int, before: Callable[[Entry], bool]) -> Entry | None:
        low, high = 0, self._files.size(handle) // ENTRY.size
        found = None
        while low < high:
            middle = (low + high) // 2
            data = self._files.pread(handle, ENTRY.size, middle * ENTRY.size)
            if len(data) < ENTRY.size:
                high = middle
                continue
            entry: Entry = ENTRY.unpack(data)
            if before(entry):
                found, low = entry, middle + 1
            else:
                high = middle
        return found

    def sound(self, segment: ActiveSegment, end: int, *, growing: bool = False) -> bool:
        """Whether the file is exactly as rebuilt from the segment. If it is `growing`, another process may have appended entries
        for blocks after `end`."""
        wanted = entries_of(segment, end)
        try:
            handle = self._files.open(self._path)
        except FileNotFoundError:
            return False
        try:
            found = self._files.pread(handle, self._files.size(handle), 0)
            return found.startswith(wanted) if growing else found == wanted
        finally:
            self._files.close(handle)

    def rebuild(self, segment: ActiveSegment, end: int) -> None:
        """Replace the file atomically.

        For a closed segment; for the active one see `rewrite`.
        """
        beside = self._path + ".new"
        handle = self._files.create(beside)
        try:
            self._files.pwrite(handle, entries_of(segment, end), 0)
        finally:
            self._files.close(handle)
        self._files.rename(beside, self._path)

    def rewrite(self, segment: ActiveSegment, end: int) -> None:
        """Rewrite the file in place: other processes have it open and append to it.

        A kill leaves a prefix of the correct file; the next process that opens the partition to append rewrites it.
        """
        entries = entries_of(segment, end)
        try:
            handle = self._files.open(self._path)
        except FileNotFoundError:
            handle = self._files.create(self._path)
        try:
            self._files.truncate(handle, 0)
            self._files.pwrite(handle, entries, 0)
        finally:
            self._files.close(handle)
