"""Waits for writes to files by any process: a follower sees an append within a millisecond.

On Linux the kernel notifies (inotify); elsewhere files are polled every few milliseconds. The end of processes can be
waited for at the same time.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from collections.abc import Iterable

from mainstem.durable_files import RealFiles
from mainstem.processes import DeathWatch, Identity

IN_MODIFY = 0x2
IN_DELETE_SELF = 0x400

# The polling interval without inotify, or where it reports nothing (a network file system).
POLL_SECONDS = 0.005


def _libc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        return library if hasattr(library, "inotify_init1") else None
    except OSError:
        return None


LIBC = _libc()


class Watch:
    """Watches files. A write after its creation ends the next `wait`. One waiting thread at a time."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)
        self._closed = threading.Event()
        self._seen = self._look()
        self._handle = self._bell_out = self._bell_in = -1
        self._bell_out, self._bell_in = RealFiles().with_room(lambda: os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
        if LIBC is not None:
            self._handle = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            for path in self._paths:
                if (
                    self._handle >= 0
                    and LIBC.inotify_add_watch(self._handle, os.fsencode(path), IN_MODIFY | IN_DELETE_SELF) < 0
                ):
                    os.close(self._handle)
                    self._handle = -1

    def wait(self, seconds: float, processes: Iterable[Identity] = ()) -> bool:
        """True as soon as a file was written, or one of the processes ended; False after the timeout."""
        if self._closed.is_set():
            return False
        deaths = DeathWatch(processes)
        try:
            if deaths.gone:
                return True
            if self._handle < 0:
                return self._wait_by_looking(seconds)
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.register(self._bell_out, select.POLLIN)
            deaths.register(poll)
            ready = poll.poll(max(0, seconds) * 1000)
            for handle, _ in ready:
                if handle == self._handle:
                    self._drain()
            return bool(ready)
        finally:
            deaths.close()

    def _drain(self) -> None:
        try:
            while len(os.read(self._handle, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def _look(self) -> list[object]:
        looked: list[object] = []
        for path in self._paths:
            try:
                with open(path, "rb") as file:
                    looked.append(file.read())
            except OSError:
                looked.append(None)
        return looked

    def _wait_by_looking(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            now = self._look()
            if now != self._seen:
                self._seen = now
                return True
            left = until - time.monotonic()
            if left <= 0 or self._closed.wait(min(POLL_SECONDS, left)):
                return False

    def ring(self) -> None:
        """End the wait of another thread."""
        self._closed.set()
        os.write(self._bell_in, b"!")

    def close(self) -> None:
        self._closed.set()
        for handle in (self._handle, self._bell_out, self._bell_in):
            if handle >= 0:
                os.close(handle)
        self._handle = self._bell_out = self._bell_in = -1

    def __del__(self) -> None:
        # Members and queues may be dropped without a close; a user may have no more than 128 of these open.
        self.close()
