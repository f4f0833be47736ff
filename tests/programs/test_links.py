"""Links of the pages: every relative one leads to a file and, where it names one, to a heading; every page is in the site."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [*(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repositories' sites make them: lower case, dashes, no punctuation."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 1
        anchor = plain
        while anchor in found:
            anchor, number = f"{plain}-{number}", number + 1
        found.add(anchor)
    return found


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))) if "://" not in link]


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_link_to_nothing_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n## What's `new`, and [not](other.md)\n\n[a](#whats-new-and-not) [b](#new) [c](other.md) `[d](e.md)`\n"
    )

    assert broken(page) == ["other.md", "#new", "other.md"]


def test_every_page_is_in_the_site_s_contents():
    listed = set(re.findall(r": (docs/\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE))
    existing = {page.relative_to(REPOSITORY).as_posix() for page in DOCS.rglob("*.md")}

    assert listed == existing


def test_every_page_can_be_reached_from_the_overview():
    reached: set[Path] = set()
    waiting = [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link[0] != "#"]

    assert {page.name for page in DOCS.rglob("*.md")} - {page.name for page in reached} == set()
