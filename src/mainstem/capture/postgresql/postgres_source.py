"""PostgresSource: the changes of a PostgreSQL database, by logical replication.

A publication names the captured tables, a slot keeps the WAL that is not yet read. Both are named after the capture. The
slot is created by the first run and removed only by `capture drop`. Nothing else is written to the database.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from psycopg import sql

from mainstem.arguments import checked_call, text
from mainstem.capture.captured_table import CapturedTable, captured_tables, column_types
from mainstem.capture.masked_values import mask_of
from mainstem.capture.outbox_table import OUTBOX, postgres_outbox_sql
from mainstem.capture.source import SourceConnection
from mainstem.errors import Invalid
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.postgres.postgres_address import PostgresAddress

__all__ = ["PostgresSource", "postgres"]

# The name of a slot has 63 letters; the others are the prefix and a hash.
SLOT_LETTERS_MAX = 45


@checked_call
def postgres(
    url: str,
    *,
    tables: Iterable[str | CapturedTable] = (),
    types: Mapping[str, str] | None = None,
    outbox: bool = False,
    slot: str | None = None,
) -> PostgresSource:
    """Tables of a PostgreSQL database (14 or newer), captured by logical replication.

    `url`: "postgresql://user@host:5432/database". The user needs REPLICATION, and SELECT on the tables; `mainstem capture
    setup --print` prints the SQL for an administrator. `tables`: names or `CapturedTable`s. `types`: another type for a
    column, {"orders.until": "STRING"}. `outbox`: also relay what applications append with `outbox(connection)`. `slot`:
    the name of the replication slot and of the publication, by default `mainstem_<capture>`.

    >>> postgres("postgresql://reader:geheim@db/shop", tables=["customers", "orders"]).shown
    'postgresql://reader@db:5432/shop'
    """
    address = PostgresAddress.parse(text(url, "url"))
    named = captured_tables(tables)
    if not named and not outbox:
        raise Invalid(
            "no tables to capture are given",
            detail=f'The source is "{address.shown}".',
            hint='Name them: postgres(url, tables=["customers", "orders"]).',
        )
    given = column_types(types, named)
    if slot is not None and not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        raise Invalid(
            f'slot "{slot}" is not a name of a replication slot',
            detail="It may have lower-case letters, digits and _ only, at most 63.",
            hint="Leave it out: it is named after the capture.",
        )
    return PostgresSource(address, named, given, outbox, slot)


@dataclass(frozen=True)
class PostgresSource:
    """What `postgres(...)` returns."""

    address: PostgresAddress
    tables: tuple[CapturedTable, ...]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    with_outbox: bool = False
    given_slot: str | None = None

    kind = "postgres"

    @property
    def shown(self) -> str:
        """Its address without the password."""
        return self.address.shown

    @property
    def outbox(self) -> str | None:
        """The table of its outbox."""
        return OUTBOX if self.with_outbox else None

    def slot(self, capture: str) -> str:
        """The name of the slot and the publication."""
        if self.given_slot is not None:
            return self.given_slot
        safe = re.sub("[^a-z0-9_]", "_", capture.lower())[:SLOT_LETTERS_MAX]
        if safe == capture:
            return f"mainstem_{safe}"
        # Names that differ must not share a slot: each would miss what the other reads.
        return f"mainstem_{safe}_{hashlib.sha256(capture.encode()).hexdigest()[:8]}"

    def all_tables(self) -> tuple[CapturedTable, ...]:
        """The captured tables, and that of the outbox."""
        return (*self.tables, CapturedTable(OUTBOX)) if self.with_outbox else self.tables

    def publication_sql(self, capture: str, changed: str = "CREATE") -> sql.Composed:
        """The statement that makes the publication, or sets its tables."""
        tables = sql.SQL(", ").join(_published(one) for one in self.all_tables())
        name = sql.Identifier(self.slot(capture))
        if changed == "ALTER":
            return sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(name, tables)
        return sql.SQL(
            "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete, truncate', "
            "publish_via_partition_root = true)"
        ).format(name, tables)

    def setup_sql(self, capture: str) -> str:
        """What an administrator can run, so that REPLICATION and SELECT suffice."""
        user = str(self.address.parameters.get("user") or "reader")
        role, tables = sql.Identifier(user), sql.SQL(", ").join(table_name(one) for one in self.all_tables())
        parts = [
            *([sql.SQL(postgres_outbox_sql())] if self.with_outbox else []),
            self.publication_sql(capture),
            sql.SQL("ALTER ROLE {} REPLICATION").format(role),
            sql.SQL("GRANT SELECT ON {} TO {}").format(tables, role),
        ]
        lines = [f"{part.as_string(None)};" for part in parts]
        return "\n".join(["-- In postgresql.conf: wal_level = logical (needs a restart)", *lines])

    def open(self, capture: str, home: str) -> SourceConnection:
        """Connect to it."""
        from mainstem.capture.postgresql.postgres_connection import PostgresConnection

        return PostgresConnection(self, capture, home, mask_of(home, capture))

    def to_json(self) -> dict[str, Any]:
        """For another process of the same program; it has the password if the address has one."""
        return {
            "kind": self.kind,
            "url": self.address.url,
            "tables": [one.to_json() for one in self.tables],
            "types": {name: type_to_ddl(one) for name, one in self.types.items()},
            "outbox": self.with_outbox,
            "slot": self.given_slot,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PostgresSource:
        """From JSON."""
        tables = [CapturedTable.from_json(one) for one in value["tables"]]
        return postgres(value["url"], tables=tables, types=value["types"], outbox=value["outbox"], slot=value["slot"])


def table_name(table: CapturedTable) -> sql.Composed:
    """The table's name in SQL."""
    return sql.SQL("{}.{}").format(sql.Identifier(table.schema or "public"), sql.Identifier(table.table))


def _published(table: CapturedTable) -> sql.Composable:
    if table.where is None:
        return table_name(table)
    # The condition is the user's own SQL.
    return sql.SQL("{} WHERE ({})").format(table_name(table), sql.SQL(table.where))
