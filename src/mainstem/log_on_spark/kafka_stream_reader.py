"""KafkaStreamReader: what comes into a topic on Kafka, batch by batch, as Arrow batches.

As `TopicStreamReader`, with what is different on Kafka: records are not held for a batch (the brokers drop by age, and a
batch whose records went says so); a batch is cut by append times, since event times are not known before they are read, and
between transactions by their notes (`kafka_flow_cut`); and a record's watermark is what the flow's own batches have seen
(`observed_times`).

    offset      {..., "noted": 512}         notes of transactions before this one do not matter any more
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from mainstem.errors import Conflict
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_topic import MICROSECOND, KafkaTopic
from mainstem.log.log import TopicBackend
from mainstem.log.watermark import NO_TIME, TIME, times_of, with_watermark
from mainstem.log_on_spark.agreed_cut import AgreedCut
from mainstem.log_on_spark.append_time_cut import appended_from, cut_by_append_time
from mainstem.log_on_spark.batch_clock import Clocks, clocked, now_of
from mainstem.log_on_spark.checkpoint_offsets import last_batch, source_offsets
from mainstem.log_on_spark.flow_store import FlowStore, check_epoch
from mainstem.log_on_spark.kafka_flow_cut import KafkaFlowCut
from mainstem.log_on_spark.observed_times import (
    ObservedTimes,
    Times,
    as_offset,
    is_silent,
    known_watermark,
    lowest_beside,
    observed_folder,
    times_in,
)
from mainstem.log_on_spark.row_condition import columns_in
from mainstem.log_on_spark.topic_identity import check_same_topic
from mainstem.log_on_spark.topic_request import TopicRequest
from mainstem.log_on_spark.topic_stream_reader import TopicSlice, TopicStreamReader, planned_batches

__all__ = [
    "KafkaSlice",
    "KafkaStreamReader",
    "check_home",
    "kafka_agreement",
    "open_kafka",
    "planned_beside",
    "read_kafka",
]


# A worker serves many batches: it connects once.
@lru_cache(maxsize=4)
def open_kafka(address: str, home: str) -> KafkaLog:
    return KafkaLog(address, home=home)


def open_topic(request: TopicRequest) -> KafkaTopic:
    return open_kafka(request.log, request.home).open_topic(request.topic)


def kafka_agreement(request: TopicRequest) -> AgreedCut:
    """Where the batches of a source on Kafka end, together with the other sources of its flow."""

    def log() -> KafkaLog:
        return open_kafka(request.log, request.home)

    return AgreedCut(request, log, lambda: KafkaFlowCut(log()))


class KafkaSlice(TopicSlice):
    """A range of offsets of one partition, and the watermark that its records have; None if none is known."""

    def __init__(self, partition: int, start: int, end: int, watermark: int | None) -> None:
        super().__init__(partition, start, end)
        self.watermark = watermark


def read_kafka(
    request: TopicRequest, schema: pa.Schema, part: KafkaSlice, notes: ObservedTimes | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice that are wanted; their latest times are noted for the next batch, in a flow."""
    backend = open_topic(request)
    settings = backend.settings
    condition = request.condition
    columns = {*request.columns, *(() if condition is None else columns_in(condition))} - {"record"}
    watched = settings.event_time if request.delay is not None else None
    event, appended = NO_TIME, NO_TIME

    def watermarked() -> Iterator[pa.RecordBatch]:
        nonlocal event, appended
        names = [*columns, *([watched] if watched is not None and watched not in columns else [])]
        for batch in backend.moment().read(part.partition, part.start, part.end, names):
            if watched is None:
                yield batch
                continue
            record = batch.column("record")
            at = times_of(record.field("appended_at"))
            times = times_of(batch.column(watched))
            # A clock that runs far ahead must not make everyone else late.
            sound = times[times <= at + settings.ahead_max // MICROSECOND]
            event = max(event, int(sound.max()) if len(sound) else NO_TIME)
            appended = max(appended, int(at.max()))
            own = pa.repeat(pa.scalar(part.watermark, pa.int64()), batch.num_rows).view(TIME)
            place = batch.schema.get_field_index("record")
            yield batch.set_column(place, "record", with_watermark(record, own))

    try:
        yield from planned_batches(request, schema, watermarked())
    finally:
        # Also of a slice that nobody wanted to the end: less is known then, and nothing wrong.
        if watched is not None and notes is not None:
            notes.note(part.partition, part.start, part.end, event, appended)


def check_home(request: TopicRequest) -> None:
    """Raise `Conflict` where a task does not see the home of its flow, `Fenced` if a later run of the flow has begun.

    Tasks note there what they saw of time: where the driver does not find it, no window would ever close.
    """
    if request.run is None:
        return
    if not FlowStore(request.home, request.flow).exists():
        raise Conflict(
            f'nothing of flow "{request.flow}" lies in the home "{request.home}"',
            detail=f"That is what machine {socket.gethostname()} sees, where a task of the flow runs.",
            hint="The home must be a path that the driver and all executors see.",
        )
    check_epoch(request.home, request.run)


def observed(request: TopicRequest) -> ObservedTimes:
    checkpoint = FlowStore(request.home, request.flow).checkpoint(request.version)
    return ObservedTimes(observed_folder(checkpoint, request.leaf))


def planned_beside(request: TopicRequest) -> int:
    """How far the inputs beside an idle one had come in the last batch that was planned."""
    checkpoint = FlowStore(request.home, request.flow).checkpoint(request.version)
    number = last_batch(checkpoint, "offsets")
    offsets = [] if number is None else list(source_offsets(checkpoint, number))
    return lowest_beside(((offset, offset.get("watermark")) for offset in offsets), request.idle)


class KafkaStreamReader(TopicStreamReader):
    """What comes into a topic on Kafka."""

    _noted: dict[int, int] | None = None

    def __init__(self, request: TopicRequest, schema: pa.Schema, packing: str = "") -> None:
        super().__init__(request, schema, packing)
        self._agreed = kafka_agreement(request)

    def _check(self) -> Any:
        check_home(self._request)
        return open_topic(self._request)

    def _backend_of(self, request: TopicRequest) -> KafkaTopic:
        return open_topic(request)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        first = super().initialOffset()
        return {**first, "leaf": self._request.leaf, "times": {}, "known": None} if "now" in first else first

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        backend: KafkaTopic = self._check()
        check_same_topic(backend, start.get("id", ""), self._request.flow)
        starts = {int(number): at for number, at in start["offsets"].items()}
        self._check_reached(backend, starts)
        self._agreed.begin_at(start.get("noted", 0))
        planned = self._next_ends(backend, starts)
        for number, end in planned.items():
            if end > starts.get(number, 0) and backend.earliest(number) > starts.get(number, 0):
                # Dropped before it was read. Said now, and not by a batch that could never end.
                backend.read(number, starts.get(number, 0), 1, [])
        return self._timed(backend, start, starts, planned)

    def _cut(self, backend: Any, starts: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
        return cut_by_append_time(backend, starts, ends, self._request.rows_max)

    def _timed(
        self, backend: KafkaTopic, start: dict[str, Any], starts: dict[int, int], planned: dict[int, int]
    ) -> dict[str, Any]:
        """The offset with what is known of time; the start itself if nothing has come and nothing is due."""
        delay, folder = self._request.delay, self._request.clock
        offset = self._offset(backend, planned)
        plain = {name: start[name] for name in ("topic", "id", "offsets") if name in start}
        more: dict[str, Any] = {} if self._request.cuts is not None else {"noted": self._agreed.noted}
        ends = self._readable
        if folder and ends is None:
            ends = self._ends(backend)
        if delay is None or self._request.run is None:
            reached = NO_TIME
        else:
            times = self._seen(starts, times_in(start))
            known = known_watermark(times, backend.settings, delay)
            before = start.get("known")
            reached = max(known, NO_TIME if before is None else before, backend.stated_watermark(starts))
            if self._request.idle is not None and ends is not None:
                coming = appended_from(backend, starts, ends, now_of(folder, backend.clock))
                if is_silent(times.values(), coming, self._request.idle):
                    reached = max(reached, planned_beside(self._request))
                more["idle"] = self._request.idle
            more |= {
                "leaf": self._request.leaf,
                "times": as_offset(times),
                "known": None if reached == NO_TIME else reached,
            }
        if ends is None or not folder:
            return start if plain == offset else {**offset, **more}
        bare = {name: value for name, value in start.items() if name not in ("leaf", "times", "known", "idle", "noted")}
        now = now_of(folder, backend.clock)
        found = clocked(offset, bare, Clocks(reached, now, appended_from(backend, planned, ends, now)), delay, folder)
        return start if found == bare else {**found, **more}

    def _idle(self, backend: TopicBackend) -> None:
        """Here it is decided for a batch as a whole, when it is planned."""

    def _seen(self, starts: dict[int, int], before: Times) -> Times:
        """The latest times of all that was read before some offsets."""
        notes, last = observed(self._request), self._noted
        if last is not None and last != starts:
            # Spark has written down an offset that knows of them.
            notes.forget(last)
        self._noted = starts
        return notes.until(starts, before)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts = super().partitions(start, end)
        known = end.get("known")
        return [
            KafkaSlice(part.partition, part.start, part.end, known) for part in parts if isinstance(part, TopicSlice)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KafkaSlice)
        self._check()
        notes = observed(self._request) if self._request.run is not None else None
        return self._given(lambda schema: read_kafka(self._request, schema, partition, notes))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        backend = open_topic(self._request)
        return self._offset(backend, self._ends(backend))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = self._ends(open_topic(self._request))
