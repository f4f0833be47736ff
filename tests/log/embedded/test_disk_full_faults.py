"""L7: the disk is full. Appends are refused and not acknowledged, reading goes on, and as soon as there is space again
so do appends, without a restart.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

import mainstem
from mainstem.errors import DiskFull
from mainstem.log.embedded.write import partition
from tests.log.embedded.forked_writers import TOPIC, Ack, CheckedTopic, create, rows_from
from tests.log.embedded.mounted_disk import mounted_disk, small_memory_disk
from tests.needs import needs, needs_root

SEED = 7_007
EPISODES = 50
ROWS = 50
PARTITIONS = 2
# How long the first append with space again may pause, for locks and to try again. What it takes is the machine's affair.
RECOVERY_SECONDS_MAX = 5.0


@contextmanager
def small_disk(folder: Path, kind: str) -> Iterator[Path]:
    if kind == "tmpfs":
        with small_memory_disk(folder, "8m") as path:
            yield path
    else:
        with mounted_disk(folder, "ext4", "16M") as disk:
            yield disk.path


def fill(path: Path, leave: int) -> Path:
    """Take all space but about so many bytes."""
    filler = path / "filler"
    space = os.statvfs(path)
    with filler.open("wb", buffering=0) as file:
        try:
            for _ in range(max(0, space.f_bavail * space.f_frsize - leave) // 65_536):
                file.write(bytes(65_536))
            while os.statvfs(path).f_bavail * space.f_frsize > leave + 4_096:
                file.write(bytes(4_096))
        except OSError:
            pass
    return filler


class Episodes:
    """A home on a small disk, filled again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = str(path / "home")
        self.random = random.Random(SEED)
        self.turn = 0
        self.checked = CheckedTopic(ROWS, PARTITIONS)
        self.longest = 0.0
        create(self.home, partitions=PARTITIONS, segment_bytes_max="16 KiB")
        self.stem = mainstem.open(self.home)
        self.topic = self.stem.topic(TOPIC)
        self.append()
        self.checked.check(self.topic, "before")

    def append(self) -> None:
        first_id = self.turn * ROWS
        number = self.turn % PARTITIONS
        self.turn += 1
        placed = self.topic.append(rows_from(first_id, ROWS), partition=number)
        self.checked.promise([Ack(number, placed.offsets[number][0], first_id)])

    def run(self, number: int) -> None:
        where = f"episode {number}"
        filler = fill(self.path, self.random.randrange(40_000))
        refused = 0
        for _ in range(200):
            try:
                self.append()
            except DiskFull:
                refused += 1
                if refused == 3:
                    break
        if not refused:
            self.checked.violations.append(f"{where}: the disk did not fill up")
        self.checked.check(self.topic, f"{where}, full")
        if number % 5 == 0:
            with mainstem.open(self.home) as other:
                self.checked.check_from_start(other.topic(TOPIC), f"{where}, full, opened anew")
        filler.unlink()
        with mock.patch.object(time, "sleep", wraps=time.sleep) as pauses:
            self.append()
        self.longest = max(self.longest, sum(pause.args[0] for pause in pauses.call_args_list))
        self.append()
        self.checked.check(self.topic, f"{where}, freed")


def run(folder: Path, kind: str, episodes: int) -> tuple[Episodes, int, list[str]]:
    with small_disk(folder, kind) as path:
        filled = Episodes(path)
        tried = 0
        try:
            for number in range(episodes):
                filled.run(number)
                tried += 1
            filled.checked.check_from_start(filled.topic, "at the end")
        except mainstem.MainstemError as error:
            filled.checked.violations.append(f"episode {tried}: {error!r} {error.detail}")
        finally:
            filled.stem.close()
    return filled, tried, filled.checked.violations


@pytest.mark.thorough
@needs_root()
@needs("e2fsprogs", command="mkfs.ext4")
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk(tmp_path, kind, fault_report):
    filled, episodes, violations = run(tmp_path, kind, EPISODES)
    fault_report(
        "L7", points=episodes, compared=filled.checked.acknowledged, violations=violations, seed=SEED,
        file_system=kind, recovery_seconds=round(filled.longest, 3),
    )  # fmt: skip
    assert filled.longest <= RECOVERY_SECONDS_MAX


@needs_root()
def test_a_build_that_acknowledges_on_a_full_disk_is_caught(tmp_path, monkeypatch):
    """It writes what fits, and says that all is well."""
    write = partition.SegmentWriter.write

    def broken(self: object, blocks: object) -> None:
        try:
            write(self, blocks)
        except OSError:
            return

    monkeypatch.setattr(partition.SegmentWriter, "write", broken)
    _, _, violations = run(tmp_path, "tmpfs", 5)
    assert violations
