"""The history of a version of a view in PostgreSQL, besides its changes: the same two tables as in SQLite.

    kept_since   one row: position, at
    reached      topic, partition, position, "end"

and an index of `changes` by key; see `sqlite_history.py`. They are created in the version's schema when the history
starts, and written in the transaction of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from mainstem.batch import Offsets
from mainstem.views.postgres.postgres_pool import Session
from mainstem.views.postgres.postgres_tables import PostgresTables
from mainstem.views.sqlite.sqlite_columns import quoted
from mainstem.views.view_store import KeptSince

__all__ = ["PostgresHistory"]


class PostgresHistory:
    """The history of one version, through a connection of its user; everything within the transaction that is open."""

    def __init__(self, connection: Session, tables: PostgresTables) -> None:
        self._connection = connection
        self._tables = tables

    @cached_property
    def _since(self) -> str:
        return self._tables.table("kept_since")

    @cached_property
    def _reached(self) -> str:
        return self._tables.table("reached")

    # Asking

    @property
    def kept(self) -> bool:
        """Whether there is one."""
        found = self._connection.execute("SELECT to_regclass($1) IS NOT NULL", (self._since,)).fetchone()
        return found == (True,)

    def since(self) -> KeptSince | None:
        """How far back it goes."""
        if not self.kept:
            return None
        found = self._connection.execute(f"SELECT position, at FROM {self._since}").fetchone()
        assert found is not None
        return KeptSince(*found)

    def position_at(self, at: int) -> int | None:
        """The last position of the last commit that is not later."""
        commits = self._tables.table("commits")
        select = f"SELECT end_position FROM {commits} WHERE committed_at <= $1 ORDER BY end_position DESC LIMIT 1"
        found = self._connection.execute(select, (at,)).fetchone()
        return None if found is None else int(found[0])

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        """The first position at which a source was applied up to `end`."""
        select = (
            f"SELECT position FROM {self._reached} WHERE topic = $1 AND partition = $2 "
            'AND "end" >= $3 ORDER BY position LIMIT 1'
        )
        found = self._connection.execute(select, (topic, partition, end)).fetchone()
        return None if found is None else int(found[0])

    def reached(self) -> list[tuple[int, str, int, int]]:
        """All of it, in the order of positions."""
        select = f'SELECT position, topic, partition, "end" FROM {self._reached} ORDER BY position'
        return [(position, topic, number, end) for position, topic, number, end in self._connection.execute(select)]

    # Writing

    def keep(self, since: KeptSince) -> None:
        """Begin it, if it has not begun: with what the view is now."""
        if self.kept:
            return
        self._create()
        self._connection.execute(f"INSERT INTO {self._since} VALUES (1, $1, $2)", since)
        if since.position >= 0:
            # One before: with which batch it was in is not known.
            self._copy_offsets(since.position - 1)

    def _copy_offsets(self, position: int) -> None:
        self._connection.execute(
            f'INSERT INTO {self._reached} SELECT topic, partition, $1, "end" FROM {self._tables.table("offsets")} '
            f'ON CONFLICT (topic, partition, position) DO UPDATE SET "end" = greatest({self._reached}."end", excluded."end")',
            (position,),
        )

    def _create(self) -> None:
        key = ", ".join(f"({expression})" for expression in self._tables.changed_key("", self._tables.key))
        for statement in (
            (
                f"CREATE TABLE {self._since} "
                "(only_row integer PRIMARY KEY CHECK (only_row = 1), position bigint, at bigint)"
            ),
            (
                f"CREATE TABLE {self._reached} (topic text, partition integer, position bigint, "
                '"end" bigint, PRIMARY KEY (topic, partition, position))'
            ),
            f"CREATE INDEX changes_by_key ON {self._tables.table('changes')} ({key}, position)",
        ):
            self._connection.execute(statement)

    def end(self) -> None:
        """Forget it."""
        if self.kept:
            self._connection.execute(f"DROP TABLE {self._since}, {self._reached}")
            self._connection.execute(f"DROP INDEX {self._tables.table('changes_by_key')}")

    def reach(self, offsets: Offsets, position: int) -> None:
        """At this position sources are applied so far; called before it is written into `offsets`."""
        select = f'SELECT topic, partition, "end" FROM {self._tables.table("offsets")}'
        before = {(topic, number): end for topic, number, end in self._connection.execute(select)}
        self._write_reached(
            (topic, number, position, end)
            for topic, ends in offsets.items()
            for number, end in ends.items()
            if end > before.get((topic, number), 0)
        )

    def _write_reached(self, rows: Iterable[tuple[str, int, int, int]]) -> None:
        # A batch that changed nothing moves what was reached at the same position.
        upsert = (
            f"INSERT INTO {self._reached} AS r VALUES ($1, $2, $3, $4) ON CONFLICT (topic, partition, position) "
            'DO UPDATE SET "end" = greatest(r."end", excluded."end")'
        )
        with self._connection.cursor() as cursor:
            cursor.executemany(upsert, list(rows))

    def begin_at(self, position: int) -> None:
        """What was before this position is about to be trimmed; it is the last one of a commit."""
        execute, commits = self._connection.execute, self._tables.table("commits")
        moved = (
            f"UPDATE {self._since} SET position = $1, at = (SELECT committed_at FROM {commits} WHERE end_position = $1) "
            "WHERE position < $1"
        )
        if not execute(moved, (position,)).rowcount:
            return
        offsets = execute(f"SELECT topic, partition FROM {self._tables.table('offsets')}").fetchall()
        for topic, partition in offsets:
            # The last one before the position stays: it tells what was in before.
            of = f"{self._reached} WHERE topic = $1 AND partition = $2 AND position"
            execute(f"DELETE FROM {of} < (SELECT max(position) FROM {of} < $3)", (topic, partition, position))

    def carry(self, old: PostgresTables, last: int) -> None:
        """Take over the history of the version that was live before; its changes up to `last`."""
        self.end()
        before = PostgresHistory(self._connection, old)
        since = before.since()
        if since is None:
            return
        self._create()
        for name in ("kept_since", "reached"):
            self._connection.execute(f"INSERT INTO {self._tables.table(name)} SELECT * FROM {old.table(name)}")
        known = set(old.schema.names)
        was, became = (
            self._tables.row_of(
                [f"(c.{side}).{quoted(name)}" if name in known else "NULL" for name in self._tables.schema.names]
            )
            for side in ("old", "new")
        )
        self._connection.execute(
            f"INSERT INTO {self._tables.table('changes')} (position, change, old, new) SELECT c.position, c.change, "
            f"CASE WHEN c.change <> 'insert' THEN {was} END, CASE WHEN c.change <> 'delete' THEN {became} END "
            f"FROM {old.table('changes')} AS c WHERE c.position > $1 AND c.position <= $2 AND c.change <> 'none' "
            "ON CONFLICT (position) DO NOTHING",
            (since.position, last),
        )
        self._connection.execute(
            f"INSERT INTO {self._tables.table('commits')} SELECT * FROM {old.table('commits')} "
            "WHERE end_position > $1 ON CONFLICT (end_position) DO NOTHING",
            (since.position,),
        )

    def put_to_use(self, position: int) -> None:
        """From this position on, what this version has applied is in."""
        if self.kept:
            self._copy_offsets(position)
