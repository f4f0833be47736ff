"""The changes of a version of a view, and its history: from when on it can be read as of the past.

    kept_since   one row: position, at: the view can be read as of this position and time, and later
    reached      topic, partition, position, "end": from this position on a source was applied up to there

and an index of `changes` by key. A past state is the current one with all later changes undone; these are found by the
time of commits, or by what was reached. Both tables exist while the view keeps its history, and are written in the
transaction of the batch. Only the live version has them: when another version becomes live, it takes over those of the
one before, with its changes.
"""

from __future__ import annotations

from mainstem.batch import Offsets
from mainstem.names import quote_name
from mainstem.views.sql.sql_tables import SqlConnection, SqlTables
from mainstem.views.version_pair import Kind, VersionPair
from mainstem.views.view_facts import Facts
from mainstem.views.view_store import KeptSince

__all__ = ["SqlHistory"]

# The maximal number of expired commits that are dropped per batch: more than are added.
TRIM_COMMITS_MAX = 1_000
# A batch without changes updates `reached` at the same position.
_OR_FURTHER = (
    'ON CONFLICT (topic, partition, position) DO UPDATE SET "end" = excluded."end" WHERE excluded."end" > r."end"'
)


class SqlHistory:
    """Changes and history of one version, through the connection of the caller, inside its open transaction."""

    def __init__(self, connection: SqlConnection, tables: SqlTables) -> None:
        self._connection = connection
        self._tables = tables
        self._changes = tables.table("changes")
        self._commits = tables.table("commits")
        self._offsets = tables.table("offsets")
        self._progress = tables.table("progress")
        self._since = tables.table("kept_since")
        self._reached = tables.table("reached")

    # Reading

    @property
    def kept(self) -> bool:
        """Whether there is a history."""
        return bool(self._connection.query(self._tables.find_table("kept_since")))

    def since(self) -> KeptSince | None:
        """The start of the history; None if there is none."""
        if not self.kept:
            return None
        return KeptSince(*self._connection.query(f"SELECT position, at FROM {self._since}")[0])

    def last_position(self) -> int:
        """The position of the last change."""
        return int(self._connection.query(f"SELECT max(position) FROM {self._changes}")[0][0])

    # Writing

    def keep(self, since: KeptSince) -> None:
        """Begin the history with the current state of the view, if it has not begun."""
        if self.kept:
            return
        self._create()
        self._connection.write(f"INSERT INTO {self._since} VALUES (1, $1, $2)", *since)
        if since.position >= 0:
            # One position before, since the batch that applied them is unknown.
            self._copy_offsets(since.position - 1)

    def _create(self) -> None:
        for statement in self._tables.history_definitions():
            self._connection.write(statement)

    def _copy_offsets(self, position: int) -> None:
        self._connection.write(
            f'INSERT INTO {self._reached} AS r SELECT topic, partition, $1, "end" FROM {self._offsets} '
            f"WHERE TRUE {_OR_FURTHER}",
            position,
        )

    def end(self) -> bool:
        """Drop the history; False if there was none."""
        if not self.kept:
            return False
        for what in (f"TABLE {self._since}", f"TABLE {self._reached}", f"INDEX {self._tables.table('changes_by_key')}"):
            self._connection.write(f"DROP {what}")
        return True

    def reach(self, offsets: Offsets, position: int) -> None:
        """Record the offsets applied at this position; called before they are written into `offsets`."""
        select = f'SELECT topic, partition, "end" FROM {self._offsets}'
        before = {(topic, number): end for topic, number, end in self._connection.query(select)}
        self._connection.write_many(
            f"INSERT INTO {self._reached} AS r VALUES ($1, $2, $3, $4) {_OR_FURTHER}",
            [
                (topic, number, position, end)
                for topic, ends in offsets.items()
                for number, end in ends.items()
                if end > before.get((topic, number), 0)
            ],
        )

    def trim(self, facts: Facts, last: int, now: int) -> None:
        """Drop changes beyond their retention; the last one always stays.

        Deleted rows may stay in the index until the server vacuums: so each trim starts where the last one ended.
        """
        query, write, trimmed = self._connection.query, self._connection.write, -1
        if self._tables.keeps_trimmed:
            ((trimmed,),) = query(f"SELECT trimmed FROM {self._progress}")
        too_old = self._too_old(trimmed, now - max(facts.changes_age_us, facts.history_age_us), last)
        # A history is kept for its time, however many changes there are.
        too_many = 0 if facts.history_age_us else last - facts.changes_max
        gone = min(max(too_many, too_old), last - 1)
        if gone <= max(trimmed, 0):
            return
        if facts.history_age_us:
            self.begin_at(gone)
        for table, column in ((self._changes, "position"), (self._commits, "end_position")):
            write(f"DELETE FROM {table} WHERE {column} > $1 AND {column} <= $2", trimmed, gone)
        if self._tables.keeps_trimmed:
            write(f"UPDATE {self._progress} SET trimmed = $1", gone)

    def _too_old(self, trimmed: int, before: int, last: int) -> int:
        """The last position of the commits before a time, except the very last one; 0 if there are none."""
        first = f"SELECT * FROM {self._commits} WHERE end_position > $1 ORDER BY end_position LIMIT {TRIM_COMMITS_MAX}"
        oldest = f"SELECT max(end_position) FROM ({first}) AS first WHERE committed_at < $2 AND end_position < $3"
        return int(self._connection.query(oldest, trimmed, before, last)[0][0] or 0)

    def begin_at(self, position: int) -> None:
        """Start the history at this position, the last one of a commit: earlier changes are about to be trimmed."""
        moved = (
            f"UPDATE {self._since} SET position = $1, "
            f"at = (SELECT committed_at FROM {self._commits} WHERE end_position = $1) WHERE position < $1"
        )
        if not self._connection.write(moved, position):
            return
        for topic, partition in self._connection.query(f"SELECT topic, partition FROM {self._offsets}"):
            # The last one before the position stays: it has the offsets applied before.
            of = f"{self._reached} WHERE topic = $1 AND partition = $2 AND position"
            delete = f"DELETE FROM {of} < (SELECT max(position) FROM {of} < $3)"
            self._connection.write(delete, topic, partition, position)

    # Switching to another version

    def take_over(self, old: SqlTables, facts: Facts, position: int, now: int) -> bool:
        """Write the difference from the version that was live up to `position` as changes of this one; False if there is none."""
        write, pair = self._connection.write, VersionPair(self._tables, old)
        # A write first: if the database is locked as a whole (SQLite), it takes the lock.
        write(f"UPDATE {self._progress} SET recording = 1")
        served = facts.last_served(self._tables.version)
        write(f"DELETE FROM {self._changes} WHERE position > $1", served)
        write(f"DELETE FROM {self._commits} WHERE end_position > $1", served)
        self.end()
        if pair.compatible and facts.history_age_us:
            self.carry(old, position)
        none = f"INSERT INTO {self._changes} (position, change) VALUES ($1, 'none') ON CONFLICT (position) DO NOTHING"
        write(none, position)
        if pair.compatible:
            for statement in self._difference(pair):
                write(statement, self.last_position())
        last = self.last_position()
        if last > position:
            write(f"INSERT INTO {self._commits} VALUES ($1, $2, 0, -1)", last, now)
        if facts.history_age_us:
            # The columns differ, or there was no history before: it begins here.
            self.keep(KeptSince(last, now))
            self._copy_offsets(last)
        return pair.compatible

    def carry(self, old: SqlTables, last: int) -> None:
        """Take over the history of the previously live version, with its changes up to `last`."""
        since = SqlHistory(self._connection, old).since()
        if since is None:
            return
        self._create()
        for name in ("kept_since", "reached"):
            self._connection.write(f"INSERT INTO {self._tables.table(name)} SELECT * FROM {old.table(name)}")
        was, became = old.changed_row("old"), old.changed_row("new")
        for change, before, after in (("insert", None, became), ("update", was, became), ("delete", was, None)):
            source = f"{old.table('changes')} AS c WHERE c.position > $1 AND c.position <= $2 AND c.change = '{change}'"
            insert = self._tables.insert_changes(change, "c.position", before, after, source)
            self._connection.write(f"{insert} ON CONFLICT (position) DO NOTHING", since.position, last)
        self._connection.write(
            f"INSERT INTO {self._commits} SELECT * FROM {old.table('commits')} WHERE end_position > $1 "
            "ON CONFLICT (end_position) DO NOTHING",
            since.position,
        )

    def _difference(self, pair: VersionPair) -> list[str]:
        """Statements that write the changes from the old rows to the new ones, after position $1."""
        was, became = (
            {name: f"{alias}.{quote_name(name)}" for name in tables.schema.names}
            for alias, tables in (("o", pair.old), ("n", pair.new))
        )
        kinds: list[tuple[Kind, str, dict[str, str] | None, dict[str, str] | None]] = [
            ("removed", "delete", was, None),
            ("changed", "update", was, became),
            ("added", "insert", None, became),
        ]
        return [
            self._tables.insert_changes(
                change,
                f"CAST($1 AS bigint) + row_number() OVER (ORDER BY {pair.order(kind)})",
                old,
                new,
                pair.source(kind),
            )
            for kind, change, old, new in kinds
        ]
