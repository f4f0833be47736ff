"""CapturedFile: a SQLite file, captured into a home."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mainstem
from mainstem import Capture
from mainstem.capture import CapturedTable, sqlite
from mainstem.capture.capture_run import CaptureRun

__all__ = ["ACCOUNTS", "CapturedFile", "captured_file", "random_change"]

ACCOUNTS = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT UNIQUE, balance DECIMAL(12, 2), note BLOB)"


class CapturedFile:
    """A file, and the home that its tables are captured into."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "shop.db")
        self.home = str(folder / "home")
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.stem = mainstem.open(self.home, upkeep="manual")

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, values).fetchall()

    def capture(self, *tables: str | CapturedTable, **settings: Any) -> Capture:
        source = {name: settings.pop(name) for name in ("types", "outbox") if name in settings}
        return Capture("shop", sqlite(self.path, tables=tables, **source), **settings)

    def run(self, *tables: str | CapturedTable, **settings: Any) -> None:
        """Capture until everything is in the log."""
        CaptureRun(self.stem.log, self.home, self.capture(*tables, **settings)).run(until="idle")

    def run_process(self, *tables: str, crash_at: str) -> int:
        """Capture in another process, which dies at a point; its exit code."""
        return subprocess.run(
            [sys.executable, "-m", "tests.capture.captured_file", self.path, self.home, *tables],
            env={**os.environ, "MAINSTEM_CRASH_AT": crash_at}, cwd=Path(__file__).parent.parent.parent, check=False,
        ).returncode  # fmt: skip

    def records(self, topic: str) -> list[dict[str, Any]]:
        return self.stem.topic(topic).to_arrow().to_pylist()

    def seen(self, topic: str = "shop.accounts", *columns: str) -> list[tuple[Any, ...]]:
        """Change, key, further columns, and whether a snapshot read it."""
        return [
            (row["record"]["change"], row["id"], *(row[name] for name in columns), row["origin"]["snapshot"])
            for row in self.records(topic)
        ]

    def replay(self, topic: str = "shop.accounts") -> list[dict[str, Any]]:
        """What the topic's records add up to, in the order of the key."""
        key = self.stem.topic(topic).settings.key
        found: dict[Any, dict[str, Any]] = {}
        for row in self.records(topic):
            one = tuple(row[name] for name in key)
            change = row.pop("record")["change"]
            row.pop("origin")
            found.pop(one, None)
            if change != "delete":
                found[one] = row
        return [found[one] for one in sorted(found)]

    def rows(self, statement: str = "SELECT * FROM accounts ORDER BY id") -> list[dict[str, Any]]:
        cursor = self.connection.execute(statement)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        self.connection.close()
        self.stem.close()


@contextmanager
def captured_file(folder: Path) -> Iterator[CapturedFile]:
    found = CapturedFile(folder)
    try:
        yield found
    finally:
        found.close()


def random_change(connection: sqlite3.Connection, chance: random.Random) -> None:
    """A transaction with inserts, replacements, updates, changed keys, deletions, savepoints; some are rolled back."""
    connection.execute("BEGIN")
    for _ in range(chance.randint(1, 4)):
        one, other = chance.randrange(30), chance.randrange(30)
        owner = f"owner {chance.randrange(20)}"
        statement, values = chance.choice([
            ("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?)", (one, owner, other, bytes([other]))),
            ("INSERT OR IGNORE INTO accounts VALUES (?, ?, ?, ?)", (one, owner, other, None)),
            ("INSERT INTO accounts VALUES (?, ?, 1, NULL) ON CONFLICT DO UPDATE SET balance = balance + 1", (one, owner)),
            ("UPDATE accounts SET balance = ? WHERE id < ?", (one, other)),
            ("UPDATE OR REPLACE accounts SET owner = ? WHERE id = ?", (owner, one)),
            ("UPDATE OR REPLACE accounts SET id = ? WHERE id = ?", (other, one)),
            ("DELETE FROM accounts WHERE id = ?", (one,)),
        ])  # fmt: skip
        savepoint = chance.random() < 0.3
        if savepoint:
            connection.execute("SAVEPOINT one")
        connection.execute(statement, values)
        if savepoint:
            connection.execute("ROLLBACK TO one" if chance.random() < 0.5 else "RELEASE one")
    connection.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def _run(path: str, home: str, tables: Sequence[str]) -> None:
    stem = mainstem.open(home, upkeep="manual")
    CaptureRun(stem.log, home, Capture("shop", sqlite(path, tables=tables, outbox=True))).run(until="idle")


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], sys.argv[3:])
