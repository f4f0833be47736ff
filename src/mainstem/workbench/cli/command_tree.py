"""The commands of `mainstem`, each imported when it is called.

A command that prints its help or lists topics needs neither Arrow nor Spark nor the code of the other commands: a name
and one line of help of each noun are here, and the rest comes from its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["COMMANDS", "CommandTree", "Entry", "new_noun"]


class Entry(NamedTuple):
    """A noun, or a command without one: where it is defined, and its line in the help."""

    module: str
    name: str
    help: str


# In the order of the help.
COMMANDS = {
    "init": Entry("init_command", "init", "Make a home, a program, a test of it, and a few rows: a start."),
    "topic": Entry("topic_commands", "app", "Topics: create, append, read, maintain."),
    "group": Entry("group_commands", "app", "Groups (consumer groups): members, offsets and lag."),
    "queue": Entry("queue_commands", "app", "Queues: messages taken one by one, until each is acknowledged."),
    "flow": Entry("flow_commands", "app", "Flows (jobs): status, offsets and lag."),
    "view": Entry("view_commands", "app", "Views: keyed tables that flows maintain."),
    "capture": Entry("capture_commands", "app", "Captures (CDC): changes of databases, as topics."),
    "store": Entry("store_commands", "app", "Stores (databases, caches, lakes) that flows keep current."),
    "home": Entry("home_commands", "app", "The home: copy it while it is in use, verify it."),
    "activity": Entry("activity_command", "activity", "What happened in the home: runs, waits, failures, changes."),
    "query": Entry("query_command", "query", "Run an SQL query over topics and views."),
    "search": Entry("search_command", "search", "Search an index for words."),
    "sql": Entry("sql_command", "sql", "An SQL shell over topics and views."),
    "compare": Entry("compare_command", "compare", "Compare topics, views, stores and files by key."),
    "check": Entry("check_command", "check", "Build the flows of a program without running them."),
    "run": Entry("run_command", "run_program", "Run the flows of a program."),
    "console": Entry("console_command", "console", "Show the home in a browser."),
    "token": Entry("token_commands", "app", "Tokens: who may see the console over the network."),
    "completion": Entry("completion_command", "completion", "Completion of commands and names for bash, zsh and fish."),
    "doctor": Entry("doctor_command", "doctor", "Check a setup: Java, Spark, the home, its log and views."),
}


def new_noun(help_text: str = "") -> typer.Typer:
    """A noun, to which its module adds the verbs. Its help is plain text: to draw boxes takes as long as all the rest."""
    return typer.Typer(help=help_text or None, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


class CommandTree(TyperGroup):
    """The root: knows the names of all commands, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _prepare(self)
        # Without parameters, for the list in the help and for "Did you mean".
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_markup_mode=None) for name, entry in COMMANDS.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """The command itself, from its module."""
    entry = COMMANDS[name]
    found: typer.Typer | Callable[..., None] = getattr(
        importlib.import_module(f"mainstem.workbench.cli.{entry.module}"), entry.name
    )
    if isinstance(found, typer.Typer):
        found.info.help = entry.help
        made = typer.main.get_command(found)
    else:
        alone = new_noun()
        alone.command(name)(found)
        made = typer.main.get_command(alone)
    for command in (made, *getattr(made, "commands", {}).values()):
        _prepare(command)
    return made


def _prepare(command: Any) -> None:
    # \b: the example is a line to copy and not to wrap.
    command.help = (command.help or "").replace("\n\nExample: ", "\n\n\b\nExample: ")
    # With --help, which is not among its own parameters.
    for parameter in command.get_params(typer.Context(command)):
        if hasattr(parameter, "_runtime_param"):
            parameter._runtime_param = _Coercion()


class _Coercion:
    """Typer converts each argument with pydantic, whose import takes longer than a command that is given none: what is
    of its type already, or absent, is passed on."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        annotation = param.type_descriptor.annotation
        if not several and isinstance(annotation, type) and isinstance(value, annotation):
            return value
        if several and get_args(annotation) == (str,) and all(isinstance(word, str) for word in value):
            return list(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
