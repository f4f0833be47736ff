"""The fast run, `pytest --fast`: every test that needs neither Java nor a server, and nothing else.

A test is left out for what it uses: a fixture of a server, whether it names it or another fixture does, or the marker
`starts_servers` of a test whose own processes start one. Whoever starts one all the same fails: Java refuses to start in the
processes of a fast run and in their children, and a server of the tests asks before it starts.
"""

import os

import pytest

__all__ = ["forbid_servers", "is_slow", "refuse_in_fast_run"]

SERVERS = {"kafka_broker", "postgres", "spark", "spark_cluster"}

# Read by the program `java`, whoever starts it. There is no such option, so Java names it and ends.
_JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
_REFUSED = "-XX:+NoJavaInAFastRun"


def is_slow(item: pytest.Item) -> bool:
    """Whether a test uses what a fast run does without."""
    return item.get_closest_marker("starts_servers") is not None or not SERVERS.isdisjoint(
        getattr(item, "fixturenames", ())
    )


def forbid_servers() -> None:
    """From now on neither this process nor its children start one."""
    os.environ[_JAVA_OPTIONS] = _REFUSED


def refuse_in_fast_run(server: str) -> None:
    """Fail the running test if this is a fast run."""
    if os.environ.get(_JAVA_OPTIONS) == _REFUSED:
        pytest.fail(f"a fast run starts no {server}: mark the test with pytest.mark.starts_servers")
