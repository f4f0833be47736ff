"""CapturedShop: a database of its own on the test's PostgreSQL, captured into a home."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import mainstem
from mainstem import Capture
from mainstem.capture import CapturedTable, postgres, snapshots
from mainstem.capture.capture_run import CaptureRun
from mainstem.log.topic import Topic
from tests.postgres_server import PostgresServer
from tests.waiting import SECONDS_MAX, wait_until

__all__ = ["TABLE", "CapturedShop", "captured_shop", "random_changes"]


class CapturedShop:
    """A database, and the home that its tables are captured into."""

    def __init__(self, server: PostgresServer, home: Path) -> None:
        self.server = server
        self.database = f"shop_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.address(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))
        self.url = server.address(self.database)
        self.home = str(home)
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.stem = mainstem.open(self.home, upkeep="manual")
        self.is_running: Callable[[], bool] = lambda: True
        self.slot = f"slot_{uuid.uuid4().hex[:12]}"

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own."""
        cursor = self.connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def drop_slot(self) -> None:
        """Remove the slot, as soon as the server has noticed that the last run is over."""

        def dropped() -> bool:
            try:
                self.sql(f"SELECT pg_drop_replication_slot('{self.slot}')")
            except psycopg.errors.ObjectInUse:
                return False
            return True

        wait_until(dropped)

    def capture(self, *tables: str | CapturedTable, **settings: Any) -> Capture:
        """A capture of these tables."""
        source = {name: settings.pop(name) for name in ("types", "outbox") if name in settings}
        return Capture("shop", postgres(self.url, tables=tables, slot=self.slot, **source), **settings)

    def run(self, *tables: str | CapturedTable, **settings: Any) -> None:
        """Capture until everything is in the log."""
        CaptureRun(self.stem.log, self.home, self.capture(*tables, **settings)).run(until="idle")

    @contextmanager
    def background(self, *tables: str | CapturedTable, **settings: Any) -> Iterator[CaptureRun]:
        """Capture in a thread, until the end of the block."""
        ended = threading.Event()
        run = CaptureRun(self.stem.log, self.home, self.capture(*tables, **settings), stopped=ended.is_set)
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(run.run)
            # A run that fails is not waited for.
            self.is_running = lambda: not result.done() or bool(result.result())
            try:
                yield run
            finally:
                ended.set()
                result.result()

    def start_process(self, *tables: str, crash_at: str = "", chunk_rows: int = 20_000) -> subprocess.Popen[bytes]:
        """Capture in another process, until it is killed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.capture.captured_shop", self.home, self.slot, str(chunk_rows), *tables],
            stdin=subprocess.PIPE, env={**os.environ, "MAINSTEM_CRASH_AT": crash_at or "never"},
            cwd=Path(__file__).parent.parent.parent,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(f"{self.url}\n".encode())
        process.stdin.flush()
        return process

    def wait(self, condition: Callable[[], object], seconds_max: float = SECONDS_MAX) -> None:
        """Wait for something that the capture in the background does."""
        wait_until(lambda: self.is_running() and condition(), seconds_max)

    def progress(self) -> int:
        """How far the log is: rises with every commit of a capture."""
        names = [name for name in self.stem.topics() if name.startswith("mainstem.capture.shop.")]
        return sum(self.topic(name).backend.latest(0) for name in names)

    def topic(self, name: str) -> Topic:
        return self.stem.topic(name)

    def records(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.topic(topic).to_arrow().to_pylist()
        return found

    def replay(self, topic: str) -> dict[Any, dict[str, Any]]:
        """What the topic's records add up to, by key."""
        key = self.topic(topic).settings.key
        found: dict[Any, dict[str, Any]] = {}
        for row in self.records(topic):
            one = tuple(row[name] for name in key)
            change = row.pop("record")["change"]
            row.pop("origin")
            if change == "delete":
                found.pop(one, None)
            else:
                found[one] = row
        return found

    def rows(self, table: str, key: Sequence[str] = ("id",)) -> dict[Any, dict[str, Any]]:
        """What the table has, by key."""
        cursor = self.connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor]
        return {tuple(row[name] for name in key): row for row in found}

    def repeated(self, topic: str) -> int:
        """How many changes of the source are in the topic more than once."""
        key = self.topic(topic).settings.key
        streamed = [
            # A truncate is one change, and a deletion of many keys.
            (row["origin"]["transaction"], row["origin"]["number"], *(row[name] for name in key))
            for row in self.records(topic)
            # On Kafka a deletion is a message without a value: it has no origin.
            if row["origin"] is not None and not row["origin"]["snapshot"]
        ]
        return len(streamed) - len(set(streamed))

    def close(self) -> None:
        self.stem.close()
        with psycopg.connect(self.server.address(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
                [self.slot],
            )
        if not self.connection.closed:
            self.connection.close()
        with psycopg.connect(self.server.address(), autocommit=True) as connection:
            wait_until(lambda: self._drop_slot(connection))
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.database)))

    def _drop_slot(self, connection: psycopg.Connection[Any]) -> bool:
        try:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
            )
        except psycopg.errors.ObjectInUse:
            return False
        return True


@contextmanager
def captured_shop(server: PostgresServer, home: Path) -> Iterator[CapturedShop]:
    shop = CapturedShop(server, home)
    try:
        yield shop
    finally:
        shop.close()


TABLE = """
CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance numeric(12, 2), note text);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL
"""


def random_changes(connection: psycopg.Connection[Any], random: random.Random, count: int) -> None:
    """Transactions with inserts, updates, changed keys, deletions, savepoints, roll-backs and now and then a truncate."""
    for _ in range(count):
        try:
            with connection.transaction():
                for _ in range(random.randint(1, 4)):
                    _random_change(connection, random)
                if random.random() < 0.1:
                    raise _GivenUp
        except (_GivenUp, psycopg.errors.UniqueViolation):
            continue


class _GivenUp(Exception):
    """The transaction is rolled back."""


def _random_change(connection: psycopg.Connection[Any], random: random.Random) -> None:
    one, other = random.randrange(60), random.randrange(60)
    match random.choices(range(6), [30, 40, 10, 15, 4, 1])[0]:
        case 0:
            # Large enough to be stored out of line, half of the time.
            note = random.choice(["x", "y" * random.randint(3000, 9000)])
            connection.execute(
                "INSERT INTO accounts VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET note = excluded.note",
                [one, f"owner {other}", other, note],
            )
        case 1:
            connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", [other, one])
        case 2:
            connection.execute("UPDATE accounts SET id = %s WHERE id = %s", [60 + other, one])
        case 3:
            connection.execute("DELETE FROM accounts WHERE id = %s", [one])
        case 4:
            with connection.transaction():
                connection.execute("UPDATE accounts SET owner = owner || '!' WHERE id < %s", [one])
        case 5:
            connection.execute("TRUNCATE accounts")


def _run(home: str, slot: str, chunk_rows: str, *tables: str) -> None:
    url = sys.stdin.readline().strip()
    snapshots.CHUNK_ROWS = int(chunk_rows)
    stem = mainstem.open(home, upkeep="manual")
    CaptureRun(stem.log, home, Capture("shop", postgres(url, tables=tables, slot=slot))).run()


if __name__ == "__main__":
    _run(*sys.argv[1:])
