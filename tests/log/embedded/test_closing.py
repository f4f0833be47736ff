"""A home that is closed while others append: they are told so, and nothing is written to files that are not its own."""

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

import mainstem
from mainstem.durable_files import RealFiles
from mainstem.errors import MainstemError
from mainstem.file_locks import WRITE, PartitionLock, release_lock, share_lock
from mainstem.log.embedded.write.segment_writer import GroupCommit
from tests.waiting import wait_until

THREADS, ROUNDS, FILES = 4, 12, 40
# A broken build is caught within a few; so many that it always is.
ROUNDS_MAX = 300


def closed_under_way(folder: Path, partitions: int) -> tuple[set[int], set[int], set[str], int]:
    """What was acknowledged, what is there, what the threads were told, and the bytes in files that were opened then."""
    acknowledged: set[int] = set()
    told: set[str] = set()
    stem = mainstem.open(folder / "home", upkeep="manual")
    topic = stem.create_topic("t", schema="n bigint", partitions=partitions)
    begun = threading.Barrier(THREADS + 1)

    def append(first: int) -> None:
        for number in range(first, 1 << 30, THREADS):
            if number == first + 5 * THREADS:
                begun.wait()
            try:
                topic.append([{"n": number}])
            except MainstemError as error:
                told.add(str(error).splitlines()[0])
                return
            acknowledged.add(number)

    threads = [threading.Thread(target=append, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    begun.wait()
    stem.close()
    others = [os.open(folder / f"other-{number}", os.O_CREAT | os.O_RDWR) for number in range(FILES)]
    for thread in threads:
        thread.join()
    strayed = sum(os.fstat(handle).st_size for handle in others)
    for handle in others:
        os.close(handle)
    with mainstem.open(folder / "home", upkeep="manual") as again:
        there = {row["n"] for row in again.topic("t").to_arrow(columns=["n"]).to_pylist()}
    return acknowledged, there, told, strayed


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_appends_while_it_closes_is_told(tmp_path: Path, partitions: int) -> None:
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
        acknowledged, there, told, strayed = closed_under_way(tmp_path / str(number), partitions)
        assert strayed == 0
        assert acknowledged <= there
        assert len(there - acknowledged) <= THREADS
        assert told
        assert all("closed" in words for words in told), told


def broken(folder: str) -> None:
    """A build whose close waits for nobody: ends well once somebody was told anything but the truth, or wrote astray."""
    GroupCommit.close = lambda self, refusal: None  # type: ignore[method-assign]
    PartitionLock.exclude_threads = lambda self: nullcontext()  # type: ignore[assignment,method-assign,return-value]
    PartitionLock.close = lambda self: self._files.close(self.handle)  # type: ignore[method-assign]
    wrong: list[object] = []
    threading.excepthook = wrong.append
    for number in range(ROUNDS_MAX):
        place = Path(folder) / str(number)
        place.mkdir()
        try:
            acknowledged, there, told, strayed = closed_under_way(place, 1)
        except BaseException as error:  # noqa: BLE001 - damage of any kind
            wrong.append(error)
            return
        if wrong or strayed or not acknowledged <= there or not all("closed" in words for words in told):
            return
    sys.exit("it was not noticed")


def test_a_close_that_waits_for_nobody_would_be_caught(tmp_path: Path, repository: Path) -> None:
    # Not in this process: it closes and writes files that may be somebody else's by then.
    asked = f"from {__name__} import broken; broken({str(tmp_path)!r})"
    known = {**os.environ, "PYTHONPATH": f"{repository}/src:{repository}"}
    done = subprocess.run([sys.executable, "-c", asked], env=known, cwd=repository, capture_output=True, timeout=600)
    assert b"it was not noticed" not in done.stderr


def after_the_main_thread(home: str) -> None:
    """Uses a home on a thread that outlives the main thread. Python has ended all pools of threads by then."""
    stem = mainstem.open(home, upkeep="manual")
    topic = stem.create_topic("t", schema="k bigint, n bigint", key="k", partitions=4)
    rows = [{"k": key, "n": key} for key in range(20)]
    # With this the log has begun its pool.
    topic.append(rows)

    def late() -> None:
        threading.main_thread().join()
        partitions = len(topic.append(rows).offsets)
        stem.producer("p").append(topic, rows, sequence=1)
        with stem.transaction() as transaction:
            transaction.append(topic, rows)
        sealed = topic.seal()
        counted = stem.query("select count(*) as rows from t").column("rows").to_pylist()
        stem.close()
        print(partitions, sealed, counted)

    threading.Thread(target=late).start()


def test_a_thread_that_outlives_the_main_thread_appends_and_asks(tmp_path: Path, repository: Path) -> None:
    asked = f"from {__name__} import after_the_main_thread as do; do({str(tmp_path / 'home')!r})"
    known = {**os.environ, "PYTHONPATH": f"{repository}/src:{repository}"}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=known, cwd=repository, capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("4 4 [80]\n", "")


def test_who_holds_a_lock_may_share_another_while_the_first_is_given_back(tmp_path: Path) -> None:
    files = RealFiles()
    for name in ("one", "other"):
        (tmp_path / name).touch()
    lock = share_lock(files, f"{tmp_path}/one")
    held = threading.Event()

    def hold() -> None:
        with lock.hold(WRITE):
            held.set()
            wait_until(lambda: not lock.users)
            release_lock(share_lock(files, f"{tmp_path}/other"))

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    held.wait()
    giver = threading.Thread(target=release_lock, args=(lock,), daemon=True)
    giver.start()
    for thread in (holder, giver):
        thread.join(300)
        assert not thread.is_alive()
    with pytest.raises(MainstemError, match="is closed"), lock.hold(WRITE):
        pass


def test_a_lock_that_is_shared_again_while_it_is_given_back_stays_open(tmp_path: Path) -> None:
    files = RealFiles()
    (tmp_path / "one").touch()
    lock = share_lock(files, f"{tmp_path}/one")
    with lock.exclude_threads():
        giver = threading.Thread(target=release_lock, args=(lock,), daemon=True)
        giver.start()
        wait_until(lambda: not lock.users)
        assert share_lock(files, f"{tmp_path}/one") is lock
    giver.join(300)
    with lock.hold(WRITE):
        pass
    release_lock(lock)
    assert lock.handle < 0
