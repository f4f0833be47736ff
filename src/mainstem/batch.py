"""What a sink receives from a flow: the run, the batch, and the result of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.spark.checkpoint.rejected_rows import RejectedRows

__all__ = ["Batch", "FlowRun", "Offsets", "StageFigures", "StageProgress", "Written"]

# topic -> partition -> the end offset: one after the last record.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class FlowRun:
    """One run of a flow. A later run of the same flow has a higher epoch, and fences this one."""

    flow: str
    epoch: int
    # Incremented by a rebuild: each version has its own checkpoint and, in a view, its own table.
    version: int = 1


@dataclass(frozen=True)
class Batch:
    """One batch of a run. A batch that is replayed has the same number, the same offsets and the same rows."""

    number: int
    run: FlowRun
    offsets: Offsets = field(default_factory=dict)
    # Takes the rows that the sink rejects; see `rejected_rows.reject`.
    rejected: RejectedRows | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class StageProgress:
    """One stage in a batch: its rows, and its state afterwards.

    `ms` is the time that its engine took, the sum over its buckets, which run in parallel; `slowest_bucket` took the longest,
    `slowest_ms`.
    """

    stage: str
    rows_in: int
    rows_out: int
    ms: int
    state_rows: int
    state_bytes: int
    late: int
    too_late: int
    slowest_bucket: int
    slowest_ms: int


@dataclass(frozen=True)
class StageFigures:
    """The size of the stages' state after a batch, and the number of its late rows and of those that were too late."""

    state_rows: int
    state_bytes: int
    late: int
    too_late: int
    # Microseconds; None if it is unknown.
    watermark: int | None
    # The number of input rows, if Spark does not know it; else None.
    rows_in: int | None = None
    stages: tuple[StageProgress, ...] = ()


@dataclass(frozen=True)
class Written:
    """How many rows of a batch a sink accepted and rejected, and the figures of the flow's stages, if it has any."""

    rows: int
    rejected: int = 0
    stages: StageFigures | None = field(default=None, kw_only=True)
    # The number of rows that the sources gave, if Spark does not know it; else None.
    rows_read: int | None = field(default=None, kw_only=True)
    # How long the sink took to write and commit the rows, after they were computed; None if it does not say.
    sink_ms: int | None = field(default=None, kw_only=True)
