"""`make demo`, walked through in Chromium as a person would: each step ticks off by what happened, the run is killed with the button,
and in the end everything is counted once. The pictures of docs/start.md are made here, in build/screenshots (`make pictures`)."""

import base64
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from examples import demo
from examples.demo_walk import WALK
from tests.needs import needs
from tests.workbench.console_browser import REPOSITORY, SCREENSHOTS, axe_findings, open_browser, watch

# Spark is started twice, with six flows, on a machine that does other things too.
SECONDS_MAX = 900
MS_MAX = SECONDS_MAX * 1000
PICTURE = {"width": 1240, "height": 800}


def keep(page: Page, name: str) -> None:
    """A small picture of what the window shows."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    (SCREENSHOTS / f"demo-{name}.webp").write_bytes(base64.b64decode(shot["data"]))


def is_done(step: Locator) -> None:
    expect(step).to_have_class("ok", timeout=MS_MAX)


def walk_through(page: Page, address: str) -> str:
    """Every step of the page, by keyboard; returns what it says of the kill."""
    page.goto(address)
    steps = page.locator(".steps li")
    expect(steps).to_have_count(len(WALK["steps"]))
    for number in range(3):
        is_done(steps.nth(number))
    page.emulate_media(reduced_motion="no-preference")
    expect(page.locator(".map-picture .bead").first).to_be_visible()
    keep(page, "overview")
    page.emulate_media(reduced_motion="reduce")
    assert axe_findings(page) == []

    to_overview = page.get_by_role("navigation", name=WALK["title"]).get_by_role("link").first
    steps.nth(1).get_by_role("link").press("Enter")
    expect(page.locator(".picture")).not_to_have_attribute("data-rows", "0")
    keep(page, "flow")
    assert axe_findings(page) == []
    to_overview.press("Enter")

    page.get_by_role("button", name="Kill it").press("Enter")
    expect(page.get_by_role("button", name="Do it")).to_be_focused()
    expect(page.locator(".confirm")).to_contain_text("is killed (SIGKILL), with every flow that it runs")
    page.keyboard.press("Enter")
    is_done(steps.nth(3))
    back = steps.nth(3).locator(".said").inner_text()
    page.locator(".feed .more").press("Enter")
    expect(page.locator(".feed li").filter(has_text="kill: killed process")).to_contain_text(", by token")
    steps.nth(0).get_by_role("link").press("Enter")
    expect(page.locator(".picture")).not_to_have_attribute("data-rows", "0")
    keep(page, "killed")

    to_overview.press("Enter")
    steps.nth(4).get_by_role("link").press("Enter")
    page.get_by_role("region", name="Rows of revenue").get_by_role("link", name="Why is this").first.press("Enter")
    expect(page.get_by_role("region", name="Why is this number so?").locator(".words .tag")).to_have_text("exact")
    assert axe_findings(page) == []
    keep(page, "why")
    to_overview.press("Enter")
    is_done(steps.nth(4))
    page.get_by_label("Time shown").focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    is_done(steps.nth(5))
    expect(page.locator(".then-banner")).to_contain_text("As it was at")
    keep(page, "then")
    return back


# A page of each kind, and what it shows when it is there.
OTHERS = {
    "#/flows/delivered": ".picture",
    "#/topics/orders": "td",
    "#/views/revenue": "td",
    "#/queues/mails/sending": "td",
    "#/query?sql=SELECT%20count(*)%20AS%20orders%20FROM%20orders": "td",
}


def look_around(page: Page, address: str) -> None:
    """Every kind of page is there; the picture has the late rows that corrected a result, and those of a window that was still open."""
    home = address.partition("#")[0]
    for other, shown in OTHERS.items():
        page.goto(home + other)
        expect(page.locator(shown).first).to_be_visible()
        expect(page.locator(".problem")).to_have_count(0)
    points = page.request.get(f"{home}api/history?of=flow:revenue").json()["points"]
    drawn = page.request.get(f"{home}api/flows/revenue/picture").json()["rows"]
    assert sum(row["late"] == "late" for row in drawn) >= sum(point["late"] for point in points) > 0


def run_demo(home: Path, *options: str) -> tuple[str, str]:
    """The demo, until Ctrl-C once every step is done: what it printed, and what the page said of the kill."""
    command = [sys.executable, "-m", "examples.demo", "--seconds", "0", "--port", "0", "--home", str(home), *options]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as shown:
        assert shown.stdout is not None
        try:
            said = ""
            while not (found := re.search(r"^Look at (\S+)$", said, re.MULTILINE)):
                line = shown.stdout.readline()
                assert line, said
                said += line
            with open_browser() as browser:
                page = browser.new_page(viewport=PICTURE, reduced_motion="reduce")
                errors = watch(page)
                back = walk_through(page, found[1])
                look_around(page, found[1])
            shown.send_signal(signal.SIGINT)
            said += shown.communicate(timeout=SECONDS_MAX)[0]
        finally:
            shown.kill()
    assert (shown.returncode, errors) == (0, []), said
    return said, back


def check_said(said: str, back: str) -> None:
    """Everything is equal, and the page and the terminal tell of the same kill."""
    assert re.findall(r"^  (\w+) +[\d,]+ rows  (\w+)$", said, re.MULTILINE) == [(name, "equal") for name in demo.MADE]
    assert "Every row was counted once, through a kill and late rows." in said
    assert re.fullmatch(r"killed in batch \d+, back after \d+\.\d s", back)


@pytest.mark.starts_servers
@pytest.mark.timeout(2 * SECONDS_MAX)
@needs("chromium-headless-shell", command="chromium-headless-shell")
def test_the_demo_shows_each_step_survives_the_kill_and_what_it_says_to_try_next_works(tmp_path):
    said, back = run_demo(tmp_path / "shop")

    check_said(said, back)
    tried = re.findall(r"^  (\S*mainstem .*|export .*)$", said, re.MULTILINE)
    assert [line.partition("mainstem ")[2].split()[0] for line in tried[1:]] == ["view", "view", "flow", "queue"]
    next_ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(tried)],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert next_ran.returncode == 0, f"{tried}\n{next_ran.stdout}{next_ran.stderr}"


@pytest.mark.long
@pytest.mark.starts_servers
@pytest.mark.timeout(2 * SECONDS_MAX)
@needs("chromium-headless-shell", command="chromium-headless-shell")
def test_the_demo_on_kafka_and_a_cluster_shows_the_same(tmp_path):
    said, back = run_demo(tmp_path / "shop", "--kafka")

    check_said(said, back)
    assert "Kafka listens on 127.0.0.1:" in said
    assert "The master of the Spark cluster listens on spark://127.0.0.1:" in said


def test_the_demo_empties_no_folder_that_it_did_not_make(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    command = [sys.executable, "-m", "examples.demo", "--home", str(tmp_path)]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=SECONDS_MAX)

    assert (ran.returncode, (tmp_path / "thesis.txt").exists()) == (1, True)
    assert "is not a home that the demo made" in ran.stderr
