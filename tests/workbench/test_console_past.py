"""Pages of the past in Chromium: opened with `?at=` a page has the text that it had then, for all that has history."""

import difflib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from mainstem.stem import Mainstem
from tests.needs import needs
from tests.workbench.console_browser import axe_findings, is_wider_than_the_window, keep_picture
from tests.workbench.console_home import make_shop, revenue_batch
from tests.workbench.test_console_pages import SQL, Console, browser, contexts, watched

__all__ = ["browser", "contexts", "watched"]

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

# The address of each page, and its parts, which are all there when it is read; then what keeps no history: all that may differ.
PAGES = {
    "": (
        [".map-picture .node", ".feed li"],
        # Queues keep no history: neither how far they are behind nor what they rejected.
        r"not kept|^\d rejected$|with their reason|^279 rows$|^changed a while ago$|waiting, . held|wants? a look|^furthest behind|rejected message",
    ),
    "flows": (["text=revenue"], r"^$"),
    "flows/revenue": ([".picture canvas", ".strip .plot canvas", ".facts-list", ".holders"], r"^\d+$|not kept"),
    "topics": (["text=payments"], r"^$"),
    "topics/orders": (["text=Readers", ".data tbody tr", "text=the beginning"], r"not kept|bytes|[KM]iB|^[\d,]+\t"),
    "views": (["text=deliveries"], r"not kept|deliveries"),
    "views/revenue": (["td >> text=Lisbon", ".words"], r"size: not kept|[KM]iB|sorted by key"),
    f"query?sql={SQL}": (["td >> text=Vienna"], r"^$"),
}
# Facts of a page are read a little after its map: a time may differ by that, and what a flow is behind.
TIMES = re.compile(r"\d[\d,.]* (?:s|ms|min|h)(?: \d+ (?:s|min))?\b")


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("past") / "shop", datetime.now(UTC)) as stem:
        yield stem


@pytest.fixture(scope="module")
def console(shop) -> Iterator[Console]:
    found = Console(Path(shop.home))
    yield found
    found.kill()


def shown_text(page: Page) -> tuple[str, list[str]]:
    """The moment of a page, and its lines, without the slider and what is said of the past."""
    at, text = page.evaluate(
        """() => {
          const main = document.getElementById("main");
          for (const part of document.querySelectorAll(".time, .then-banner")) part.style.display = "none";
          return [main.dataset.at, main.innerText];
        }"""
    )
    lines = [TIMES.sub("a while", line).strip() for line in text.splitlines()]
    return at, [line for line in lines if line]


def open_page(console: Console, page: Page, address: str, parts: list[str]) -> tuple[str, list[str]]:
    page.goto(f"{console.address}#/{address}")
    for part in parts:
        page.locator(part).locator("visible=true").first.wait_for()
    page.locator(".live").filter(has_text="live").wait_for()
    return shown_text(page)


def happen(shop: Mainstem) -> None:
    """More orders, a batch that corrects, a schema that grows."""
    clock = shop.log.clock
    clock.set(datetime.now(UTC))
    orders = shop.topic("orders")
    orders.append([{"order_id": f"x-{n}", "store": "Osaka", "amount": 2.0, "placed_at": None} for n in range(60)])
    revenue_batch(shop, clock, 58)
    shop.topic("payments").append([{"order_id": "x-1", "paid": None}])


def test_a_page_of_then_has_the_text_of_then(shop, console, watched):
    page, errors = watched()
    before = {address: open_page(console, page, address, parts) for address, (parts, _) in PAGES.items()}

    happen(shop)

    differing = {}
    for address, (parts, unkept) in PAGES.items():
        at, lines = before[address]
        joined = f"{address}{'&' if '?' in address else '?'}at={at}"
        then, found = open_page(console, page, joined, parts)
        assert then == at
        changed = [line for line in difflib.ndiff(lines, found) if line[0] in "+-"]
        differing[address] = [line for line in changed if not re.search(f"{unkept}|is not permitted here", line[2:])]
    assert (differing, errors) == ({address: [] for address in PAGES}, [])


LOOKS = [
    ("", "dark", ".map-picture .node"), ("", "360", ".maplist li"), ("flows/revenue", "light", ".picture canvas"),
    ("flows/revenue", "360", ".picture canvas"), ("topics/orders", "dark", "text=Readers"),
    ("views/revenue", "360", "td >> text=Lisbon"), ("views/deliveries", "light", "text=keeps no history"),
    ("queues/mails/send", "light", "text=A queue keeps no history"),
]  # fmt: skip


@pytest.mark.parametrize(("address", "look", "shown"), LOOKS)
def test_a_page_of_then_is_whole_in_each_look(console, watched, address, look, shown):
    page, errors = watched(look)
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    page.goto(f"{console.address}#/{address}?at={at}")

    expect(page.locator(".then-banner")).to_contain_text("As it was at")
    expect(page.get_by_label("Time shown")).to_be_visible()
    expect(page.locator(shown).locator("visible=true").first).to_be_visible()
    keep_picture(page, f"then-{address.replace('/', '-') or 'overview'}-{look}")

    # A refused request is told on the page; the browser notes it too.
    errors = [error for error in errors if "Failed to load resource" not in error]
    assert (axe_findings(page), is_wider_than_the_window(page), errors) == ([], False, [])


def test_links_stay_in_the_past_and_the_banner_leads_back(console, watched):
    page, _ = watched()
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    page.goto(f"{console.address}#/topics?at={at}")

    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.locator("h1")).to_contain_text("orders")
    expect(page.locator(".then-banner")).to_be_visible()
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".then-banner")).to_have_count(0)
    assert "at=" not in page.url


def test_the_future_and_no_time_are_said(console, watched):
    page, _ = watched()
    for at, said in (("2999-01-01T00:00:00Z", "is in the future"), ("yesterday", "yesterday")):
        page.goto(f"{console.address}#/topics/orders?at={at}")
        expect(page.locator(".problem").first).to_contain_text(said)
