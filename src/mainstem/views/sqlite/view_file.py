"""The file of one version of a view: which tables it has, and the statements that read and write them.

    rows       the view's columns, by its key
    changes    position, change (insert | update | delete | none), "key.<column>", "old.<column>", "new.<column>"
    commits    end_position, committed_at, epoch, batch: when the changes up to a position were committed
    offsets    topic, partition, end: the end offsets applied
    progress   one row: flow, epoch, batch (the last one committed), applied_at, recording
    about      the facts of this file: format, view, version, key, schema

If the view keeps its history, also the two tables of `sqlite_history.py`; and a SQL view with the name of the view that shows
the rows with times as text. A batch is one transaction. Rows are stored by their key alone (WITHOUT ROWID: a third less
work than with one). A trigger of the writer's connection writes the changes, so there is none without its row.

Positions number the changes from 1 and are never reused: the last change, or a row `none` instead of it, always stays.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

import pyarrow as pa

from mainstem.errors import CorruptView, DiskFull, LockHeld, NewerFormat, Unavailable, ViewNotFound
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl
from mainstem.processes import process_name, stopped
from mainstem.views.sqlite.sqlite_columns import column_type, quoted, shown_column
from mainstem.views.view_facts import FORMAT

__all__ = ["Connections", "ViewFile", "connect", "translated"]

_PROGRESS = (
    "only_row INTEGER PRIMARY KEY CHECK (only_row = 1)",
    "flow TEXT",
    "epoch INTEGER",
    "batch INTEGER",
    "applied_at INTEGER",
    "recording INTEGER",
)
_TABLES = ("rows", "changes", "commits", "offsets", "progress", "about", "kept_since", "reached")


@dataclass(frozen=True)
class ViewFile:
    """Key and schema of one version, and the SQL that follows from them."""

    view: str
    version: int
    path: str
    key: tuple[str, ...]
    schema: pa.Schema

    def create(self, *, recording: int, position: int) -> None:
        """Create the file; an incomplete one that a crash has left is replaced."""
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(self.path + suffix):
                os.unlink(self.path + suffix)
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN")
            for statement in self._definitions():
                connection.execute(statement)
            about = {
                "format": str(FORMAT),
                "view": self.view,
                "version": str(self.version),
                "key": json.dumps(self.key),
                "schema": schema_to_ddl(self.schema),
            }
            connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            connection.execute("INSERT INTO progress VALUES (1, NULL, 0, -1, NULL, ?)", (recording,))
            connection.execute("INSERT INTO changes (position, change) VALUES (?, 'none')", (position,))
            connection.execute("COMMIT")
        finally:
            connection.close()
        # SQLite reads and writes it in place from here on; others may not read a view of ours.
        os.chmod(self.path, 0o600)

    def _definitions(self) -> list[str]:
        columns = ", ".join(f"{quoted(field.name)} {column_type(field.type)}".strip() for field in self.schema)
        by_name = {field.name: column_type(field.type) for field in self.schema}
        kept = [
            *(f"{quoted(f'key.{name}')} {by_name[name]}" for name in self.key),
            *(f"{quoted(f'{side}.{name}')} {by_name[name]}" for side in ("old", "new") for name in self.values),
        ]
        definitions = [
            f"CREATE TABLE rows ({columns}, PRIMARY KEY ({_listed(self.key)})) WITHOUT ROWID",
            f"CREATE TABLE changes (position INTEGER PRIMARY KEY, change TEXT NOT NULL, {', '.join(kept)})",
            "CREATE TABLE commits (end_position INTEGER PRIMARY KEY, committed_at INTEGER, epoch INTEGER, batch INTEGER)",
            'CREATE TABLE offsets (topic TEXT, partition INTEGER, "end" INTEGER, PRIMARY KEY (topic, partition))',
            f"CREATE TABLE progress ({', '.join(_PROGRESS)})",
            "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)",
        ]
        if self.view.casefold() not in _TABLES and not self.view.casefold().startswith("sqlite_"):
            shown = ", ".join(map(shown_column, self.schema))
            definitions.append(f"CREATE VIEW {quoted(self.view)} AS SELECT {shown} FROM rows")
        return definitions

    @classmethod
    def read(cls, connection: sqlite3.Connection, path: str) -> ViewFile:
        """The facts that the file records of itself."""
        about = dict(connection.execute("SELECT name, value FROM about"))
        if int(about["format"]) > FORMAT:
            raise NewerFormat(
                f'view "{about["view"]}" was written by a newer Mainstem',
                detail=f"{path} has format {about['format']}; this Mainstem reads formats up to {FORMAT}.",
                hint="Install the newer Mainstem.",
                found_version=int(about["format"]),
                known_version=FORMAT,
            )
        key = tuple(json.loads(about["key"]))
        return cls(about["view"], int(about["version"]), path, key, schema_from_ddl(about["schema"]))

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns that are not in the key."""
        return tuple(name for name in self.schema.names if name not in self.key)

    # Reading

    @cached_property
    def columns(self) -> str:
        """All columns, in order."""
        return _listed(self.schema.names)

    @cached_property
    def select_row(self) -> str:
        return f"SELECT {self.columns} FROM rows WHERE {self.key_is_given}"

    @cached_property
    def select_rows(self) -> str:
        return f"SELECT {self.columns} FROM rows ORDER BY {_listed(self.key)}"

    @cached_property
    def key_is_given(self) -> str:
        return " AND ".join(f"{quoted(name)} = ?" for name in self.key)

    def _side(self, side: str) -> str:
        """The columns of a change as the row was ("old") or became ("new")."""
        return ", ".join(quoted(f"key.{name}" if name in self.key else f"{side}.{name}") for name in self.schema.names)

    def select_changes(self, side: str) -> str:
        """The rows of changes as they were ("old") or became ("new"), in the order of the schema."""
        return (
            f"SELECT position, {self._side(side)} FROM changes WHERE position > ? AND position <= ? AND change IN ('update', ?) "
            "ORDER BY position"
        )

    @cached_property
    def select_row_before(self) -> str:
        """What the first change of a row behind a position was, and the row before it."""
        given = " AND ".join(f"{quoted(f'key.{name}')} = ?" for name in self.key)
        return (
            f"SELECT change, {self._side('old')} FROM changes WHERE {given} AND position > ? ORDER BY position LIMIT 1"
        )

    @cached_property
    def select_rows_before(self) -> str:
        """All rows as they were right after a position: of each that changed since, the one before its first change."""
        keys = ", ".join(f"{quoted(f'key.{name}')} AS key_{number}" for number, name in enumerate(self.key))
        grouped = ", ".join(quoted(f"key.{name}") for name in self.key)
        same = " AND ".join(f"rows.{quoted(name)} = undone.key_{number}" for number, name in enumerate(self.key))
        order = ", ".join(str(self.schema.names.index(name) + 1) for name in self.key)
        return (
            f"WITH undone AS MATERIALIZED (SELECT min(position) AS first, {keys} FROM changes "
            f"WHERE position > ? AND change <> 'none' GROUP BY {grouped}) "
            f"SELECT {', '.join(f'rows.{quoted(name)}' for name in self.schema.names)} FROM rows "
            f"LEFT JOIN undone ON {same} WHERE undone.first IS NULL "
            f"UNION ALL SELECT {self._side('old')} FROM undone JOIN changes ON changes.position = undone.first "
            f"WHERE changes.change <> 'insert' ORDER BY {order}"
        )

    # Writing

    @cached_property
    def upsert(self) -> str:
        """Insert or replace a row; an equal row is not touched."""
        places = ", ".join("?" * len(self.schema))
        insert = f"INSERT INTO rows ({self.columns}) VALUES ({places}) ON CONFLICT ({_listed(self.key)})"
        if not self.values:
            return f"{insert} DO NOTHING"
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in self.values)
        same = " AND ".join(f"rows.{quoted(name)} IS excluded.{quoted(name)}" for name in self.values)
        return f"{insert} DO UPDATE SET {changed} WHERE NOT ({same})"

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM rows WHERE {self.key_is_given}"

    @cached_property
    def triggers(self) -> dict[str, str]:
        """What a connection that records changes has, by name."""
        made = {}
        for change, row, sides in (("insert", "NEW", "n"), ("update", "NEW", "on"), ("delete", "OLD", "o")):
            columns = [quoted(f"key.{name}") for name in self.key]
            values = [f"{row}.{quoted(name)}" for name in self.key]
            for side, letter in (("old", "o"), ("new", "n")):
                if letter in sides:
                    columns += [quoted(f"{side}.{name}") for name in self.values]
                    values += [f"{side.upper()}.{quoted(name)}" for name in self.values]
            made[f"record_{change}"] = (
                f"CREATE TEMP TRIGGER record_{change} AFTER {change.upper()} ON main.rows BEGIN "
                f"INSERT INTO changes (change, {', '.join(columns)}) VALUES ('{change}', {', '.join(values)}); END"
            )
        return made


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


# Connections to the SQLite file of a view, and SQLite's errors in our own words: the only place that has both.


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
    """A connection to an existing file. Its commits are durable."""
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
    """Connections for reading, one for each file and thread. A forked process does not use those that it inherits."""

    def __init__(self) -> None:
        # By process, thread and path: which file it was, for one of the same name may have taken its place. Each thread
        # has keys of its own, so no lock is needed, and a fork in the middle leaves none behind.
        self._open: dict[tuple[int, int, str], tuple[int, sqlite3.Connection, ViewFile]] = {}

    def of(self, path: str, view: str) -> tuple[sqlite3.Connection, ViewFile]:
        """This thread's connection to a file, and the facts that the file records of itself."""
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
    """Raises SQLite's errors as our own; `holder` is the process that may hold the lock."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise DiskFull(
                f'no space left for view "{view}"',
                detail=f'SQLite says "{error}" of {path}. Nothing of the batch was written.',
                hint="Free space on that disk; the batch is written again when the flow continues.",
                path=path,
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise _held(path, view, holder) from error
        if code == sqlite3.SQLITE_CANTOPEN and not os.path.exists(path):
            raise _dropped(path, view) from error
        raise Unavailable(
            f'the file of view "{view}" cannot be used: {error}',
            detail=f"The file is {path}.",
            hint="Check that the disk is mounted, and that this user may read and write the file and its directory.",
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError):
            raise
        raise CorruptView(
            f'the file of view "{view}" cannot be read: {error}',
            detail=f"The file is {path}.",
            hint=f"Drop the view and run its flow: it is rebuilt from the log. (mainstem view drop {view})",
            path=path,
            view=view,
        ) from error


def _dropped(path: str, view: str) -> ViewNotFound:
    return ViewNotFound(
        f'view "{view}" has no file "{os.path.basename(path)}"',
        detail=f"{path} does not exist: the view, or this version of it, was dropped meanwhile.",
        hint="Retry; if the view was dropped, run the flow that writes it.",
        view=view,
    )


def _held(path: str, view: str, holder: int | None) -> LockHeld:
    pid = holder or 0
    named = ""
    if pid and pid != os.getpid():
        named = f" Most likely by process {pid} ({process_name(pid)}){', which is stopped' if stopped(pid) else ''}."
    return LockHeld(
        f'view "{view}" is locked by a transaction of another process',
        detail=f"{path} is locked for writing.{named}",
        hint="Resume that process (kill -CONT) or end it; then start again. Nothing is lost: what it had not "
        "committed is written again.",
        pid=pid,
        path=path,
    )
