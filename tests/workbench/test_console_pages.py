"""The pages of the console in Chromium, from a real server over a real home: how they look, and what they say when it goes
wrong. Each look of each page is kept as a picture in build/screenshots."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from mainstem.stem import Mainstem
from mainstem.workbench.console.json_body import time_text
from tests.needs import needs
from tests.workbench.console_browser import (
    LOOKS,
    MS_MAX,
    axe_findings,
    is_wider_than_the_window,
    keep_picture,
    open_browser,
    watch,
)
from tests.workbench.console_home import make_shop

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

SQL = "SELECT%20store%2C%20count(*)%20AS%20orders%20FROM%20orders%20GROUP%20BY%20ALL%20ORDER%20BY%20ALL"


# Where each page is, and what it shows when all of it is there.
PAGES = {
    "overview": ("#/", ".map-picture .node, .maplist li"),
    "flows": ("#/flows", "text=revenue"),
    "flow": ("#/flows/revenue", ".picture canvas"),
    "topics": ("#/topics", "text=payments"),
    "topic": ("#/topics/orders", "text=Readers"),
    "views": ("#/views", "text=deliveries"),
    "view": ("#/views/revenue", "td >> text=Lisbon >> nth=0"),
    "queues": ("#/queues", "text=mails / send"),
    "queue": ("#/queues/mails/send", "td >> text=has no @ >> nth=0"),
    "query": (f"#/query?sql={SQL}", "td >> text=Vienna"),
}


class Console:
    """The process of `mainstem console`."""

    def __init__(self, home: Path, port: int = 0, options: Sequence[str] = ()) -> None:
        command = [
            sys.executable,
            "-m",
            "mainstem.workbench.cli.main",
            "console",
            "--port",
            str(port),
            "--home",
            str(home),
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("console") / "shop", datetime.now(UTC)) as stem:
        yield stem


@pytest.fixture(scope="module")
def console(shop) -> Iterator[Console]:
    found = Console(Path(shop.home))
    yield found
    found.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def contexts(browser) -> Iterator[dict[str, BrowserContext]]:
    found = {
        name: browser.new_context(viewport={"width": look.width, "height": 900}, color_scheme=look.scheme)
        for name, look in LOOKS.items()
    }
    yield found
    for context in found.values():
        context.close()


class Watched(NamedTuple):
    """A page, and the errors that its console showed."""

    page: Page
    errors: list[str]


@pytest.fixture
def watched(contexts) -> Iterator[Any]:
    opened = []

    def open_page(look: str = "light") -> Watched:
        page = contexts[look].new_page()
        opened.append(page)
        return Watched(page, watch(page))

    yield open_page
    for page in opened:
        page.close()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_whole_in_each_look(console, watched, name, look):
    address, shown = PAGES[name]
    page, errors = watched(look)

    page.goto(console.address + address)
    page.locator(shown).locator("visible=true").first.wait_for()
    page.locator(".live").filter(has_text="live").wait_for()
    keep_picture(page, f"{name}-{look}")

    assert (axe_findings(page), is_wider_than_the_window(page), errors) == ([], False, [])


def test_a_killed_server_is_said_and_a_new_one_is_found(shop, watched):
    first = Console(Path(shop.home))
    page, _ = watched()
    page.goto(first.address)
    page.locator(".facts").wait_for()

    first.kill()
    expect(page.locator(".live")).to_contain_text("not reached since")
    # The numbers stay, greyed.
    expect(page.locator(".stale .facts")).to_contain_text("flows running")
    keep_picture(page, "not-reached")
    assert axe_findings(page) == []

    second = Console(Path(shop.home), port=first.port)
    try:
        expect(page.locator(".live")).to_contain_text("live")
    finally:
        second.kill()


def test_search_finds_by_keyboard(console, watched):
    page, errors = watched()
    page.goto(console.address)
    page.locator(".facts").wait_for()

    page.keyboard.press("/")
    page.keyboard.type("reven")
    expect(page.locator("dialog li").first).to_contain_text("revenue")
    assert axe_findings(page) == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")

    expect(page.locator("h1")).to_contain_text("revenue")
    assert errors == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("#/topics/nope", 'topic "nope" does not exist'),
        ("#/views/nope", "nope"),
        ("#/flows/nope", 'flow "nope" never ran in this home'),
        ("#/queues/orders/nope", "nope"),
        ("#/queues/nope", "There is no such page."),
        ("#/elsewhere", "There is no such page."),
        ("#/topics/orders?position=yesterday", "yesterday"),
        ("#/topics/orders?filter=amount%20%3E", "amount >"),
        ("#/query?sql=DROP%20TABLE%20orders", "DROP"),
    ],
)
def test_what_is_wrong_is_said_on_the_page(console, watched, address, said):
    page, _ = watched("360")
    page.goto(console.address + address)

    problem = page.locator(".problem")
    expect(problem).to_contain_text(said)
    expect(problem.locator("p").first).not_to_be_empty()
    assert (axe_findings(page), is_wider_than_the_window(page)) == ([], False)


ODD = [
    "<script>document.title='taken'</script>", "<img src=x onerror=\"document.title='taken'\">", "'\"><svg onload=alert(1)>",
    "javascript:alert(1)", "{{7*7}} ${7*7} <%= 7*7 %>", "\u202egnirts sdrawkcab", "abc\u0000def", "\ufeff\u200b\u2066hidden\u2069",
    "é" * 300, "x" * 300, "a'; DROP TABLE orders; --", 'quo"te', "back\\slash", "line\nbreak\ttab", "", " ", "NaN", "null",
    "😀👩‍👩‍👧‍👦", "שלום עולם",
]  # fmt: skip


def odd_texts(count: int) -> list[str]:
    """The odd ones, then each of them between pieces of others."""
    found = list(ODD)
    while len(found) < count:
        number = len(found)
        found.append(f"{ODD[number % len(ODD)]}{number}{ODD[(number // len(ODD)) % len(ODD)]}")
    return found[:count]


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.long)])
def test_odd_values_are_shown_as_text(shop, console, watched, count):
    texts = odd_texts(count)
    topic = shop.create_topic(f"odd{count}", schema="n INT, text STRING")
    topic.append([{"n": n, "text": text} for n, text in enumerate(texts)])
    page, errors = watched()
    page.goto(f"{console.address}#/topics/odd{count}?position=earliest")
    expect(page.locator("tbody tr").first).to_be_visible(timeout=MS_MAX)
    for number in range(25, count, 25):
        page.get_by_role("button", name="More", exact=True).click()
        page.locator(f"tbody tr >> nth={number}").wait_for()

    # The whole text is in the page, with names in place of what has no shape.
    page.evaluate("document.querySelectorAll('td .more').forEach(button => button.click())")
    # Not wait_for_function: it makes a program of a text, which the page forbids.
    expect(page.locator("td .more")).to_have_count(0)
    shown = page.evaluate(
        "Array.from(document.querySelectorAll('.list.data tbody tr'), row => row.lastChild.textContent)"
    )
    plain = [text for text in texts if text.isprintable() and text]
    assert len(shown) == count
    assert [text for text in plain if text not in shown] == []
    assert "abc␀def" in shown
    assert page.title() != "taken"
    assert page.evaluate("document.querySelectorAll('td script, td img, td svg').length") == 0
    assert (is_wider_than_the_window(page), errors) == (False, [])


def test_numbers_beyond_a_double_are_exact(console, watched):
    page, _ = watched()
    page.goto(f"{console.address}#/topics/clicks?position=earliest")

    expect(page.locator("td").filter(has_text=str(2**60)).first).to_be_visible(timeout=MS_MAX)


def test_every_row_is_drawn_and_each_has_its_words(shop, console, watched):
    page, errors = watched()
    page.goto(f"{console.address}#/flows/revenue?key=Lisbon")
    picture = page.locator(".picture")

    expect(picture).to_have_attribute("data-rows", str(shop.topic("orders").to_arrow().num_rows))
    picture.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".card")).to_contain_text("happened")
    page.keyboard.press("t")
    expect(page.get_by_role("region", name="Rows of the picture")).to_contain_text("too late")
    keep_picture(page, "flow-table-light")
    assert (axe_findings(page), errors) == ([], [])


def test_the_picture_is_the_log_the_late_rows_and_the_sink_s_changes_also_over_a_kill(shop, console):
    with urlopen(f"{console.address}api/flows/revenue/picture") as answer:
        found = json.load(answer)
    log = shop.topic("orders").to_arrow(watermark="20 seconds").to_pylist()

    def place(row: dict[str, Any]) -> tuple[int, str]:
        return row["partition"], str(row["offset"])

    late = {
        place(row["record"])
        for row in log
        if row["record"]["watermark"] and row["placed_at"] < row["record"]["watermark"]
    }
    too_late = {place(row) for row in shop.topic("revenue.late").to_arrow().to_pylist()}
    assert {place(row): datetime.fromisoformat(row["event_time"]) for row in found["rows"]} == {
        place(row["record"]): row["placed_at"] for row in log
    }
    assert {place(row) for row in found["rows"] if row["late"] == "too late"} == too_late
    assert {place(row) for row in found["rows"] if row["late"]} == late
    with closing(shop.view("revenue")) as view:
        changes = view.changes_between(0, view.last_position(), 1_000_000).rows.to_pylist()
    panes = [
        (
            row["store"],
            datetime.fromisoformat(time_text(row["window"]["start"])),
            str(row["total"]),
            row["pane"]["timing"],
        )
        for row in changes
        if row["record"]["change"] != "delete"
    ]
    drawn = [(it["key"], datetime.fromisoformat(it["start"]), it["value"], it["timing"]) for it in found["panes"]]
    assert drawn == panes
    (gap,) = found["breaks"]
    assert gap["from"] < gap["to"]
    # Both before and after the kill.
    assert min(it["at"] for it in found["panes"]) < gap["from"] < max(it["at"] for it in found["panes"])


def test_a_row_that_is_appended_comes_by_itself(shop, console, watched):
    page, _ = watched()
    page.goto(f"{console.address}#/topics/mails")
    expect(page.locator("td").filter(has_text="o-9150").first).to_be_visible(timeout=MS_MAX)

    shop.topic("mails").append([{"order_id": "o-7777", "address": "a@example.org", "text": "just now"}])

    expect(page.locator("tr.lit").filter(has_text="o-7777").first).to_be_visible(timeout=MS_MAX)


def test_a_view_is_read_by_pages_and_by_its_key(console, watched):
    page, errors = watched()
    page.goto(f"{console.address}#/views/revenue")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(25)

    page.get_by_role("button", name="Next rows").click()
    expect(rows.first).to_contain_text("Vienna")
    page.get_by_label("store").fill("Lisbon")
    page.keyboard.press("Enter")
    expect(rows.first).to_contain_text("Lisbon")
    assert set(page.locator("tbody tr td:nth-child(2)").all_inner_texts()) == {"Lisbon"}
    assert errors == []


def test_the_overview_goes_back_in_time(console, watched):
    page, errors = watched()
    page.goto(console.address)
    page.get_by_label("Time shown").focus()

    for _ in range(18):
        page.keyboard.press("ArrowLeft")

    expect(page.locator(".then-banner")).to_contain_text("As it was at")
    assert "at=" in page.url
    assert (axe_findings(page), errors) == ([], [])


def test_eight_tabs_are_all_live_and_stay_so(shop, console, browser):
    # A browser opens six connections to a server; a stream for each tab would leave the seventh without a page.
    context = browser.new_context()
    pages = [context.new_page() for _ in range(8)]
    for page in pages:
        page.goto(f"{console.address}#/topics")

    for page in pages:
        expect(page.locator(".live")).to_contain_text("live")
        expect(page.locator("tbody tr").first).to_be_visible(timeout=MS_MAX)
    # The tab that reads the stream is closed: another one goes on.
    pages[0].close()
    shop.create_topic("after_the_first_tab", schema="n INT")
    for page in pages[1:]:
        expect(page.locator("tbody")).to_contain_text("after_the_first_tab")
    context.close()


def test_nothing_moves_for_who_wants_that(browser, console):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(console.address)
    page.locator(".map-picture").wait_for(timeout=MS_MAX)

    assert page.evaluate("document.getAnimations().length") == 0
    assert page.evaluate(
        "Array.from(document.querySelectorAll('.bead')).every(b => getComputedStyle(b).display === 'none')"
    )
    context.close()


def test_numbers_on_the_page_are_those_of_the_command_line(shop, console, watched):
    command = [
        sys.executable,
        "-m",
        "mainstem.workbench.cli.main",
        "view",
        "describe",
        "revenue",
        "--json",
        "--home",
        shop.home,
    ]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]
    page, _ = watched()
    page.goto(f"{console.address}#/views/revenue")

    expect(page.locator(".words")).to_contain_text(f"{rows:,} rows")
