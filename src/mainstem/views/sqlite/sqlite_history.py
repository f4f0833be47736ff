"""The history of a version of a view in SQLite, besides its changes: its start, and the offsets applied at each position.

    kept_since   one row: position, at: the view can be read as of this position and time, and later
    reached      topic, partition, position, "end": from this position on a source was applied up to there

and an index of `changes` by key. A past state is the current one with all later changes undone; these are
found by the time of commits, or by what was reached. Both tables are written in the transaction of the batch. Only the live
version has them: when another version becomes live, it takes over those of the one before, with its changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from mainstem.batch import Offsets
from mainstem.views.sqlite.sqlite_columns import quoted
from mainstem.views.sqlite.view_file import ViewFile
from mainstem.views.view_store import KeptSince

__all__ = ["SqliteHistory"]

# Of commits that are too old, how many are looked at with a batch: more than come.
TRIM_COMMITS_MAX = 1_000


class SqliteHistory:
    """The history in one file, through a connection of its user; everything within the transaction that is open."""

    def __init__(self, connection: sqlite3.Connection, file: ViewFile) -> None:
        self._connection = connection
        self._file = file

    # Asking

    @property
    def kept(self) -> bool:
        """Whether there is one."""
        found = self._connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'kept_since'").fetchone()
        return found is not None

    def since(self) -> KeptSince | None:
        """How far back it goes."""
        if not self.kept:
            return None
        return KeptSince(*self._connection.execute("SELECT position, at FROM kept_since").fetchone())

    def position_at(self, at: int) -> int | None:
        """The last position of the last commit that is not later."""
        select = "SELECT end_position FROM commits WHERE committed_at <= ? ORDER BY end_position DESC LIMIT 1"
        found = self._connection.execute(select, (at,)).fetchone()
        return None if found is None else int(found[0])

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        """The first position at which a source was applied up to `end`."""
        select = (
            'SELECT position FROM reached WHERE topic = ? AND partition = ? AND "end" >= ? ORDER BY position LIMIT 1'
        )
        found = self._connection.execute(select, (topic, partition, end)).fetchone()
        return None if found is None else int(found[0])

    def reached(self) -> list[tuple[int, str, int, int]]:
        """All of it, in the order of positions."""
        return self._connection.execute(
            'SELECT position, topic, partition, "end" FROM reached ORDER BY position'
        ).fetchall()

    # Writing

    def keep(self, since: KeptSince) -> None:
        """Begin it, if it has not begun: with what the view is now."""
        if self.kept:
            return
        self._create()
        self._connection.execute("INSERT INTO kept_since VALUES (1, ?, ?)", since)
        if since.position >= 0:
            self._connection.execute(
                # One before: with which batch it was in is not known.
                'INSERT INTO reached SELECT topic, partition, ?, "end" FROM offsets',
                (since.position - 1,),
            )

    def _create(self) -> None:
        key = ", ".join(quoted(f"key.{name}") for name in self._file.key)
        for statement in (
            "CREATE TABLE main.kept_since (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), position INTEGER, at INTEGER)",
            (
                "CREATE TABLE main.reached (topic TEXT, partition INTEGER, position INTEGER, "
                '"end" INTEGER, PRIMARY KEY (topic, partition, position)) WITHOUT ROWID'
            ),
            f"CREATE INDEX main.changes_by_key ON changes ({key}, position)",
        ):
            self._connection.execute(statement)

    def end(self) -> None:
        """Forget it."""
        if self.kept:
            for what in ("TABLE kept_since", "TABLE reached", "INDEX changes_by_key"):
                kind, name = what.split()
                self._connection.execute(f"DROP {kind} main.{name}")

    def reach(self, offsets: Offsets, position: int) -> None:
        """At this position sources are applied so far; called before it is written into `offsets`."""
        before = {(topic, number): end for topic, number, end in self._connection.execute("SELECT * FROM offsets")}
        self._write_reached(
            (topic, number, position, end)
            for topic, ends in offsets.items()
            for number, end in ends.items()
            if end > before.get((topic, number), 0)
        )

    def _write_reached(self, rows: Iterable[tuple[str, int, int, int]]) -> None:
        # A batch that changed nothing moves what was reached at the same position.
        self._connection.executemany(
            'INSERT INTO main.reached VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "end" = max("end", excluded."end")',
            rows,
        )

    def too_old(self, before: int, last: int) -> int:
        """The last position of the commits before a time, the last of all not among them; 0 if there are none."""
        select = (
            "SELECT max(end_position) FROM "
            f"(SELECT * FROM commits WHERE end_position < ? ORDER BY end_position LIMIT {TRIM_COMMITS_MAX}) "
            "WHERE committed_at < ?"
        )
        return int(self._connection.execute(select, (last, before)).fetchone()[0] or 0)

    def begin_at(self, position: int) -> None:
        """What was before this position is about to be trimmed; it is the last one of a commit."""
        execute = self._connection.execute
        moved = (
            "UPDATE kept_since SET position = ?1, at = (SELECT committed_at FROM commits WHERE end_position = ?1) "
            "WHERE position < ?1"
        )
        if not execute(moved, (position,)).rowcount:
            return
        for topic, partition in execute("SELECT topic, partition FROM offsets").fetchall():
            # The last one before the position stays: it tells what was in before.
            of = "reached WHERE topic = ?1 AND partition = ?2 AND position"
            execute(f"DELETE FROM {of} < (SELECT max(position) FROM {of} < ?3)", (topic, partition, position))

    def carry(self, last: int) -> None:
        """Take over the history of the version that was live before, attached as `other`; its changes up to `last`."""
        self.end()
        execute = self._connection.execute
        if execute("SELECT 1 FROM other.sqlite_master WHERE name = 'kept_since'").fetchone() is None:
            return
        self._create()
        for table in ("kept_since", "reached"):
            execute(f"INSERT INTO main.{table} SELECT * FROM other.{table}")
        there = {row[1] for row in execute("PRAGMA other.table_info(changes)")}
        shared = [name for _, name, *_ in execute("PRAGMA main.table_info(changes)").fetchall() if name in there]
        columns = ", ".join(map(quoted, shared))
        since = execute("SELECT position FROM main.kept_since").fetchone()
        execute(
            f"INSERT OR IGNORE INTO main.changes ({columns}) SELECT {columns} FROM other.changes "
            "WHERE position > ? AND position <= ? AND change <> 'none'",
            (*since, last),
        )
        execute("INSERT OR IGNORE INTO main.commits SELECT * FROM other.commits WHERE end_position > ?", since)

    def put_to_use(self, position: int) -> None:
        """From this position on, what this version has applied is in."""
        if self.kept:
            self._write_reached(
                (topic, number, position, end)
                for topic, number, end in self._connection.execute("SELECT * FROM main.offsets").fetchall()
            )
