"""Writers killed or stopped anywhere, flips cut short, and readers all the while: as with views in files, on PostgreSQL."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from mainstem import crash_points
from mainstem.batch import Batch, FlowRun
from mainstem.errors import Fenced, LockHeld
from mainstem.postgres import postgres_pool
from mainstem.views.postgres.postgres_backend import PostgresBackend
from mainstem.views.postgres.postgres_writer import PostgresWriter
from mainstem.views.view import View
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.view_rows import SCHEMA, replayed, rows, shown
from tests.views import killed_writer, test_view_readers
from tests.views.killed_writer import STATES, check_whole, run_until_killed, stopped_at, write_from

pytestmark = pytest.mark.forks

OpenRevenue = Callable[[Path], View]


@pytest.fixture
def open_revenue(views_address: str, monkeypatch: pytest.MonkeyPatch) -> OpenRevenue:
    """The view of all these tests, in PostgreSQL; also for those who killed_writer forks."""

    def opened(home: Path) -> View:
        return View(home, "revenue", key="store", history="1 day", backend=PostgresBackend(views_address))

    monkeypatch.setattr(killed_writer, "open_revenue", opened)
    return opened


@pytest.mark.parametrize("point", ["view_rows_written", "view_batch_written", "view_committed"])
def test_a_writer_killed_at_any_point_leaves_whole_batches_and_is_gone_on_from(
    tmp_path: Path, open_revenue: OpenRevenue, point: str
) -> None:
    run_until_killed(tmp_path, f"{point}:3", epoch=1)
    view = open_revenue(tmp_path)
    assert check_whole(view) == (2 if point == "view_committed" else 1)
    write_from(view, epoch=2)
    assert check_whole(view) == 3


@pytest.mark.parametrize("point", ["view_rows_written", "view_batch_written"])
def test_a_run_stopped_in_its_transaction_is_taken_over_at_once_and_fenced_when_it_goes_on(
    tmp_path: Path, open_revenue: OpenRevenue, point: str
) -> None:
    older = stopped_at(tmp_path, point)
    try:
        view = open_revenue(tmp_path)
        assert check_whole(view) == 0
        write_from(view, epoch=2)
        assert check_whole(view) == 3
        os.kill(older.pid, signal.SIGCONT)
        assert older.hear() == "Fenced"
    finally:
        older.close()
    assert check_whole(view) == 3


@pytest.mark.parametrize("broken", ["_check_epoch", "_end_older_sessions"])
def test_a_run_that_is_not_fenced_or_not_taken_over_is_noticed(
    tmp_path: Path, open_revenue: OpenRevenue, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(PostgresWriter, broken, lambda self, _: None)
    monkeypatch.setattr(postgres_pool, "LOCK_MS_MAX", 200)
    with pytest.raises((AssertionError, LockHeld)):
        test_a_run_stopped_in_its_transaction_is_taken_over_at_once_and_fenced_when_it_goes_on(
            tmp_path, open_revenue, "view_rows_written"
        )


def test_a_fenced_run_ends_no_session_of_the_one_that_fenced_it(tmp_path: Path, open_revenue: OpenRevenue) -> None:
    view = open_revenue(tmp_path)
    newer = view.writer(FlowRun("revenue", epoch=2), SCHEMA)
    assert isinstance(newer, PostgresWriter)
    newer._connection.execute("BEGIN")
    pid = newer._connection.info.backend_pid
    with pytest.raises(Fenced):
        view.writer(FlowRun("revenue", epoch=1), SCHEMA)
    assert newer._connection.execute("SELECT pg_backend_pid()").fetchone() == (pid,)
    newer._connection.execute("ROLLBACK")


@pytest.mark.parametrize("point", ["view_version_ready", "view_version_used"])
def test_a_flip_that_is_killed_has_happened_or_not_and_can_be_done_again(
    tmp_path: Path, open_revenue: OpenRevenue, point: str
) -> None:
    view = open_revenue(tmp_path)
    write_from(view, epoch=1)
    before = next(view.subscribe())
    second = FlowRun("revenue", epoch=1, version=2)
    view.writer(second, SCHEMA).apply(rows(Berlin=70, Tunis=1), Batch(0, second))
    other = OtherProcess(lambda: nullcontext(open_revenue(tmp_path)), _flip_to_death, point)
    other._process.join(300)
    assert other._process.exitcode == -signal.SIGKILL
    other.close()
    assert shown(view) == ({"Berlin": 70, "Tunis": 1} if point == "view_version_used" else STATES[3])
    view.use(2)
    state = STATES[3]
    for update in view.subscribe(before.cursor, wait="0 seconds"):
        state = replayed(state, update.rows)
    assert state == shown(view) == {"Berlin": 70, "Tunis": 1}


def _flip_to_death(view: View, line: Line, point: str) -> None:
    os.environ[crash_points.VARIABLE] = point
    view.use(2)


@pytest.mark.parametrize(
    "seen",
    [
        test_view_readers.test_a_reader_in_another_process_sees_before_or_after_a_batch,
        test_view_readers.test_a_reader_in_another_process_sees_one_version_or_the_other,
        test_view_readers.test_versions_come_and_go_under_a_reader,
        test_view_readers.test_threads_and_forked_processes_share_a_view,
    ],
)
def test_readers_see_before_or_after_never_between(
    tmp_path: Path, views_address: str, monkeypatch: pytest.MonkeyPatch, seen: Callable[[Path], None]
) -> None:
    def opened(home: Path) -> View:
        return View(home, "counted", key="number", backend=PostgresBackend(views_address))

    monkeypatch.setattr(test_view_readers, "open_counted", opened)
    monkeypatch.setattr(test_view_readers, "LOOKS", 20)
    seen(tmp_path)
