"""A run that was stopped while it moved its files in: named while it holds the lock, and fenced when it goes on."""

import os
import signal
import threading
from pathlib import Path

import pytest

from mainstem.errors import Fenced, LockHeld
from mainstem.sinks.file_commits import folder_lock
from tests.sinks.arrow_file_writer import ArrowFileWriter, begin, committed_ids, globbed_ids, write

pytestmark = pytest.mark.forks

FENCED, COMMITTED = 7, 0


class StoppedWriter(ArrowFileWriter):
    """Stops itself after its files are in place, before it looks whether it may commit them."""

    def _move(self, staged, taken, batch):
        moved = super()._move(staged, taken, batch)
        os.kill(os.getpid(), signal.SIGSTOP)
        return moved


def stopped_run(folder: Path) -> int:
    """A process that is stopped inside its batch 1; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run, writer = begin(folder, writer=StoppedWriter)
            write(run, writer, 1)
            status = COMMITTED
        except Fenced:
            status = FENCED
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return pid


def continued(pid: int) -> int:
    os.kill(pid, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_run_that_goes_on_after_a_later_one_began_is_fenced(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    pid = stopped_run(tmp_path)
    with pytest.raises(LockHeld, match="locked by a stopped process") as error:
        begin(tmp_path)
    assert error.value.pid == pid
    assert committed_ids(tmp_path) == list(range(10))

    assert continued(pid) == FENCED
    run, writer = begin(tmp_path)
    assert (writer.committed_batch, globbed_ids(tmp_path)) == (0, list(range(10)))
    write(run, writer, 1)
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(20))


def test_a_run_that_goes_on_unchallenged_commits(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)

    assert continued(stopped_run(tmp_path)) == COMMITTED
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(20))


def test_a_run_that_is_killed_while_it_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    pid = stopped_run(tmp_path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert globbed_ids(tmp_path) == list(range(20))

    assert (begin(tmp_path)[1].committed_batch, globbed_ids(tmp_path)) == (0, list(range(10)))


@pytest.mark.parametrize("step", ["_stage", "_staged_files", "_collect_rejected"])
def test_a_run_whose_staged_files_a_later_one_clears_away_is_fenced(tmp_path: Path, step: str) -> None:
    class Overtaken(ArrowFileWriter):
        """A later run begins before or within a step."""

    def overtaken(self, *given):
        begin(tmp_path)
        if step == "_stage":
            raise OSError("the folder is gone")
        return getattr(ArrowFileWriter, step)(self, *given)

    setattr(Overtaken, step, overtaken)
    run, writer = begin(tmp_path, writer=Overtaken)
    with pytest.raises(Fenced, match="a newer run has started"):
        write(run, writer, 0)
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    assert committed_ids(tmp_path) == globbed_ids(tmp_path) == list(range(10))


class EpochCheckedOutside(StoppedWriter):
    """A broken build: the epoch is looked at before anything is moved, and not again."""

    def _check_epoch(self, known):
        self.looks = getattr(self, "looks", 0) + 1
        if self.looks <= 2:
            super()._check_epoch(known)


def test_a_run_that_does_not_look_again_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, writer = begin(tmp_path)
    write(run, writer, 0)
    monkeypatch.setattr("tests.sinks.test_file_fencing.StoppedWriter", EpochCheckedOutside)
    pid = stopped_run(tmp_path)
    with pytest.raises(LockHeld):
        begin(tmp_path)
    assert continued(pid) == COMMITTED


def test_the_threads_of_a_process_take_turns(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(50):
            with folder_lock(f"{tmp_path}/lock"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
