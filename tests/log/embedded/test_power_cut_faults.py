"""L3: the power of a real file system is cut while writers append; after it is mounted anew, what they were promised is
there. Only this sees a missing fsync; a missing fsync of a directory it does not see (see test_partition_crashes).
"""

import os
import random
from pathlib import Path

import pytest

import mainstem
from tests.log.embedded.forked_writers import TOPIC, CheckedTopic, ForkedWriter, create
from tests.log.embedded.mounted_disk import MountedDisk, mounted_disk
from tests.log.embedded.mutants import mutant
from tests.needs import needs, needs_root

SEED = 3_003
POINTS = 100
# Before a release all of them.
EVERY_RUN = 40
CUTS = 20
WRITERS = 2
PARTITIONS = 2
ROWS = 100

pytestmark = [
    pytest.mark.forks,
    needs("xfsprogs", command="xfs_io"),
    needs("xfsprogs", command="mkfs.xfs"),
    needs("e2fsprogs", command="mkfs.ext4"),
    needs_root(),
]


def run(folder: Path, kind: str, points: int, *, first_only: bool = False) -> tuple[int, int, list[str]]:
    tried = acknowledged = 0
    violations: list[str] = []
    while tried < points and not (first_only and violations):
        checked = CheckedTopic(ROWS, PARTITIONS)
        # A new file system from time to time: what is on it makes each mount slower.
        with mounted_disk(folder, kind, "320M") as disk:  # the smallest that xfs takes; the file is sparse
            try:
                tried += cut_often(disk, checked, min(CUTS, points - tried), seed=SEED + tried, first_only=first_only)
            except mainstem.MainstemError as error:
                checked.violations.append(f"after {tried} cuts: {error!r} {error.detail}")
                tried = points
        acknowledged += checked.acknowledged
        violations += checked.violations
    return tried, acknowledged, violations


def cut_often(disk: MountedDisk, checked: CheckedTopic, cuts: int, *, seed: int, first_only: bool) -> int:
    """Cut the power so many times, and look each time; how often it was done."""
    chance = random.Random(seed)
    home = str(disk.path / "home")
    create(home, partitions=PARTITIONS, segment_bytes_max="16 KiB")
    os.sync()  # a broken build is to be found out by what comes now
    for cut in range(cuts):
        writers = [
            ForkedWriter(home, 1 + cut * WRITERS + number, rows=ROWS, partitions=PARTITIONS)
            for number in range(WRITERS)
        ]
        try:
            for writer in writers:
                writer.wait_for_ack()
            writers[0].wait(chance.random() * 0.03)
            disk.cut_power()
        finally:
            for writer in writers:
                writer.kill()
        disk.unmount()
        disk.mount()
        for writer in writers:
            checked.promise(writer.acks)
        with mainstem.open(home) as stem:
            checked.check(stem.topic(TOPIC), f"cut {cut} of seed {seed}")
        if first_only and checked.violations:
            return cut + 1
    with mainstem.open(home) as stem:
        checked.check_from_start(stem.topic(TOPIC), "at the end")
    return cuts


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", [EVERY_RUN, pytest.param(POINTS, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cuts_lose_nothing_acknowledged(tmp_path, kind, cuts, fault_report):
    points, acknowledged, violations = run(tmp_path, kind, cuts)
    fault_report("L3", points=points, compared=acknowledged, violations=violations, seed=SEED, file_system=kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("broken", ["no fsync", "acknowledge before fsync"])
def test_a_broken_build_is_caught(tmp_path, kind, broken):
    with mutant(broken):
        points, _, violations = run(tmp_path, kind, EVERY_RUN, first_only=True)
    assert violations, f"{broken}: {points} cuts, and nothing was noticed"
