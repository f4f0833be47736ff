"""A million changed rows into a view, against the same batches into bare SQLite with the same durability.

`python -m benchmarks.view_upserts [--rows 1000000] [--quick] [--folder FOLDER]`. Both have all rows already, each batch
changes 10,000 of them, chosen by chance, and both commit it synced (WAL, synchronous=FULL). Bare SQLite is handed Python
tuples that are ready and keeps the rows alone; the view is handed Arrow, and keeps changes, batch and offsets too, and
trims as many changes as it writes. They take turns, batch by batch. The view writes a batch in the order of its keys,
which helps SQLite a great deal: a third one, bare but handed its tuples sorted, shows what is left of the difference
then. Prints a table, and as the last line JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.figure import Figure, table
from benchmarks.paired_timing import shown_seconds
from mainstem.batch import Batch, FlowRun
from mainstem.views.view import View

BATCH_ROWS = 10_000
STORES = np.array(["Berlin", "Lisbon", "Osaka", "Quito", "Tunis"])
COLUMNS = ("customer TEXT PRIMARY KEY", "store TEXT", "revenue REAL", "orders INTEGER", "last_at INTEGER")
UPSERT = (
    "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT (customer) DO UPDATE SET store = excluded.store, "
    "revenue = excluded.revenue, orders = excluded.orders, last_at = excluded.last_at"
)


@dataclass
class Cost:
    """Time by the clock and of the processor, summed."""

    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, work: Callable[[], object]) -> None:
        begun, used = time.perf_counter(), time.process_time()
        work()
        self.seconds += time.perf_counter() - begun
        self.cpu += time.process_time() - used


def rows_of(numbers: np.ndarray, seed: int) -> pa.Table:
    """A row for each customer, with values that no other seed gives."""
    chance = np.random.default_rng(seed)
    return pa.table(
        {
            "customer": pa.array([f"customer-{number:08d}" for number in numbers.tolist()]),
            "store": pa.array(STORES[chance.integers(0, len(STORES), len(numbers))]),
            "revenue": pa.array(chance.uniform(1, 500, len(numbers))),
            "orders": pa.array(np.full(len(numbers), seed)),
            "last_at": pa.array(1_767_225_600_000_000 + chance.integers(0, 10**12, len(numbers))),
        }
    )


def bare_sqlite(path: str) -> sqlite3.Connection:
    """The same rows in the form that is fastest for SQLite alone."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"CREATE TABLE rows ({', '.join(COLUMNS)}) WITHOUT ROWID")
    return connection


def write_bare(connection: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(UPSERT, rows)
    connection.execute("COMMIT")


def view_upserts(folder: str, rows: int) -> list[Figure]:
    """How many times as long as bare SQLite the view takes."""
    view = View(folder, "spending", key="customer", changes_max=rows)
    run = FlowRun("spending", epoch=1)
    writer = view.writer(run, rows_of(np.arange(1), 0).schema)
    bare, ordered = bare_sqlite(f"{folder}/bare.sqlite"), bare_sqlite(f"{folder}/ordered.sqlite")
    ours, theirs, in_order = Cost(), Cost(), Cost()
    chance = np.random.default_rng(7)
    batches = rows // BATCH_ROWS
    for number in range(2 * batches):
        loading = number < batches
        first = number * BATCH_ROWS
        chosen = np.arange(first, first + BATCH_ROWS) if loading else chance.choice(rows, BATCH_ROWS, replace=False)
        given = rows_of(chosen, number)
        tuples = list(zip(*(column.to_pylist() for column in given.columns), strict=True))
        by_key = sorted(tuples)
        batch = Batch(number, run, {"orders": {0: first}})
        turns = [
            (ours if not loading else Cost(), lambda g=given, b=batch: writer.apply(g, b)),
            (theirs if not loading else Cost(), lambda t=tuples: write_bare(bare, t)),
            (in_order if not loading else Cost(), lambda t=by_key: write_bare(ordered, t)),
        ]
        for cost, work in turns if number % 2 else reversed(turns):
            cost.add(work)
    in_view = view.query("SELECT count(*) AS n, sum(orders) AS total FROM spending").to_pylist()[0]
    in_bare = bare.execute("SELECT count(*), sum(orders) FROM rows").fetchone()
    if (in_view["n"], int(in_view["total"])) != in_bare:
        raise AssertionError(f"the view holds {in_view}, bare SQLite {in_bare}")
    sizes = {
        "view_bytes": os.path.getsize(f"{view.describe().path}/v1.sqlite"),
        "bare_bytes": os.path.getsize(f"{folder}/bare.sqlite"),
    }
    return [
        Figure(
            f"{rows:,} changed rows into a view, batches of {BATCH_ROWS:,}: times bare SQLite",
            ours.seconds / theirs.seconds,
            at_most=2.0,
            detail=f"{shown_seconds(ours.seconds)} against {shown_seconds(theirs.seconds)}",
            facts={"subject_seconds": ours.seconds, "baseline_seconds": theirs.seconds, **sizes},
        ),
        Figure(
            "the same, time of the processor",
            ours.cpu / theirs.cpu,
            at_most=2.0,
            detail=f"{ours.cpu / rows * 1e6:.1f} us a row against {theirs.cpu / rows * 1e6:.1f}",
            facts={"subject_cpu_seconds": ours.cpu, "baseline_cpu_seconds": theirs.cpu},
        ),
        Figure(
            "the same: times bare SQLite that is handed its rows sorted by key",
            ours.seconds / in_order.seconds,
            detail=f"{shown_seconds(ours.seconds)} against {shown_seconds(in_order.seconds)}; processor "
            f"{ours.cpu / in_order.cpu:.2f} times",
            facts={"baseline_seconds": in_order.seconds, "baseline_cpu_seconds": in_order.cpu},
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it works, not how fast")
    parser.add_argument("--folder", help="where to put the files; the disk that it is on is what is measured")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="mainstem-benchmark-", dir=arguments.folder)
    try:
        figures = view_upserts(folder, 20_000 if arguments.quick else arguments.rows)
    finally:
        shutil.rmtree(folder)
    print(table(figures))
    print(json.dumps({"figures": [figure.to_json() for figure in figures]}))


if __name__ == "__main__":
    main()
