"""L5: one bit is flipped at every seventh byte of segments, heads, tail, indexes and manifest.

Nothing wrong is ever served: a flip is told with the file, the byte and the range, or repaired, or does no harm.
"""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import Corrupt, CorruptBlock, CorruptManifest
from mainstem.log.embedded.upkeep.manifest import Manifest, ManifestFile, SealedEntry, encode_manifest
from mainstem.log.embedded.write import heads
from mainstem.log.embedded.write.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentIndex, segments_in
from mainstem.log.embedded.write.crash_recovery import recover
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition import Pending
from mainstem.log.embedded.write.partition_state import StateScan
from tests.log.embedded.acknowledged import FOLDER, HEADS, Stored, make_partition, open_partition, read_all
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.mutants import mutant

SEED = 5_005
EVERY = 7

Outcome = tuple[int, int, list[str]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that cannot be read is read again after a moment; here nobody will have written it by then."""
    monkeypatch.setattr(heads, "PAUSE_SECONDS", 0)


class Healthy:
    """A partition of several segments, as it was written."""

    def __init__(self, blocks: int) -> None:
        chance = random.Random(SEED)
        self.files = MemoryFiles()
        make_partition(self.files)
        clock = ManualClock()
        partition = open_partition(self.files, clock, segment_bytes_max=16_000)
        for number in range(blocks):
            clock.advance("1 second")
            producer = {"producer_id": 3, "producer_epoch": 1, "sequence": number} if number % 10 == 0 else {}
            partition.append(Pending(chance.randbytes(chance.randrange(200)), 1 + number % 4, **producer))
        self.end = partition.published_end()
        self.stored = read_all(self.files, self.end)
        self.names = segments_in(self.files.names(FOLDER))
        self.files = self.files.copy()

    def flips(self, path: str, every: int = EVERY) -> Iterator[str]:
        """Each time one bit of a file is another; afterwards it is as it was."""
        chance = random.Random(f"{SEED} {path}")
        data = self.files.content(path)
        for position in range(chance.randrange(every), len(data), every):
            bit = 1 << chance.randrange(8)
            self.files.put(path, data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :])
            yield f"{path} byte {position} bit {bit}"
        self.files.put(path, data)

    def in_segment(self, number: int) -> list[Stored]:
        low = self.names[number].base
        high = self.names[number + 1].base if number + 1 < len(self.names) else self.end.offset
        return [block for block in self.stored if low <= block.offset < high]


def flipped_blocks(healthy: Healthy) -> Outcome:
    """What is published is read as it was, or refused with the range; without `heads` nothing is cut off either."""
    points = compared = 0
    wrong: list[str] = []
    for number, name in enumerate(healthy.names):
        expected = healthy.in_segment(number)
        last = number + 1 == len(healthy.names)
        for flip in healthy.flips(name.path(FOLDER)):
            points += 1
            compared += len(expected)
            segment = ActiveSegment(healthy.files, FOLDER, name)
            size = healthy.end.position if last else segment.size()
            try:
                stored = [
                    Stored(block.header.base_offset, block.header.count, block.payload.to_pybytes())
                    for block in segment.blocks(PREAMBLE_BYTES, size, name.base)
                    if block.header.count
                ]
                if stored != expected:
                    wrong.append(f"{flip}: read wrongly")
            except CorruptBlock as error:
                position = int(flip.split()[2])
                if error.path != segment.path or error.position is None or error.position > position:
                    wrong.append(f"{flip}: {error} names the wrong place")
            finally:
                segment.close()
    return points, compared, wrong


def flipped_without_heads(healthy: Healthy) -> Outcome:
    """Recovery that knows of no published end refuses damage before the last blocks, and cuts nothing off."""
    points = 0
    wrong: list[str] = []
    for name in healthy.names:
        sizes = {other: len(healthy.files.content(other.path(FOLDER))) for other in healthy.names}
        # Of the last two blocks nothing that comes after says that they were on disk.
        certain = sizes[name] - 800 if name == healthy.names[-1] else sizes[name]
        for flip in healthy.flips(name.path(FOLDER), EVERY * 9):
            if int(flip.split()[2]) >= certain:
                continue
            points += 1
            try:
                end: object = recover(healthy.files, FOLDER, None)
            except Corrupt:
                end = healthy.end
            if end != healthy.end:
                wrong.append(f"{flip}: recovered to {end}")
            if sizes != {other: len(healthy.files.content(other.path(FOLDER))) for other in healthy.names}:
                wrong.append(f"{flip}: something was cut off")
    return points, points, wrong


def flipped_state(healthy: Healthy) -> Outcome:
    """Producers and transactions are known as they were, or not at all."""

    def state(end: End) -> dict[str, object]:
        scan = StateScan(healthy.files, FOLDER)
        scan.catch_up(end)
        return scan.state.to_json()

    expected = state(healthy.end)
    points = 0
    wrong: list[str] = []
    for flip in healthy.flips(healthy.names[-1].path(FOLDER)):
        points += 1
        try:
            if state(healthy.end) != expected:
                wrong.append(f"{flip}: the state is another")
        except CorruptBlock:
            pass
    return points, points, wrong


def flipped_ends(healthy: Healthy) -> Outcome:
    """A damaged `heads` or `tail` is made again from the segments."""
    points = compared = 0
    wrong: list[str] = []
    for path in (HEADS, f"{FOLDER}/tail"):
        for flip in itertools.chain.from_iterable(healthy.flips(path) for _ in range(3)):
            points += 1
            files = healthy.files.copy()
            partition = open_partition(files, ManualClock())
            try:
                if partition.published_end() != healthy.end:
                    wrong.append(f"{flip}: the published end is {partition.published_end()}")
                partition.append(Pending(b"one more", 1))
                stored = read_all(files, partition.published_end())
                compared += len(stored)
                if stored != [*healthy.stored, Stored(healthy.end.offset, 1, b"one more")]:
                    wrong.append(f"{flip}: read wrongly")
            except Corrupt as error:
                wrong.append(f"{flip}: {error}")
    return points, compared, wrong


def flipped_index(healthy: Healthy) -> Outcome:
    """Where an index leads, a block begins that is not behind the one that is looked for."""
    points = compared = 0
    wrong: list[str] = []
    for number, name in enumerate(healthy.names):
        segment = ActiveSegment(healthy.files, FOLDER, name)
        headers = {at: header for at, header in segment.headers(PREAMBLE_BYTES, segment.size()) if header.count}
        index = SegmentIndex(healthy.files, name.index_path(FOLDER))
        for flip in healthy.flips(name.index_path(FOLDER)):
            points += 1
            for block in healthy.in_segment(number)[::9]:
                compared += 1
                found = index.find_offset(segment, block.offset)
                if found is not None and (
                    found[0] not in headers or not headers[found[0]].base_offset == found[1] <= block.offset
                ):
                    wrong.append(f"{flip}: offset {block.offset} is sought from {found}")
                at = next(header.appended_at for header in headers.values() if header.base_offset == block.offset)
                found = index.find_time(segment, at)
                if found is not None and (found[0] not in headers or headers[found[0]].appended_at >= at):
                    wrong.append(f"{flip}: time {at} is sought from {found}")
        segment.close()
    return points, compared, wrong


def flipped_manifest(healthy: Healthy) -> Outcome:
    path = f"{FOLDER}/manifest"
    expected = Manifest(
        start=17,
        segments=tuple(
            SealedEntry(base, base + 50, f"{base:020d}.parquet", 9_999, 1_234_567, 50, 1, base, base + 9, 5, 4, 3)
            for base in range(0, 500, 50)
        ),
    )
    healthy.files.put(path, encode_manifest(expected))
    points = 0
    wrong: list[str] = []
    for flip in healthy.flips(path, 1):
        points += 1
        try:
            if ManifestFile(healthy.files, FOLDER).read() != expected:
                wrong.append(f"{flip}: read wrongly")
        except CorruptManifest:
            pass
        except (ValueError, KeyError, TypeError) as error:
            wrong.append(f"{flip}: {error!r}")
    return points, points, wrong


FLIPPED: dict[str, tuple[Callable[[Healthy], Outcome], int, list[str]]] = {
    "blocks": (flipped_blocks, 1_300, ["no payload check", "no header check"]),
    "blocks without heads": (flipped_without_heads, 150, ["cut whatever is unsound"]),
    "state": (flipped_state, 150, ["no header check"]),
    "heads and tail": (flipped_ends, 40, ["no slot check"]),
    "indexes": (flipped_index, 3_000, ["believe the index"]),
    "manifest": (flipped_manifest, 1, ["no manifest check"]),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough if kind == "blocks" else ()) for kind in FLIPPED]
)
def test_flipped_bits(kind, fault_report):
    flipped, blocks, _ = FLIPPED[kind]
    points, compared, violations = flipped(Healthy(blocks))
    fault_report(f"L5 {kind}", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.parametrize(
    ("kind", "broken"), [(kind, broken) for kind, flipped in FLIPPED.items() for broken in flipped[2]]
)
def test_a_broken_build_is_caught(kind, broken):
    flipped, blocks, _ = FLIPPED[kind]
    healthy = Healthy(min(blocks, 100))
    points = 0
    try:
        with mutant(broken):
            points, _, violations = flipped(healthy)
    except (AssertionError, OSError) as error:
        violations = [f"{error!r}"]
    assert violations, f"{broken}: {points} flips, and nothing was noticed"
