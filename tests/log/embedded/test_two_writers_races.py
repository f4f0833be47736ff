"""L12: processes race for one partition, one of them is stopped inside or outside a lock, and an old epoch comes back.

One process holds a lock at a time. Who is stopped inside is named by its pid, and ended by a take-over; who is stopped
outside keeps nobody waiting, and is refused when it wakes up in an epoch that is over.
"""

import mmap
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem import file_locks as partition_lock
from mainstem.clock import ManualClock, SystemClock
from mainstem.durable_files import RealFiles
from mainstem.errors import CorruptBlock, Fenced, LockHeld, MainstemError
from mainstem.file_locks import SYNC, WRITE
from mainstem.log.embedded.write.partition import Partition, Pending
from mainstem.processes import end_process, identity_of
from tests.log.embedded.acknowledged import Acknowledged, Stored, make_partition, open_partition, read_all
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.mutants import mutant

pytestmark = pytest.mark.forks

SEED = 12_012
RACES = 1_000
# Before a release all of them.
EVERY_RUN = 100

# The calls of one append of a process that looks at the partition for the first time; a few points lie behind its end.
CALLS = 42

# In place of a call: between the two locks, when the block is written and not yet published.
BETWEEN = 0


class StoppingFiles(RealFiles):
    """Real files of a process that stops at the Nth call, and shows in shared memory which locks it holds."""

    def __init__(self) -> None:
        self.inside = mmap.mmap(-1, 8)
        self.calls_left = -1
        self.between = False

    def __hash__(self) -> int:
        return RealFiles.__hash__(self)

    def __getattribute__(self, name: str) -> object:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or name in ("inside", "calls_left", "between") or self.calls_left < 0:
            return attribute
        self.calls_left -= 1
        if self.calls_left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return attribute

    def try_lock(self, handle: int, byte: int) -> bool:
        if self.between and byte == SYNC:
            self.between = False
            os.kill(os.getpid(), signal.SIGSTOP)
        taken = super().try_lock(handle, byte)
        if taken and self.calls_left >= 0:
            self.inside[byte] = 1
        return taken

    def unlock(self, handle: int, byte: int) -> None:
        if self.calls_left >= 0:
            self.inside[byte] = 0
        super().unlock(handle, byte)


@pytest.fixture(autouse=True)
def soon_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_lock, "SUSPECT_AFTER_SECONDS", 0.005)


class Race:
    """A partition that one process holds open, and a child of it that is stopped in the middle of an append."""

    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self.files = StoppingFiles()
        make_partition(self.files, SystemClock(), home=self.home)
        self.partition = open_partition(self.files, SystemClock(), home=self.home, segment_bytes_max=20_000)
        self.children: set[int] = set()
        self.promised = Acknowledged()
        self.promised.append(self.partition, b"first")

    def start(self, call: int, payload: bytes) -> tuple[int, int, bool]:
        """Fork a child that appends and is stopped at a call: its pid, where it answers, and whether it is stopped."""
        answer, question = os.pipe()
        self.files.inside[:8] = bytes(8)
        self.promised.submitted[payload] = 1
        pid = os.fork()
        if pid == 0:
            said = b"died"
            try:
                self.files.between = call == BETWEEN
                self.files.calls_left = call or CALLS * 100
                pending = Pending(payload, 1)
                self.partition.append(pending)
                said = b"acknowledged %d" % pending.base_offset
            except MainstemError as error:
                said = type(error).__name__.encode()
            finally:
                os.write(question, said)
                os._exit(0)
        os.close(question)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            self.children.add(pid)
        return pid, answer, os.WIFSTOPPED(status)

    def finish(self, pid: int, answer: int, payload: bytes, *, stopped: bool) -> str:
        """Let the child go on to its end; what it says."""
        if stopped:
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)
            self.children.discard(pid)
        said = os.read(answer, 100).decode()
        os.close(answer)
        if said.startswith("acknowledged "):
            self.promised.offsets[payload] = int(said.split()[1])
        return said

    def run(self, number: int, chance: random.Random) -> list[str]:
        payload = b"child %d" % number
        call = chance.choice([BETWEEN, chance.randrange(1, CALLS), chance.randrange(1, CALLS)])
        pid, answer, stopped = self.start(call, payload)
        where = f"race {number}, stopped at call {call}"
        wrong: list[str] = []
        epoch, before = self.partition.published_end().epoch, self.partition.published_end().offset
        if stopped:
            held = [byte for byte in (WRITE, SYNC) if self.files.inside[byte]]
            try:
                self.promised.append(self.partition, b"parent %d" % number)
                if held:
                    wrong.append(f"{where}: it holds lock {held[0]}, and another process could append")
            except LockHeld as error:
                if error.pid != pid:
                    wrong.append(f"{where}: {error.pid} was named, and it is {pid}")
                if not held:
                    wrong.append(f"{where}: named as the holder of a lock that it does not hold")
            if chance.random() < 0.5 or held:
                self.partition.take_over()
                if self.partition.published_end().epoch != epoch + 1:
                    wrong.append(f"{where}: the epoch was not raised")
                written_before = any(block.payload == payload for block in self.read(before))
                alive = os.waitpid(pid, os.WNOHANG)[0] != pid
                if not alive:
                    self.children.discard(pid)
                if held and alive:
                    wrong.append(f"{where}: it holds lock {held[0]}, and was not ended")
                if alive:
                    said = self.finish(pid, answer, payload, stopped=True)
                    if said != "Fenced" and not (said.startswith("acknowledged") and not written_before):
                        wrong.append(f"{where}: an append of the old epoch ended with {said!r}")
                    return wrong
                os.close(answer)
                return wrong
        said = self.finish(pid, answer, payload, stopped=stopped)
        if not said.startswith("acknowledged"):
            wrong.append(f"{where}: ended with {said!r}, though nothing was wrong")
        return wrong

    def read(self, start: int = 0) -> list[Stored]:
        return read_all(self.files, self.partition.published_end(), folder=f"{self.home}/0", start=start)

    def close(self) -> None:
        self.partition.close()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(home: Path, races: int, seed: int, *, first_only: bool = False) -> tuple[int, int, list[str]]:
    race = Race(home)
    chance = random.Random(seed)
    violations: list[str] = []
    points = 0
    try:
        for number in range(races):
            violations += race.run(number, chance)
            points += 1
            if violations and first_only:
                break
        violations += race.promised.violations(race.read(), "at the end")
    except CorruptBlock as error:
        violations.append(f"{error} {error.detail}")
    finally:
        race.close()
    return points, len(race.promised.offsets), violations


@pytest.mark.parametrize("races", [EVERY_RUN, pytest.param(RACES, marks=pytest.mark.long)])
def test_processes_race_for_a_partition(tmp_path, fault_report, races):
    points, compared, violations = run(tmp_path, races, SEED)
    fault_report("L12", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.parametrize("broken", ["no epoch check", "no lock"])
def test_a_broken_build_is_caught(tmp_path, broken):
    with mutant(broken):
        points, _, violations = run(tmp_path, EVERY_RUN, SEED, first_only=True)
    assert violations, f"{broken}: {points} races, and nothing was noticed"


@pytest.fixture
def stopped_child() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_process_is_ended_only_if_it_is_the_one_that_was_meant(stopped_child):
    identity = identity_of(stopped_child)
    assert identity is not None
    assert end_process({**identity, "started": identity["started"] + 1})
    assert identity_of(stopped_child) == identity
    assert end_process(identity)
    assert os.waitid(os.P_PID, stopped_child, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL


def test_an_append_of_an_old_epoch_is_never_acknowledged():
    """In one process, step by step: A has written and not yet published, an fsync of B fails, and B takes over."""
    files = MemoryFiles()
    make_partition(files)
    a = open_partition(files, ManualClock())
    b = open_partition(files.process(), ManualClock())
    a.append(Pending(b"safe", 1))
    end = _written(a, b"in between")
    b._publisher.fence(b.published_end())
    b.take_over()
    with pytest.raises(Fenced) as refused:
        a.publish(end)
    assert (refused.value.epoch, refused.value.current_epoch) == (1, 2)
    a.append(Pending(b"again", 1))
    assert [block.payload for block in read_all(files, a.published_end())] == [b"safe", b"again"]


def _written(partition: Partition, payload: bytes):
    pending = Pending(payload, 1)
    with partition.lock.hold(WRITE):
        return partition._write([pending])


def test_the_same_without_an_epoch_check_is_noticed():
    with mutant("no epoch check"), pytest.raises(pytest.fail.Exception):
        test_an_append_of_an_old_epoch_is_never_acknowledged()


def test_two_opened_homes_in_one_process_share_the_lock(tmp_path):
    """Record locks do not hold between handles of one process, and end when any of them is closed."""
    make_partition(RealFiles(), SystemClock(), home=str(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    one = open_partition(RealFiles(), SystemClock(), home=str(tmp_path))
    two = open_partition(RealFiles(), SystemClock(), home=str(link))
    assert one.lock is two.lock
    two.close()
    one.append(Pending(b"still there", 1))
    one.close()


def test_a_partition_made_again_has_a_lock_of_its_own(tmp_path):
    """A topic was deleted and created anew while somebody still has the old one open."""
    files = RealFiles()
    make_partition(files, SystemClock(), home=str(tmp_path))
    old = open_partition(files, SystemClock(), home=str(tmp_path))
    files.remove_tree(f"{tmp_path}/0")
    make_partition(files, SystemClock(), home=str(tmp_path))
    new = open_partition(files, SystemClock(), home=str(tmp_path))
    assert new.lock is not old.lock
    new.append(Pending(b"new", 1))
    old.close()
    new.append(Pending(b"newer", 1))
    assert new.published_end().offset == 2
    new.close()


def test_reading_goes_on_while_a_holder_is_stopped(tmp_path):
    race = Race(tmp_path)
    pid, answer, stopped = race.start(6, b"child")
    assert stopped
    assert race.files.inside[WRITE]
    reader = open_partition(RealFiles(), SystemClock(), home=str(tmp_path))
    assert reader.published_end().offset == 1
    with pytest.raises(LockHeld) as held:
        reader.append(Pending(b"x", 1))
    assert held.value.pid == pid
    race.finish(pid, answer, b"child", stopped=True)
    reader.append(Pending(b"x", 1))
    assert reader.published_end().offset == 3
    reader.close()
    race.close()
