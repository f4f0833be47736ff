"""What a log would make of a script: each row with its place and its own watermark, and the clock of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from mainstem.clock import ManualClock
from mainstem.log.record import RECORD, record_array, record_schema
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD, times_of, with_watermark
from mainstem.operators.stage.engine import BatchClock
from mainstem.testing.scripted_rows import ScriptedBatch

__all__ = ["Append", "LogStep", "Moment", "batches_of"]


@dataclass(frozen=True)
class Append:
    """Rows that are appended to a partition."""

    rows: pa.Table
    partition: int = 0
    killed: bool = False


@dataclass(frozen=True)
class Moment:
    """A time that comes, in microseconds: the watermark is stated, or the clock moves."""

    kind: Literal["watermark", "now"]
    at: int
    killed: bool = False


LogStep = Append | Moment


@dataclass
class _Log:
    """What is known of time so far."""

    delay: int | None
    stated: int = NO_TIME
    now: int = field(default_factory=lambda: ManualClock().now())
    highest: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def watermark(self) -> int:
        """The lowest over partitions of the highest event time, less the delay; or what was stated, if that is later."""
        observed = min(self.highest.values(), default=NO_TIME)
        if self.delay is None or observed == NO_TIME:
            return self.stated
        return max(observed - self.delay, self.stated)


def batches_of(
    schema: pa.Schema, event_time: str | None, delay: int | None, steps: Sequence[LogStep], batches: str
) -> tuple[pa.Schema, list[ScriptedBatch]]:
    """The schema that rows of the log have, and the batches in which they are read."""
    shown = record_schema(schema, event_time, record=RECORD if event_time is None else WATERMARKED_RECORD)
    log = _Log(delay)
    found: list[ScriptedBatch] = []
    clock = BatchClock(now=log.now)
    for step in steps:
        # Every row of an append knows what was known before it.
        own = log.watermark
        rows = _taken(log, step, shown, event_time, own)
        cuts = list(range(1, rows.num_rows)) if batches == "single rows" else []
        for first, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
            # Rows that are left have a watermark of `own`, so it cannot be later than that.
            watermark = log.watermark if end == rows.num_rows else own
            clock = BatchClock(max(watermark, clock.watermark), log.now, clock.watermark, clock.now)
            found.append(ScriptedBatch(rows.slice(first, end - first), clock, step.killed))
    if batches == "one":
        whole = pa.concat_tables([shown.empty_table(), *(batch.rows for batch in found)])
        last = BatchClock(clock.watermark, clock.now, NO_TIME, NO_TIME)
        return shown, [ScriptedBatch(whole, last, any(batch.killed for batch in found))]
    return shown, found


def _taken(log: _Log, step: LogStep, shown: pa.Schema, event_time: str | None, own: int) -> pa.Table:
    """The rows of a step as the log gives them; the log knows of the step from then on."""
    if isinstance(step, Moment):
        if step.kind == "now":
            log.now = step.at
        else:
            log.stated = max(log.stated, step.at)
        return shown.empty_table()
    count = step.rows.num_rows
    first = log.ends.get(step.partition, 0)
    record = record_array(step.partition, first, log.now, count=count)
    if event_time is not None:
        watermark = pa.array(np.full(count, own), mask=np.full(count, own == NO_TIME)).view(pa.timestamp("us", "UTC"))
        record = with_watermark(record, watermark)
        times = times_of(step.rows.column(event_time).combine_chunks().cast(pa.timestamp("us", "UTC")))
        log.highest[step.partition] = max(log.highest.get(step.partition, NO_TIME), *times.tolist(), NO_TIME)
    log.ends[step.partition] = first + count
    return pa.Table.from_arrays([*step.rows.columns, record], schema=shown)
