"""The schema of one version of a view in PostgreSQL: which tables it has, and the statements that read and write them.

    mainstem_<view>_<id>_v<n>
        rows       the view's columns, by its key
        changes    position, change, old and new: whole rows, null where there is none
        ...        the other tables: see sql_tables.py

The id in its name is that of the view: a view that was dropped and created again has other schemas, so a run that still
writes into the old ones fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from mainstem.log.rows.key_values import key_columns
from mainstem.names import quote_name
from mainstem.postgres.postgres_columns import (
    cast_sent,
    comparable,
    encode_column,
    postgres_type,
    select_column,
    shown_column,
    unfit,
    wire_type,
)
from mainstem.postgres.postgres_pool import Encoded
from mainstem.views.sql.sql_tables import SqlConnection, SqlTables, list_columns

__all__ = ["DELETES", "NAME_BYTES_MAX", "PostgresTables", "UPSERTS", "plain_view"]

# PostgreSQL silently truncates longer names.
NAME_BYTES_MAX = 63
# Temporary tables, into which a writer copies a batch first.
UPSERTS, DELETES = "pg_temp.mainstem_upserts", "pg_temp.mainstem_deletes"


@dataclass(frozen=True)
class PostgresTables(SqlTables):
    """Key and columns of one version, and the SQL that follows from them."""

    id: str

    @cached_property
    def name(self) -> str:
        """The schema's name; a long name of a view is cut, since the id is unique."""
        end = f"_{self.id[:8]}_v{self.version}"
        return f"mainstem_{self.view}"[: NAME_BYTES_MAX - len(end)] + end

    def table(self, name: str) -> str:
        return f"{quote_name(self.name)}.{name}"

    def column_type(self, data_type: pa.DataType) -> str:
        return postgres_type(data_type)

    def find_table(self, name: str) -> str:
        return f"SELECT 1 WHERE to_regclass('{self.table(name)}') IS NOT NULL"

    def bytes(self, connection: SqlConnection) -> int:
        """The size of its tables and their indexes."""
        sizes = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c WHERE c.relnamespace = $1::regnamespace"
        ((size,),) = connection.query(f"{sizes} AND c.relkind = 'r'", quote_name(self.name))
        return int(size)

    def stored_key(self, key: Any) -> list[Encoded] | None:
        columns = key_columns(key, self.key, self.schema, of=f'view "{self.view}"')
        for name, column in zip(self.key, columns, strict=True):
            if column.null_count or unfit(column, self.schema.field(name), self.key):
                return None
        return self.bound_key(columns)

    def bound_key(self, columns: Sequence[pa.Array]) -> list[Encoded]:
        return [Encoded(encode_column(column)[0].as_py(), wire_type(column.type)[1]) for column in columns]

    def bind(self, number: int, data_type: pa.DataType) -> str:
        return cast_sent(f"${number}", data_type)

    def column(self, alias: str, field: pa.Field) -> str:
        return select_column(alias, field)

    def comparable(self, new: pa.DataType, old: pa.DataType) -> bool:
        return comparable(new, old)

    def definitions(self) -> list[str]:
        return [f"CREATE SCHEMA {quote_name(self.name)}", *super().definitions()]

    def about(self) -> dict[str, str]:
        about = super().about()
        # As JSON: comments in it may have characters that PostgreSQL cannot store.
        return {**about, "schema": json.dumps(about["schema"])}

    # Changes

    @property
    def change_definitions(self) -> list[str]:
        return [f"old {self.rows}", f"new {self.rows}"]

    @property
    def index_changes(self) -> str:
        key = ", ".join(f"({expression})" for expression in self.changed_key(""))
        return f"CREATE INDEX changes_by_key ON {self.table('changes')} ({key}, position)"

    def changed_key(self, alias: str) -> list[str]:
        """The key of a change, from its new or its old row."""
        return [f"COALESCE(({alias}new).{quote_name(name)}, ({alias}old).{quote_name(name)})" for name in self.key]

    def changed_row(self, side: str) -> dict[str, str]:
        return {name: f"(c.{side}).{quote_name(name)}" for name in self.schema.names}

    def change_columns(self, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> dict[str, str]:
        return {
            side: f"ROW({', '.join(row.get(name, 'NULL') for name in self.schema.names)})::{self.rows}"
            if row
            else "NULL"
            for side, row in (("old", old), ("new", new))
        }

    # Reading

    def selected_change(self, side: str) -> str:
        return self.select_columns(f"(c.{side})")

    @cached_property
    def select_rows_before(self) -> str:
        # Sorted by the columns themselves, since decimals are read as text.
        changed = self.changed_key("c.")
        keys = ", ".join(f"{found} AS key_{number}" for number, found in enumerate(changed))
        same = " AND ".join(f"u.key_{number} = r.{quote_name(name)}" for number, name in enumerate(self.key))
        return (
            f"WITH undone AS MATERIALIZED (SELECT DISTINCT ON ({', '.join(changed)}) c.change, c.old, {keys} "
            f"FROM {self.table('changes')} AS c WHERE c.position > $1 AND c.change <> 'none' "
            f"ORDER BY {', '.join(changed)}, c.position), "
            f"before AS (SELECT r FROM {self.rows} AS r WHERE NOT EXISTS (SELECT 1 FROM undone AS u WHERE {same}) "
            "UNION ALL SELECT u.old FROM undone AS u WHERE u.change <> 'insert') "
            f"SELECT {self.select_columns('(b.r)')} FROM before AS b ORDER BY {list_columns(self.key, '(b.r)')}"
        )

    # Writing

    def staging(self) -> list[str]:
        """The tables that a batch is copied into, with the types in which values are sent."""
        made = []
        for table, names in ((UPSERTS, self.schema.names), (DELETES, list(self.key))):
            columns = ", ".join(f"{quote_name(name)} {wire_type(self.schema.field(name).type)[0]}" for name in names)
            made.append(f"CREATE TEMPORARY TABLE {table.partition('.')[2]} ({columns}) ON COMMIT DELETE ROWS")
        return made

    def _select_staged(self, table: str, names: Sequence[str]) -> str:
        columns = (
            f"{cast_sent(quote_name(name), self.schema.field(name).type)} AS {quote_name(name)}" for name in names
        )
        return f"(SELECT {', '.join(columns)} FROM {table})"

    def _match(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{quote_name(name)} = {other}.{quote_name(name)}" for name in self.key)

    @cached_property
    def record_upserts(self) -> str:
        """Record the changes of the upserts, after position $1; equal rows are not changes."""
        changed = f" OR ({list_columns(self.values, 'o')}) IS DISTINCT FROM ({list_columns(self.values, 'n')})" * bool(
            self.values
        )
        missing = f"o.{quote_name(self.key[0])} IS NULL"
        return (
            f"INSERT INTO {self.table('changes')} (position, change, old, new) "
            f"SELECT $1::bigint + row_number() OVER (ORDER BY {list_columns(self.key, 'n')}), "
            f"CASE WHEN {missing} THEN 'insert' ELSE 'update' END, o, "
            f"ROW({list_columns(self.schema.names, 'n')})::{self.rows} "
            f"FROM {self._select_staged(UPSERTS, self.schema.names)} AS n LEFT JOIN {self.rows} AS o ON {self._match('o', 'n')} "
            f"WHERE {missing}{changed}"
        )

    @cached_property
    def upsert(self) -> str:
        """Insert or replace rows; an equal row is not touched."""
        insert = (
            f"INSERT INTO {self.rows} AS o ({list_columns(self.schema.names)}) "
            f"SELECT {list_columns(self.schema.names, 'n')} FROM {self._select_staged(UPSERTS, self.schema.names)} AS n "
            f"ORDER BY {list_columns(self.key, 'n')} ON CONFLICT ({list_columns(self.key)})"
        )
        if not self.values:
            return f"{insert} DO NOTHING"
        changed = ", ".join(f"{quote_name(name)} = excluded.{quote_name(name)}" for name in self.values)
        other = f"({list_columns(self.values, 'o')}) IS DISTINCT FROM ({list_columns(self.values, 'excluded')})"
        return f"{insert} DO UPDATE SET {changed} WHERE {other}"

    @cached_property
    def record_deletes(self) -> str:
        """Record the changes of the deletes, after position $1."""
        return (
            f"INSERT INTO {self.table('changes')} (position, change, old) "
            f"SELECT $1::bigint + row_number() OVER (ORDER BY {list_columns(self.key, 'o')}), 'delete', o "
            f"FROM {self.rows} AS o JOIN {self._select_staged(DELETES, self.key)} AS n ON {self._match('o', 'n')}"
        )

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM {self.rows} AS o USING {self._select_staged(DELETES, self.key)} AS n WHERE {self._match('o', 'n')}"

    def copy(self, table: str) -> str:
        return f"COPY {table} FROM STDIN (FORMAT binary)"


def plain_view(tables: PostgresTables) -> str:
    """What the plain view of the view's own name selects."""
    return f"SELECT {', '.join(shown_column(field) for field in tables.schema)} FROM {tables.rows}"
