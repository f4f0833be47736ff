"""Connections to the SQLite file of a view, and SQLite's errors in our own words: the only place that has both."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from mainstem.errors import CorruptView, DiskFull, LockHeld, Unavailable, ViewNotFound
from mainstem.log.processes import process_name, stopped
from mainstem.views.view_file import ViewFile

__all__ = ["Connections", "connect", "translated"]

# A transaction of another process takes as long as its batch; one that takes longer is most likely stopped.
LOCK_SECONDS_MAX = 30.0


class _Connection(sqlite3.Connection):
    """One that can be referred to weakly."""


_open_here: weakref.WeakSet[_Connection] = weakref.WeakSet()
_inherited: list[_Connection] = []


def _leave_to_parent() -> None:
    """SQLite forbids a forked process to use, and even to close, what its parent had open: keep it, untouched."""
    _inherited.extend(_open_here)
    _open_here.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def connect(path: str, *, lock_seconds: float | None = None) -> sqlite3.Connection:
    """A connection to a file that is there. What is committed through it is on disk."""
    # Not `mode=ro`: after a crash the first one to look must bring the file in order.
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode=rw",
        uri=True,
        timeout=LOCK_SECONDS_MAX if lock_seconds is None else lock_seconds,
        isolation_level=None,
        check_same_thread=False,
        factory=_Connection,
    )
    _open_here.add(connection)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


class Connections:
    """Connections for reading, one for each file and thread. Those that a forked process inherits it leaves alone."""

    def __init__(self) -> None:
        # By process, thread and path: which file it was, for one of the same name may have taken its place. Each thread
        # has keys of its own, so no lock is needed, and a fork in the middle leaves none behind.
        self._open: dict[tuple[int, int, str], tuple[int, sqlite3.Connection, ViewFile]] = {}

    def of(self, path: str, view: str) -> tuple[sqlite3.Connection, ViewFile]:
        """This thread's connection to a file, and what the file says it is."""
        key = (os.getpid(), threading.get_ident(), path)
        try:
            inode = os.stat(path).st_ino
        except FileNotFoundError as error:
            raise _dropped(path, view) from error
        # A thread that ended leaves its own behind, for the next one with that number: it is not in use by then.
        found = self._open.get(key)
        if found is not None and found[0] == inode:
            return found[1], found[2]
        connection = connect(path)
        file = ViewFile.read(connection, path)
        connection.execute("PRAGMA query_only = ON")
        self._open[key] = (inode, connection, file)
        if found is not None:
            found[1].close()
        return connection, file

    def close(self) -> None:
        """Close all that this process has open."""
        for key in [key for key in list(self._open) if key[0] == os.getpid()]:
            self._open.pop(key)[1].close()

    def __reduce__(self) -> tuple[type[Connections], tuple[()]]:
        # What is open stays in its process.
        return Connections, ()


@contextmanager
def translated(path: str, view: str, *, holder: int | None = None) -> Iterator[None]:
    """Turns what SQLite says inside into our own errors; `holder` is the process that may hold the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise DiskFull(
                f'no space left for view "{view}"',
                detail=f'SQLite says "{error}" of {path}. Nothing of the batch was written.',
                hint="Free space on that disk; the batch is written again when the flow goes on.",
                path=path,
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise _held(path, view, holder) from error
        if code == sqlite3.SQLITE_CANTOPEN and not os.path.exists(path):
            raise _dropped(path, view) from error
        raise Unavailable(
            f'the file of view "{view}" cannot be used: {error}',
            detail=f"The file is {path}.",
            hint="Check that the disk is there, and that this user may read and write the file and its directory.",
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError):
            raise
        raise CorruptView(
            f'the file of view "{view}" cannot be read: {error}',
            detail=f"The file is {path}.",
            hint=f"Drop the view and run its flow: it is made again from the log. (mainstem view drop {view})",
            path=path,
            view=view,
        ) from error


def _dropped(path: str, view: str) -> ViewNotFound:
    return ViewNotFound(
        f'view "{view}" has no file "{os.path.basename(path)}"',
        detail=f"{path} is not there: the view, or this version of it, was dropped meanwhile.",
        hint="Ask again; if it was dropped, run the flow that makes it.",
        view=view,
    )


def _held(path: str, view: str, holder: int | None) -> LockHeld:
    pid = holder or 0
    named = ""
    if pid and pid != os.getpid():
        named = f" Most likely by process {pid} ({process_name(pid)}){', which is stopped' if stopped(pid) else ''}."
    return LockHeld(
        f'view "{view}" is held by another process in the middle of a transaction',
        detail=f"{path} is locked for writing.{named}",
        hint="Let that process go on (kill -CONT) or end it; then start again. Nothing is lost: what it had not "
        "committed is written again.",
        pid=pid,
        path=path,
    )
