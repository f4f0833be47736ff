"""L3: the power of a real file system is cut while writers append; after it is mounted anew, what they were promised is
there. Only this sees a missing fsync; a missing fsync of a directory it does not see (see test_partition_crashes).
"""

import os
import random
from pathlib import Path

import pytest

import mainstem
from tests.log.embedded.forked_writers import TOPIC, CheckedTopic, ForkedWriter, create
from tests.log.embedded.mounted_disk import mounted_disk
from tests.log.embedded.mutants import mutant
from tests.needs import needs, needs_root

SEED = 3_003
POINTS = 100
WRITERS = 2
PARTITIONS = 2
ROWS = 100

pytestmark = [
    needs("xfsprogs", command="xfs_io"),
    needs("xfsprogs", command="mkfs.xfs"),
    needs("e2fsprogs", command="mkfs.ext4"),
    needs_root(),
]


def run(folder: Path, kind: str, points: int, *, first_only: bool = False) -> tuple[int, int, list[str]]:
    chance = random.Random(SEED)
    checked = CheckedTopic(ROWS, PARTITIONS)
    tried = 0
    # Files of 320 MB are the smallest that xfs takes; they are sparse.
    with mounted_disk(folder, kind, "320M") as disk:
        home = str(disk.path / "home")
        create(home, partitions=PARTITIONS, segment_bytes_max="16 KiB")
        os.sync()  # a broken build is to be found out by what comes now
        while tried < points and not (first_only and checked.violations):
            writers = [
                ForkedWriter(home, 1 + tried * WRITERS + number, rows=ROWS, partitions=PARTITIONS)
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
            tried += 1
            for writer in writers:
                checked.promise(writer.acks)
            try:
                with mainstem.open(home) as stem:
                    checked.check(stem.topic(TOPIC), f"cut {tried}")
            except mainstem.MainstemError as error:
                checked.violations.append(f"cut {tried}: {error!r} {error.detail}")
                break
        if not checked.violations:
            with mainstem.open(home) as stem:
                checked.check_from_start(stem.topic(TOPIC), "at the end")
    return tried, checked.acknowledged, checked.violations


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cuts_lose_nothing_acknowledged(tmp_path, kind, fault_report):
    points, acknowledged, violations = run(tmp_path, kind, POINTS)
    fault_report("L3", points=points, compared=acknowledged, violations=violations, seed=SEED, file_system=kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("broken", ["no fsync", "acknowledge before fsync"])
def test_a_broken_build_is_caught(tmp_path, kind, broken):
    with mutant(broken):
        points, _, violations = run(tmp_path, kind, POINTS, first_only=True)
    assert violations, f"{broken}: {points} cuts, and nothing was noticed"
