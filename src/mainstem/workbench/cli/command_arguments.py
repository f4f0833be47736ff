"""The home of a command: `--home`, before the noun or after the verb, else MAINSTEM_HOME.

Without either it is `data`, if that is a home. Only `topic create` creates a home, and only where it was told to, so no
command creates one by mistake.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mainstem.errors import Invalid, NotFound, ViewNotFound, did_you_mean
from mainstem.workbench.cli.error_text import BROKEN_PIPE, INTERRUPTED, USAGE, leave_output, show_error
from mainstem.workbench.cli.terminal_table import show_note

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem
    from mainstem.views.view import View

__all__ = [
    "DEFAULT",
    "AsOfOption",
    "HomeOption",
    "OnlyTopicArgument",
    "POSITION_HELP",
    "SparkOption",
    "TakeOverOption",
    "TopicArgument",
    "ViewArgument",
    "YesOption",
    "ask",
    "confirm",
    "find_home",
    "named_home",
    "open_home",
    "open_view",
    "parse_as_of",
    "parse_moment",
    "parse_position",
    "is_interactive",
    "split_words",
    "take_over_if",
]


# Positions on the command line.
#
# earliest, latest
# 2026-01-01T09:00:00Z        a time with a zone, compared with append times
# 0:12,1:7                    offsets: partition:offset
# orders@0:42,1:17            the token of an append


POSITION_HELP = "earliest, latest, a time with a zone, offsets (0:12,1:7) or an append's token"
_OFFSETS = re.compile(r"\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*")
_WORDS = ("earliest", "latest")


def parse_position(text: str, option: str = "--start") -> str | datetime | Mapping[int, int]:
    """The position; `option` is its name in an error.

    >>> parse_position("0:12,1:7")
    {0: 12, 1: 7}
    >>> parse_position("2026-01-01T10:00+01:00").isoformat()
    '2026-01-01T10:00:00+01:00'
    """
    word = text.strip()
    if word.lower() in _WORDS:
        return word.lower()
    if _OFFSETS.fullmatch(word):
        parts = [part.partition(":") for part in word.split(",")]
        offsets = {int(partition): int(offset) for partition, _, offset in parts}
        if len(offsets) < len(parts):
            raise Invalid(
                f'{option} "{word}" names a partition twice',
                detail="Each partition is read from one offset.",
                hint="Name each partition once, as in 0:12,1:7.",
            )
        return offsets
    if "@" in word:
        return word
    try:
        datetime.fromisoformat(word)
    except ValueError:
        raise Invalid(
            f'{option} "{text}" is not a position',
            detail=f"A position is {POSITION_HELP}.",
            hint=did_you_mean(text, _WORDS) or f"For example: {option} 2026-01-01T09:00:00Z",
        ) from None
    return parse_moment(word, option)


def parse_as_of(text: str | None) -> str | datetime | None:
    """The moment of a query on a view: a time with a zone, or the token of an append.

    >>> parse_as_of("orders@0:42"), parse_as_of(None)
    ('orders@0:42', None)
    """
    if text is None or "@" in text:
        return text
    return parse_moment(text, "--as-of")


def parse_moment(text: str, option: str) -> datetime:
    """A time with a zone."""
    between = " " if option.startswith("-") else "="
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f'{option} "{text[:60]}" is not a time',
            detail="A time has its date and its zone.",
            hint=f"For example: {option}{between}2026-01-01T09:00:00Z",
        ) from None
    if moment.tzinfo is None:
        raise Invalid(
            f'{option} "{text}" has no time zone',
            detail="Without a time zone it does not name one moment.",
            hint=f"For UTC write {moment.isoformat()}Z; for another zone add its offset, as in {moment.isoformat()}+02:00",
        )
    return moment


# Arguments of the commands for views.


ViewArgument = Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME|TOKEN",
        help="As of a time with a zone, or right after an append.",
    ),
]


@contextmanager
def open_view(stem: Mainstem, name: str) -> Iterator[View]:
    """An existing view; no command creates one."""
    from mainstem.names import check_own_name

    check_own_name(name, "view")
    view = stem.view(name)
    try:
        # Raises, with the existing views, if there is none of that name.
        try:
            view.describe()
        except ViewNotFound as error:
            if name in stem.topics():
                error.hint = f'"{name}" is a topic: mainstem topic read {name}'
            raise
        yield view
    finally:
        view.close()


# Arguments of many commands: the topic, and the take-over from a stopped process.


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
OnlyTopicArgument = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.")]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Kill a stopped process that holds the topic's locks; after a failed fsync continue after the safe records.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def take_over_if(topic: Topic, *, asked: bool) -> None:
    """Take the topic over before anything is written, so that nothing is written twice, and report it."""
    if asked:
        show_note(str(topic.take_over()))


def split_words(text: str | None) -> list[str] | None:
    """The words of a comma-separated list: --columns store,amount."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def confirm(question: str) -> None:
    """Ask for confirmation; ends the command with status 1 unless the answer is yes. Without a terminal, --yes is
    needed."""
    if not is_interactive():
        show_error(
            Invalid(
                "nothing was deleted: the command needs a confirmation",
                detail="Standard input is not a terminal, so it cannot ask.",
                hint="Add --yes to confirm.",
            )
        )
        raise typer.Exit(USAGE)
    if not ask(question):
        typer.echo("Nothing was deleted.", err=True)
        raise typer.Exit(1)


def ask(question: str) -> bool:
    """Whether the user answers yes."""
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_interactive() -> bool:
    """Whether a user can answer."""
    return sys.stdin.isatty()


DEFAULT = "data"

HomeOption = Annotated[
    str | None,
    typer.Option("--home", metavar="DIR", help="The home directory; default: MAINSTEM_HOME, else data."),
]

SparkOption = Annotated[
    str, typer.Option("--spark", metavar="ADDRESS", help='Where Spark runs: "local[*]", "spark://master:7077".')
]

# The option before the noun: `mainstem --home data/shop topic list`.
named_home: ContextVar[str | None] = ContextVar("named_home", default=None)


@contextmanager
def open_home(
    given: str | None,
    *,
    missing: Literal["refuse", "make"] = "refuse",
    upkeep: Literal["background", "manual"] = "manual",
    spark: str = "local[*]",
) -> Iterator[Mainstem]:
    """The open home; closed also after Ctrl-C, or when the reader of the output closes the pipe.

    Without background upkeep by default, so that a reading command changes nothing.
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
            hint="For example: --home data/shop, or for all later commands: export MAINSTEM_HOME=data/shop. "
            "To make one with a program to begin with: mainstem init",
        )
    if missing == "refuse" and not is_home(path):
        facts = "It has no mainstem.json." if os.path.isdir(path) else "There is no such directory."
        raise NotFound(
            f'"{path}" is not a home',
            detail=facts,
            hint=f'A home is created with its first topic: mainstem topic create orders --schema "..." --home {path}',
        )
    return path


def is_home(path: str) -> bool:
    """Whether the path is a home, or cannot be read: then opening it raises the right error."""
    try:
        # A home whose log is on Kafka has the addresses of the brokers instead of a log.
        kafka = os.path.join(path, "kafka.toml")
        os.stat(kafka if os.path.exists(kafka) else os.path.join(path, "mainstem.json"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
