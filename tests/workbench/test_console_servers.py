"""The console over a home whose topics are on Kafka and whose views are in PostgreSQL: every answer and every page, and what
they say while the broker or the database is away. Real servers, really killed."""

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

import mainstem
from mainstem.batch import Batch
from mainstem.log.topic import Topic
from tests.kafka_broker import KafkaBroker
from tests.needs import needs
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD, PostgresServer
from tests.waiting import wait_until
from tests.workbench.console_browser import MS_MAX, WatchedPage, open_browser, watched_page
from tests.workbench.console_process import Answer, ConsoleProcess, EventReader, running_console
from tests.workbench.ran_flows import began, did_batch

pytestmark = pytest.mark.starts_servers

SCHEMA = pa.schema([("store", pa.string()), ("total", pa.int64())])
MINUTE = timedelta(minutes=1)
ROUTES = [
    "home", "flows", "flows/revenue", "flows/revenue/picture", "topics", "topics/orders", "topics/orders/records",
    f"topics/orders/records?position=earliest&filter={quote('n > 290')}", "views", "views/revenue", "views/revenue/rows", "queues",
    "queues/orders/mails", "history?of=flow:revenue", "history?of=topic:orders", "search?q=o",
]  # fmt: skip
# Those that read no view, and those that read nothing else.
OF_TOPICS = ["topics", "topics/orders", "topics/orders/records", "queues", "queues/orders/mails"]
OF_VIEWS = ["views", "views/revenue", "views/revenue/rows"]
PAGES = {
    "": ".map-picture .node",
    "flows": "text=revenue",
    "flows/revenue": ".picture canvas",
    "topics": "text=orders",
    "topics/orders": "text=Readers",
    "views": "text=revenue",
    "views/revenue": "td >> text=Berlin",
    "queues": "text=orders / mails",
    "queues/orders/mails": "text=waiting",
    "query?sql=SELECT%20sum(total)%20AS%20sum%20FROM%20revenue": "td >> text=3",
}


class Shop(NamedTuple):
    """A home elsewhere, and what writes to it."""

    home: str
    orders: Topic
    console: ConsoleProcess


@pytest.fixture(scope="module")
def servers(kafka_broker: KafkaBroker, postgres: PostgresServer) -> tuple[KafkaBroker, PostgresServer]:
    return kafka_broker, postgres


@pytest.fixture(scope="module")
def shop(servers, tmp_path_factory) -> Iterator[Shop]:
    broker, postgres = servers
    home: Path = tmp_path_factory.mktemp("elsewhere") / "shop"
    home.mkdir()
    (home / "kafka.toml").write_text(f'brokers = ["{broker.address}"]\nprefix = "console."\n')
    with (
        pytest.MonkeyPatch.context() as patch,
        mainstem.open(home, views=postgres.new_address(), upkeep="manual") as stem,
    ):
        patch.setenv("PGPASSWORD", PASSWORD)
        schema = "order_id STRING, n BIGINT, at TIMESTAMP"
        orders = stem.create_topic("orders", schema=schema, key="order_id", partitions=2, event_time="at")
        now = datetime.now(UTC)
        orders.append([{"order_id": f"o-{n}", "n": n, "at": now - 5 * MINUTE * (n == 290)} for n in range(300)])
        orders.queue("mails")
        run = began(stem, "revenue", sink="view revenue")
        writer = mainstem.View.writer(stem.view("revenue", key="store"), run, SCHEMA)
        writer.apply(totals(Berlin=1, Paris=2), Batch(0, run))
        # Before the last orders were read: one of these is below the watermark that was reached.
        did_batch(
            stem, run, 0, {"orders": {0: 100, 1: 100}}, rows_in=200, rows_out=2, at=now - MINUTE, watermark=now - MINUTE
        )
        with running_console(home) as console:
            yield Shop(str(home), orders, console)


def totals(**rows: int) -> pa.Table:
    return pa.table({"store": list(rows), "total": list(rows.values())}, schema=SCHEMA)


def in_three_sentences(found: Answer) -> bool:
    return found.status == 503 and all(found.json["error"][part] for part in ("what", "detail", "hint"))


@pytest.fixture(scope="module")
def page(shop) -> Iterator[WatchedPage]:
    with open_browser() as browser, watched_page(browser.new_context()) as opened:
        yield opened


@pytest.mark.parametrize("route", ROUTES)
def test_every_question_is_answered(shop, route):
    found = shop.console.ask(f"/api/{route}")
    assert found.status == 200, found.body
    assert PASSWORD.encode() not in found.body
    assert QUOTED_PASSWORD.encode() not in found.body


def test_a_picture_on_kafka_has_the_watermark_that_the_flow_reported(shop):
    found = shop.console.get("/api/flows/revenue/picture")
    late = [row for row in found["rows"] if row["late"]]
    assert len(found["rows"]) >= 300
    assert len(late) == 1
    assert late[0]["watermark"] > late[0]["event_time"]


def test_a_query_over_both(shop):
    sql = "SELECT (SELECT max(n) FROM orders) AS most, sum(total) AS total FROM revenue"
    found = shop.console.ask("/api/query", method="POST", body={"sql": sql}).json
    assert found["rows"] == [{"most": "299", "total": "3"}]


@needs("chromium-headless-shell", command="chromium-headless-shell")
@pytest.mark.parametrize("address", PAGES)
def test_every_page_opens(shop, page, address):
    page.page.goto(f"{shop.console.url}#/{address}")
    page.page.locator(PAGES[address]).locator("visible=true").first.wait_for()
    expect(page.page.locator(".live")).to_contain_text("live", timeout=MS_MAX)
    assert page.page.locator(".problem").count() == 0
    assert page.errors == []


class Live:
    """A stream over all three subjects, in a shop whose numbers grow."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.stream: EventReader = shop.console.stream("home", "topic:orders", "view:revenue")
        self.begun = {self.stream.next("home", "snapshot").data["subject"] for _ in range(3)}

    def heard(self, kind: str, subject: str) -> dict[str, object]:
        while True:
            event = self.stream.next(kind)
            if event.data["subject"] == subject:
                found: dict[str, object] = event.data
                return found


@pytest.fixture
def live(shop) -> Iterator[Live]:
    opened = Live(shop)
    yield opened
    opened.stream.cut()


@needs("chromium-headless-shell", command="chromium-headless-shell")
def test_a_database_that_goes_and_comes_back(servers, shop, live, page):
    postgres, shown = servers[1], page.page
    shown.goto(f"{shop.console.url}#/")
    expect(shown.locator(".live")).to_contain_text("live", timeout=MS_MAX)
    postgres.stop(signal.SIGKILL)
    try:
        assert "cannot be reached" in live.heard("trouble", "view:revenue")["error"]["what"]
        assert all(in_three_sentences(shop.console.ask(f"/api/{route}")) for route in OF_VIEWS)
        assert [shop.console.ask(f"/api/{route}").status for route in OF_TOPICS] == [200] * len(OF_TOPICS)
        wait_until(lambda: not shop.console.get("/api/home")["well"]["ok"])
        states = {node["id"]: node["state"] for node in shop.console.get("/api/home")["nodes"]}
        assert (states["topic:orders"], states["view:revenue"]) == ("kept", "unreadable")
        # The overview says so; the page of the view has three sentences; the topic's page is as before.
        expect(shown.locator("main")).to_contain_text("cannot be reached", timeout=MS_MAX)
        shown.goto(f"{shop.console.url}#/views/revenue")
        assert_told(shown, "cannot be reached")
        shown.goto(f"{shop.console.url}#/topics/orders")
        expect(shown.locator("main")).to_contain_text("Readers", timeout=MS_MAX)
    finally:
        postgres.start()
    live.heard("well", "view:revenue")
    shown.goto(f"{shop.console.url}#/views/revenue")
    expect(shown.locator("td", has_text="Berlin")).to_be_visible(timeout=MS_MAX)
    assert page.errors == []


def assert_told(shown: Page, what: str) -> None:
    problem = shown.locator(".problem").first
    expect(problem).to_contain_text(what, timeout=MS_MAX)
    assert problem.locator("p").count() == 2


@needs("chromium-headless-shell", command="chromium-headless-shell")
def test_a_broker_that_goes_and_comes_back(servers, shop, live, page):
    broker, shown = servers[0], page.page
    shown.goto(f"{shop.console.url}#/")
    expect(shown.locator(".live")).to_contain_text("live", timeout=MS_MAX)
    broker.kill()
    try:
        assert "no Kafka broker answers" in live.heard("trouble", "home")["error"]["what"]
        found = [shop.console.ask(f"/api/{route}") for route in ROUTES]
        assert all(map(in_three_sentences, found))
        assert {answer.json["error"]["kind"] for answer in found} == {"BrokerUnavailable"}
        expect(shown.locator(".live")).to_contain_text("not reached since", timeout=MS_MAX)
        expect(shown.locator(".banner")).to_contain_text("No Kafka broker answers", timeout=MS_MAX)
        # The numbers stay, greyed.
        expect(shown.locator(".stale .facts")).to_be_visible()
        shown.reload()
        assert_told(shown, "no Kafka broker answers")
    finally:
        broker.start()
    live.heard("well", "home")
    expect(shown.locator(".live")).to_contain_text("live", timeout=MS_MAX)
    shop.orders.append([{"order_id": "after", "n": 1, "at": datetime.now(UTC)}])
    assert [row["order_id"] for row in live.heard("rows", "topic:orders")["rows"]] == ["after"]
    shown.goto(f"{shop.console.url}#/topics/orders")
    expect(shown.locator("td", has_text="after")).to_be_visible(timeout=MS_MAX)
    assert page.errors == []
