"""Scripted streams in a temporary home: topics, a flow that reads them, and a clock that the script advances.

Each step ends before the next one starts. A killed batch dies after its rows were computed and before they are committed;
the flow is then restarted, as after a crash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Written
from mainstem.clock import ManualClock, as_datetime
from mainstem.durations import Duration, duration_us
from mainstem.errors import FlowFailed, Invalid, TopicNotFound
from mainstem.flows.flow import Flow
from mainstem.flows.late_topic import late_topic_of
from mainstem.log.record import RECORD, record_array, record_schema
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD, times_of, with_watermark
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import set_now
from mainstem.stem import Mainstem, open_log
from mainstem.testing.scripted_rows import ScriptedBatch, TestResults, list_late

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mainstem.flows.runner import RunningFlows

__all__ = [
    "Append",
    "CollectingSink",
    "LogStep",
    "Moment",
    "ONLY",
    "ScriptedTopic",
    "batches_of",
    "partitions_of",
    "run_in_home",
]


# The log of a script: each row with its position and own watermark, and the clock of each batch.


# The name of the stream in a script with one stream.
ONLY = "test"


@dataclass(frozen=True)
class Append:
    """Rows that are appended to a partition; `changes`: the change of each, None if all are inserts."""

    rows: pa.Table
    partition: int = 0
    killed: bool = False
    stream: str = ONLY
    changes: pa.Array | None = None


@dataclass(frozen=True)
class Moment:
    """A time in microseconds: the watermark of a stream is declared, or the clock is advanced."""

    kind: Literal["watermark", "now"]
    at: int
    killed: bool = False
    stream: str = ONLY


@dataclass(frozen=True)
class ScriptedTopic:
    """The topic of a stream: its columns, its event time, its watermark's delay, and when it is idle."""

    schema: pa.Schema
    event_time: str | None
    delay: Duration | None
    idle_after: Duration | None = None

    @property
    def shown_schema(self) -> pa.Schema:
        """The columns of rows read from the log."""
        record = RECORD if self.event_time is None else WATERMARKED_RECORD
        return record_schema(self.schema, self.event_time, record=record)


LogStep = Append | Moment


class _Log:
    """The watermarks of one stream, as the embedded log records them and `idle_input` reads them."""

    def __init__(self, topic: ScriptedTopic, partitions: int) -> None:
        self.topic = topic
        self._delay = None if topic.delay is None else duration_us(topic.delay, setting="delay")
        self._after = None if topic.idle_after is None else duration_us(topic.idle_after, setting="idle_after")
        self._declared = NO_TIME
        # For each partition its highest event time, and the highest that was observed with its records.
        self._highest = [NO_TIME] * partitions
        self._observed = [NO_TIME] * partitions
        self._ends = [0] * partitions
        # The append time and watermark of the last rows, and of the last rows appended before that time.
        self._last = (NO_TIME, NO_TIME)
        self._before = (NO_TIME, NO_TIME)
        # The lowest watermark that a row may have; and the highest that was promised for later rows.
        self._floor = NO_TIME
        self._told = NO_TIME

    @property
    def steady(self) -> bool:
        """Whether it holds back other streams however long it is idle."""
        return self._after is None

    @property
    def own(self) -> int:
        """The lowest watermark that the next row can have, from this stream alone."""
        return self._less(max(min(self._highest), *self._observed))

    def watermark_before(self, now: int) -> int:
        """The watermark of the last rows that were appended before a time."""
        return self._last[1] if self._last[0] < now else self._before[1]

    def watermark(self, now: int, beside: Sequence[_Log]) -> int:
        """The lowest watermark that the next row can have in a flow with other streams."""
        known = max(self.own, self._floor)
        if self._silent(now) and beside:
            known = max(known, _lowest(beside, now))
            assert self._after is not None
            if all(now - log._last[0] > self._after for log in beside):
                # All streams are idle: the clock releases rows.
                known = max(known, min(log.own for log in beside))
        self._told = max(self._told, known)
        return known

    def apply(self, step: LogStep, now: int, beside: Sequence[_Log], *, replayed: bool) -> pa.Table:
        """Apply a step to the log; returns its rows as the log gives them."""
        shown, event_time = self.topic.shown_schema, self.topic.event_time
        if isinstance(step, Moment):
            if step.kind == "watermark":
                self._declared = max(self._declared, step.at)
                self._observed = [self._observe(number) for number in range(len(self._highest))]
            return shown.empty_table()
        count, number = step.rows.num_rows, step.partition
        record = record_array(number, self._ends[number], now, count=count, change=step.changes)
        if event_time is not None and count:
            if self._silent(now):
                self._floor = max(self._floor, _lowest(beside, now))
            # All rows of an append have the watermark from before it.
            self._observed[number] = self._observe(number)
            recorded = self._less(self._observed[number])
            own = max(recorded, self._floor, NO_TIME if replayed or self.steady else self._told)
            known = pa.array(np.full(count, own), mask=np.full(count, own == NO_TIME))
            record = with_watermark(record, known.view(pa.timestamp("us", "UTC")))
            times = times_of(step.rows.column(event_time).combine_chunks().cast(pa.timestamp("us", "UTC")))
            self._highest[number] = max(self._highest[number], *times.tolist())
            self._before = self._before if self._last[0] == now else self._last
            self._last = (now, max(self._last[1], recorded))
        elif event_time is not None:
            record = with_watermark(record, pa.nulls(0, pa.timestamp("us", "UTC")))
        self._ends[number] += count
        return pa.Table.from_arrays([*step.rows.columns, record], schema=shown)

    def _silent(self, now: int) -> bool:
        return self._after is not None and self._last[0] != NO_TIME and now - self._last[0] > self._after

    def _observe(self, number: int) -> int:
        """The highest event time observed before the next record of a partition. It never decreases."""
        if self._highest[number] == NO_TIME:
            return max(self._observed)
        return max(*self._observed, min(at for at in self._highest if at != NO_TIME))

    def _less(self, observed: int) -> int:
        if self._delay is None or observed == NO_TIME:
            return self._declared
        return max(observed - self._delay, self._declared)


def _lowest(beside: Sequence[_Log], now: int) -> int:
    return min((log.watermark_before(now) for log in beside if log._last[0] != NO_TIME), default=NO_TIME)


def batches_of(
    topics: Mapping[str, ScriptedTopic], steps: Sequence[LogStep], batches: str
) -> dict[str, list[ScriptedBatch]]:
    """The batches in which the rows of each stream are read; all streams have the same batches and clocks."""
    logs = {name: _Log(topic, partitions_of(name, steps)) for name, topic in topics.items()}
    timed = [log for log in logs.values() if log.topic.event_time is not None]
    beside = {
        log: [at for at in timed if at is not log and (at.steady or not any(x.steady for x in timed))] for log in timed
    }
    found: dict[str, list[ScriptedBatch]] = {name: [] for name in topics}
    now = ManualClock().now()
    clock = BatchClock(now=now)
    for step in steps:
        now = step.at if isinstance(step, Moment) and step.kind == "now" else now
        mine = logs[step.stream]
        rows = mine.apply(step, now, beside.get(mine, ()), replayed=batches == "one")
        cuts = list(range(1, rows.num_rows)) if batches == "single rows" else []
        for first, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
            reached = [log.watermark(now, beside[log]) for log in timed]
            if end < rows.num_rows:
                # The watermark must not exceed that of the remaining rows.
                reached.append(_first_watermark(rows.slice(end)))
            watermark = max(min(reached, default=NO_TIME), clock.watermark)
            clock = BatchClock(watermark, now, clock.watermark, clock.now)
            for name, topic in topics.items():
                part = rows.slice(first, end - first) if name == step.stream else topic.shown_schema.empty_table()
                found[name].append(ScriptedBatch(part, clock, step.killed))
    if batches == "one":
        last = BatchClock(clock.watermark, clock.now, NO_TIME, NO_TIME)
        return {name: [_unite(of, topics[name], last)] for name, of in found.items()}
    return found


def partitions_of(stream: str, steps: Sequence[LogStep]) -> int:
    """The number of partitions of a stream."""
    return 1 + max((step.partition for step in steps if isinstance(step, Append) and step.stream == stream), default=0)


def _first_watermark(rows: pa.Table) -> int:
    record = rows.column("record").combine_chunks()
    return int(times_of(record.field("watermark"))[0]) if "watermark" in [at.name for at in record.type] else NO_TIME


def _unite(batches: Sequence[ScriptedBatch], topic: ScriptedTopic, clock: BatchClock) -> ScriptedBatch:
    rows = pa.concat_tables([topic.shown_schema.empty_table(), *(batch.rows for batch in batches)])
    return ScriptedBatch(rows, clock, any(batch.killed for batch in batches))


# CollectingSink: keeps the rows of a test's flow in memory, batch by batch; it can be told to lose a batch.


@dataclass
class CollectingSink:
    """A `Sink` in memory. Committed batches outlive a run, as in every sink."""

    name: str
    kind: str = "memory"
    version: int = 1
    committed_batch: int = -1
    # The next batch is lost after its rows were read and before they are committed, as if the process had died.
    killing: bool = False
    batches: dict[int, pa.Table] = field(default_factory=dict)
    # The rows of lost batches.
    lost: dict[int, pa.Table] = field(default_factory=dict)
    # For each finished step of the script, the rows of its batches with their changes.
    steps: list[list[tuple[str, dict[str, Any]]]] = field(default_factory=list)
    _told: int = -1

    def accept(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def writer(self, run: FlowRun, schema: pa.Schema) -> CollectingSink:
        """The same sink for every run."""
        return self

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Keep the rows of a batch."""
        found = rows.toArrow()
        if self.killing:
            self.killing = False
            self.lost[batch.number] = found
            raise Invalid(f"batch {batch.number} was killed", detail="The test scripted it.", hint="It is repeated.")
        self.batches[batch.number] = found
        if batch.number in self.lost:
            _check_same(batch.number, _changes(self.lost[batch.number]), _changes(found))
        self.committed_batch = batch.number
        return Written(found.num_rows)

    def close(self) -> None:
        """Nothing is open."""

    def end_step(self) -> None:
        """End a step: its rows are those since the last step, without `record`, sorted by partition and offset."""
        numbers = sorted(number for number in self.batches if number > self._told)
        self.steps.append([change for number in numbers for change in _changes(self.batches[number])])
        self._told = max([self._told, *numbers])


def _check_same(number: int, first: list[Any], second: list[Any]) -> None:
    # As text: NaN is not equal to itself.
    if str(first) != str(second):
        raise AssertionError(f"batch {number} was killed and repeated, and returned {second} instead of {first}")


def _changes(rows: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    found = rows.to_pylist()
    if "record" in rows.column_names:
        found.sort(key=lambda row: (row["record"]["partition"], row["record"]["offset"]))
    changes = [(row.pop("record", None) or {}).get("change", "insert") for row in found]
    return list(zip(changes, found, strict=True))


FLOW = "results"
# Without a delay only declared watermarks count: with this delay, observed times never advance the watermark.
NEVER_BY_ITSELF = "36500 days"
# Columns of <flow>.late about the flow, not about the row.
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
        stem = Mainstem(open_log(home, clock=clock), home=home, spark=spark)
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
                # A step without a batch loses none.
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
            self._producer.declare_watermark(step.stream, as_datetime(step.at))
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
        return list_late(rows.drop_columns([name for name in OF_THE_FLOW if name in rows.column_names]))
