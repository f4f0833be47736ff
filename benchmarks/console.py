"""The console under load: `python -m benchmarks.console [--only screen,first,flood,streams,pages] [--minutes 1] [--json]`.

    screen    from the begin of an append, and of a commit to a view, until Chromium has it in the page
    first     from the address of the overview to its first whole page
    flood     50,000 rows a second into a topic whose page is open, for --minutes: the longest task of the page, its heap
    streams   200 open streams, one of which takes nothing, beside a process that reads a topic and commits to a view as a
              flow's sink does (without Spark): its rate with and without them; CPU and memory of the console
    pages     a view of 1 M rows, read by pages at random places

Needs chromium-headless-shell and playwright. Prints a table, and as the last line all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from playwright.sync_api import Page

import mainstem
from benchmarks.figure import Figure, table
from mainstem.batch import Batch, FlowRun
from mainstem.stem import Mainstem
from mainstem.views.view import View
from tests.workbench.console_browser import open_browser
from tests.workbench.console_process import ConsoleProcess, running_console

MARKS = 60
FLOOD_ROWS_PER_SECOND = 50_000
FLOOD_APPENDS_PER_SECOND = 20
STREAMS = 200
STREAM_SECONDS = 20.0
BIG_ROWS = 1_000_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TOTALS = pa.schema([("store", pa.string()), ("total", pa.string())])
# When a text that begins with "mark-" first stands in the page.
NOTE_MARKS = """
globalThis.marks = {};
new MutationObserver(() => {
  const now = Date.now();
  for (const [mark] of document.body.textContent.matchAll(/mark-\\d{4}/g)) marks[mark] ??= now;
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
NOTE_TASKS = """
globalThis.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((it) => it.duration))).observe({type: "longtask", buffered: true});
"""


@contextmanager
def home() -> Iterator[Mainstem]:
    """An empty one, for a while."""
    with tempfile.TemporaryDirectory() as folder, mainstem.open(f"{folder}/shop") as stem:
        yield stem


class Totals:
    """A view, written batch by batch."""

    def __init__(self, stem: Mainstem, name: str) -> None:
        self.view = View(stem.home, name, key=["store"])
        self.run = FlowRun(name, 1)
        self._writer = self.view.writer(self.run, TOTALS)
        self._batch = 0

    def apply(self, stores: list[str], totals: list[str]) -> None:
        rows = pa.table({"store": stores, "total": totals}, schema=TOTALS)
        self._writer.apply(rows, Batch(self._batch, self.run))
        self._batch += 1


@contextmanager
def opened_page(console: ConsoleProcess, address: str, script: str) -> Iterator[Page]:
    with open_browser("--enable-precise-memory-info") as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.add_init_script(script)
        page = context.new_page()
        page.goto(f"{console.url}#/{address}")
        page.locator(".live", has_text="live").wait_for(timeout=60_000)
        yield page


def delays(page: Page, write: Callable[[str], None]) -> list[float]:
    """Milliseconds from the begin of each write to the page."""
    begun: dict[str, float] = {}
    for number in range(MARKS):
        mark = f"mark-{number:04}"
        begun[mark] = time.time() * 1000
        write(mark)
        time.sleep(0.25)
    deadline = time.monotonic() + 30
    while len(found := page.evaluate("marks")) < MARKS and time.monotonic() < deadline:
        time.sleep(0.5)
    return [found[mark] - at for mark, at in begun.items() if mark in found]


def screen(minutes: float) -> Iterator[Figure]:
    with home() as stem:
        topic = stem.create_topic("live", schema="text STRING")
        totals = Totals(stem, "totals")
        totals.apply(["a"], ["0"])
        with running_console(stem.home) as console:
            writes: dict[str, tuple[str, Callable[[str], object]]] = {
                "append": ("topics/live", lambda mark: topic.append([{"text": mark}])),
                "commit": ("views/totals", lambda mark: totals.apply(["a"], [mark])),
            }
            for name, (address, write) in writes.items():
                with opened_page(console, address, NOTE_MARKS) as page:
                    found = delays(page, lambda mark, write=write: write(mark))  # type: ignore[misc]
                detail = f"{len(found)} of {MARKS} seen" + (
                    ", the others were replaced before" if name == "commit" else ""
                )
                yield Figure(f"{name} to screen p50", median(found), " ms", at_most=300, detail=detail)
                yield Figure(f"{name} to screen p99", quantiles(found, n=100)[98], " ms", at_most=1000)


def first(minutes: float) -> Iterator[Figure]:
    with home() as stem:
        for number in range(8):
            stem.create_topic(f"t{number}", schema="text STRING").append([{"text": "x"}])
        with running_console(stem.home) as console, open_browser() as browser:
            found = []
            for _ in range(10):
                context = browser.new_context()
                page, begun = context.new_page(), time.perf_counter()
                page.goto(console.url)
                page.locator(".map-picture .node, .maplist li").first.wait_for()
                found.append((time.perf_counter() - begun) * 1000)
                context.close()
            yield Figure("first page", median(found), " ms", at_most=1000, detail=f"slowest of ten {max(found):.0f} ms")


def heap_megabytes(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used) / 2**20


def flood(minutes: float) -> Iterator[Figure]:
    rows = FLOOD_ROWS_PER_SECOND // FLOOD_APPENDS_PER_SECOND
    batch = pa.table({"n": list(range(rows)), "text": [f"row {n}" for n in range(rows)]})
    with home() as stem:
        topic = stem.create_topic("flood", schema="n BIGINT, text STRING", partitions=2)
        with running_console(stem.home) as console, opened_page(console, "topics/flood", NOTE_TASKS) as page:
            ended, appended = threading.Event(), [0]

            def pour() -> None:
                begun = time.monotonic()
                while not ended.is_set():
                    topic.append(batch)
                    appended[0] += rows
                    due = begun + appended[0] / FLOOD_ROWS_PER_SECOND - time.monotonic()
                    if due > 0:
                        ended.wait(due)

            pouring, begun = threading.Thread(target=pour, daemon=True), time.monotonic()
            pouring.start()
            time.sleep(10)
            page.evaluate("tasks.length = 0")
            at_begin = heap_megabytes(page)
            page.evaluate("tasks.length = 0")
            time.sleep(max(5.0, minutes * 60 - 10))
            tasks = page.evaluate("tasks")
            rate = appended[0] / (time.monotonic() - begun)
            at_end = heap_megabytes(page)
            ended.set()
            pouring.join()
            yield Figure("rows a second", rate, detail=f"for {minutes:g} minutes, goal {FLOOD_ROWS_PER_SECOND:,}")
            yield Figure("longest task", max(tasks, default=0.0), " ms", at_most=100, detail=f"{len(tasks)} over 50 ms")
            yield Figure("heap at the end", at_end, " MB", at_most=150, detail=f"{at_begin:.1f} MB after ten seconds")
            yield Figure("heap's growth", max(0.0, at_end - at_begin), " MB", at_most=10)


class Streams:
    """Clients that read their streams and drop what they read; the first takes nothing."""

    def __init__(self, console: ConsoleProcess, subjects: list[str], count: int) -> None:
        address = "/api/stream?" + "&".join(f"of={quote(subject)}" for subject in subjects)
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection((console.host, console.port)) for _ in range(count)]
        for number, client in enumerate(self._sockets):
            client.sendall(f"GET {address} HTTP/1.1\r\nHost: {console.host}:{console.port}\r\n\r\n".encode())
            if number:
                self._selector.register(client, selectors.EVENT_READ)
        self.bytes = 0
        self.closed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(timeout=1.0):
                content = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                self.bytes += len(content)
                if not content:
                    self.closed += 1
                    self._selector.unregister(key.fileobj)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for client in self._sockets:
            client.close()


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_PER_SECOND


def resident_megabytes(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def commits(stem: Mainstem, totals: Totals, seconds: float) -> float:
    """Rows a second that are appended, read back and committed, ten batches of 500 rows a second at most."""
    topic, begun, done = stem.topic("orders"), time.monotonic(), 0
    while (now := time.monotonic()) < begun + seconds:
        placed = topic.append([{"store": f"s{n % 50}", "text": str(done)} for n in range(500)])
        rows = topic.to_arrow(start=placed.token).num_rows
        totals.apply([f"s{n}" for n in range(50)], [str(done + rows)] * 50)
        done += 500
        # As a flow pauses between its batches.
        time.sleep(max(0.0, 0.1 - (time.monotonic() - now)))
    return done / (time.monotonic() - begun)


def streams(minutes: float) -> Iterator[Figure]:
    with home() as stem:
        stem.create_topic("orders", schema="store STRING, text STRING")
        totals = Totals(stem, "revenue")
        totals.apply(["a"], ["0"])
        with running_console(stem.home) as console:
            without = commits(stem, totals, STREAM_SECONDS)
            clients = Streams(console, ["home", "topic:orders", "view:revenue"], STREAMS)
            commits(stem, totals, 5)
            before, begun = cpu_seconds(console.process.pid), time.monotonic()
            with_them = commits(stem, totals, STREAM_SECONDS)
            cores = (cpu_seconds(console.process.pid) - before) / (time.monotonic() - begun)
            memory = resident_megabytes(console.process.pid)
            received, closed = clients.bytes, clients.closed
            clients.close()
        yield Figure(
            "rate beside 200 streams",
            with_them / without,
            "",
            at_least=0.9,
            detail=f"{with_them:.0f} and {without:.0f} rows/s",
        )
        yield Figure(
            "the console's cores",
            cores,
            "",
            at_most=0.2,
            detail=f"{received / 2**20:.0f} MB sent, {closed} streams ended",
        )
        yield Figure("the console's memory", memory, " MB", at_most=400)


def pages(minutes: float) -> Iterator[Figure]:
    with home() as stem:
        totals = Totals(stem, "big")
        for begin in range(0, BIG_ROWS, 100_000):
            stores = [f"s{number:07}" for number in range(begin, begin + 100_000)]
            totals.apply(stores, stores)
        with running_console(stem.home) as console:
            chance, found = random.Random(6), []
            after = ""
            for number in range(100):
                begun = time.perf_counter()
                answer = console.get(f"/api/views/big/rows?limit=100{after}")
                found.append((time.perf_counter() - begun) * 1000)
                assert len(answer["rows"]) == 100
                place = chance.randrange(BIG_ROWS - 200) if number % 2 else None
                after = f"&after={quote(answer['next'] if place is None else json.dumps([f's{place:07}']))}"
            yield Figure(
                "a page of 1 M rows p99",
                quantiles(found, n=100)[98],
                " ms",
                at_most=200,
                detail=f"p50 {median(found):.0f} ms",
            )


PARTS: dict[str, Callable[[float], Iterator[Figure]]] = {
    "screen": screen,
    "first": first,
    "flood": flood,
    "streams": streams,
    "pages": pages,
}


def main(arguments: list[str]) -> int:
    """Runs the parts; the status is 0 also if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=1.0, help="of the flood")
    parser.add_argument("--json", action="store_true", help="only the last line")
    given = parser.parse_args(arguments)
    figures: list[Figure] = []
    for part in given.only.split(","):
        figures += PARTS[part](given.minutes)
    if not given.json:
        print(table(figures))
    found: dict[str, Any] = {"figures": [figure.to_json() for figure in figures]}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
