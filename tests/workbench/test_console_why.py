"""Why a number is so: by the command line, by the API, and on the page, where a row can be opened."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import expect

import mainstem
from mainstem.batch import Batch
from mainstem.durable_files import encode_checked
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.views.view import View
from mainstem.workbench.cli.main import run
from tests.needs import needs
from tests.workbench.console_browser import SCREENSHOTS, axe_findings
from tests.workbench.console_process import ConsoleProcess, running_console
from tests.workbench.ran_flows import began
from tests.workbench.test_console_pages import browser, contexts, watched

__all__ = ["browser", "contexts", "watched"]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
REVENUE = pa.schema(
    [("store", pa.string()), ("window", pa.struct([("start", TIME), ("end", TIME)])), ("total", pa.float64())]
)
KEY = {"store": "Berlin", "window": {"start": "2026-01-01T12:00:00Z", "end": "2026-01-01T12:01:00Z"}}


def moment(name: str) -> list[Any]:
    known = ["<", ["abs", ["column", name]], ["literal", "bigint", 2**62]]
    return ["if", known, ["as", "timestamp", ["column", name]], ["literal", "timestamp", None]]


def lineage(late: str = "") -> dict[str, Any]:
    """As a run writes it for windows of a minute by store."""
    number = ["as", "bigint", ["column", "at"]]
    columns = [
        ["by_0", ["column", "store"]], ["time", number], ["watermark", ["as", "bigint", ["column", "record", "watermark"]]],
        ["partition", ["column", "record", "partition"]], ["offset", ["column", "record", "offset"]],
    ]  # fmt: skip
    window = ["struct", ["start", moment("window_start")], ["end", moment("window_end")]]
    how = {
        "window": {"kind": "tumbling", "size": 60_000_000, "offset": 0}, "by": ["by_0"], "lateness": 0, "early": None,
        "late": None, "results": "accumulate",
    }  # fmt: skip
    read = {"is": "read", "source": "orders", "leaf": 0, "delay": 0}
    stage = {
        "is": "stage", "operator": "windowed", "stage": "windowed-0", "how": how, "behind": 0,
        "of": [{"is": "rows", "of": read, "where": [[">", ["column", "amount"], ["literal", "double", "1.0"]]], "columns": columns}],
    }  # fmt: skip
    shown = [["store", ["column", "by_0"]], ["window", window], ["total", None]]
    return {
        "format": 1, "flow": "revenue", "version": 1, "epoch": 1, "because": "", "starts": {"orders": {}}, "changed": None,
        "sink": {"kind": "view", "name": "revenue", "key": ["store", "window"]},
        "rows": {"is": "rows", "of": stage, "where": [], "columns": shown},
    }  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("why") / "shop"
    with mainstem.open(path, upkeep="manual") as stem:
        orders = stem.create_topic(
            "orders", schema="order_id STRING, store STRING, amount DOUBLE, at TIMESTAMP", key="store", event_time="at"
        )
        for number, (store, amount, seconds) in enumerate(
            [
                ("Berlin", 10.0, 5),
                ("Lisbon", 4.0, 6),
                ("Berlin", 0.5, 7),
                ("Berlin", 30.0, 50),
                ("Berlin", 9.0, 200),
                ("Berlin", 99.0, 8),
            ]
        ):
            orders.append(
                [{"order_id": f"o-{number}", "store": store, "amount": amount, "at": NOON + timedelta(seconds=seconds)}]
            )
        flow = began(stem, "revenue", sink="view revenue", sources=("orders",))
        view = View(stem.home, "revenue", key=["store", "window"])
        writer = view.writer(flow, REVENUE)
        window = {"start": NOON, "end": NOON + timedelta(minutes=1)}
        for number, total in enumerate((10.0, 40.0)):
            rows = [
                {"store": "Berlin", "window": window, "total": total},
                {"store": "Lisbon", "window": window, "total": 4.0},
            ]
            writer.apply(pa.Table.from_pylist(rows, REVENUE), Batch(number, flow))
        view.close()
        Path(FlowStore(stem.home, "revenue").lineage(1)).write_bytes(encode_checked(lineage()))
    return str(path)


@pytest.fixture(scope="module")
def console(home: str) -> Iterator[ConsoleProcess]:
    with running_console(home) as running:
        yield running


def asked(key: Any, **more: str) -> str:
    return (
        "/api/views/revenue/why?key="
        + quote(json.dumps(key))
        + "".join(f"&{name}={quote(text)}" for name, text in more.items())
    )


def test_the_command_line_shows_the_records_and_the_values_over_time(home: str, capsys: Any) -> None:
    assert run(["view", "why", "revenue", "Berlin", "2026-01-01 12:00", "--json", "--home", home]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["exact"], found["total"]) == (True, 2)
    # The cheap one is filtered out, and the last one came too late.
    assert [row["order_id"] for row in found["records"]["orders"]] == ["o-0", "o-3"]
    assert [(it["batch"], it["change"], it["row"]["total"]) for it in found["shown"]] == [
        (0, "insert", 10.0),
        (1, "update", 40.0),
    ]
    assert run(["view", "why", "revenue", "Berlin", "2026-01-01 12:00", "--limit", "1", "--home", home]) == 0
    shown = capsys.readouterr().out
    assert "made of 2 records: the flow over just these gives this row" in shown
    assert "--after orders/0/0" in shown
    assert run(["view", "why", "revenue", "Berlin", "2026-01-01 15:00", "--home", home]) != 0
    capsys.readouterr()
    window = json.dumps(KEY["window"])
    assert run(["view", "why", "revenue", "Nowhere", window, "--home", home]) == 1
    said = capsys.readouterr().err
    for part in ("no row with the key Nowhere", "Its key is store, window.", "mainstem view read revenue --limit 10"):
        assert part in said


def test_the_api_pages_through_the_records(console: ConsoleProcess) -> None:
    found = console.ask(asked(list(KEY.values()), limit="1")).json
    assert (found["exact"], found["total"], found["row"]["total"]) == (True, 2, 40.0)
    assert [row["order_id"] for row in found["sources"][0]["rows"]] == ["o-0"]
    following = console.ask(asked(KEY, limit="1", after=found["after"])).json
    assert [row["order_id"] for row in following["sources"][0]["rows"]] == ["o-3"]
    assert following["after"] is None


def test_what_cannot_be_asked_is_told_in_three_parts(console: ConsoleProcess) -> None:
    for path in (
        "/api/views/revenue/why", asked(["Berlin"]), asked("{"), asked(KEY, after="nowhere"), asked(KEY, at="noon"),
        asked(KEY, limit="0"), asked(KEY, at="2026-01-01T00:00:00Z"), "/api/views/nothing/why?key=[]",
    ):  # fmt: skip
        answer = console.ask(path)
        assert 400 <= answer.status < 500, path
        assert answer.json["error"]["what"], path
    absent = console.ask(asked(["Oslo", KEY["window"]])).json
    assert (absent["row"], absent["exact"], absent["sentence"]) == (None, False, "The view has no row with this key.")


@needs("chromium-headless-shell", command="chromium-headless-shell")
@pytest.mark.starts_servers
def test_a_row_is_opened_and_shows_its_records(console: ConsoleProcess, watched: Any) -> None:
    page, errors = watched()
    page.goto(f"{console.url}#/views/revenue")
    page.get_by_role("link", name="Why is this number so? Berlin").click()
    records = page.get_by_role("region", name="Records of orders")
    expect(records.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("region", name="Its values over time").locator("tbody tr")).to_have_count(2)
    expect(page.get_by_text("the flow over just these gives this row")).to_be_visible()
    assert "why=" in page.url
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "why-light.png", full_page=True)
    assert (axe_findings(page), errors) == ([], [])
    # The address is the state.
    page.reload()
    expect(records.locator("tbody tr")).to_have_count(2)
