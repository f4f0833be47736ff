"""L14: indexes are deleted or damaged, and their rebuilding is killed: they come out the same, byte for byte."""

import itertools
import random
from contextlib import suppress

import pytest

from mainstem.clock import ManualClock
from mainstem.log.embedded.write import crash_recovery, partition
from mainstem.log.embedded.write.active_segment import ActiveSegment, SegmentIndex, SegmentName, segments_in
from mainstem.log.embedded.write.partition import Pending
from mainstem.log.embedded.write.segment_writer import SegmentWriter
from tests.log.embedded.acknowledged import FOLDER, make_partition, open_partition
from tests.log.embedded.memory_files import MemoryFiles, Stopped

SEED = 14_014
SEGMENT_BYTES_MAX = 60_000
REBUILDS = 200

Indexes = dict[SegmentName, bytes]


def written() -> tuple[MemoryFiles, Indexes]:
    """Four segments with an entry for every second block or so, and what their indexes must be."""
    files = MemoryFiles()
    make_partition(files)
    clock = ManualClock()
    opened = open_partition(files, clock, segment_bytes_max=SEGMENT_BYTES_MAX)
    chance = random.Random(SEED)
    for _ in range(100):
        clock.advance("1 second")
        opened.append(Pending(chance.randbytes(chance.randrange(4_000)), 3))
    files.sync_everything()
    return files, {name: files.content(name.index_path(FOLDER)) for name in segments_in(files.names(FOLDER))}


def damaged(data: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(data))
    return chance.choice(
        [
            b"",
            data[:position],
            data[:position] + bytes(len(data) - position),
            data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :],
            data + data[-24:],
            chance.randbytes(len(data)),
        ]
    )


def with_appends(files: MemoryFiles, appends: int) -> Indexes:
    """The indexes after a process has opened the partition and appended."""
    opened = open_partition(files, ManualClock(), segment_bytes_max=SEGMENT_BYTES_MAX)
    for number in range(appends):
        opened.append(Pending(bytes([number]) * 3_000, 1))
    names = segments_in(files.names(FOLDER))
    return {name: files.content(name.index_path(FOLDER)) for name in names}


def run() -> tuple[int, int, list[str]]:
    healthy, expected = written()
    after = with_appends(healthy.copy(), 3)
    chance = random.Random(SEED)
    points = compared = 0
    violations: list[str] = []
    for point in range(REBUILDS):
        files = healthy.copy()
        names = list(expected)
        if point % 2:
            # Of the one being written anything; of the others any number is gone.
            last = names[-1].index_path(FOLDER)
            files.put(last, damaged(expected[names[-1]], chance))
            for name in chance.sample(names[:-1], chance.randrange(len(names))):
                files.remove(name.index_path(FOLDER))
        else:
            for name in chance.sample(names, chance.randrange(1, len(names) + 1)):
                files.remove(name.index_path(FOLDER))
        # Killed while it is made again, once or twice.
        for _ in range(chance.randrange(3)):
            files.stop_at(chance.randrange(1, 60), done=chance.choice(["nothing", "part", "all"]))
            with suppress(Stopped):
                with_appends(files, 0)
            files = files.killed()
        found = with_appends(files, 3)
        points += 1
        compared += len(found)
        violations += [
            f"rebuild {point}: the index of {name} has {len(found[name])} bytes, {len(wanted)} were expected"
            for name, wanted in after.items()
            if found.get(name) != wanted and len(found[name]) != len(wanted)
        ]
        violations += [
            f"rebuild {point}: the index of {name} differs" for name in names[:-1] if found[name] != expected[name]
        ]
        violations += [f"rebuild {point}: {wrong}" for wrong in unsound(files)]
    return points, compared, violations


def unsound(files: MemoryFiles) -> list[str]:
    wrong = []
    for name in segments_in(files.names(FOLDER)):
        segment = ActiveSegment(files, FOLDER, name)
        if not SegmentIndex(files, name.index_path(FOLDER)).sound(segment, segment.size()):
            wrong.append(f"the index of {name} is not what its segment says")
        segment.close()
    return wrong


def test_indexes_come_out_the_same(fault_report):
    points, compared, violations = run()
    fault_report("L14", points=points, compared=compared, violations=violations, seed=SEED)
    assert points == REBUILDS


def test_rebuilding_killed_at_every_call(fault_report):
    """Asked for by hand, for a segment that is closed: whatever a kill leaves, the next time makes it whole."""
    healthy, expected = written()
    points = 0
    violations: list[str] = []
    for name, done in itertools.product(list(expected)[:-1], ("nothing", "part", "all")):
        for call in itertools.count(1):
            files = healthy.copy()
            files.put(name.index_path(FOLDER), damaged(expected[name], random.Random(call)))
            files.stop_at(call, done=done)
            try:
                rebuild(files, name)
                break
            except Stopped:
                points += 1
            files = files.killed()
            rebuild(files, name)
            if files.content(name.index_path(FOLDER)) != expected[name]:
                violations.append(f"{name} killed at call {call} ({done}): differs")
    fault_report("L14 by hand", points=points, compared=points, violations=violations, seed=SEED)


def rebuild(files: MemoryFiles, name: SegmentName) -> None:
    segment = ActiveSegment(files, FOLDER, name)
    SegmentIndex(files, name.index_path(FOLDER)).rebuild(segment, segment.size())
    segment.close()


def test_a_build_that_does_not_mend_indexes_is_caught(monkeypatch):
    monkeypatch.setattr(crash_recovery, "mend_index", lambda *_: None)
    monkeypatch.setattr(partition, "make_missing_indexes", lambda *_: None)
    monkeypatch.setattr(SegmentWriter, "mend_index", lambda *_: None)
    try:
        _, _, violations = run()
    except FileNotFoundError as error:
        violations = [f"{error!r}"]
    assert violations


@pytest.mark.parametrize("appends", [0, 1, 5, 200])
def test_a_block_is_found_by_offset_and_by_time(appends):
    files = MemoryFiles()
    make_partition(files)
    clock = ManualClock()
    opened = open_partition(files, clock)
    placed = []
    for number in range(appends):
        clock.advance("1 second")
        pending = Pending(b"x" * 300, 1 + number % 3)
        opened.append(pending)
        placed.append(pending)
    name = SegmentName(0, 1)
    segment = ActiveSegment(files, FOLDER, name)
    index = SegmentIndex(files, name.index_path(FOLDER))
    for pending in placed:
        by_offset = index.find_offset(segment, pending.end_offset - 1)
        by_time = index.find_time(segment, pending.appended_at)
        assert by_offset is not None
        header = segment.header_at(by_offset[0])
        assert header is not None
        assert pending.base_offset - 60 < header.base_offset <= pending.base_offset
        assert by_time is None or by_time[1] < pending.base_offset
    segment.close()
