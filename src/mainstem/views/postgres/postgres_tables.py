"""The schema of one version of a view in PostgreSQL: which tables it has, and the statements that read and write them.

    mainstem_<view>_<id>_v<n>
        rows       the view's columns, by its key
        changes    position, change (insert | update | delete | none), old and new: whole rows, null where there is none
        commits    end_position, committed_at, epoch, batch: when the changes up to a position were committed
        offsets    topic, partition, end: the end offsets applied
        progress   one row: flow, epoch, batch (the last one committed), applied_at, recording,
                   trimmed (changes up to this position are gone)
        about      the facts of this schema: format, view, version, key, schema

and, if the view keeps its history, the two tables of `postgres_history.py`.

The id in its name is that of the view: a view that was dropped and created again has other schemas, so a run that still
writes into the old ones fails. Times of commits are microseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.views.postgres.postgres_columns import postgres_type, selected, shown_column, staged, wire_type
from mainstem.views.sqlite.sqlite_columns import quoted
from mainstem.views.view_facts import FORMAT

__all__ = ["DELETES", "NAME_BYTES_MAX", "PostgresTables", "UPSERTS", "plain_view"]

# What PostgreSQL cuts longer names to, without a word.
NAME_BYTES_MAX = 63
# The tables that a writer fills first: they are its connection's own.
UPSERTS, DELETES = "pg_temp.mainstem_upserts", "pg_temp.mainstem_deletes"


@dataclass(frozen=True)
class PostgresTables:
    """Key and columns of one version, and the SQL that follows from them."""

    view: str
    id: str
    version: int
    key: tuple[str, ...]
    schema: pa.Schema

    @cached_property
    def name(self) -> str:
        """The schema's name; a long name of a view is cut, since the id is unique."""
        end = f"_{self.id[:8]}_v{self.version}"
        return f"mainstem_{self.view}"[: NAME_BYTES_MAX - len(end)] + end

    def table(self, name: str) -> str:
        return f"{quoted(self.name)}.{name}"

    @property
    def rows(self) -> str:
        return self.table("rows")

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns that are not in the key."""
        return tuple(name for name in self.schema.names if name not in self.key)

    # Making

    def definitions(self) -> list[str]:
        columns = ", ".join(f"{quoted(field.name)} {postgres_type(field.type)}" for field in self.schema)
        table = self.table
        return [
            f"CREATE SCHEMA {quoted(self.name)}",
            f"CREATE TABLE {self.rows} ({columns}, PRIMARY KEY ({_listed(self.key)}))",
            (
                f"CREATE TABLE {table('changes')} (position bigint PRIMARY KEY, change text NOT NULL, "
                f"old {self.rows}, new {self.rows})"
            ),
            (
                f"CREATE TABLE {table('commits')} "
                "(end_position bigint PRIMARY KEY, committed_at bigint, epoch bigint, batch bigint)"
            ),
            f'CREATE TABLE {table("offsets")} (topic text, partition integer, "end" bigint, PRIMARY KEY (topic, partition))',
            (
                f"CREATE TABLE {table('progress')} (only_row integer PRIMARY KEY CHECK (only_row = 1), flow text, "
                "epoch bigint, batch bigint, applied_at bigint, recording integer, trimmed bigint)"
            ),
            f"CREATE TABLE {table('about')} (name text PRIMARY KEY, value text)",
        ]

    def about(self) -> Iterable[tuple[str, str]]:
        return {
            "format": str(FORMAT),
            "view": self.view,
            "version": str(self.version),
            "key": json.dumps(self.key),
            # As JSON: comments in it may hold characters that PostgreSQL has not.
            "schema": json.dumps(schema_to_ddl(self.schema)),
        }.items()

    # Reading

    @cached_property
    def select_row(self) -> str:
        given = (staged(f"${place}", self.schema.field(name).type) for place, name in enumerate(self.key, start=1))
        found = " AND ".join(f"r.{quoted(name)} = {value}" for name, value in zip(self.key, given, strict=True))
        return f"SELECT {self.selected('r')} FROM {self.rows} AS r WHERE {found}"

    @cached_property
    def select_rows(self) -> str:
        return f"SELECT {self.selected('r')} FROM {self.rows} AS r ORDER BY {_listed(self.key, 'r')}"

    def selected(self, alias: str) -> str:
        return ", ".join(selected(alias, field) for field in self.schema)

    def select_changes(self, side: str) -> str:
        """The rows of changes as they were ("old") or became ("new"), in the order of the schema."""
        return (
            f"SELECT c.position, {self.selected(f'(c.{side})')} FROM {self.table('changes')} AS c "
            "WHERE c.position > $1 AND c.position <= $2 AND c.change IN ('update', $3) ORDER BY c.position"
        )

    def changed_key(self, alias: str, key: Sequence[str]) -> list[str]:
        """SQL for the key of a change, whichever of its rows is there."""
        prefix = f"{alias}." if alias else ""
        return [f"COALESCE(({prefix}new).{quoted(name)}, ({prefix}old).{quoted(name)})" for name in key]

    @cached_property
    def select_row_before(self) -> str:
        """What the first change of a row behind a position was, and the row before it."""
        given = (staged(f"${place}", self.schema.field(name).type) for place, name in enumerate(self.key, start=1))
        found = " AND ".join(
            f"{found} = {value}" for found, value in zip(self.changed_key("c", self.key), given, strict=True)
        )
        return (
            f"SELECT c.change, {self.selected('(c.old)')} FROM {self.table('changes')} AS c "
            f"WHERE {found} AND c.position > ${len(self.key) + 1} ORDER BY c.position LIMIT 1"
        )

    @cached_property
    def select_rows_before(self) -> str:
        """All rows as they were right after position $1: of each that changed since, the one before its first change."""
        changed = self.changed_key("c", self.key)
        keys = ", ".join(f"{found} AS key_{number}" for number, found in enumerate(changed))
        same = " AND ".join(f"u.key_{number} = r.{quoted(name)}" for number, name in enumerate(self.key))
        return (
            f"WITH undone AS MATERIALIZED (SELECT DISTINCT ON ({', '.join(changed)}) c.change, c.old, {keys} "
            f"FROM {self.table('changes')} AS c WHERE c.position > $1 AND c.change <> 'none' "
            f"ORDER BY {', '.join(changed)}, c.position), "
            f"before AS (SELECT r FROM {self.rows} AS r WHERE NOT EXISTS (SELECT 1 FROM undone AS u WHERE {same}) "
            "UNION ALL SELECT u.old FROM undone AS u WHERE u.change <> 'insert') "
            f"SELECT {self.selected('(b.r)')} FROM before AS b ORDER BY {_listed(self.key, '(b.r)')}"
        )

    # Writing

    def staging(self) -> list[str]:
        """The tables that a batch is copied into, in the types in which values travel."""
        made = []
        for table, names in ((UPSERTS, self.schema.names), (DELETES, list(self.key))):
            columns = ", ".join(f"{quoted(name)} {wire_type(self.schema.field(name).type)[0]}" for name in names)
            made.append(f"CREATE TEMPORARY TABLE {table.partition('.')[2]} ({columns}) ON COMMIT DELETE ROWS")
        return made

    def _staged(self, table: str, names: Sequence[str]) -> str:
        columns = (f"{staged(quoted(name), self.schema.field(name).type)} AS {quoted(name)}" for name in names)
        return f"(SELECT {', '.join(columns)} FROM {table})"

    def _match(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in self.key)

    @cached_property
    def record_upserts(self) -> str:
        """Record the changes of the upserts, after position $1; equal rows are not changes."""
        changed = f" OR ({_listed(self.values, 'o')}) IS DISTINCT FROM ({_listed(self.values, 'n')})" * bool(
            self.values
        )
        missing = f"o.{quoted(self.key[0])} IS NULL"
        return (
            f"INSERT INTO {self.table('changes')} (position, change, old, new) "
            f"SELECT $1::bigint + row_number() OVER (ORDER BY {_listed(self.key, 'n')}), "
            f"CASE WHEN {missing} THEN 'insert' ELSE 'update' END, o, "
            f"ROW({_listed(self.schema.names, 'n')})::{self.rows} "
            f"FROM {self._staged(UPSERTS, self.schema.names)} AS n LEFT JOIN {self.rows} AS o ON {self._match('o', 'n')} "
            f"WHERE {missing}{changed}"
        )

    @cached_property
    def upsert(self) -> str:
        """Insert or replace rows; an equal row is not touched."""
        insert = (
            f"INSERT INTO {self.rows} AS o ({_listed(self.schema.names)}) "
            f"SELECT {_listed(self.schema.names, 'n')} FROM {self._staged(UPSERTS, self.schema.names)} AS n "
            f"ORDER BY {_listed(self.key, 'n')} ON CONFLICT ({_listed(self.key)})"
        )
        if not self.values:
            return f"{insert} DO NOTHING"
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in self.values)
        other = f"({_listed(self.values, 'o')}) IS DISTINCT FROM ({_listed(self.values, 'excluded')})"
        return f"{insert} DO UPDATE SET {changed} WHERE {other}"

    @cached_property
    def record_deletes(self) -> str:
        """Record the changes of the deletes, after position $1."""
        return (
            f"INSERT INTO {self.table('changes')} (position, change, old) "
            f"SELECT $1::bigint + row_number() OVER (ORDER BY {_listed(self.key, 'o')}), 'delete', o "
            f"FROM {self.rows} AS o JOIN {self._staged(DELETES, self.key)} AS n ON {self._match('o', 'n')}"
        )

    @cached_property
    def delete(self) -> str:
        return (
            f"DELETE FROM {self.rows} AS o USING {self._staged(DELETES, self.key)} AS n WHERE {self._match('o', 'n')}"
        )

    def copy(self, table: str) -> str:
        return f"COPY {table} FROM STDIN (FORMAT binary)"

    def row_of(self, values: Sequence[Any]) -> str:
        """SQL for a whole row of `rows`."""
        return f"ROW({', '.join(map(str, values))})::{self.rows}"


def plain_view(tables: PostgresTables) -> str:
    """What the plain view of the view's own name selects."""
    return f"SELECT {', '.join(shown_column(field) for field in tables.schema)} FROM {tables.rows}"


def _listed(names: Sequence[str], alias: str = "") -> str:
    return ", ".join(f"{alias}.{quoted(name)}" if alias else quoted(name) for name in names)
