"""KafkaTopicsReader: reads the records of all topics on Kafka that match a pattern, batch by batch.

As `TopicsStreamReader`, with what is different on Kafka as `KafkaStreamReader` has it. Event times are noted by topic:

    <checkpoint>/observed/<leaf>/<topic>/...
    offset      {"glob": ..., "leaf": 0, "times": {"orders.eu": {"0": [event, appended]}}, "known": watermark or null,
                 "noted": 512}

All partitions of all topics count as one: an idle topic does not hold back the watermark, and a topic that
joins takes the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_topic import KafkaWaking
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.observed_times import (
    LaneTimes,
    ObservedTimes,
    as_offset,
    is_silent,
    lanes_watermark,
    observed_folder,
    times_in,
)
from mainstem.spark.sources.batch_clock import Clocks, clocked, now_of
from mainstem.spark.sources.kafka_stream_reader import (
    KafkaSlice,
    appended_from,
    check_home,
    kafka_agreement,
    open_kafka,
    planned_beside,
    read_kafka,
)
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topics_stream_reader import Positions, TopicsSlice, TopicsStreamReader, by_topic

__all__ = ["KafkaTopicsReader"]


class KafkaTopicsReader(TopicsStreamReader):
    """Reads the topics, batch by batch."""

    _waking: tuple[list[str], KafkaWaking] | None = None
    _noted: Positions | None = None

    def _check(self) -> None:
        check_home(self._request)

    def _log(self) -> KafkaLog:  # type: ignore[override]
        return open_kafka(self._request.log, self._request.home)

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        super().__init__(request, schema)
        self._agreed = kafka_agreement(request)

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        first = super().initialOffset()
        return {**first, "leaf": self._request.leaf, "times": {}, "known": None} if "now" in first else first

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._agreed.begin_at(start.get("noted", 0))
        return super().latestOffset(start, limit)

    def _hold(self, topics: Mapping[str, Any], at: Positions, ends: Positions) -> None:
        """Nothing is held on Kafka. What was dropped before it was read is said now, not by a batch that could never end."""
        for (name, number), end in ends.items():
            first = at[name, number]
            if end > first and topics[name].earliest(number) > first:
                topics[name].read(number, first, 1, [])

    def _wait(self, topics: Mapping[str, Any]) -> None:
        names = list(topics)
        if self._waking is None or self._waking[0] != names:
            self._stop_waking()
            log = self._log()
            parts: dict[str, int | range] = {
                topic.kafka_name: range(topic.settings_seen.partitions) for topic in topics.values()
            }
            # What came before it began to listen is seen by whoever asks next.
            self._waking = (names, KafkaWaking(log.clients, parts, log.clock))
            return
        if not self._waking[1].wait(self._request.wait_ms / 1000):
            self._log().transactions.settle()

    def _timed(
        self, topics: Mapping[str, Any], start: dict[str, Any], offset: dict[str, Any], at: Positions, cut: Positions,
        ends: Positions,
    ) -> dict[str, Any]:  # fmt: skip
        """The offset with what is known of time; the start itself if nothing has come and nothing is due."""
        delay, folder = self._request.delay, self._request.clock
        reached = NO_TIME
        more: dict[str, Any] = {"noted": self._agreed.noted}
        if delay is not None and self._request.run is not None:
            times = self._seen(topics, at, start)
            settings = {name: topic.settings_seen for name, topic in topics.items()}
            declared = [
                topic.stated_watermark({number: here for (of, number), here in at.items() if of == name})
                for name, topic in topics.items()
            ]
            before = start.get("known")
            known = max(lanes_watermark(times, settings, delay), min(declared, default=NO_TIME))
            reached = max(known, NO_TIME if before is None else before)
            if self._request.idle is not None and folder:
                more["idle"] = self._request.idle
                coming = _appended_from(topics, at, ends, now_of(folder, self._log().clock))
                if is_silent(times.values(), coming, self._request.idle):
                    reached = max(reached, planned_beside(self._request))
            nested = {
                name: as_offset({number: pair for (of, number), pair in times.items() if of == name}) for name in topics
            }
            more |= {
                "leaf": self._request.leaf,
                "times": {name: pairs for name, pairs in nested.items() if pairs},
                "known": None if reached == NO_TIME else reached,
            }
        bare = {name: value for name, value in start.items() if name not in ("leaf", "times", "known", "idle", "noted")}
        if not folder:
            return start if bare == offset else {**offset, **more}
        now = now_of(folder, self._log().clock)
        clocks = Clocks(reached, now, _appended_from(topics, at | cut, ends, now))
        found = clocked(offset, bare, clocks, delay, folder)
        return start if found == bare else {**found, **more}

    def _idle(self, topics: Mapping[str, Any]) -> None:
        """Here it is decided for a batch as a whole, when it is planned."""

    def _seen(self, topics: Mapping[str, Any], at: Positions, start: Mapping[str, Any]) -> LaneTimes:
        """The latest times of all that was read before some offsets."""
        found: LaneTimes = {}
        for name in topics:
            notes = self._notes(name)
            reached = {number: here for (of, number), here in at.items() if of == name}
            if self._noted is not None and self._noted != at:
                last = {number: here for (of, number), here in self._noted.items() if of == name}
                # Spark has written down an offset that knows of them.
                notes.forget(last)
            found |= {(name, number): pair for number, pair in notes.until(reached, times_in(start, name)).items()}
        self._noted = dict(at)
        return found

    def _notes(self, topic: str) -> ObservedTimes:
        checkpoint = FlowStore(self._request.home, self._request.flow).checkpoint(self._request.version)
        return ObservedTimes(f"{observed_folder(checkpoint, self._request.leaf)}/{topic}")

    # Rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        known = end.get("known")
        found: list[InputPartition] = []
        for part in super().partitions(start, end):
            assert isinstance(part, TopicsSlice)
            one = part.part
            found.append(TopicsSlice(part.topic, KafkaSlice(one.partition, one.start, one.end, known)))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicsSlice)
        assert isinstance(partition.part, KafkaSlice)
        self._check()
        request, schema = self._of_topic(partition.topic)
        notes = self._notes(partition.topic) if self._request.run is not None else None
        yield from self._wanted(read_kafka(request, schema, partition.part, notes), partition.topic)

    def stop(self) -> None:
        super().stop()
        self._agreed.close()
        self._stop_waking()

    def _stop_waking(self) -> None:
        if self._waking is not None:
            self._waking[1].close()
            self._waking = None


def _appended_from(topics: Mapping[str, Any], at: Positions, ends: Positions, now: int) -> int:
    """The earliest append time that a record from these offsets on can have, those to come included."""
    stops, reads = dict(by_topic(ends, topics)), dict(by_topic(at, topics))
    return min((appended_from(topics[name], reads[name], stops[name], now) for name in topics), default=now)
