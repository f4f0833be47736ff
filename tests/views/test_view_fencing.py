"""A run that was stopped inside its transaction commits nothing once a newer run has begun."""

import os
import signal
import threading
from pathlib import Path
from unittest import mock

import pytest

from mainstem.batch import FlowRun
from mainstem.clock import SystemClock
from mainstem.errors import Fenced, LockHeld
from mainstem.views.sqlite.sqlite_writer import ViewWriter
from mainstem.views.sqlite.view_folder import ViewFolder
from tests.contracts.view_rows import SCHEMA
from tests.views.killed_writer import BATCHES, batch_of, check_whole, open_revenue, stopped_at, write_from
from tests.waiting import wait_until

INSIDE = ["view_rows_written", "view_batch_written"]


def short_of_patience(home: Path, epoch: int) -> ViewWriter:
    with mock.patch("mainstem.views.sqlite.view_file.LOCK_SECONDS_MAX", 0.0):
        return ViewWriter(ViewFolder(str(home), "revenue"), FlowRun("revenue", epoch), clock=SystemClock())


@pytest.mark.parametrize("point", INSIDE)
def test_a_run_stopped_in_its_transaction_is_fenced_when_it_goes_on(tmp_path: Path, point: str) -> None:
    view = open_revenue(tmp_path)
    older = stopped_at(tmp_path, point)
    try:
        # The newer run raises the fence, and is then told who holds the file.
        with pytest.raises(LockHeld, match="locked by a transaction") as error:
            short_of_patience(tmp_path, epoch=2)
        assert error.value.pid == older.pid
        assert "which is stopped" in error.value.detail
        assert check_whole(view) == 0
        os.kill(older.pid, signal.SIGCONT)
        assert older.hear() == "Fenced"
    finally:
        older.close()
    assert check_whole(view) == 0
    write_from(view, epoch=3)
    assert check_whole(view) == 3


def wait_until_fenced(home: Path) -> None:
    folder = ViewFolder(str(home), "revenue")
    wait_until(lambda: folder.fence(1)[0] == 2)


@pytest.mark.parametrize("point", INSIDE)
def test_a_newer_run_that_waits_takes_over_when_the_stopped_one_goes_on_or_dies(tmp_path: Path, point: str) -> None:
    for number, last_signal in enumerate((signal.SIGCONT, signal.SIGKILL)):
        home = tmp_path / str(number)
        older = stopped_at(home, point)
        try:
            newer = threading.Thread(target=write_from, args=(open_revenue(home), 2))
            newer.start()
            wait_until_fenced(home)
            os.kill(older.pid, last_signal)
            newer.join(300)
            if last_signal == signal.SIGCONT:
                assert older.hear() == "Fenced"
        finally:
            older.close()
        assert check_whole(open_revenue(home)) == 3


def test_a_run_stopped_after_its_last_look_commits_before_the_newer_one_begins(tmp_path: Path) -> None:
    older = stopped_at(tmp_path, "view_checked")
    begun: list[int] = []
    try:
        newer = threading.Thread(
            target=lambda: begun.append(open_revenue(tmp_path).writer(FlowRun("revenue", 2), SCHEMA).committed_batch)
        )
        newer.start()
        wait_until_fenced(tmp_path)
        os.kill(older.pid, signal.SIGCONT)
        assert older.hear() == 2
        newer.join(300)
    finally:
        older.close()
    # It finds the batch held, and does not write it again.
    assert begun == [1]
    assert check_whole(open_revenue(tmp_path)) == 1


def test_a_run_whose_fence_file_is_lost_is_still_fenced_by_the_epoch_in_the_file(tmp_path: Path) -> None:
    view = open_revenue(tmp_path)
    older = view.writer(FlowRun("revenue", epoch=1), SCHEMA)
    view.writer(FlowRun("revenue", epoch=2), SCHEMA)
    (tmp_path / "views" / "revenue" / "v1.fence").unlink()
    with pytest.raises(Fenced):
        older.apply(BATCHES[0], batch_of(0, older.run))
    with pytest.raises(Fenced):
        short_of_patience(tmp_path, epoch=1)
    assert check_whole(view) == -1


def test_one_version_s_runs_do_not_fence_another_s(tmp_path: Path) -> None:
    view = open_revenue(tmp_path)
    first = view.writer(FlowRun("revenue", epoch=1), SCHEMA)
    view.writer(FlowRun("revenue", epoch=7, version=2), SCHEMA)
    first.apply(BATCHES[0], batch_of(0, first.run))
    assert check_whole(view) == 0
