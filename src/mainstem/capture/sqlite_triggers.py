"""SqliteTriggers: the SQL by which a SQLite file keeps its changes for a capture.

    mainstem_changes_<capture>   sequence | shape | change | at | o1, o2, ... old values | n1, n2, ... new values
    mainstem_capture_<capture>   name | value: its id, the sequence up to which rows were removed, and shapes

A shape says which columns of which table the numbered values are. The values have no declared type, so every value is kept
as it is. `change` is insert, update, delete or replaced: `INSERT OR REPLACE` may remove other rows, by a unique index,
without firing their triggers. So a trigger before it notes the rows with equal values, and the reader looks which of them
are left.

The triggers can fail only as any write can: they call no function but julianday(), and nothing that they insert is unique
or checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.capture.captured_table import CapturedTable, check_columns, is_wanted
from mainstem.capture.outbox_table import OUTBOX, OUTBOX_COLUMNS
from mainstem.errors import Invalid, did_you_mean

__all__ = ["EVENTS", "Names", "Shape", "outbox_shape", "quoted", "read_shape", "trigger_sql"]

# Names that a topic's rows have already.
# SQLite allows 2,000 columns in a table.
COLUMNS_MAX = 900
EVENTS = ("insert", "update", "delete", "before_insert", "before_update")


def quoted(name: str) -> str:
    """A name in SQL.

    >>> print(quoted('odd "name"'))
    "odd ""name""\"
    """
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Names:
    """The names that a capture has in the file."""

    capture: str

    @property
    def changes(self) -> str:
        return f"mainstem_changes_{self.capture}"

    @property
    def state(self) -> str:
        return f"mainstem_capture_{self.capture}"

    def trigger(self, table: str, event: str) -> str:
        return f"mainstem_{event}_{self.capture}:{table}"


@dataclass(frozen=True)
class Shape:
    """A captured table as its triggers keep it. `name`: as captured; `table`: as the file has it; `columns`: names and
    declared types; `unique`: the columns of each further unique index; `old`: the columns whose old values are kept."""

    name: str
    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    old: tuple[str, ...] = ()

    @property
    def events(self) -> list[str]:
        """The events that have a trigger."""
        if self.table == OUTBOX:
            return ["insert"]
        return list(EVENTS if self.unique else EVENTS[:3])

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "table": self.table, "columns": self.columns, "key": self.key, "unique": self.unique,
                "old": self.old}  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Shape:
        """From JSON."""
        return cls(
            value["name"], value["table"], tuple((name, declared) for name, declared in value["columns"]),
            tuple(value["key"]), tuple(tuple(one) for one in value["unique"]), tuple(value["old"]),
        )  # fmt: skip


def trigger_sql(names: Names, shape: Shape, number: int) -> list[str]:
    """The statements that make the triggers of a table."""
    changes, table = quoted(names.changes), quoted(shape.table)
    places = {name: place for place, (name, _) in enumerate(shape.columns, 1)}
    new = [(f"n{place}", f"NEW.{quoted(name)}") for name, place in places.items()]
    old = [(f"o{places[name]}", f"OLD.{quoted(name)}") for name in shape.old]

    def insert(change: str, values: Iterable[tuple[str, str]]) -> str:
        columns = [("shape", str(number)), ("change", f"'{change}'"), ("at", "julianday('now')"), *values]
        return (
            f"INSERT INTO {changes} ({', '.join(name for name, _ in columns)}) "
            f"SELECT {', '.join(value for _, value in columns)}"
        )

    def replaced(other: str) -> str:
        found = []
        key = [(f"o{places[name]}", f"{table}.{quoted(name)}") for name in shape.key]
        for unique in shape.unique:
            same = " AND ".join(f"{table}.{quoted(name)} = NEW.{quoted(name)}" for name in unique)
            # By bytes: with COLLATE NOCASE a and A are equal, and two keys of the topic.
            self = " AND ".join(
                f"{table}.{quoted(name)} COLLATE BINARY IS {other}.{quoted(name)}" for name in shape.key
            )
            found.append(f"{insert('replaced', key)} FROM {table} WHERE {same} AND NOT ({self})")
        return "; ".join(found)

    bodies = {
        "insert": ("AFTER INSERT", insert("insert", new)),
        "update": ("AFTER UPDATE", insert("update", [*old, *new])),
        "delete": ("AFTER DELETE", insert("delete", old)),
        "before_insert": ("BEFORE INSERT", replaced("NEW")),
        "before_update": ("BEFORE UPDATE", replaced("OLD")),
    }
    return [
        f"CREATE TRIGGER {quoted(names.trigger(shape.table, event))} {bodies[event][0]} ON {table} FOR EACH ROW "
        f"BEGIN {bodies[event][1]}; END"
        for event in shape.events
    ]


def read_shape(database: sqlite3.Connection, captured: CapturedTable, shown: str) -> Shape:
    """A table as it is now; raises `Invalid` if it cannot be captured."""
    if captured.schema not in (None, "main"):
        raise Invalid(
            f'table "{captured.name}" is not in the file itself',
            detail="Triggers of a file see its own tables only.",
            hint=f'Capture the file that has schema "{captured.schema}", by its own path.',
        )
    row = database.execute(
        "SELECT name, type, sql, rootpage FROM sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE",
        [captured.table],
    ).fetchone()
    if row is None:
        raise _no_such_table(database, captured, shown)
    table, kind, _, root = row
    if kind != "table" or not root:
        raise Invalid(
            f'"{captured.name}" is not a table with rows of its own',
            detail="Triggers on views and virtual tables do not see changes of rows. Nothing was changed.",
            hint="Capture the tables that it reads.",
        )
    found = database.execute(
        "SELECT name, type, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid", [table]
    ).fetchall()
    key = tuple(name for _, name in sorted((place, name) for name, _, place, _ in found if place))
    # Generated columns follow from the others.
    columns = [(name, declared or "") for name, declared, _, hidden in found if not hidden]
    _check(captured, [name for name, _ in columns], key)
    wanted = [one for one in columns if is_wanted(captured, one[0], key)]
    if len(wanted) > COLUMNS_MAX:
        raise Invalid(
            f'table "{captured.name}" has {len(wanted)} columns',
            detail=f"At most {COLUMNS_MAX} can be captured. Nothing was changed.",
            hint="Capture some of them: CapturedTable(..., columns=[...]).",
        )
    old = tuple(name for name, _ in wanted) if captured.before == "row" else key
    return Shape(captured.name, table, tuple(wanted), key, _unique(database, table), old)


def _unique(database: sqlite3.Connection, table: str) -> tuple[tuple[str, ...], ...]:
    """The columns of each unique index; not those of expressions. That of the primary key only if it takes different texts
    for the same (COLLATE NOCASE): a row that replaces an equal one by bytes has its key."""
    found = set()
    for index, origin in database.execute(
        'SELECT name, origin FROM pragma_index_list(?) WHERE "unique"', [table]
    ).fetchall():
        columns = database.execute(
            "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", [index]
        ).fetchall()
        by_bytes = all(collation.upper() == "BINARY" for _, collation in columns)
        if all(name is not None for name, _ in columns) and not (origin == "pk" and by_bytes):
            found.add(tuple(name for name, _ in columns))
    return tuple(sorted(found))


def _check(captured: CapturedTable, names: list[str], key: tuple[str, ...]) -> None:
    if not key:
        raise Invalid(
            f'table "{captured.name}" has no primary key',
            detail="Its changes cannot be assigned to rows: a rowid alone may change with VACUUM. Nothing was changed.",
            hint="Make the table anew with a PRIMARY KEY, and copy the rows.",
        )
    if captured.where is not None:
        raise Invalid(
            f'table "{captured.name}" is captured with where=, which a SQLite file does not have',
            detail="The condition would be a part of triggers, and an error in it would break the application.",
            hint="Capture all rows, and filter them in a flow.",
        )
    check_columns(captured, names, key)


def outbox_shape() -> Shape:
    """The table of the outbox: its inserts are messages."""
    return Shape(OUTBOX, OUTBOX, tuple((name, "text") for name in OUTBOX_COLUMNS), ("id",), old=("id",))


def _no_such_table(database: sqlite3.Connection, captured: CapturedTable, shown: str) -> Invalid:
    rows = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'mainstem_%' "
        "ORDER BY name LIMIT 1000"
    )
    names = [name for (name,) in rows]
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return Invalid(
        f'table "{captured.name}" does not exist',
        detail=f'"{shown}" has the tables: {listed or "none"}.',
        hint=did_you_mean(captured.name, names) or "A name with a point is written with quotes: '\"odd.name\"'.",
    )
