"""FlowHandle: controls a running flow in the process that started it."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from mainstem.arguments import checked_calls
from mainstem.batch import FlowRun, StageProgress
from mainstem.clock import Clock
from mainstem.durations import Duration, duration_us
from mainstem.errors import FlowFailed, Unavailable
from mainstem.spark.checkpoint.checkpoint_location import CheckpointLocation
from mainstem.spark.sources.batch_pace import BatchPace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from mainstem.flows.program import PlannedFlow

__all__ = ["FlowHandle", "FlowProgress", "PartitionProgress", "SourceProgress", "spark_has_ended"]

_ENDED = re.compile(r"on a stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown")
State = Literal["starting", "catching up", "running", "waiting to restart", "stopped", "failed"]


@dataclass(frozen=True)
class PartitionProgress:
    """What a batch read of one partition: from offset `start` up to `stop`, not included; None if unknown. `watermark` is
    the event time that the partition has reached, minus the flow's delay."""

    partition: int
    start: int | None
    stop: int
    watermark: datetime | None = None


@dataclass(frozen=True)
class SourceProgress:
    """What a batch read of one topic, or of a view ("view revenue"), whose offsets are positions of changes.

    `records` counts the records that the flow got, without those that its filters dropped at the source. In a flow with several
    sources that travel as columns it is the number of offsets.
    """

    source: str
    records: int
    partitions: tuple[PartitionProgress, ...]


@dataclass(frozen=True)
class FlowProgress:
    """The progress of a flow, as of its last batch."""

    batch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    # Late rows that still corrected a result; rows that were too late and were dropped.
    late: int = 0
    too_late: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    watermark: str | None = None
    state_rows: int = 0
    state_bytes: int = 0
    batch_ms: int = 0
    rows_per_second: float = 0.0
    phases: dict[str, int] = field(default_factory=dict)
    # How long the sink took, without the computation of its rows; None if it does not say.
    sink_ms: int | None = None
    sources: tuple[SourceProgress, ...] = ()
    stages: tuple[StageProgress, ...] = ()


def spark_has_ended(error: BaseException) -> bool:
    """Whether an error of a call to Spark says that its Java process has ended, or is ending."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    # A call that Java did not answer raises the class itself.
    if isinstance(error, Py4JNetworkError | ConnectionError) or type(error) is Py4JError:
        return True
    try:
        return _ENDED.search(str(error)) is not None
    except (Py4JError, OSError):
        # Java itself is asked for the text of its errors.
        return True


@checked_calls
class FlowHandle:
    """One flow of a running program. Thread-safe."""

    def __init__(self, planned: PlannedFlow, clock: Clock) -> None:
        self.planned = planned
        self.run: FlowRun | None = None
        # The checkpoint location of this run.
        self.location: CheckpointLocation | None = None
        self.query: StreamingQuery | None = None
        # When its next batch may begin.
        self.pace = BatchPace(planned.flow.every_us)
        self.state: State = "starting"
        self.error: FlowFailed | None = None
        # Why it waits to restart.
        self.retried_after: Unavailable | None = None
        # Since when, in microseconds since 1970.
        self.waiting_since: int | None = None
        # What became of its store, in words: it lost rows, it was filled again.
        self.notes: list[str] = []
        # The error that a batch raised, before Spark converts it to text.
        self.raised: BaseException | None = None
        self.progress = FlowProgress()
        # What each batch of this run wrote, to be added to Spark's progress report.
        self.written: dict[int, Any] = {}
        self.batches = 0
        # All batches of a real-time flow, including empty ones.
        self._rounds = 0
        self._clock = clock
        self._changed = threading.Condition()
        self.stopping = threading.Event()

    @property
    def name(self) -> str:
        """The flow's name."""
        return self.planned.name

    def __repr__(self) -> str:
        return f'<flow "{self.name}": {self.state}, batch {self.progress.batch}>'

    def become(self, state: State, error: FlowFailed | None = None) -> None:
        """Record the outcome of the flow, and wake all waiting threads."""
        with self._changed:
            self.state = state
            self.error = error
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop after the current batch; the next run resumes there. May be called twice."""
        self.stopping.set()
        query = self.query
        with self.pace.hurry():
            try:
                if query is not None and query.isActive:
                    query.stop()
            except Exception as error:
                # A signal to the whole group of processes ends Java too: the next run repeats the unfinished batch.
                if not spark_has_ended(error):
                    raise
            with self._changed:
                self._changed.wait_for(lambda: self.state in ("stopped", "failed"), timeout=60)

    def wait_until_idle(self, wait: Duration | None = None) -> None:
        """Return when all records of its sources are in its sink. Raises the error of the flow if it failed.

        With `wait` it gives up if the flow has not started a query within that time.
        """
        deadline = None if wait is None else self._clock.monotonic() + duration_us(wait, setting="wait")
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.state not in ("starting", "catching up", "waiting to restart"), timeout=1
                )
                if self.error is not None:
                    raise self.error
                if self.state == "stopped":
                    return
                query = self.query
            if deadline is not None and self._clock.monotonic() > deadline:
                raise Unavailable(
                    f'flow "{self.name}" is not idle yet',
                    detail=f"It is at batch {self.progress.batch}, {self.progress.lag_records:,} records behind.",
                    hint="Wait longer, or check its progress.",
                )
            if self.planned.flow.mode == "real-time" and self.state == "running":
                # A real-time query is never idle: check again after each batch.
                self._next_batch()
                if self.state == "running":
                    return
                continue
            if query is not None and self.state == "running":
                try:
                    with self.pace.hurry():
                        query.processAllAvailable()
                except Exception:  # noqa: BLE001
                    # The query ended; the thread that watches it reports why.
                    self._wait_until_ended()
                    continue
                return

    def batch_over(self, rows: int) -> None:
        """Record the end of a batch of a real-time flow, and wake all waiting threads. An empty batch did nothing."""
        with self._changed:
            self.batches += 1 if rows else 0
            self._rounds += 1
            self._changed.notify_all()

    def _next_batch(self) -> None:
        with self._changed:
            before = self._rounds
            self._changed.wait_for(lambda: self._rounds > before or self.state != "running")

    def _wait_until_ended(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.state != "running", timeout=60)
