"""What a stage adds to a batch, and what a million open windows cost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import mainstem
from benchmarks import process_tree
from benchmarks.figure import Figure
from benchmarks.flows_latency import empty_batches
from benchmarks.flows_run import FlowsRun, say
from benchmarks.windows_program import Kept
from mainstem.flows.flow import Flow
from mainstem.operators import tumbling, windowed
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "device BIGINT, value BIGINT, at TIMESTAMP"
MANY, FEW = 1_000_000, 10_000
SMALL_BATCHES = 25
WARM_UP_BATCHES = 10

Rows = Callable[["DataFrame"], "DataFrame"]


def devices(first: int, count: int) -> pa.Table:
    """One row for each of some devices, all within one window of a day. Their numbers and values are as serial numbers and
    readings are, not all alike: state of one value over and over takes no room anywhere."""
    numbers = np.arange(first, first + count)
    chance = np.random.default_rng(first)
    times = int(BEGIN.timestamp() * 1e6) + chance.integers(0, 3_600_000_000, count)
    serial = (numbers * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & (2**62 - 1)
    columns = {"device": serial, "value": chance.integers(0, 100_000, count)}
    return pa.table(columns | {"at": pa.array(times).view(pa.timestamp("us", "UTC"))})


def in_windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return windowed(rows, tumbling("1 day"), by="device", aggregates=[F.sum("value").alias("value")])


def in_spark_windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.groupBy(F.window("at", "1 day"), "device").agg(F.sum("value").alias("value"))


def unchanged(rows: DataFrame) -> DataFrame:
    return rows


def nothing(rows: DataFrame) -> DataFrame:
    """A stage that does nothing."""
    from benchmarks.passing_engine import passed

    return passed(rows, "device")


def small_batches(stem: Mainstem, operator: Rows, open_windows: int) -> tuple[float, float, str]:
    """After so many windows were opened: CPU-seconds and seconds of a batch of 100 rows, and the flow's checkpoint."""
    topic = stem.create_topic("readings", schema=SCHEMA, event_time="at")
    sink = Kept("q_small")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(operator(stem.topic("readings").stream(watermark="1 second")), into=sink)

    with stem.start(flows) as running:
        for first in range(0, open_windows, 100_000):
            topic.append(devices(first, min(100_000, open_windows - first)))
            running.wait_until_idle()
        cpu, seconds = [], []
        handle = running["q_small"]
        for number in range(WARM_UP_BATCHES + SMALL_BATCHES):
            before = process_tree.cpu_seconds()
            topic.append(devices(number * 37 % max(1, open_windows - 100), 100))
            running.wait_until_idle()
            cpu.append(process_tree.cpu_seconds() - before)
            seconds.append(handle.progress.batch_ms / 1e3)
    checkpoint = FlowStore(stem.home, "q_small").checkpoint(1)
    return median(cpu[WARM_UP_BATCHES:]), median(seconds[WARM_UP_BATCHES:]), checkpoint


def _apart(run: FlowsRun, operator: Rows, open_windows: int, then: Callable[[str], Any]) -> tuple[float, float, Any]:
    with tempfile.TemporaryDirectory(dir=run.folder) as home, mainstem.open(home, upkeep="manual") as stem:
        cpu, seconds, checkpoint = small_batches(stem, operator, open_windows)
        return cpu, seconds, then(checkpoint)


def latency(run: FlowsRun) -> list[Figure]:
    """What a stage that does nothing adds to a batch, in units of an empty micro-batch of plain Spark."""
    say("latency: empty micro-batches of plain Spark")
    empty = median(empty_batches(run))
    say("latency: without a stage")
    _, plain, _ = _apart(run, unchanged, 0, str)
    say("latency: with a stage that does nothing")
    _, ours, _ = _apart(run, nothing, 0, str)
    return [
        Figure(
            "a stage that does nothing: adds to a batch, in empty micro-batches of plain Spark",
            (ours - plain) / empty,
            at_most=0.5,
            detail=f"{ours * 1e3:.0f} ms against {plain * 1e3:.0f} ms a batch; an empty one of Spark's {empty * 1e3:.0f} ms",
        )
    ]


def _manifest_bytes(checkpoint: str) -> int:
    manifest = StageManifests(checkpoint).last()
    assert manifest is not None
    states = [bucket for stage in manifest["stages"].values() for bucket in stage["state"].values()]
    return sum(int(run["bytes"]) for state in states for run in state["runs"])


def _spark_bytes(checkpoint: str) -> int:
    return sum(
        os.path.getsize(f"{folder}/{name}") for folder, _, names in os.walk(f"{checkpoint}/state") for name in names
    )


def state(run: FlowsRun) -> list[Figure]:
    """A million open windows against ten thousand, and their bytes against Spark's own."""
    say(f"state: {FEW:,} open windows")
    few, _, _ = _apart(run, in_windows, FEW, str)
    say(f"state: {MANY:,} open windows")
    many, _, ours = _apart(run, in_windows, MANY, _manifest_bytes)
    say(f"state: {MANY:,} open windows in Spark")
    _, _, plain = _apart(run, in_spark_windows, MANY, _spark_bytes)
    return [
        Figure(
            "a batch of 100 rows with a million open windows: CPU of one with ten thousand",
            many / few,
            at_most=2.0,
            detail=f"{many * 1e3:.0f} against {few * 1e3:.0f} CPU-ms",
        ),
        Figure(
            "bytes of a million open windows: of Spark's own state",
            ours / plain,
            at_most=2.0,
            detail=f"{ours / 1e6:.0f} against {plain / 1e6:.0f} MB",
        ),
    ]
