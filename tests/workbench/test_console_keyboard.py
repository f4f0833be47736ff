"""The console without a mouse, without motion, and for who hears it: everything is reached by Tab and seen to be reached, nothing
moves for who wants that, and live regions speak at most once in five seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from tests.needs import needs
from tests.waiting import wait_until
from tests.workbench.console_browser import MS_MAX, open_browser, watched_page
from tests.workbench.console_home import make_shop
from tests.workbench.console_process import ConsoleProcess, running_console
from tests.workbench.ran_flows import began

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

PAGES = {
    "": ".map-picture .node, .maplist li",
    "flows": "text=revenue",
    "flows/revenue": ".picture canvas",
    "topics": "text=payments",
    "topics/orders": "text=Readers",
    "views": "text=deliveries",
    "views/revenue": "td >> text=Lisbon >> nth=0",
    "queues/mails/send": "td >> text=has no @ >> nth=0",
    "query?sql=SELECT%201%20AS%20one": "td >> text=1",
}
# What a person can use, as far as it is seen; a group of radio buttons is one stop.
USABLE = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter((it) =>
  it.tabIndex >= 0 && !it.disabled && it.checkVisibility({checkVisibilityCSS: true}) && !it.closest("[inert]")).length"""
NUMBER_ALL = """() => { globalThis.reached = new Set(); globalThis.unseen = []; }"""
# What has the focus shows it: by an outline, a shadow, or a ring drawn on its own.
NOTE_FOCUS = """() => {
  const it = document.activeElement;
  if (!it || it === document.body) return false;
  const style = getComputedStyle(it);
  // Around a node of the map the line itself is thicker.
  const box = it.querySelector("rect.box");
  const shown = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none"
    || (box && parseFloat(getComputedStyle(box).strokeWidth) >= 2);
  if (!shown && !reached.has(it)) unseen.push(it.outerHTML.slice(0, 120));
  const again = reached.has(it);
  reached.add(it);
  return !again;
}"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("keyboard") / "shop", datetime.now(UTC)) as stem:
        yield stem


@pytest.fixture(scope="module")
def console(shop) -> Iterator[ConsoleProcess]:
    with running_console(shop.home) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def context(browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(reduced_motion="reduce")
    yield opened
    opened.close()


@pytest.fixture
def page(context) -> Iterator[Any]:
    with watched_page(context) as watched:
        yield watched.page
        assert watched.errors == []


@pytest.mark.parametrize("address", PAGES)
def test_everything_is_reached_by_tab_and_seen_to_be(console, page, address):
    page.goto(f"{console.url}#/{address}")
    page.locator(PAGES[address]).locator("visible=true").first.wait_for()
    expect(page.locator(".live")).to_contain_text("live", timeout=MS_MAX)
    # Nothing moves meanwhile.
    assert page.evaluate("document.getAnimations().filter((it) => it.playState === 'running').length") == 0
    page.evaluate(NUMBER_ALL)
    usable = page.evaluate(USABLE)
    page.keyboard.press("Tab")
    assert "Go to the content" in page.evaluate("document.activeElement.textContent")
    while page.evaluate(NOTE_FOCUS):
        page.keyboard.press("Tab")
    reached = page.evaluate("reached.size")
    assert page.evaluate("unseen") == []
    # What came while the page was walked through may be more.
    assert reached >= usable - 1, f"{reached} of {usable}"


def test_the_skip_link_search_and_escape(console, page):
    page.goto(f"{console.url}#/topics")
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    expect(page.locator("dialog input")).to_be_focused(timeout=MS_MAX)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0, timeout=MS_MAX)
    assert page.evaluate("document.activeElement.id") == "main"


NOTE_SPEECH = """
globalThis.spoken = [];
new MutationObserver((changes) => {
  for (const {target} of changes) {
    const region = (target.nodeType === 1 ? target : target.parentElement)?.closest("[aria-live], [role=status], [role=alert], [role=log]");
    if (region && region.textContent.trim()) spoken.push([performance.now(), region.textContent]);
  }
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


def test_live_regions_speak_at_most_once_in_five_seconds(shop, console, browser):
    context = browser.new_context()
    context.add_init_script(NOTE_SPEECH)
    with watched_page(context) as watched:
        page = watched.page
        page.goto(console.url)
        page.locator(".facts").wait_for()
        store, looks = FlowStore(shop.home, "flapping"), count()

        def has_spoken_again() -> bool:
            # Failed and running by turns: the sentence of the overview changes again and again.
            run = began(shop, "flapping", sink="view flapping")
            if next(looks) % 2:
                store.end(run, "failed", ["no", "Detail: no", "Hint: no"])
            return len(times_of_speech(page)) >= 3

        wait_until(has_spoken_again)
        times = times_of_speech(page)
        store.drop()
    context.close()
    assert [later - earlier for earlier, later in pairwise(times) if later - earlier < 4_900] == []


def times_of_speech(page: Page) -> list[float]:
    """When a region said something else than before, in milliseconds."""
    spoken = page.evaluate("spoken")
    return [at for (_, before), (at, text) in pairwise([(0, ""), *spoken]) if text != before]
