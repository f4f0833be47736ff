"""A partition is stopped at every single call to its files: by a kill, and by a power cut.

What was acknowledged is there again, at its offset; offsets are dense; what was not acknowledged is there whole or not
at all; what anyone could read once can be read for ever. The partition goes on: for a process that was there all the
time, for a new one after a kill, and for one after a power cut.
"""

import itertools

import pytest

from mainstem.errors import MainstemError, TopicNotFound
from mainstem.log.embedded.write.heads import Slots
from mainstem.log.embedded.write.partition import Partition
from tests.log.embedded.acknowledged import HEADS, read_all
from tests.log.embedded.memory_disk import MODES
from tests.log.embedded.memory_files import Stopped
from tests.log.embedded.mutants import mutant
from tests.log.embedded.two_processes import SCRIPT, World

SEED = 20_260


def stopped_at(call: int, done: str, seed: int, *, let_go: bool = False) -> tuple[World, str] | None:
    """The world after a process was killed at a call, and the step it was in; None when the script ends before."""
    world = World(seed, let_go=let_go)
    world.files["A"].stop_at(call, done=done)
    for step in SCRIPT:
        try:
            world.step(step)
        except Stopped:
            return world, step
    return None


def try_point(call: int, done: str, modes: tuple[str, ...], *, let_go: bool = False) -> tuple[int, list[str]] | None:
    """Stop at one call; the facts that were compared and what was wrong, or None behind the end of the script."""
    seed = SEED + call
    stopped = stopped_at(call, done, seed, let_go=let_go)
    if stopped is None:
        return None
    world, step = stopped
    where = f"call {call} ({done} done) in {step!r}"
    # What a reader could see at this moment must stay, whatever comes.
    observer = world.files["A"].process()
    world.files["A"].machine.stops.clear()
    wrong: list[str] = []
    head = Slots(observer, HEADS).read(0)
    if head is not None:
        try:
            world.promised.look(read_all(observer, head))
        except (MainstemError, AssertionError) as error:
            wrong.append(f"{where}: a reader got {error!r}")
    for mode in modes:
        wrong += world.after_power_cut(seed, mode, where)
    survivor = next(partition for name, partition in world.partitions.items() if not world.files[name].dead)
    wrong += world.go_on(survivor, f"{where}, the other process")
    wrong += world.go_on(world.opened(observer), f"{where}, a new process")
    wrong += world.after_power_cut(seed, "lost", f"{where}, later")
    return len(world.promised.offsets), wrong


def run(*, every: int = 1, first_only: bool = False, let_go: bool = False) -> tuple[int, int, list[str]]:
    """Stop at every call of the script in every way: points, facts compared, violations."""
    points = compared = 0
    violations: list[str] = []
    for done in ("part", "nothing", "all"):
        for call in itertools.count(1 + SEED % every, every):
            modes = tuple(MODES[(call + turn) % len(MODES)] for turn in (0, 1))
            tried = try_point(call, done, modes, let_go=let_go)
            if tried is None:
                break
            points += 1
            compared += tried[0]
            violations += tried[1]
            if violations and first_only:
                return points, compared, violations
    return points, compared, violations


# Every third call in every run; all of them before a release.
SAMPLE = 3


@pytest.mark.thorough
@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=pytest.mark.long)])
def test_stopped_at_every_call(fault_report, every):
    points, compared, violations = run(every=every)
    fault_report("crash at every call", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.thorough
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
def test_stopped_at_every_call_while_files_are_let_go(fault_report, every):
    points, compared, violations = run(every=every, let_go=True)
    fault_report("crash, files let go", points=points, compared=compared, violations=violations, seed=SEED)


@pytest.mark.parametrize(
    "broken",
    [
        "no fsync",
        "no directory fsync",
        "publish before fsync",
        "acknowledge before fsync",
        "forget what was not published",
        "no mark while a segment is begun",
        "no second writing",
        "no note of fsync",
        "lost group",
    ],
)
def test_a_broken_build_is_caught(broken):
    with mutant(broken):
        points, _, violations = run(every=SAMPLE, first_only=True)
    assert violations, f"{broken}: {points} points, and nothing was noticed"


def test_deletion_stopped_at_every_call(fault_report):
    """Either it is deleted for everyone, or for nobody; once that was acknowledged, for everyone."""
    points, violations = 0, []
    finished = False
    for call in itertools.count(1):
        world = World(SEED + call)
        for step in SCRIPT[:6]:
            world.step(step)
        world.files["A"].stop_at(call)
        try:
            world.partitions["A"].mark_deleted()
            finished = True
        except Stopped:
            points += 1
        others = [world.partitions["B"], world.opened(world.files["A"].killed())]
        gone = [is_deleted(partition) for partition in others]
        if finished and not all(gone):
            violations.append("deleted, and somebody could append")
        if len(set(gone)) > 1:
            violations.append(f"call {call}: deleted for one, and not for another")
        if not any(gone):
            violations += world.go_on(others[0], f"call {call}")
        if finished:
            break
    fault_report("crash while deleting", points=points, compared=points, violations=violations, seed=SEED)


def is_deleted(partition: Partition) -> bool:
    try:
        partition.roll()
    except TopicNotFound:
        return True
    return False
