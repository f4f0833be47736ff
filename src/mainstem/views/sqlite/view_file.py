"""The file of one version of a view: which tables it has, and the statements that read and write them.

    rows       the view's columns, by its key
    changes    position, change, "key.<column>", "old.<column>", "new.<column>"
    ...        the other tables: see sql_tables.py

and a SQL view with the name of the view that shows the rows with times as text. A batch is one transaction. Rows are stored
by their key alone (WITHOUT ROWID: a third less work than with one). A trigger of the writer's connection writes the
changes, so there is none without its row.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from mainstem.errors import CorruptView, DiskFull, LockHeld, Unavailable, ViewNotFound
from mainstem.log.rows.schema_ddl import schema_from_ddl
from mainstem.names import quote_name
from mainstem.processes import process_name, stopped
from mainstem.views.sql.sql_tables import Row, SqlConnection, SqlTables, list_columns
from mainstem.views.sqlite.sqlite_columns import column_type, shown_column, stored_values
from mainstem.views.view_facts import FORMAT, newer_format
from mainstem.views.view_key import stored_key

__all__ = ["Connections", "SqliteConnection", "ViewFile", "connect", "transaction", "translate_errors"]

_TABLES = ("rows", "changes", "commits", "offsets", "progress", "about", "kept_since", "reached")


@dataclass(frozen=True)
class ViewFile(SqlTables):
    """Key and schema of one version, and the SQL that follows from them."""

    path: str
    # The name of the file in the connection: `other` if it is attached.
    database: str = "main"

    text = "TEXT"
    integer = bigint = "INTEGER"
    is_same = "IS"
    # A write transaction locks the whole file.
    for_update = ""
    by_key = " WITHOUT ROWID"
    keeps_trimmed = False

    def table(self, name: str) -> str:
        return f"{self.database}.{name}"

    def column_type(self, data_type: pa.DataType) -> str:
        return column_type(data_type)

    def find_table(self, name: str) -> str:
        return f"SELECT 1 FROM {self.table('sqlite_master')} WHERE name = '{name}'"

    def bytes(self, connection: SqlConnection) -> int:
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += os.path.getsize(self.path + suffix)
        return total

    def stored_key(self, key: Any) -> list[Any]:
        return stored_key(key, self.key, self.schema, view=self.view)

    def bound_key(self, columns: Sequence[pa.Array]) -> list[Any]:
        return [stored_values(column)[0] for column in columns]

    def create_file(self, *, recording: int) -> None:
        """Create the file; an incomplete one that a crash has left is replaced."""
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(self.path + suffix):
                os.unlink(self.path + suffix)
        connection = sqlite3.connect(self.path, isolation_level=None, factory=SqliteConnection)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with transaction(connection, "BEGIN"):
                self.create(connection, recording=recording)
        finally:
            connection.close()
        # Other users may not read a view.
        os.chmod(self.path, 0o600)

    def definitions(self) -> list[str]:
        definitions = super().definitions()
        if self.view.casefold() not in _TABLES and not self.view.casefold().startswith("sqlite_"):
            shown = ", ".join(map(shown_column, self.schema))
            definitions.append(f"CREATE VIEW {quote_name(self.view)} AS SELECT {shown} FROM rows")
        return definitions

    @classmethod
    def read(cls, connection: sqlite3.Connection, path: str) -> ViewFile:
        """The facts that the file records of itself."""
        about = dict(connection.execute("SELECT name, value FROM about"))
        if (found := int(about["format"])) > FORMAT:
            raise newer_format(about["view"], path, found, FORMAT)
        key = tuple(json.loads(about["key"]))
        return cls(about["view"], int(about["version"]), key, schema_from_ddl(about["schema"]), path)

    # Changes

    @property
    def change_definitions(self) -> list[str]:
        return [
            f"{quote_name(f'{side}.{name}')} {column_type(self.schema.field(name).type)}"
            for side, names in (("key", self.key), ("old", self.values), ("new", self.values))
            for name in names
        ]

    @property
    def index_changes(self) -> str:
        return f"CREATE INDEX {self.table('changes_by_key')} ON changes ({', '.join(self.changed_key(''))}, position)"

    def changed_key(self, alias: str) -> list[str]:
        return [alias + quote_name(f"key.{name}") for name in self.key]

    def changed_row(self, side: str) -> dict[str, str]:
        return {
            name: f"c.{quote_name(f'key.{name}' if name in self.key else f'{side}.{name}')}"
            for name in self.schema.names
        }

    def change_columns(self, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> dict[str, str]:
        return {
            quote_name(f"{side}.{name}"): row[name]
            for side, row, names in (
                ("key", new or old, self.key),
                ("old", old, self.values),
                ("new", new, self.values),
            )
            for name in names
            if row and name in row
        }

    # Writing

    @cached_property
    def upsert(self) -> str:
        """Insert or replace a row; an equal row is not touched."""
        places = ", ".join("?" * len(self.schema))
        insert = f"INSERT INTO rows ({list_columns(self.schema.names)}) VALUES ({places}) ON CONFLICT ({list_columns(self.key)})"
        if not self.values:
            return f"{insert} DO NOTHING"
        changed = ", ".join(f"{quote_name(name)} = excluded.{quote_name(name)}" for name in self.values)
        same = " AND ".join(f"rows.{quote_name(name)} IS excluded.{quote_name(name)}" for name in self.values)
        return f"{insert} DO UPDATE SET {changed} WHERE NOT ({same})"

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM rows WHERE {' AND '.join(f'{quote_name(name)} = ?' for name in self.key)}"

    @cached_property
    def triggers(self) -> dict[str, str]:
        """The triggers of a connection that records changes, by name."""
        was, became = ({name: f"{row}.{quote_name(name)}" for name in self.schema.names} for row in ("OLD", "NEW"))
        made = {}
        for change, old, new in (("insert", None, became), ("update", was, became), ("delete", was, None)):
            columns = self.change_columns(old, new)
            made[f"record_{change}"] = (
                f"CREATE TEMP TRIGGER record_{change} AFTER {change.upper()} ON main.rows BEGIN "
                f"INSERT INTO changes (change, {', '.join(columns)}) VALUES ('{change}', {', '.join(columns.values())}); END"
            )
        return made


# Connections to the SQLite file of a view, and the translation of SQLite's errors.


# A transaction takes as long as its batch; one that takes longer is most likely of a paused process.
LOCK_SECONDS_MAX = 30.0


# Large enough to make the cost per batch small, small enough to read a view of any size in little memory.
BATCH_ROWS = 65_536


class SqliteConnection(sqlite3.Connection):
    """A connection that runs the statements of every SQL database: SQLite treats $1 as a named parameter."""

    def query(self, sql: str, *values: Any) -> list[Row]:
        return self.execute(sql, _name_values(values)).fetchall()

    def stream(self, sql: str, *values: Any) -> Iterator[list[Row]]:
        cursor = self.execute(sql, _name_values(values))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield rows

    def write(self, sql: str, *values: Any) -> int:
        return self.execute(sql, _name_values(values)).rowcount

    def write_many(self, sql: str, rows: Iterable[Row]) -> None:
        self.executemany(sql, map(_name_values, rows))


def _name_values(values: Iterable[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, start=1)}


_open_here: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()
_inherited: list[SqliteConnection] = []


def _leave_to_parent() -> None:
    """SQLite forbids a forked process to use or close its parent's connections: keep references to them."""
    _inherited.extend(_open_here)
    _open_here.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def connect(path: str) -> SqliteConnection:
    """A connection to an existing file. Its commits are durable."""
    # Not `mode=ro`: after a crash the first connection must recover the file.
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode=rw",
        uri=True,
        timeout=LOCK_SECONDS_MAX,
        isolation_level=None,
        check_same_thread=False,
        factory=SqliteConnection,
    )
    _open_here.add(connection)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def transaction(connection: SqliteConnection, begin: str) -> Iterator[None]:
    """A transaction that is committed at the end, and rolled back if anything is raised."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Also after Ctrl-C: the transaction must not stay open.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class Connections:
    """Connections for reading, one for each file and thread. A forked process does not use those that it inherits."""

    def __init__(self) -> None:
        # By process, thread and path, with the inode, since the file may have been replaced. Each thread has its own keys, so
        # no lock is needed that a fork could leave locked.
        self._open: dict[tuple[int, int, str], tuple[int, SqliteConnection, ViewFile]] = {}

    def of(self, path: str, view: str) -> tuple[SqliteConnection, ViewFile]:
        """This thread's connection to a file, and the facts that the file records of itself."""
        key = (os.getpid(), threading.get_ident(), path)
        try:
            inode = os.stat(path).st_ino
        except FileNotFoundError as error:
            raise _dropped_error(path, view) from error
        # An ended thread leaves its connection to the next thread with the same id.
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
        """Close all connections of this process."""
        for key in [key for key in list(self._open) if key[0] == os.getpid()]:
            self._open.pop(key)[1].close()

    def __reduce__(self) -> tuple[type[Connections], tuple[()]]:
        # Open connections are not pickled.
        return Connections, ()


@contextmanager
def translate_errors(path: str, view: str, *, holder: int | None = None) -> Iterator[None]:
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
            raise _held_error(path, view, holder) from error
        if code == sqlite3.SQLITE_CANTOPEN and not os.path.exists(path):
            raise _dropped_error(path, view) from error
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


def _dropped_error(path: str, view: str) -> ViewNotFound:
    return ViewNotFound(
        f'view "{view}" has no file "{os.path.basename(path)}"',
        detail=f"{path} does not exist: the view, or this version of it, was dropped meanwhile.",
        hint="Retry; if the view was dropped, run the flow that writes it.",
        view=view,
    )


def _held_error(path: str, view: str, holder: int | None) -> LockHeld:
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
