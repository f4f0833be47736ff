"""Every Python block in the documentation and every docstring example, run.

The blocks of one page share their names, from top to bottom, in an empty directory of their own. What is not to be run
is not marked as `python` there. Pages with commands between the blocks are run by test_consoles.py.
"""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.programs.test_consoles import PAGES as WITH_COMMANDS

REPOSITORY = Path(__file__).parent.parent.parent
SOURCES = REPOSITORY / "src"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line and text of each Python block."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in BLOCK.finditer(text)]


def with_examples() -> list[str]:
    modules = [path for path in sorted(SOURCES.rglob("*.py")) if ">>> " in path.read_text()]
    return [".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__") for path in modules]


@pytest.mark.starts_servers
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p) and p not in WITH_COMMANDS],
    ids=lambda p: p.relative_to(REPOSITORY).as_posix(),
)
def test_a_page_s_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for line, block in blocks(page):
        # Empty lines before it, so that a traceback points into the page.
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), names)


class Examples(doctest.DocTestFinder):
    """Also those of functions behind a decorator."""

    def _from_module(self, module: object, found: object) -> bool:
        return super()._from_module(module, inspect.unwrap(found) if callable(found) else found)


@pytest.mark.parametrize("name", with_examples())
def test_a_docstring_s_examples_give_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in Examples(exclude_empty=True).find(module, name):
        runner.run(example, out=said.append)

    assert runner.failures == 0, "".join(said)
    assert runner.tries > 0
