"""TopicsStreamReader: reads the records of all topics that match a pattern, batch by batch.

    offset  {"glob": "orders.*",
             "topics":  {"orders.eu": {"0": 512}, ...}     the next offset of each partition
             "ids":     {"orders.eu": "5f..", ...}         which topic of that name it was
             "began":   {"orders.eu": {"0": 0}, ...}       where each topic began when it joined
             "refused": {"orders.uk": "it has no ..."}     topics that do not fit
             "cleaned": {"orders.eu": {"0": 512}}}         of compacted topics: see `read_since`

A topic that is created later joins with the next batch. One that does not fit is recorded once in `mainstem.refused_topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from mainstem.file_watch import Watch
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.partition_reads import offsets_at
from mainstem.log.record import RECORD
from mainstem.log.topic import Topic
from mainstem.log.topic_reads import LiveReads
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_check import check_reached, check_same_topic
from mainstem.spark.checkpoint.flow_store import check_epoch
from mainstem.spark.checkpoint.read_since import ReadSince
from mainstem.spark.plan.row_condition import condition_mask
from mainstem.spark.sources.agreed_cut import AgreedCut, nested, positions
from mainstem.spark.sources.batch_clock import Clocks, clocked, now_of, unread
from mainstem.spark.sources.flow_cut import Positions, SourcePart, readable_ends
from mainstem.spark.sources.idle_input import Floor, IdleInput
from mainstem.spark.sources.topic_glob import TOPIC, fitting, why_not
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicSlice, open_log, read_slice, slices_between

__all__ = ["Positions", "TopicsSlice", "TopicsStreamReader", "by_topic"]

REFUSED_TOPICS = "mainstem.refused_topics"
REFUSED_SCHEMA = "flow STRING, topics STRING, topic STRING, reason STRING"


class TopicsSlice(InputPartition):
    """A range of offsets of one partition of one topic."""

    def __init__(self, topic: str, part: TopicSlice) -> None:
        super().__init__((topic, part))
        self.topic, self.part = topic, part


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics, batch by batch."""

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema
        self._agreed = AgreedCut(request, self._log)
        self._limit: Positions | None = None
        self._watch: tuple[list[str], Watch] | None = None
        self._held: dict[str, dict[int, tuple[int, int]]] = {}
        # Whether the topics were seen to hold all that was read of them: none is set back while it is open.
        self._reached = False

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the request and what is to come of it, nothing else.
        return {"_request": self._request, "_schema": self._schema}

    # Which topics

    def _check(self) -> None:
        if self._request.run is not None:
            check_epoch(self._request.home, self._request.run)

    def _log(self) -> EmbeddedLog:
        return open_log(self._request.home)

    def _names(self) -> list[str]:
        return fitting(self._request.topic, self._log().topic_names())

    def _topics(self, refused: dict[str, str]) -> dict[str, EmbeddedTopic]:
        """The topics that fit; of the others the reason is added to `refused`, and noted."""
        log = self._log()
        plain = pa.schema([field for field in self._schema if field.name not in (TOPIC, "record")])
        event_time = None if self._request.delay is None else self._event_time()
        found = {}
        for name in self._names():
            if name in refused:
                continue
            backend = log.open_topic(name)
            if reason := why_not(backend.settings, plain, event_time):
                refused[name] = reason
                self._note(name, reason)
            else:
                found[name] = backend
        return found

    def _event_time(self) -> str | None:
        marked = [field.name for field in self._schema if b"mainstem.event_time" in (field.metadata or {})]
        return marked[0] if marked else None

    def _note(self, topic: str, reason: str) -> None:
        log = self._log()
        notes = Topic(log, log.create_topic(TopicSettings.of(REFUSED_TOPICS, schema=REFUSED_SCHEMA)))
        row = {"flow": self._request.flow, "topics": self._request.topic, "topic": topic, "reason": reason}
        notes.append([row])

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names from here on
        self._check()
        refused: dict[str, str] = {}
        at: Positions = {}
        topics = self._topics(refused)
        firsts: Positions = {}
        for name, backend in topics.items():
            numbers = list(range(backend.settings.partitions))
            reads = LiveReads(backend)
            firsts |= {(name, number): at for number, at in offsets_at("earliest", reads, numbers).items()}
            found = offsets_at(self._request.start, reads, numbers)
            at |= {(name, number): offset for number, offset in found.items()}
        leaf = self._request.leaf
        at = self._agreed.beginnings({leaf: SourcePart(self._request, topics, firsts, at)})[leaf]
        cleaned = {name: noted for name in topics if (noted := ReadSince.beginning(topics[name])) is not None}
        first = self._offset(at, at, refused, _ids(topics)) | ({"cleaned": cleaned} if cleaned else {})
        return unread(first, self._request.delay, self._request.clock, self._log().clock)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = _ends(self._topics({}))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._check()
        at, began, refused = positions(start["topics"]), positions(start["began"]), dict(start["refused"])
        topics = self._topics(refused)
        self._check_topics(topics, start)
        given = self._agreed.given(at)
        ends = _ends(topics) if self._limit is None else self._limit
        if given is None and self._limit is None and not any(end > at.get(lane, -1) for lane, end in ends.items()):
            self._wait(topics)
            topics = self._topics(refused)
            self._check_topics(topics, start)
            ends = _ends(topics)
        if self._limit is None and set(self._names()) - {*topics, *refused}:
            # Made after the others were looked at. A transaction that can be read there may have written to it.
            topics = self._topics(refused)
            ends |= {lane: end for lane, end in _ends(topics).items() if lane not in ends}
        ends = {lane: end for lane, end in ends.items() if lane[0] in topics}
        noted = dict(start.get("cleaned", {}))
        fresh = [lane for lane in ends if lane not in at]
        for name, number in fresh:
            at[name, number] = began[name, number] = topics[name].earliest(number)
            if name not in start["topics"] and (begun := ReadSince.beginning(topics[name])) is not None:
                noted[name] = begun
        if given is None:
            cut = self._cut(topics, at, ends)
        else:
            cut = {lane: given.get(lane, at[lane]) for lane in ends}
            # Who plans the next batch waits until it knows of all topics.
            self._agreed.stand_at(at | cut, [*topics, *refused])
        if self._agreed.waits and self._limit is None:
            self._wait(topics)
        read_since = {name: ReadSince(topics[name], noted.get(name)) for name in topics}
        cleaned = noted | {name: since for name, since in self._read_since(read_since, at, cut) if since is not None}
        self._hold(topics, at, cut)
        for name, starts in by_topic(at, topics):
            read_since[name].check(starts, self._request.flow)
        # Of a topic that is gone the id is kept: one that is made again must not be taken for it.
        offset = self._offset(at | cut, began, refused, start.get("ids", {}) | _ids(topics))
        offset |= {"cleaned": cleaned} if cleaned else {}
        return self._timed(topics, start, offset, at, cut, ends)

    def _read_since(
        self, read_since: Mapping[str, ReadSince], at: Positions, cut: Positions
    ) -> Iterator[tuple[str, dict[str, int] | None]]:
        ends = dict(by_topic(cut, read_since))
        for name, starts in by_topic(at, read_since):
            yield name, read_since[name].next(starts, ends[name])

    def _timed(
        self, topics: Mapping[str, EmbeddedTopic], start: dict[str, Any], offset: dict[str, Any], at: Positions,
        cut: Positions, ends: Positions,
    ) -> dict[str, Any]:  # fmt: skip
        """The offset with the clock of its batch, where that needs one."""
        if not self._request.clock:
            return offset
        now = now_of(self._request.clock, self._log().clock)
        appended = min(
            (topics[name].appended_from(reached, now) for name, reached in by_topic(at | cut, topics)), default=now
        )
        watermark = self._watermark(topics, at | cut)
        idle, floor = self._idle(topics), NO_TIME
        if idle is not None:
            # Of a topic that is gone nothing is known any more.
            starts = {lane: first for lane, first in at.items() if lane[0] in topics}
            floor = idle.floor(start, starts, starts | cut, now)
            watermark = idle.watermark(starts | cut, floor, watermark, now)
        clocks = Clocks(watermark, now, appended)
        found = clocked(offset, start, clocks, self._request.delay, self._request.clock)
        return found if idle is None or found == start else {**found, "idle": idle.to_json(floor)}

    def _idle(self, topics: Mapping[str, EmbeddedTopic]) -> IdleInput | None:
        request = self._request
        if request.idle is None or request.delay is None or not request.clock:
            return None
        return IdleInput.of(self._log(), topics, request.idle)

    def _watermark(self, topics: Mapping[str, EmbeddedTopic], at: Positions) -> int:
        """The lowest of all topics; one that was never written to holds nobody up."""
        delay = self._request.delay
        if delay is None:
            return NO_TIME
        found = [topics[name].watermark_from(ends, delay) for name, ends in by_topic(at, topics) if any(ends.values())]
        return min(found, default=NO_TIME)

    def _cut(self, topics: Mapping[str, EmbeddedTopic], at: Positions, ends: Positions) -> Positions:
        return self._agreed.ends(topics, at, ends)

    def _hold(self, topics: Mapping[str, EmbeddedTopic], at: Positions, ends: Positions) -> None:
        """As the source of one topic does, before Spark notes the batch down."""
        for name, backend in topics.items():
            ranges = {
                partition: (at[name, partition], end)
                for (topic, partition), end in ends.items()
                if topic == name and end > at[name, partition]
            }
            if self._request.holder and ranges != self._held.get(name):
                backend.hold(self._request.holder, ranges)
                self._held[name] = ranges
            for partition, (first, _) in ranges.items():
                if backend.earliest(partition) > first:
                    backend.read(partition, first, 1, [])

    def _wait(self, topics: Mapping[str, EmbeddedTopic]) -> None:
        paths = [backend.store.heads_path for backend in topics.values()]
        if self._watch is None or self._watch[0] != paths:
            self.stop()
            # What came before the watch began is seen by whoever asks next.
            self._watch = (paths, Watch(paths))
            return
        if not self._watch[1].wait(self._request.wait_ms / 1000):
            for backend in topics.values():
                backend.settle()
                break

    def _check_topics(self, topics: Mapping[str, EmbeddedTopic], offset: Mapping[str, Any]) -> None:
        for name, known in offset.get("ids", {}).items():
            if name in topics:
                check_same_topic(topics[name], known, self._request.flow)
        if not self._reached:
            for name, starts in by_topic(positions(offset["topics"]), topics):
                check_reached(topics[name], starts, self._request.flow)
            self._reached = True

    def _offset(
        self, at: Positions, began: Positions, refused: Mapping[str, str], ids: Mapping[str, str]
    ) -> dict[str, Any]:
        return {
            "glob": self._request.topic,
            "topics": nested(at),
            "ids": dict(sorted(ids.items())),
            "began": nested(began),
            "refused": dict(sorted(refused.items())),
        }

    # Rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._check()
        if not self._reached:
            self._check_topics(self._topics(dict(end["refused"])), end)
        starts = positions(end["began"]) | positions(start["topics"])
        ends = positions(end["topics"])
        rows = sum(at - starts[lane] for lane, at in ends.items())
        floors = self._floors(start, starts, ends)
        slices: list[InputPartition] = []
        for name in end["topics"]:
            theirs = {number: at for (topic, number), at in ends.items() if topic == name}
            begins = {number: starts[name, number] for number in theirs}
            share = sum(theirs.values()) - sum(begins.values())
            wanted = max(1, round(self._request.slices * share / max(1, rows)))
            slices += [
                TopicsSlice(name, TopicSlice(part.partition, part.start, part.end, floors))
                for part in slices_between(begins, theirs, wanted)
            ]
        return slices

    def _floors(self, start: Mapping[str, Any], starts: Positions, ends: Positions) -> list[Floor]:
        log = self._log()
        changed = {name for (name, number), end in ends.items() if end > starts[name, number]}
        there = changed | ({*start["topics"]} & {*log.topic_names()})
        idle = self._idle({name: log.open_topic(name) for name in there})
        if idle is None:
            return []
        return idle.floors(start, {lane: at for lane, at in starts.items() if lane[0] in there}, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicsSlice)
        self._check()
        request, schema = self._of_topic(partition.topic)
        yield from self._wanted(read_slice(request, schema, partition.part), partition.topic)

    def _of_topic(self, topic: str) -> tuple[TopicRequest, pa.Schema]:
        """What is wanted of one of the topics: the columns that it has."""
        known = {*self._log().open_topic(topic).settings.stored_schema.names, "record"}
        # Something must be read for its rows to be counted.
        columns = tuple(name for name in self._request.columns if name in known) or ("record",)
        there = self._schema.names
        fields = [self._schema.field(name) if name in there else pa.field(name, RECORD) for name in columns]
        return replace(self._request, topic=topic, columns=columns, condition=None), pa.schema(fields)

    def _wanted(self, batches: Iterable[pa.RecordBatch], topic: str) -> Iterator[pa.RecordBatch]:
        condition = self._request.condition
        for batch in batches:
            whole = self._whole(batch, topic)
            wanted = whole if condition is None else whole.filter(condition_mask(condition, whole))
            if wanted.num_rows:
                yield wanted

    def _whole(self, batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
        """With the topic's name, and nulls in columns that the topic does not have."""
        columns = []
        for field in self._schema:
            if field.name == TOPIC:
                columns.append(pa.repeat(pa.scalar(topic), batch.num_rows))
            elif field.name in batch.schema.names:
                columns.append(batch.column(field.name))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, names=self._schema.names)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch[1].close()
            self._watch = None


def by_topic(at: Positions, topics: Iterable[str]) -> Iterator[tuple[str, dict[int, int]]]:
    for name in topics:
        yield name, {number: end for (topic, number), end in at.items() if topic == name}


def _ids(topics: Mapping[str, EmbeddedTopic]) -> dict[str, str]:
    return {name: backend.id for name, backend in topics.items()}


def _ends(topics: Mapping[str, EmbeddedTopic]) -> Positions:
    return {(name, number): end for name, backend in topics.items() for number, end in readable_ends(backend).items()}
