"""What the tests of each folder cost in CPU seconds, against a budget, printed at the end of every run.

CPU seconds, since they are nearly the same on a busy machine. Counted are the test process, its children that have ended,
and those that live, as Java and servers do, with what lives under them. What passes between the ends of two tests is the
second one's: whoever is first to want a server pays for its start. Machines differ in speed, so too much is shown, and
fails nothing.
"""

import os
import resource
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path, PurePosixPath

import pytest

__all__ = ["BUDGET", "CpuMeter", "cost_table", "tree_seconds"]

COLLECTION = "collection"

# Two cores for 30 minutes. A folder that is not named here has nothing.
BUDGET = {
    COLLECTION: 45,
    "tests": 50,
    "tests/acceptance": 60,
    "tests/benchmarks": 20,
    "tests/capture": 300,
    "tests/flows": 840,
    "tests/formats": 10,
    "tests/log": 120,
    "tests/log/embedded": 310,
    "tests/log/kafka": 130,
    "tests/operators": 465,
    "tests/programs": 420,
    "tests/sinks": 215,
    "tests/spark": 25,
    "tests/spark/checkpoint": 85,
    "tests/spark/plan": 45,
    "tests/spark/real_time": 10,
    "tests/spark/sources": 85,
    "tests/testing": 70,
    "tests/views": 90,
    "tests/workbench": 205,
}

PROPERTY = "cpu_seconds"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def tree_seconds() -> float:
    """CPU seconds of this process, of all its descendants that live, and of those that were waited for."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in own)
    return seconds + sum(map(_seconds_of, _descendants(os.getpid())))


def _seconds_of(pid: int) -> float:
    """With those of its children that it waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # After the name, which may hold anything: state is field 3, and fields 14 to 17 are the times.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICKS_PER_SECOND


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        # The list grows while it is walked.
        found += _children(child)
    return found


def _children(pid: int) -> list[int]:
    """Each thread has those that it started."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        # It has ended meanwhile.
        pass
    return found


class CpuMeter:
    """A plugin that notes on the last report of each test what it cost. The first one brings what collection cost too."""

    def __init__(self) -> None:
        self._seen = 0.0
        self._unreported: list[tuple[str, object]] = []

    def pytest_collection_finish(self) -> None:
        self._seen = tree_seconds()
        self._unreported = [(COLLECTION, self._seen)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = tree_seconds()
            # What a process used that ended without being waited for is lost.
            report.user_properties += [*self._unreported, (PROPERTY, max(0.0, now - self._seen))]
            self._seen, self._unreported = now, []
        return report


def cost_table(reports: Iterable[pytest.TestReport], budget: Mapping[str, int] = BUDGET) -> list[str]:
    """Lines of text: each folder with its tests, their CPU seconds and its budget; and what is over it, loudly."""
    tests: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for report in reports:
        # Not its location: the tests of a contract cost those who are put to it.
        folder = str(PurePosixPath(report.nodeid.partition("::")[0]).parent)
        for name, value in report.user_properties:
            if name == PROPERTY:
                tests[folder] += 1
                seconds[folder] = seconds.get(folder, 0) + value
            elif name == COLLECTION:
                seconds[COLLECTION] = seconds.get(COLLECTION, 0) + value
    if not seconds:
        return []
    lines = [_line("folder", "tests", "CPU seconds", "budget")]
    lines += [
        _line(
            folder,
            str(tests[folder] or ""),
            f"{used:.0f}",
            str(budget.get(folder, 0)),
            over=used > budget.get(folder, 0),
        )
        for folder, used in sorted(seconds.items())
    ]
    total, allowed = sum(seconds.values()), sum(budget.values())
    return [*lines, _line("all", str(tests.total()), f"{total:.0f}", str(allowed), over=total > allowed)]


def _line(folder: str, tests: str, used: str, allowed: str, *, over: bool = False) -> str:
    return f"{folder:<32}{tests:>6}{used:>13}{allowed:>8}{'   OVER BUDGET' if over else ''}"
