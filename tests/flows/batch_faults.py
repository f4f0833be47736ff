"""Faults for one batch of a flow in this process: it fails where a kill would strike, and the flow is started again.

For the state of a flow: a bit flipped in every file of it (`damaged_runs`).

Which fault                 what it is
twice                       all tasks run twice: each bucket has two receipts, and runs that nobody names
stage_runs_written          a worker is killed when the state of its bucket is written, and nobody was told
sink                        the sink fails when it has read the rows, and holds none of them
batch_written               the sink holds the batch, its state is not kept
stage_late_appended         its late rows are in their topic, its state is not kept
stage_manifest_written      its state is kept, Spark does not know that the batch is done
batch_begun                 Spark knows that the batch before is done, and has begun the next one
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem import Mainstem, crash_points
from mainstem.errors import Corrupt, FlowFailed
from mainstem.operators.stage.state_run_file import RunEntry, open_run
from mainstem.operators.stage.state_runs import StageManifests
from tests.flows.memory_sink import MemorySink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.batch import Batch, Written
    from mainstem.flows.program import Flows
    from mainstem.flows.runner import RunningFlows

IN_THE_DRIVER = ("batch_written", "stage_late_appended", "stage_manifest_written", "batch_begun")
FAULTS = ("twice", "stage_runs_written", "sink", *IN_THE_DRIVER)


@dataclass
class RereadingSink(MemorySink):
    """Reads a batch twice where it is told to."""

    rereading: bool = False

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        if self.rereading:
            self.attempts.setdefault(batch.number, []).append(rows.toArrow().to_pylist())
        return super().write(rows, batch)


class Crash(Exception):
    """Stands for the end of the process."""


@contextmanager
def failing_at(*points: str) -> Iterator[None]:
    """Whoever reaches one of these points of `crash_points` first meets an error there, instead of being killed."""
    left, usual = list(points), crash_points.reach

    def reach(name: str, batch: int | None = None) -> None:
        with suppress(ValueError):
            left.remove(name)
            raise Crash(name)

    with pytest.MonkeyPatch.context() as patch:
        for module in [*sys.modules.values()]:
            if vars(module).get("reach") is usual:
                patch.setattr(module, "reach", reach)
        yield


class FaultyRun:
    """Runs flows step by step, with a fault in some of the steps. For one thread."""

    def __init__(self, stem: Mainstem, flows: Flows, sink: RereadingSink, folder: Path) -> None:
        self._stem = stem
        self._flows = flows
        self._sink = sink
        self._folder = folder
        self._running: RunningFlows = stem.start(flows)
        # The faults that struck.
        self.struck: list[str] = []

    def step(self, act: Callable[[], Any], fault: str = "") -> None:
        """Do something to the log, and let the flows take it."""
        failed = False
        with self._prepared(fault):
            act()
            try:
                self._running.wait_until_idle()
            except FlowFailed:
                if not fault:
                    raise
                failed = True
        if failed:
            self._restart()
            self._running.wait_until_idle()
        # A worker that is gone is another one's work to do again: the flow says nothing of it.
        killed = fault == "stage_runs_written" and (self._folder / "killed").exists()
        if failed or killed or fault == "twice":
            self.struck.append(fault)

    def stop(self) -> None:
        self._running.stop()

    def _restart(self) -> None:
        self._running.stop()
        self._running = self._stem.start(self._flows)

    @contextmanager
    def _prepared(self, fault: str) -> Iterator[None]:
        if fault in IN_THE_DRIVER:
            with failing_at(fault):
                yield
        elif fault == "stage_runs_written":
            environment = self._stem.spark.sparkContext.environment
            environment[crash_points.VARIABLE] = f"{fault}:1@{self._folder}/killed"
            try:
                yield
            finally:
                del environment[crash_points.VARIABLE]
        else:
            self._sink.rereading = fault == "twice"
            if fault == "sink":
                self._sink.failing.add(self._sink.committed_batch + 1)
            yield
            self._sink.rereading = False


def damaged_runs(manifests: StageManifests) -> list[tuple[str, RunEntry]]:
    """Flip a bit in every run of every stage; where they lie."""
    manifest = manifests.last()
    assert manifest is not None
    found = []
    for stage, content in manifest["stages"].items():
        for bucket in content["state"].values():
            for run in bucket["runs"]:
                with open(f"{manifests.folder}/{stage}/{run['name']}", "r+b") as file:
                    file.seek(run["bytes"] // 2)
                    [byte] = file.read(1)
                    file.seek(run["bytes"] // 2)
                    file.write(bytes([byte ^ 4]))
                found.append((f"{manifests.folder}/{stage}", RunEntry(**run)))
    return found


def refused_as_damaged(stem: Mainstem, flows: Flows, runs: list[tuple[str, RunEntry]]) -> None:
    """A run over damaged state is refused, and so is every file of it."""
    # Processes that knew the files before would not look at them again.
    environment = stem.spark.sparkContext.environment
    environment["MAINSTEM_TEST"] = "fresh workers"
    try:
        with pytest.raises(FlowFailed) as raised:
            stem.run(flows, until="idle")
    finally:
        del environment["MAINSTEM_TEST"]
    assert "state of a flow is damaged" in str(raised.value)
    for folder, run in runs:
        with pytest.raises(Corrupt):
            open_run(folder, run)
