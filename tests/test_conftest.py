"""The suite about itself: a test the machine cannot run is counted, and fails in CI; a fast run starts no server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Each runs a suite of its own.
pytestmark = pytest.mark.thorough

SUITE = """
from tests.needs import cannot_run, needs, needs_root

@needs("nosuch", command="nosuch-command")
def test_needs_a_package(): raise AssertionError("it ran")

@needs("coreutils", command="sh")
def test_has_its_package(): pass

def test_finds_out_late(): cannot_run("loop mounts", "mount: permission denied")
"""


WITH_SERVERS = """
import time
import pytest

def test_by_another_fixture(stem): raise AssertionError("it ran")

@pytest.mark.starts_servers
def test_by_its_marker(): raise AssertionError("it ran")

@pytest.mark.thorough
def test_by_its_cost(): raise AssertionError("it ran")

def test_with_the_java_of_users(users_java): raise AssertionError("it ran")

def test_needs_neither(): pass

def test_costs_too_much():
    until = time.process_time() + 2.5
    while time.process_time() < until: pass

def test_starts_java():
    from mainstem.spark.spark_session import spark_session
    spark_session("local[1]")

def test_starts_a_broker(request): request.getfixturevalue("kafka_broker")

def test_starts_a_database(request): request.getfixturevalue("postgres")
"""


IN_ORDER = """
import pytest

@pytest.fixture
def spark(): pass

def test_spark(spark): pass

@pytest.mark.thorough
def test_thorough_spark(spark): pass

def test_quick(): pass

@pytest.mark.thorough
def test_thorough(): pass

@pytest.mark.forks
def test_forks(): pass
"""


def run(repository: Path, directory: Path, *options: str, ci: str = "false", suite: str = SUITE) -> str:
    (directory / "test_suite.py").write_text(suite)
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-c", f"{repository}/pyproject.toml", "--rootdir", str(directory)]
    finished = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, str(directory)],
        cwd=repository,
        env={"PATH": "/usr/bin:/bin", "CI": ci, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    return finished.stdout + finished.stderr


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "2")], ids=["alone", "under xdist"])
def test_a_test_that_could_not_run_is_counted_by_what_it_lacked(repository, tmp_path, options):
    said = run(repository, tmp_path, *options, ci="false")

    assert "tests that could not run here: 2 (1 for want of loop mounts, 1 for want of nosuch)" in said
    assert "1 passed, 2 skipped" in said
    # The folder of the suite, and its tests: what they cost came back from the workers.
    assert re.search(r"^\. +3 +\d+ +0", said, re.MULTILINE), said


def test_a_fast_run_leaves_out_what_needs_a_server_and_fails_who_starts_one(repository, tmp_path):
    said = run(repository, tmp_path, "-n", "0", "--fast", suite=WITH_SERVERS)

    assert "3 failed, 2 passed, 4 deselected" in said
    assert "Could not create the Java Virtual Machine" in said
    assert "a fast run starts no Kafka broker" in said
    assert "a fast run starts no PostgreSQL" in said
    assert re.search(r"::test_costs_too_much took \d\.\d CPU seconds: pytest.mark.thorough", said), said


def test_in_ci_a_test_that_could_not_run_is_a_failure(repository, tmp_path):
    said = run(repository, tmp_path, "-n", "0", ci="true")

    assert "tests that could not run here: 2 (1 for want of loop mounts, 1 for want of nosuch)" in said
    assert "1 failed, 1 passed, 1 error" in said
    assert "could not run here: nosuch: there is no command" in said


def test_what_forks_runs_first_then_what_is_thorough_and_spark_last(repository, tmp_path):
    said = run(repository, tmp_path, "-n", "0", "-v", suite=IN_ORDER)

    ran = re.findall(r"::test_(\w+) PASSED", said)
    assert ran == ["forks", "thorough", "quick", "thorough_spark", "spark"], said
