"""S4: a PostgreSQL that is restarted, locked by others or cut off at COMMIT loses no batch and takes none twice.

After every fault the view holds exactly what a dict holds that took each batch once: rows, changes, offsets, and one commit
for each batch. Batches are given to the writer once; it finds out by itself what became of them.
"""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import DatabaseUnavailable, Unavailable
from mainstem.postgres import postgres_pool
from mainstem.views.postgres import postgres_writer
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.postgres.postgres_writer import PostgresWriter
from mainstem.views.sql import sql_writer
from mainstem.views.view import View
from tests.contracts.view_rows import SCHEMA, recorded, replayed, shown
from tests.cutting_proxy import Cut, CuttingProxy
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

STORES = [f"s{number:02}" for number in range(12)]
RUN = FlowRun("revenue", epoch=1)
CASES, SEED = 200, 20_260_601


class Model:
    """A view, the dict that it must equal, and the batches that both were given."""

    def __init__(self, folder: Path, address: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.view = View(folder, "revenue", key="store", backend=PostgresBackend(address))
        self.writer = self.view.writer(RUN, SCHEMA)
        self.rows: dict[str, int] = {}
        self.changing: list[int] = []
        self.number = -1

    def next_batch(self) -> tuple[Any, Batch]:
        """A random batch, which the dict takes now."""
        self.number += 1
        stores = self.chance.sample(STORES, self.chance.randint(1, 6))
        given = [(store, self.chance.randrange(50), self.chance.random() < 0.25) for store in stores]
        before = dict(self.rows)
        for store, amount, deleted in given:
            if deleted:
                self.rows.pop(store, None)
            else:
                self.rows[store] = amount
        if before != self.rows:
            self.changing.append(self.number)
        rows = recorded(*((s, a, 0, backend, "delete" if d else "insert") for backend, (s, a, d) in enumerate(given)))
        return rows, Batch(self.number, RUN, {"orders": {0: 10 * (self.number + 1)}})

    def wrong(self) -> list[str]:
        """Where the view differs from the dict."""
        found = []
        if shown(self.view) != self.rows:
            found.append(f"batch {self.number}: {shown(self.view)} instead of {self.rows}")
        if replayed({}, self.view.changes().rows) != self.rows:
            found.append(f"batch {self.number}: changes do not lead to {self.rows}")
        live = self.view.describe().live
        if (live.batch, live.offsets) != (self.number, {"orders": {0: 10 * (self.number + 1)}}):
            found.append(f"batch {self.number}: batch {live.batch}, offsets {live.offsets}")
        with self.view.snapshot() as snapshot:
            commits = f"SELECT batch FROM {snapshot._tables.table('commits')} ORDER BY end_position"
            batches = [batch for (batch,) in snapshot._connection.execute(commits)]
        if batches != self.changing:
            found.append(f"batch {self.number}: commits of {batches}, not of {self.changing}")
        return found


@contextmanager
def at_point(point: str, happens: Callable[[], None]) -> Iterator[None]:
    """It happens, once, when a writer reaches a named point."""
    reach, todo = sql_writer.reach, [happens]

    def reached(name: str) -> None:
        reach(name)
        while name == point and todo:
            todo.pop()()

    with mock.patch.object(sql_writer, "reach", reached):
        yield
    assert not todo, f"{point} was not reached"


POINTS = ["view_rows_written", "view_batch_written"]


def session_ended(model: Model, postgres: PostgresServer, proxy: CuttingProxy) -> None:
    """An administrator ends the writer's session in the middle of its transaction."""

    def end() -> None:
        with psycopg.connect(postgres.address(), autocommit=True) as other:
            ended = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mainstem writer%'"
            )
            assert other.execute(ended).fetchall()

    rows, batch = model.next_batch()
    with at_point(model.chance.choice(POINTS), end):
        model.writer.apply(rows, batch)


def cut(model: Model, postgres: PostgresServer, proxy: CuttingProxy) -> None:
    """The wire is cut at a statement of the batch: any of them, COMMIT most often."""
    statement = model.chance.choice([b"COMMIT\0"] * 6 + [b"BEGIN", b"FOR UPDATE", b"PGCOPY", b"UPDATE", b"pg_notify"])
    how = model.chance.choice(list(Cut))
    before = proxy.cuts
    rows, batch = model.next_batch()
    proxy.cut(statement, how)
    written = model.writer.apply(rows, batch)
    assert proxy.cuts == before + 1
    # Also where the answer never came it is known that, and what, was written.
    assert written.rows == rows.num_rows
    assert (written.changes > 0) == (batch.number in model.changing)
    proxy.let_go()


def deadlock(model: Model, postgres: PostgresServer, proxy: CuttingProxy) -> None:
    """Another session wants what the writer holds, and holds what the writer wants."""
    rows, batch = model.next_batch()
    tables = model.writer._tables
    with psycopg.connect(postgres.address(), autocommit=True) as other, psycopg.connect(postgres.address()) as looking:
        # The other one is more patient, so it is the writer whose transaction the server undoes; should the writer be so
        # quick to try again that its next look comes too early, it is the other's.
        other.execute("SET deadlock_timeout = '2s'")
        other.execute("BEGIN")
        other.execute(f"SELECT 1 FROM {tables.table('offsets')} FOR UPDATE")

        def want_and_let_go() -> None:
            with suppress(psycopg.Error):
                other.execute(f"SELECT 1 FROM {tables.table('progress')} FOR UPDATE")
                other.execute("ROLLBACK")

        waiting = threading.Thread(target=want_and_let_go)

        def wait_for_the_writer() -> None:
            waiting.start()
            blocked = f"SELECT 1 FROM pg_locks WHERE pid = {other.info.backend_pid} AND NOT granted"

            def is_blocked() -> bool:
                looking.rollback()
                return looking.execute(blocked).fetchone() is not None

            wait_until(lambda: not waiting.is_alive() or is_blocked())

        try:
            with at_point("view_rows_written", wait_for_the_writer):
                model.writer.apply(rows, batch)
        finally:
            waiting.join()


FAULTS = [session_ended, cut, cut, cut, deadlock]


def after_faults(folder: Path, postgres: PostgresServer, cases: int) -> list[str]:
    """What is wrong with a view after so many batches, each with a fault of the database."""
    wrong: list[str] = []
    with CuttingProxy(postgres.port) as proxy:
        model = Model(folder, postgres.new_address(port=proxy.port), SEED)
        model.writer.apply(*model.next_batch())
        for _ in range(cases):
            model.chance.choice(FAULTS)(model, postgres, proxy)
            wrong += model.wrong()
        model.writer.close()
        model.view.close()
    return wrong


def test_no_fault_of_the_database_loses_a_batch_or_takes_one_twice(
    tmp_path: Path, postgres: PostgresServer, fault_report: Callable[..., None]
) -> None:
    wrong = after_faults(tmp_path, postgres, CASES)
    fault_report("S4", points=CASES, compared=4 * CASES, violations=wrong, seed=SEED)


@pytest.mark.parametrize(
    ("how", "point"),
    [(signal.SIGKILL, "view_batch_written"), (signal.SIGQUIT, "view_rows_written"), (signal.SIGKILL, None)],
)
def test_a_server_that_is_restarted_in_the_middle_of_a_batch_is_gone_on_with(
    tmp_path: Path,
    postgres: PostgresServer,
    fault_report: Callable[..., None],
    how: signal.Signals,
    point: str | None,
) -> None:
    model = Model(tmp_path, postgres.new_address(), 7)
    model.writer.apply(*model.next_batch())
    rows, batch = model.next_batch()
    if point is None:
        # Down for a while: the batch is refused with an error that the runner waits on, and taken afterwards.
        postgres.stop(how)
        try:
            with pytest.raises(DatabaseUnavailable, match="cannot be reached") as refused:
                model.writer.apply(rows, batch)
            assert isinstance(refused.value, Unavailable)
            with pytest.raises(DatabaseUnavailable):
                model.view.get("s00")
        finally:
            postgres.start()
        model.writer.apply(rows, batch)
    else:
        with at_point(point, lambda: postgres.restart(how)):
            model.writer.apply(rows, batch)
    wrong = model.wrong()
    model.writer.apply(*model.next_batch())
    fault_report("S4", points=1, compared=8, violations=[*wrong, *model.wrong()], how=how.name, point=point)


# Mutants


def _without_asking() -> list[tuple[object, str, object]]:
    """A COMMIT that was not answered is taken for one that arrived."""
    write = PostgresWriter._write

    def broken(self: PostgresWriter, connection: Any, merged: Any, batch: Batch) -> None:
        try:
            write(self, connection, merged, batch)
        except psycopg.OperationalError:
            self.close()

    return [(PostgresWriter, "_write", broken)]


def _batch_apart_from_its_rows() -> list[tuple[object, str, object]]:
    write = PostgresWriter._write_rows

    def broken(self: PostgresWriter, connection: Any, merged: Any, last: Any) -> int:
        changed = write(self, connection, merged, last)
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        return changed

    return [(PostgresWriter, "_write_rows", broken)]


def _older_sessions_left() -> list[tuple[object, str, object]]:
    """Only a lock tells then that an older session is at it still; patience is cut short."""
    return [
        (PostgresWriter, "_end_older_sessions", lambda self, connection: None),
        (postgres_pool, "LOCK_MS_MAX", 200),
    ]


def _deadlock_not_tried_again() -> list[tuple[object, str, object]]:
    return [(postgres_writer, "rolled_back_by_server", lambda error: False)]


def _held_batch_written_again() -> list[tuple[object, str, object]]:
    """A COMMIT that was not answered is taken for one that did not arrive."""
    progress = PostgresWriter._progress

    def broken(self: PostgresWriter, connection: Any) -> tuple[str | None, int, int, int]:
        flow, epoch, _, recording = progress(self, connection)
        return flow, epoch, -1, recording

    return [(PostgresWriter, "_progress", broken)]


@pytest.mark.parametrize(
    "mutant",
    [
        _without_asking,
        _batch_apart_from_its_rows,
        _older_sessions_left,
        _deadlock_not_tried_again,
        _held_batch_written_again,
    ],
)
def test_a_broken_writer_is_noticed(
    tmp_path: Path, postgres: PostgresServer, mutant: Callable[[], list[tuple[object, str, object]]]
) -> None:
    patches = [mock.patch.object(*patch) for patch in mutant()]
    for patch in patches:
        patch.start()
    try:
        with pytest.raises((AssertionError, Unavailable, StopIteration)):
            assert after_faults(tmp_path, postgres, 30) == []
    finally:
        for patch in patches:
            patch.stop()
