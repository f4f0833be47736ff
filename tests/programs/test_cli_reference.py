"""Every `$ ...` line of the command line's reference, run from top to bottom in an empty directory."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.workbench.cli.main import run

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "cli.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What only a shell understands.
SHELL = re.compile(r"[|<>]|^(?!mainstem )")


def commands() -> list[str]:
    return [
        line.removeprefix("$ ")
        for block in BLOCK.findall(PAGE.read_text())
        for line in block.splitlines()
        if line[:2] == "$ "
    ]


def words_of(command: str) -> tuple[str, ...]:
    """The noun and the verb."""
    found = re.search(
        r"mainstem (init|query|search|compare|sql|completion|check|run|activity|(?:token|topic|group|queue|flow|view|store|capture|home) \w+|--help)",
        command,
    )
    return tuple(found[1].split()) if found else ()


@pytest.mark.starts_servers
def test_every_line_of_the_page_runs(tmp_path, monkeypatch, capsys):
    # `mainstem` and `python` are those of this environment, wherever the test is run from.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mainstem").write_text(f'#!/bin/sh\nexec {sys.executable} -m mainstem.workbench.cli.main "$@"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    statuses = {}
    for command in commands():
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value)
        elif SHELL.search(command):
            statuses[command] = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True
            ).returncode
        else:
            statuses[command] = run(shlex.split(command)[1:])

    assert {command: status for command, status in statuses.items() if status} == {}
    assert capsys.readouterr().err == 'queue "emails" of topic "orders" is new\n'


def test_the_page_shows_every_command():
    shown = {words_of(command) for command in commands()}

    assert {
        *(
            ("topic", verb)
            for verb in ["create", "list", "describe", "alter", "delete", "append", "read", "seal", "compact", "verify"]
        ),
        *(("group", verb) for verb in ["list", "describe", "reset"]),
        *(
            ("queue", verb)
            for verb in ["list", "describe", "take", "acknowledge", "release", "reject", "rewind", "delete"]
        ),
        *(("flow", verb) for verb in ["list", "describe", "stop"]),
        *(("view", verb) for verb in ["list", "describe", "read", "get", "versions", "rebuild", "drop"]),
        *(("store", verb) for verb in ["list", "describe", "rebuild"]),
        *(("token", verb) for verb in ["create", "list"]),
        ("activity",),
        ("compare",),
        ("search",),
        ("capture", "list"),
        ("init",),
        ("query",),
        ("sql",),
        ("completion",),
        ("check",),
        ("run",),
    } <= shown
