"""Build: one call of a program's function, which creates its flows and starts nothing.

A program is built several times: once to check it, then once for each flow that is started, with the columns and
conditions of its sources narrowed to what that flow needs. Each stream that a program creates is a *leaf*, numbered in the
order of creation, so that a leaf is found again in the next build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.spark.checkpoint.native_history import NativeHistory
from mainstem.spark.plan.row_expression import Condition
from mainstem.spark.sources.topic_request import ROWS_MAX, Cuts, Idle, TopicRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.operators.stage.stage import BatchStages, Stage

__all__ = ["NEVER_IDLE", "Build", "Leaf", "current_build"]

# `idle_after` of a stream that is never idle.
NEVER_IDLE = -1


@dataclass
class Leaf:
    """One stream of a program: its source, and the columns that a flow needs (None: all)."""

    number: int
    source: str
    schema: pa.Schema
    columns: tuple[str, ...] | None = None
    condition: Condition | None = None
    # Whether the other columns exist and are null: for a program that uses them in another flow.
    filled: bool = False
    # The delay of its watermark in microseconds; None if it has none.
    delay: int | None = None
    # After how many microseconds without an append it is idle: NEVER_IDLE, or None if the program does not say. `idle` is
    # the setting of its request, when the flow is known.
    idle_after: int | None = None
    idle: Idle | None = None
    # Whether it is the input of a table in which rows are looked up by time.
    table: bool = False
    # Whether it begins with the first record that its source has, and the offsets by partition at which it begins, if given.
    from_earliest: bool = False
    start: Mapping[str, int] | None = None


@dataclass
class Build:
    """One run of a program's function."""

    # The run of the one flow that is started from this build; None if the program is only checked.
    run: FlowRun | None = None
    # The leaves of an earlier build, by number; the others return their earlier frame.
    leaves: dict[int, Leaf] = field(default_factory=dict)
    frames: dict[int, DataFrame] = field(default_factory=dict)
    # Spark asks the sources of a flow in turn: if there are several, none may delay the others.
    wait_ms: int = 100
    only_topics: bool = False
    # Whether topics are read by our source or by Spark's Kafka source.
    mode: Literal["batches", "real-time"] = "batches"
    # The maximal number of rows of a batch while a flow catches up.
    rows_max: int = ROWS_MAX
    # The schemas of the sinks yielded so far: a later flow may read them before they exist.
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    # Sealed files that the flow's only source reads instead of its topic, or after which it reads the topic.
    files: NativeHistory | None = None
    after: NativeHistory | None = None
    # The stages, by number; what operators remember between builds; and the current batch, if the program is built for
    # one.
    stages: dict[int, Stage] = field(default_factory=dict)
    memory: dict[tuple[int, str], object] = field(default_factory=dict)
    batch: BatchStages | None = None
    # The numbers of the leaves of tables in which rows are looked up by time.
    tables: set[int] = field(default_factory=set)
    # The folder of the clock of staged batches, beside the checkpoint; see `batch_clock`.
    clock: str = ""
    # The folder in which the flow's sources agree on batch boundaries, and their requests; see `agreed_cut`.
    together: str = ""
    requests: list[TopicRequest] = field(default_factory=list)
    # The batch boundaries of a replay, by topic; see `TopicRequest.cuts`.
    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    next_stage: int = 0
    _next: int = 0

    def number(self) -> int:
        """The number of the next leaf."""
        self._next += 1
        return self._next - 1

    def stage_number(self) -> int:
        """The number of the next stage."""
        self.next_stage += 1
        return self.next_stage - 1

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Streams and stages created in here belong to this build."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Build | None] = ContextVar("mainstem_build", default=None)


def current_build() -> Build | None:
    """The current build of this thread."""
    return _current.get()
