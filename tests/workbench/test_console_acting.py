"""Acting through the pages of the console, in Chromium and by keyboard alone: each action says what it will do, is done once it is
confirmed, and stands in the activity with who did it. Without permission there is no button, and the page says what it takes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstem.log.activity import read_activity
from mainstem.processes import identity_of
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process
from mainstem.stem import Mainstem
from mainstem.workbench.access_tokens import AccessTokens
from tests.needs import needs
from tests.workbench.console_browser import (
    LOOKS,
    REPOSITORY,
    axe_findings,
    is_wider_than_the_window,
    keep_picture,
    open_browser,
    watch,
)
from tests.workbench.console_home import make_shop
from tests.workbench.console_process import ConsoleProcess, running_console
from tests.workbench.ran_flows import began

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

DAY_US = 86_400_000_000
QUEUE = "#/queues/mails/send"
# Ends when it is asked to stop, as a run does.
STOPPABLE = """
import sys
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.waiting import wait_until
store = FlowStore(sys.argv[1], "visits")
run = store.begin(1, sink="view visits", sources=["clicks"], plan={})
print("begun", flush=True)
wait_until(lambda: store.asked_to_stop(run))
store.end(run, "stopped")
"""
WALK = {
    "title": "Streaming in two minutes",
    "steps": [
        {"title": "Rows come in.", "text": "Look at the orders.", "link": "#/topics/orders",
         "sql": "SELECT count(*) > 0 AS done, count(*) || ' orders' AS said FROM orders"},
        {"title": "Totals are corrected.", "text": "Look at the view.", "link": "#/views/revenue",
         "sql": "SELECT count(*) > 0 AS done FROM revenue WHERE pane.timing = 'late'"},
        {"title": "Not yet.", "text": "There is no such topic.", "link": "#/topics", "sql": "SELECT true AS done FROM nothing"},
        {"title": "Killed.", "text": "It is killed.", "link": "#/", "action": {"name": "kill", "label": "Kill it", "body": {"flow": "visits"}},
         "sql": "SELECT true AS done, text AS said FROM \"mainstem.activity\" WHERE what = 'acted' AND text LIKE 'kill%'"},
        {"title": "Why?", "text": "Choose a row.", "link": "#/views/revenue", "address": "why"},
        {"title": "Back in time.", "text": "Drag the slider.", "link": "#/", "address": "at"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("acting") / "shop", datetime.now(UTC)) as stem:
        yield stem


@pytest.fixture(scope="module")
def console(shop, tmp_path_factory) -> Iterator[ConsoleProcess]:
    walk = tmp_path_factory.mktemp("walk") / "walk.json"
    walk.write_text(json.dumps(WALK))
    with running_console(shop.home, "--actions", "stop,restore,drop,kill", "--walk", str(walk)) as running:
        yield running


@pytest.fixture(scope="module")
def token(shop) -> str:
    return AccessTokens(shop.home).create("act", lasts_us=DAY_US)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        yield context.new_page()


@pytest.fixture
def process(shop) -> Iterator[subprocess.Popen[str]]:
    """A process that the flow `visits` names as its own."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        begun = began(shop, "visits", sink="view visits")

        def with_process(known):
            number = str(begun.version)
            return {
                **known,
                "runs": {**known["runs"], number: {**known["runs"][number], "process": identity_of(running.pid)}},
            }

        FlowStore(shop.home, "visits").change(with_process)
        yield running
        running.kill()


def acted(shop: Mainstem, name: str) -> list[tuple[str, str]]:
    """What was done to it through the console, and by whom."""
    rows = read_activity(shop.log, 0, [name])
    return [(row["text"], row["who"]) for row in rows if row["what"] == "acted"]


def test_a_token_in_the_address_becomes_a_cookie_and_is_gone_from_the_address(console, page, token):
    errors = watch(page)
    page.goto(f"{console.url}#/flows/revenue?token={token}")

    expect(page.locator(".how").filter(has_text="You act as")).to_contain_text(f"token {token.split('_')[1]}")
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""
    [cookie] = page.context.cookies()
    assert (cookie["value"], cookie["httpOnly"], cookie["sameSite"]) == (token, True, "Strict")
    page.get_by_role("button", name="Log out").press("Enter")
    expect(page.get_by_text("“Stop” needs a token for acting")).to_be_visible()
    assert errors == []


def test_who_may_only_read_logs_in_where_the_button_would_be(console, page, token):
    page.goto(console.url + QUEUE)
    expect(page.get_by_role("button", name="Restore")).to_have_count(0)

    page.get_by_text("“Restore” needs a token for acting").press("Enter")
    page.get_by_label("Token").fill("mst_wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".problem")).to_contain_text("this token is not valid")
    keep_picture(page, "login-refused")
    assert axe_findings(page) == []
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")

    expect(page.get_by_role("button", name="Restore").first).to_be_visible()


def test_rejected_messages_are_restored_and_dropped_by_keyboard(shop, console, page, token):
    queue = shop.topic("mails").open_queue("send")
    first, second, *others = [f"{partition}:{offset}" for partition, offset in queue.rejected_positions()]
    page.goto(f"{console.url}{QUEUE}?token={token}")
    errors = watch(page)

    page.get_by_role("row").filter(has_text=first).get_by_role("button", name="Restore").press("Enter")
    expect(page.locator(".confirm")).to_contain_text("1 message of queue send of mails will be delivered again")
    expect(page.locator(".confirm")).to_contain_text(f"mainstem queue restore mails send {first}")
    # "No" does nothing, and leaves the keyboard where it was.
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row").filter(has_text=first).get_by_role("button", name="Restore")).to_be_focused()
    assert len(queue.rejected_positions()) == 2 + len(others)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Do it")).to_be_focused()
    keep_picture(page, "restore-asks")
    assert axe_findings(page) == []
    page.keyboard.press("Enter")
    expect(page.locator(".how[role=status]")).to_contain_text("restored 1 message of queue send of mails")
    page.get_by_role("row").filter(has_text=second).get_by_role("button", name="Drop").press("Enter")
    expect(page.get_by_role("button", name="Do it")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.locator(".how[role=status]")).to_contain_text("dropped 1 message of queue send of mails")
    expect(page.get_by_role("button", name="Drop")).to_have_count(len(others))
    assert [f"{partition}:{offset}" for partition, offset in queue.rejected_positions()] == others
    who = f"token {token.split('_')[1]}"
    assert acted(shop, "mails.send") == [
        ("restore: restored 1 message of queue send of mails", who),
        ("drop: dropped 1 message of queue send of mails", who),
    ]
    page.goto(f"{console.url}#/")
    expect(page.locator(".feed li").filter(has_text="dropped 1 message")).to_contain_text(f"by {who}")
    assert errors == []


def test_a_flow_is_stopped_from_its_page(shop, console, page, token):
    command = [sys.executable, "-c", STOPPABLE, shop.home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        page.goto(f"{console.url}#/flows/visits?token={token}")
        page.get_by_role("button", name="Stop").press("Enter")
        expect(page.locator(".confirm")).to_contain_text("Flow visits ends after its batch")
        expect(page.locator(".confirm")).to_contain_text("mainstem flow stop visits")
        assert running.poll() is None
        expect(page.get_by_role("button", name="Do it")).to_be_focused()
        page.keyboard.press("Enter")

        expect(page.locator("h1")).to_contain_text("stopped")
        assert running.wait() == 0
    assert acted(shop, "visits")[-1][0] == "stop: stopped flow visits before its first batch"


def test_the_steps_tick_off_by_what_happened_and_kill_is_a_button(shop, console, page, token, process):
    errors = watch(page)
    page.goto(f"{console.url}#/?token={token}")
    steps = page.locator(".steps li")
    expect(steps).to_have_count(6)
    expect(page.locator(".steps li.ok")).to_have_count(2)
    expect(steps.nth(0)).to_contain_text("orders")
    expect(steps.nth(2)).to_have_attribute("aria-current", "step")

    page.get_by_role("button", name="Kill it").press("Enter")
    expect(page.locator(".confirm")).to_contain_text(f"Process {process.pid} is killed (SIGKILL)")
    for look in LOOKS:
        page.set_viewport_size({"width": LOOKS[look].width, "height": 900})
        page.emulate_media(color_scheme=LOOKS[look].scheme)
        keep_picture(page, f"steps-{look}")
        assert (look, axe_findings(page), is_wider_than_the_window(page)) == (look, [], False)
    assert process.poll() is None
    page.keyboard.press("Enter")
    expect(steps.nth(3)).to_have_class("ok")
    expect(steps.nth(3)).to_contain_text(f"killed process {process.pid}")
    assert process.wait() == -9
    assert find_process(FlowStore(shop.home, "visits").of_version(1)) is None

    # Each step is a link, by keyboard as well; where it leads, a line says how far it is.
    page.get_by_role("link", name="Why?").press("Enter")
    page.get_by_role("link", name="Why is this number so?").first.press("Enter")
    expect(page.locator(".walk-line")).to_contain_text("4 of 6")
    expect(page.locator(".walk-line")).to_contain_text("next: Not yet.")
    assert axe_findings(page) == []
    page.locator(".walk-line a").first.press("Enter")
    expect(steps.nth(4)).to_have_class("ok")
    page.get_by_label("Time shown").focus()
    page.keyboard.press("ArrowLeft")
    expect(steps.nth(5)).to_have_class("ok")
    # What was opened is remembered, also by another tab.
    other = page.context.new_page()
    other.goto(console.url)
    expect(other.locator(".steps li.ok")).to_have_count(5)
    assert errors == []


def test_without_actions_there_is_no_button_and_the_page_says_how(shop, page, token):
    with running_console(shop.home) as console:
        for address, words in (
            ("#/flows/revenue", ["“Stop” is not permitted here", "--actions stop", "mainstem flow stop revenue"]),
            (QUEUE, ["“Restore” is not permitted here", "--actions restore", "mainstem queue restore mails send"]),
        ):
            page.goto(f"{console.url}{address}?token={token}")
            for text in words:
                expect(page.locator("main")).to_contain_text(text)
            for name in ("Stop", "Kill", "Restore", "Drop"):
                expect(page.get_by_role("button", name=name)).to_have_count(0)
            assert axe_findings(page) == []
        expect(page.locator(".steps, .walk-line")).to_have_count(0)
