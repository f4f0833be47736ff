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
from mainstem.testing.store_trial import changes
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.starts_servers


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


# What others do to a table, the numbers of the rows that it then refuses, and the rows that it has afterwards.
NOT_BAD = {1: "taken", 2: "better", 4: "moved", 6: "taken"}
UNIQUE = {1: "taken", 2: "bad", 4: "moved"}
TITLES = """
CREATE TABLE titles (title text PRIMARY KEY);
INSERT INTO titles VALUES ('taken'), ('fine'), ('better'), ('moved');
ALTER TABLE tried ADD FOREIGN KEY (title) REFERENCES titles
"""
TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger AS 'BEGIN RAISE EXCEPTION ''not here''; END' LANGUAGE plpgsql;
CREATE TRIGGER refuse BEFORE INSERT ON tried FOR EACH ROW WHEN (NEW.title = 'bad') EXECUTE FUNCTION refuse()
"""
NOT_NULL = "ALTER TABLE tried ADD COLUMN note text NOT NULL DEFAULT ''; ALTER TABLE tried ALTER note DROP DEFAULT"
RULES: dict[str, tuple[str, list[int], dict[int, str]]] = {
    "check": ("ALTER TABLE tried ADD CHECK (title <> 'bad')", [1, 4], NOT_BAD),
    "unique": ("CREATE UNIQUE INDEX ON tried (title)", [4, 5], UNIQUE),
    "deferred": ("ALTER TABLE tried ADD UNIQUE (title) DEFERRABLE INITIALLY DEFERRED", [4, 5], UNIQUE),
    "not null": (NOT_NULL, [0, 1, 3, 4, 5], {1: "taken", 2: "fine"}),
    "foreign key": (TITLES, [1, 4], NOT_BAD),
    "trigger": (TRIGGER, [1, 4], NOT_BAD),
}


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

    @pytest.mark.parametrize("rule", RULES)
    def test_rows_that_break_a_rule_of_others_are_rejected_and_the_others_are_written(
        self, rule: str, tmp_path: Path
    ) -> None:
        forbids, refused, expected = RULES[rule]
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(1, "taken", "insert"), (2, "fine", "insert"), (3, "moved", "insert")]))
        writer.finish()
        with self.connect() as connection:
            connection.execute(f"SET search_path = {self.schema(tmp_path)}")
            connection.execute(forbids)
        rows = changes(
            [
                (2, "better", "insert"),
                (2, "bad", "insert"),
                (3, None, "delete"),
                (4, "moved", "insert"),
                (5, "bad", "insert"),
                (6, "taken", "insert"),
            ],
            first=10,
        )
        prepared = writer.prepare(rows)
        assert [rejection.row for rejection in prepared.rejections] == refused
        assert all("PostgreSQL refuses the row" in rejection.reason for rejection in prepared.rejections)
        assert trial.rows() == {1: "taken", 2: "fine", 3: "moved"}
        assert trial.write(writer, 1, rows) == len(refused)
        # Of a key whose latest row is rejected the one before counts.
        assert trial.rows() == expected
        trial.close()

    def test_a_version_that_is_filled_again_keeps_to_the_constraints_of_others(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(1, "a", "insert")]))
        writer.finish()
        with self.connect() as connection:
            connection.execute(f"SET search_path = {self.schema(tmp_path)}")
            connection.execute(
                "ALTER TABLE tried ADD COLUMN note text NOT NULL DEFAULT 'mine', ADD CHECK (title <> 'bad')"
            )
        following = trial.begin(2, version=2)
        assert trial.write(following, 0, changes([(1, "a", "insert"), (2, "bad", "insert"), (3, "c", "insert")])) == 1
        assert following.finish()
        assert trial.rows() == {1: "a", 3: "c"}
        with self.connect() as connection:
            notes = connection.execute(f"SELECT note FROM {self.schema(tmp_path)}.tried").fetchall()
        assert notes == [("mine",), ("mine",)]
        trial.close()

    def test_a_delete_that_another_table_forbids_is_a_conflict(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        writer = trial.begin(1)
        trial.write(writer, 0, changes([(1, "a", "insert")]))
        with self.connect() as connection:
            connection.execute(f"SET search_path = {self.schema(tmp_path)}")
            connection.execute("CREATE TABLE others (id bigint REFERENCES tried (id)); INSERT INTO others VALUES (1)")
        with pytest.raises(Conflict, match="refuses a change of its flow"):
            trial.write(writer, 1, changes([(1, None, "delete")]))
        assert trial.rows() == {1: "a"}
        trial.close()

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
