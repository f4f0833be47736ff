"""When each member of a group last gave a sign of life: one small file each, never synced.

boot clock (microseconds) i64 | boot id (36 bytes)
"""

from __future__ import annotations

import struct

from mainstem.clock import Clock
from mainstem.log.embedded.files import Files, read_file, remove_if_there
from mainstem.log.processes import boot_id

BEAT = struct.Struct("<q36s")


class BeatFiles:
    """The beats of one group. Thread-safe."""

    def __init__(self, files: Files, folder: str, clock: Clock) -> None:
        self._files = files
        self._folder = folder
        self._clock = clock
        files.make_directory(folder)

    def beat(self, member: str) -> None:
        path = f"{self._folder}/{member}"
        handle = self._files.open(path) if self._files.exists(path) else self._files.create(path)
        try:
            self._files.pwrite(handle, BEAT.pack(self._clock.boot(), boot_id().encode()), 0)
        finally:
            self._files.close(handle)

    def age(self, member: str) -> int | None:
        try:
            data = read_file(self._files, f"{self._folder}/{member}")
        except FileNotFoundError:
            return None
        if len(data) < BEAT.size:
            return None
        at, boot = BEAT.unpack_from(data)
        # Of another boot: that member is gone, whatever the clock says now.
        return self._clock.boot() - at if boot.rstrip(b"\0") == boot_id().encode() else 1 << 62

    def forget(self, member: str) -> None:
        remove_if_there(self._files, f"{self._folder}/{member}")
