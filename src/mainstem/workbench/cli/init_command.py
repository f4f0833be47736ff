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

    The comments in each file say what to change. Existing files are not overwritten.

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
    there = [str(path) for path in (*(place / name for name in FILES), data) if os.path.lexists(path)]
    if there:
        raise AlreadyExists(
            f"{there[0]} exists already",
            detail=f"Nothing was written; init would make {', '.join([*FILES, str(data)])}"
            + (f", of which there are also {', '.join(there[1:])}." if there[1:] else "."),
            hint="Name another directory: mainstem init shop",
        )


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
