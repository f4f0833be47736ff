"""A partition: appends, rolls, producers, and what recovery does with whatever it finds."""

import errno

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import AppendConflict, CorruptBlock, DiskFull, Fenced, Unavailable
from mainstem.file_locks import WRITE
from mainstem.log.embedded.write.active_segment import SegmentName, all_segments_in, published_segments, segments_in
from mainstem.log.embedded.write.block import ABORT, COMMIT
from mainstem.log.embedded.write.partition import Partition, Pending
from tests.log.embedded.acknowledged import FOLDER, HEADS, make_partition, open_partition, read_all
from tests.log.embedded.memory_files import MemoryFiles, Stopped


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    make_partition(files)
    return files


def payloads(files: MemoryFiles, partition: Partition) -> list[bytes]:
    return [block.payload for block in read_all(files, partition.published_end())]


def segments(files: MemoryFiles) -> list[tuple[int, int]]:
    return [tuple(name) for name in segments_in(files.names(FOLDER))]


def names(*segments: tuple[int, int]) -> list[str]:
    return [SegmentName(*segment).path("x").removeprefix("x/") for segment in segments]


# Which segments count


def test_a_segment_counts_unless_a_later_epoch_began_at_or_before_it():
    listed = names((0, 1), (10, 1), (10, 2), (15, 1), (20, 2), (20, 1_000_000))
    assert segments_in([*listed, "tail", "00000000000000000099-000001.blocks.new"]) == [
        (0, 1), (10, 2), (20, 1_000_000),
    ]  # fmt: skip
    assert len(all_segments_in(listed)) == 6
    assert published_segments(listed, 10, 1) == [(0, 1), (10, 1)]


# Appending


def test_appends_of_two_processes_follow_one_another(files):
    a, b = open_partition(files), open_partition(files.process())
    for number in range(6):
        pending = Pending(b"%d" % number, 2)
        (a if number % 2 else b).append(pending)
        assert (pending.base_offset, pending.end_offset) == (2 * number, 2 * number + 2)
    assert payloads(files, a) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert a.published_end() == b.published_end()


def test_append_times_never_go_back(files):
    clock = ManualClock()
    partition = open_partition(files, clock)
    times = []
    for change in (10, -5, 3):
        clock._now += change
        pending = Pending(b"x", 1)
        partition.append(pending)
        times.append(pending.appended_at)
    assert times == sorted(times)


def test_a_conditional_append_is_refused_when_somebody_came_first(files):
    a, b = open_partition(files), open_partition(files.process())
    a.append(Pending(b"one", 1, expected=0))
    with pytest.raises(AppendConflict):
        b.append(Pending(b"two", 1, expected=0))
    b.append(Pending(b"two", 1, expected=1))
    assert payloads(files, a) == [b"one", b"two"]


def test_a_producer_appends_a_sequence_once_also_after_rolls_and_crashes(files):
    partition = open_partition(files, segment_bytes_max=500)
    first = Pending(b"five", 2, producer_id=9, producer_epoch=1, sequence=5)
    partition.append(first)
    for number in range(10):
        partition.append(Pending(b"other %d" % number, 1))
    assert len(segments(files)) > 2
    for opened in (partition, open_partition(files.process(), segment_bytes_max=500)):
        again = Pending(b"five", 2, producer_id=9, producer_epoch=1, sequence=5)
        opened.append(again)
        assert again.duplicate
        assert (again.base_offset, again.end_offset) == (first.base_offset, first.end_offset)
    assert partition.producer_state(9).kept == 5
    with pytest.raises(Fenced):
        partition.append(Pending(b"late", 1, producer_id=9, producer_epoch=0, sequence=6))


def test_a_sequence_of_an_aborted_transaction_counts_no_more(files):
    partition = open_partition(files)

    def transacted() -> Pending:
        return Pending(b"in it", 1, producer_id=9, producer_epoch=1, sequence=3, transaction=40)

    partition.append(transacted())
    partition.append(Pending(b"", 1, kind=ABORT, transaction=40))
    again = transacted()
    again.transaction = 41
    partition.append(again)
    assert not again.duplicate
    partition.append(Pending(b"", 1, kind=COMMIT, transaction=41))
    partition.append(twice := Pending(b"", 1, kind=COMMIT, transaction=41))
    assert twice.duplicate
    with partition.lock.hold(WRITE):
        state = partition.state_scan(partition.published_end()).state
    assert state.aborted_ranges() == [(0, 1)]
    assert state.stable_offset(99) == 99
    assert partition.producer_state(9).kept == 3


# Failures


def test_a_full_disk_refuses_and_then_goes_on(files):
    partition = open_partition(files)
    partition.append(Pending(b"before", 1))
    size = len(files.content(SegmentName(0, 1).path(FOLDER)))
    files.machine.seen = lambda name: files.fail_at(0, errno.ENOSPC) if name == "pwritev" else None
    with pytest.raises(DiskFull):
        partition.append(Pending(b"refused", 1))
    files.machine.seen = None
    assert len(files.content(SegmentName(0, 1).path(FOLDER))) == size
    partition.append(Pending(b"after", 1))
    assert payloads(files, partition) == [b"before", b"after"]


def test_a_fenced_partition_can_be_opened_and_read_and_taken_over(files):
    partition = open_partition(files)
    partition.append(Pending(b"safe", 1))
    files.machine.seen = lambda name: files.fail_at(0, errno.EIO) if name == "sync" else None
    with pytest.raises(Unavailable, match="fsync failed"):
        partition.append(Pending(b"lost", 1))
    files.machine.seen = None
    other = open_partition(files.process())
    assert payloads(files, other) == [b"safe"]
    for refused in (partition, other):
        with pytest.raises(Unavailable, match="is fenced") as raised:
            refused.append(Pending(b"refused", 1))
        assert "end at offset 1" in raised.value.detail
    other.take_over()
    for number, taker in enumerate((partition, other)):
        taker.append(Pending(b"after %d" % number, 1))
    assert payloads(files, partition) == [b"safe", b"after 0", b"after 1"]
    assert partition.published_end().epoch == 2


def test_a_fence_survives_with_the_end_that_was_safe(files):
    """A power cut keeps the fence and takes `heads` back: what was acknowledged before the fence is shown all the same."""
    partition = open_partition(files)
    old_heads = files.content(HEADS)
    for number in range(5):
        partition.append(Pending(b"%d" % number, 1))
    partition._publisher.fence(partition.published_end())
    after = files.copy()
    after.put(HEADS, old_heads)
    opened = open_partition(after)
    assert opened.fenced()
    assert len(payloads(after, opened)) == 5
    opened.take_over()
    assert len(payloads(after, opened)) == 5


def test_a_fence_without_a_known_end_keeps_every_block(files):
    partition = open_partition(files)
    for number in range(3):
        partition.append(Pending(b"%d" % number, 1))
    partition._publisher.fence(None)
    files.put(HEADS, b"")
    other = files.process()
    with pytest.raises(Unavailable):
        open_partition(other)
    partition.take_over()
    assert len(payloads(files, partition)) == 3


# What recovery finds


def test_a_missing_segment_with_acknowledged_records_is_told(files):
    partition = open_partition(files)
    partition.append(Pending(b"one", 1))
    partition.roll()
    partition.append(Pending(b"two", 1))
    files.remove(SegmentName(1, 1).path(FOLDER))
    damaged = open_partition(files.killed())
    with pytest.raises(CorruptBlock, match="before the last acknowledged record") as raised:
        damaged.append(Pending(b"three", 1))
    assert (raised.value.first_offset, raised.value.last_offset) == (1, 1)


def test_no_segment_at_all_is_told(files):
    files.remove(SegmentName(0, 1).path(FOLDER))
    partition = open_partition(files.killed())
    with pytest.raises(CorruptBlock, match="no segment"):
        partition.append(Pending(b"one", 1))


def test_what_a_sealed_segment_has_left_is_enough(files):
    """Segments before the published one may be gone: they are Parquet now, and `heads` may be from before that."""
    partition = open_partition(files)
    partition.append(Pending(b"one", 1))
    old_heads = files.content(HEADS)
    partition.roll()
    partition.append(Pending(b"two", 1))
    partition.roll()
    partition.append(Pending(b"three", 1))
    files.remove(SegmentName(0, 1).path(FOLDER))
    files.remove(SegmentName(1, 1).path(FOLDER))
    files.put(HEADS, old_heads)
    opened = open_partition(files.killed())
    assert opened.published_end().offset == 3
    opened.append(pending := Pending(b"four", 1))
    assert pending.base_offset == 3


def test_a_copy_of_a_block_in_a_payload_is_not_evidence(files):
    """A torn block whose payload holds blocks of another segment is a torn block."""
    partition = open_partition(files)
    for number in range(4):
        partition.append(Pending(b"%d" % number, 1))
    other = MemoryFiles()
    make_partition(other)
    holds_copy = open_partition(other)
    before = before_append(other)
    other.machine.seen = lambda name: other.stop_at(0) if name == "sync" else None
    with pytest.raises(Stopped):
        holds_copy.append(Pending(files.content(SegmentName(0, 1).path(FOLDER)), 1))
    data = bytearray(other.content(SegmentName(0, 1).path(FOLDER)))
    data[before + 5] ^= 1
    after = other.killed()
    after.put(SegmentName(0, 1).path(FOLDER), bytes(data))
    assert open_partition(after).published_end().offset == 0
    assert len(after.content(SegmentName(0, 1).path(FOLDER))) == before


def before_append(files: MemoryFiles) -> int:
    return len(files.content(SegmentName(0, 1).path(FOLDER)))


def test_a_take_over_leaves_no_segment_of_an_epoch_that_is_over(files):
    a, b = open_partition(files), open_partition(files.process())
    for number in range(3):
        a.append(Pending(b"%d" % number, 1))
    a.take_over()
    b.take_over()
    assert [tuple(name) for name in all_segments_in(files.names(FOLDER))] == [(0, 1), (3, 3)]
    b.append(Pending(b"3", 1))
    assert payloads(files, a) == [b"0", b"1", b"2", b"3"]


def test_the_note_of_an_fsync_that_was_cut_short_makes_the_next_one_write_again(files):
    """As if the process had died in the fsync of "two", which failed: the pages are clean, and not on disk."""
    partition = open_partition(files)
    partition.append(Pending(b"one", 1))
    files.machine.seen = lambda name: files.stop_at(0, done="part") if name == "sync" else None
    files.machine.random.seed(1)
    with pytest.raises(Stopped):
        partition.append(Pending(b"two", 1))
    opened = open_partition(files.killed())
    assert payloads(files.process(), opened) == [b"one", b"two"]
    after = files.crash(0, "lost")
    assert payloads(after, open_partition(after)) == [b"one", b"two"]


# What is written and cannot be read yet


def test_an_append_in_progress_is_not_settled_wherever_it_is(files):
    """At each of its calls: either another process says that something is on its way, or the record can be read there."""
    watching = open_partition(files.process())
    partition = open_partition(files)
    partition.append(Pending(b"one", 1))
    assert watching.settle_appends()
    found = []

    def look(name: str) -> None:
        files.machine.seen = lambda name: None
        found.append((watching.settle_appends(), watching.published_end().offset))
        files.machine.seen = look

    files.machine.seen = look
    partition.append(Pending(b"two", 1))
    files.machine.seen = lambda name: None
    # Before it has the lock it has no time yet.
    first = next(place for place, (settled, _) in enumerate(found) if not settled)
    assert {(settled, end) for settled, end in found[:first]} <= {(True, 1)}
    assert all(not settled or end == 2 for settled, end in found[first:])
    assert found[-1] == (True, 2)


def test_what_a_dead_process_has_written_is_published_by_who_asks(files):
    partition = open_partition(files)
    partition.append(Pending(b"one", 1))
    files.machine.seen = lambda name: files.stop_at(0) if name == "sync" else None
    watching = open_partition(files.process())
    with pytest.raises(Stopped):
        partition.append(Pending(b"two", 1))
    files.machine.seen = lambda name: None
    files.kill()
    assert watching.settle_appends()
    assert watching.published_end().offset == 2
