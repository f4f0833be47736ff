"""Every program in examples/, run as a user runs it, and the page of the tour, which must be what they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import tour

REPOSITORY = Path(__file__).parent.parent.parent
STOPS = [stop for stops in tour.CHAPTERS.values() for stop in stops]
SECONDS_MAX = 240


def run(*command: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    # Not a terminal, and nothing to read from: as in CI.
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def on_the_page(stop: str) -> str:
    found = re.search(rf"\[{stop}\]\([^)]+\) printed:\n\n```text\n(.*?)```", tour.PAGE.read_text(), re.DOTALL)
    return found[1] if found else "it is not on the page: make tour"


def test_every_program_is_a_stop_of_the_tour():
    programs = {path.stem for path in (REPOSITORY / "examples").glob("*.py")} - {"__init__", "tour", "demo"}
    assert programs == set(STOPS)


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_comes_out_equal_and_prints_what_the_page_says(stop, tmp_path):
    # From another directory: a stop needs nothing around it.
    ran = run(str(REPOSITORY / "examples" / f"{stop}.py"), cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == "equal"
    assert tour.without_measures(ran.stdout) == tour.without_measures(on_the_page(stop)), "make tour"


def test_the_page_has_every_stop_with_what_its_docstring_says():
    assert tour.PAGE.read_text() == tour.page({stop: on_the_page(stop) for stop in STOPS}), "make tour"


def test_a_stop_is_short_and_shows_its_point_in_a_few_lines():
    sizes = {stop: len((REPOSITORY / "examples" / f"{stop}.py").read_text().splitlines()) for stop in STOPS}
    lines = {stop: len(on_the_page(stop).splitlines()) for stop in STOPS}
    assert {stop: size for stop, size in sizes.items() if size > 80} == {}
    assert {stop: count for stop, count in lines.items() if not 2 <= count <= 10} == {}


def test_the_tour_runs_the_stops_it_is_asked_for():
    ran = run("-m", "examples.tour", "broker_or_log")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[0] == "Transmitting events"
    assert ran.stdout.splitlines()[-1] == "1 stop, all equal"


def test_the_tour_knows_its_stops():
    ran = run("-m", "examples.tour", "no_such_stop")
    assert (ran.returncode, ran.stderr) == (2, "there is no stop no_such_stop\n")


def test_the_demo_runs_without_a_terminal(tmp_path):
    ran = run("-m", "examples.demo", "--seconds", "2", "--home", str(tmp_path / "shop"))

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f'home "{tmp_path / "shop"}", starting 4 processes\n')
    assert "A third saw every one of them" in ran.stdout
    assert "mainstem topic read orders --start earliest --limit 5\n" in ran.stdout
