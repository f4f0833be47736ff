"""E2 without Spark: versions of a view rebuilt at random points, beside a live one that goes on, end equal to it.

A log of changes is applied to the live version in batches that are cut anywhere. At random points a rebuild begins: it
applies the same log from its beginning, in batches of its own, while the live version goes on; both are killed and begun
again now and then. When both have the whole log they are compared with each other and with DuckDB over the log; then the
new version is put to use, or dropped. The same with Spark, far fewer, is in tests/flows/test_rebuild_points.py.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.log.record import RECORD
from mainstem.views.view import View

REBUILDS, VIEWS = 200, 10
SCHEMA = pa.schema([("store", pa.string()), ("amount", pa.int64()), ("record", RECORD)])
LATEST = """SELECT store, arg_max(amount, record.offset) AS amount FROM log
            GROUP BY store HAVING arg_max(record.change, record.offset) <> 'delete' ORDER BY store"""


class Writing:
    """One version on its way through the log."""

    def __init__(self, view: View, version: int, chance: random.Random, epochs: "Epochs") -> None:
        self._view, self._version, self._chance, self._epochs = view, version, chance, epochs
        self._ends = [0]
        self._begin()

    def _begin(self) -> None:
        self._run = FlowRun("copies", self._epochs.next(), self._version)
        self._writer = self._view.writer(self._run, SCHEMA)

    def step(self, log: pa.Table, *, whole: bool = False) -> None:
        """One batch; sometimes by a new run, which does what is held once more."""
        if self._chance.random() < 0.1:
            self._writer.close()
            self._begin()
            number = len(self._ends) - 2
            if number >= 0:
                self._apply(log, number)
        first = self._ends[-1]
        end = len(log) if whole else self._chance.randint(first, min(len(log), first + 40))
        self._ends.append(end)
        self._apply(log, len(self._ends) - 2)

    def _apply(self, log: pa.Table, number: int) -> None:
        first, end = self._ends[number : number + 2]
        rows = log.slice(first, end - first)
        # In whatever order Spark hands them over.
        shuffled = rows.take(pa.array(self._chance.sample(range(len(rows)), len(rows)), pa.int64()))
        self._writer.apply(shuffled, Batch(number, self._run, {"log": {0: end}}))

    def close(self) -> None:
        self._writer.close()


class Epochs:
    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


def more(log: pa.Table, chance: random.Random) -> pa.Table:
    """The log with some changes appended: rows put, put again and deleted."""
    rows = [
        {
            "store": f"s-{chance.randrange(150)}",
            "amount": chance.randrange(100),
            "record": {"partition": 0, "offset": len(log) + n, "change": chance.choice(["insert", "insert", "delete"])},
        }
        for n in range(chance.randrange(1, 60))
    ]
    return pa.concat_tables([log, pa.Table.from_pylist(rows, schema=SCHEMA)])


def rows_of(view: View, version: int) -> list[dict[str, Any]]:
    with view.snapshot(version) as snapshot:
        return snapshot.to_arrow().to_pylist()


def rebuilt(folder: Path, seed: int, rebuilds: int, *, skipped: int = 0) -> list[str]:
    """What is wrong after so many rebuilds of one view, one after the other; `skipped`: rows that a rebuild leaves out."""
    chance = random.Random(seed)
    view, epochs = View(folder, "copies", key="store", changes_max=50), Epochs()
    log = more(SCHEMA.empty_table(), chance)
    live = Writing(view, 1, chance, epochs)
    live.step(log)
    wrong = []
    for number in range(rebuilds):
        version = view.new_version()
        new = Writing(view, version, chance, epochs)
        new._ends = [skipped]
        for _ in range(chance.randrange(6)):
            writing = chance.choice([live, new])
            writing.step(log)
            log = more(log, chance) if chance.random() < 0.3 else log
        for writing in (live, new):
            writing.step(log, whole=True)
        before = view.describe().live.number
        expected = duckdb.sql(LATEST).to_arrow_table().to_pylist()
        difference = view.difference(before, version)
        if (difference.changed, difference.added, difference.removed) != (0, 0, 0):
            wrong.append(f"seed {seed}, rebuild {number}: not the live one: {difference}")
        if not rows_of(view, version) == rows_of(view, before) == expected:
            wrong.append(f"seed {seed}, rebuild {number}: {rows_of(view, version)} instead of {expected}")
        if chance.random() < 0.5:
            view.use(version)
            live, new = new, live
            version = before
        new.close()
        view.drop_version(version)
    live.close()
    view.close()
    return wrong


@pytest.mark.thorough
def test_versions_rebuilt_at_random_points_equal_the_live_one(
    tmp_path: Path, fault_report: Callable[..., None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    wrong = [
        line for number in range(VIEWS) for line in rebuilt(tmp_path / str(number), seed + number, REBUILDS // VIEWS)
    ]
    fault_report("E2 without Spark", points=REBUILDS, compared=REBUILDS * 2, violations=wrong, seed=seed)


def test_a_rebuild_that_leaves_the_first_rows_out_is_noticed(tmp_path: Path) -> None:
    assert rebuilt(tmp_path, 7, 5, skipped=10)
