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
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.spark.checkpoint.native_history import NativeHistory
from mainstem.spark.sources.topic_request import ROWS_MAX, TopicRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NEVER_IDLE", "Build", "Leaf", "current_build"]

# Of a stream that always holds the others back.
NEVER_IDLE = -1


@dataclass
class Leaf:
    """One stream of a program: what it reads, and what of it a flow needs (None: all columns)."""

    number: int
    source: str
    schema: pa.Schema
    columns: tuple[str, ...] | None = None
    condition: Any = None
    # Whether the other columns are there, and null: for a program that names them on its way to another flow.
    filled: bool = False
    # How far its watermark lags behind, in microseconds; None where it has none.
    delay: int | None = None
    # After how many microseconds without an append it stops holding the others of its flow back: NEVER_IDLE, or None where the
    # program does not say. `idle` is what a request says of it, when the flow is known.
    idle_after: int | None = None
    idle: Any = None
    # Whether it is what a table is made of in which rows are looked up by time.
    table: bool = False


@dataclass
class Build:
    """One run of a program's function."""

    # The run of the one flow that is to be started from this build; None where it is only looked at.
    run: FlowRun | None = None
    # What an earlier build found out about each leaf, by its number; the others give the frame they gave then.
    leaves: dict[int, Leaf] = field(default_factory=dict)
    frames: dict[int, DataFrame] = field(default_factory=dict)
    # The flow's sources are asked in turn: where there are several, none may hold up the others.
    wait_ms: int = 100
    # Whether topics are read by our source, or by Spark's own of Kafka.
    mode: Literal["batches", "real-time"] = "batches"
    # How many rows a batch may have while a flow catches up.
    rows_max: int = ROWS_MAX
    # What the sinks that were yielded so far will hold: a later flow may read them before they exist.
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    # Sealed files that the flow's one source reads instead of its topic, or behind which it goes on with the topic.
    files: NativeHistory | None = None
    after: NativeHistory | None = None
    # The stages that were made, by their number; what operators found out about themselves; and the batch that is on its
    # way through the stages, where the program is built for one.
    stages: dict[int, Any] = field(default_factory=dict)
    memory: dict[Any, Any] = field(default_factory=dict)
    batch: Any = None
    # The numbers of the leaves that tables are made of in which rows are looked up by time.
    tables: set[int] = field(default_factory=set)
    # Beside which checkpoint the clock of staged batches is kept; see `batch_clock`.
    clock: str = ""
    # Where the flow's sources agree on the ends of its batches, and what each of them wants; see `agreed_cut`.
    together: str = ""
    requests: list[TopicRequest] = field(default_factory=list)
    # Of a replay: where its batches end, by topic; see `TopicRequest.cuts`.
    cuts: Mapping[str, Any] = field(default_factory=dict)
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
    def entered(self) -> Iterator[None]:
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
