"""The time of a source: the clock in its offsets, and the watermark of its records.

If the log records the watermark of each record, it is used (`LoggedTime`). With another log, such as Kafka, a source uses
the times that the flow's own batches have seen (`ObservedTime`, see `observed_times`): a record's watermark is the one
that was known when its batch was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from mainstem.log.flow_cut import Positions, by_topic
from mainstem.log.log import Log, Promise, TopicBackend, UntimedTopic
from mainstem.log.watermark import NO_TIME, TIME, times_of, with_watermark
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.observed_times import (
    LaneTimes,
    ObservedTimes,
    as_offset,
    is_silent,
    lanes_watermark,
    lowest_beside,
    notes_of,
    times_in,
)
from mainstem.spark.sources.batch_clock import Clocks, add_clock, now_of
from mainstem.spark.sources.idle_input import Floor, IdleInput, raise_watermarks
from mainstem.spark.sources.topic_request import Idle, TopicRequest

__all__ = ["LoggedTime", "ObservedTime", "SourceTime", "TopicSlice", "Topics", "find_earliest_append", "source_time"]

MICROSECOND = timedelta(microseconds=1)
Topics = Mapping[str, TopicBackend]


class TopicSlice(InputPartition):
    """A range of offsets of one partition, with floors and watermark for its records."""

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        floors: Sequence[Floor] = (),
        watermark: int | None = None,
    ) -> None:
        super().__init__((topic, partition, start, end))
        self.topic, self.partition, self.start, self.end = topic, partition, start, end
        # See `idle_input`.
        self.floors = tuple(floors)
        # The watermark of all records if the log does not record one; None if it is unknown.
        self.watermark = watermark


class SourceTime(Protocol):
    """The time of one source."""

    def first(self, offset: dict[str, Any]) -> dict[str, Any]:
        """The offset before the first batch."""
        ...

    def time_offset(
        self, topics: Topics, start: dict[str, Any], offset: dict[str, Any], starts: Positions, ends: Positions,
        readable: Callable[[], Positions] | None, noted: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        """The offset of a batch from `starts` to `ends` with its clock; the start itself if nothing is new and nothing is due.

        `readable`: the ends of the readable records; None if they are not needed. `noted`: see `FlowCut`.
        """
        ...

    def floors(self, start: Mapping[str, Any], starts: Positions, ends: Positions) -> list[Floor]:
        """The floors of a batch's rows."""
        ...

    def rows(self, topic: TopicBackend, part: TopicSlice, columns: set[str]) -> Iterator[pa.RecordBatch]:
        """The records of a slice, with their watermarks if the request has a delay. Runs in the workers.

        If "record" is not among the columns, its fields may be null, but for the offset and the watermark.
        """
        ...


def source_time(request: TopicRequest, log: Log) -> SourceTime:
    """The implementation for the log."""
    return LoggedTime(request, log) if Promise.WATERMARKS in log.promises else ObservedTime(request, log)


class LoggedTime:
    """The log records the watermark of each record."""

    def __init__(self, request: TopicRequest, log: Log) -> None:
        self._request = request
        self._log = log

    def first(self, offset: dict[str, Any]) -> dict[str, Any]:
        return offset

    def time_offset(
        self, topics: Topics, start: dict[str, Any], offset: dict[str, Any], starts: Positions, ends: Positions,
        readable: Callable[[], Positions] | None, noted: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        request = self._request
        if not request.clock:
            return offset
        now = now_of(request.clock, self._log.clock)
        # Without topics that were deleted.
        starts, ends = ({lane: at for lane, at in lanes.items() if lane[0] in topics} for lanes in (starts, ends))
        reached = by_topic(ends)
        appended = min((topics[name].earliest_append(at, now) for name, at in reached.items()), default=now)
        watermark = self._watermark(topics, reached)
        idle, floor = self._idle(topics), NO_TIME
        if idle is not None:
            floor = idle.floor(start, starts, ends, now)
            watermark = idle.watermark(ends, floor, watermark, now)
        found = add_clock(offset, start, Clocks(watermark, now, appended), request.delay, request.clock)
        return found if idle is None or found == start else {**found, "idle": idle.to_json(floor)}

    def _watermark(self, topics: Topics, reached: Mapping[str, Mapping[int, int]]) -> int:
        """The lowest of all topics; of several, an empty one does not hold back the watermark."""
        delay = self._request.delay
        if delay is None:
            return NO_TIME
        counted = (
            reached if not self._request.pattern else {name: at for name, at in reached.items() if any(at.values())}
        )
        return min((topics[name].watermark_from(at, delay) for name, at in counted.items()), default=NO_TIME)

    def _idle(self, topics: Topics) -> IdleInput | None:
        idle = self._request.idle
        return IdleInput.of(self._log, topics, idle) if idle is not None and self._may_be_idle else None

    @property
    def _may_be_idle(self) -> bool:
        request = self._request
        return request.idle is not None and request.delay is not None and bool(request.clock)

    def floors(self, start: Mapping[str, Any], starts: Positions, ends: Positions) -> list[Floor]:
        if not self._may_be_idle:
            return []
        there = {*self._log.topic_names()} if self._request.pattern else {self._request.topic}
        starts, ends = ({lane: at for lane, at in lanes.items() if lane[0] in there} for lanes in (starts, ends))
        idle = self._idle({name: self._log.open_topic(name) for name in by_topic(starts | ends)})
        return [] if idle is None else idle.floors(start, starts, ends)

    def rows(self, topic: TopicBackend, part: TopicSlice, columns: set[str]) -> Iterator[pa.RecordBatch]:
        fields = None if "record" in columns else ()
        names = list(columns - {"record"})
        batches = topic.read_held(part.partition, part.start, part.end, names, self._request.delay, fields)
        return (raise_watermarks(batch, part.floors) for batch in batches)


class ObservedTime:
    """Each task records the latest times that it read. Event times of unread records are unknown."""

    def __init__(self, request: TopicRequest, log: Log) -> None:
        self._request = request
        self._log = log
        self._noted: Positions | None = None

    def first(self, offset: dict[str, Any]) -> dict[str, Any]:
        return {**offset, "leaf": self._request.leaf, "times": {}, "known": None} if "now" in offset else offset

    def time_offset(
        self, topics: Topics, start: dict[str, Any], offset: dict[str, Any], starts: Positions, ends: Positions,
        readable: Callable[[], Positions] | None, noted: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        request, observed = self._request, cast("Mapping[str, UntimedTopic]", topics)
        # A replay needs no facts about transactions.
        more: dict[str, Any] = {} if request.cuts is not None else {"noted": noted}
        stops = None if readable is None else readable()
        now = now_of(request.clock, self._log.clock)
        reached = NO_TIME
        if request.delay is not None and request.run is not None:
            times = self._recall_times(topics, starts, start)
            reached = self._watermark(observed, starts, times, start.get("known"))
            if request.idle is not None and stops is not None:
                if is_silent(times.values(), find_earliest_append(observed, starts, stops, now), request.idle):
                    reached = max(reached, self._read_watermark_beside(request.idle))
                more["idle"] = request.idle
            nested = {
                name: as_offset({number: pair for (of, number), pair in times.items() if of == name}) for name in topics
            }
            shown = (
                {name: pairs for name, pairs in nested.items() if pairs} if request.pattern else nested[request.topic]
            )
            more |= {"leaf": request.leaf, "times": shown, "known": None if reached == NO_TIME else reached}
        bare = {name: value for name, value in start.items() if name not in ("leaf", "times", "known", "idle", "noted")}
        if not request.clock:
            return start if bare == offset else {**offset, **more}
        assert stops is not None
        clocks = Clocks(reached, now, find_earliest_append(observed, ends, stops, now))
        found = add_clock(offset, bare, clocks, request.delay, request.clock)
        return start if found == bare else {**found, **more}

    def _watermark(
        self, topics: Mapping[str, UntimedTopic], at: Positions, times: LaneTimes, before: int | None
    ) -> int:
        assert self._request.delay is not None
        settings = {name: topic.settings_seen for name, topic in topics.items()}
        reached = by_topic(at)
        declared = [topic.declared_watermark(reached.get(name, {})) for name, topic in topics.items()]
        known = max(lanes_watermark(times, settings, self._request.delay), min(declared, default=NO_TIME))
        return max(known, NO_TIME if before is None else before)

    def _read_watermark_beside(self, idle: Idle) -> int:
        """The lowest watermark of the inputs beside an idle one in the last planned batch."""
        number = last_batch(self._checkpoint, "offsets")
        offsets = [] if number is None else list(source_offsets(self._checkpoint, number))
        return lowest_beside(((offset, offset.get("watermark")) for offset in offsets), idle)

    def _recall_times(self, topics: Topics, at: Positions, start: Mapping[str, Any]) -> LaneTimes:
        """The latest times of all records before some offsets."""
        found: LaneTimes = {}
        reached, last = by_topic(at), None if self._noted in (None, at) else by_topic(self._noted or {})
        for name in topics:
            notes = self._notes(name)
            if last is not None:
                # They are in an offset that Spark has written.
                notes.forget(last.get(name, {}))
            seen = notes.until(reached.get(name, {}), times_in(start, name))
            found |= {(name, number): pair for number, pair in seen.items()}
        self._noted = dict(at)
        return found

    @property
    def _checkpoint(self) -> str:
        return FlowStore(self._request.home, self._request.flow).checkpoint(self._request.version)

    def _notes(self, topic: str) -> ObservedTimes:
        return notes_of(self._checkpoint, self._request.leaf, topic if self._request.pattern else "")

    def floors(self, start: Mapping[str, Any], starts: Positions, ends: Positions) -> list[Floor]:
        """Empty: whether an input is idle is decided for a whole batch, when it is planned."""
        return []

    def rows(self, topic: TopicBackend, part: TopicSlice, columns: set[str]) -> Iterator[pa.RecordBatch]:
        settings = topic.settings
        watched = settings.event_time if self._request.delay is not None else None
        names = (columns if watched is None else columns | {watched}) - {"record"}
        batches = topic.read_held(part.partition, part.start, part.end, list(names))
        if watched is None:
            yield from batches
            return
        event, appended = NO_TIME, NO_TIME
        try:
            for batch in batches:
                record = batch.column("record")
                at, times = times_of(record.field("appended_at")), times_of(batch.column(watched))
                # An event time far in the future must not make all other records late.
                sound = times[times <= at + settings.ahead_max // MICROSECOND]
                event = max(event, int(sound.max()) if len(sound) else NO_TIME)
                appended = max(appended, int(at.max()))
                own = pa.repeat(pa.scalar(part.watermark, pa.int64()), batch.num_rows).view(TIME)
                place = batch.schema.get_field_index("record")
                yield batch.set_column(place, "record", with_watermark(record, own))
        finally:
            # Also for a slice that was not read to its end: then the times are lower, but not wrong.
            if self._request.run is not None:
                self._notes(part.topic).note(part.partition, part.start, part.end, event, appended)


def find_earliest_append(topics: Mapping[str, UntimedTopic], at: Positions, stops: Positions, now: int) -> int:
    """The earliest append time between some offsets and the ends; now, if there are no records."""
    left = [lane for lane, stop in stops.items() if lane[0] in topics and stop > at.get(lane, 0)]
    return min([now, *(topics[name].appended_at(number, at.get((name, number), 0)) for name, number in left)])
