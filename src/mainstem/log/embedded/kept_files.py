"""Which files stay open between uses, so that a process with any number of partitions has a bounded number of handles.

Whoever keeps handles for the next use (a partition the segment it appends to, its lock the tail, a topic its `heads`, a
reader its segments) is a `Keeper` and says how many. When all of them together keep more than half of what the process may
have open (`ulimit -n`), those that were not used lately let go of theirs, and open them again when they are used next.

Nobody is asked to let go of a handle in use: a keeper takes the locks that guard its handle, without waiting, and keeps it
if it does not get them, or if somebody has pinned it. The bound gives way to this: where more is in use at once, more is open,
up to the limit of the process. Whoever has opened a file uses it once before it can be closed again, so every use ends. So a lock on a file is never lost, and nothing is written to a handle that means another file by
now. Bytes that this process has written and not synced keep their handle: an error of the disk is told to handles that were
open when it happened.

A file that was let go may have been deleted since, and another one made at its path: it is known by its inode, and what
reads it checks that its content is the one it knows (see `heads`). Thread-safe.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from mainstem.log.embedded.file_errors import closed

if TYPE_CHECKING:
    from mainstem.log.embedded.files import Files

T = TypeVar("T")

__all__ = ["KeptFile", "KeptFiles", "Keeper", "handles_max"]

# More than this is of no use: it is faster than any disk to open a file again.
HANDLES_MAX = 10_000

# So many of those that are kept are let go at once, so that not every opening has to look for one.
SHARE_LET_GO = 8


def handles_max() -> int:
    """How many handles this process may keep: half of its limit. The rest is for its program, and for files in passing."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HANDLES_MAX if limit == resource.RLIM_INFINITY else min(limit // 2, HANDLES_MAX)


class Keeper(Protocol):
    """Who keeps handles for the next use."""

    # Set at each use, cleared when it was spared once.
    recent: bool

    def let_go(self) -> int:
        """Close what is not in use, without waiting for anybody; how many handles."""
        ...


_registries: weakref.WeakSet[KeptFiles] = weakref.WeakSet()
_files: weakref.WeakSet[KeptFile] = weakref.WeakSet()


class KeptFiles:
    """The handles that a process keeps. Thread-safe."""

    def __init__(self, handles_max: Callable[[], int]) -> None:
        self._handles_max = handles_max
        # In the order in which they were opened.
        self._keepers: weakref.WeakKeyDictionary[Keeper, int] = weakref.WeakKeyDictionary()
        self.renew_in_child()
        _registries.add(self)

    def renew_in_child(self) -> None:
        self._guard = threading.Lock()

    @property
    def handles(self) -> int:
        """How many are kept now."""
        with self._guard:
            return sum(self._keepers.values())

    def keeps(self, keeper: Keeper, handles: int) -> None:
        """Note that somebody keeps so many handles from now on; if that is too many in all, others let go of theirs."""
        with self._guard:
            self._keepers.pop(keeper, None)
            if not handles:
                return
            keeper.recent = True
            self._keepers[keeper] = handles
            most = self._handles_max()
            excess = sum(self._keepers.values()) - most
        if excess > 0:
            self._let_go(excess + most // SHARE_LET_GO, keeper)

    def let_go_of_all(self) -> bool:
        """Let go of everything that is not in use, because the process has no handle left; whether there was any."""
        return self._let_go(self.handles) > 0

    def _let_go(self, wanted: int, asking: Keeper | None = None) -> int:
        freed = 0
        for spare_recent in (True, False):
            with self._guard:
                keepers = list(self._keepers)
            for keeper in keepers:
                if freed >= wanted:
                    return freed
                if keeper is asking:
                    continue
                if spare_recent and keeper.recent:
                    keeper.recent = False
                    continue
                # A close that fails has closed the handle, and what had to be synced was.
                with suppress(OSError):
                    freed += keeper.let_go()
        return freed


class KeptFile:
    """A file that is opened again when it was let go. It is held open by whoever holds one of its `turns`, or has pinned it.

    Who does neither may use `handle` to read: what was read counts only if the file was not let go meanwhile, since a handle
    is a number and may have meant another file. If it was, the next try has to pin it: else two files that are opened for
    each other could be let go in turn without end.
    """

    def __init__(self, files: Files, path: str, *, turns: int = 1) -> None:
        self.path = path
        self.closed = False
        self.times_let_go = 0
        self.recent = True
        self.inode = files.identity(path)[0]
        self.handle = files.open(path)
        self._files = files
        self._count = turns
        self.renew_in_child()
        _files.add(self)
        files.kept.keeps(self, 1)

    def renew_in_child(self) -> None:
        """A thread that had a turn, or had pinned it, does not exist in a forked child."""
        self.turns = tuple(threading.Lock() for _ in range(self._count))
        # Guards the handle while it is opened and closed, and the number of those who have pinned it.
        self._opening = threading.Lock()
        self._pins = 0

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Inside, once it is opened, it is not let go. It may be closed for good."""
        with self._opening:
            self._pins += 1
        try:
            yield
        finally:
            with self._opening:
                self._pins -= 1

    def opened(self) -> int:
        """The handle; opened again if it was let go. Raises `FileNotFoundError` if the file is not there any more."""
        self.recent = True
        handle = self.handle
        return handle if handle >= 0 else self._open_again()

    def _open_again(self) -> int:
        with self._opening:
            if self.closed:
                raise closed(f'"{self.path}"')
            if self.handle < 0:
                self.check_path()
                handle = self._files.open(self.path)
                # If it was replaced just now the handle stays open: to close it would end a lock that another user of the
                # new file may hold.
                self.check_path()
                self.handle = handle
                self._files.kept.keeps(self, 1)
            return self.handle

    def read(self, use: Callable[[int], T]) -> T:
        """What `use` gives for the handle, without a turn."""
        with self.pinned():
            try:
                found = use(self.opened())
            except OSError:
                if not self.closed:
                    raise
            else:
                if not self.closed:
                    return found
        raise closed(f'"{self.path}"')

    def check_path(self) -> None:
        """Raises `FileNotFoundError` unless this file is at its path."""
        if self._files.identity(self.path)[0] != self.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def let_go(self) -> int:
        with ExitStack() as taken:
            for turn in (*self.turns, self._opening):
                if not turn.acquire(blocking=False):
                    return 0
                taken.callback(turn.release)
            return 0 if self._pins else self._close()

    def close(self) -> None:
        """For good. Who holds a turn is waited for by the caller."""
        with self._opening:
            self.closed = True
            self._close()

    def _close(self) -> int:
        # In this order: who reads without a turn sees that it was let go before the handle can mean another file.
        self.times_let_go += 1
        handle, self.handle = self.handle, -1
        if handle < 0:
            return 0
        self._files.kept.keeps(self, 0)
        self._files.close(handle)
        return 1


def _renew_in_child() -> None:
    for registry in list(_registries):
        registry.renew_in_child()
    for file in list(_files):
        file.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)
