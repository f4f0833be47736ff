"""Views in the home itself: a directory for each, a SQLite file for each of its versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict
from mainstem.file_watch import Watch
from mainstem.views.sqlite.sqlite_columns import quoted
from mainstem.views.sqlite.sqlite_history import SqliteHistory
from mainstem.views.sqlite.sqlite_snapshot import ViewSnapshot, live_snapshot, version_snapshot
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.sqlite.view_file import Connections, ViewFile, connect, translated
from mainstem.views.sqlite.view_folder import ViewFolder, view_names
from mainstem.views.version_pair import Difference, Kind, VersionPair, difference_of
from mainstem.views.view_facts import Facts, Segment, no_such_version
from mainstem.views.view_store import KeptSince

__all__ = ["SqliteBackend", "SqliteStore", "ViewVersions"]


# Making, comparing, using and dropping versions of a view in SQLite, while others read and write it.


class ViewVersions:
    """The versions of one view."""

    def __init__(self, folder: ViewFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Create an empty version beside the live one; returns its number."""
        with self._folder.locked():
            numbers = self._folder.facts().numbers()
            made = max(numbers) + 1 if number is None else number
            if made not in numbers:
                self._folder.add_version(schema, made, self._clock.now())
            return made

    def drop(self, number: int) -> None:
        """Remove a version that is not live."""
        with self._folder.locked():
            facts = self._folder.facts()
            self._check_there(facts, number)
            if number == facts.live:
                raise Conflict(
                    f'version {number} of view "{self._folder.view}" is the live one',
                    detail=f"It has the versions {', '.join(map(str, facts.numbers()))}.",
                    hint="Switch to another version first, or drop the whole view.",
                )
            self._folder.remove_version(number)

    def use(self, number: int) -> None:
        """Make a version the live one, atomically for readers; subscribers get the difference."""
        with self._folder.locked():
            facts = self._folder.facts()
            self._check_there(facts, number)
            if number == facts.live:
                return
            # Held until view.json is replaced: nothing is committed to the old one between its last change and the flip.
            with self._opened(facts.live) as old, self._opened(number, beside=facts.live) as new:
                old[0].execute("BEGIN IMMEDIATE")
                position = self._last_position(old[0])
                compatible = self._write_difference(new, old[1], facts, position)
                reach("view_version_ready")
                segment = Segment(number, position)
                history = (*facts.history, segment) if compatible else (segment,)
                self._folder.write_facts(replace(facts, live=number, history=history))
                reach("view_version_used")
                old[0].execute("UPDATE progress SET recording = 0")
                old[0].execute("COMMIT")
        self._folder.wake()

    def _write_difference(
        self, new: tuple[sqlite3.Connection, ViewFile], old: ViewFile, facts: Facts, position: int
    ) -> bool:
        """Write the difference between the old version and the new one as changes of the new one; False if there is none."""
        connection, file = new
        pair = _pair(file, old)
        served = [
            facts.history[index + 1].after
            for index, segment in enumerate(facts.history[:-1])
            if segment.version == file.version
        ]
        connection.execute("BEGIN")
        try:
            # A write first: it takes the lock of the new one. The old one is only read through this connection.
            connection.execute("UPDATE progress SET recording = 1")
            connection.execute("DELETE FROM main.changes WHERE position > ?", (max(served, default=-1),))
            connection.execute("DELETE FROM main.commits WHERE end_position > ?", (max(served, default=-1),))
            history = SqliteHistory(connection, file)
            if pair.compatible and facts.history_age_us:
                history.carry(position)
            else:
                history.end()
            connection.execute("INSERT OR IGNORE INTO main.changes (position, change) VALUES (?, 'none')", (position,))
            if pair.compatible:
                for statement in _changes(pair):
                    connection.execute(statement)
            last = self._last_position(connection)
            now = self._clock.now()
            if last > position:
                connection.execute("INSERT INTO main.commits VALUES (?, ?, 0, -1)", (last, now))
            if facts.history_age_us:
                # Of other columns, or of a time when there was none yet, nothing can be told: then it begins here.
                history.keep(KeptSince(last, now))
                history.put_to_use(last)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return pair.compatible

    def difference(self, before: int, after: int) -> Difference:
        """How version `after` differs from version `before`, each in its current state."""
        facts = self._folder.facts()
        self._check_there(facts, before)
        self._check_there(facts, after)
        with self._opened(after, beside=before) as (connection, file), self._opened(before) as (_, old):
            connection.execute("BEGIN")
            try:
                return difference_of(_pair(file, old), before, after, lambda sql: connection.execute(sql).fetchall())
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def _opened(self, number: int, beside: int | None = None) -> Iterator[tuple[sqlite3.Connection, ViewFile]]:
        path = self._folder.version_path(number)
        with translated(path, self._folder.view):
            connection = connect(path)
            try:
                if beside is not None:
                    connection.execute("ATTACH ? AS other", (self._folder.version_path(beside),))
                yield connection, ViewFile.read(connection, path)
            finally:
                connection.close()

    def _last_position(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT max(position) FROM main.changes").fetchone()[0])

    def _check_there(self, facts: Facts, number: int) -> None:
        if number not in facts.numbers():
            raise no_such_version(self._folder.view, facts, number)


def _pair(new: ViewFile, old: ViewFile) -> VersionPair:
    return VersionPair(new.key, new.schema, old.schema, new="main.rows", old="other.rows")


def _changes(pair: VersionPair) -> list[str]:
    """Statements that write the changes from the old rows to the new ones, in the columns of the new version."""
    statements = []
    kinds: list[tuple[Kind, str, str, tuple[str, ...]]] = [
        ("removed", "delete", "o", ("old",)),
        ("changed", "update", "n", ("old", "new")),
        ("added", "insert", "n", ("new",)),
    ]
    for kind, change, row, sides in kinds:
        names = [f"key.{name}" for name in pair.key]
        values = [f"{row}.{quoted(name)}" for name in pair.key]
        for side in sides:
            known = pair.shared if side == "old" else pair.values
            names += [f"{side}.{name}" for name in known]
            values += [f"{side[0]}.{quoted(name)}" for name in known]
        statements.append(
            f"INSERT INTO main.changes (change, {', '.join(map(quoted, names))}) "
            f"SELECT '{change}', {', '.join(values)} FROM {pair.source(kind)}"
        )
    return statements


class SqliteBackend:
    """The directory `views` of a home."""

    address = None

    def __init__(self, home: str) -> None:
        self._home = home

    def names(self) -> list[str]:
        return view_names(self._home)

    def store(self, view: str) -> SqliteStore:
        return SqliteStore(self._home, view)

    def close(self) -> None:
        """Nothing is open but what a view itself has."""


class SqliteStore:
    """One view in its directory. Thread-safe."""

    def __init__(self, home: str, view: str) -> None:
        self.view = view
        self.folder = ViewFolder(home, view)
        self.connections = Connections()

    @property
    def title(self) -> str:
        return self.folder.path

    @property
    def location(self) -> str:
        return self.folder.path

    def exists(self) -> bool:
        return self.folder.exists()

    def facts(self) -> Facts:
        return self.folder.facts()

    def check(self, schema: pa.Schema) -> None:
        """SQLite takes every name and every type that a topic does."""

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        self.folder.create(facts, schema)

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        self.folder.keep_changes(changes_max, changes_age_us, history_age_us)

    def live(self) -> AbstractContextManager[ViewSnapshot]:
        return live_snapshot(self.folder, self.connections)

    def at(self, version: int) -> AbstractContextManager[ViewSnapshot]:
        return version_snapshot(self.folder, self.connections, version)

    def versions(self, clock: Clock) -> ViewVersions:
        return ViewVersions(self.folder, clock)

    def writer(self, run: FlowRun, clock: Clock) -> ViewWriter:
        return ViewWriter(self.folder, run, clock=clock)

    def watch(self) -> Watch:
        return Watch([f"{self.folder.path}/wake"])

    def remove(self) -> None:
        self.connections.close()
        self.folder.remove()

    def close(self) -> None:
        self.connections.close()
