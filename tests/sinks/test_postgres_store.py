"""A table of PostgreSQL keeps the contract of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from mainstem.errors import Conflict, Invalid
from mainstem.sinks.postgres_store import PostgresStore
from mainstem.testing.store_contract import StoreContract
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.starts_servers


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: PostgresServer) -> None:
        self.server = server

    def schema(self, folder: Path) -> str:
        return "s" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.address(), autocommit=True)

    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        schema = self.schema(folder)
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        return "mainstem.sinks.postgres_store:PostgresStore", {"url": self.server.address(), "table": f"{schema}.tried"}

    def tables(self, connection: psycopg.Connection[Any], schema: str) -> list[str]:
        return [
            name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        ]

    def save(self, folder: Path) -> dict[str, list[Any]]:
        schema = self.schema(folder)
        with self.connect() as connection:
            return {
                name: connection.execute(f'SELECT * FROM {schema}."{name}"').fetchall()
                for name in self.tables(connection, schema)
            }

    def restore(self, folder: Path, saved: dict[str, list[Any]]) -> None:
        schema = self.schema(folder)
        with self.connect() as connection, connection.transaction():
            for name in self.tables(connection, schema):
                if name not in saved:
                    connection.execute(f'DROP TABLE {schema}."{name}"')
                    continue
                connection.execute(f'DELETE FROM {schema}."{name}"')
                for row in saved[name]:
                    marks = ", ".join(["%s"] * len(row))
                    connection.execute(f'INSERT INTO {schema}."{name}" VALUES ({marks})', row)

    def put_foreign(self, folder: Path) -> bool:
        with self.connect() as connection:
            connection.execute(f"CREATE TABLE {self.schema(folder)}.tried (id int PRIMARY KEY)")
        return True

    def test_a_table_of_others_is_not_taken_for_the_next_version(self, tmp_path: Path) -> None:
        _, options = self.opens_with(tmp_path)
        schema = self.schema(tmp_path)
        with self.connect() as connection:
            connection.execute(f"CREATE TABLE {schema}.mainstem_next_tried (mine int)")
            with pytest.raises(Conflict, match="no flow has made it"):
                PostgresStore(**options).drop("beside")
            assert self.tables(connection, schema) == ["mainstem_next_tried"]

    @pytest.mark.parametrize("name", ["mainstem_stores", "mainstem_next_tried"])
    def test_a_table_of_mainstem_itself_cannot_be_a_store(self, name: str) -> None:
        with pytest.raises(Invalid, match="cannot be a store"):
            PostgresStore(self.server.address(), f"public.{name}")

    def test_a_column_that_every_table_has_is_refused(self) -> None:
        with pytest.raises(Invalid, match='column named "ctid"'):
            PostgresStore(self.server.address(), "tried").check(pa.schema([("ctid", pa.int64())]), ())


@pytest.mark.long
class TestKilledPostgresStore(TestPostgresStore):
    kills = 20
