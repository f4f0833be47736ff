"""FolderLock: one process and one thread at a time may change what a folder holds.

A POSIX record lock on a file in it: it ends with its holder, killed or not, and does not live on in a forked child. Since
such a lock does not hold between the threads of a process, and ends when any handle of the file is closed, the threads
take turns by an ordinary lock first, and only the one whose turn it is opens the file.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from mainstem.errors import LockHeld
from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log.processes import process_name, stopped

__all__ = ["folder_lock"]

# To move the files of a batch and to sync them takes seconds at most; a holder that is stopped is named at once.
WAIT_SECONDS_MAX = 60.0
SUSPECT_AFTER_SECONDS = 0.5

_turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
_turns_guard = threading.Lock()


@contextmanager
def folder_lock(path: str, *, seconds_max: float = WAIT_SECONDS_MAX) -> Iterator[None]:
    """Inside, nobody else is inside. `path` is the file that is locked; its folder is there."""
    with _turns_guard:
        turn = _turns[os.path.realpath(path)]
    with turn:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait(handle, path, seconds_max)
            yield
        finally:
            # The lock ends with the handle.
            os.close(handle)


def _wait(handle: int, path: str, seconds_max: float) -> None:
    started = time.monotonic()
    pause = threading.Event()
    while not REAL_FILES.try_lock(handle, 0):
        waited = time.monotonic() - started
        pid = REAL_FILES.lock_holder(handle, 0)
        halted = pid is not None and waited > SUSPECT_AFTER_SECONDS and stopped(pid)
        if pid is not None and (halted or waited > seconds_max):
            state = "stopped" if halted else "running"
            raise LockHeld(
                f'"{os.path.dirname(path)}" is held by a {state} process',
                detail=f"Process {pid} ({process_name(pid)}) writes a batch into it, for {waited:.1f} seconds at least.",
                hint=f"Let it go on (kill -CONT {pid}), or end it (kill -9 {pid}): what it has not committed is removed.",
                pid=pid,
                path=path,
            )
        pause.wait(0.02)
