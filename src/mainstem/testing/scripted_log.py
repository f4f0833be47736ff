"""What a log would make of a script: each row with its place and its own watermark, and the clock of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from mainstem.clock import ManualClock
from mainstem.durations import Duration, duration_us
from mainstem.log.record import RECORD, record_array, record_schema
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD, times_of, with_watermark
from mainstem.operators.stage.engine import BatchClock
from mainstem.testing.scripted_rows import ScriptedBatch

__all__ = ["ONLY", "Append", "LogStep", "Moment", "ScriptedTopic", "batches_of"]


# What the stream of a script with one is called.
ONLY = "test"


@dataclass(frozen=True)
class Append:
    """Rows that are appended to a partition."""

    rows: pa.Table
    partition: int = 0
    killed: bool = False
    stream: str = ONLY


@dataclass(frozen=True)
class Moment:
    """A time that comes, in microseconds: the watermark of a stream is stated, or the clock moves."""

    kind: Literal["watermark", "now"]
    at: int
    killed: bool = False
    stream: str = ONLY


@dataclass(frozen=True)
class ScriptedTopic:
    """What a stream is of: its columns, and what its watermark follows."""

    schema: pa.Schema
    event_time: str | None
    delay: Duration | None

    @property
    def shown(self) -> pa.Schema:
        """The columns that rows of the log have."""
        record = RECORD if self.event_time is None else WATERMARKED_RECORD
        return record_schema(self.schema, self.event_time, record=record)


LogStep = Append | Moment


@dataclass
class _Log:
    """What is known of time so far in one stream."""

    topic: ScriptedTopic
    stated: int = NO_TIME
    highest: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def watermark(self) -> int:
        """The lowest over partitions of the highest event time, less the delay; or what was stated, if that is later."""
        observed = min(self.highest.values(), default=NO_TIME)
        if self.topic.delay is None or observed == NO_TIME:
            return self.stated
        return max(observed - duration_us(self.topic.delay, setting="delay"), self.stated)

    def taken(self, step: LogStep, now: int) -> pa.Table:
        """The rows of a step as the log gives them; the log knows of the step from then on."""
        shown, event_time = self.topic.shown, self.topic.event_time
        if isinstance(step, Moment):
            if step.kind == "watermark":
                self.stated = max(self.stated, step.at)
            return shown.empty_table()
        # Every row of an append knows what was known before it.
        own, count = self.watermark, step.rows.num_rows
        first = self.ends.get(step.partition, 0)
        record = record_array(step.partition, first, now, count=count)
        if event_time is not None:
            known = pa.array(np.full(count, own), mask=np.full(count, own == NO_TIME))
            record = with_watermark(record, known.view(pa.timestamp("us", "UTC")))
            times = times_of(step.rows.column(event_time).combine_chunks().cast(pa.timestamp("us", "UTC")))
            self.highest[step.partition] = max(self.highest.get(step.partition, NO_TIME), *times.tolist(), NO_TIME)
        self.ends[step.partition] = first + count
        return pa.Table.from_arrays([*step.rows.columns, record], schema=shown)


def batches_of(
    topics: Mapping[str, ScriptedTopic], steps: Sequence[LogStep], batches: str
) -> dict[str, list[ScriptedBatch]]:
    """The batches in which the rows of each stream are read; all streams have the same batches and clocks."""
    logs = {name: _Log(topic) for name, topic in topics.items()}
    found: dict[str, list[ScriptedBatch]] = {name: [] for name in topics}
    now = ManualClock().now()
    clock = BatchClock(now=now)
    for step in steps:
        now = step.at if isinstance(step, Moment) and step.kind == "now" else now
        own = logs[step.stream].watermark
        rows = logs[step.stream].taken(step, now)
        others = min((log.watermark for name, log in logs.items() if name != step.stream), default=own)
        cuts = list(range(1, rows.num_rows)) if batches == "single rows" else []
        for first, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
            # Rows that are left have a watermark of `own`, so it cannot be later than that.
            mine = logs[step.stream].watermark if end == rows.num_rows else own
            watermark = mine if len(logs) == 1 else min(mine, others)
            clock = BatchClock(max(watermark, clock.watermark), now, clock.watermark, clock.now)
            for name, topic in topics.items():
                part = rows.slice(first, end - first) if name == step.stream else topic.shown.empty_table()
                found[name].append(ScriptedBatch(part, clock, step.killed))
    if batches == "one":
        last = BatchClock(clock.watermark, clock.now, NO_TIME, NO_TIME)
        return {name: [_united(of, topics[name], last)] for name, of in found.items()}
    return found


def _united(batches: Sequence[ScriptedBatch], topic: ScriptedTopic, clock: BatchClock) -> ScriptedBatch:
    rows = pa.concat_tables([topic.shown.empty_table(), *(batch.rows for batch in batches)])
    return ScriptedBatch(rows, clock, any(batch.killed for batch in batches))
