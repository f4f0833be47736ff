"""`mainstem completion`: completes commands, options and the names of a home in bash, zsh and fish.

The script of a shell calls `mainstem completion words -- WORD...` at every Tab, which prints what the last word may become,
a line each: the word, and after a tab what it is. It reads directories alone, and says nothing about errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mainstem.errors import Invalid, did_you_mean
from mainstem.workbench.cli.command_arguments import DEFAULT
from mainstem.workbench.cli.command_tree import COMMANDS, load_command
from mainstem.workbench.cli.home_names import (
    capture_names,
    flow_names,
    group_names,
    queue_names,
    topic_names,
    view_names,
)
from mainstem.workbench.cli.json_output import JsonOption, print_json

__all__ = ["SCRIPTS", "complete", "completion"]

SCRIPTS = {
    "bash": """_mainstem() {
    local IFS=$'\\n'
    COMPREPLY=( $(mainstem completion words -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null | cut -f1) )
}
complete -o default -F _mainstem mainstem
""",
    "zsh": """#compdef mainstem
_mainstem() {
    local -a found
    found=(${(f)"$(mainstem completion words -- "${(@)words[1,CURRENT]}" 2>/dev/null | sed -e 's/:/\\\\:/g' -e 's/\\t/:/')"})
    if (( ${#found} )); then _describe 'mainstem' found; else _files; fi
}
if [ "$funcstack[1]" = "_mainstem" ]; then _mainstem "$@"; else compdef _mainstem mainstem; fi
""",
    "fish": """function __mainstem_words
    mainstem completion words -- (commandline -opc) (commandline -ct) 2>/dev/null
end
complete -c mainstem -f -a '(__mainstem_words)'
complete -c mainstem -n 'test -z "$(__mainstem_words)"' -F
""",
}
WORDS = "words"


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", hidden=True)] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the completion script of a shell: commands, options, and the names of topics, groups, queues, flows, captures, views.

    For bash, in ~/.bashrc: source <(mainstem completion bash). For zsh, in ~/.zshrc after compinit: source <(mainstem
    completion zsh). For fish: mainstem completion fish > ~/.config/fish/completions/mainstem.fish

    Example: mainstem completion bash
    """
    if shell == WORDS:
        _print_words(words or [])
        return
    if shell not in SCRIPTS:
        raise Invalid(
            f'there is no completion for "{shell}"',
            detail=f"It is there for: {', '.join(SCRIPTS)}.",
            hint=did_you_mean(shell, SCRIPTS) or "For example: mainstem completion bash",
        )
    if as_json:
        print_json({"shell": shell, "script": SCRIPTS[shell]})
    else:
        sys.stdout.write(SCRIPTS[shell])


def _print_words(words: list[str]) -> None:
    try:
        for word, about in complete(words[1:]):
            sys.stdout.write(f"{word}\t{about}\n" if about else f"{word}\n")
    except Exception:  # noqa: BLE001 - a message in the middle of a line that is being typed helps nobody
        return


def complete(words: Sequence[str]) -> list[tuple[str, str]]:
    """What the last of the words after `mainstem` may become, and what it is."""
    *before, last = words or [""]
    home, before = _take_home(before)
    if last.startswith("-") and not before:
        return _starting(last, [("--home", "The home directory."), ("--version", ""), ("--help", "")])
    if not before:
        return _starting(last, [(name, entry.help) for name, entry in COMMANDS.items()])
    command = load_command(before[0])
    rest = before[1:]
    if hasattr(command, "commands"):
        if not rest:
            verbs = [(name, verb.get_short_help_str(80)) for name, verb in command.commands.items()]
            return _starting(last, verbs)
        command, rest = command.commands[rest[0]], rest[1:]
    return _starting(last, _next_of(command, rest, last, home))


def _starting(begun: str, found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(word, about) for word, about in found if word.startswith(begun)]


def _take_home(words: Sequence[str]) -> tuple[str, list[str]]:
    """The home that the words name, and the words without the option before the noun."""
    home = os.environ.get("MAINSTEM_HOME") or DEFAULT
    left = list(words)
    for number, word in enumerate(words):
        if word == "--home" and number + 1 < len(words):
            home = words[number + 1]
            if number == 0:
                left = left[2:]
        elif word.startswith("--home="):
            home = word.partition("=")[2]
            if number == 0:
                left = left[1:]
    return os.path.expanduser(home), left


def _next_of(command: Any, words: Sequence[str], last: str, home: str) -> list[tuple[str, str]]:
    """The options, the values of an option, or the values of the next argument."""
    options = {name: it for it in command.params if it.param_type_name == "option" for name in it.opts}
    if words and (option := options.get(words[-1])) is not None and not option.is_flag:
        if words[-1] == "--flow":
            return [(name, "") for name in flow_names(home)]
        choices = option.type_descriptor.choices or ()
        return [(str(getattr(choice, "value", choice)), "") for choice in choices]
    if last.startswith("-"):
        shown = [(name, it.help or "") for name, it in options.items()]
        return [*shown, ("--help", "Show this message and exit.")]
    given, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in options and not options[word].is_flag
        else:
            given.append(word)
    arguments = [it for it in command.params if it.param_type_name == "argument"]
    if not arguments:
        return []
    kind = arguments[min(len(given), len(arguments) - 1)]
    if len(given) >= len(arguments) and kind.nargs != -1:
        return []
    return [(name, "") for name in _names(home, kind.display_name_raw.strip("[].").lower(), given)]


def _names(home: str, kind: str, given: Sequence[str]) -> list[str]:
    topic = given[0] if given else ""
    return {
        "bash|zsh|fish": lambda: list(SCRIPTS),
        "topic": lambda: topic_names(home),
        "view": lambda: view_names(home),
        "flow": lambda: flow_names(home),
        "capture": lambda: capture_names(home),
        "group": lambda: group_names(home, topic),
        "queue": lambda: queue_names(home, topic),
    }.get(kind, list)()
