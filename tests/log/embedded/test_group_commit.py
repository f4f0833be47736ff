"""Appends of many threads share one write and one fsync; each thread gets its own result, or its own error."""

import errno
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

import pytest

from mainstem.clock import SystemClock
from mainstem.durable_files import RealFiles
from mainstem.errors import AppendConflict, Invalid, Unavailable
from mainstem.log.embedded.write import segment_writer
from mainstem.log.embedded.write.partition import Partition, Pending
from mainstem.log.embedded.write.segment_writer import GroupCommit
from tests.log.embedded.acknowledged import Stored, make_partition, open_partition, read_all
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.mutants import mutant
from tests.waiting import wait_until

THREADS = 32
APPENDS = 60


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Run the work once per thread, all beginning at the same moment."""
    start = threading.Barrier(threads)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failed:
        raise failed[0]


def append_many(partition: Partition) -> dict[int, bytes]:
    """What each offset must hold. A write takes until every other thread has come with its next append, as on a slow disk."""
    placed: dict[int, bytes] = {}
    appending = set(range(THREADS))
    group_commit, commit = partition.group, partition.group._commit

    def commit_slowly(group: list[Pending]) -> None:
        wait_until(lambda: len(group) + len(group_commit._waiting) >= len(appending))
        commit(group)

    group_commit._commit = commit_slowly

    def work(number: int) -> None:
        try:
            for turn in range(APPENDS):
                pending = Pending(b"%d of %d" % (turn, number), 1)
                partition.append(pending)
                placed[pending.base_offset] = bytes(pending.payload)
        finally:
            appending.discard(number)

    # One that looks for itself would stand in line behind a write that waits for its next append.
    with mock.patch.object(segment_writer, "LOOK_SECONDS", 300):
        in_threads(work)
    return placed


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_threads_share_fsyncs(kind, tmp_path):
    files = MemoryFiles() if kind == "memory" else RealFiles()
    home = "/memory" if kind == "memory" else str(tmp_path)
    fsyncs: list[None] = []
    make_partition(files, SystemClock(), home=home)
    partition = open_partition(files, SystemClock(), home=home, synced=lambda: fsyncs.append(None))

    placed = append_many(partition)

    assert len(placed) == THREADS * APPENDS
    stored = read_all(files, partition.published_end(), folder=f"{home}/0")
    assert stored == [Stored(offset, 1, payload) for offset, payload in sorted(placed.items())]
    assert len(fsyncs) * 10 <= THREADS * APPENDS, f"{len(fsyncs)} fsyncs for {THREADS * APPENDS} appends"
    partition.close()


def test_a_build_that_loses_part_of_a_group_is_caught():
    files = MemoryFiles()
    make_partition(files)
    partition = open_partition(files)
    with mutant("lost group"):
        placed = append_many(partition)
    assert len(placed) != THREADS * APPENDS


def test_one_thread_does_not_wait_for_others():
    files = MemoryFiles()
    make_partition(files)
    fsyncs: list[None] = []
    partition = open_partition(files, synced=lambda: fsyncs.append(None))
    for _ in range(20):
        partition.append(Pending(b"x", 1))
    assert len(fsyncs) == 20


def test_each_thread_gets_its_own_error():
    files = MemoryFiles()
    make_partition(files)
    partition = open_partition(files)
    refused: dict[int, BaseException] = {}

    def refuse(number: int) -> Callable[[], None]:
        def check() -> None:
            raise Invalid(f"append {number} may not be")

        return check

    def work(number: int) -> None:
        for _ in range(20):
            try:
                if number % 4 == 0:
                    partition.append(Pending(b"never", 1, check=refuse(number)))
                elif number % 4 == 1:
                    partition.append(Pending(b"never", 1, expected=10**9))
                else:
                    partition.append(Pending(b"%d" % number, 1))
            except (Invalid, AppendConflict) as error:
                refused[number] = error

    in_threads(work)

    assert sorted(refused) == [number for number in range(THREADS) if number % 4 < 2]
    for number, error in refused.items():
        if number % 4 == 0:
            assert str(error) == f"append {number} may not be"
        else:
            assert isinstance(error, AppendConflict)
    stored = read_all(files, partition.published_end())
    assert len(stored) == 20 * THREADS // 2
    assert not [block for block in stored if block.payload == b"never"]


def test_a_failed_fsync_fails_every_append_of_the_group():
    files = MemoryFiles()
    make_partition(files)
    partition = open_partition(files)
    partition.append(Pending(b"before", 1))
    raised: dict[int, BaseException] = {}
    acknowledged: list[int] = []
    failing = files.machine.counts["sync"] + 3

    def fail(name: str) -> None:
        if name == "sync" and files.machine.counts["sync"] == failing:
            files.fail_at(0, errno.EIO)

    files.machine.seen = fail

    def work(number: int) -> None:
        for turn in range(30):
            pending = Pending(b"%d of %d" % (turn, number), 1)
            try:
                partition.append(pending)
            except Unavailable as error:
                raised[number] = error
                return
            acknowledged.append(pending.base_offset)

    in_threads(work)

    # Every thread was in that group, or came after it and found the partition fenced.
    assert len(raised) == THREADS
    assert len({id(error) for error in raised.values()}) == THREADS
    assert partition.fenced()
    assert partition.published_end().offset == 1 + len(acknowledged)


@dataclass
class Waits:
    settled: bool = False
    error: BaseException | None = None
    group: list["Waits"] = field(default_factory=list)


def test_an_interrupted_leader_leaves_the_others_a_clear_error():
    """Control-C hits one thread; the others are told that their append was not acknowledged, and not interrupted."""
    entered, interrupt = threading.Event(), threading.Event()

    def commit(group: list[Waits]) -> None:
        if len(group) == 1 and not interrupt.is_set():
            entered.set()
            interrupt.wait()
            return
        raise KeyboardInterrupt

    group: GroupCommit[Waits] = GroupCommit(commit)
    raised: list[BaseException] = []

    def submit() -> None:
        try:
            group.submit(Waits())
        except BaseException as error:  # noqa: BLE001 - what it is is the question
            raised.append(error)

    threads = [threading.Thread(target=submit)]
    threads[0].start()
    entered.wait()
    for _ in range(3):
        threads.append(threading.Thread(target=submit))
        threads[-1].start()
    wait_until(lambda: len(group._waiting) == 3)
    interrupt.set()
    for thread in threads:
        thread.join()

    assert sorted(type(error).__name__ for error in raised) == ["KeyboardInterrupt", "Unavailable", "Unavailable"]


class Interrupted(BaseException):
    """As Control-C is."""


def test_an_append_whose_thread_was_interrupted_is_not_written_later():
    """And whoever comes after it is not kept waiting."""
    written: list[Waits] = []
    entered, go_on = threading.Event(), threading.Event()

    def commit(group: list[Waits]) -> None:
        entered.set()
        go_on.wait()
        written.extend(group)

    def interrupt(*_: object) -> None:
        raise Interrupted

    group: GroupCommit[Waits] = GroupCommit(commit)
    first, interrupted, late = Waits(), Waits(), Waits()
    leader = threading.Thread(target=group.submit, args=(first,))
    leader.start()
    entered.wait()
    before = signal.signal(signal.SIGUSR1, interrupt)
    main_thread = threading.get_ident()

    def interrupt_once_it_waits() -> None:
        wait_until(lambda: group._waiting)
        signal.pthread_kill(main_thread, signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt_once_it_waits)
    interrupting.start()
    try:
        with pytest.raises(Interrupted):
            group.submit(interrupted)
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)
    go_on.set()
    leader.join()
    group.submit(late)
    assert [id(pending) for pending in written] == [id(first), id(late)]


def test_nor_is_one_whose_thread_was_interrupted_before_it_began_to_wait():
    written: list[Waits] = []
    group: GroupCommit[Waits] = GroupCommit(written.extend)

    class InterruptedAfterAppend(list):
        def append(self, waiter: object) -> None:
            super().append(waiter)
            raise Interrupted

    group._waiting = InterruptedAfterAppend()
    with pytest.raises(Interrupted):
        group.submit(Waits())
    late = Waits()
    group.submit(late)
    assert [id(pending) for pending in written] == [id(late)]
