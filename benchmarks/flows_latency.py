"""How long until a result is there: after an append to a flow that runs, and after the start of a cold program."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles

import mainstem
from benchmarks import bids_per_auction, spark_bids_per_auction
from benchmarks.background_run import running
from benchmarks.figure import Figure
from benchmarks.flows_run import FlowsRun, say
from benchmarks.live_appender import LiveAppender
from benchmarks.nexmark_events import KEYS, SCHEMAS, Nexmark
from benchmarks.nexmark_topics import fill
from benchmarks.paired_timing import shown_seconds
from benchmarks.process_tree import adopt_orphans, cpu_seconds_by_kind
from mainstem.errors import NotYet, ViewNotFound
from mainstem.spark.spark_session import SETTINGS, class_archive, session_settings
from mainstem.stem import Mainstem

COLD_ROWS = 10_000
ROWS_PER_SECOND = 100
# Java has compiled what it will by then; not counted.
WARM_UP_BATCHES = 60
WARM_UP_SECONDS = 30.0
SECONDS_MAX = 180.0
ARCHIVE_SECONDS_MAX = 900.0
LOOK_SECONDS = 0.005
PLAIN_SETTINGS = SETTINGS | {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}

# Whether it is there does not matter: asking for it waits for the append.
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ANY_KEY = {"window": {"start": BEGIN, "end": BEGIN + timedelta(seconds=10)}, "auction": 0}


def latency(run: FlowsRun) -> list[Figure]:
    """Append to visible in a view at a hundred rows a second, against an empty micro-batch of plain Spark.

    Plain Spark's batches follow one another at once. Ours do so with `every="0 seconds"`; a flow that says nothing waits as long
    as its last batch took, for which its batches are fewer.
    """
    say("latency: empty micro-batches of plain Spark")
    plain = empty_batches(run)
    return [_latency(run, plain, every) for every in ("0 seconds", None)]


def _latency(run: FlowsRun, plain: list[float], every: str | None) -> Figure:
    said = "unless told" if every is None else f"every {every}"
    say(f"latency: append to visible, {said}")
    ours = _append_to_visible(run, every)
    batch, seen = median(plain), median(ours)
    return Figure(
        f"append to visible at {ROWS_PER_SECOND} rows/s, {said}, p50: times an empty micro-batch of plain Spark",
        seen / batch,
        at_most=1.2 if every else None,
        detail=f"{shown_seconds(seen)} against {shown_seconds(batch)}; p95 {shown_seconds(_p95(ours))} against "
        f"{shown_seconds(_p95(plain))}",
        facts={"subject_seconds": seen, "baseline_seconds": batch, "samples": len(ours), "batches": len(plain)},
    )


def cold(run: FlowsRun) -> list[Figure]:
    """The first result of a program of one flow, from the start of the process on, against plain Spark: CPU of all processes.

    The first `mainstem run` is not counted: after it the archive of Java's classes is made, in the background.
    """
    adopt_orphans()
    say("cold start: the archive of classes")
    _cold_ours(run)
    _wait_for_archive()
    ours, plain = [], []
    for _ in range(max(3, run.rounds)):
        say("cold start: plain Spark")
        plain.append(_cold_plain(run))
        say("cold start: mainstem run")
        ours.append(_cold_ours(run))
    pairs = list(zip(ours, plain, strict=True))
    return [
        Figure(
            "cold `mainstem run` to its first result, CPU: times plain Spark",
            median(mine / theirs for mine, theirs in pairs),
            at_most=0.8,
            detail=f"{shown_seconds(median(ours))} against {shown_seconds(median(plain))}",
            facts={"subject_cpu_seconds": median(ours), "baseline_cpu_seconds": median(plain)},
        )
    ]


def _wait_for_archive() -> None:
    """Until the archive of classes is made, or given up; at once if it is off."""
    archive = class_archive("local[*]", session_settings("local[*]"))
    begun = time.perf_counter()
    while archive is not None and archive.bytes is None:
        if time.perf_counter() - begun > ARCHIVE_SECONDS_MAX:
            raise RuntimeError(f"there is no archive of classes: {archive.path}")
        time.sleep(1)


def _p95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20)[-1]


def _mainstem_run(home: str) -> list[str]:
    command = str(Path(sys.executable).parent / "mainstem")
    return [command, "run", str(Path(bids_per_auction.__file__)), "--home", home]


def _seconds_until(found: Callable[[], bool], process: subprocess.Popen[bytes], begun: float) -> float:
    while not found():
        if process.poll() is not None or time.perf_counter() - begun > SECONDS_MAX:
            raise RuntimeError("it ended without a result; BENCHMARK_LOG=file keeps what it said")
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - begun


def _cpu_seconds_until(found: Callable[[], bool], *command: str) -> float:
    """CPU time of a program and all that it started, until the result is there; not of this process, which looks for it."""
    before = _cpu_seconds_of_others()
    with running(*command) as process:
        _seconds_until(found, process, time.perf_counter())
        return _cpu_seconds_of_others() - before


def _cpu_seconds_of_others() -> float:
    kinds = cpu_seconds_by_kind()
    return sum(kinds.values()) - kinds["driver"]


def _view_has_rows(stem: Mainstem) -> bool:
    try:
        return bool(stem.view("bids_per_auction").to_arrow().num_rows)
    except ViewNotFound:
        return False


def _cold_ours(run: FlowsRun) -> float:
    with tempfile.TemporaryDirectory(dir=run.folder) as home, mainstem.open(home, upkeep="manual") as stem:
        fill(stem, "live_bids", Nexmark(events=run.events), rows=COLD_ROWS)
        return _cpu_seconds_until(lambda: _view_has_rows(stem), *_mainstem_run(home))


def _cold_plain(run: FlowsRun) -> float:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(dir=run.folder) as folder:
        os.mkdir(f"{folder}/files")
        rows = next(Nexmark(events=run.events).batches("bids", rows_max=COLD_ROWS))
        pq.write_table(pa.table(rows), f"{folder}/files/bids.parquet")
        command = [
            str(Path(spark_bids_per_auction.__file__)),
            "first",
            json.dumps(PLAIN_SETTINGS),
            f"{folder}/files",
            folder,
        ]
        return _cpu_seconds_until(lambda: os.path.exists(f"{folder}/out/batch=0/_SUCCESS"), *command)


def empty_batches(run: FlowsRun) -> list[float]:
    """The seconds of micro-batches of plain Spark in which there is nothing: the aggregate of the view, into nowhere."""
    with tempfile.TemporaryDirectory(dir=run.folder) as folder:
        script = str(Path(spark_bids_per_auction.__file__))
        count = str(WARM_UP_BATCHES + run.latency_samples)
        command = [sys.executable, script, "empty", json.dumps(PLAIN_SETTINGS), folder, count]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return [taken / 1e3 for taken in json.loads(ended.stdout.splitlines()[-1])[WARM_UP_BATCHES:]]


def _append_to_visible(run: FlowsRun, every: str | None) -> list[float]:
    told = {} if every is None else {"BENCHMARK_EVERY": every}
    home = tempfile.mkdtemp(dir=run.folder)
    try:
        with mainstem.open(home, upkeep="manual") as stem:
            stem.create_topic("live_bids", schema=SCHEMAS["bids"], key=KEYS["bids"], event_time="at", partitions=2)
            with running(*_mainstem_run(home), **told) as process, LiveAppender(stem, ROWS_PER_SECOND) as appender:
                _seconds_until(lambda: _view_has_rows(stem), process, time.perf_counter())
                warm_at = time.perf_counter() + WARM_UP_SECONDS
                chance = random.Random(0)
                taken: list[float] = []
                while len(taken) < run.latency_samples:
                    # At any moment of a batch alike, so that none is met more often than it lasts.
                    time.sleep(chance.uniform(0.05, 0.45))
                    begun, token = appender.latest
                    seconds = _until_applied(stem, token, begun)
                    if time.perf_counter() > warm_at:
                        taken.append(seconds)
                return taken
    finally:
        shutil.rmtree(home)


def _until_applied(stem: Mainstem, token: str, begun: float) -> float:
    """From the beginning of an append until a reader of the view is told that it is in."""
    view = stem.view("bids_per_auction")
    try:
        view.get(ANY_KEY, after=token, wait="1 minute")
    except NotYet as error:
        raise RuntimeError(f"an append is not in the view after a minute: {error}") from error
    return time.perf_counter() - begun
