"""SqliteSource: the changes of a SQLite file, by triggers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mainstem.arguments import checked_call, path_text
from mainstem.capture.captured_table import CapturedTable, captured_tables, column_types
from mainstem.capture.masked_values import mask_of
from mainstem.capture.outbox_table import OUTBOX
from mainstem.capture.source import SourceConnection
from mainstem.capture.sqlite_connection import SqliteConnection
from mainstem.capture.sqlite_triggers import Names
from mainstem.errors import Invalid
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["SqliteSource", "sqlite"]


@checked_call
def sqlite(
    path: str | os.PathLike[str],
    *,
    tables: Iterable[str | CapturedTable] = (),
    types: Mapping[str, str] | None = None,
    outbox: bool = False,
) -> SqliteSource:
    """Tables of a SQLite file, captured by triggers that note each change in a table of the same file.

    The capture makes the triggers, reads the changes, and removes those that are in the log; so it must be allowed to
    write to the file. `tables`: names or `CapturedTable`s, each with a primary key. `types`: another type for a column,
    {"orders.code": "STRING"}. `outbox`: also relay what applications append with `outbox(connection)`.

    >>> sqlite("/srv/shop.db", tables=["customers", "orders"]).shown
    'sqlite:/srv/shop.db'
    """
    shown = os.path.abspath(path_text(path, "path"))
    named = captured_tables(tables)
    if not named and not outbox:
        raise Invalid(
            "no tables to capture are given",
            detail=f'The source is the file "{shown}".',
            hint='Name them: sqlite(path, tables=["customers", "orders"]).',
        )
    given = column_types(types, named)
    return SqliteSource(shown, named, given, outbox)


@dataclass(frozen=True)
class SqliteSource:
    """What `sqlite(...)` returns."""

    path: str
    tables: tuple[CapturedTable, ...]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    with_outbox: bool = False

    kind = "sqlite"

    @property
    def shown(self) -> str:
        """Its address."""
        return f"sqlite:{self.path}"

    @property
    def outbox(self) -> str | None:
        """The table of its outbox."""
        return OUTBOX if self.with_outbox else None

    def setup_sql(self, capture: str) -> str:
        """What the capture makes by itself: a file has no administrator."""
        names = Names(capture)
        tables = [names.changes, names.state, *([OUTBOX] if self.with_outbox else [])]
        triggered = [*(one.name for one in self.tables), *([OUTBOX] if self.with_outbox else [])]
        return "\n".join(
            [
                "-- The capture makes these by itself; its user must be allowed to write to the file.",
                *(f"-- table {one}" for one in tables),
                *(f"-- triggers on {one}" for one in triggered),
            ]
        )

    def open(self, capture: str, home: str) -> SourceConnection:
        """Open the file."""
        return SqliteConnection(
            self.path, capture, self.tables, self.types, mask_of(home, capture), with_outbox=self.with_outbox
        )

    def to_json(self) -> dict[str, Any]:
        """For another process of the same program."""
        return {
            "kind": self.kind,
            "path": self.path,
            "tables": [one.to_json() for one in self.tables],
            "types": {name: type_to_ddl(one) for name, one in self.types.items()},
            "outbox": self.with_outbox,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SqliteSource:
        """From JSON."""
        tables = [CapturedTable.from_json(one) for one in value["tables"]]
        return sqlite(value["path"], tables=tables, types=value["types"], outbox=value["outbox"])
