"""What a small batch of changes costs in large tables: `python -m benchmarks.table_changes [--rows 5000000] [--few 50000]`.

A join of two tables by primary key and by foreign key, its engine with its state in files, as one task of a flow has it: 100
changes into tables of many rows against the same into tables of few. Prints the ratio of processor times, and as the last
line all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.state_runs import StateRuns
from mainstem.operators.tables.table_join_engine import LEFT, RIGHT, TableJoinEngine

LEFT_ROW = pa.struct([("id", pa.int64()), ("customer", pa.int64()), ("cents", pa.int64())])
RIGHT_ROW = pa.struct([("key", pa.int64()), ("name", pa.string())])
CHANGES = 100
BATCHES = 30
# So many rows are put in at once while the tables are filled.
FILLED = 250_000


class JoinOfTables:
    """A join in one bucket. `customers`: how many rows the right side has for as many keys of the left one."""

    def __init__(self, folder: str, rows: int, customers: int) -> None:
        self.engine = TableJoinEngine(LEFT_ROW, RIGHT_ROW, "inner")
        self.folder = folder
        self.rows = rows
        self.customers = customers
        self.entries: list = []
        self.live = self.batch = 0

    def left(self, ids: np.ndarray, cents: np.ndarray, weight: int) -> pa.Table:
        customer = ids % self.customers
        row = pa.StructArray.from_arrays([pa.array(ids), pa.array(customer), pa.array(cents)], fields=list(LEFT_ROW))
        nobody = pa.nulls(len(ids), RIGHT_ROW)
        return self._rows(customer, mix(ids, cents), LEFT, weight, row, nobody)

    def right(self, keys: np.ndarray) -> pa.Table:
        names = pa.array([f"customer {key}" for key in keys.tolist()])
        row = pa.StructArray.from_arrays([pa.array(keys), names], fields=list(RIGHT_ROW))
        return self._rows(keys, mix(keys), RIGHT, 1, pa.nulls(len(keys), LEFT_ROW), row)

    def _rows(
        self, keys: np.ndarray, hashes: np.ndarray, side: int, weight: int, left: pa.Array, right: pa.Array
    ) -> pa.Table:
        count = len(keys)
        columns = {
            "group": mix(keys),
            "check": mix(keys, np.ones(count, np.int64)),
            "weight": np.full(count, weight, np.int64),
            "h_0": hashes,
            "side": np.full(count, side, np.int8),
        }
        return pa.table({**{name: pa.array(column) for name, column in columns.items()}, "left": left, "right": right})

    def take(self, rows: pa.Table) -> int:
        """One batch; how many rows came out."""
        state = StateRuns(self.folder, self.entries, self.engine.state_schema, self.live)
        step = self.engine.step(state, rows, BatchClock())
        self.entries = state.after(step, self.batch)
        self.live = state.live
        self.batch += 1
        return step.output.num_rows

    def fill(self) -> None:
        for first in range(0, self.rows, FILLED):
            ids = np.arange(first, min(first + FILLED, self.rows))
            self.take(self.left(ids, np.zeros(len(ids), np.int64), 1))
        for first in range(0, self.customers, FILLED):
            keys = np.arange(first, min(first + FILLED, self.customers))
            # What comes out of it is of no interest.
            self.take(self.right(keys)) if self.customers == self.rows else self._quietly(keys)

    def _quietly(self, keys: np.ndarray) -> None:
        for part in np.array_split(keys, max(1, len(keys) // 1000)):
            self.take(self.right(part))

    def timed(self) -> list[float]:
        """Processor seconds of each of some batches of changes: half rows taken away, half put in their places."""
        chance = np.random.default_rng(3)
        cents = np.zeros(self.rows, np.int64)
        found = []
        for number in range(1, BATCHES + 1):
            ids = chance.choice(self.rows, CHANGES // 2, replace=False)
            old, new = self.left(ids, cents[ids], -1), self.left(ids, np.full(len(ids), number), 1)
            cents[ids] = number
            rows = pa.concat_tables([old, new])
            began = time.process_time()
            given = self.take(rows)
            found.append(time.process_time() - began)
            assert given == CHANGES, f"{given} rows came out"
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_changes", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--few", type=int, default=50_000)
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for kind, share in (("primary key", 1), ("foreign key, 1000 rows to one", 1000)):
        times = {}
        for rows in (arguments.few, arguments.rows):
            with tempfile.TemporaryDirectory(prefix="mainstem-benchmark-") as folder:
                tables = JoinOfTables(folder, rows, rows // share)
                tables.fill()
                times[rows] = 1000 * statistics.median(tables.timed())
        few, many = times[arguments.few], times[arguments.rows]
        found[kind] = {"milliseconds_few": few, "milliseconds_many": many, "ratio": many / few}
        print(
            f"{kind}: {CHANGES} changes into tables of {arguments.rows:,} rows {many:.1f} ms, of {arguments.few:,} rows "
            f"{few:.1f} ms, ratio {many / few:.2f} (at most 2)"
        )
    print(json.dumps({"figures": found, "rows": arguments.rows, "few": arguments.few}))


if __name__ == "__main__":
    main()
