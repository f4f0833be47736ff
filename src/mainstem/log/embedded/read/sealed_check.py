"""Checks a sealed file against its checksums before its content is used.

Parquet pages have their own checksums, but the footer that locates them has none, and DuckDB does not verify them. So a
file is checked against ours: as a whole (`check_sealed`, and `check_once` for each process), or its footer first and
then the blocks that are read (`check_frame_once`), so that reading two columns of ten reads two tenths of the file.
Files sealed before blocks had checksums are checked as a whole.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.durable_files import Files
from mainstem.errors import CorruptSegment

__all__ = [
    "BLOCKS",
    "BlockChecksums",
    "CHECK_BYTES",
    "check_frame_once",
    "check_once",
    "check_ranges",
    "check_sealed",
    "corrupt_segment",
    "span_of",
    "was_checked",
]


# BlockChecksums: a checksum for every 16 KiB of a file, so that a partial read checks only what it reads.
#
# The list is in the file's footer, after the bytes it covers. It is verified by the checksum of the whole file, which
# is stored elsewhere: the checksums of the blocks and of the footer, combined, must equal it. So reading the footer
# verifies the footer and the list; a block is verified when it is read.
#
# The CRC-32C of two pieces follows from those of each: the first, shifted by the length of the second, plus the second.
# Shifting by a length is a linear map over bits (`_shift_map`).


BLOCK_BYTES = 1 << 14
# Chunk size of reads.
PIECE_BYTES = 8 << 20
# The polynomial of CRC-32C, its lowest bit first.
POLYNOMIAL = 0x82F63B78

UInt32Array = npt.NDArray[np.uint32]


class BlockChecksums:
    """The checksums of the first `length` bytes of a file, and the blocks verified so far."""

    def __init__(self, checksums: UInt32Array, length: int) -> None:
        self._checksums = checksums
        self._length = length
        self._sound = np.zeros(len(checksums), np.bool_)
        self._guard = threading.Lock()

    @classmethod
    def of(cls, files: Files, handle: int, length: int) -> BlockChecksums:
        """The checksums of a file's current bytes."""
        return cls(_read_checksums(files, handle, 0, length), length)

    @classmethod
    def from_text(cls, text: bytes, length: int) -> BlockChecksums | None:
        """The list as stored in a footer; None if it does not fit this length."""
        try:
            found = np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)
        except ValueError:
            return None
        return cls(found, length) if len(found) == -(-length // BLOCK_BYTES) else None

    def to_text(self) -> bytes:
        return base64.b64encode(self._checksums.astype("<u4").tobytes())

    def with_rest(self, rest: bytes) -> int:
        """The checksum of the whole file, which ends with `rest`."""
        whole = self._length // BLOCK_BYTES
        crc = _combine(self._checksums[:whole])
        for piece, length in [
            *((int(last), self._length - whole * BLOCK_BYTES) for last in self._checksums[whole:]),
            (google_crc32c.value(rest), len(rest)),
        ]:
            crc = int(_shift(np.array([crc], np.uint32), length)[0]) ^ piece
        return crc

    def sound(self, files: Files, path: str, ranges: Iterable[tuple[int, int]]) -> bool:
        """Verify the blocks that contain these ranges of bytes; each is read once."""
        wanted = np.zeros(len(self._checksums), np.bool_)
        for start, end in ranges:
            wanted[start // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = True
        with self._guard:
            wanted &= ~self._sound
        if not wanted.any():
            return True
        handle = files.open(path)
        try:
            edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(np.int8), [0]])))
            for first, after in edges.reshape(-1, 2).tolist():
                end = min(after * BLOCK_BYTES, self._length)
                found = _read_checksums(files, handle, first * BLOCK_BYTES, end)
                if not np.array_equal(found, self._checksums[first:after]):
                    return False
        finally:
            files.close(handle)
        with self._guard:
            self._sound |= wanted
        return True


def _read_checksums(files: Files, handle: int, start: int, end: int) -> UInt32Array:
    found: list[int] = []
    for position in range(start, end, PIECE_BYTES):
        piece = files.pread(handle, min(PIECE_BYTES, end - position), position)
        found += [google_crc32c.value(piece[at : at + BLOCK_BYTES]) for at in range(0, len(piece), BLOCK_BYTES)]
    return np.array(found, np.uint32)


def _combine(checksums: UInt32Array) -> int:
    """The checksum of consecutive blocks, combined in pairs."""
    if not len(checksums):
        return 0
    # Zeros in front do not change the result.
    missing = (1 << (len(checksums) - 1).bit_length()) - len(checksums)
    found = np.concatenate([np.zeros(missing, np.uint32), checksums])
    length = BLOCK_BYTES
    while len(found) > 1:
        found = _shift(found[::2], length) ^ found[1::2]
        length *= 2
    return int(found[0])


def _shift(checksums: UInt32Array, length: int) -> UInt32Array:
    """The checksums after `length` more zero bytes."""
    power = 0
    while length:
        if length & 1:
            checksums = _apply_map(_shift_map(power), checksums)
        length >>= 1
        power += 1
    return checksums


def _apply_map(columns: UInt32Array, vectors: UInt32Array) -> UInt32Array:
    """Apply a linear map over bits, given by its columns."""
    found = np.zeros_like(vectors)
    for bit in range(32):
        found ^= np.where((vectors >> np.uint32(bit)) & np.uint32(1), columns[bit], np.uint32(0))
    return found


@cache
def _shift_map(power: int) -> UInt32Array:
    """The map that shifts a checksum by 2 to the `power` bytes."""
    if power:
        half = _shift_map(power - 1)
        return _apply_map(half, half)
    bit = np.array([POLYNOMIAL, *(1 << place for place in range(31))], np.uint32)
    for _ in range(3):
        bit = _apply_map(bit, bit)
    return bit


# The first offset of a segment, and the one after its last.
Span = tuple[int, int]

# The key in the file's metadata.
BLOCKS = b"mainstem.blocks"
# After the footer: its length, and "PAR1".
ENDING_BYTES = 8
# Enough to read most footers at once.
FOOTER_BYTES = 1 << 16
# Chunk size when the whole file is checked.
CHECK_BYTES = 8 << 20
# The number of checked files that a process remembers before it forgets all.
CHECKED_MAX = 65_536


class _Checked(NamedTuple):
    """A checked file: its identity at that time, and the blocks to check when they are read; none if the whole file was
    checked."""

    identity: tuple[int, int, int]
    crc32c: int
    blocks: BlockChecksums | None
    span: Span | None = None


_checked: WeakKeyDictionary[Files, dict[str, _Checked]] = WeakKeyDictionary()
_checked_guard = threading.Lock()


def checksum(files: Files, handle: int, size: int) -> int:
    crc = 0
    for position in range(0, size, CHECK_BYTES):
        crc = google_crc32c.extend(crc, files.pread(handle, min(CHECK_BYTES, size - position), position))
    return crc


def check_sealed(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Read every byte; raises `CorruptSegment` if the checksum does not match."""
    handle = files.open(path)
    try:
        found = files.size(handle)
        sound = found == size and checksum(files, handle, size) == crc32c
    finally:
        files.close(handle)
    if not sound:
        raise corrupt_segment(path, span)


def was_checked(files: Files, path: str, crc32c: int) -> bool:
    """Whether this process has checked the whole file, and it has not changed since."""
    known = _recall(files, path, crc32c)
    return known is not None and known.blocks is None


def check_once(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Check a whole file, unless this process has done so since it was last modified.

    Later bit rot is detected in the pages that are read, and fully by the next process.
    """
    if was_checked(files, path, crc32c):
        return
    identity = files.identity(path)
    check_sealed(files, path, size, crc32c, span)
    _remember(files, path, _Checked(identity, crc32c, None, span))


def check_frame_once(files: Files, path: str, size: int, crc32c: int, span: Span) -> None:
    """Check the footer of a file; `check_ranges` then checks the parts that are read."""
    if _recall(files, path, crc32c) is not None:
        return
    identity = files.identity(path)
    blocks = _frame(files, path, size, crc32c)
    if blocks is None:
        check_once(files, path, size, crc32c, span)
    else:
        _remember(files, path, _Checked(identity, crc32c, blocks, span))


def check_ranges(files: Files, path: str, ranges: Iterable[tuple[int, int]]) -> None:
    """Check ranges of a file whose footer was checked, unless the whole file was."""
    with _checked_guard:
        known = _checked.get(files, {}).get(path)
    if known is not None and known.blocks is not None and not known.blocks.sound(files, path, ranges):
        raise corrupt_segment(path, known.span)


def span_of(files: Files, path: str) -> Span | None:
    """The offsets of a checked file; None if it was not checked."""
    with _checked_guard:
        known = _checked.get(files, {}).get(path)
    return None if known is None else known.span


def corrupt_segment(path: str, span: Span | None, what: Literal["damaged", "missing"] = "damaged") -> CorruptSegment:
    """The error that names the file and its records."""
    records = "its records" if span is None else f"records {span[0]} to {span[1] - 1}"
    reason = "Its bytes are not the ones that were written" if what == "damaged" else "The file is not there"
    return CorruptSegment(
        f'sealed segment "{os.path.basename(path)}" is {what}',
        detail=f'{reason}, so {records} cannot be read. File: "{path}".',
        hint="Nothing was changed. Restore the file from a copy or from the archive, or skip "
        "these records with a later start.",
        path=path,
        first_offset=None if span is None else span[0],
        last_offset=None if span is None else span[1] - 1,
    )


def _recall(files: Files, path: str, crc32c: int) -> _Checked | None:
    identity = files.identity(path)
    with _checked_guard:
        known = _checked.setdefault(files, {}).get(path)
    return known if known is not None and known[:2] == (identity, crc32c) else None


def _remember(files: Files, path: str, found: _Checked) -> None:
    with _checked_guard:
        known = _checked.setdefault(files, {})
        if len(known) >= CHECKED_MAX:
            known.clear()  # most of these files were compacted or dropped long ago
        known[path] = found


def _frame(files: Files, path: str, size: int, crc32c: int) -> BlockChecksums | None:
    """The checksums of a file's blocks, if its footer is valid and has them."""
    handle = files.open(path)
    try:
        if files.size(handle) != size or size <= ENDING_BYTES:
            return None
        ending = files.pread(handle, min(size, FOOTER_BYTES), max(0, size - FOOTER_BYTES))
        rest = int.from_bytes(ending[-ENDING_BYTES:-4], "little") + ENDING_BYTES
        if rest > size:
            return None
        if rest > len(ending):
            ending = files.pread(handle, rest, size - rest)
    finally:
        files.close(handle)
    footer = ending[-rest:]
    try:
        # A Parquet file begins with the same four bytes as it ends.
        text = pq.read_metadata(pa.BufferReader(footer[-4:] + footer)).metadata
    except Exception:  # noqa: BLE001 - a damaged footer may be anything; the whole file tells
        return None
    found = None if text is None or BLOCKS not in text else BlockChecksums.from_text(text[BLOCKS], size - rest)
    return found if found is not None and found.with_rest(footer) == crc32c else None
