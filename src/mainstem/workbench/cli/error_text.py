"""Errors on the terminal: three lines, and the exit status.

0    success
1    failure; three lines on standard error say what is wrong, the facts, and what to do
2    invalid usage
130  ended by Ctrl-C
141  the reader of the output closed the pipe (`mainstem topic read orders | head`)
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import typer

from mainstem.errors import MainstemError, Unavailable
from mainstem.workbench.cli.shown_passwords import blank_passwords

if TYPE_CHECKING:
    from mainstem.flows.home_verification import HomeProblem
    from mainstem.log.upkeep_report import Problem

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "USAGE",
    "error_lines",
    "leave_output",
    "of_system",
    "show_damage",
    "show_error",
    "visible",
    "with_facts",
]

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

# Control characters, which a terminal would interpret; line ends are handled separately.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def visible(text: str) -> str:
    """The text with its control characters escaped, except line ends, so that it is safe on a terminal.

    >>> visible("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def error_lines(error: MainstemError) -> list[str]:
    """The three parts, one line each; missing parts are omitted.

    >>> error_lines(MainstemError('topic "ordres" is odd', detail="It has no rows.", hint="Append some."))
    ['mainstem.MainstemError: topic "ordres" is odd', 'Detail: It has no rows.', 'Hint: Append some.']
    """
    first, *others = error.parts()
    parts = [f"mainstem.{type(error).__name__}: {first}", *others]
    # Further lines of a part are indented.
    return [blank_passwords(visible(part)).replace("\n", "\n        ") for part in parts]


def show_error(error: MainstemError) -> None:
    """Print the three parts on standard error; in colour on a terminal."""
    first, *others = error_lines(error)
    title, _, message = first.partition(": ")
    typer.echo(f"{typer.style(title, fg='red', bold=True)}: {message}", err=True)
    for line in others:
        word, _, text = line.partition(": ")
        typer.echo(f"{typer.style(word, bold=True)}: {text}", err=True)


def show_damage(of: str, problem: Problem | HomeProblem) -> None:
    """Two lines: the damage, then the complete path of the file, so that it can be copied."""
    partition = "" if problem.partition is None else f", partition {problem.partition}"
    span = ""
    if problem.first_offset is not None:
        last = "the end" if problem.last_offset is None else str(problem.last_offset)
        span = f", offsets {problem.first_offset} to {last}"
    what = problem.what.replace(f' "{problem.file}"', "")
    typer.echo(f"\n{visible(of)}{partition}{span}: {visible(what)}")
    typer.echo(f"    {visible(problem.file)}")


def with_facts(error: MainstemError, *, detail: str | None = None, hint: str | None = None) -> MainstemError:
    """The same error with another detail or hint, for the command line instead of Python."""
    fields = {name: value for name, value in vars(error).items() if name not in ("detail", "hint", "__notes__")}
    changed = type(error)(
        error.summary,
        detail=error.detail if detail is None else detail,
        hint=error.hint if hint is None else hint,
        **fields,
    )
    changed.__cause__ = error.__cause__
    return changed


def of_system(error: OSError) -> Unavailable:
    """An error of the operating system as one of ours."""
    where = f'"{os.fspath(error.filename)!s}"' if error.filename is not None else "a file"
    said = os.strerror(error.errno) if error.errno is not None else str(error)
    return Unavailable(
        f"{where} cannot be used: {said}",
        detail=f"This process has user id {os.getuid()} and works in {_working_directory()}.",
        hint="Check that it is there, and that this user may read and write it.",
    )


def _working_directory() -> str:
    try:
        return repr(os.getcwd())
    except FileNotFoundError:
        return "a directory that no longer exists"


def leave_output() -> None:
    """The reader closed the pipe: discard the buffered output without an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
