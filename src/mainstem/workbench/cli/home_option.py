"""Which home a command works on: `--home`, before the noun or after the verb, else MAINSTEM_HOME.

Without either it is `data`, if that is a home. A command never makes a home by mistake: only `topic create` makes one,
where it was told to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mainstem.errors import Invalid, NotFound
from mainstem.workbench.cli.error_text import BROKEN_PIPE, INTERRUPTED, leave_output

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["HomeOption", "SparkOption", "named_home", "open_home"]

DEFAULT = "data"

HomeOption = Annotated[
    str | None,
    typer.Option(
        "--home", metavar="DIR", help="The directory that holds the log; else MAINSTEM_HOME.", show_default=False
    ),
]

SparkOption = Annotated[
    str, typer.Option("--spark", metavar="ADDRESS", help='Where Spark runs: "local[*]", "spark://master:7077".')
]

# What was given before the noun: `mainstem --home data/shop topic list`.
named_home: ContextVar[str | None] = ContextVar("named_home", default=None)


@contextmanager
def open_home(
    given: str | None,
    *,
    missing: Literal["refuse", "make"] = "refuse",
    upkeep: Literal["background", "manual"] = "manual",
    spark: str = "local[*]",
) -> Iterator[Mainstem]:
    """The home, open while the command works; closed also when the person, or the reader of the output, has had enough.

    Nothing is sealed or dropped in the background unless asked for: a look at a home leaves it as it is.
    """
    path = find_home(given, missing)
    from mainstem.stem import open as open_stem

    try:
        with open_stem(path, upkeep=upkeep, spark=spark) as stem:
            yield stem
    except BrokenPipeError:
        leave_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def find_home(given: str | None, missing: Literal["refuse", "make"]) -> str:
    """The directory to open."""
    path = given or named_home.get() or os.environ.get("MAINSTEM_HOME")
    if not path:
        if is_home(DEFAULT):
            return DEFAULT
        raise Invalid(
            "no home was given",
            detail=f'Neither --home nor MAINSTEM_HOME is set, and "{DEFAULT}" here is not a home.',
            hint="For example: --home data/shop, or for all commands to come: export MAINSTEM_HOME=data/shop",
        )
    if missing == "refuse" and not is_home(path):
        facts = "It has no mainstem.json." if os.path.isdir(path) else "There is no such directory."
        raise NotFound(
            f'"{path}" is not a home',
            detail=facts,
            hint=f'A home is made with its first topic: mainstem topic create orders --schema "..." --home {path}',
        )
    return path


def is_home(path: str) -> bool:
    """Whether there is a home, or something that may not be looked into: opening it says then what is wrong."""
    try:
        # A home whose log is on Kafka has the brokers' addresses instead of a log.
        kafka = os.path.join(path, "kafka.toml")
        os.stat(kafka if os.path.exists(kafka) else os.path.join(path, "mainstem.json"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
