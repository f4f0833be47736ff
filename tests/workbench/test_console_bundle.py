"""The pages of the console as they are committed: made from these sources, small, and loading nothing from elsewhere."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import cannot_run

REPOSITORY = Path(__file__).parent.parent.parent
SOURCES = REPOSITORY / "console"
PAGE = REPOSITORY / "src/mainstem/workbench/console/page"
SCRIPT_BYTES_MAX = 100_000


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {path.name: path.read_text() for path in PAGE.glob("*.js")}


def test_the_bundle_is_what_the_sources_give(tmp_path):
    if not (SOURCES / "node_modules" / "esbuild").exists():
        cannot_run("console/node_modules", "`make setup` installs them")

    node = Path(sys.executable).with_name("node")
    subprocess.run([node, "build.mjs", tmp_path], cwd=SOURCES, check=True, capture_output=True, timeout=120)

    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in PAGE.iterdir()}, "run `make console`, and commit"


def test_the_scripts_are_small(scripts):
    assert sum(len(gzip.compress(text.encode(), 9)) for text in scripts.values()) <= SCRIPT_BYTES_MAX


def test_no_script_makes_a_program_of_text(scripts):
    found = {
        name: re.findall(r"\beval\(|new Function\b|\bFunction\(|document\.write|\.outerHTML", text)
        for name, text in scripts.items()
    }
    assert found == {name: [] for name in scripts}


def test_no_source_writes_markup_as_text():
    written = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write")
    assert [path.name for path in sorted((SOURCES / "src").rglob("*.ts*")) if written.search(path.read_text())] == []


def test_nothing_is_loaded_from_elsewhere(scripts):
    # Names of namespaces, and where a library lives: text, nothing that is fetched.
    texts = [*scripts.values(), (PAGE / "app.css").read_text(), (PAGE / "index.html").read_text()]
    hosts = {host for text in texts for host in re.findall(r"(?:https?:)?//([a-z0-9-]+(?:\.[a-z0-9-]+)+)", text)}
    assert hosts <= {"www.w3.org", "github.com"}
    assert re.findall(r"url\(([^)]*)\)", (PAGE / "app.css").read_text()) == ["inter.woff2"]


def test_the_page_has_no_inline_script_and_no_inline_style():
    text = (PAGE / "index.html").read_text()
    assert re.findall(r"<script[^>]*>[^<]+|<style|\sstyle=|\son[a-z]+=", text) == []


def test_the_lock_file_names_versions_and_no_addresses():
    lock = json.loads((SOURCES / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert [name for name, package in lock["packages"].items() if name and "integrity" not in package] == []


def test_the_font_has_its_licence_beside_it():
    assert "SIL OPEN FONT LICENSE Version 1.1" in (PAGE / "inter_licence.txt").read_text()
