"""Where in a segment the block lies that holds an offset, or that was appended at a time.

Sparse: an entry for the first block, and for each that begins 4 KiB or more after the last one with an entry. Entries
lie sorted, 24 bytes each, and are found by bisection; append times never go back, so one file serves both questions:

    offset u64 | position u64 | appended at i64

Not checksummed and not synced: an entry is believed only if the block it points to is there and has that offset;
else a reader starts earlier, and the next writer to open the partition makes the file again from the segment, byte
for byte the same. One writer, who holds the partition's write lock; any number of readers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment
from mainstem.log.embedded.block import DATA, ENTRIES, MARKERS, Header
from mainstem.log.embedded.files import Files

ENTRY = struct.Struct("<QQq")
EVERY_BYTES = 4096

Entry = tuple[int, int, int]


def deserves_entry(header: Header, position: int, entries: int, last_position: int) -> bool:
    """Whether the block at `position` gets an entry, after so many entries of which the last points there."""
    takes_offsets = header.kind in (DATA, ENTRIES, *MARKERS) and header.count > 0
    return takes_offsets and (entries == 0 or position - last_position >= EVERY_BYTES)


def encode_entry(header: Header, position: int) -> bytes:
    return ENTRY.pack(header.base_offset, position, header.appended_at)


def entries_of(segment: ActiveSegment, end: int) -> bytes:
    """The whole index of a segment up to a position, from its blocks."""
    entries: list[bytes] = []
    last = 0
    for position, header in segment.headers(PREAMBLE_BYTES, end):
        if deserves_entry(header, position, len(entries), last):
            entries.append(encode_entry(header, position))
            last = position
    return b"".join(entries)


class SegmentIndex:
    """The index of one segment, as a reader uses it."""

    def __init__(self, files: Files, path: str) -> None:
        self._path = path
        self._files = files

    def find_offset(self, segment: ActiveSegment, offset: int) -> tuple[int, int] | None:
        """Position and base offset of a block at or before the one that holds `offset`; None: read from the start."""
        return self._find(segment, lambda entry: entry[0] <= offset)

    def find_time(self, segment: ActiveSegment, at: int) -> tuple[int, int] | None:
        """Position and base offset of a block before which nothing was appended at or after `at`."""
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
            # The block has the last word: an index that was damaged, or is older than its segment, costs time only.
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

    def sound(self, segment: ActiveSegment, end: int) -> bool:
        """Whether the file holds exactly what it must."""
        wanted = entries_of(segment, end)
        try:
            handle = self._files.open(self._path)
        except FileNotFoundError:
            return False
        try:
            return self._files.pread(handle, self._files.size(handle), 0) == wanted
        finally:
            self._files.close(handle)

    def rebuild(self, segment: ActiveSegment, end: int) -> None:
        """Make the file again, beside the old one and then in its place: a kill leaves one of the two.

        For a segment that nobody appends to; else see `rewrite`.
        """
        beside = self._path + ".new"
        handle = self._files.create(beside)
        try:
            self._files.pwrite(handle, entries_of(segment, end), 0)
        finally:
            self._files.close(handle)
        self._files.rename(beside, self._path)

    def rewrite(self, segment: ActiveSegment, end: int) -> None:
        """Make the file's content again, in place: other processes have it open, and go on adding to it.

        A kill leaves a part of the right one; who next opens the partition to append sees that, and makes it again.
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
