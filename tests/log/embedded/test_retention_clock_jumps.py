"""L11: whatever the clock does, append times and offsets rise, and nothing is dropped before its time by the boot clock."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from mainstem.clock import Clock, ManualClock, as_datetime
from mainstem.log.embedded.upkeep import upkeep_pass
from mainstem.log.embedded.upkeep.manifest import ClockReading, UpkeepNow
from mainstem.log.topic import Topic
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, manifest_of, opened, sealed
from tests.needs import needs

JUMPS = 100
KEEP = timedelta(hours=1)
SIZES = [timedelta(hours=1), timedelta(days=3652)]
MICROSECOND = timedelta(microseconds=1)


def believe_the_clock(before: ClockReading, clock: Clock, *, believe_after: timedelta) -> UpkeepNow:
    """The mutant: upkeep goes by the time of day."""
    return UpkeepNow(clock.now(), None, before, 0)


def jumps_in_process(seed: int) -> tuple[int, list[str]]:
    """Jump, let time pass, append, drop, again and again; what was wrong. How many records there were, too."""
    chance = random.Random(seed)
    clock = ManualClock()
    violations: list[str] = []
    appended: dict[int, int] = {}  # offset: the boot clock when it was appended
    with opened(MemoryFiles(), clock) as stem:
        topic = stem.create_topic("orders", schema=SCHEMA, key="k", keep=KEEP)
        for number in range(JUMPS):
            start = manifest_of(topic).start
            away = chance.choice([*SIZES, *(-size for size in SIZES), timedelta(0)])
            clock.set(as_datetime(clock.now()) + away)
            topic.drop_expired()
            for _ in range(chance.randrange(1, 4)):
                frozen = as_datetime(clock.now())
                clock.advance(timedelta(minutes=chance.choice([0, 1, 20, 59, 61])))
                if chance.random() < 0.2:
                    clock.set(frozen)
                appended[len(appended)] = clock.boot()
                sealed(topic, [("a", len(appended))])
                report = topic.drop_expired()
                violations += [
                    f"jump {number}: record {offset} was dropped too early ({report})"
                    for offset in range(start, manifest_of(topic).start)
                    if (clock.boot() - appended[offset]) * MICROSECOND < KEEP
                ]
                start = manifest_of(topic).start
        violations += risen(topic)
    return len(appended), violations


def risen(topic: Topic) -> list[str]:
    """Whether offsets and append times rise."""
    table = topic.to_arrow(columns=[])
    offsets = [record["offset"] for record in table.column("record").to_pylist()]
    times = [record["appended_at"] for record in table.column("record").to_pylist()]
    return [
        text
        for text, values in (("offsets", offsets), ("append times", times))
        if any(later < earlier for earlier, later in pairwise(values))
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_no_jump_drops_a_record_before_its_time(seed: int, fault_report: Callable[..., None]) -> None:
    compared, violations = jumps_in_process(seed)
    fault_report("L11 in process", points=JUMPS, compared=compared, violations=violations, seed=seed)


def test_it_is_noticed_when_upkeep_believes_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_pass, "upkeep_now", believe_the_clock)
    assert jumps_in_process(0)[1]


# With the machine's own clock, which libfaketime moves under a process while it runs.

CHILD = """
import itertools, json, sys
from mainstem.stem import Mainstem
from mainstem.log.embedded.embedded_log import EmbeddedLog

home, clock_file, jumps, mutant = sys.argv[1:]
if mutant == "believes the clock":
    from mainstem.log.embedded.upkeep import upkeep_pass
    from tests.log.embedded.test_retention_clock_jumps import believe_the_clock
    upkeep_pass.upkeep_now = believe_the_clock
kinds = itertools.cycle(["+1h", "+0", "-1h", "+0", "+10y", "+0", "-10y", "+0", "2026-01-01 00:00:00", "+0"])
told = 0
with Mainstem(EmbeddedLog(home)) as stem:
    topic = stem.create_topic("orders", schema="k string, n bigint", key="k", keep="10 minutes")
    for number, kind in zip(range(int(jumps)), kinds):
        with open(clock_file, "w") as file:
            file.write(kind + "\\n")
        told += topic.drop_expired().clock_jump is not None
        topic.append([{"k": "a", "n": number}])
        topic.seal()
        told += topic.drop_expired().clock_jump is not None
    rows = topic.to_arrow().to_pylist()
print(json.dumps({
    "told": told,
    "numbers": [row["n"] for row in rows],
    "offsets": [row["record"]["offset"] for row in rows],
    "times": [row["record"]["appended_at"].timestamp() for row in rows],
}))
"""


def faked(tmp_path: Path, jumps: int, mutant: str = "") -> dict[str, list[float]]:
    """What a process saw whose clock jumped so often."""
    clock_file = tmp_path / "clock"
    clock_file.write_text("+0\n")
    preload = subprocess.run(
        ["faketime", "-f", "+0", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "home"), str(clock_file), str(jumps), mutant],
        capture_output=True,
        text=True,
        check=False,
        env={
            **{name: value for name, value in os.environ.items() if name != "FAKETIME"},
            "LD_PRELOAD": preload,
            "FAKETIME_TIMESTAMP_FILE": str(clock_file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Times of files are the kernel's; only the process's clock is to lie.
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
@needs("faketime", command="faketime")
def test_a_hundred_jumps_of_the_machine_s_clock_drop_nothing(tmp_path: Path, fault_report: Callable[..., None]) -> None:
    found = faked(tmp_path, JUMPS)
    violations = []
    if found["numbers"] != list(range(JUMPS)):
        violations.append(f"left: {found['numbers']}")
    violations += [name for name in ("offsets", "times") if found[name] != sorted(found[name])]
    assert found["told"]
    fault_report("L11 libfaketime", points=JUMPS, compared=JUMPS, violations=violations, told=found["told"])


@needs("faketime", command="faketime")
def test_it_is_noticed_when_upkeep_believes_the_machine_s_clock(tmp_path: Path) -> None:
    assert faked(tmp_path, 10, "believes the clock")["numbers"] != list(range(10))
