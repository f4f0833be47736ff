"""One version of a view in an SQL database: its tables, and the statements that follow from its key and columns.

    rows        the view's columns, by its key
    changes     position, change (insert | update | delete | none), and the old and the new row in the database's own form
    commits     end_position, committed_at, epoch, batch: when the changes up to a position were committed
    offsets     topic, partition, end: the end offsets applied
    progress    one row: flow, epoch, batch (the last one committed), applied_at, recording, and in most databases
                trimmed (changes up to this position are gone)
    about       the facts of this version: format, view, version, key, schema
    kept_since, reached    only while the view keeps its history: see sql_history.py

Positions number the changes from 1 and are never reused: the last change, or a row `none` instead of it, always stays.
Times of commits are microseconds since 1970.

A database adds its dialect: how a statement is run (`SqlConnection`), and a subclass of `SqlTables` with the names of its
tables and types, the form of a row in `changes`, and how a value is bound and read. Parameters are $1, $2, ...
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from mainstem.log.rows.schema_ddl import schema_to_ddl
from mainstem.names import quote_name
from mainstem.views.view_facts import FORMAT

__all__ = ["Row", "SqlConnection", "SqlTables", "list_columns"]

Row = tuple[Any, ...]


class SqlConnection(Protocol):
    """A connection to the database. Stored values are read in the form that `arrow_column` takes."""

    def query(self, sql: str, *values: Any) -> list[Row]:
        """All rows of the result."""

    def stream(self, sql: str, *values: Any) -> Iterator[list[Row]]:
        """The same in batches; memory does not grow with the result."""

    def write(self, sql: str, *values: Any) -> int:
        """Run a statement; returns the number of rows that it wrote."""

    def write_many(self, sql: str, rows: Iterable[Row]) -> None:
        """Run a statement for each row of values."""


@dataclass(frozen=True)
class SqlTables(ABC):
    """Key and columns of one version, and the SQL that follows from them. In statements `r` is a row, `c` a change."""

    view: str
    version: int
    key: tuple[str, ...]
    schema: pa.Schema

    # The dialect

    text: ClassVar[str] = "text"
    integer: ClassVar[str] = "integer"
    bigint: ClassVar[str] = "bigint"
    # Equality that treats nulls as equal.
    is_same: ClassVar[str] = "IS NOT DISTINCT FROM"
    # Locks the selected rows until the transaction ends.
    for_update: ClassVar[str] = " FOR UPDATE"
    # The suffix of the definition of a table that is stored by its key.
    by_key: ClassVar[str] = ""
    # Whether `progress` has the column `trimmed`.
    keeps_trimmed: ClassVar[bool] = True

    @abstractmethod
    def table(self, name: str) -> str:
        """A table, or an index, of this version."""

    @abstractmethod
    def column_type(self, data_type: pa.DataType) -> str:
        """The declared type of a column."""

    @abstractmethod
    def find_table(self, name: str) -> str:
        """Selects one row if the table exists."""

    @abstractmethod
    def bytes(self, connection: SqlConnection) -> int:
        """The size of this version on disk."""

    @abstractmethod
    def stored_key(self, key: Any) -> list[Any] | None:
        """A user's key as parameters; None if no row can have it."""

    @abstractmethod
    def bound_key(self, columns: Sequence[pa.Array]) -> list[Any]:
        """The values of a key, each an array of one, as parameters."""

    def bind(self, number: int, data_type: pa.DataType) -> str:
        """A parameter as a value of a column."""
        return f"${number}"

    def column(self, alias: str, field: pa.Field) -> str:
        """A column of a row, as it is read."""
        return f"{alias}.{quote_name(field.name)}"

    def comparable(self, new: pa.DataType, old: pa.DataType) -> bool:
        """Whether values of the two types can be compared; if not, only two nulls are equal."""
        return True

    # Rows in `changes`

    @property
    @abstractmethod
    def change_definitions(self) -> list[str]:
        """The columns of `changes` that hold the rows."""

    @property
    @abstractmethod
    def index_changes(self) -> str:
        """Creates the index `changes_by_key`."""

    @abstractmethod
    def changed_key(self, alias: str) -> list[str]:
        """The columns of the key of a change."""

    @abstractmethod
    def changed_row(self, side: str) -> dict[str, str]:
        """The columns of the "old" or the "new" row."""

    @abstractmethod
    def change_columns(self, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> dict[str, str]:
        """The columns of a change from an old row to a new one; a column that a row does not name is null in it."""

    # Creating

    @property
    def rows(self) -> str:
        return self.table("rows")

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns that are not in the key."""
        return tuple(name for name in self.schema.names if name not in self.key)

    def definitions(self) -> list[str]:
        """Creates all tables but those of the history."""
        columns = ", ".join(f"{quote_name(one.name)} {self.column_type(one.type)}".strip() for one in self.schema)
        text, integer, bigint = self.text, self.integer, self.bigint
        progress = f"flow {text}, epoch {bigint}, batch {bigint}, applied_at {bigint}, recording {integer}"
        progress += f", trimmed {bigint}" * self.keeps_trimmed
        tables = {
            "rows": f"({columns}, PRIMARY KEY ({list_columns(self.key)})){self.by_key}",
            "changes": f"(position {bigint} PRIMARY KEY, change {text} NOT NULL, {', '.join(self.change_definitions)})",
            "commits": f"(end_position {bigint} PRIMARY KEY, committed_at {bigint}, epoch {bigint}, batch {bigint})",
            "offsets": f'(topic {text}, partition {integer}, "end" {bigint}, PRIMARY KEY (topic, partition))',
            "progress": f"(only_row {integer} PRIMARY KEY CHECK (only_row = 1), {progress})",
            "about": f"(name {text} PRIMARY KEY, value {text})",
        }
        return [f"CREATE TABLE {self.table(name)} {columns}" for name, columns in tables.items()]

    def history_definitions(self) -> list[str]:
        """Creates the tables of the history, and the index of changes by key."""
        text, integer, bigint = self.text, self.integer, self.bigint
        reached = f'topic {text}, partition {integer}, position {bigint}, "end" {bigint}'
        tables = {
            "kept_since": f"(only_row {integer} PRIMARY KEY CHECK (only_row = 1), position {bigint}, at {bigint})",
            "reached": f"({reached}, PRIMARY KEY (topic, partition, position)){self.by_key}",
        }
        return [*(f"CREATE TABLE {self.table(name)} {columns}" for name, columns in tables.items()), self.index_changes]

    def about(self) -> dict[str, str]:
        return {
            "format": str(FORMAT),
            "view": self.view,
            "version": str(self.version),
            "key": json.dumps(self.key),
            "schema": schema_to_ddl(self.schema),
        }

    def create(self, connection: SqlConnection, *, recording: int) -> None:
        """Create the tables, empty, in the open transaction."""
        for statement in self.definitions():
            connection.write(statement)
        connection.write_many(f"INSERT INTO {self.table('about')} VALUES ($1, $2)", self.about().items())
        progress = (
            f"INSERT INTO {self.table('progress')} VALUES (1, NULL, 0, -1, NULL, $1{', -1' * self.keeps_trimmed})"
        )
        connection.write(progress, recording)
        connection.write(f"INSERT INTO {self.table('changes')} (position, change) VALUES (0, 'none')")

    # Reading

    def select_columns(self, alias: str) -> str:
        """All columns of a row, in order."""
        return ", ".join(self.column(alias, field) for field in self.schema)

    def selected_change(self, side: str) -> str:
        """The same for the "old" or the "new" row of a change."""
        return ", ".join(self.changed_row(side).values())

    def _key_is_given(self, columns: Iterable[str]) -> str:
        bound = (self.bind(number, self.schema.field(name).type) for number, name in enumerate(self.key, start=1))
        return " AND ".join(f"{column} = {value}" for column, value in zip(columns, bound, strict=True))

    @cached_property
    def select_row(self) -> str:
        """The row with a key."""
        found = self._key_is_given(f"r.{quote_name(name)}" for name in self.key)
        return f"SELECT {self.select_columns('r')} FROM {self.rows} AS r WHERE {found}"

    @cached_property
    def select_rows(self) -> str:
        """All rows, by key."""
        return f"SELECT {self.select_columns('r')} FROM {self.rows} AS r ORDER BY {list_columns(self.key, 'r')}"

    def select_changes(self, side: str) -> str:
        """The "old" or "new" rows of the changes after position $1, up to $2."""
        return (
            f"SELECT c.position, {self.selected_change(side)} FROM {self.table('changes')} AS c "
            "WHERE c.position > $1 AND c.position <= $2 AND c.change IN ('update', $3) ORDER BY c.position"
        )

    @cached_property
    def select_row_before(self) -> str:
        """The kind of the first change of a row after a position, and the row before it."""
        return (
            f"SELECT c.change, {self.selected_change('old')} FROM {self.table('changes')} AS c "
            f"WHERE {self._key_is_given(self.changed_key('c.'))} AND c.position > ${len(self.key) + 1} "
            "ORDER BY c.position LIMIT 1"
        )

    @cached_property
    def select_key_changes(self) -> str:
        """The last changes of a row after a position up to another, at most so many, newest first: position, kind, old and new
        row."""
        count = len(self.key)
        return (
            f"SELECT c.position, c.change, {self.selected_change('old')}, {self.selected_change('new')} "
            f"FROM {self.table('changes')} AS c WHERE {self._key_is_given(self.changed_key('c.'))} "
            f"AND c.position > ${count + 1} AND c.position <= ${count + 2} ORDER BY c.position DESC LIMIT ${count + 3}"
        )

    @cached_property
    def select_rows_before(self) -> str:
        """All rows as of position $1: for a row that changed since, its state before the first change."""
        changed = self.changed_key("c.")
        keys = ", ".join(f"{found} AS key_{number}" for number, found in enumerate(changed))
        same = " AND ".join(f"r.{quote_name(name)} = u.key_{number}" for number, name in enumerate(self.key))
        order = ", ".join(str(self.schema.names.index(name) + 1) for name in self.key)
        return (
            f"WITH undone AS MATERIALIZED (SELECT min(c.position) AS first, {keys} FROM {self.table('changes')} AS c "
            f"WHERE c.position > $1 AND c.change <> 'none' GROUP BY {', '.join(changed)}) "
            f"SELECT {self.select_columns('r')} FROM {self.rows} AS r LEFT JOIN undone AS u ON {same} WHERE u.first IS NULL "
            f"UNION ALL SELECT {self.selected_change('old')} FROM undone AS u JOIN {self.table('changes')} AS c "
            f"ON c.position = u.first WHERE c.change <> 'insert' ORDER BY {order}"
        )

    # Writing

    def insert_changes(
        self, change: str, position: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None, source: str
    ) -> str:
        """Writes changes of one kind, from the rows of `source`."""
        columns = self.change_columns(old, new)
        return (
            f"INSERT INTO {self.table('changes')} (position, change, {', '.join(columns)}) "
            f"SELECT {position}, '{change}', {', '.join(columns.values())} FROM {source}"
        )


def list_columns(names: Sequence[str], alias: str = "") -> str:
    """Quoted columns, separated by commas."""
    return ", ".join(f"{alias}.{quote_name(name)}" if alias else quote_name(name) for name in names)
