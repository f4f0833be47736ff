"""The command `mainstem`: its nouns, and the options common to all of them.

A command is a noun and a verb: `mainstem topic append orders rows.jsonl`. To add a noun, write `<noun>_commands.py`
beside this file and name it in `command_tree.py`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from mainstem import __version__
from mainstem.errors import MainstemError
from mainstem.log.query_limits import QUERY_THREAD
from mainstem.workbench.cli.command_arguments import HomeOption, named_home
from mainstem.workbench.cli.command_tree import CommandTree
from mainstem.workbench.cli.error_text import BROKEN_PIPE, FAILED, INTERRUPTED, leave_output, of_system, show_error

__all__ = ["app", "main", "run"]

HELP = """One log, every view.

Topics are read by offset (groups), by acknowledgement (queues) and by SQL. Programs run flows, which maintain views and
other topics. Everything is in one directory, the home: --home DIR, or MAINSTEM_HOME.
"""

EXAMPLES = """\b
Examples:
    export MAINSTEM_HOME=data/shop
    mainstem topic create orders --schema "order_id STRING, store STRING, amount DOUBLE" --key order_id
    mainstem topic append orders orders.csv
    mainstem topic read orders --follow --format json
    mainstem group describe orders billing
    mainstem queue take orders emails --count 3 --lease "1 minute"
    mainstem query "SELECT store, sum(amount) FROM orders GROUP BY store"
    mainstem check shop.py
    mainstem run shop.py
    mainstem view get revenue Berlin

mainstem topic --help, and mainstem topic append --help, have the details. Exit status: 0 success, 1 failure,
2 invalid usage.
"""

# Plain tracebacks: our own errors are shown below, and for others every line may matter.
app = typer.Typer(
    name="mainstem",
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    cls=CommandTree,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        typer.echo(f"mainstem {__version__}")
        raise typer.Exit


@app.callback()
def set_home(
    *,
    home: HomeOption = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """The options before the noun."""
    named_home.set(home)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    try:
        app(list(arguments), prog_name="mainstem")
    except SystemExit as ended:
        # Before a home is open, Typer itself ends an interrupted command.
        if ended.__context__ is not None and isinstance(ended.__context__.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except MainstemError as error:
        show_error(error)
        return FAILED
    except OSError as error:
        show_error(of_system(error))
        return FAILED
    return 0


# The commands that run programs, which may use pandas, and the one that looks for it.
WITH_PANDAS = frozenset(["run", "check", "rebuild", "doctor"])


class NoPandas:
    """Finds no pandas, as in an installation without it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used by this command", name=name)


def leave_pandas_out(arguments: Sequence[str]) -> None:
    """Arrow imports pandas, if it is installed, to convert the first Python value, which takes longer than most commands.
    Those that run no program do without, as they do where it is not installed."""
    if WITH_PANDAS.isdisjoint(arguments) and not any(word.endswith(".py") for word in arguments):
        sys.meta_path.insert(0, NoPandas)


def main() -> None:
    """The command `mainstem`."""
    leave_pandas_out(sys.argv[1:])
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        leave_output()
        status = BROKEN_PIPE
    if query_left_running():
        # Otherwise Python unloads DuckDB's library while it is in use, which prints an error for every object.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def query_left_running() -> bool:
    """Whether a statement of DuckDB that did not react to an interrupt still runs; see `sql_sandbox`."""
    return any(thread.name == QUERY_THREAD for thread in threading.enumerate())


if __name__ == "__main__":
    main()
