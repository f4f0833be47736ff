"""BlockChecksums: a checksum for every 16 KiB of a file, so that who reads a part of it checks that part alone.

The list stands in the file's own footer, behind the bytes it is of. What makes it trustworthy is the checksum of the whole
file, kept elsewhere: put together, those of the blocks and that of the footer must give it. So the footer and the list are
checked by reading the footer, and a block is checked when it is read.

The CRC-32C of two pieces follows from those of each: the first, moved by the length of the second, plus the second, where
moving by a length is a linear map over bits (`_moved_by`).
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from functools import cache

import google_crc32c
import numpy as np
import numpy.typing as npt

from mainstem.log.embedded.files import Files

BLOCK_BYTES = 1 << 14
# Read in pieces of this size.
PIECE_BYTES = 8 << 20
# The polynomial of CRC-32C, its lowest bit first.
POLYNOMIAL = 0x82F63B78

UInt32Array = npt.NDArray[np.uint32]


class BlockChecksums:
    """The checksums of the first `length` bytes of a file, and which blocks of it were found sound."""

    def __init__(self, checksums: UInt32Array, length: int) -> None:
        self._checksums = checksums
        self._length = length
        self._sound = np.zeros(len(checksums), np.bool_)
        self._guard = threading.Lock()

    @classmethod
    def of(cls, files: Files, handle: int, length: int) -> BlockChecksums:
        """Those of a file as it is."""
        return cls(_read_checksums(files, handle, 0, length), length)

    @classmethod
    def from_text(cls, text: bytes, length: int) -> BlockChecksums | None:
        """The list as a footer has it; None if it is none for so many bytes."""
        try:
            found = np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)
        except ValueError:
            return None
        return cls(found, length) if len(found) == -(-length // BLOCK_BYTES) else None

    def to_text(self) -> bytes:
        return base64.b64encode(self._checksums.astype("<u4").tobytes())

    def with_rest(self, rest: bytes) -> int:
        """The checksum of the whole file, of which this is the rest."""
        whole = self._length // BLOCK_BYTES
        crc = _joined(self._checksums[:whole])
        for piece, length in [
            *((int(last), self._length - whole * BLOCK_BYTES) for last in self._checksums[whole:]),
            (google_crc32c.value(rest), len(rest)),
        ]:
            crc = int(_moved(np.array([crc], np.uint32), length)[0]) ^ piece
        return crc

    def sound(self, files: Files, path: str, ranges: Iterable[tuple[int, int]]) -> bool:
        """Whether the blocks in which these ranges of bytes lie are as they were written; each is read once."""
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


def _joined(checksums: UInt32Array) -> int:
    """The checksum of whole blocks one after another, two and two at a time."""
    if not len(checksums):
        return 0
    # Nothing in front changes nothing.
    missing = (1 << (len(checksums) - 1).bit_length()) - len(checksums)
    found = np.concatenate([np.zeros(missing, np.uint32), checksums])
    length = BLOCK_BYTES
    while len(found) > 1:
        found = _moved(found[::2], length) ^ found[1::2]
        length *= 2
    return int(found[0])


def _moved(checksums: UInt32Array, length: int) -> UInt32Array:
    """The checksums as if so many more bytes had come, each of them zero."""
    power = 0
    while length:
        if length & 1:
            checksums = _mapped(_moved_by(power), checksums)
        length >>= 1
        power += 1
    return checksums


def _mapped(columns: UInt32Array, vectors: UInt32Array) -> UInt32Array:
    """A linear map over bits, given by what it makes of each bit."""
    found = np.zeros_like(vectors)
    for bit in range(32):
        found ^= np.where((vectors >> np.uint32(bit)) & np.uint32(1), columns[bit], np.uint32(0))
    return found


@cache
def _moved_by(power: int) -> UInt32Array:
    """The map that moves a checksum by 2 to the `power` bytes."""
    if power:
        half = _moved_by(power - 1)
        return _mapped(half, half)
    bit = np.array([POLYNOMIAL, *(1 << place for place in range(31))], np.uint32)
    for _ in range(3):
        bit = _mapped(bit, bit)
    return bit
