"""KafkaStreamReader: reads the records of a topic on Kafka, batch by batch, as Arrow batches.

As `TopicStreamReader`, except: records are not held for a batch (the brokers drop them by age, and a batch whose records
were dropped fails with an error); a batch ends by append times, since event times are not known before they are read, and
between transactions by their notes; and a record's watermark follows the times that the flow's own batches have seen
(`observed_times`).

    offset      {..., "noted": 512}         notes of transactions before this one do not matter any more
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from mainstem.errors import Conflict
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_topic import MICROSECOND, KafkaTopic
from mainstem.log.kafka.transaction_notes import TransactionNotes
from mainstem.log.log import TopicBackend
from mainstem.log.transaction_cut import Reached, TransactionCut, TransactionSpans
from mainstem.log.watermark import NO_TIME, TIME, times_of, with_watermark
from mainstem.spark.checkpoint.checkpoint_check import check_same_topic
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore, check_epoch
from mainstem.spark.plan.observed_times import (
    ObservedTimes,
    Times,
    as_offset,
    is_silent,
    known_watermark,
    lowest_beside,
    observed_folder,
    times_in,
)
from mainstem.spark.plan.row_condition import columns_in
from mainstem.spark.sources.agreed_cut import AgreedCut
from mainstem.spark.sources.batch_clock import Clocks, clocked, now_of
from mainstem.spark.sources.flow_cut import FlowCut, FlowEnds, FoundEnds, Place, Positions, SourceLimits, SourcePart
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicSlice, TopicStreamReader, planned_batches, slices_between

__all__ = [
    "KafkaFlowCut",
    "KafkaSlice",
    "KafkaStreamReader",
    "KafkaTopicReader",
    "appended_at",
    "appended_from",
    "check_home",
    "cut_by_append_time",
    "cut_lanes",
    "kafka_agreement",
    "open_kafka",
    "planned_beside",
    "read_kafka",
]


# Where a batch ends that is read from Kafka: all partitions at one append time, so that none runs ahead of another.
#
# Kafka knows when its records were appended, not when they happened: event times are not known before they are read.


L = TypeVar("L")


def cut_by_append_time(
    backend: KafkaTopic, starts: Mapping[int, int], ends: dict[int, int], rows_max: int
) -> dict[int, int]:
    """Ends for a batch of about so many rows of one topic."""
    return cut_lanes({number: (backend, number) for number in ends}, starts, ends, rows_max)


def cut_lanes(
    lanes: Mapping[L, tuple[KafkaTopic, int]], starts: Mapping[L, int], ends: dict[L, int], rows_max: int
) -> dict[L, int]:
    """Ends for a batch of about so many rows of some partitions, of one topic or several."""
    rest = {lane: end - starts.get(lane, 0) for lane, end in ends.items() if end > starts.get(lane, 0)}
    if sum(count / lanes[lane][0].offsets_of_rows(rows_max) for lane, count in rest.items()) <= 1:
        return ends
    rows = max(1, rows_max // len(rest))
    shares = {lane: lanes[lane][0].offsets_of_rows(rows) for lane in rest}
    behind = [lane for lane, count in rest.items() if count > shares[lane]]
    if not behind:
        return ends
    until = min(appended_at(*lanes[lane], starts.get(lane, 0) + shares[lane]) for lane in behind)
    cut = dict(ends)
    for lane, share in shares.items():
        topic, partition = lanes[lane]
        first = starts.get(lane, 0)
        reached = topic.at_time(partition, until + 1)
        # Where very many were appended at one time, they are divided all the same.
        cut[lane] = min(ends[lane], max(reached, first), first + 2 * share)
    if any(cut[lane] > starts.get(lane, 0) for lane in shares):
        return cut
    # Ends of transactions have the broker's time. Where that is later than the records', all of them lie behind the first.
    return {**ends, **{lane: min(ends[lane], starts.get(lane, 0) + share) for lane, share in shares.items()}}


def appended_from(backend: KafkaTopic, planned: Mapping[int, int], ends: Mapping[int, int], now: int) -> int:
    """The earliest append time of what a batch leaves for later ones; now, if it leaves nothing."""
    left = [number for number, end in ends.items() if end > planned.get(number, 0)]
    return min([now, *(appended_at(backend, number, planned.get(number, 0)) for number in left)])


def appended_at(backend: KafkaTopic, partition: int, offset: int) -> int:
    """When the first record from an offset on was appended; now, if there is none."""
    record = backend.read(partition, offset, 1, [])
    return backend.clock.now() if record is None else int(times_of(record.column("record").field("appended_at"))[0])


# KafkaFlowCut: where the next batch of a flow on Kafka ends, so that no transaction of Mainstem's own is half in it.
#
# As `FlowCut`, with what is different on Kafka: where transactions wrote is read from their notes (`transaction_notes`), limits and
# alignment go by append times, and all is reckoned in messages, since transactions end between them. Of what
# other programs write in transactions there are no notes: a batch may end inside of one.


class _AppendTimeLimits:
    """The limits of one source: all partitions at one append time."""

    def __init__(self, request: TopicRequest) -> None:
        self._rows_max = request.rows_max
        self._bytes_max = request.bytes_max

    def ends(self, part: SourcePart) -> Positions:
        lanes = {lane: (part.topics[lane[0]], lane[1]) for lane in part.ends}
        found = cut_lanes(lanes, _rows(part, part.starts), _rows(part, part.ends), self._rows_max)
        return {lane: max(_topic(part, lane).message_of(end), part.begin(lane)) for lane, end in found.items()}

    def rows_together(self, part: SourcePart) -> int:
        messages = size = 0
        for lane, end in part.ends.items():
            if end > part.begin(lane):
                topic = _topic(part, lane)
                messages += end - part.begin(lane)
                size += topic.behind(lane[1], topic.first_row(part.begin(lane))).bytes
        return max(1, self._bytes_max // max(1, size // max(1, messages)))


class KafkaFlowCut(FlowCut):
    """Cuts batch after batch over the same sources. For one thread."""

    def __init__(self, log: KafkaLog) -> None:
        super().__init__()
        self._log = log
        self._notes = self._new_notes()
        self._noted = 0

    def _new_notes(self) -> TransactionNotes:
        return TransactionNotes(self._log.clients, self._log.notes_topic, self._log.clock)

    @property
    def noted(self) -> int:
        return self._noted

    def begin_at(self, noted: int) -> None:
        self._notes.begin_at(noted)
        self._noted = max(self._noted, noted)

    def ends(self, parts: Mapping[int, SourcePart]) -> FlowEnds:
        messages = {leaf: _by_message(part) for leaf, part in parts.items()}
        if any(end > part.begin(lane) for part in messages.values() for lane, end in part.ends.items()):
            # After the ends: of what could be read then, all notes are there.
            self._read_notes(messages)
            self._noted = max(self._noted, self._notes.needed_from)
        found = super().ends(messages)
        return FlowEnds(_by_row(parts, found.ends), found.held, found.torn)

    def beginnings(self, parts: Mapping[int, SourcePart]) -> dict[int, Positions]:
        messages = {leaf: _by_message(part) for leaf, part in parts.items()}
        found = super().beginnings(messages)
        rows = _by_row(parts, found)
        for leaf, part in parts.items():
            # One that was told to begin within a message begins there.
            same = [lane for lane, at in messages[leaf].ends.items() if found[leaf][lane] == at]
            rows[leaf] |= {lane: part.ends[lane] for lane in same}
        return rows

    def _begin_below(self, parts: Mapping[int, SourcePart]) -> dict[Place, int]:
        # Only those of some sources, and from the beginning: not the ones to read on from.
        kept, self._notes = self._notes, self._new_notes()
        try:
            self._read_notes(parts)
            return super()._begin_below(parts)
        finally:
            self._notes.close()
            self._notes = kept

    def close(self) -> None:
        self._notes.close()

    def _limits_of(self, request: TopicRequest) -> SourceLimits:
        return _AppendTimeLimits(request)

    def _read_notes(self, parts: Mapping[int, SourcePart]) -> None:
        starts: dict[tuple[str, int], int] = {}
        for part in parts.values():
            for name, number in part.ends:
                lane = part.topics[name].id, number
                at = part.begin((name, number))
                # One topic may be read by two sources.
                starts[lane] = min(at, starts.get(lane, at))
        growing = any(part.request.pattern for part in parts.values())
        self._notes.read(None if growing else {topic for topic, _ in starts}, starts)
        self._notes.forget(starts)

    def _consistent(self, parts: Mapping[int, SourcePart], limits: dict[Place, int]) -> FoundEnds:
        found = super()._consistent(parts, limits)
        starts = {place: parts[place[0]].begin(place[1:]) for place in limits}
        if found.ends != starts or limits == starts or found.held or not self._notes.drop_lost(_written(parts)):
            return found
        # It would wait for records that will never come.
        return super()._consistent(parts, limits)

    def _aligned_below(
        self, parts: Mapping[int, SourcePart], spans: Mapping[Place, TransactionSpans], starts: dict[Place, int],
        limits: dict[Place, int], below: dict[Place, int],
    ) -> dict[Place, int]:  # fmt: skip
        """What is taken of an aligned source was appended no later than what it leaves, as within the limits."""
        cut = TransactionCut(starts, spans)
        while True:
            lowered = dict(below)
            for leaf, part in parts.items():
                lanes = [place for place in below if place[0] == leaf]
                left = [place for place in lanes if below[place] < limits[place]]
                if part.aligned and left:
                    until = min(appended_at(*_lane(part, place), _row(part, place, below[place])) for place in left)
                    for place in lanes:
                        topic, partition = _lane(part, place)
                        reached = topic.message_of(topic.at_time(partition, until + 1))
                        lowered[place] = max(starts[place], min(below[place], reached))
            if lowered == below:
                return below
            below = cut.below(lowered)

    def spans(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        lanes = {place: (parts[place[0]].topics[place[1]].id, place[2]) for place in ends}
        furthest: dict[tuple[str, int], int] = {}
        for place, lane in lanes.items():
            furthest[lane] = max(ends[place], furthest.get(lane, 0))
        found = self._notes.touching(furthest)
        if not any(len(spans.numbers) for spans in found.values()):
            return None
        return {place: found[lane] for place, lane in lanes.items()}

    def spans_across(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], at: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        return self.spans(parts, starts, at)

    def reached(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, Reached]:
        """Nothing: Kafka does not know the event times of its records."""
        return {}


def _topic(part: SourcePart, lane: tuple[str, int]) -> KafkaTopic:
    found: KafkaTopic = part.topics[lane[0]]
    return found


def _lane(part: SourcePart, place: Place) -> tuple[KafkaTopic, int]:
    return part.topics[place[1]], place[2]


def _row(part: SourcePart, place: Place, message: int) -> int:
    return _topic(part, place[1:]).first_row(message)


def _rows(part: SourcePart, at: Positions) -> Positions:
    """Offsets of messages as offsets of rows."""
    return {lane: _topic(part, lane).first_row(offset) for lane, offset in at.items()}


def _written(parts: Mapping[int, SourcePart]) -> dict[tuple[str, int], int]:
    """How many messages were written to each partition, decided or not."""
    topics: list[KafkaTopic] = [topic for part in parts.values() for topic in part.topics.values()]
    return {
        (topic.id, number): topic.message_of(end) for topic in topics for number, end in topic.written_ends().items()
    }


def _by_row(parts: Mapping[int, SourcePart], found: Mapping[int, Positions]) -> dict[int, Positions]:
    """Offsets of messages as offsets of rows; what begins within a message stays there."""
    return {
        leaf: {lane: max(offset, parts[leaf].begin(lane)) for lane, offset in _rows(parts[leaf], at).items()}
        for leaf, at in found.items()
    }


def _by_message(part: SourcePart) -> SourcePart:
    """A source whose offsets are those of messages. One that begins within a message begins at it."""

    def messages(at: Positions) -> Positions:
        return {lane: _topic(part, lane).message_of(offset) for lane, offset in at.items() if lane[0] in part.topics}

    return replace(part, starts=messages(part.starts), ends=messages(part.ends))


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
    """Raise `Conflict` if a task does not find the home of its flow, `Fenced` if a newer run of the flow has started.

    Tasks note there what they saw of time: where the driver does not find it, no window would ever close.
    """
    if request.run is None:
        return
    if not FlowStore(request.home, request.flow).exists():
        raise Conflict(
            f'the home "{request.home}" has no directory of flow "{request.flow}"',
            detail=f"So it appears on machine {socket.gethostname()}, where a task of the flow runs.",
            hint="The home must be on a path that the driver and all executors share.",
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


# KafkaTopicReader: what a topic on Kafka holds between two positions, as Arrow batches.
#
# With a watermark asked for, every record is on time: when a topic is read as a whole, nothing was known before it.


class KafkaTopicReader(DataSourceReader):
    """A read of one topic; its range stands in the request."""

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        starts, stops = (
            {int(number): at for number, at in given.items()} for given in (self._request.start, self._request.stop)
        )
        parts = slices_between(starts, stops, self._request.slices)
        return [KafkaSlice(part.partition, part.start, part.end, None) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KafkaSlice)
        return read_kafka(self._request, self._schema, partition)
