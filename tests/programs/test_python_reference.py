"""The reference of the Python interface: it has every public name, and is what the docstrings say now."""

import importlib.util
import inspect
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import mainstem
import mainstem.capture
import mainstem.operators
import mainstem.sinks
import mainstem.testing

REPOSITORY = Path(__file__).parent.parent.parent
MODULES = {
    "python": mainstem,
    "python_capture": mainstem.capture,
    "python_operators": mainstem.operators,
    "python_sinks": mainstem.sinks,
    "python_testing": mainstem.testing,
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    found = importlib.util.spec_from_file_location("python_reference", REPOSITORY / "scripts" / "python_reference.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def headings(name: str) -> set[str]:
    return set(
        re.findall(
            r"^## (\w+)(?: \(class\))?$", (REPOSITORY / "docs" / "reference" / f"{name}.md").read_text(), re.MULTILINE
        )
    )


def test_the_pages_are_current(reference):
    old = [name for name, text in reference.pages().items() if (reference.FOLDER / name).read_text() != text]
    assert old == [], "run scripts/python_reference.py, or make docs"


def test_every_public_name_is_on_a_page():
    errors = {name for name in mainstem.__all__ if isinstance(getattr(mainstem, name), type)}
    errors = {name for name in errors if issubclass(getattr(mainstem, name), mainstem.MainstemError)}

    assert headings("python_errors") == errors
    assert set(mainstem.__all__) - errors - headings("python") == set()
    assert headings("python_operators") == set(mainstem.operators.__all__)
    assert headings("python_capture") == set(mainstem.capture.__all__)
    assert headings("python_sinks") == set(mainstem.sinks.__all__)
    assert headings("python_testing") == set(mainstem.testing.__all__)


@pytest.mark.parametrize("name", [*MODULES, "python_errors"])
def test_no_two_names_of_a_page_share_an_anchor(reference, name):
    text = re.sub(r"^```.*?^```$", "", (reference.FOLDER / f"{name}.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    anchors = Counter(map(reference.anchor, re.findall(r"^#+ (.*)$", text, re.MULTILINE)))
    assert [anchor for anchor, count in anchors.items() if count > 1] == []


@pytest.mark.parametrize(
    "module",
    [mainstem.capture, mainstem.operators, mainstem.sinks, mainstem.testing],
    ids=lambda module: module.__name__,
)
def test_every_public_name_of_a_module_shows_an_example(module):
    without = [name for name in module.__all__ if ">>> " not in (inspect.getdoc(getattr(module, name)) or "")]
    assert without == []


def test_what_is_left_out_exists(reference):
    kinds = {kind.__name__: kind for kind in reference.returned_classes()}
    kinds |= {name: getattr(module, name) for module in MODULES.values() for name in module.__all__}
    gone = [
        f"{kind}.{name}"
        for kind, names in reference.INTERNAL.items()
        for name in names
        if not hasattr(kinds[kind], name)
    ]
    assert gone == []
