"""Files that know what is on disk: every publication is held against the fsyncs that all processes have done so far.

    <ledger>: a record for each fsync that came back: path (128 bytes) | bytes of the file that it covered u64

A block may be shown to others only when an fsync that began after it was written has come back. The file's size is
taken before the call, so what another process adds meanwhile is not taken for covered.
"""

from __future__ import annotations

import os
import struct
import threading

from mainstem.durable_files import RealFiles
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.embedded.write.heads import SLOT_BYTES, decode_end

RECORD = struct.Struct("<128sQ")


class SyncedFiles(RealFiles):
    """The operating system's files; `too_early` lists what was published before it was on disk."""

    # One in each process: what a parent has open is not known to its child's.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, home: str, ledger: str) -> None:
        self.too_early: list[str] = []
        self.publications = 0
        self.syncs = 0
        self._home = home
        self._paths: dict[int, str] = {}
        self._covered: dict[str, int] = {}
        self._ledger = os.open(ledger, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0
        self._guard = threading.Lock()

    def open(self, path: str) -> int:
        handle = super().open(path)
        self._paths[handle] = path
        return handle

    def create(self, path: str) -> int:
        handle = super().create(path)
        self._paths[handle] = path
        return handle

    def sync(self, handle: int) -> None:
        path, size = self._paths[handle], self.size(handle)
        super().sync(handle)
        if path.endswith(".blocks"):
            self.syncs += 1
            # One write, at the end of the file whoever else writes: records of several processes do not mix.
            os.write(self._ledger, RECORD.pack(os.path.relpath(path, self._home).encode(), size))

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        path = self._paths[handle]
        if path.endswith("/heads") and len(data) == SLOT_BYTES:
            self._check(path, data, position // SLOT_BYTES)
        super().pwrite(handle, data, position)

    def _check(self, heads: str, data: bytes, partition: int) -> None:
        end = decode_end(bytes(data))
        assert end is not None
        folder = f"{os.path.dirname(os.path.relpath(heads, self._home))}/{partition}"
        segment = SegmentName(end.segment, end.epoch).path(folder)
        self.publications += 1
        if self._covers(segment) < end.position:
            self.too_early.append(f"{segment}: published {end.position}, on disk {self._covers(segment)}")

    def _covers(self, path: str) -> int:
        with self._guard:
            while len(data := os.pread(self._ledger, RECORD.size, self._read)) == RECORD.size:
                name, size = RECORD.unpack(data)
                shown = name.rstrip(b"\0").decode()
                self._covered[shown] = max(size, self._covered.get(shown, 0))
                self._read += RECORD.size
            return self._covered.get(path, 0)
