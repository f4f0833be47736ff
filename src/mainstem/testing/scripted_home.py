"""Scripted streams in a home of their own: topics, a flow that reads them, and a clock that the script moves.

Each step is waited for before the next one. A batch that is killed dies when its rows were made and not yet taken; the flow is
then started again, as after a crash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import FlowFailed, TopicNotFound
from mainstem.flows.flow import Flow
from mainstem.flows.late_topic import late_topic_of
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log_on_spark.batch_clock import set_now
from mainstem.log_on_spark.flow_store import FlowStore
from mainstem.operators.stage.stage_manifest import StageManifests
from mainstem.stem import Mainstem
from mainstem.testing.collecting_sink import CollectingSink
from mainstem.testing.results import TestResults
from mainstem.testing.scripted_log import Append, LogStep, ScriptedTopic, partitions_of
from mainstem.testing.scripted_rows import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.flows.runner import RunningFlows

__all__ = ["run_in_home"]

FLOW = "results"
# Without a delay only what is stated moves the watermark: what is observed is so far behind that it never does.
NEVER_BY_ITSELF = "36500 days"
# Columns of <flow>.late that say where a row was found, not what it was.
OF_THE_FLOW = ("record", "stage", "version", "batch")


def run_in_home(
    topics: Mapping[str, ScriptedTopic],
    steps: Sequence[LogStep],
    operator: Callable[..., Any],
    spark: SparkSession | str,
) -> TestResults:
    """Run a script from its first step to its last; the operator takes the streams by their names."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory(prefix="mainstem-test-") as home:
        stem = Mainstem(EmbeddedLog(home, upkeep="manual", clock=clock), home=home, spark=spark)
        with stem:
            return _ScriptedHome(stem, clock, topics, steps, operator).run()


class _ScriptedHome:
    """One run. For one thread."""

    def __init__(
        self,
        stem: Mainstem,
        clock: ManualClock,
        topics: Mapping[str, ScriptedTopic],
        steps: Sequence[LogStep],
        operator: Callable[..., Any],
    ) -> None:
        self._stem = stem
        self._clock = clock
        self._topics = topics
        self._steps = steps
        self._operator = operator
        self._sink = CollectingSink(FLOW)
        for name, topic in topics.items():
            timed = {} if topic.event_time is None else {"idle_after": NEVER_BY_ITSELF, "ahead_max": NEVER_BY_ITSELF}
            stem.create_topic(
                name, schema=topic.schema, event_time=topic.event_time, partitions=partitions_of(name, steps), **timed
            )
        self._producer = stem.producer("test")
        self._manifests = StageManifests(FlowStore(stem.home, FLOW).checkpoint(1))

    def run(self) -> TestResults:
        set_now(self._manifests.folder, self._clock.now())
        running = self._stem.start(self._flows)
        try:
            for step in self._steps:
                self._sink.killing = step.killed
                self._do(step)
                running = self._until_idle(running)
                # A step that made no batch has none to lose.
                self._sink.killing = False
                self._sink.end_step()
        finally:
            running.stop()
        return self._results()

    def _flows(self, stem: Mainstem) -> Iterator[Flow]:
        streams = {}
        for name, topic in self._topics.items():
            if topic.event_time is None:
                streams[name] = stem.topic(name).stream()
                continue
            delay = NEVER_BY_ITSELF if topic.delay is None else topic.delay
            idle_after = "never" if topic.idle_after is None else topic.idle_after
            streams[name] = stem.topic(name).stream(watermark=delay, idle_after=idle_after)
        yield Flow(self._operator(**streams), into=self._sink)

    def _do(self, step: LogStep) -> None:
        if isinstance(step, Append):
            rows = step.rows
            if step.changes is not None:
                record = pa.StructArray.from_arrays([step.changes], ["change"])
                rows = rows.append_column("record", record)
            if rows.num_rows:
                self._stem.topic(step.stream).append(rows, partition=step.partition)
        elif step.kind == "watermark":
            self._producer.state_watermark(step.stream, as_datetime(step.at))
        else:
            self._clock.set(as_datetime(step.at))
            set_now(self._manifests.folder, step.at)

    def _until_idle(self, running: RunningFlows) -> RunningFlows:
        try:
            running.wait_until_idle()
        except FlowFailed:
            if not self._sink.lost:
                raise
            running.stop()
            running = self._stem.start(self._flows)
            running.wait_until_idle()
        return running

    def _results(self) -> TestResults:
        stages = (self._manifests.last() or {"stages": {}})["stages"]
        counts: dict[str, int] = {}
        for stage in stages.values():
            for what, count in stage["counts"].items():
                if count:
                    counts[what] = counts.get(what, 0) + count
        state = {name: sum(bucket["live"] for bucket in stage["state"].values()) for name, stage in stages.items()}
        return TestResults(self._sink.steps, self._late(), counts, state, len(self._sink.lost))

    def _late(self) -> list[dict[str, Any]]:
        try:
            rows = self._stem.topic(late_topic_of(FLOW)).to_arrow()
        except TopicNotFound:
            return []
        return told(rows.drop_columns([name for name in OF_THE_FLOW if name in rows.column_names]))
