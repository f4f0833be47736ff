"""`mainstem init`: makes a home with a topic, a program, a test of it, and a few rows."""

from __future__ import annotations

import importlib.resources
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mainstem.errors import AlreadyExists
from mainstem.workbench.cli.command_arguments import DEFAULT, HomeOption, named_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import show_facts

__all__ = ["FILES", "init"]

TOPIC = "orders"
SETTINGS = {
    "SCHEMA": "order_id STRING, store STRING, amount INT, placed_at TIMESTAMP",
    "KEY": "order_id",
    "EVENT_TIME": "placed_at",
}
# Each is the template of the same name with .txt, so that no tool takes it for a part of the package.
FILES = {
    "shop.py": "the program: what is computed",
    "test_shop.py": "its tests, without Spark",
    "orders.csv": "a few rows to append",
}
# What lies in a home in which nothing was done yet.
OF_NEW_HOME = frozenset(["ledgers", "lock", "mainstem.json", "topics"])
STEPS = {
    "mainstem topic append orders orders.csv": "append the rows",
    "mainstem run shop.py --until-idle": "run the program, until it has read them",
    "mainstem view read revenue": "see the result",
    "pytest": "run the tests (pip install pytest)",
}


def init(
    directory: Annotated[str, typer.Argument(metavar="[DIR]", help="The directory; default: this one.")] = ".",
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Make a home with a topic, a program, a test of it, and a few rows to append: a start for your own.

    The comments in each file say what to change. Existing files are not overwritten; what an interrupted init has left is
    completed.

    Example: mainstem init shop
    """
    place = Path(directory)
    data = Path(home or named_home.get() or place / DEFAULT)
    _refuse_existing(place, data)
    place.mkdir(parents=True, exist_ok=True)
    from mainstem.stem import open as open_stem

    with open_stem(data, upkeep="manual") as stem:
        stem.create_topic(TOPIC, schema=SETTINGS["SCHEMA"], key=SETTINGS["KEY"], event_time=SETTINGS["EVENT_TIME"])
    for name in FILES:
        if _is_begun(place / name):
            (place / name).unlink()
        # "x": a file that appeared meanwhile is not overwritten either.
        with open(place / name, "x", encoding="utf-8") as file:
            file.write(_template(name))
    steps = [*_ways_to(place, data), *STEPS]
    if as_json:
        print_json(
            {"directory": str(place), "home": str(data), "topics": [TOPIC], "files": list(FILES), "next_steps": steps}
        )
        return
    show_facts(
        [*((str(place / name), what) for name, what in FILES.items()), (str(data), f"the home, with the topic {TOPIC}")]
    )
    typer.echo("\nNext:")
    show_facts([(f"  {step}", STEPS.get(step, "")) for step in steps])


def _refuse_existing(place: Path, data: Path) -> None:
    """Raise `AlreadyExists` if something is there, unless it is what an init that was killed has left."""
    made = [*(place / name for name in FILES), data]
    there = [path for path in made if os.path.lexists(path)]
    foreign = [path for path in there if not (_is_new_home(path) if path == data else _is_begun(path))]
    if foreign or len(there) == len(made):
        named = [str(path) for path in foreign or there]
        raise AlreadyExists(
            f"{named[0]} exists already",
            detail=f"Nothing was written; init would make {', '.join([*FILES, str(data)])}"
            + (f", of which there are also {', '.join(named[1:])}." if named[1:] else "."),
            hint="Name another directory: mainstem init shop",
        )


def _is_begun(path: Path) -> bool:
    """Whether a file is what init writes, or the beginning of it."""
    try:
        return _template(path.name).startswith(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def _is_new_home(path: Path) -> bool:
    """Whether a directory is empty, or a home with no more than the topic of init, without records."""
    if not path.is_dir() or not OF_NEW_HOME.issuperset(os.listdir(path)):
        return False
    if "mainstem.json" not in os.listdir(path):
        return not any(file.is_file() for file in path.rglob("*") if file.name != "lock")
    from mainstem.stem import open as open_stem

    with open_stem(path, upkeep="manual") as stem:
        return stem.topics() in ([], [TOPIC]) and all(not stem.topic(name).backend.latest(0) for name in stem.topics())


def _template(name: str) -> str:
    text = importlib.resources.files("mainstem.workbench").joinpath("templates", f"{name}.txt").read_text("utf-8")
    for word, value in SETTINGS.items():
        text = text.replace(f"{{{word}}}", value)
    return text


def _ways_to(place: Path, data: Path) -> list[str]:
    """How the shell gets to the directory, and its commands to the home, where they would not find it."""
    ways = [] if place == Path() else [f"cd {shlex.quote(str(place))}"]
    if data != place / DEFAULT or os.environ.get("MAINSTEM_HOME"):
        found = os.path.relpath(data, place) if data == place / DEFAULT else os.path.abspath(data)
        ways.append(f"export MAINSTEM_HOME={shlex.quote(found)}")
    return ways
