"""Every program in examples/, and the page of the tour, which must be what they print.

In every run they run in this process, with the Spark of all tests, and one of them as a user runs it. Before a release all of
them are run in processes of their own: those that need no Spark each from another directory, the others as `make tour` does.
"""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import mainstem
from examples import tour
from tests.programs.production_examples import run as run_here

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLES = REPOSITORY / "examples"
STOPS = [stop for stops in tour.CHAPTERS.values() for stop in stops]
SIGNS_OF_SPARK = ("pyspark", "Flow(", "run_on_spark", ".read()")
ON_SPARK = [stop for stop in STOPS if any(sign in (EXAMPLES / f"{stop}.py").read_text() for sign in SIGNS_OF_SPARK)]
# The programs that are not stops: the demo with its shop, and the tour, which runs the others.
OTHERS = {"__init__", "demo", "demo_cluster", "demo_events", "demo_shop", "demo_walk", "tour"}
SECONDS_MAX = 600
# Seventeen stops with five starts of Spark among them, on a machine that does other things too.
SPARK_SECONDS_MAX = 900


def run(*command: str, cwd: Path = REPOSITORY, seconds_max: int = SECONDS_MAX) -> subprocess.CompletedProcess[str]:
    # Not a terminal, and nothing to read from: as in CI.
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds_max,
    )


def on_the_page(stop: str) -> str:
    found = re.search(rf"\[{stop}\]\([^)]+\) printed:\n\n```text\n(.*?)```", tour.PAGE.read_text(), re.DOTALL)
    return found[1] if found else "it is not on the page: make tour"


def check_printed(stop: str, printed: str) -> None:
    assert printed.splitlines()[-1] == "equal", printed
    assert tour.without_measures(printed) == tour.without_measures(on_the_page(stop)), "make tour"


def in_the_tour(printed: str) -> dict[str, str]:
    """What each stop printed, out of what the tour printed: its name, then its lines, set in."""
    found = re.findall(r"^(\w+)\n((?:    .*\n)+)", printed, re.MULTILINE)
    return {stop: re.sub(r"^    ", "", lines, flags=re.MULTILINE) for stop, lines in found}


def test_every_program_is_a_stop_of_the_tour():
    assert {path.stem for path in EXAMPLES.glob("*.py")} - OTHERS == set(STOPS)


WITHOUT_SPARK = [stop for stop in STOPS if stop not in ON_SPARK]


@pytest.mark.parametrize(
    "stop", [WITHOUT_SPARK[0], *(pytest.param(stop, marks=pytest.mark.long) for stop in WITHOUT_SPARK[1:])]
)
def test_a_stop_run_from_another_directory_prints_what_the_page_says(stop, tmp_path):
    # From another directory: a stop needs nothing around it.
    ran = run(str(EXAMPLES / f"{stop}.py"), cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
    check_printed(stop, ran.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", WITHOUT_SPARK)
def test_a_stop_comes_out_equal_and_prints_what_the_page_says(stop, tmp_path):
    check_printed(stop, run_here(stop, str(tmp_path)))


@pytest.mark.parametrize("stop", ON_SPARK)
def test_a_stop_on_spark_comes_out_equal_and_prints_what_the_page_says(stop, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(mainstem, "open", partial(mainstem.open, spark=spark))
    check_printed(stop, run_here(stop, str(tmp_path)))


@pytest.mark.long
def test_the_tour_runs_the_stops_on_spark_in_a_process_of_their_own(users_java):
    ran = run("-m", "examples.tour", *ON_SPARK, seconds_max=SPARK_SECONDS_MAX)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == f"{len(ON_SPARK)} stops, all equal"
    expected = {stop: tour.without_measures(on_the_page(stop)) for stop in ON_SPARK}
    assert {stop: tour.without_measures(text) for stop, text in in_the_tour(ran.stdout).items()} == expected


def test_the_page_has_every_stop_with_what_its_docstring_says():
    assert tour.PAGE.read_text() == tour.page({stop: on_the_page(stop) for stop in STOPS}), "make tour"


def test_a_stop_is_short_and_shows_its_point_in_a_few_lines():
    sizes = {stop: len((EXAMPLES / f"{stop}.py").read_text().splitlines()) for stop in STOPS}
    lines = {stop: len(on_the_page(stop).splitlines()) for stop in STOPS}
    # Those that begin with a database of their own may be longer.
    longer = {"change_capture": 90, "initial_snapshot": 105}
    assert {stop: size for stop, size in sizes.items() if size > longer.get(stop, 80)} == {}
    assert {stop: count for stop, count in lines.items() if not 2 <= count <= 10} == {}


def test_the_tour_runs_the_stops_it_is_asked_for():
    ran = run("-m", "examples.tour", "broker_or_log")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[0] == "Transmitting events"
    assert ran.stdout.splitlines()[-1] == "1 stop, all equal"


def test_the_tour_knows_its_stops():
    ran = run("-m", "examples.tour", "no_such_stop")
    assert (ran.returncode, ran.stderr) == (2, "there is no stop no_such_stop\n")
