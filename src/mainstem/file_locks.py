"""The locks of a partition, and of a folder: POSIX record locks, which end with a killed process.

A `flock` outlives its killed holder in a forked child; a record lock belongs to one process and ends with it. But it
also ends when the process closes *any* handle of the file, and does not exclude threads of the same process: so all
users in a process share one handle, kept here, and threads first take an ordinary lock, their turn. The handle is
closed only while no thread has a turn (see `durable_files`).

Several locks are taken in this order: upkeep, write, sync.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mainstem.durable_files import Files, KeptFile
from mainstem.errors import LockHeld
from mainstem.processes import end_process, identity_of, process_name, stopped

# The locked bytes of a partition's tail file: to write blocks, to sync and publish, to seal and compact.
WRITE, SYNC, UPKEEP = 0, 1, 2

# A running holder releases a lock within microseconds; after this long its state is checked.
SUSPECT_AFTER_SECONDS = 0.5
WAIT_SECONDS_MAX = 30.0

# How often one lock is taken over in a row: the next holder may be stopped too.
TAKE_OVERS_MAX = 10

Key = tuple[Files, str, int]

_shared: dict[Key, PartitionLock] = {}
_shared_guard = threading.Lock()


class PartitionLock(KeptFile):
    """The locks of one partition, shared by all threads of the process. Thread-safe."""

    def __init__(self, files: Files, path: str, key: Key) -> None:
        super().__init__(files, path, turns=3)
        self.key = key
        self.users = 1

    def hold(self, byte: int) -> AbstractContextManager[None]:
        """Holds this lock against other threads and processes."""
        return _Held(self, byte, self._wait)

    def hold_patiently(self, byte: int) -> AbstractContextManager[None]:
        """Like `hold`, for locks held for long: waits for a running holder without a limit."""
        return _Held(self, byte, self._wait_for_work)

    def take_over(self, byte: int, ended: list[str]) -> AbstractContextManager[None]:
        """Like `hold`; but a stopped holder is killed, if it is still the same process.

        Killed processes are added to `ended`.
        """
        return _Held(self, byte, lambda byte: self._take_over(byte, ended))

    def acquire(self, byte: int, wait: Callable[[int], None]) -> threading.Lock:
        """Take the lock; returns the thread's turn, which `release` needs."""
        turn = self.turns[byte]
        turn.acquire()
        try:
            handle = self.handle
            if handle < 0:
                handle = self.open_handle()
            self.recent = True
            if not self._files.try_lock(handle, byte):
                wait(byte)
        except BaseException:
            turn.release()
            raise
        return turn

    def release(self, byte: int, turn: threading.Lock) -> None:
        try:
            if self.handle < 0:
                return  # closed, which released the lock
            try:
                self._files.unlock(self.handle, byte)
            except OSError:
                # Retried: a lock that stays would block all other processes until this one ends.
                self._files.unlock(self.handle, byte)
        finally:
            turn.release()

    @contextmanager
    def exclude_threads(self) -> Iterator[None]:
        """Keeps other threads of this process from writing and syncing."""
        with self.turns[WRITE], self.turns[SYNC]:
            yield

    def _wait(self, byte: int) -> None:
        started = time.monotonic()
        pause = 20e-6
        while not self._files.try_lock(self.handle, byte):
            waited = time.monotonic() - started
            if waited > SUSPECT_AFTER_SECONDS:
                self._refuse_if_stuck(byte, waited)
            # Not F_SETLKW: it could not be cancelled when the holder turns out to be stopped.
            time.sleep(pause)
            pause = min(pause * 1.5, 1e-3)

    def _wait_for_work(self, byte: int) -> None:
        while True:
            try:
                self._wait(byte)
            except LockHeld as held:
                if stopped(held.pid):
                    raise
            else:
                return

    def _refuse_if_stuck(self, byte: int, waited: float) -> None:
        pid = self._files.lock_holder(self.handle, byte)
        if pid is None:
            return
        if stopped(pid):
            state = "stopped"
        elif waited > WAIT_SECONDS_MAX:
            state = "running"
        else:
            return
        raise LockHeld(
            f'the lock of "{os.path.dirname(self.path)}" is held by a {state} process',
            detail=f"Process {pid} ({process_name(pid)}) has held it for at least {waited:.1f} seconds.",
            hint="Resume it (kill -CONT), or end it and fence its unfinished writes: --take-over, "
            "or stem.take_over() in Python.",
            pid=pid,
            path=self.path,
        )

    def _take_over(self, byte: int, ended: list[str]) -> None:
        for _ in range(TAKE_OVERS_MAX):
            try:
                self._wait(byte)
            except LockHeld as held:
                identity, name = identity_of(held.pid), process_name(held.pid)
                # Asked again after reading its start time: so the process with this id is the one that holds the lock.
                if identity is not None and self.holder(byte) == held.pid:
                    if not end_process(identity):
                        raise
                    ended.append(f"{held.pid} ({name})")
            else:
                return
        self._wait(byte)

    def holder(self, byte: int) -> int | None:
        """The id of another process that holds a lock; None if none does."""
        return self.read(lambda handle: self._files.lock_holder(handle, byte))


class _Held:
    """A lock while it is held. Not a generator, which would cost as much as the lock: every append takes two."""

    __slots__ = ("_byte", "_lock", "_turn", "_wait")

    def __init__(self, lock: PartitionLock, byte: int, wait: Callable[[int], None]) -> None:
        self._lock = lock
        self._byte = byte
        self._wait = wait

    def __enter__(self) -> None:
        self._turn = self._lock.acquire(self._byte, self._wait)

    def __exit__(self, *_: object) -> None:
        self._lock.release(self._byte, self._turn)


def share_lock(files: Files, path: str) -> PartitionLock:
    """The lock of the partition whose tail file is at `path`; released with `release_lock`."""
    # By inode too: a recreated topic has other files under the same path.
    key = (files, os.path.realpath(path), files.identity(path)[0])
    with _shared_guard:
        lock = _shared.get(key)
        if lock is None:
            lock = _shared[key] = PartitionLock(files, path, key)
        else:
            lock.users += 1
        return lock


def release_lock(lock: PartitionLock) -> None:
    """Close the handle when its last user in this process releases it."""
    with _shared_guard:
        lock.users -= 1
        if lock.users:
            return
    # In this order: a holder of a lock may share another one.
    with lock.exclude_threads(), _shared_guard:
        # Another user may have come meanwhile.
        if lock.users == 0 and not lock.closed:
            _shared.pop(lock.key, None)
            lock.close()


# The lock in a folder's file keeps other processes out, but not the threads of this one.
_folders: dict[str, threading.Lock] = {}


@contextmanager
def lock_folder(folder: str, name: str = ".lock") -> Iterator[None]:
    """Inside, no other thread or process that locks this folder changes its files. The folder is created if it is missing.

    >>> import tempfile
    >>> with lock_folder(tempfile.mkdtemp()):
    ...     pass
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with _folders.setdefault(os.path.realpath(folder), threading.Lock()):
        handle = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _renew_in_child() -> None:
    # Parent and child share the handles: closing a second one of the same file would release its locks.
    global _shared_guard, _folders
    _shared_guard, _folders = threading.Lock(), {}


os.register_at_fork(after_in_child=_renew_in_child)
