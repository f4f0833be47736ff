"""ShopDatabase: a database of its own on the tests' PostgreSQL, with customers and orders; its slots go with it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

__all__ = ["ShopDatabase", "shop_database"]

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, amount numeric(10, 2), placed_at timestamptz DEFAULT now());
INSERT INTO customers SELECT i, 'customer ' || i, CASE i % 2 WHEN 0 THEN 'Berlin' ELSE 'Paris' END FROM generate_series(1, 10) i;
INSERT INTO orders SELECT i, 1 + i % 10, i * 1.5 FROM generate_series(1, 100) i;
"""


class ShopDatabase:
    """An address and an open connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = psycopg.connect(address, autocommit=True)

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, if it has any."""
        cursor = self._connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def slots(self) -> list[str]:
        return [row[0] for row in self.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
        )]  # fmt: skip

    def publications(self) -> list[str]:
        return [row[0] for row in self.execute("SELECT pubname::text FROM pg_publication ORDER BY 1")]

    def program(self, *, flows: str = "", tables: str = '["customers", "orders"]', name: str = "shop") -> str:
        """The text of a program that captures it."""
        return (
            "from mainstem import Capture\nfrom mainstem.capture import CapturedTable, postgres\n\n"
            f"def captures(stem):\n    yield Capture({name!r}, postgres({self.address!r}, tables={tables}, slot={self.slot!r}))\n"
            f"\n{flows}"
        )

    @property
    def slot(self) -> str:
        """A slot's name is one for the whole server, so it is that of the database."""
        return self.execute("SELECT current_database()::text")[0][0]

    def close(self) -> None:
        self._connection.close()


@contextmanager
def shop_database(server: PostgresServer) -> Iterator[ShopDatabase]:
    name = f"shop_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.address(), autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {name}")
        shop = ShopDatabase(server.address(name))
        try:
            shop.execute(TABLES)
            yield shop
        finally:
            shop.close()
            wait_until(lambda: _drop_slots(administrator, name))
            administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _drop_slots(administrator: psycopg.Connection[Any], database: str) -> bool:
    """End the readers of a database's slots, and drop those that are free; whether none is left."""
    slots = "FROM pg_replication_slots WHERE database = %s"
    administrator.execute(f"SELECT pg_terminate_backend(active_pid) {slots} AND active", [database])
    with suppress(psycopg.errors.ObjectInUse):
        administrator.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots} AND NOT active", [database])
    return not administrator.execute(f"SELECT {slots}", [database]).fetchall()
