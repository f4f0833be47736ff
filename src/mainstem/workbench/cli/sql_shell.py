"""The shell of `mainstem sql`: reads statements until a semicolon, and prints their results.

On a terminal it edits lines, completes names with Tab and remembers statements, in a file that only the user may read:
`sql_history` in `$XDG_STATE_HOME/mainstem`, by default `~/.local/state/mainstem`. Otherwise it reads statements from
standard input. An error is printed, and the next statement is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from mainstem.errors import MainstemError
from mainstem.workbench.cli.error_text import FAILED, show_error
from mainstem.workbench.cli.row_output import write_rows
from mainstem.workbench.cli.sql_text import completions, has_statement, quote_name, split_statements
from mainstem.workbench.cli.terminal_table import Column, about_duration, show_count, show_note, show_table

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.stem import Mainstem

__all__ = ["HELP", "SqlShell", "history_path"]

PROMPT, MORE = "mainstem> ", "     ...> "
# More than a user reads; the rest is for a file.
ROWS_SHOWN = 200
HISTORY_MAX = 2_000
# A word that Tab completes ends at these; a dot and a quote are parts of names.
DELIMITERS = " \t\n()=<>!,;+-*/|"

HELP = """Statements end with a semicolon, and may have several lines. Topics and views are tables.

  .tables        list topics and views
  .columns NAME  list the columns of one of them
  .help          show this
  .quit          leave; so does Ctrl-D

Tab completes names; Ctrl-C clears a line, and cancels a statement that runs."""


@dataclass
class SqlShell:
    """A shell over an open home. `form` is the format of results, as `--format` names it."""

    stem: Mainstem
    form: str = "table"
    all_columns: bool = False
    timeout: str = "60 seconds"
    rows_max: int = 10_000_000
    failed: bool = False

    def run(self) -> int:
        """Read statements until the end; returns the exit status."""
        if sys.stdin.isatty() and sys.stdout.isatty():
            show_note(f"{self.stem.log.title}; .help for help, .quit or Ctrl-D to leave")
            with line_editing(self._complete) as remember:
                self._read(_typed_lines(), remember)
            return 0
        rest = self._read(lambda begun: sys.stdin.readline() or None, lambda statement: None)
        # The last statement of a file may do without its semicolon.
        self._do(rest)
        return FAILED if self.failed else 0

    def _read(self, next_line: Callable[[bool], str | None], remember: Callable[[str], None]) -> str:
        """Do what the lines say, until there are none; returns what follows the last semicolon."""
        text = ""
        while True:
            try:
                line = next_line(bool(text.strip()))
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                typer.echo()
                text = ""
                continue
            if line is None:
                return text.strip()
            if not text.strip() and line.strip().rstrip(";").lower() in ("exit", "quit", "help"):
                # As in other shells.
                line = f".{line.strip().rstrip(';').lower()}"
            if not text.strip() and line.lstrip().startswith("."):
                remember(line.strip())
                if line.split()[0] in (".quit", ".exit"):
                    return ""
                self._command(*line.split())
                continue
            statements, text = split_statements(f"{text}{line.rstrip()}\n")
            for statement in statements:
                remember(f"{' '.join(statement.split())};")
                self._do(statement)

    # Statements

    def _do(self, statement: str) -> None:
        if not has_statement(statement):
            return
        clock = self.stem.log.clock
        began = clock.monotonic()
        try:
            answer = self.stem.query(statement, rows_max=self.rows_max, timeout=self.timeout)
        except MainstemError as error:
            self.failed = True
            show_error(error)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            show_note("cancelled")
        else:
            self._show(answer, (clock.monotonic() - began) / 1_000_000)

    def _show(self, answer: pa.Table, seconds: float) -> None:
        on_terminal = self.form == "table" and sys.stdout.isatty()
        write_rows(
            self.form,
            answer.to_batches(),
            answer.schema,
            limit=ROWS_SHOWN if on_terminal else None,
            all_columns=self.all_columns,
        )
        if on_terminal and len(answer):
            shown = (
                "" if len(answer) <= ROWS_SHOWN else f", the first {ROWS_SHOWN} are shown: add a LIMIT, or use --json"
            )
            show_note(f"{show_count(len(answer), 'row')} in {about_duration(seconds)}{shown}")

    # Commands with a dot

    def _command(self, word: str, *arguments: str) -> None:
        if word == ".tables":
            rows = [["topic", name] for name in self.stem.topics()] + [["view", name] for name in self.stem.views()]
            show_table([Column("kind"), Column("table", style="bold")], rows, empty="no topics and no views yet")
        elif word == ".columns" and arguments:
            self._do(f"DESCRIBE {quote_name(arguments[0].strip(';').strip(chr(34)))}")
        elif word == ".help":
            typer.echo(HELP)
        else:
            show_note(f"{word} is not a command of this shell; .help lists them")

    # Names

    def _complete(self, word: str) -> list[str]:
        return completions(word, self._names())

    def _names(self) -> Iterator[str]:
        """Topics, views, and the columns of all of them; what cannot be read is left out."""
        columns: list[str] = []
        for name in self.stem.topics():
            yield name
            with suppress(MainstemError, OSError):
                columns += self.stem.topic(name).settings.record_schema.names
        for name in self.stem.views():
            yield name
            with suppress(MainstemError, OSError):
                view = self.stem.view(name)
                columns += view.schema.names
                view.close()
        yield from columns


# Editing of lines, with GNU readline.


def _typed_lines() -> Callable[[bool], str | None]:
    """Asks for a line; after Ctrl-D there is none."""

    def ask(begun: bool) -> str | None:  # noqa: FBT001 - called in one place
        try:
            return input(MORE if begun else PROMPT)
        except EOFError:
            typer.echo()
            return None

    return ask


def history_path() -> str:
    """The file with the statements of earlier sessions."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "mainstem", "sql_history")


@contextmanager
def line_editing(complete: Callable[[str], list[str]]) -> Iterator[Callable[[str], None]]:
    """Inside, lines are edited, Tab completes, and earlier statements are there; yields the function that adds one."""
    try:
        import readline
    except ModuleNotFoundError:
        # A Python without it reads plain lines.
        yield lambda statement: None
        return
    found: list[str] = []

    def next_completion(word: str, number: int) -> str | None:
        if number == 0:
            found[:] = complete(word)
        return found[number] if number < len(found) else None

    path = history_path()
    readline.set_auto_history(False)
    readline.set_completer_delims(DELIMITERS)
    readline.set_completer(next_completion)
    readline.parse_and_bind("tab: complete")
    with suppress(OSError):
        readline.read_history_file(path)
    added: list[str] = []

    def remember(statement: str) -> None:
        readline.add_history(statement)
        added.append(statement)

    try:
        yield remember
    finally:
        readline.set_completer(None)
        # A history that cannot be written is no reason to fail.
        with suppress(OSError):
            _save(readline, path, len(added))


def _save(readline: Any, path: str, added: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # Before anything is in it: statements may contain what others must not read.
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.chmod(path, 0o600)
    readline.set_history_length(HISTORY_MAX)
    # Appended: another shell may have written its own meanwhile.
    readline.append_history_file(added, path)
