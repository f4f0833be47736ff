"""What a test needs of the machine, and what happens where it is not to be had.

    @needs("xfsprogs", command="xfs_io")
    @needs_root()
    def test_a_power_cut_loses_nothing_acknowledged(): ...

Such a test is skipped, and the run's last lines count it. With CI=true it fails instead: there everything must run.
What only shows while a test runs (a container that refuses to mount) is said by `cannot_run("loop mounts", why)`.
"""

import os
from typing import NoReturn

import pytest

# The hook in conftest.py finds such tests by this: the text of a skip is what xdist brings back from its workers.
COULD_NOT_RUN = "could not run here: "


def needs(package: str, *, command: str) -> pytest.MarkDecorator:
    """A test that runs `command`, which the system package `package` brings."""
    return pytest.mark.needs(package, command=command)


def needs_root() -> pytest.MarkDecorator:
    """A test that only root may run."""
    return pytest.mark.needs_root


def cannot_run(need: str, why: str) -> NoReturn:
    """End the running test: the machine does not give what it needs. `need` is what tests are counted by."""
    reason = f"{COULD_NOT_RUN}{need}: {why}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (with CI=true every test must run)", pytrace=False)
    pytest.skip(reason)
