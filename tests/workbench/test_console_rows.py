"""Rows on the pages of the console: a key looked up, its history, versions and their difference, a row appended, a query drawn, a
picture played again."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import expect

from mainstem.batch import Batch, FlowRun
from mainstem.log.activity import read_activity
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.access_tokens import AccessTokens
from tests.needs import needs
from tests.workbench.console_browser import axe_findings, is_wider_than_the_window, keep_picture
from tests.workbench.console_home import make_shop, revenue_batch
from tests.workbench.test_console_pages import SQL, Console, browser, contexts, watched

__all__ = ["browser", "contexts", "watched"]

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("rows") / "shop", datetime.now(UTC)) as stem:
        revenue_batch(stem, stem.log.clock, 57)
        _second_version(stem)
        stem.topic("orders").alter(schema=f"{stem.topic('orders').ddl}, coupon STRING")
        yield stem


def _second_version(stem: Mainstem) -> None:
    """Deliveries again, without Vienna, with another store for the first order, and with one more."""
    with closing(View(stem.home, "deliveries", key=["order_id"], clock=stem.log.clock)) as view:
        rows = view.to_arrow().to_pylist()
        kept = [row for row in rows if row["store"] != "Vienna"]
        number = view.new_version()
        run = FlowRun("deliveries", epoch=1, version=number)
        changed = [{**kept[0], "store": "Osaka"}, *kept[1:], {"order_id": "o-new", "store": "Osaka"}]
        view.writer(run, view.schema).apply(pa.Table.from_pylist(changed, view.schema), Batch(0, run))


@pytest.fixture(scope="module")
def console(shop) -> Iterator[Console]:
    found = Console(Path(shop.home), options=["--actions", "append"])
    yield found
    found.kill()


def test_a_key_is_looked_up_and_has_its_history(shop, console, watched):
    page, errors = watched()
    page.goto(f"{console.address}#/views/revenue")
    page.get_by_label("store").fill("Lisbon")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr").first).to_contain_text("Lisbon")

    page.locator("tbody tr").first.get_by_role("button", name="History of Lisbon").click()

    history = page.get_by_role("region", name="History of this key")
    expect(history.locator("tbody tr").first).to_contain_text("changed")
    expect(history.locator("tbody tr").last).to_contain_text("inserted")
    (shown,) = json.loads(page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('key')"))[1:]
    window = {side: datetime.fromisoformat(at) for side, at in json.loads(shown).items()}
    with closing(shop.view("revenue")) as view:
        kept = view.history(("Lisbon", window))
    assert history.locator("tbody tr").count() == len(kept) > 2
    assert f"{kept[0].before['total']:g}" in history.locator("tbody tr").first.inner_text()
    keep_picture(page, "view-key-light")
    assert (axe_findings(page), errors) == ([], [])


def test_two_versions_differ_by_their_rows(shop, console, watched):
    page, errors = watched()
    page.goto(f"{console.address}#/views/deliveries")
    page.get_by_role("button", name="Show the difference").click()

    with closing(shop.view("deliveries")) as view:
        found = view.difference(1, 2)
    expect(page.locator(".words").last).to_contain_text(f"{found.removed} removed")
    table = page.get_by_role("region", name="Difference")
    expect(table.locator("tbody tr").first).to_contain_text("Osaka")
    expect(table.locator("tbody tr")).to_have_count(1 + 1 + 25)
    keep_picture(page, "view-difference-light")
    page.get_by_role("button", name="Next rows").last.click()
    expect(table.locator("tbody tr")).to_have_count(min(25, found.removed - 25))
    assert (found.changed, found.added) == (1, 1)
    assert (axe_findings(page), errors) == ([], [])


def test_a_row_is_appended_from_the_page(shop, console, contexts):
    token = AccessTokens(shop.home).create("act", lasts_us=DAY_US)
    page = contexts["light"].new_page()
    page.goto(console.address)
    page.evaluate(
        "token => fetch('api/login', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({token})})",
        token,
    )
    page.goto(f"{console.address}#/topics/mails")
    page.reload()
    page.get_by_role("button", name="Append a row").click()
    page.get_by_label("Row as JSON").fill('{"order_id": "o-1", "address": "x@example.org", "text": "by hand"}')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator(".confirm")).to_contain_text("mainstem topic append mails -")
    assert axe_findings(page) == []
    keep_picture(page, "topic-append-light")
    page.get_by_role("button", name="Do it").click()

    expect(page.locator("td").filter(has_text="by hand").first).to_be_visible()
    (noted,) = [row for row in read_activity(shop.log, 0, ["mails"]) if row["what"] == "acted"]
    assert noted["text"].startswith("append: appended a row to topic mails, partition 0")
    assert noted["who"].startswith("token ")
    page.close()


def test_the_schema_of_a_topic_has_a_history(console, watched):
    page, _ = watched()
    page.goto(f"{console.address}#/topics/orders")

    table = page.get_by_role("region", name="Schema history")
    expect(table.locator("tbody tr").first).to_contain_text("added coupon STRING")
    expect(table.locator("tbody tr").last).to_contain_text("the beginning")


@pytest.mark.parametrize("look", ["light", "dark", "360"])
def test_a_query_is_drawn_and_its_address_draws_it_again(console, watched, look):
    page, errors = watched(look)
    page.goto(f"{console.address}#/query?sql={SQL}")
    page.get_by_role("radio", name="Plot").click()
    page.get_by_role("radio", name="bars").click()
    expect(page.locator(".wide-plot canvas")).to_be_visible()
    assert page.locator(".wide-plot").get_attribute("data-drawn") == "bars store orders"
    keep_picture(page, f"query-plot-{look}")
    assert (axe_findings(page), is_wider_than_the_window(page), errors) == ([], False, [])
    address = page.url

    page.goto("about:blank")
    page.goto(address)

    expect(page.locator(".wide-plot canvas")).to_be_visible()
    assert page.locator(".wide-plot").get_attribute("data-drawn") == "bars store orders"


def test_a_picture_is_played_again_from_any_moment(console, watched):
    page, errors = watched()
    page.goto(f"{console.address}#/flows/revenue?speed=300")
    picture = page.locator(".picture")
    picture.wait_for()
    whole = int(picture.get_attribute("data-rows") or 0)

    page.get_by_label("Moment of the replay").focus()
    page.keyboard.press("Home")
    expect(picture).not_to_have_attribute("data-rows", str(whole))
    page.get_by_role("button", name="Go on").click()

    # 300 times as fast, seven minutes are over in a moment; then the picture is whole again.
    expect(picture).to_have_attribute("data-rows", str(whole))
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    assert errors == []


def test_the_part_of_a_picture_is_in_the_address(console, watched):
    page, _ = watched()
    page.goto(f"{console.address}#/flows/revenue")
    page.locator(".picture").focus()
    page.keyboard.press("+")

    expect(page.get_by_role("button", name="Whole picture")).to_be_visible()
    assert quote("zoom=") in page.url or "zoom=" in page.url
