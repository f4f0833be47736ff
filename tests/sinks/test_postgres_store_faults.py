"""S4: a PostgreSQL that is restarted, locked by others or cut off at COMMIT loses no batch of a store and takes none twice.

As the runner does it: after an error that may pass, a new run begins, finds out from the fence what became of the batch, and
writes it if it is not there.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from mainstem import crash_points
from mainstem.batch import Batch
from mainstem.errors import Unavailable
from mainstem.postgres import postgres_pool
from mainstem.sinks import postgres_store
from mainstem.sinks.postgres_store import PostgresStore
from mainstem.sinks.store_backend import StoreChange
from mainstem.sinks.store_writer import StoreWriter
from mainstem.testing.store_trial import StoreTrial, changes
from tests.cutting_proxy import Cut, CuttingProxy
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.starts_servers, pytest.mark.thorough]

SEED = 20_261_118
STATEMENTS = [b"COMMIT\0"] * 6 + [b"BEGIN", b"FOR UPDATE", b"PGCOPY", b"INSERT INTO"]
FAULTS = ("cut", "cut", "cut", "ended", "locked", "conflict", "restart")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Model:
    """A store, and the dictionary that it must equal."""

    def __init__(self, folder: Path, url: str, way: str) -> None:
        self.trial = StoreTrial(folder, way, {"url": url, "table": "tried"})
        self.chance, self.epoch, self.number = random.Random(SEED), 0, -1
        self.rows: dict[int, str] = {}
        self.writer: StoreWriter | None = None

    def next_batch(self) -> pa.Table:
        """A random batch, which the dictionary takes now."""
        self.number += 1
        given: list[tuple[Any, ...]] = []
        for key in self.chance.sample(range(12), self.chance.randint(1, 6)):
            if self.chance.random() < 0.25:
                given.append((key, None, "delete"))
                self.rows.pop(key, None)
            else:
                given.append((key, f"{self.number}", "insert"))
                self.rows[key] = f"{self.number}"
        # Appended twice, this counts.
        return changes(given)

    def write(self, rows: pa.Table) -> int:
        """The number of runs that it took."""
        for runs in range(1, 20):
            try:
                if self.writer is None:
                    self.epoch += 1
                    self.writer = self.trial.begin(self.epoch)
                if self.writer.committed_batch < self.number:
                    self.writer.commit(
                        self.writer.prepare(rows), Batch(self.number, self.writer._run, {"orders": {0: self.number}})
                    )
                return runs
            except Unavailable:
                self.writer = None
                self.trial.close()
        raise AssertionError("it did not come back")

    def wrong(self) -> list[str]:
        found = [f"{self.trial.rows()} instead of {self.rows}"] if self.trial.rows() != self.rows else []
        status = self.trial.store.status
        if (status.batch, status.offsets) != (self.number, {"orders": {0: self.number}}):
            found.append(f"batch {status.batch}, offsets {status.offsets}")
        return [f"batch {self.number}: {text}" for text in found]


def try_faults(
    folder: Path, server: PostgresServer, cases: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    monkeypatch.setattr(postgres_pool, "LOCK_MS_MAX", 300)
    address = server.new_address()
    compared, violations = 0, []
    other = psycopg.connect(address, autocommit=True)
    with CuttingProxy(server.port) as proxy:
        model = Model(folder, address.replace(f":{server.port}/", f":{proxy.port}/"), way)
        model.write(model.next_batch())
        for case in range(cases):
            fault, rows = FAULTS[case % len(FAULTS)], model.next_batch()
            if fault == "cut":
                proxy.cut(model.chance.choice(STATEMENTS), model.chance.choice(list(Cut)))
                model.write(rows)
                proxy.let_go()
            elif fault == "restart" and case % 3 == 0:
                other.close()
                server.restart(model.chance.choice([signal.SIGINT, signal.SIGKILL]))
                other = psycopg.connect(address, autocommit=True)
                model.write(rows)
            else:
                _write_beside(fault, model, rows, other, monkeypatch)
            compared += len(model.rows) + 1
            violations += [f"case {case}, {fault}: {text}" for text in model.wrong()]
            if violations and way != WAY:
                break  # a broken build: one is enough
        other.close()
    return compared, violations


def _write_beside(
    fault: str, model: Model, rows: pa.Table, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator ends the session in its transaction; or someone locks the table for a while, or a row of it."""

    def ended() -> None:
        session = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mainstem store%'"
        assert other.execute(session).fetchall()

    if fault in ("locked", "conflict"):
        with psycopg.connect(other.info.dsn, password=other.info.password) as locking:
            what = "LOCK TABLE tried" if fault == "locked" else "UPDATE tried SET title = title"
            locking.execute(what)
            todo: list[Callable[[], None]] = [locking.rollback]
            begin = model.trial.begin

            def release_first(epoch: int) -> StoreWriter:
                while todo:
                    todo.pop()()
                return begin(epoch)

            with monkeypatch.context() as patch:
                patch.setattr(model.trial, "begin", release_first)
                model.write(rows)
            locking.rollback()
        return
    happens, reach = [ended], crash_points.reach

    def reached(name: str, batch: int | None = None) -> None:
        reach(name, batch)
        while name == "sink_rows_written" and happens:
            happens.pop()()

    with monkeypatch.context() as patch:
        patch.setattr(postgres_store, "reach", reached)
        model.write(rows)
    assert not happens or fault == "restart"


WAY = "mainstem.sinks.postgres_store:PostgresStore"


@pytest.mark.parametrize("cases", [50, pytest.param(200, marks=pytest.mark.long)])
def test_no_fault_of_the_server_loses_a_batch_or_takes_one_twice(
    tmp_path: Path, server: PostgresServer, cases: int, monkeypatch: pytest.MonkeyPatch,
    fault_report: Callable[..., None],
) -> None:  # fmt: skip
    compared, violations = try_faults(tmp_path, server, cases, WAY, monkeypatch)
    fault_report("S4 store in PostgreSQL", points=cases, compared=compared, violations=violations, seed=SEED)


class TwoSteps(PostgresStore):
    """A broken build: rows and fence are committed one after the other."""

    def commit(self, change: StoreChange) -> None:
        if change.expected is None or change.upserts is None:
            super().commit(change)
            return
        super().commit(StoreChange(change.copy, change.expected, change.fence))
        with suppress(Unavailable):
            super().commit(StoreChange(change.copy, change.fence, change.fence, change.upserts, change.deletes))


def test_a_store_that_commits_rows_and_fence_apart_is_found(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, violations = try_faults(tmp_path, server, 50, f"{__name__}:TwoSteps", monkeypatch)
    assert violations
