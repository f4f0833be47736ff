"""SqlSnapshot: a snapshot of one version of a view in an SQL database, unaffected by later writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from mainstem.clock import as_datetime
from mainstem.views.sql.sql_history import SqlHistory
from mainstem.views.sql.sql_page import SqlPages
from mainstem.views.sql.sql_tables import Row, SqlConnection, SqlTables
from mainstem.views.sqlite.sqlite_columns import arrow_column, python_row
from mainstem.views.view_facts import Facts
from mainstem.views.view_key import change_rows
from mainstem.views.view_store import Commit, KeptSince, KeyChange, Page, Progress

__all__ = ["SqlSnapshot"]

# Beyond every position.
LAST = 2**62


class SqlSnapshot:
    """A snapshot of a version: a transaction that sees one moment. Valid until the end of the `with` that returned it."""

    def __init__(self, connection: SqlConnection, tables: SqlTables, facts: Facts, location: str) -> None:
        self._connection = connection
        self._tables = tables
        self.facts = facts
        self.location = location

    @property
    def version(self) -> int:
        return self._tables.version

    @property
    def schema(self) -> pa.Schema:
        return self._tables.schema

    def _one(self, sql: str, *values: Any) -> Any:
        return next(iter(self._connection.query(sql, *values)), None)

    def get(self, key: Any, position: int | None = None) -> dict[str, Any] | None:
        tables = self._tables
        stored = tables.stored_key(key)
        if stored is None:
            return None
        changed = None if position is None else self._one(tables.select_row_before, *stored, position)
        if changed is not None:
            values = None if changed[0] == "insert" else changed[1:]
        else:
            values = self._one(tables.select_row, *stored)
        return None if values is None else python_row(values, self.schema, view=tables.view)

    def count(self, position: int | None = None) -> int:
        now = int(self._one(f"SELECT count(*) FROM {self._tables.rows}")[0])
        if position is None:
            return now
        later = f"FROM {self._tables.table('changes')} WHERE position > $1 AND change ="
        inserted, deleted = (
            self._one(f"SELECT count(*) {later} '{change}'", position)[0] for change in ("insert", "delete")
        )
        return now - int(inserted) + int(deleted)

    def bytes(self) -> int:
        return self._tables.bytes(self._connection)

    def batches(self, position: int | None = None) -> Iterator[pa.RecordBatch]:
        if position is None:
            found = self._connection.stream(self._tables.select_rows)
        else:
            found = self._connection.stream(self._tables.select_rows_before, position)
        yield from map(self._batch, found)

    def to_arrow(self, position: int | None = None) -> pa.Table:
        return pa.Table.from_batches(self.batches(position), schema=self.schema)

    def page(self, after: Any, limit: int, position: int | None = None) -> Page:
        # One more than asked for, which says whether any follows.
        found = SqlPages(self._connection, self._tables).read(after, limit + 1, position)
        rows = pa.Table.from_batches([self._batch(found[:limit])])
        return Page(rows, self._key(found[limit - 1]) if len(found) > limit else None)

    def _key(self, row: Row) -> tuple[Any, ...]:
        numbers = [self.schema.names.index(name) for name in self._tables.key]
        schema = pa.schema([self.schema.field(number) for number in numbers])
        return tuple(python_row([row[number] for number in numbers], schema, view=self._tables.view).values())

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else iter([()] * len(self.schema))
        arrays = [arrow_column(list(values), field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def offsets(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        select = f'SELECT topic, partition, "end" FROM {self._tables.table("offsets")}'
        for topic, partition, end in self._connection.query(select):
            found.setdefault(topic, {})[partition] = end
        return found

    def progress(self) -> Progress:
        found: Progress = self._one(f"SELECT flow, epoch, batch, applied_at FROM {self._tables.table('progress')}")
        return found

    # Changes

    def positions(self) -> tuple[int, int]:
        tables = self._tables
        kept = f" WHERE position > (SELECT trimmed FROM {tables.table('progress')})" if tables.keeps_trimmed else ""
        first, last = self._one(f"SELECT min(position), max(position) FROM {tables.table('changes')}{kept}")
        return int(first), int(last)

    def changes(self, after: int, until: int) -> pa.Table:
        ends = f"SELECT end_position, committed_at FROM {self._tables.table('commits')}"
        commits = self._connection.query(f"{ends} WHERE end_position > $1 ORDER BY end_position", after)
        old, new = (self._side(side, change, after, until) for side, change in (("old", "delete"), ("new", "insert")))
        return change_rows(self.schema, old, new, [(end, at) for end, at in commits])

    def _side(self, side: str, change: str, after: int, until: int) -> tuple[list[int], pa.RecordBatch]:
        rows = self._connection.query(self._tables.select_changes(side), after, until, change)
        return [row[0] for row in rows], self._batch([row[1:] for row in rows])

    def commits(self) -> list[tuple[int, int]]:
        select = f"SELECT end_position, batch FROM {self._tables.table('commits')} ORDER BY end_position"
        return [(end, batch) for end, batch in self._connection.query(select)]

    def last_commit(self, at: int) -> Commit | None:
        select = f"SELECT end_position, committed_at, batch FROM {self._tables.table('commits')}"
        found = self._one(f"{select} WHERE committed_at <= $1 ORDER BY end_position DESC LIMIT 1", at)
        return None if found is None else Commit(*map(int, found))

    def key_changes(self, key: Any, after: int, until: int | None, limit: int) -> list[KeyChange]:
        tables, width = self._tables, len(self.schema)
        stored = tables.stored_key(key)
        if stored is None:
            return []
        found = self._connection.query(
            tables.select_key_changes, *stored, after, LAST if until is None else until, limit
        )
        return [self._key_change(row[0], row[1], row[2 : 2 + width], row[2 + width :]) for row in found]

    def _key_change(self, position: int, change: str, old: Row, new: Row) -> KeyChange:
        select = f"SELECT committed_at, batch FROM {self._tables.table('commits')} WHERE end_position >= $1"
        commit = self._one(f"{select} ORDER BY end_position LIMIT 1", position)
        was, became = (python_row(values, self.schema, view=self._tables.view) for values in (old, new))
        return KeyChange(
            int(position), change, None if commit is None else as_datetime(int(commit[0])),
            -1 if commit is None else int(commit[1]), None if change == "insert" else was, None if change == "delete" else became,
        )  # fmt: skip

    # History

    def kept_since(self) -> KeptSince | None:
        return SqlHistory(self._connection, self._tables).since()

    def position_at(self, at: int) -> int | None:
        found = self.last_commit(at)
        return None if found is None else found.position

    def position_reached(self, topic: str, partition: int, end: int) -> int | None:
        select = (
            f"SELECT position FROM {self._tables.table('reached')} WHERE topic = $1 AND partition = $2 "
            'AND "end" >= $3 ORDER BY position LIMIT 1'
        )
        found = self._one(select, topic, partition, end)
        return None if found is None else int(found[0])

    def reached_offsets(self) -> list[tuple[int, str, int, int]]:
        select = f'SELECT position, topic, partition, "end" FROM {self._tables.table("reached")} ORDER BY position'
        return [(position, topic, number, end) for position, topic, number, end in self._connection.query(select)]
