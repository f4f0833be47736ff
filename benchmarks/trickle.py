"""What a flow costs while little comes: `python -m benchmarks.trickle [--only 100,10000,idle] [--seconds 20]`.

A program of one flow into a view runs in a process tree of its own, while this process appends 100 or 10,000 rows a second
and asks the view for them. Reported are the cores that the program keeps busy, and the time from an append until it is in the
view; with the default pace and with `every="0 seconds"`. `idle`: six flows, and no row.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from statistics import median, quantiles

import mainstem
from benchmarks.background_run import running
from benchmarks.figure import Figure, table
from benchmarks.live_appender import LiveAppender, append_bids
from benchmarks.nexmark_events import KEYS, SCHEMAS
from benchmarks.process_tree import cpu_seconds, shared_bytes
from mainstem.errors import ViewNotFound
from mainstem.stem import Mainstem

WARM_UP_SECONDS = 25.0
START_SECONDS_MAX = 240.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
# Whether there is such a row does not matter: asking for it waits for the append.
ANY_KEY = {
    "filter": {"auction": 0, "bidder": 0},
    "aggregate": {"window": {"start": BEGIN, "end": BEGIN + timedelta(seconds=10)}, "auction": 0},
}
SIX = ["filter", "aggregate"] * 3


def trickle(kind: str, rows_per_second: int, every: str | None, seconds: float) -> list[Figure]:
    """The cores that a flow keeps busy at this rate, and the time from an append until it is in the view."""
    with (
        _home() as stem,
        running(*_command(stem, [kind], every)) as process,
        LiveAppender(stem, rows_per_second) as appender,
    ):
        _wait_for_views(stem, [f"{kind}_0"])
        time.sleep(WARM_UP_SECONDS)
        chance = random.Random(0)
        view = stem.view(f"{kind}_0")
        taken: list[float] = []
        begun, before = time.perf_counter(), cpu_seconds(process.pid)
        while time.perf_counter() - begun < seconds:
            # At any moment of a batch alike, so that none is met more often than it lasts.
            time.sleep(chance.uniform(0.05, 0.45))
            appended_at, token = appender.latest
            view.get(ANY_KEY[kind], after=token, wait="1 minute")
            taken.append(time.perf_counter() - appended_at)
        used = cpu_seconds(process.pid) - before
        cores = used / (time.perf_counter() - begun)
    pace = "default" if every is None else every
    name = f"{kind}, {rows_per_second:,} rows/s, {pace}"
    goal = 0.3 if every is None else None
    p50, p99 = median(taken), quantiles(taken, n=100)[-1]
    return [
        Figure(f"{name}: cores", cores, at_most=goal, detail=f"{len(taken)} samples"),
        Figure(f"{name}: append to visible, p50", p50 * 1000, " ms", detail=f"p99 {p99 * 1000:.0f} ms"),
    ]


def idle(seconds: float) -> list[Figure]:
    """The share of a core, and the memory, of six flows that have nothing to do."""
    with _home() as stem, running(*_command(stem, SIX, None)) as process:
        next(append_bids(stem, 100))
        _wait_for_views(stem, [f"{kind}_{number}" for number, kind in enumerate(SIX)])
        time.sleep(WARM_UP_SECONDS)
        begun, before = time.perf_counter(), cpu_seconds(process.pid)
        time.sleep(seconds)
        share = (cpu_seconds(process.pid) - before) / (time.perf_counter() - begun)
        memory = shared_bytes(process.pid)
    return [
        Figure("six idle flows: of a core", share * 100, " %", at_most=1),
        Figure("six idle flows: memory", memory / 2**30, " GiB", at_most=1.5),
    ]


def _command(stem: Mainstem, kinds: list[str], every: str | None) -> list[str]:
    return ["-m", "benchmarks.trickle_program", stem.home, ",".join(kinds), *([] if every is None else [every])]


@contextmanager
def _home() -> Iterator[Mainstem]:
    with tempfile.TemporaryDirectory(prefix="mainstem-trickle-") as home, mainstem.open(home, upkeep="manual") as stem:
        stem.create_topic("live_bids", schema=SCHEMAS["bids"], key=KEYS["bids"], event_time="at", partitions=2)
        yield stem


def _wait_for_views(stem: Mainstem, names: list[str]) -> None:
    until = time.perf_counter() + START_SECONDS_MAX
    for name in names:
        while not _has_rows(stem, name):
            if time.perf_counter() > until:
                raise RuntimeError("the program has no result; BENCHMARK_LOG=file keeps what it said")
            time.sleep(0.2)


def _has_rows(stem: Mainstem, name: str) -> bool:
    try:
        return bool(stem.view(name).to_arrow().num_rows)
    except ViewNotFound:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trickle", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--only", default="100,10000,idle", help="some of: 100, 10000, idle")
    parser.add_argument("--kind", choices=list(ANY_KEY), default="aggregate", help="what the flow does")
    parser.add_argument("--every", action="append", help='paces; default: the default, and "0 seconds"')
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is measured")
    chosen = parser.parse_args()
    figures: list[Figure] = []
    for name in chosen.only.split(","):
        if name == "idle":
            figures += idle(chosen.seconds)
            continue
        for every in chosen.every or ["", "0 seconds"]:
            figures += trickle(chosen.kind, int(name), every or None, chosen.seconds)
    print(table(figures))


if __name__ == "__main__":
    main()
