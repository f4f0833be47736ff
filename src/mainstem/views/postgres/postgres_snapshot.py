"""PostgresSnapshot: a snapshot of one version of a view in PostgreSQL, unaffected by later writes.

A transaction with isolation REPEATABLE READ sees what was committed at its first read. It reads the view's facts first, so
the live version and its rows are of one moment. A table that a transaction has read cannot be dropped before it
ends; if the version was dropped between the reads of the facts and of the version, the transaction starts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg import RawServerCursor, errors

from mainstem.views.postgres.postgres_columns import encoded, unfit, wire_type
from mainstem.views.postgres.postgres_history import PostgresHistory
from mainstem.views.postgres.postgres_pool import Encoded, Session
from mainstem.views.postgres.postgres_tables import PostgresTables
from mainstem.views.sqlite.sqlite_columns import arrow_column, python_row
from mainstem.views.view_facts import Facts, no_such_version
from mainstem.views.view_key import change_rows, key_columns
from mainstem.views.view_store import KeptSince, Progress

if TYPE_CHECKING:
    from mainstem.views.postgres.postgres_backend import PostgresStore

__all__ = ["READ", "PostgresSnapshot", "pinned_live", "pinned_version"]

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Enough that the cost of a batch does not count; few enough that a view of any size is read in little memory.
BATCH_ROWS = 65_536
# A drop in the middle of the look is rare; several in a row are not waited for.
TRIES = 10


class PostgresSnapshot:
    """A snapshot of a version. Valid until the end of the `with` that returned it."""

    def __init__(self, connection: Session, tables: PostgresTables, facts: Facts, title: str) -> None:
        self._connection = connection
        self._tables = tables
        self._title = title
        self.facts = facts

    @property
    def version(self) -> int:
        return self._tables.version

    @property
    def schema(self) -> pa.Schema:
        return self._tables.schema

    @property
    def location(self) -> str:
        return f"{self._title}, schema {self._tables.name}"

    def _one(self, sql: str, parameters: list[Any] | None = None) -> Any:
        return self._connection.execute(sql, parameters, binary=True).fetchone()

    def get(self, key: Any, position: int | None = None) -> dict[str, Any] | None:
        tables = self._tables
        columns = key_columns(key, tables.key, self.schema, view=tables.view)
        given = []
        for name, column in zip(tables.key, columns, strict=True):
            field = self.schema.field(name)
            if column.null_count or unfit(column, field, tables.key):
                return None
            given.append(Encoded(encoded(column)[0].as_py(), wire_type(field.type)[1]))
        changed = None if position is None else self._one(tables.select_row_before, [*given, position])
        if changed is not None:
            values = None if changed[0] == "insert" else changed[1:]
        else:
            values = self._one(tables.select_row, given)
        if values is None:
            return None
        return python_row(values, self.schema, view=tables.view)

    def count(self) -> int:
        return int(self._one(f"SELECT count(*) FROM {self._tables.rows}")[0])

    def bytes(self) -> int:
        """The size of its tables and their indexes."""
        sizes = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c WHERE c.relnamespace = $1::regnamespace"
        return int(self._one(f"{sizes} AND c.relkind = 'r'", [f'"{self._tables.name}"'])[0])

    def batches(self, position: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, sorted by key; as they were right after a position."""
        with RawServerCursor(self._connection, "mainstem_rows") as cursor:
            if position is None:
                cursor.execute(self._tables.select_rows, binary=True)
            else:
                cursor.execute(self._tables.select_rows_before, (position,), binary=True)
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
        select = f'SELECT topic, partition, "end" FROM {self._tables.table("offsets")}'
        for topic, partition, end in self._connection.execute(select):
            found.setdefault(topic, {})[partition] = end
        return found

    def progress(self) -> Progress:
        found: Progress = self._one(f"SELECT flow, epoch, batch, applied_at FROM {self._tables.table('progress')}")
        return found

    def positions(self) -> tuple[int, int]:
        """The first change that is kept and the last one; there are gaps for the times when it was not live."""
        table = self._tables.table
        kept = f"position > (SELECT trimmed FROM {table('progress')})"
        first, last = self._one(f"SELECT min(position), max(position) FROM {table('changes')} WHERE {kept}")
        return int(first), int(last)

    def changes(self, after: int, until: int) -> pa.Table:
        """Changes as rows with `record`: an update is a delete of the old row followed by an insert of the new one."""
        ends = f"SELECT end_position, committed_at FROM {self._tables.table('commits')}"
        commits = self._connection.execute(f"{ends} WHERE end_position > $1 ORDER BY 1", (after,)).fetchall()
        old, new = (self._side(side, change, after, until) for side, change in (("old", "delete"), ("new", "insert")))
        return change_rows(self.schema, old, new, [(end, at) for end, at in commits])

    def commits(self) -> list[tuple[int, int]]:
        select = f"SELECT end_position, batch FROM {self._tables.table('commits')} ORDER BY end_position"
        return [(end, batch) for end, batch in self._connection.execute(select)]

    def kept_since(self) -> KeptSince | None:
        return PostgresHistory(self._connection, self._tables).since()

    def position_at(self, at: int) -> int | None:
        return PostgresHistory(self._connection, self._tables).position_at(at)

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        return PostgresHistory(self._connection, self._tables).position_reached(topic, partition, end)

    def reached(self) -> list[tuple[int, str, int, int]]:
        return PostgresHistory(self._connection, self._tables).reached()

    def _side(self, side: str, change: str, after: int, until: int) -> tuple[list[int], pa.RecordBatch]:
        select = self._tables.select_changes(side)
        rows = self._connection.execute(select, (after, until, change), binary=True).fetchall()
        return [row[0] for row in rows], self._batch([row[1:] for row in rows])


@contextmanager
def pinned_live(store: PostgresStore) -> Iterator[PostgresSnapshot]:
    """The live version, now."""
    for left in reversed(range(TRIES)):
        with store.pool.borrowed(READ) as connection:
            facts = store.facts_in(connection)
            try:
                snapshot = _pinned(store, connection, facts, facts.live)
            except errors.UndefinedTable:
                if not left:
                    raise
                continue
            yield snapshot
            return


@contextmanager
def pinned_version(store: PostgresStore, version: int) -> Iterator[PostgresSnapshot]:
    """One version, now."""
    with store.pool.borrowed(READ) as connection:
        facts = store.facts_in(connection)
        if version not in facts.numbers():
            raise no_such_version(store.view, facts, version)
        yield _pinned(store, connection, facts, version)


def _pinned(store: PostgresStore, connection: Session, facts: Facts, version: int) -> PostgresSnapshot:
    tables = store.tables(facts, version)
    # Holds the version as well: from here on it cannot be dropped until the transaction ends.
    connection.execute(f"SELECT 1 FROM {tables.table('progress')}")
    return PostgresSnapshot(connection, tables, facts, store.title)
