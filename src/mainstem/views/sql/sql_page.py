"""SqlPages: some rows of a version of a view, in the order of its keys; the work does not grow with the view.

The current rows after a key are one range of the index by key. Past rows are found from the keys after the key, those of
current rows and those of changes; of each key the first change after the position says what its row was. The index of the
changes by key has an entry for each change, so a key that changed often is passed with one look-up of the next key: a
change is the address of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.log.rows.row_errors import format_value
from mainstem.names import quote_name
from mainstem.views.sql.sql_tables import Row, SqlConnection, SqlTables, list_columns
from mainstem.views.sqlite.sqlite_columns import arrow_column

__all__ = ["SqlPages"]


class SqlPages:
    """Reads pages of one version, through the connection of the caller, inside its open transaction."""

    def __init__(self, connection: SqlConnection, tables: SqlTables) -> None:
        self._connection = connection
        self._tables = tables

    def read(self, after: Any, limit: int, position: int | None) -> list[Row]:
        """Up to `limit` rows with a key after this one, None: from the first; as they were right after a position."""
        bound = [] if after is None else self._bound(after)
        if position is None:
            return self._connection.query(self._select_rows(bound), *bound, limit)
        return self._rows_before(bound, limit, position)

    def _bound(self, key: Any) -> Sequence[Any]:
        stored = self._tables.stored_key(key)
        if stored is None or None in stored:
            raise Invalid(
                f'no row of view "{self._tables.view}" can have the key {format_value(key)}',
                detail=f"Its key is {', '.join(self._tables.key)}: none of these is null, and its store must support the values.",
                hint="Give the key of a row: that of the last row of a page is page.after.",
            )
        return stored

    def _rows_before(self, bound: Sequence[Any], limit: int, position: int) -> list[Row]:
        width, columns = len(self._tables.key), len(self._tables.schema)
        found: list[Row] = []
        while True:
            keys = self._connection.query(self._select_rows_before(bound), *bound, limit, position)
            for row in keys:
                change, old, current = row[width], row[width + 1 : width + 1 + columns], row[width + 1 + columns :]
                # A key without a row now, and without a later change, had no row then either.
                was = current if change is None else old
                if change != "insert" and was[self._tables.schema.names.index(self._tables.key[0])] is not None:
                    found.append(was)
            if len(found) >= limit or len(keys) < limit:
                return found[:limit]
            bound = self._tables.bound_key(self._key_columns(keys[-1][:width]))

    def _key_columns(self, values: Sequence[Any]) -> list[pa.Array]:
        types = [self._tables.schema.field(name).type for name in self._tables.key]
        return [arrow_column([value], data_type) for value, data_type in zip(values, types, strict=True)]

    # Statements

    def _given(self) -> str:
        tables = self._tables
        return ", ".join(
            tables.bind(number, tables.schema.field(name).type) for number, name in enumerate(tables.key, 1)
        )

    def _where_after(self, columns: Sequence[str], bound: Sequence[Any]) -> str:
        return f"WHERE ({', '.join(columns)}) > ({self._given()})" if bound else "WHERE TRUE"

    def _select_rows(self, bound: Sequence[Any]) -> str:
        tables = self._tables
        key = [f"r.{quote_name(name)}" for name in tables.key]
        return (
            f"SELECT {tables.select_columns('r')} FROM {tables.rows} AS r {self._where_after(key, bound)} "
            f"ORDER BY {', '.join(key)} LIMIT ${len(bound) + 1}"
        )

    def _select_rows_before(self, bound: Sequence[Any]) -> str:
        """For each of the next keys: the key, the kind of its first change after the position with the old row, and its
        current row."""
        tables, changes = self._tables, self._tables.table("changes")
        limit, position = f"${len(bound) + 1}", f"${len(bound) + 2}"
        key = [quote_name(name) for name in tables.key]
        current, listed = [f"r.{name}" for name in key], list_columns(tables.key, "k")
        following, first = (tables.changed_key(alias) for alias in ("n.", "f."))
        # A value each, and no join: PostgreSQL would compare the key of every change with it.
        earlier = [
            f"(SELECT {one} FROM {changes} AS e WHERE e.position = h.position)" for one in tables.changed_key("e.")
        ]
        next_key = f"ORDER BY {', '.join(following)}, n.position LIMIT 1"
        named = ", ".join(f"{column} AS {name}" for column, name in zip(following, key, strict=True))
        same, present = (
            " AND ".join(f"{column} = k.{name}" for column, name in zip(columns, key, strict=True))
            for columns in (first, current)
        )
        return (
            f"WITH RECURSIVE changed (step, position) AS (SELECT 1, (SELECT n.position FROM {changes} AS n "
            f"{self._where_after(following, bound)} AND n.change <> 'none' {next_key}) UNION ALL "
            f"SELECT h.step + 1, (SELECT n.position FROM {changes} AS n "
            f"WHERE ({', '.join(following)}) > ({', '.join(earlier)}) {next_key}) "
            f"FROM changed AS h WHERE h.step < {limit} AND h.position IS NOT NULL), "
            f"candidates AS (SELECT * FROM (SELECT {', '.join(current)} FROM {tables.rows} AS r "
            f"{self._where_after(current, bound)} ORDER BY {', '.join(current)} LIMIT {limit}) AS present UNION "
            f"SELECT {named} FROM changed AS h JOIN {changes} AS n ON n.position = h.position) "
            f"SELECT {', '.join(tables.column('k', tables.schema.field(name)) for name in tables.key)}, "
            f"c.change, {tables.selected_change('old')}, {tables.select_columns('r')} "
            f"FROM (SELECT * FROM candidates AS k ORDER BY {listed} LIMIT {limit}) AS k "
            f"LEFT JOIN {changes} AS c ON c.position = (SELECT f.position FROM {changes} AS f "
            f"WHERE {same} AND f.position > {position} ORDER BY f.position LIMIT 1) "
            f"LEFT JOIN {tables.rows} AS r ON {present} ORDER BY {listed}"
        )
