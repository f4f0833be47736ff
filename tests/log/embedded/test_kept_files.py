"""A process keeps a bounded number of files open, and loses neither rows nor locks when it lets go of one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import mainstem
from mainstem.clock import ManualClock
from mainstem.durable_files import HANDLES_MAX, KeptFiles, RealFiles, handles_max, resource
from mainstem.errors import Invalid, TopicNotFound, Unavailable
from mainstem.file_locks import SYNC, UPKEEP, WRITE, release_lock, share_lock
from mainstem.log.embedded.embedded_log import EmbeddedLog, Producers
from mainstem.log.embedded.ledger import Ledger, create_ledger
from mainstem.log.embedded.write.heads import Slots, TailSlots, create_slots, encode_tail, new_end
from mainstem.log.embedded.write.partition import Pending
from mainstem.log.producer import ProducersState
from mainstem.log.topic_settings import TopicSettings
from mainstem.stem import Mainstem
from tests.log.embedded.acknowledged import FOLDER, HOME, make_partition, open_partition, read_all
from tests.log.embedded.many_partitions import run
from tests.log.embedded.memory_files import Machine, MemoryFiles

THREADS, TOPICS, APPENDS = 6, 8, 25


class Keeping:
    """Keeps some handles, and lets go of them when it is asked, unless it is in use."""

    def __init__(self, kept: KeptFiles, *, handles: int = 1, in_use: bool = False) -> None:
        self.recent = False
        self.handles = handles
        self._kept = kept
        self._in_use = in_use
        kept.count_handles(self, handles)

    def close_idle(self) -> int:
        if self._in_use:
            return 0
        freed, self.handles = self.handles, 0
        self._kept.count_handles(self, 0)
        return freed


def used_again(keepers: list[Keeping]) -> None:
    for keeper in keepers:
        keeper.recent = True


def test_those_that_were_not_used_lately_let_go_first():
    kept = KeptFiles(lambda: 8)
    keepers = [Keeping(kept) for _ in range(8)]
    for keeper in keepers:
        keeper.recent = False
    used_again(keepers[:3])
    keepers.append(Keeping(kept))
    # The one too many, and one for the next.
    assert [keeper.handles for keeper in keepers] == [1, 1, 1, 0, 0, 1, 1, 1, 1]
    assert kept.handles == 7


def test_where_all_are_used_the_oldest_let_go():
    kept = KeptFiles(lambda: 8)
    keepers = [Keeping(kept) for _ in range(8)]
    used_again(keepers)
    keepers.append(Keeping(kept, handles=2))
    assert [keeper.handles for keeper in keepers] == [0, 0, 0, 1, 1, 1, 1, 1, 2]


def test_what_is_in_use_is_kept_though_it_is_too_much():
    kept = KeptFiles(lambda: 2)
    keepers = [Keeping(kept, in_use=True) for _ in range(3)]
    keepers.append(Keeping(kept))
    assert [keeper.handles for keeper in keepers] == [1, 1, 1, 1]
    assert kept.handles == 4


def test_half_of_the_limit_is_for_files_that_are_kept(monkeypatch):
    for limit, most in ((1024, 512), (resource.RLIM_INFINITY, HANDLES_MAX), (1 << 20, HANDLES_MAX)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert handles_max() == most


@pytest.mark.parametrize("byte", [WRITE, SYNC, UPKEEP])
def test_a_lock_that_is_held_is_not_let_go(byte):
    files = MemoryFiles()
    files.put("/tail", b"")
    other = files.process()
    handle = other.open("/tail")
    lock = share_lock(files, "/tail")
    with lock.hold(byte):
        assert not files.kept.close_all_idle()
        assert not other.try_lock(handle, byte)
    assert files.kept.close_all_idle()
    assert (lock.handle, files.kept.handles) == (-1, 0)
    with lock.hold(byte):
        assert not other.try_lock(handle, byte)
    assert other.try_lock(handle, byte)
    assert lock.holder(byte) == other.pid
    release_lock(lock)


def test_what_is_read_while_the_file_is_let_go_is_read_again(tmp_path: Path):
    """A handle is a number: once it is closed it may mean another file."""
    files = RealFiles()
    one, two = (new_end(number, 0, 100 * number, 5, 1) for number in (1, 2))
    create_slots(files, f"{tmp_path}/heads", [one])
    create_slots(files, f"{tmp_path}/others", [two])
    others: list[int] = []

    class LetGoMeanwhile(RealFiles):
        def pread(self, handle: int, length: int, position: int) -> bytes:
            if not others:
                assert slots._file.close_idle() == 1
                others.append(os.open(f"{tmp_path}/others", os.O_RDONLY))
                assert others == [handle]
            return super().pread(handle, length, position)

    slots = Slots(LetGoMeanwhile(), f"{tmp_path}/heads")
    assert slots.read(0) == one
    slots.close()
    os.close(others[0])


def test_a_slot_is_written_to_the_file_it_was_opened_as():
    files = MemoryFiles()
    one, two = (new_end(number, 0, 100 * number, 5, 1) for number in (1, 2))
    create_slots(files, "/heads", [one])
    slots = Slots(files, "/heads")
    assert slots._file.close_idle() == 1
    slots.write(0, two)
    assert slots.read(0) == two
    slots._file.close_idle()
    files.remove("/heads")
    create_slots(files, "/heads", [one])
    with pytest.raises(FileNotFoundError):
        slots.write(0, two)
    assert Slots(files, "/heads").read(0) == one


def test_a_tail_made_anew_with_the_same_inode_is_another_one():
    files = MemoryFiles()
    end = new_end(1, 0, 100, 5, 1)
    files.put("/tail", encode_tail(end))
    lock = share_lock(files, "/tail")
    tail = TailSlots(files, lock)
    lock.close_idle()
    assert tail.read(0) == end
    lock.close_idle()
    files.put("/tail", encode_tail(end))
    with pytest.raises(FileNotFoundError):
        tail.read(0)
    with pytest.raises(FileNotFoundError):
        tail.write(0, end)
    release_lock(lock)


def test_a_tail_of_the_first_format_has_no_id_and_is_the_one_it_was():
    files = MemoryFiles()
    end = new_end(1, 0, 100, 5, 1)
    create_slots(files, "/tail", [end, end])
    lock = share_lock(files, "/tail")
    tail = TailSlots(files, lock)
    lock.close_idle()
    assert tail.read(0) == end
    release_lock(lock)


def test_a_topic_that_was_made_anew_is_refused_even_with_the_same_inodes(tmp_path: Path):
    class OneInode(RealFiles):
        """A file system that gives out the same number again at once."""

        def identity(self, path: str) -> tuple[int, int, int]:
            return 7, *super().identity(path)[1:]

    settings = TopicSettings.of("t", schema="n bigint")
    with_old, with_new = (EmbeddedLog(tmp_path, files=OneInode()) for _ in range(2))
    old = with_old.create_topic(settings)
    old.store.append({0: Pending(b"", 0, stated_watermark=1)})
    assert RealFiles.kept.close_all_idle()
    with_new.delete_topic("t")
    RealFiles.kept.close_all_idle()
    new = with_new.create_topic(settings)
    before = new.store.ends()
    for do in (
        lambda: old.store.append({0: Pending(b"", 0, stated_watermark=2)}),
        old.store.ends,
        old.store.partitions[0].roll,
        old.store.partitions[0].fenced,
        old.seal,
    ):
        RealFiles.kept.close_all_idle()
        with pytest.raises(TopicNotFound):
            do()
    assert new.store.ends() == before
    assert with_old.open_topic("t") is not old
    with_old.close()
    with_new.close()


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    make_partition(files)
    return files


def produced(sequence: int) -> Pending:
    return Pending(b"%d" % sequence, 1, producer_id=7, producer_epoch=1, sequence=sequence)


def test_a_partition_goes_on_after_its_files_were_let_go(files: MemoryFiles):
    partition, other = open_partition(files), open_partition(files.process())
    for sequence in range(6):
        (partition, other)[sequence % 2].append(produced(sequence))
        for opened in (partition, other):
            opened.files.kept.close_all_idle()
            assert opened.files.kept.handles == 0
            assert opened.files._handles == {}
    again = produced(5)
    partition.append(again)
    assert (again.duplicate, again.base_offset) == (True, 5)
    assert [block.payload for block in read_all(files, partition.published_end())] == [
        b"%d" % each for each in range(6)
    ]


def test_what_is_known_of_producers_is_not_read_again(files: MemoryFiles):
    """Else every append would read the headers of the whole segment."""
    partition = open_partition(files)
    partition.append(produced(0))
    scan = partition._scan
    files.kept.close_all_idle()
    partition.append(produced(1))
    assert partition._scan is scan


def test_a_segment_made_anew_under_the_same_name_is_scanned_again(files: MemoryFiles, monkeypatch):
    partition = open_partition(files)
    partition.append(produced(0))
    files.kept.close_all_idle()
    # As after a roll that a power cut took back for others: same name, another segment, without this producer.
    fresh = MemoryFiles()
    make_partition(fresh)
    for name in fresh.names(FOLDER):
        if name != "tail":
            files.put(f"{FOLDER}/{name}", fresh.content(f"{FOLDER}/{name}"))
    tail = files.content(f"{FOLDER}/tail")
    files.put(f"{FOLDER}/tail", fresh.content(f"{FOLDER}/tail")[:256] + tail[256:])
    files.put(f"{HOME}/heads", fresh.content(f"{HOME}/heads"))
    again = produced(0)
    partition.append(again)
    assert (again.duplicate, again.base_offset) == (False, 0)


def test_a_segment_with_bytes_that_are_not_synced_stays_open(files: MemoryFiles):
    """The kernel tells an error of the disk to handles that were open when it happened."""
    partition = open_partition(files)
    partition.append(produced(0))
    assert partition.close_idle() == 1
    synced: list[str] = []
    files.machine.seen = synced.append
    partition._publisher._refuse_if_older = refusing  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        partition.append(produced(1))
    assert "sync" not in synced
    assert partition.close_idle() == 0
    del partition._publisher._refuse_if_older
    partition.append(produced(2))
    assert partition.close_idle() == 1


def test_bytes_of_an_interrupted_append_are_synced_before_their_segment_is_left(files: MemoryFiles):
    partition = open_partition(SeenFiles(files.machine))
    partition._publisher._refuse_if_older = refusing  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        partition.append(produced(0))
    del partition._publisher._refuse_if_older
    partition.roll()
    (_, wrote), (did, synced), *_ = partition.files.used
    assert (did, synced) == ("sync", wrote)


def refusing(*_: object) -> None:
    raise Unavailable("no", detail="Not now.", hint="Later.")


class SeenFiles(MemoryFiles):
    """Notes which handles are written to with blocks, and synced."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.used: list[tuple[str, int]] = []

    def pwritev(self, handle: int, buffers: Sequence[bytes | pa.Buffer], position: int) -> None:
        self.used.append(("write", handle))
        super().pwritev(handle, buffers, position)

    def sync(self, handle: int) -> None:
        self.used.append(("sync", handle))
        super().sync(handle)


def test_the_fsync_goes_through_the_handle_that_wrote(files: MemoryFiles):
    seen = SeenFiles(files.machine)
    partition = open_partition(seen, segment_bytes_max=1)
    for number in range(2):
        partition.append(produced(number))
    # The second one begins a segment: that is written, then the block; the segment before is synced first.
    wrote, synced, _, wrote_behind, _, _, synced_behind = [handle for _, handle in seen.used]
    assert (synced, synced_behind) == (wrote, wrote_behind)


def test_a_ledger_goes_on_after_its_files_were_let_go(files: MemoryFiles):
    create_ledger(files, "/ledger", ManualClock())
    one, other = (
        Ledger(process, "/ledger", ManualClock(), ProducersState, ProducersState.restore, title="producers")
        for process in (files, files.process())
    )
    opened = [(one, "a"), (other, "b"), (one, "c"), (other, "a")]
    for ledger, name in opened:
        Producers(lambda ledger=ledger: ledger).open(name)
        for process in (one, other):
            process._files.kept.close_all_idle()
            assert process._files._handles == {}
    assert one.current() == other.current()
    assert [Producers(lambda: one).open(name)[1] for name in "abc"] == [3, 2, 2]


class Calls:
    """Counts the calls of a machine, and ends a test that would never end."""

    def __init__(self, machine: Machine, *, most: int, before: Callable[[str], None] = lambda name: None) -> None:
        self.left = most
        self._before = before
        machine.seen = self

    def __call__(self, name: str) -> None:
        self.left -= 1
        assert self.left >= 0, "the same files are opened again and again"
        self._before(name)


def test_files_that_need_each_other_are_not_let_go_in_turn(files: MemoryFiles):
    """`heads` that was opened again is checked by the tail, which has to be opened too. All other handles are in use."""
    create_ledger(files, "/ledger", ManualClock())
    ledger = Ledger(files, "/ledger", ManualClock(), ProducersState, ProducersState.restore, title="producers")
    Producers(lambda: ledger).open("a")
    in_use = Keeping(files.kept, in_use=True)
    files.kept.close_all_idle()
    files.machine.handles_max = 1
    opened = files.counts["open"]
    Calls(files.machine, most=100)
    ledger.current()
    # `heads`, the tail, the segment.
    assert files.counts["open"] - opened <= 3
    files.machine.seen = None
    ledger.close()
    assert files.kept.handles == in_use.handles


class ReadAfterClose(MemoryFiles):
    """A closed handle may be read from, as what is read then does not count. It must not be used for anything else."""

    def pread(self, handle: int, length: int, position: int) -> bytes:
        try:
            return super().pread(handle, length, position)
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None


def test_everything_ends_whatever_is_let_go_between_two_calls():
    """As if other threads opened files all the time."""
    files = ReadAfterClose()
    letting_go: list[str] = []

    def close_idle(name: str) -> None:
        if not letting_go:
            letting_go.append(name)
            files.kept.close_all_idle()
            letting_go.clear()

    Calls(files.machine, most=50_000, before=close_idle)
    with Mainstem(EmbeddedLog(HOME, files=files, clock=ManualClock())) as stem:
        topic = stem.create_topic("t", schema="k string, n bigint", key="k", partitions=1, keep="latest per key")
        topic.append([{"k": "a", "n": 1}])
        producer = stem.producer("p")
        for sequence in (1, 2, 2):
            producer.append(topic, [{"k": "a", "n": sequence}], sequence=sequence)
        with stem.transaction() as transaction:
            transaction.append(topic, [{"k": "b", "n": 3}])
        assert topic.to_arrow(columns=["n"]).column("n").to_pylist() == [1, 1, 2, 3]
        assert (topic.seal(), topic.compact().removed) == (1, 2)
        topic.append([{"k": "a", "n": 4}])
        assert topic.to_arrow(columns=["n"]).column("n").to_pylist() == [2, 3, 4]
        stem.log.upkeep.run()
        assert stem.log.upkeep.last_error is None
        stem.delete_topic("t")
        with pytest.raises(TopicNotFound):
            topic.append([{"k": "a", "n": 5}])
    assert files.kept.handles == 0


def test_a_file_that_is_pinned_is_not_let_go(files: MemoryFiles):
    slots = Slots(files, f"{HOME}/heads")
    with slots.keep_open(), slots.keep_open():
        assert not files.kept.close_all_idle()
    with slots.keep_open():
        assert not files.kept.close_all_idle()
    assert files.kept.close_all_idle()
    with slots.keep_open():
        assert files.kept.handles == 1
        assert not files.kept.close_all_idle()
    slots.close()
    assert files.kept.handles == 0
    with pytest.raises(Invalid, match="is closed"):
        slots.read(0)


@pytest.fixture
def few_handles(monkeypatch) -> KeptFiles:
    kept = KeptFiles(lambda: 5)
    monkeypatch.setattr(RealFiles, "kept", kept)
    return kept


def appended_by_threads(folder: Path) -> tuple[list[set[int]], list[list[int]], list[BaseException], int]:
    """What was acknowledged and what is there, by topic; what went wrong; and the bytes in files that were opened between."""
    acknowledged: list[set[int]] = [set() for _ in range(TOPICS)]
    wrong: list[BaseException] = []
    others: list[int] = []
    with mainstem.open(folder / "home", upkeep="manual") as stem:
        topics = [stem.create_topic(f"t{number}", schema="n bigint") for number in range(TOPICS)]

        def append(first: int) -> None:
            try:
                for number in range(first, THREADS * APPENDS, THREADS):
                    topic = (number * 5 + first) % TOPICS
                    topics[topic].append([{"n": number}])
                    acknowledged[topic].add(number)
                    # What is closed too early is soon another file's.
                    others.append(os.open(folder / f"other-{number}", os.O_CREAT | os.O_RDWR))
            except BaseException as error:  # noqa: BLE001 - told by the test
                wrong.append(error)

        threads = [threading.Thread(target=append, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        strayed = sum(os.fstat(handle).st_size for handle in others)
        for handle in others:
            os.close(handle)
        there = [topic.to_arrow(columns=["n"]).column("n").to_pylist() for topic in topics]
    return acknowledged, there, wrong, strayed


def test_threads_that_let_go_of_each_other_s_files_lose_nothing(tmp_path: Path, few_handles: KeptFiles):
    acknowledged, there, wrong, strayed = appended_by_threads(tmp_path)
    assert (wrong, strayed) == ([], 0)
    assert [sorted(rows) for rows in there] == [sorted(rows) for rows in acknowledged]
    assert few_handles.handles == 0


def test_more_topics_than_handles(tmp_path: Path) -> None:
    run("many_topics", tmp_path / "home", 24, limit=80)


def test_more_partitions_than_handles(tmp_path: Path) -> None:
    run("many_partitions", tmp_path / "home", 24, limit=80)


@pytest.mark.long
@pytest.mark.parametrize(("program", "number"), [("many_topics", 2_000), ("many_partitions", 1_024)])
def test_many_more_partitions_than_handles(tmp_path: Path, program: str, number: int):
    run(program, tmp_path / "home", number, limit=1024)


def test_a_process_without_a_handle_is_told_so(tmp_path: Path) -> None:
    run("no_handle_left", tmp_path / "home", 1, limit=64)
