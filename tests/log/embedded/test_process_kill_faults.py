"""L1: writers are killed with SIGKILL at random moments, while others go on; what they were promised is there."""

import itertools
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

import mainstem
from tests.log.embedded.forked_writers import TOPIC, CheckedTopic, ForkedWriter, create
from tests.log.embedded.mutants import mutant

pytestmark = pytest.mark.forks

SEED = 1_001
POINTS = 1_000
KILLS = 200
# For each kill.
ACKNOWLEDGED = 1_000
# Before a release all of them.
EVERY_RUN = 100
WRITERS = 3
PARTITIONS = 3
ROWS = 100

# How long the writers are left alone before the next one is killed.
MILLISECONDS_MAX = 16
CHECK_EVERY = 50


def run(folder: Path, points: int, *, first_only: bool = False) -> tuple[int, int, list[str]]:
    tried = acknowledged = 0
    violations: list[str] = []
    while tried < points and not (first_only and violations):
        # A new home from time to time: reading all that was written takes longer and longer.
        checked = CheckedTopic(ROWS, PARTITIONS)
        home = folder / str(tried)
        tried += kill_often(str(home), checked, min(KILLS, points - tried), seed=SEED + tried, first_only=first_only)
        acknowledged += checked.acknowledged
        violations += checked.violations
        shutil.rmtree(home)
    return tried, acknowledged, violations


def kill_often(home: str, checked: CheckedTopic, kills: int, *, seed: int, first_only: bool) -> int:
    """Kill writers so many times, and look now and then; how often it was done."""
    chance = random.Random(seed)
    create(home, partitions=PARTITIONS)
    numbers = itertools.count(1)
    writers: list[ForkedWriter] = []
    killed = 0
    try:
        writers += [ForkedWriter(home, next(numbers), rows=ROWS, partitions=PARTITIONS) for _ in range(WRITERS)]
        while killed < kills and not (first_only and checked.violations):
            victim = chance.randrange(WRITERS)
            writers[victim].wait(chance.random() * MILLISECONDS_MAX / 1000)
            writers[victim].kill()
            killed += 1
            checked.promise(writers[victim].acks)
            writers[victim] = ForkedWriter(home, next(numbers), rows=ROWS, partitions=PARTITIONS)
            if killed % CHECK_EVERY == 0:
                # Opened for this alone: a process is forked best when it has no other threads.
                with mainstem.open(home) as stem:
                    checked.check(stem.topic(TOPIC), f"kill {killed} of seed {seed}")
    except (mainstem.MainstemError, OSError) as error:
        checked.violations.append(f"kill {killed} of seed {seed}: {error!r} {getattr(error, 'detail', '')}")
    finally:
        for writer in writers:
            writer.kill()
            checked.promise(writer.acks)
    if not checked.violations:
        with mainstem.open(home) as stem:
            checked.check_from_start(stem.topic(TOPIC), f"after {killed} kills of seed {seed}")
    return killed


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [EVERY_RUN, pytest.param(POINTS, marks=pytest.mark.long)])
def test_killed_writers_lose_nothing_acknowledged(tmp_path, fault_report, kills):
    points, acknowledged, violations = run(tmp_path, kills)
    fault_report("L1", points=points, compared=acknowledged, violations=violations, seed=SEED)
    assert acknowledged >= ACKNOWLEDGED * kills


@pytest.mark.parametrize("broken", ["no lock"])
def test_a_broken_build_is_caught(tmp_path, broken):
    with mutant(broken):
        points, _, violations = run(tmp_path, EVERY_RUN, first_only=True)
    assert violations, f"{broken}: {points} kills, and nothing was noticed"


def test_a_forked_child_goes_on_with_what_its_parent_opened(tmp_path):
    """Threads and locks of the parent do not exist in it; the files are the same."""
    create(str(tmp_path), partitions=1)
    with mainstem.open(tmp_path) as stem:
        topic = stem.topic(TOPIC)
        topic.append([{"id": 1, "what": "parent"}])
        pid = os.fork()
        if pid == 0:
            try:
                topic.append([{"id": 2, "what": "child"}])
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        topic.append([{"id": 3, "what": "parent"}])
        assert topic.to_arrow(columns=["id"]).column("id").to_pylist() == [1, 2, 3]


def test_a_killed_process_holds_no_lock(tmp_path):
    create(str(tmp_path), partitions=1)
    writer = ForkedWriter(str(tmp_path), 1, rows=10, partitions=1)
    writer.wait_for_ack()
    os.kill(writer.pid, signal.SIGSTOP)
    writer.kill()
    with mainstem.open(tmp_path) as stem:
        assert stem.topic(TOPIC).append([{"id": 1, "what": "after"}]).count == 1
