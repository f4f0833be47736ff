"""Views in the home itself: a directory for each, a SQLite file for each of its versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Unavailable, ViewNotFound
from mainstem.file_watch import Watch
from mainstem.views.sql.sql_history import SqlHistory
from mainstem.views.sql.sql_snapshot import SqlSnapshot
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.sqlite.view_file import (
    Connections,
    SqliteConnection,
    ViewFile,
    connect,
    transaction,
    translate_errors,
)
from mainstem.views.sqlite.view_folder import ViewFolder, view_names
from mainstem.views.version_pair import Difference, VersionPair
from mainstem.views.view_facts import Facts, check_not_live, check_version

__all__ = ["SqliteBackend", "SqliteStore", "ViewVersions"]

# A switch or a drop during a read is rare; after this many in a row the read gives up.
TRIES = 10


# Creates, compares, switches and drops versions of a view in SQLite, while others read and write it.


class ViewVersions:
    """The versions of one view."""

    def __init__(self, folder: ViewFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def new(self, schema: pa.Schema, number: int | None = None) -> int:
        """Create an empty version beside the live one; returns its number."""
        with self._folder.lock():
            numbers = self._folder.facts().numbers()
            made = max(numbers) + 1 if number is None else number
            if made not in numbers:
                self._folder.add_version(schema, made, self._clock.now())
            return made

    def drop(self, number: int) -> None:
        """Remove a version that is not live."""
        with self._folder.lock():
            facts = self._check_facts(number)
            check_not_live(self._folder.view, facts, number)
            self._folder.remove_version(number)

    def use(self, number: int) -> None:
        """Make a version the live one, atomically for readers; subscribers get the difference."""
        with self._folder.lock():
            facts = self._check_facts(number)
            if number == facts.live:
                return
            with self._open(facts.live) as (held, old), self._open(number, beside=old) as (connection, new):
                # Locked until view.json is replaced: nothing is committed to the old version during the switch.
                held.execute("BEGIN IMMEDIATE")
                position = SqlHistory(held, old).last_position()
                with transaction(connection, "BEGIN"):
                    history = SqlHistory(connection, new)
                    # The old version is only read through this connection.
                    compatible = history.take_over(_name_attached(old), facts, position, self._clock.now())
                reach("view_version_ready")
                self._folder.write_facts(facts.with_live(number, position, compatible=compatible))
                reach("view_version_used")
                held.execute("UPDATE progress SET recording = 0")
                held.execute("COMMIT")
        self._folder.wake()

    def difference(self, before: int, after: int, limit: int, skip: int) -> Difference:
        """How version `after` differs from version `before`, each in its current state."""
        for number in (before, after):
            self._check_facts(number)
        with self._open(before) as (_, old), self._open(after, beside=old) as (connection, new):
            connection.execute("BEGIN")
            try:
                return VersionPair(new, _name_attached(old)).difference(connection, limit, skip)
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def _open(self, number: int, beside: ViewFile | None = None) -> Iterator[tuple[SqliteConnection, ViewFile]]:
        path = self._folder.version_path(number)
        with translate_errors(path, self._folder.view):
            connection = connect(path)
            try:
                if beside is not None:
                    connection.execute(f"ATTACH ? AS {_name_attached(beside).database}", (beside.path,))
                yield connection, ViewFile.read(connection, path)
            finally:
                connection.close()

    def _check_facts(self, number: int) -> Facts:
        facts = self._folder.facts()
        check_version(self._folder.view, facts, number)
        return facts


def _name_attached(file: ViewFile) -> ViewFile:
    return replace(file, database="other")


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
        """Nothing to do: views close their own connections."""


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
        """Nothing to check: SQLite supports all names and types of topics."""

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        self.folder.create(facts, schema)

    def keep_changes(
        self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None = None
    ) -> None:
        self.folder.keep_changes(changes_max, changes_age_us, history_age_us)

    @contextmanager
    def live(self) -> Iterator[SqlSnapshot]:
        with self._hold(*self._pin_live()) as snapshot:
            yield snapshot

    @contextmanager
    def at(self, version: int) -> Iterator[SqlSnapshot]:
        with self._hold(*self._pin(self.facts(), version)) as snapshot:
            yield snapshot

    @contextmanager
    def _hold(self, connection: SqliteConnection, snapshot: SqlSnapshot) -> Iterator[SqlSnapshot]:
        with translate_errors(snapshot.location, self.view):
            try:
                yield snapshot
            finally:
                _release(connection)

    def _pin_live(self) -> tuple[SqliteConnection, SqlSnapshot]:
        for left in reversed(range(TRIES)):
            facts = self.facts()
            try:
                connection, snapshot = self._pin(facts, facts.live)
            except ViewNotFound:
                if not left:
                    raise
                continue
            # The snapshot was opened before this check: if the version is still live, it was live then.
            if self.facts() == facts:
                return connection, snapshot
            _release(connection)
        raise Unavailable(
            f'view "{self.view}" changed its version {TRIES} times in a row',
            detail="Each time it changed between the lookup of the live version and its opening.",
            hint="Retry.",
        )

    def _pin(self, facts: Facts, version: int) -> tuple[SqliteConnection, SqlSnapshot]:
        check_version(self.view, facts, version)
        path = self.folder.version_path(version)
        with translate_errors(path, self.view):
            connection, file = self.connections.of(path, self.view)
            connection.execute("BEGIN")
            try:
                # A transaction's snapshot is taken at its first read, not at its beginning.
                connection.execute("SELECT batch FROM progress").fetchone()
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        return connection, SqlSnapshot(connection, file, facts, path)

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


def _release(connection: SqliteConnection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
