"""How long a row takes through a flow, from its append until a reader of the flow's topic has it, at 1,000 rows a second.

The flow runs in a process of its own (`benchmarks.kafka_latency_program`); one thread here appends, another one follows. Three
ways: in batches on the embedded log, in batches on Kafka, in real time on Kafka.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Literal

from benchmarks.background_run import running
from benchmarks.figure import Figure
from benchmarks.flows_run import say
from benchmarks.paired_timing import shown_seconds
from mainstem.stem import Mainstem, open_log

Pace = Literal["batches", "real-time"]

SCHEMA = "n BIGINT, sent_us BIGINT"
# A thousand rows a second, twenty at a time.
APPEND_ROWS = 20
APPEND_SECONDS = 0.02
# Java has compiled what it will by then; not counted.
WARM_UP_SECONDS = 30.0
SECONDS_MAX = 180.0


def latencies(folder: str, address: str, seconds: float) -> list[Figure]:
    """The figures, each way for so many seconds."""
    found = {
        "batches, embedded": _seconds_through(folder, "", "batches", seconds),
        "batches, Kafka": _seconds_through(folder, address, "batches", seconds),
        "real time, Kafka": _seconds_through(folder, address, "real-time", seconds),
    }
    shown = {way: (median(taken), quantiles(taken, n=100)[-1], len(taken)) for way, taken in found.items()}
    figures = [
        Figure(
            f"append to read through a flow at 1,000 rows/s, p50: {way}",
            p50 * 1e3,
            unit=" ms",
            detail=f"p99 {shown_seconds(p99)}, {count:,} rows",
            facts={"p50_seconds": p50, "p99_seconds": p99, "rows": count},
        )
        for way, (p50, p99, count) in shown.items()
    ]
    figures += [
        Figure(
            f"append to read in real time on Kafka, p50: part of that in {way}",
            shown["real time, Kafka"][0] / shown[way][0],
            at_most=0.1 if way == "batches, Kafka" else None,
            detail=f"{shown_seconds(shown['real time, Kafka'][0])} of {shown_seconds(shown[way][0])}",
        )
        for way in ("batches, embedded", "batches, Kafka")
    ]
    return figures


def _seconds_through(folder: str, address: str, mode: Pace, seconds: float) -> list[float]:
    say(f"latency: {mode}, {address or 'embedded'}")
    home = tempfile.mkdtemp(dir=folder, prefix="latency-")
    if address:
        # On one broker each way has topics of its own.
        Path(home, "kafka.toml").write_text(f'prefix = "{os.path.basename(home)}."\n')
    with Mainstem(open_log(home, address or None), home=home) as stem:
        for name in ("sent", "passed"):
            stem.create_topic(name, schema=SCHEMA)
        program = [
            "-m",
            "benchmarks.kafka_latency_program",
            mode,
            "--home",
            home,
            *(["--log", address] if address else []),
        ]
        with running(*program) as process:
            return _measured(stem, process, seconds)


def _measured(stem: Mainstem, process: subprocess.Popen[bytes], seconds: float) -> list[float]:
    """Append until so many seconds after the warm-up; how long each row took since then."""
    taken: list[float] = []
    ended = threading.Event()
    sent = stem.topic("sent")

    def append() -> None:
        number, due = 0, time.perf_counter()
        while not ended.is_set():
            now = time.time_ns() // 1000
            sent.append([{"n": number + row, "sent_us": now} for row in range(APPEND_ROWS)])
            number, due = number + APPEND_ROWS, due + APPEND_SECONDS
            ended.wait(max(0.0, due - time.perf_counter()))

    appender = threading.Thread(target=append, daemon=True)
    appender.start()
    begun, warm_at = time.perf_counter(), None
    try:
        while True:
            # It ends by itself when nothing comes for a while: then it is looked whether the program still runs.
            for batch in stem.topic("passed").follow(start="latest", columns=["sent_us"], wait="5 seconds"):
                now = time.time_ns() // 1000
                warm_at = warm_at or time.perf_counter() + WARM_UP_SECONDS
                if time.perf_counter() > warm_at:
                    taken += [(now - at) / 1e6 for at in batch.column("sent_us").to_pylist()]
                if time.perf_counter() > warm_at + seconds:
                    return taken
            if process.poll() is not None or (warm_at is None and time.perf_counter() - begun > SECONDS_MAX):
                raise RuntimeError("the program gives no rows; BENCHMARK_LOG=file keeps what it said")
    finally:
        ended.set()
        appender.join()
