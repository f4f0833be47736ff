"""The initial snapshot: the rows that a table has already, read while applications write, and killed half-way.

Changes alone do not make a replica: the rows that existed before are needed too. A lock would stop the applications,
and a copy without one mixes rows of different times. In Mainstem a *capture* reads a table in *chunks* while it streams the
changes; a row that changed meanwhile is not overwritten by an older version of the chunk. Each chunk is committed with how
far the snapshot is, so after a kill it continues there. Here the capture is killed (SIGKILL) with a chunk read and not
committed.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import mainstem

ROWS = 70_000
PROGRAM = """
from mainstem import Capture
from mainstem.capture import sqlite

def captures(stem):
    yield Capture("bank", sqlite("bank.db", tables=["accounts"]))
"""


def capture(folder: str, **environment: str) -> int:
    """`mainstem capture run program.py --until-idle`, in a process of its own; its exit status."""
    command = [sys.executable, "-m", "mainstem.workbench.cli.main", "capture", "run", "program.py", "--until-idle"]
    return subprocess.run(
        [*command, "--home", "home"], cwd=folder, env={**os.environ, **environment}, capture_output=True, check=False
    ).returncode


def write(path: Path, stopped: threading.Event) -> None:
    """Changes, deletes and adds accounts until it is stopped."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        for number in range(1_000_000):
            with connection:
                key = number * 7_919 % ROWS
                connection.execute("UPDATE accounts SET cents = cents + 1 WHERE id BETWEEN ? AND ? + 9", [key, key])
                connection.execute("DELETE FROM accounts WHERE id = ?", [key + 10])
                connection.execute("INSERT OR REPLACE INTO accounts VALUES (?, 5)", [ROWS + number])
            if stopped.wait(0.002):
                return


def replica(stem: mainstem.Mainstem) -> dict[int, int]:
    """What the topic's records add up to."""
    found: dict[int, int] = {}
    for row in stem.topic("bank.accounts").to_arrow().to_pylist():
        if row["record"]["change"] == "delete":
            found.pop(row["id"], None)
        else:
            found[row["id"]] = row["cents"]
    return found


def main(home: str) -> None:
    path = Path(home) / "bank.db"
    (Path(home) / "program.py").write_text(PROGRAM)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER)")
        connection.executemany("INSERT INTO accounts VALUES (?, 100)", [(number,) for number in range(ROWS)])

    stopped = threading.Event()
    writer = threading.Thread(target=write, args=[path, stopped])
    writer.start()
    try:
        # It dies when it has read its third chunk of 20,000 rows.
        status = capture(home, MAINSTEM_CRASH_AT="capture_chunk_read:3")
        with mainstem.open(Path(home) / "home") as stem:
            before = max(
                row["id"] for row in stem.topic("bank.accounts").to_arrow().to_pylist() if row["origin"]["snapshot"]
            )
        print(f"killed: the snapshot has reached account {before} of {ROWS} (measured)")
        resumed = capture(home)
    finally:
        stopped.set()
        writer.join()
    last = capture(home)
    with mainstem.open(Path(home) / "home") as stem:
        origins = stem.topic("bank.accounts").to_arrow().column("origin").to_pylist()
        found = replica(stem)
    with closing(sqlite3.connect(path)) as connection:
        expected = dict(connection.execute("SELECT id, cents FROM accounts").fetchall())
    read = sum(origin["snapshot"] for origin in origins)
    print(f"{read} rows of chunks, {len(origins) - read} changes, {len(expected)} rows (measured)")
    if found != expected or (status, resumed, last) != (-9, 0, 0):
        wrong = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
        sys.exit(f"different: {sorted(wrong)[:20]}, exit statuses {status}, {resumed}, {last}")
    print("equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
