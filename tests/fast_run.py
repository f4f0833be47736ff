"""The fast run, `pytest --fast`: every quick test that needs neither Java nor a server, and nothing else.

A test is left out for what it uses: a fixture of a server, whether it names it or another fixture does, or the marker
`starts_servers` of a test whose own processes start one. Whoever starts one all the same fails: Java refuses to start in the
processes of a fast run and in their children, and a server of the tests asks before it starts.

A test is left out for what it costs by the marker `thorough`: an enumeration, a row of crashes or a generated law that
takes more than `CPU_SECONDS_MAX`. Those that take more and lack it are named at the end of a fast run.
"""

import os
from collections.abc import Iterable

import pytest

from tests.cpu_budget import PROPERTY

__all__ = ["forbid_servers", "is_slow", "refuse_in_fast_run", "too_slow"]

# `users_java` is for tests that start a program on Spark, and would take the refusal away with the options.
SERVERS = {"kafka_broker", "postgres", "spark", "spark_cluster", "users_java"}
MARKERS = ("starts_servers", "thorough")
CPU_SECONDS_MAX = 2

# Read by the program `java`, whoever starts it. There is no such option, so Java names it and ends.
_JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
_REFUSED = "-XX:+NoJavaInAFastRun"


def is_slow(item: pytest.Item) -> bool:
    """Whether a test uses what a fast run does without."""
    return any(map(item.get_closest_marker, MARKERS)) or not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def forbid_servers() -> None:
    """From now on neither this process nor its children start one."""
    os.environ[_JAVA_OPTIONS] = _REFUSED


def refuse_in_fast_run(server: str) -> None:
    """Fail the running test if this is a fast run."""
    if os.environ.get(_JAVA_OPTIONS) == _REFUSED:
        pytest.fail(f"a fast run starts no {server}: mark the test with pytest.mark.starts_servers")


def too_slow(reports: Iterable[object]) -> list[str]:
    """Lines of text: the tests of a fast run that cost too much for it, the dearest first."""
    costs = sorted(
        (seconds, report.nodeid)
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, seconds in report.user_properties
        if name == PROPERTY and seconds > CPU_SECONDS_MAX and report.when == "teardown"
    )
    return [f"{test} took {seconds:.1f} CPU seconds: pytest.mark.thorough" for seconds, test in reversed(costs)]
