"""L8: the file layer fails at the Nth call, for every N.

Nothing is acknowledged after a failed fsync, and it is not tried again; the partition is fenced for every process until
somebody takes it over; nothing acknowledged is lost, then or after a power cut. Whatever fails, what is raised is one of
ours.
"""

import errno
import itertools

import pytest

from mainstem.errors import MainstemError, Unavailable
from mainstem.log.embedded.write.partition import Pending
from tests.log.embedded.memory_disk import MODES
from tests.log.embedded.mutants import mutant
from tests.log.embedded.two_processes import SCRIPT, World

SEED = 8_000
POINTS = 2_000
LONG_SCRIPT = SCRIPT * 4

# How many steps are made after the one that failed, before all is looked at.
STEPS_AFTER = 4


def fenced_for_all(world: World, where: str) -> list[str]:
    """Neither process may append, and neither may do so after the other tried."""
    wrong = []
    for name, partition in world.partitions.items():
        if not partition.fenced():
            wrong.append(f"{where}: an fsync failed, and the partition is not fenced for {name}")
        try:
            partition.append(Pending(b"after a failed fsync", 1))
            wrong.append(f"{where}: an append by {name} was acknowledged after a failed fsync")
        except Unavailable:
            pass
    return wrong


def try_point(call: int, error: int, *, calls: int, let_go: bool = False) -> tuple[int, list[str]] | None:
    """Fail at one call; the facts compared and what was wrong, or None when the script ends before."""
    world = World(SEED + call, let_go=let_go)
    files = world.files["A"]
    machine = files.machine
    files.fail_at(call, error, calls=calls)
    wrong: list[str] = []
    left: int | None = None
    for step in LONG_SCRIPT:
        before = len(world.promised.offsets)
        where = f"call {call} ({errno.errorcode[error]}) in {step!r}"
        failed_before = len(machine.failed)
        try:
            world.step(step)
            raised = False
        except (MainstemError, OSError) as found:
            raised = True
            if not isinstance(found, MainstemError) and not step.startswith("look"):
                wrong.append(f"{where}: {found!r} was raised")
        failed = machine.failed[failed_before:]
        # Without a handle nothing was synced, and nothing failed to be.
        synced = [name for name in failed if name in ("sync", "sync_directory") and error != errno.EMFILE]
        if raised and len(world.promised.offsets) > before:
            wrong.append(f"{where}: acknowledged, and failed")
        if synced and not raised:
            # Then it was not the fsync of what was acknowledged.
            wrong += world.after_power_cut(call, "lost", f"{where}, {synced[0]} failed quietly")
        if raised and calls == 1 and synced:
            wrong += fenced_for_all(world, where)
            wrong += world.after_power_cut(call, MODES[call % len(MODES)], where)
            wrong += world.after_power_cut(call + 1, "pieces", where)
            world.partitions["A" if call % 2 else "B"].take_over()
        if failed and left is None:
            left = STEPS_AFTER
            if calls > 1:
                machine.fails.clear()
                wrong += lifted(world)
        if left is not None:
            left -= 1
            if left < 0:
                break
    if left is None:
        return None
    wrong += world.after_power_cut(call, "lost", where)
    for name, partition in world.partitions.items():
        wrong += world.go_on(partition, f"{where}, then {name}")
    return len(world.promised.offsets), wrong


def lifted(world: World) -> list[str]:
    """After a disk has failed for good and was repaired, a take-over makes the partition usable for both."""
    partition = world.partitions["B"]
    if partition.fenced():
        partition.take_over()
    return world.go_on(partition, "repaired")


def run(points: int, *, step: int = 1, first_only: bool = False) -> tuple[int, int, list[str]]:
    tried = compared = 0
    violations: list[str] = []
    for call in itertools.count(1, step):
        calls = 500 if call % 10 == 0 else 1
        result = try_point(call, errno.ENOSPC if call % 3 == 0 else errno.EIO, calls=calls)
        if result is None or call > points:
            break
        tried += 1
        compared += result[0]
        violations += result[1]
        if violations and first_only:
            break
    return tried, compared, violations


@pytest.mark.thorough
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_the_nth_call_fails(fault_report, step):
    points, compared, violations = run(POINTS, step=step)
    fault_report("L8", points=points, compared=compared, violations=violations, seed=SEED)
    assert points == len(range(0, POINTS, step))


@pytest.mark.thorough
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
def test_no_handle_is_left_at_the_nth_call(fault_report, step):
    """Every file is opened again and again, and at some time for three calls no handle is to be had."""
    tried = compared = 0
    violations: list[str] = []
    for call in range(1, POINTS, step):
        result = try_point(call, errno.EMFILE, calls=3, let_go=True)
        if result is not None:
            tried += 1
            compared += result[0]
            violations += result[1]
    fault_report("no handle left", points=tried, compared=compared, violations=violations, seed=SEED)
    assert tried > POINTS / step / 3


@pytest.mark.parametrize(
    "broken",
    ["retry fsync", "no fence", "acknowledge before fsync", "no fsync", "no note of fsync"],
)
def test_a_broken_build_is_caught(broken):
    with mutant(broken):
        points, _, violations = run(POINTS, first_only=True)
    assert violations, f"{broken}: {points} points, and nothing was noticed"
