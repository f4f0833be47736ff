"""Engine: processes a batch of rows with the state of an operator, without Spark.

An operator's rows are divided into buckets by a hash of their key; an engine sees the rows and the state of one bucket
at a time. Its output depends on nothing else, so a replayed batch gives the same output.

State is a table. Each row of it belongs to a *group* (a hash of the key) and is identified in its group
by its *item*, a second number that the engine chooses; it may wait for a time:

    group           int64       hash of the key
    item            int64       which of the group's rows
    event_due       int64       wakes when the watermark reaches this; NEVER if it waits for none
    processing_due  int64       wakes when the clock reaches this
    ...                         the engine's own columns
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.log.watermark import NO_TIME

__all__ = ["BatchClock", "Engine", "Int64Array", "NEVER", "NO_TIME", "STATE_COLUMNS", "StateTable", "Step"]

Int64Array = npt.NDArray[np.int64]

# Later than every time.
NEVER = 2**63 - 1

STATE_COLUMNS = (
    pa.field("group", pa.int64(), nullable=False),
    pa.field("item", pa.int64(), nullable=False),
    pa.field("event_due", pa.int64(), nullable=False),
    pa.field("processing_due", pa.int64(), nullable=False),
)


@dataclass(frozen=True)
class BatchClock:
    """The clock of a batch, in microseconds; written before the batch runs, so the same in a replay.

    No row of a later batch has its own watermark below `watermark`.
    """

    watermark: int = NO_TIME
    now: int = NO_TIME
    # The clock of the previous batch.
    watermark_before: int = NO_TIME
    now_before: int = NO_TIME
    # No row of a later batch, of any input, was appended before this.
    appended: int = NO_TIME

    def earlier(self, span: int) -> BatchClock:
        """The clock with its watermark `span` microseconds earlier.

        >>> BatchClock(100, 7, 40, 6).earlier(30)
        BatchClock(watermark=70, now=7, watermark_before=10, now_before=6, appended=-9223372036854775808)
        """
        mine, before = (
            at if at == NO_TIME or at >= NEVER - 1 else at - span for at in (self.watermark, self.watermark_before)
        )
        return replace(self, watermark=mine, watermark_before=before)


@dataclass
class Step:
    """The result of one batch in one bucket."""

    # In output order.
    output: pa.Table
    # The watermark of each output row: it follows from the input rows, not from the batch. None if only the batch's is
    # known.
    own: Int64Array | None = field(default=None, kw_only=True)
    # State rows to upsert, and (group, item) of those to delete.
    put: pa.Table | None = None
    gone: pa.Table | None = None
    # Late rows that were not processed, with the columns of `late_schema`.
    late: pa.Table | None = None
    # Counters: late rows, duplicates, ...
    counts: Mapping[str, int] = field(default_factory=dict)


class StateTable(Protocol):
    """The state of one bucket as it was before the batch."""

    def find(self, groups: Int64Array) -> pa.Table:
        """All rows of these groups, ordered by (group, item)."""

    def find_items(self, groups: Int64Array, items: Int64Array) -> pa.Table:
        """The rows with these groups and items that exist, ordered by (group, item). Does not read the other rows of the
        groups."""

    def scan(self) -> pa.Table:
        """All rows of the bucket, ordered by (group, item)."""

    def due(self, clock: BatchClock) -> pa.Table:
        """All rows that wake in this batch: `event_due` at or below the watermark, or `processing_due` at or below now."""


class Engine(Protocol):
    """The computation of one operator. It is sent to Spark's workers, so it holds values only."""

    @property
    def state_schema(self) -> pa.Schema:
        """STATE_COLUMNS, then the engine's own."""

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of `Step.output`."""

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of `Step.late`; None where no row can be too late."""

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        """Process the rows of a batch, in the order of (topic, partition, offset), and the state that is due."""

    def describe(self) -> dict[str, Any]:
        """What the stored state depends on, as JSON: an engine with another description cannot use it."""
