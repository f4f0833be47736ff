"""Every line that begins with `$` in a console block of a guide, run by a shell after the Python before it."""

import os
import re
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


def steps(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page, in order, those of one kind that follow each other as one; of a console the commands."""
    blocks = BLOCK.findall(page.read_text())
    return [
        (kind, "\n".join(text if kind == "python" else "\n".join(COMMAND.findall(text)) for _, text in following))
        for kind, following in groupby(blocks, key=itemgetter(0))
    ]


# The command line's own page has a test beside the commands.
PAGES = [
    page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "reference" and "console" in dict(steps(page))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_s_commands_run(page, tmp_path):
    # The commands are those of this very Python, whatever else is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for kind, text in steps(page):
        program = [sys.executable, "-c", text] if kind == "python" else ["bash", "-euo", "pipefail", "-c", text]
        ran = subprocess.run(
            program, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
