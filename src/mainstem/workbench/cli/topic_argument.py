"""Words that many commands share: the topic, and taking over from a process that stands still."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.workbench.cli.terminal_table import show_note

if TYPE_CHECKING:
    from mainstem.log.topic import Topic

__all__ = [
    "OnlyTopicArgument",
    "TakeOverOption",
    "TopicArgument",
    "YesOption",
    "asked",
    "confirm",
    "somebody_is_there",
    "split_words",
    "take_over_if",
]

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
OnlyTopicArgument = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Only of this topic.", show_default=False)
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="End a stopped process that holds the topic's locks, and go on behind what is safe after a failed fsync.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def take_over_if(topic: Topic, *, asked: bool) -> None:
    """Take the topic over before anything is written, so that nothing is written twice; and say what was done."""
    if asked:
        show_note(str(topic.take_over()))


def split_words(text: str | None) -> list[str] | None:
    """The words of a list with commas: --columns store,amount."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def confirm(question: str) -> None:
    """Ask; ends the command with status 1 unless the answer is yes. Where nobody can be asked, --yes is needed."""
    if not somebody_is_there():
        raise typer.BadParameter("needed where nobody can be asked", param_hint="--yes")
    if not asked(question):
        typer.echo("Nothing was deleted.", err=True)
        raise typer.Exit(1)


def asked(question: str) -> bool:
    """Whether a person says yes."""
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def somebody_is_there() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty()
