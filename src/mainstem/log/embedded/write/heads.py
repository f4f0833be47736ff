"""Heads: the published end of each partition of a topic, in one small file with a slot per partition.

    slot (128 bytes): magic "HEAD" | flags u32 | epoch u32 | zero u32 | offset u64 | segment u64 | position u64
                      appended at i64 | event time max i64 | observed up to i64 | declared watermark i64
                      transactions end u64 | last crc u32 | indexes u32 | indexed u64 | zero (28 bytes)
                      crc32c of the 124 bytes before u32

A slot is written after the fsync of its records, so no reader sees a record that a power cut can revert; writing it
also wakes followers, which watch the file. The file itself is never synced: after a crash it may be older than the
data, or unreadable, and is rebuilt from the segments. A slot is read without a lock; a partially written one fails its
checksum and is read again.

The tail of a partition has the same form, in a file of its own beside the segments, with two slots, and wakes no
reader. The first is how far the partition is *written*, changed under its write lock. The second is how far the last
fsync was to reach, written before it under the sync lock: one that lies ahead of `heads` was cut short, or failed.
After them come 16 random bytes that never change. They identify the file when it is opened again: a topic that was
deleted and created again has files with the same names, and perhaps the same inodes.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import google_crc32c

from mainstem.durable_files import Files, KeptFile, create_file
from mainstem.log.watermark import NO_TIME

SLOT = struct.Struct("<4sIIIQQQqqqqQIIQ28x")
SLOT_BYTES = SLOT.size + 4
CHECKSUM = struct.Struct("<I")
MAGIC = b"HEAD"

# Flags. An fsync failed: nothing may be acknowledged until a take-over.
FENCED = 1
# The topic was deleted, while other processes may have it open.
DELETED = 2
# A producer or a transaction has written here, so the partition has a state to carry over.
HAS_STATE = 4
# In a tail: a new segment is being created. If that was interrupted, the next writer lists the segments.
MENDING = 8

# The slots of a tail, and the id behind them. Tails of the first format have none.
WRITTEN, SYNCING = 0, 1
ID_POSITION, ID_BYTES = 2 * SLOT_BYTES, 16

# A reader may see a slot during a write, even of a writer that was descheduled; this often in a row, with pauses, it
# has another cause.
TRIES = 30
TRIES_WITHOUT_PAUSE = 20
PAUSE_SECONDS = 1e-3


class End(NamedTuple):
    """The end of a partition: of its published records (in `heads`) or of its written ones (in `tail`)."""

    flags: int
    epoch: int
    offset: int
    segment: int
    position: int
    appended_at: int
    event_time_max: int
    observed_up_to: int
    stated_watermark: int
    transactions_end: int  # the offset after the last block of a transaction, marker or data; 0 if there was none
    crc: int  # header checksum of the last block, to which the next one is chained
    indexes: int  # entries in the segment's index
    indexed: int  # position of the block that the last of them points to

    @property
    def fenced(self) -> bool:
        return bool(self.flags & FENCED)

    @property
    def place(self) -> tuple[int, int, int]:
        """Sorts ends by time: a position belongs to a segment of an epoch."""
        return self.epoch, self.segment, self.position


def new_end(offset: int, segment: int, position: int, crc: int, epoch: int) -> End:
    """The end of an empty partition."""
    return End(0, epoch, offset, segment, position, NO_TIME, NO_TIME, NO_TIME, NO_TIME, 0, crc, 0, 0)


def encode_end(end: End) -> bytes:
    packed = SLOT.pack(
        MAGIC, end.flags, end.epoch, 0, end.offset, end.segment, end.position, end.appended_at, end.event_time_max,
        end.observed_up_to, end.stated_watermark, end.transactions_end, end.crc, end.indexes, end.indexed,
    )  # fmt: skip
    return packed + CHECKSUM.pack(google_crc32c.value(packed))


def decode_end(data: bytes) -> End | None:
    """The decoded slot, or None if the bytes are invalid."""
    if len(data) != SLOT_BYTES or data[:4] != MAGIC:
        return None
    if google_crc32c.value(data[: SLOT.size]) != CHECKSUM.unpack_from(data, SLOT.size)[0]:
        return None
    _, flags, epoch, _, *rest = SLOT.unpack_from(data)
    return End(flags, epoch, *rest)


class Slots:
    """An open file of slots. Any number of readers; writers of one slot hold a lock.

    It may be closed, for good or to free the handle, while a reader uses it. Closing waits for writers.
    """

    def __init__(self, files: Files, path: str, file: KeptFile | None = None) -> None:
        self.path = path
        self._files = files
        self._file = KeptFile(files, path) if file is None else file
        # Called when the file is opened again: raises if it is another file.
        self.check: Callable[[], None] | None = None
        self._checked = self._file.times_closed
        # The bytes of each slot as last read or written, decoded: most reads find them unchanged.
        self._seen: dict[int, tuple[bytes, End]] = {}

    def read(self, slot: int) -> End | None:
        """The content of a slot; None if it is missing or damaged."""
        for number in range(TRIES):
            data = self._read(SLOT_BYTES, slot * SLOT_BYTES)
            end = self._decode(slot, data)
            if end is not None:
                return end
            if len(data) < SLOT_BYTES:
                return None
            if number >= TRIES_WITHOUT_PAUSE:
                time.sleep(PAUSE_SECONDS)
        return None

    def read_all(self, count: int) -> list[End | None]:
        data = self._read(SLOT_BYTES * count, 0)
        ends = [self._decode(slot, data[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]) for slot in range(count)]
        return [self.read(slot) if end is None else end for slot, end in enumerate(ends)]

    def _read(self, length: int, position: int) -> bytes:
        file = self._file
        # Without a pin, and so without a lock: every append reads slots six times.
        times, handle = file.times_closed, file.handle
        if handle >= 0 and times == self._checked:
            file.recent = True
            try:
                data = self._files.pread(handle, length, position)
            except OSError:
                if times == file.times_closed:
                    raise
            else:
                if times == file.times_closed:
                    return data
        with self.keep_open():
            return file.read(lambda handle: self._files.pread(handle, length, position))

    def _decode(self, slot: int, data: bytes) -> End | None:
        seen = self._seen.get(slot)
        if seen is not None and seen[0] == data:
            return seen[1]
        end = decode_end(data)
        if end is not None:
            self._seen[slot] = (data, end)
        return end

    def write(self, slot: int, end: End) -> None:
        data = encode_end(end)
        self._write(data, slot * SLOT_BYTES)
        self._seen[slot] = (data, end)

    def _write(self, data: bytes, position: int) -> None:
        with self._file.turns[0]:
            self._files.pwrite(self._open(), data, position)

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keeps the file open; it is the same file as before."""
        with self._file.pin():
            self._open()
            yield

    def _open(self) -> int:
        """The handle; a file that was closed to free it is opened again and checked. The caller holds a turn or a
        pin."""
        file = self._file
        if file.handle >= 0 and self._checked == file.times_closed:
            file.recent = True
            return file.handle
        try:
            handle = file.open_handle()
        except FileNotFoundError:
            if self.check is not None:
                self.check()
            raise
        times = file.times_closed
        if self._checked != times:
            if self.check is not None:
                self.check()
            self._checked = times
        return handle


class TailSlots(Slots):
    """The slots of a partition's tail, for holders of its write or sync lock, and for readers.

    The lock owns the file and closes it: opening and closing a file that has record locks a second time releases the
    locks.
    """

    def __init__(self, files: Files, lock: KeptFile) -> None:
        super().__init__(files, lock.path, lock)
        self.check = self._check_id
        self._id = self._read_id()

    def check_there(self) -> None:
        """Raises `FileNotFoundError` if the partition of this file was deleted."""
        self._file.check_path()
        with self.keep_open():
            pass

    def _write(self, data: bytes, position: int) -> None:
        # Stays open: the caller has a turn.
        self._files.pwrite(self._open(), data, position)

    def _check_id(self) -> None:
        if self._read_id() != self._id:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def _read_id(self) -> bytes:
        return self._file.read(lambda handle: self._files.pread(handle, ID_BYTES, ID_POSITION))


def encode_tail(end: End) -> bytes:
    """The tail of a new partition with this end."""
    return encode_end(end) * 2 + os.urandom(ID_BYTES)


def create_slots(files: Files, path: str, ends: list[End]) -> None:
    """Create a file of slots; synced when this returns."""
    create_file(files, path, b"".join(map(encode_end, ends)))
