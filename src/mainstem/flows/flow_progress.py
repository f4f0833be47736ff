"""The progress of every batch: a row in the topic `mainstem.progress`, and the handle's `progress`.

Spark reports a batch after it is committed; the rows written into the sink and the lag of the flow are added. A
batch that is replayed after a crash has a row for each attempt that was committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from mainstem.batch import FlowRun, Written
from mainstem.clock import as_datetime
from mainstem.errors import MainstemError
from mainstem.flows.flow_handle import FlowHandle, FlowProgress
from mainstem.flows.progress_rows import ProgressRows
from mainstem.flows.real_time import note_unreadable, unreadable_in
from mainstem.flows.source_progress import batch_sources, lag_after, source_progress
from mainstem.spark.checkpoint.flow_store import FlowStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.stem import Mainstem

__all__ = ["BatchListener", "ProgressReports", "query_name"]


# BatchListener: receives Spark's progress report on each batch as JSON.
#
# PySpark's own listener makes a call to Java for every part of a report: 60 to 90 ms of CPU time per batch. This one makes
# one call.


class BatchListener:
    """Reports every batch of a session's queries, from `begin` to `end`."""

    def __init__(self, spark: SparkSession, tell: Callable[[dict[str, Any]], None]) -> None:
        self._spark = spark
        self._tell = tell
        self._known_to_java: Any = None

    def begin(self) -> None:
        """Start listening."""
        from pyspark import java_gateway

        jvm: Any = self._spark._jvm
        start_callbacks: Callable[..., None] = java_gateway.ensure_callback_server_started
        start_callbacks(self._spark.sparkContext._gateway)
        self._known_to_java = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._spark.streams._jsqm.addListener(self._known_to_java)

    def end(self) -> None:
        """Stop listening. May be called twice."""
        if self._known_to_java is not None:
            self._spark.streams._jsqm.removeListener(self._known_to_java)
            self._known_to_java = None

    # Called from Java

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - Spark's names
    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802
    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._tell(json.loads(event.progress().json()))

    class Java:
        """The Java interfaces of this object (Py4J)."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def query_name(run: FlowRun) -> str:
    """The name of a run's query in Spark, which must be unique in a session."""
    return f"{run.flow} v{run.version} run {run.epoch}"


class ProgressReports:
    """Reports for the flows of one program. `tell` is called after each batch, with the handle of its flow."""

    def __init__(self, stem: Mainstem, tell: Callable[[FlowHandle], None] | None = None) -> None:
        self._stem = stem
        self._tell = tell
        self._handles: list[FlowHandle] = []
        self._listener: BatchListener | None = None
        self._rows = ProgressRows(stem.log)

    def begin(self, handles: Iterable[FlowHandle]) -> None:
        """Start listening to Spark's reports on these flows."""
        self._handles = list(handles)
        self._listener = BatchListener(self._stem.spark, self.note)
        self._listener.begin()

    def end(self) -> None:
        """Stop listening, and write the reports that wait."""
        if self._listener is not None:
            self._listener.end()
        self._rows.end()

    def flush(self) -> None:
        """Write the reports that wait."""
        self._rows.flush()

    def note(self, said: dict[str, Any]) -> None:
        """Record Spark's report on one batch."""
        handle = next(
            (handle for handle in self._handles if handle.run and query_name(handle.run) == said.get("name")), None
        )
        if handle is None:
            return
        try:
            if handle.location is not None:
                handle.location.pull()
            self._see_to_real_time(handle, said)
            before, progress = handle.progress, self._progress(handle, said)
            handle.progress = progress
            ran = said.get("numInputRows") or handle.written.get(said["batchId"]) is not None
            if ran and not _did_nothing(progress, before):
                self._append(handle, progress)
            handle.written.pop(said["batchId"], None)
            if self._tell is not None:
                self._tell(handle)
        except (MainstemError, OSError):
            # A failed report never stops a flow. If the disk is full, the sink fails and says so.
            return
        finally:
            if handle.planned.flow.mode == "real-time":
                # Last: waiting threads then find everything recorded.
                handle.batch_over(said.get("numInputRows") or 0)

    def _see_to_real_time(self, handle: FlowHandle, said: dict[str, Any]) -> None:
        """Take output rows and unreadable values of a real-time batch from Spark's report: only Spark counts them."""
        if handle.planned.flow.mode == "batches" or handle.run is None:
            return
        if said.get("numInputRows"):
            handle.written[said["batchId"]] = Written(max(0, (said.get("sink") or {}).get("numOutputRows") or 0))
        if unreadable_in(said):
            checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version)
            note_unreadable(self._stem.log, checkpoint, said["batchId"])

    def _progress(self, handle: FlowHandle, said: dict[str, Any]) -> FlowProgress:
        written = handle.written.get(said["batchId"])
        state = said.get("stateOperators") or []
        sources = batch_sources(self._stem, handle, said)
        lag = lag_after(self._stem, sources)
        watermark = said.get("eventTime", {}).get("watermark")
        stages = None if written is None else written.stages
        if stages is not None:
            watermark = None if stages.watermark is None else as_datetime(stages.watermark).isoformat()
        counted = said.get("numInputRows", 0)
        # One packed row holds many rows.
        rows_read = None if written is None else written.rows_read
        rows_in = counted if rows_read is None else rows_read
        return FlowProgress(
            batch=said["batchId"],
            rows_in=rows_in,
            rows_out=0 if written is None else written.rows,
            rejected=0 if written is None else written.rejected,
            late=0 if stages is None else stages.late,
            # Spark's own operators drop late rows.
            too_late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in state)
            + (0 if stages is None else stages.too_late),
            lag_records=lag.records,
            lag_seconds=lag.seconds,
            # Before the first row Spark's watermark is the Unix epoch.
            watermark=None if watermark is None or watermark.startswith("1970-01-01T00:00:00.000") else watermark,
            state_rows=sum(operator.get("numRowsTotal", 0) for operator in state)
            + (0 if stages is None else stages.state_rows),
            state_bytes=sum(operator.get("memoryUsedBytes", 0) for operator in state)
            + (0 if stages is None else stages.state_bytes),
            batch_ms=said.get("durationMs", {}).get("triggerExecution", 0),
            rows_per_second=_number(said.get("processedRowsPerSecond")) * rows_in / max(1, counted),
            phases=said.get("durationMs", {}),
            sink_ms=None if written is None else written.sink_ms,
            sources=source_progress(self._stem, handle, sources, rows_read),
            stages=() if stages is None else stages.stages,
        )

    def _append(self, handle: FlowHandle, progress: FlowProgress) -> None:
        run = handle.run
        assert run is not None
        watermark = None if progress.watermark is None else datetime.fromisoformat(progress.watermark)
        at = as_datetime(self._stem.log.clock.now())
        identity = {"flow": handle.name, "epoch": run.epoch, "version": run.version, "at": at, "watermark": watermark}
        self._rows.add({**asdict(progress), **identity})


def _did_nothing(now: FlowProgress, before: FlowProgress) -> bool:
    """Whether a batch neither read nor wrote anything, and changed no state."""
    moved = any(part.start != part.stop for source in now.sources for part in source.partitions)
    counts = (now.rows_in, now.rows_out, now.rejected, now.late, now.too_late)
    same = (now.watermark, now.state_rows) == (before.watermark, before.state_rows)
    return not moved and not any(counts) and same


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
