"""L4: a segment is cut at every byte of its last hundred blocks, with nothing, zeros, garbage or old blocks behind.

Whatever lies there, exactly the blocks that are whole are found again, and the file ends with the last of them.
"""

import random
from collections.abc import Callable, Iterator

import google_crc32c
import pytest

from mainstem.clock import ManualClock
from mainstem.errors import CorruptBlock
from mainstem.log.embedded.write.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName
from mainstem.log.embedded.write.crash_recovery import after_block, first_end, recover
from mainstem.log.embedded.write.heads import End, encode_end
from mainstem.log.embedded.write.partition import Pending
from tests.log.embedded.acknowledged import FOLDER, HEADS, make_partition, open_partition, read_all
from tests.log.embedded.memory_files import MemoryFiles, Stopped
from tests.log.embedded.mutants import mutant

SEED = 4_004
TORN_BLOCKS = 100
NAME = SegmentName(0, 1)
PATH = NAME.path(FOLDER)


class Torn:
    """A segment whose last blocks were written and never synced, and the same as it might have been written instead."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        files = MemoryFiles()
        make_partition(files)
        partition = open_partition(files, ManualClock())
        for number in range(5):
            partition.append(Pending(b"acknowledged %d" % number, 2))
        self.files = files.copy()
        self.data = self._written(files.copy(), b"a")
        # Of equal sizes, so that its blocks lie at the same places and have the same offsets.
        self.other = self._written(files.copy(), b"b")
        self.ends = self._ends()
        self.first_torn = next(number for number, end in enumerate(self.ends) if end.offset == 10)

    def _written(self, files: MemoryFiles, letter: bytes) -> bytes:
        partition = open_partition(files, ManualClock())
        sizes = random.Random(SEED)
        group = [Pending(letter * sizes.randrange(8, 40), 1 + number % 3) for number in range(TORN_BLOCKS)]
        for pending in group:
            pending.payload_crc = google_crc32c.value(pending.payload)
        # Killed in its fsync: all is written, and nothing of it was promised.
        before = files.counts["sync"]
        files.machine.seen = lambda name: files.stop_at(0) if name == "sync" and files.counts["sync"] > before else None
        with pytest.raises(Stopped):
            partition._commit(group)
        return files.content(PATH)

    def _ends(self) -> list[End]:
        """The end after each block."""
        self.files.put(PATH, self.data)
        segment = ActiveSegment(self.files, FOLDER, NAME)
        end = first_end(segment)
        assert end is not None
        ends = [end]
        for block in segment.walk(end.position, len(self.data), end.offset, end.crc):
            end = after_block(end, block.header, block.position)
            ends.append(end)
        segment.close()
        assert end.position == len(self.data)
        assert len(ends) == 6 + TORN_BLOCKS
        return ends

    def tails(self, cut: int) -> Iterator[tuple[str, bytes]]:
        length = len(self.data) - cut
        yield "nothing", b""
        yield "zeros", bytes(length)
        yield "garbage", self.random.randbytes(length)
        if cut >= self.ends[self.first_torn + 1].position:  # from the first one on they would be as good
            yield "other blocks", self.other[cut:]
        start = self.ends[self.random.randrange(len(self.ends) - 1)].position
        yield "old blocks", self.data[start : start + length]

    def states(self, every: int) -> Iterator[tuple[str, bytes, End, End]]:
        """A name, the bytes, an end that was published, and the end that must be found."""
        number = self.first_torn
        for cut in range(self.ends[number].position, len(self.data), every):
            while self.ends[number + 1].position <= cut:
                number += 1
            for kind, tail in self.tails(cut):
                data = self.data[:cut] + tail
                # Bytes that happen to be the same are as good as the ones that were written.
                whole = number
                while whole + 1 < len(self.ends) and data.startswith(
                    self.data[cut : self.ends[whole + 1].position], cut
                ):
                    whole += 1
                published = self.ends[self.random.randrange(max(self.first_torn, number - 3), number + 1)]
                yield f"cut at {cut}, then {kind}", data, published, self.ends[whole]


def recovered(torn: Torn, data: bytes, published: End) -> tuple[object, bytes]:
    torn.files.put(PATH, data)
    try:
        end: object = recover(torn.files, FOLDER, published)
    except CorruptBlock as error:
        end = error
    return end, torn.files.content(PATH)


def opened(torn: Torn, data: bytes, published: End) -> tuple[object, bytes]:
    """As a process finds it that opens the partition after a power cut: with a `heads` and a `tail` of any age."""
    files = torn.files.copy()
    files.put(PATH, data)
    files.put(HEADS, encode_end(published))
    files.put(f"{FOLDER}/tail", torn.random.choice([b"", encode_end(torn.ends[0]) * 2, torn.random.randbytes(256)]))
    try:
        partition = open_partition(files, ManualClock())
        end: object = partition.published_end()
        read_all(files, partition.published_end())
    except CorruptBlock as error:
        end = error
    return end, files.content(PATH)


def run(
    how: Callable[..., tuple[object, bytes]], every: int, *, first_only: bool = False
) -> tuple[int, int, list[str]]:
    torn = Torn(SEED)
    points = compared = 0
    violations: list[str] = []
    for name, data, published, wanted in torn.states(every):
        end, left = how(torn, data, published)
        points += 1
        compared += wanted.offset
        if end != wanted:
            violations.append(f"{name}: found {end!r} and not {wanted}")
        elif left != torn.data[: wanted.position]:
            violations.append(f"{name}: the file was left with {len(left)} bytes, not {wanted.position}")
        if violations and first_only:
            break
    return points, compared, violations


# Every fifth byte in every run; all of them before a release.
SAMPLE = 5


@pytest.mark.thorough
@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=pytest.mark.long)])
def test_a_segment_torn_at_every_byte(fault_report, every):
    points, compared, violations = run(recovered, every)
    fault_report("L4", points=points, compared=compared, violations=violations, seed=SEED)
    assert points >= 50_000 // every


def test_a_partition_opened_on_a_torn_segment(fault_report):
    points, compared, violations = run(opened, 101)
    fault_report("L4 opened", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.parametrize("broken", ["no chain check", "no payload check", "no cut"])
def test_a_broken_build_is_caught(broken):
    with mutant(broken):
        points, _, violations = run(recovered, SAMPLE, first_only=True)
    assert violations, f"{broken}: {points} states, and nothing was noticed"


def test_damage_below_what_was_acknowledged_is_not_taken_for_a_torn_end():
    """The same cuts, but a later block says that the one before was on disk: a loud stop, and nothing is changed."""
    files = MemoryFiles()
    make_partition(files)
    partition = open_partition(files, ManualClock())
    for number in range(20):
        partition.append(Pending(b"acknowledged %d" % number, 2))
    data = files.content(PATH)
    for position in range(PREAMBLE_BYTES, partition.published_end().position - 400, 97):
        files.put(PATH, data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(CorruptBlock):
            recover(files, FOLDER, None)
        assert len(files.content(PATH)) == len(data)
