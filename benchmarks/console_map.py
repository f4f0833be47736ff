"""How soon the overview of a large home is there: `python -m benchmarks.console_map [--topics 200] [--flows 100] [--rounds 5]`.

A home with many topics and flows, none of which runs; a console in a process of its own; Chromium opens its first page. What is
measured is the time from the address to the drawn map, each round with a new console. Prints a table, and as the last line all
of it as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import mainstem
from benchmarks.figure import Figure, table
from mainstem.flows.progress_rows import ProgressRows
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem

FIRST_MAP_SECONDS = 2.0
ROWS = 50
BATCHES = 3


def main() -> None:
    given = _arguments()
    folder = tempfile.mkdtemp(prefix="mainstem-benchmark-", dir=given.folder)
    try:
        home = f"{folder}/home"
        with mainstem.open(home, upkeep="manual") as stem:
            _fill(stem, given.topics, given.flows)
        figures = _figures(home, given.rounds)
    finally:
        shutil.rmtree(folder)
    print(table(figures))
    facts = {"topics": given.topics, "flows": given.flows, "cores": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({"figures": [figure.to_json() for figure in figures], **facts}))


def _fill(stem: Mainstem, topics: int, flows: int) -> None:
    """Topics with rows, and flows from one half of them into the other, with a checkpoint and reports."""
    for number in range(topics):
        topic = stem.create_topic(f"topic_{number:03}", schema="id BIGINT, at TIMESTAMP", partitions=2, event_time="at")
        topic.append([{"id": row, "at": datetime.now(UTC)} for row in range(ROWS)])
    reports = ProgressRows(stem.log)
    for number in range(flows):
        source, sink = f"topic_{number % topics:03}", f"topic_{(number + topics // 2) % topics:03}"
        run = FlowStore(stem.home, f"flow_{number:03}").begin(1, sink=f"topic {sink}", sources=[source], plan={})
        ends = {str(part): stem.topic(source).backend.latest(part) for part in range(2)}
        checkpoint = Path(FlowStore(stem.home, run.flow).checkpoint(1))
        for batch in range(BATCHES):
            offsets = json.dumps({"topic": source, "offsets": ends, "delay": 10_000_000})
            for part, text in (("offsets", f"v1\n{{}}\n{offsets}"), ("commits", "v1\n{}")):
                (checkpoint / part).mkdir(parents=True, exist_ok=True)
                (checkpoint / part / str(batch)).write_text(text)
            reports.add(
                {
                    "flow": run.flow, "epoch": run.epoch, "version": 1, "batch": batch, "at": datetime.now(UTC), "rows_in": ROWS,
                    "rows_out": ROWS, "rejected": 0, "late": 0, "too_late": 0, "lag_records": 0, "lag_seconds": 0.0,
                    "batch_ms": 200, "phases": {"addBatch": 150},
                }
            )  # fmt: skip
    reports.end()


@contextmanager
def _console(home: str) -> Iterator[str]:
    command = [sys.executable, "-m", "mainstem.workbench.cli.main", "console", "--port", "0", "--home", home]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _figures(home: str, rounds: int) -> list[Figure]:
    from playwright.sync_api import sync_playwright

    drawn, answered, again = [], [], []
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell"), args=options)
        for _ in range(rounds):
            with _console(home) as address:
                page = browser.new_page()
                begun = time.monotonic()
                page.goto(address)
                page.locator(".map-picture .node").first.wait_for()
                drawn.append(time.monotonic() - begun)
                page.close()
            with _console(home) as address:
                answered.append(_seconds(f"{address}api/home"))
                again.append(min(_seconds(f"{address}api/home?at={_now()}") for _ in range(3)))
        browser.close()
    middle = statistics.median
    return [
        Figure("the first page has its map", middle(drawn), " s", at_most=FIRST_MAP_SECONDS, detail=_spread(drawn)),
        Figure("/api/home of a new console", middle(answered), " s", detail=_spread(answered)),
        Figure("/api/home as it was", middle(again), " s", detail=_spread(again)),
    ]


def _seconds(address: str) -> float:
    begun = time.monotonic()
    with urllib.request.urlopen(address) as answer:
        answer.read()
    return time.monotonic() - begun


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f} s in {len(seconds)} rounds"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console_map")
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--flows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to put the home")
    return parser.parse_args()


if __name__ == "__main__":
    main()
