"""The progress of every batch: a row in the topic `mainstem.progress`, and the handle's `progress`.

Spark reports a batch after it is committed; the rows written into the sink and the lag of the flow are added. A
batch that is replayed after a crash has a row for each attempt that was committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from mainstem.batch import FlowRun, Written
from mainstem.clock import as_datetime
from mainstem.errors import MainstemError
from mainstem.flows.flow_handle import FlowHandle, FlowProgress
from mainstem.flows.real_time import note_unreadable, unreadable_in
from mainstem.log.lag import Lag
from mainstem.log.log import Log, TopicBackend
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.checkpoint_offsets import source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem.stem import Mainstem

__all__ = ["BatchListener", "PROGRESS_TOPIC", "ProgressReports", "query_name"]


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


PROGRESS_TOPIC = "mainstem.progress"

SCHEMA = (
    "flow STRING, epoch BIGINT, version INT, batch BIGINT, at TIMESTAMP, rows_in BIGINT, rows_out BIGINT, "
    "rejected BIGINT, late BIGINT, too_late BIGINT, lag_records BIGINT, lag_seconds DOUBLE, watermark TIMESTAMP, state_rows BIGINT, "
    "state_bytes BIGINT, batch_ms BIGINT, rows_per_second DOUBLE, phases MAP<STRING, BIGINT>"
)


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
        self._topic = Topic(stem.log, _progress_topic(stem.log))

    def begin(self, handles: Iterable[FlowHandle]) -> None:
        """Start listening to Spark's reports on these flows."""
        self._handles = list(handles)
        self._listener = BatchListener(self._stem.spark, self.note)
        self._listener.begin()

    def end(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.end()

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
            progress = self._progress(handle, said)
            handle.progress = progress
            if said.get("numInputRows") or handle.written.get(said["batchId"]) is not None:
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
        lag = self._lag(handle, said)
        watermark = said.get("eventTime", {}).get("watermark")
        stages = None if written is None else written.stages
        if stages is not None:
            watermark = None if stages.watermark is None else as_datetime(stages.watermark).isoformat()
        counted = said.get("numInputRows", 0)
        # One packed row holds many rows.
        rows_in = counted if written is None or written.rows_read is None else written.rows_read
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
        )

    def _lag(self, handle: FlowHandle, said: dict[str, Any]) -> Lag:
        parts = []
        for source in said.get("sources") or []:
            end = source.get("endOffset")
            end = json.loads(end) if isinstance(end, str) else end
            if not isinstance(end, dict):
                continue
            if handle.run is not None and ("logOffset" in end or handle.planned.flow.mode == "real-time"):
                # A batch of sealed files or of Spark's own source: the checkpoint has its offsets in the log.
                checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version)
                end = next(source_offsets(checkpoint, said["batchId"]), {})
            by_topic = {end["topic"]: end["offsets"]} if "topic" in end else end.get("topics", {})
            for topic, offsets in by_topic.items():
                backend = self._stem.log.open_topic(topic)
                parts += [backend.behind(int(number), offset) for number, offset in offsets.items()]
        return Lag.total(parts)

    def _append(self, handle: FlowHandle, progress: FlowProgress) -> None:
        run = handle.run
        assert run is not None
        row = {name: getattr(progress, name) for name in FlowProgress.__dataclass_fields__ if name != "watermark"}
        watermark = None if progress.watermark is None else datetime.fromisoformat(progress.watermark)
        at = as_datetime(self._stem.log.clock.now())
        identity = {"flow": handle.name, "epoch": run.epoch, "version": run.version, "at": at, "watermark": watermark}
        self._topic.append([{**row, **identity}])


def _progress_topic(log: Log) -> TopicBackend:
    """The topic of reports; if an earlier version created it, missing columns are added."""
    settings = TopicSettings.of(PROGRESS_TOPIC, schema=SCHEMA, event_time="at", keep="7 days")
    if PROGRESS_TOPIC not in log.topic_names():
        return log.create_topic(settings)
    known = log.open_topic(PROGRESS_TOPIC)
    missing = [field for field in settings.schema if field.name not in known.settings.schema.names]
    if missing:
        known.alter({"schema": pa.schema([*known.settings.schema, *missing])})
    return known


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
