"""Numbers on the pages of the console are those of the command line: each page of one home, against `--json`."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mainstem.stem import Mainstem
from mainstem.workbench.cli.main import run
from tests.needs import needs
from tests.workbench.console_home import make_shop
from tests.workbench.test_console_pages import Console, browser, contexts, watched

__all__ = ["browser", "contexts", "watched"]

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

# What is no count: times, durations, rates, shares, and names with digits in them.
OTHERS = re.compile(
    r"\d{4}-\d\d-\d\d|\d\d:\d\d(?::\d\d)?(?:\.\d+)?|\d[\d,.]*\s(?:s|ms|min|h|d)\b|[\d,.<]+ (?:rows)?/s|[\d.]+ %|\b[\w-]*[a-z]-?\d+\b|"
    r"last 10 s|×"
)
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?: (?:bytes|[KMGT]iB))?")


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[Mainstem]:
    with make_shop(tmp_path_factory.mktemp("numbers") / "shop", datetime.now(UTC)) as stem:
        yield stem


@pytest.fixture(scope="module")
def console(shop) -> Iterator[Console]:
    found = Console(Path(shop.home))
    yield found
    found.kill()


@pytest.fixture
def command(shop, capsys) -> Any:
    def answer(*words: str) -> Any:
        assert run([*words, "--json", "--home", shop.home]) == 0
        return json.loads(capsys.readouterr().out)

    return answer


def size_text(value: int) -> str:
    left = float(value)
    for unit in ("bytes", "KiB", "MiB"):
        if left < 1024:
            return f"{left:,.0f} {unit}" if unit == "bytes" or left >= 100 else f"{left:,.1f} {unit}"
        left /= 1024
    raise AssertionError(value)


def numbers_of(facts: Any, name: str = "") -> set[str]:
    """Every number of the command line's facts, as a page writes it."""
    if isinstance(facts, dict):
        return {number for key, value in facts.items() for number in numbers_of(value, key)}
    if isinstance(facts, list):
        return {number for value in facts for number in numbers_of(value, name)} | {str(len(facts))}
    if isinstance(facts, bool) or not isinstance(facts, int | float):
        return set()
    return {f"{facts:,}", str(facts), size_text(int(facts))} if name == "bytes" else {f"{facts:,}", str(facts)}


def shown_numbers(page: Page, *without: str) -> set[str]:
    """The counts on a page, but those of the slider, of plots and of `without`."""
    text = page.evaluate(
        """parts => {
          for (const part of document.querySelectorAll([".time", ".picture", ".pic", ".data", ".feed", ...parts].join(","))) part.remove();
          return document.getElementById("main").innerText;
        }""",
        list(without),
    )
    return set(NUMBER.findall(OTHERS.sub(" ", text)))


def table(page: Page, label: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=label, exact=True).locator("tbody tr")
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def behind(lag: dict[str, Any]) -> str:
    return "up to date" if not lag["records"] else f"{lag['records']:,} record{'' if lag['records'] == 1 else 's'}"


def open_page(console: Console, page: Page, address: str, wait_for: str) -> None:
    page.goto(f"{console.address}#/{address}")
    page.locator(wait_for).first.wait_for()


def test_the_overview(shop, console, command, watched):
    page, _ = watched()
    open_page(console, page, "", ".map-picture .node")
    topics, views, queues = command("topic", "list"), command("view", "list"), command("queue", "list")
    flows = command("flow", "list")
    for topic in topics:
        if not topic["topic"].startswith("mainstem.") and not topic["topic"].endswith((".late", ".rejected")):
            node = page.locator(f'.map-picture a[href="#/topics/{topic["topic"]}"]')
            expect(node).to_contain_text(f"{topic['records']:,} record")
    for view in views:
        expect(page.locator(f'.map-picture a[href="#/views/{view["view"]}"]')).to_contain_text(f"{view['rows']:,} row")
    for queue in queues:
        node = page.locator(f'.map-picture a[href="#/queues/{queue["topic"]}/{queue["queue"]}"]')
        expect(node).to_contain_text(f"{queue['waiting']:,} waiting, {queue['held']:,} held")
        expect(node).to_contain_text(f"{queue['rejected']:,} rejected")
    running = sum(flow["state"] == "running" for flow in flows)
    late = sum(row["late"] for flow in flows for row in command("flow", "describe", flow["flow"])["last_batches"])
    expect(page.locator(".facts")).to_contain_text(f"{running} of {len(flows)}")
    assert late <= int(re.search(r"(\d+) late", page.locator(".facts").inner_text()).group(1))  # type: ignore[union-attr]
    expect(page.locator(".facts")).to_contain_text(f"{sum(queue['rejected'] for queue in queues):,} rejected")


def test_a_flow(shop, console, command, watched):
    page, _ = watched()
    open_page(console, page, "flows/revenue", ".picture canvas")
    flow = command("flow", "describe", "revenue")
    assert table(page, "Sources") == [
        [part["source"], str(part["partition"]), str(part["offset"]), behind(part["lag"])] for part in flow["sources"]
    ]
    facts = dict(
        zip(
            page.locator(".facts-list dt").all_inner_texts(),
            page.locator(".facts-list dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts == {
        "state": flow["state"], "process": str(flow["pid"]), "last batch": str(flow["batch"]),
        "run": f"epoch {flow['epoch']}, version {flow['version']}", "into": flow["sink"],
    }  # fmt: skip
    holders = [text for text in page.locator(".holders span:last-child").all_inner_texts() if text]
    assert holders == [holder["watermark"][11:21] for holder in flow["watermark_holders"]]
    reports = shop.topic("mainstem.progress").to_arrow(columns=["flow", "late", "too_late", "state_bytes"]).to_pylist()
    assert shown_numbers(page) <= numbers_of([flow, reports]) | strip_sums(reports, "revenue")


def strip_sums(reports: list[dict[str, Any]], flow: str) -> set[str]:
    """The sums that the plots of a flow have below them."""
    own = [row for row in reports if row["flow"] == flow]
    return {f"{sum(row[name] or 0 for row in own):,}" for name in ("late", "too_late")} | {
        size_text(own[-1]["state_bytes"])
    }


def test_a_topic(console, command, watched):
    page, _ = watched()
    open_page(console, page, "topics/orders", "text=Readers")
    topic = command("topic", "describe", "orders")
    assert table(page, "Partitions") == [
        [str(part["partition"]), str(part["start"]), str(part["end"]), f"{part['records']:,}", str(part["segments"]), str(part["sealed"]), size_text(part["bytes"])]
        for part in topic["partitions"]
    ]  # fmt: skip
    expect(page.locator(".words")).to_contain_text(
        f"{topic['records']:,} records in {len(topic['partitions'])} partitions, {size_text(topic['bytes'])}, kept {topic['keep']}"
    )
    flows = {flow["flow"]: flow for flow in command("flow", "list")}
    for reader, lag, _ in table(page, "Readers"):
        described = command("flow", "describe", reader.split()[1])
        own = [part["lag"]["records"] for part in described["sources"] if part["source"] == "orders"]
        assert reader.split()[2] == flows[reader.split()[1]]["state"]
        assert re.sub(r"^[\d. minsh]+, ", "", lag) == behind({"records": sum(own)})
    shown = int(page.locator(".tools .small").last.inner_text().split()[0])
    assert shown == page.locator(".data tbody tr").count()
    assert shown_numbers(page, ".tools") <= numbers_of([topic, command("flow", "describe", "deliveries")])


def test_a_view(console, command, watched):
    page, _ = watched()
    open_page(console, page, "views/revenue", "td >> text=Lisbon")
    view = command("view", "describe", "revenue")
    words = page.locator(".words")
    expect(words).to_contain_text(
        f"{view['rows']:,} rows, one for each {', '.join(view['key'])}, {size_text(view['bytes'])}"
    )
    rows = command("view", "page", "revenue", "--limit", "25")["rows"]
    shown = page.locator(".data tbody tr")
    assert shown.count() == len(rows)
    for row, found in zip(rows, shown.all(), strict=True):
        cells = found.locator("td").all_inner_texts()
        assert (cells[2], float(cells[4]), int(cells[5])) == (row["store"], row["total"], row["orders"])
    assert shown_numbers(page, ".words") <= {str(len(rows)), str(view["rows"])}


def test_a_queue(console, command, watched):
    page, _ = watched()
    open_page(console, page, "queues/mails/send", "td >> text=has no @")
    queue = command("queue", "describe", "mails", "send")
    facts = page.locator(".fact b").all_inner_texts()
    assert facts == [f"{queue[name]:,} {name}" for name in ("waiting", "held", "delayed", "parked", "rejected")]
    counts = queue["counts"]
    expect(page.locator(".words")).to_contain_text(
        f"{counts['delivered']:,} deliveries so far, {counts['acknowledged']:,} acknowledged"
    )
    assert [cells[3] for cells in table(page, "Rejected messages")] == ["1"] * queue["rejected"]
    assert len(table(page, "Held, delayed and parked messages")) == queue["held"] + queue["delayed"] + queue["parked"]
