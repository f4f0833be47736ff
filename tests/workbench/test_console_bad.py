"""What can go wrong around a console: a home that cannot be shown, flows that ended badly, topics and views that go, come back
or change while somebody watches, a full disk, a wrong clock. Each is told in three sentences, and no page is blank."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock
from mainstem.log.activity import note_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.cli.main import run
from tests.needs import cannot_run, needs, needs_root
from tests.workbench.console_browser import MS_MAX, WatchedPage, open_browser, watched_page
from tests.workbench.console_process import ConsoleProcess, running_console
from tests.workbench.ran_flows import began, killed

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

SCHEMA = pa.schema([("store", pa.string()), ("total", pa.int64())])
DAY_US = 86_400_000_000
PAGES = ["", "flows", "topics", "views", "queues", "query"]
expect.set_options(timeout=MS_MAX)


# Before there is a page.


def refused(capsys, *words: str) -> list[str]:
    capsys.readouterr()
    assert run(["console", "--port", "0", *words]) == 1
    return capsys.readouterr().err.splitlines()


def test_no_home_a_newer_one_and_a_taken_port_are_told(tmp_path, capsys):
    newer = tmp_path / "newer"
    mainstem.open(newer, upkeep="manual").close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        told = [
            refused(capsys, "--home", str(tmp_path / "nowhere")),
            refused(capsys, "--home", str(tmp_path)),
            refused(capsys, "--home", str(newer), "--port", port),
        ]
    (newer / "mainstem.json").write_text('{"format": 99, "id": "x"}\n')
    told.append(refused(capsys, "--home", str(newer)))
    assert [len(lines) for lines in told] == [3, 3, 3, 3]
    assert "newer Mainstem" in told[3][0]
    assert all(lines[1].startswith("Detail: ") and lines[2].startswith("Hint: ") for lines in told)


# A home in which much is wrong.


@pytest.fixture(scope="module")
def stem(tmp_path_factory) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path_factory.mktemp("bad") / "shop", upkeep="manual") as opened:
        opened.create_topic("orders", schema="order_id STRING, n BIGINT").append([{"order_id": "o-1", "n": 1}])
        failed = began(opened, "broken", sink="view broken")
        error = ["sink view broken stopped at batch 17", "Detail: the column total is INT.", "Hint: Widen the column."]
        FlowStore(opened.home, "broken").end(failed, "failed", error)
        killed(opened, began(opened, "ended", sink="view ended"))
        began(opened, "taken_over", sink="view taken_over")
        began(opened, "taken_over", sink="view taken_over")
        note_activity(
            opened.log, "flow", "taken_over", "fenced", 'flow "taken_over" was fenced', detail="Epoch 1.", hint="None."
        )
        began(opened, "newer", sink="view newer")
        Path(opened.home, "flows", "newer", "flow.json").write_text('{"format": 99}\n')
        yield opened


@pytest.fixture(scope="module")
def console(stem) -> Iterator[ConsoleProcess]:
    with running_console(stem.home) as running:
        yield running
        assert running.end() == ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def watched(browser) -> Iterator[WatchedPage]:
    context = browser.new_context(viewport={"width": 360, "height": 800})
    with watched_page(context) as page:
        yield page
        assert page.errors == []
        assert not page.is_wider_than_the_window
    context.close()


def problem(page: Page) -> Locator:
    """What the page says is wrong, in three sentences."""
    found = page.locator(".problem").first
    expect(found.locator("p")).to_have_count(2)
    return found


def test_how_flows_ended_is_told(console, watched):
    states = {it["flow"]: it.get("state", it.get("error")) for it in console.get("/api/flows")}
    assert (states["broken"], states["ended"], states["taken_over"]) == ("failed", "killed", "running")
    assert "newer Mainstem" in states["newer"]
    page = watched.page
    page.goto(f"{console.url}#/")
    main = page.locator("main")
    for text in ("stopped at batch 17", "died without recording an exit", "was fenced", "newer Mainstem"):
        expect(main).to_contain_text(text)
    for flow, text in {"broken": "Widen the column", "ended": "killed", "taken_over": "running"}.items():
        page.goto(f"{console.url}#/flows/{flow}")
        expect(main).to_contain_text(text)
    page.goto(f"{console.url}#/flows/newer")
    expect(problem(page)).to_contain_text("newer Mainstem")


@pytest.mark.parametrize("address", PAGES)
def test_a_home_with_nothing_in_it_has_pages(console_of_nothing, watched, address):
    watched.page.goto(f"{console_of_nothing.url}#/{address}")
    expect(watched.page.locator("h1")).not_to_be_empty()
    expect(watched.page.locator(".live")).to_contain_text("live")
    assert watched.page.locator(".problem").count() == 0


@pytest.fixture(scope="module")
def console_of_nothing(tmp_path_factory) -> Iterator[ConsoleProcess]:
    home = tmp_path_factory.mktemp("nothing") / "home"
    mainstem.open(home, upkeep="manual").close()
    with running_console(home) as running:
        yield running


@pytest.mark.parametrize(
    "address",
    [
        "?at=yesterday", "?at=2999-01-01T00:00:00Z", "?at=%00", "?at=0001-01-01T00:00:00Z",
        "topics/orders?position=0:99", "topics/orders?position=%00", "topics/orders?filter=%27", "topics/orders?position=1:0",
        "views/nothing?after=x", "topics/" + "x" * 300, "topics/%E2%80%AEabc", "topics/%22%27%3Cb%3E", "flows/a%2Fb", "flows/%00",
        "query?sql=SELECT%20%22", "query?sql=%00", "query?sql=SELECT%201;SELECT%202",
    ],
)  # fmt: skip
def test_what_is_asked_for_wrongly_is_told(console, watched, address):
    watched.page.goto(f"{console.url}#/{address}")
    expect(problem(watched.page)).to_be_visible()
    expect(watched.page.locator("h1").first).not_to_be_empty()


# While somebody watches.


def test_a_topic_that_goes_comes_back_and_has_another_type(stem, console, watched):
    page = watched.page
    stem.create_topic("watched", schema="n BIGINT").append([{"n": n} for n in range(40)])
    page.goto(f"{console.url}#/topics/watched")
    expect(page.locator("tbody tr td").filter(has_text="39").first).to_be_visible()

    stem.delete_topic("watched")
    expect(problem(page)).to_contain_text('topic "watched" does not exist')

    stem.create_topic("watched", schema="n STRING, more DOUBLE").append([{"n": "now a text", "more": 0.5}])
    expect(page.locator("td").filter(has_text="now a text")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)
    expect(page.locator("th").filter(has_text="more")).to_be_visible()


class Totals:
    """A view that a test writes."""

    def __init__(self, stem: Mainstem, name: str) -> None:
        self.view = View(stem.home, name, key=["store"])
        self.run = FlowRun(name, 1)
        self.number = 0

    def apply(self, schema: pa.Schema = SCHEMA, **totals: object) -> None:
        rows = pa.table({"store": list(totals), "total": list(totals.values())}, schema=schema)
        self.view.writer(self.run, schema).apply(rows, Batch(self.number, self.run))
        self.number += 1

    def new_version(self) -> int:
        self.run, self.number = FlowRun(self.view.name, 2, self.view.new_version()), 0
        return self.run.version


def test_a_view_whose_version_is_switched_that_goes_and_comes_back_with_another_type(stem, console, watched):
    page, totals = watched.page, Totals(stem, "flipped")
    totals.apply(Berlin=1, Paris=2)
    page.goto(f"{console.url}#/views/flipped")
    expect(page.locator("td").filter(has_text="Paris")).to_be_visible()

    version = totals.new_version()
    totals.apply(Berlin=7777, Rome=8)
    totals.view.use(version)
    expect(page.locator("td").filter(has_text="7777")).to_be_visible()
    expect(page.locator("td").filter(has_text="Paris")).to_have_count(0)

    totals.view.drop()
    expect(problem(page)).to_contain_text("flipped")
    again = Totals(stem, "flipped")
    again.apply(pa.schema([("store", pa.string()), ("total", pa.string())]), Vienna="three")
    expect(page.locator("td").filter(has_text="three")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


def test_a_position_that_fell_off_is_told(stem, console, watched):
    page, now = watched.page, datetime.now(UTC)
    clock = ManualClock(now - timedelta(hours=2))
    with Mainstem(EmbeddedLog(stem.home, upkeep="manual", clock=clock), home=stem.home) as earlier:
        topic = earlier.create_topic("short", schema="n BIGINT", keep="1 hour")
        topic.append([{"n": n} for n in range(60)])
        topic.seal()
        page.goto(f"{console.url}#/topics/short?position=0:0")
        expect(page.locator("tbody tr td").filter(has_text="24").first).to_be_visible()
        clock.advance(timedelta(hours=2))
        topic.append([{"n": 99}])
        topic.drop_expired()
    found = console.ask("/api/topics/short/records?cursor=0:25")
    assert found.status == 410
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))
    page.get_by_role("button", name="More").click()
    expect(problem(page)).to_contain_text("no longer kept")


# The wrong clock, and no room.

AN_HOUR_AHEAD = """
const Real = Date;
globalThis.Date = class extends Real {
  constructor(...given) { given.length ? super(...given) : super(Real.now() + 3600000) }
  static now() { return Real.now() + 3600000 }
};
"""


@pytest.mark.parametrize("direction", ["ahead", "behind"])
def test_a_browser_whose_clock_is_off_by_an_hour_shows_the_server_s_time(stem, browser, direction):
    script = AN_HOUR_AHEAD if direction == "ahead" else AN_HOUR_AHEAD.replace("+ 3600000", "- 3600000")
    context = browser.new_context()
    context.add_init_script(script)
    stem.topic("orders").append([{"order_id": "now", "n": 2}])
    with running_console(stem.home) as console, watched_page(context) as watched:
        page = watched.page
        page.goto(f"{console.url}#/topics/orders")
        expect(page.locator(".words")).to_contain_text("The last one was appended")
        assert "h ago" not in page.locator(".words").inner_text()
        shown = page.locator(".live .when")
        expect(shown).to_be_visible()
        assert seconds_apart(shown.inner_text().split()[0]) < 600
        console.kill()
        expect(page.locator(".live")).to_contain_text("not reached since")
        assert seconds_apart(page.locator(".live .when").inner_text().split()[-1]) < 600
        assert watched.errors == []
    context.close()


def seconds_apart(clock: str) -> float:
    """Between a time of day and now, over midnight too."""
    now = datetime.now(UTC)
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    apart = abs((now.replace(hour=hours, minute=minutes, second=seconds) - now).total_seconds())
    return min(apart, 86_400 - apart)


def fill(path: Path) -> None:
    """Until the disk is full."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@needs("mount", command="mount")
@needs_root()
def test_a_full_disk_is_told_and_everything_can_still_be_read(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        cannot_run("a mounted tmpfs", mounted.stderr.strip())
    try:
        home = str(place / "shop")
        with mainstem.open(home, upkeep="manual") as stem:
            mails = stem.create_topic("mails", schema="n BIGINT")
            mails.append([{"n": n} for n in range(300)])
            queue = mails.queue("send")
            for message in queue.take(300):
                queue.reject(message.receipt, "no such address")
        token = AccessTokens(home).create("act", lasts_us=DAY_US)
        with running_console(home, "--actions", "drop") as console:
            # As in a console that was open before; the first look at a topic creates the ledger of transactions.
            paths = ("home", "topics/mails", "topics/mails/records", "queues/mails/send")
            assert [console.ask(f"/api/{path}").status for path in paths] == [200] * len(paths)
            fill(place / "filler")
            assert [console.ask(f"/api/{path}").status for path in paths] == [200] * len(paths)
            body = {"topic": "mails", "queue": "send", "positions": [f"0:{n}" for n in range(300)], "confirm": True}
            headers = {"Authorization": f"Bearer {token}"}
            found = console.ask("/api/actions/drop", method="POST", body=body, headers=headers)
            assert found.status == 503
            assert all(found.json["error"][part] for part in ("what", "detail", "hint"))
            assert "space" in found.json["error"]["what"] + found.json["error"]["detail"]
            os.remove(place / "filler")
            assert console.ask("/api/actions/drop", method="POST", body=body, headers=headers).status == 200
    finally:
        subprocess.run(["umount", place], check=True)
