"""ViewSnapshot: a snapshot of one version of a view in SQLite, unaffected by later writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from mainstem.errors import Unavailable, ViewNotFound
from mainstem.views.sqlite.sqlite_columns import arrow_column, python_row
from mainstem.views.sqlite.sqlite_history import SqliteHistory
from mainstem.views.sqlite.view_file import Connections, ViewFile, translated
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_facts import Facts, no_such_version
from mainstem.views.view_key import change_rows, stored_key
from mainstem.views.view_store import KeptSince

__all__ = ["ViewSnapshot", "live_snapshot", "version_snapshot"]

# Enough that the cost of a batch does not count; few enough that a view of any size is read in little memory.
BATCH_ROWS = 65_536
# A flip or a drop in the middle of the look is rare; several in a row are not waited for.
TRIES = 10


class ViewSnapshot:
    """A snapshot of a version. Valid until the end of the `with` that returned it."""

    def __init__(self, connection: sqlite3.Connection, file: ViewFile, facts: Facts) -> None:
        self._connection = connection
        self.file = file
        self.facts = facts

    def release(self) -> None:
        """Release the snapshot."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @property
    def version(self) -> int:
        return self.file.version

    @property
    def schema(self) -> pa.Schema:
        return self.file.schema

    @property
    def location(self) -> str:
        return self.file.path

    def get(self, key: Any, position: int | None = None) -> dict[str, Any] | None:
        """The row with this key, in the form that users give; as it was right after a position."""
        stored = stored_key(key, self.file.key, self.schema, view=self.file.view)
        values = self.row(stored) if position is None else self._row_before(stored, position)
        if values is None:
            return None
        return python_row(values, self.schema, view=self.file.view)

    def row(self, key: list[Any]) -> tuple[Any, ...] | None:
        """The stored values of one row, or None."""
        found: tuple[Any, ...] | None = self._connection.execute(self.file.select_row, key).fetchone()
        return found

    def _row_before(self, key: list[Any], position: int) -> tuple[Any, ...] | None:
        changed = self._connection.execute(self.file.select_row_before, (*key, position)).fetchone()
        if changed is None:
            return self.row(key)
        return None if changed[0] == "insert" else changed[1:]

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM rows").fetchone()[0])

    def bytes(self) -> int:
        """Its size on disk."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += os.path.getsize(self.file.path + suffix)
        return total

    def batches(self, position: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, sorted by key; as they were right after a position."""
        if position is None:
            cursor = self._connection.execute(self.file.select_rows)
        else:
            cursor = self._connection.execute(self.file.select_rows_before, (position,))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield self._batch(rows)

    def to_arrow(self, position: int | None = None) -> pa.Table:
        """All rows, sorted by key; as they were right after a position."""
        return pa.Table.from_batches(self.batches(position), schema=self.schema)

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else iter([()] * len(self.schema))
        arrays = [arrow_column(list(values), field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def offsets(self) -> dict[str, dict[int, int]]:
        """The end offsets applied, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for topic, partition, end in self._connection.execute('SELECT topic, partition, "end" FROM offsets'):
            found.setdefault(topic, {})[partition] = end
        return found

    def progress(self) -> tuple[str | None, int, int, int | None]:
        """Flow, epoch, last batch, and when it was applied."""
        found: tuple[str | None, int, int, int | None] = self._connection.execute(
            "SELECT flow, epoch, batch, applied_at FROM progress"
        ).fetchone()
        return found

    # Changes

    def positions(self) -> tuple[int, int]:
        """The first change that is kept and the last one; there are gaps for the times when it was not live."""
        first, last = self._connection.execute("SELECT min(position), max(position) FROM changes").fetchone()
        return int(first), int(last)

    def changes(self, after: int, until: int) -> pa.Table:
        """Changes as rows with `record`: an update is a delete of the old row followed by an insert of the new one."""
        commits = self._connection.execute(
            "SELECT end_position, committed_at FROM commits WHERE end_position > ? ORDER BY end_position", (after,)
        ).fetchall()
        old, new = (self._side(side, change, after, until) for side, change in (("old", "delete"), ("new", "insert")))
        return change_rows(self.schema, old, new, commits)

    def commits(self) -> list[tuple[int, int]]:
        return self._connection.execute("SELECT end_position, batch FROM commits ORDER BY end_position").fetchall()

    def kept_since(self) -> KeptSince | None:
        return SqliteHistory(self._connection, self.file).since()

    def position_at(self, at: int) -> int | None:
        return SqliteHistory(self._connection, self.file).position_at(at)

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        return SqliteHistory(self._connection, self.file).position_reached(topic, partition, end)

    def reached(self) -> list[tuple[int, str, int, int]]:
        return SqliteHistory(self._connection, self.file).reached()

    def _side(self, side: str, change: str, after: int, until: int) -> tuple[list[int], pa.RecordBatch]:
        rows = self._connection.execute(self.file.select_changes(side), (after, until, change)).fetchall()
        return [row[0] for row in rows], self._batch([row[1:] for row in rows])


@contextmanager
def live_snapshot(folder: ViewFolder, connections: Connections) -> Iterator[ViewSnapshot]:
    """The live version, now."""
    with _held(_pinned_live(folder, connections)) as snapshot:
        yield snapshot


@contextmanager
def version_snapshot(folder: ViewFolder, connections: Connections, version: int) -> Iterator[ViewSnapshot]:
    """One version, now."""
    with _held(_pinned(folder, connections, folder.facts(), version)) as snapshot:
        yield snapshot


@contextmanager
def _held(snapshot: ViewSnapshot) -> Iterator[ViewSnapshot]:
    with translated(snapshot.file.path, snapshot.file.view):
        try:
            yield snapshot
        finally:
            snapshot.release()


def _pinned_live(folder: ViewFolder, connections: Connections) -> ViewSnapshot:
    for left in reversed(range(TRIES)):
        facts = folder.facts()
        try:
            snapshot = _pinned(folder, connections, facts, facts.live)
        except ViewNotFound:
            if not left:
                raise
            continue
        # Pinned before this look: if it is still the live one, it was so at the moment that is shown.
        if folder.facts() == facts:
            return snapshot
        snapshot.release()
    raise Unavailable(
        f'view "{folder.view}" changed its version {TRIES} times in a row',
        detail="Each time it changed between the lookup of the live version and its opening.",
        hint="Retry.",
    )


def _pinned(folder: ViewFolder, connections: Connections, facts: Facts, version: int) -> ViewSnapshot:
    if version not in facts.numbers():
        raise no_such_version(folder.view, facts, version)
    path = folder.version_path(version)
    with translated(path, folder.view):
        connection, file = connections.of(path, folder.view)
        connection.execute("BEGIN")
        try:
            # A transaction sees what was there at its first read, not at its beginning.
            connection.execute("SELECT batch FROM progress").fetchone()
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return ViewSnapshot(connection, file, facts)
