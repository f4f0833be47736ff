"""Every line that begins with `$` in a console block of a guide, run after the Python before it.

A block of Python that begins with a comment such as `# shop.py` is also there as that file. In every run commands and Python are
run in this process, with the Spark of all tests; before a release each command, and the Python between two consoles, in a process
of its own.
"""

import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from mainstem.workbench.cli.main import run

REPOSITORY = Path(__file__).parent.parent.parent
DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
FILE = re.compile(r"\A# (\w+\.py)$", re.MULTILINE)
# Some pages start Spark, three or four times.
SECONDS_MAX = 600


def steps(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page, in order, those of one kind that follow each other as one; of a console the commands."""
    blocks = BLOCK.findall(page.read_text())
    return [
        (kind, "\n".join(text if kind == "python" else "\n".join(COMMAND.findall(text)) for _, text in following))
        for kind, following in groupby(blocks, key=itemgetter(0))
    ]


def files(page: Path) -> dict[str, str]:
    """The programs that a page shows, by the names it gives them."""
    blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]
    return {found[1]: text for text in blocks if (found := FILE.match(text))}


# The command line's own page has a test beside the commands.
PAGES = [
    page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "reference" and "console" in dict(steps(page))
]


# What only a shell understands.
SHELL = re.compile(r"[|<>]|^(?!mainstem )")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_s_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    # A page's files can import each other, and have the names of other pages' files.
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    for kind, text in steps(page):
        if kind == "python":
            exec(compile(text, str(page), "exec"), {"__name__": "__main__"})
            continue
        for command in text.splitlines():
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                monkeypatch.setenv(name, value)
            elif SHELL.search(command):
                subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, timeout=SECONDS_MAX)
            else:
                assert run(shlex.split(command)[1:]) == 0, command


@pytest.mark.long
@pytest.mark.usefixtures("users_java")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_s_commands_run_in_processes_of_their_own(page, tmp_path):
    # The commands are those of this very Python, whatever else is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
    for kind, text in steps(page):
        program = [sys.executable, "-c", text] if kind == "python" else ["bash", "-euo", "pipefail", "-c", text]
        ran = subprocess.run(
            program,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
