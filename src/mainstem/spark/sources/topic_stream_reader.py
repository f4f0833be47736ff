"""TopicStreamReader: reads the records of a topic, or of all topics that match a pattern, batch by batch, as Arrow batches.

The driver's side (offsets) lives in one Python process for as long as the query runs; `read` runs in the workers. A
batch is defined by its offsets: `read` opens the log itself and finds the same rows at every replay. If the log can hold
records (Kafka cannot), those of a batch are held until it is committed; a batch whose records were dropped fails.

    offset  {"topic": "orders", "id": "5f..", "offsets": {"0": 512, "1": 498}}      the next offset of each partition
            {"topic": ..., "applied": {"carts": {"0": 77}}}     and the offsets applied of other topics, if flows write into it
            {"topic": ..., "cleaned": {"0": 512}}               of a compacted topic: see `read_since`

    offset  {"glob": "orders.*",
             "topics":  {"orders.eu": {"0": 512}, ...}     the next offset of each partition
             "ids":     {"orders.eu": "5f..", ...}         which topic of that name it was
             "began":   {"orders.eu": {"0": 0}, ...}       where each topic began when it joined
             "refused": {"orders.uk": "it has no ..."}     topics that do not fit
             "cleaned": {"orders.eu": {"0": 512}}}         of compacted topics

    both    {..., "noted": 512}                            on Kafka: notes of transactions before this one do not matter any more
            and the clock of the batch: see `batch_clock`, `idle_input`, `observed_times`

A topic that is created later joins with the next batch. One that does not fit is recorded once in `mainstem.refused_topics`.
Every request checks the epoch: a run that a newer one has replaced is fenced.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from mainstem.errors import Conflict, SchemaMismatch
from mainstem.log.flow_cut import Positions, SourcePart, by_topic, readable_ends
from mainstem.log.log import AppendWatch, Log, Promise, TopicBackend
from mainstem.log.opened_log import opened_log
from mainstem.log.partition_reads import offsets_at
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.log.topic import Topic
from mainstem.log.topic_reads import LiveReads
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.checkpoint_check import check_reached, check_same_topic, topics_in
from mainstem.spark.checkpoint.flow_store import FlowStore, check_epoch
from mainstem.spark.checkpoint.read_since import ReadSince
from mainstem.spark.plan.row_expression import columns_in, condition_mask
from mainstem.spark.sources.agreed_cut import AgreedCut, nest_positions, positions
from mainstem.spark.sources.batch_clock import begin_clock, due_time, now_of
from mainstem.spark.sources.batch_pace import BatchPause
from mainstem.spark.sources.passed_tokens import Applied, PassedTokens
from mainstem.spark.sources.source_time import SourceTime, Topics, TopicSlice, source_time
from mainstem.spark.sources.topic_glob import REFUSED_SCHEMA, REFUSED_TOPICS, TOPIC, match_topics, why_not
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.worker_memory import spare_collections

__all__ = ["TopicReader", "TopicStreamReader", "slices_between"]


# How long to wait for an append at a time, if nothing else can begin a batch. It also bounds how late an abandoned
# transaction of another source is aborted.
IDLE_SECONDS = 5.0
# If the flow has a clock: an input that is idle for some time no longer holds back the watermark.
IDLE_SECONDS_WITH_CLOCK = 1.0


# The rows of a slice, in the workers

# A further task costs more than reading this many rows.
SLICE_ROWS_MIN = 10_000


def slices_between(
    starts: Mapping[int, int], ends: Mapping[int, int], wanted: int, topic: str = ""
) -> list[TopicSlice]:
    """About `wanted` slices, each of one partition; those of a partition are in order. Small ones are not divided."""
    sizes = {partition: ends[partition] - starts.get(partition, 0) for partition in sorted(ends)}
    share = max(SLICE_ROWS_MIN, sum(sizes.values()) / max(1, wanted))
    slices = []
    for partition, size in sizes.items():
        count = max(1, round(size / share))
        first = starts.get(partition, 0)
        bounds = [first + size * number // count for number in range(count + 1)]
        slices += [TopicSlice(topic, partition, low, high) for low, high in pairwise(bounds) if low < high]
    return slices


def read_slice(
    request: TopicRequest, schema: pa.Schema, part: TopicSlice, time: SourceTime
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice that match the condition, with the columns of the schema."""
    topic = opened_log(request.home, request.log).open_topic(part.topic)
    condition = request.condition
    columns = {*schema.names, *request.columns, *(() if condition is None else columns_in(condition))}
    if request.pattern:
        columns = (columns - {TOPIC}) & {*topic.settings.stored_schema.names, "record"}
    spare_collections()
    for batch in time.rows(topic, part, columns):
        # With several topics, the condition may use a column that this one lacks.
        whole = _as_planned(_add_topic(batch, part.topic), schema, part.topic) if request.pattern else batch
        wanted = whole if condition is None else whole.filter(condition_mask(condition, whole))
        if wanted.num_rows:
            yield wanted if request.pattern else _as_planned(wanted, schema, part.topic)


def _add_topic(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    return batch.append_column(TOPIC, pa.repeat(pa.scalar(topic), batch.num_rows))


def _as_planned(batch: pa.RecordBatch, schema: pa.Schema, topic: str) -> pa.RecordBatch:
    """The columns that the flow was built with, null if missing or not needed, and with their types of then: they may have
    been widened since."""
    there = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    columns = []
    for field in schema:
        column = there[field.name] if field.name in there else pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f'column "{field.name}" of topic "{topic}" was widened to {type_to_ddl(column.type)}',
                    detail=f"When the flow was built it was {type_to_ddl(field.type)}, which cannot hold all values: "
                    f"{error}.",
                    hint="Run the program again.",
                    column=field.name,
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


# Offsets, in the driver


@dataclass
class SourceOffset:
    """The position of a source in each of its topics, and their facts."""

    at: Positions
    ids: dict[str, str]
    cleaned: dict[str, Mapping[str, int]]
    # Of a pattern
    began: Positions
    refused: dict[str, str]

    @classmethod
    def read(cls, offset: Mapping[str, Any]) -> SourceOffset:
        known = list(topics_in(offset))
        cleaned = offset.get("cleaned")
        if cleaned is not None and "topic" in offset:
            cleaned = {offset["topic"]: cleaned}
        return cls(
            {(name, number): at for name, _, ends in known for number, at in ends.items()},
            # The id of a deleted topic is kept: a topic that is created again must not be taken for it.
            dict(offset["ids"]) if "ids" in offset else {name: topic_id for name, topic_id, _ in known if topic_id},
            dict(cleaned or {}),
            positions(offset.get("began", {})),
            dict(offset.get("refused", {})),
        )

    def is_before(self, ends: Positions) -> bool:
        """Whether there is something to read, or a topic to join."""
        return any(end > self.at.get(lane, -1) for lane, end in ends.items())

    def to_json(self, request: TopicRequest, applied: Applied) -> dict[str, Any]:
        if request.pattern:
            offset: dict[str, Any] = {
                "glob": request.topic,
                "topics": nest_positions(self.at),
                "ids": dict(sorted(self.ids.items())),
                "began": nest_positions(self.began),
                "refused": dict(sorted(self.refused.items())),
            }
            return offset | ({"cleaned": self.cleaned} if self.cleaned else {})
        name = request.topic
        offset = {"topic": name, "id": self.ids[name], "offsets": nest_positions(self.at).get(name, {})}
        offset |= {"applied": applied} if applied else {}
        return offset | ({"cleaned": self.cleaned[name]} if name in self.cleaned else {})


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of one request, batch by batch."""

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema
        self._agreed = AgreedCut(request, lambda: self._log)
        self._pause = BatchPause(request.together)
        self._limit: Positions | None = None
        self._tokens = PassedTokens(lambda: self._log, request.home, request.topic)
        self._watch: tuple[list[str], AppendWatch] | None = None
        # The records that this run holds; those of an earlier run are unknown.
        self._held: dict[str, dict[int, tuple[int, int]]] = {}
        # Whether nothing but an append can begin a batch; see `_idle_seconds`.
        self._idles = False
        # Whether the topics were checked to reach the start offsets: a topic cannot become shorter while it is open.
        self._reached = False

    def __getstate__(self) -> dict[str, Any]:
        # Workers get only the request and the schema.
        return {"_request": self._request, "_schema": self._schema}

    @property
    def _log(self) -> Log:
        return opened_log(self._request.home, self._request.log)

    @cached_property
    def _time(self) -> SourceTime:
        return source_time(self._request, self._log)

    def _check(self) -> None:
        """Raise `Fenced` if a newer run of the flow has started, `Conflict` if a task does not find the home of its flow.

        Tasks may write observed times there: if the driver did not find them, no window would ever close.
        """
        request = self._request
        if request.run is None:
            return
        if request.log and not FlowStore(request.home, request.flow).exists():
            raise Conflict(
                f'the home "{request.home}" has no directory of flow "{request.flow}"',
                detail=f"So it appears on machine {socket.gethostname()}, where a task of the flow runs.",
                hint="The home must be on a path that the driver and all executors share.",
            )
        check_epoch(request.home, request.run)

    # Which topics

    def _names(self) -> list[str]:
        return match_topics(self._request.topic, self._log.topic_names())

    def _topics(self, refused: dict[str, str]) -> dict[str, TopicBackend]:
        """The topics that fit; the reasons for the others are added to `refused`, and recorded."""
        log = self._log
        if not self._request.pattern:
            return {self._request.topic: log.open_topic(self._request.topic)}
        plain = pa.schema([field for field in self._schema if field.name not in (TOPIC, "record")])
        marked = [field.name for field in self._schema if b"mainstem.event_time" in (field.metadata or {})]
        event_time = None if self._request.delay is None or not marked else marked[0]
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

    def _note(self, topic: str, reason: str) -> None:
        log = self._log
        notes = Topic(log, log.create_topic(TopicSettings.of(REFUSED_TOPICS, schema=REFUSED_SCHEMA)))
        notes.append([{"flow": self._request.flow, "topics": self._request.topic, "topic": topic, "reason": reason}])

    def _check_topics(self, topics: Topics, offset: SourceOffset) -> None:
        for name, known in offset.ids.items():
            if name in topics:
                check_same_topic(topics[name], known, self._request.flow)
        if not self._reached:
            for name, starts in by_topic(offset.at).items():
                if name in topics:
                    check_reached(topics[name], starts, self._request.flow)
            self._reached = True

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names from here on
        self._check()
        refused: dict[str, str] = {}
        topics = self._topics(refused)
        at = self._beginning(topics)
        cleaned = {name: noted for name in topics if (noted := ReadSince.beginning(topics[name])) is not None}
        first = SourceOffset(at, _ids(topics), dict(cleaned), at, refused).to_json(self._request, {})
        return self._time.first(begin_clock(first, self._request.delay, self._request.clock, self._log.clock))

    def _beginning(self, topics: Topics) -> Positions:
        request, begun = self._request, self._agreed.take_planned_starts()
        if begun is not None:
            return begun
        sources = {request.leaf: _begin_source(request, topics)}
        peers = self._agreed.peers
        # Each source finds the topics of its own pattern.
        agreed = not any(source.pattern for source in (request, *peers))
        if agreed:
            sources |= {
                peer.leaf: _begin_source(peer, {peer.topic: self._log.open_topic(peer.topic)}) for peer in peers
            }
        at = self._agreed.beginnings(sources)
        if agreed:
            self._agreed.begin(at)
        return at[request.leaf]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = _ends(self._topics({}))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._request.pattern:
            return None
        topics = self._topics({})
        return SourceOffset(_ends(topics), _ids(topics), {}, {}, {}).to_json(self._request, {})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._check()
        start = self._translate_offset(start)
        offset = SourceOffset.read(start)
        topics: Topics = self._topics(offset.refused)
        self._check_topics(topics, offset)
        if "noted" in start:
            self._agreed.begin_at(start["noted"])
        given = self._agreed.take_planned_ends(offset.at)
        rows = given is not None or self._limit is not None or self._pace()
        # Before the ends are read: what is committed now can be read then.
        passed = self._tokens.find(topics[self._request.topic]) if rows and not self._request.pattern else None
        self._idles = (
            self._request.only_topics
            and passed is not None
            and not passed.applied
            and not any(peer.pattern for peer in self._agreed.peers)
        )
        if given is not None and not self._request.pattern:
            ends, readable = given, (lambda: self._ends(topics)) if self._request.clock else None
        else:
            topics, ends = self._readable(topics, offset, wait=given is None and rows)
            readable = lambda: ends  # noqa: E731
        before = by_topic(offset.at)
        if rows:
            self._join(topics, offset, ends)
        else:
            topics = {name: backend for name, backend in topics.items() if name in before}
        starts, cut = offset.at, self._cut(topics, offset, ends, given, rows=rows)
        planned = by_topic(cut)
        self._hold(topics, offset, planned, before)
        offset.at = starts | cut
        offset.ids |= _ids(topics)
        applied = start.get("applied", {})
        if passed is not None and passed.applied and passed.reached(planned[self._request.topic]):
            applied = passed.applied
        found = offset.to_json(self._request, applied)
        return self._time.time_offset(topics, start, found, starts, offset.at, readable, self._agreed.noted)

    def _translate_offset(self, offset: dict[str, Any]) -> dict[str, Any]:
        """An offset in this source's format: for its first batch it may get that of the file source before it."""
        return offset if self._request.history is None or "logOffset" not in offset else self._request.history

    def _readable(self, topics: Topics, offset: SourceOffset, *, wait: bool) -> tuple[Topics, Positions]:
        """The ends of the readable records. If there is nothing new, it waits a little for an append."""
        ends = self._ends(topics)
        if wait and self._limit is None and not offset.is_before(ends):
            heard = self._listen(topics)
            if not heard:
                ends = self._ends(topics)
            if not offset.is_before(ends):
                self._wait(topics, self._idle_seconds(topics, ends, heard=heard))
                if self._request.pattern:
                    topics = self._topics(offset.refused)
                    self._check_topics(topics, offset)
                ends = self._ends(topics)
        if not self._request.pattern:
            return topics, ends
        if self._limit is None and set(self._names()) - {*topics, *offset.refused}:
            # Created after the ends of the others were read. A transaction that is readable there may have written to it.
            topics = self._topics(offset.refused)
            ends |= {lane: end for lane, end in _ends(topics).items() if lane not in ends}
        return topics, {lane: end for lane, end in ends.items() if lane[0] in topics}

    def _ends(self, topics: Topics) -> Positions:
        return _ends(topics) if self._limit is None else self._limit

    def _join(self, topics: Topics, offset: SourceOffset, ends: Positions) -> None:
        """Add new topics and partitions to the offset."""
        fresh = [lane for lane in ends if lane not in offset.at]
        known = {name for name, _ in offset.at} if fresh else set()
        for name, number in fresh:
            if not self._request.pattern:
                offset.at[name, number] = 0
                continue
            offset.at[name, number] = offset.began[name, number] = topics[name].earliest(number)
            if name not in known and (begun := ReadSince.beginning(topics[name])) is not None:
                offset.cleaned[name] = begun

    def _pace(self) -> bool:
        """Wait until the next batch may have rows; False if it may not yet, but a timer may be due."""
        if self._agreed.behind:
            return True
        folder, wake = self._request.clock, None
        if folder and (due := due_time(folder)) is not None:
            wake = due - now_of(folder, self._log.clock)
            if wake <= 0:
                return True
        return self._pause.wait(wake)

    def _cut(
        self, topics: Topics, offset: SourceOffset, ends: Positions, given: Positions | None, *, rows: bool
    ) -> Positions:
        """The end offsets of the next batch: planned by another source of the flow, or by this one."""
        if not rows:
            return self._agreed.ends(topics, offset.at, dict(offset.at), rows=False)
        if given is not None:
            cut = {lane: given.get(lane, offset.at[lane]) for lane in ends}
            if self._request.pattern:
                # The source that plans the next batch waits until all topics are known.
                self._agreed.stand_at(offset.at | cut, [*topics, *offset.refused])
            return cut
        if self._request.cuts is not None:
            return self._agreed.limits(topics, offset.at, self._find_replay_ends(offset, ends))
        cut = self._agreed.ends(topics, offset.at, ends)
        if self._agreed.waits and self._limit is None:
            # Wait for the open transaction, and abort it if its producer is gone.
            self._listen(topics)
            self._wait(topics, self._request.wait_ms / 1000)
        return cut

    def _find_replay_ends(self, offset: SourceOffset, ends: Positions) -> Positions:
        """The end offsets of the next batch of a replay."""
        for cut in self._request.cuts or ():
            within = {lane: min(end, cut.get(str(lane[1]), 0)) for lane, end in ends.items()}
            if offset.is_before(within):
                return within
        return {lane: offset.at[lane] for lane in ends}

    def _hold(
        self,
        topics: Topics,
        offset: SourceOffset,
        ends: Mapping[str, dict[int, int]],
        before: Mapping[str, dict[int, int]],
    ) -> None:
        """Hold the records of a batch before Spark records it: from then on it reads the same rows in every replay.

        Spark asks for the next batch when the last one is committed, so that one is released.
        """
        starts = by_topic(offset.at)
        # Other logs do not report what was compacted.
        told = topics if Promise.DENSE_OFFSETS in self._log.promises else {}
        read_since = {name: ReadSince(topics[name], offset.cleaned.get(name)) for name in told}
        for name, since in read_since.items():
            # Before they are held: what is compacted in between counts as dropped too early, not as never read.
            if (noted := since.next(starts.get(name, {}), ends.get(name, {}))) is not None:
                offset.cleaned[name] = noted
        for name, backend in topics.items():
            firsts = starts.get(name, {})
            ranges = {at: (firsts[at], end) for at, end in ends.get(name, {}).items() if end > firsts[at]}
            if self._request.holder and ranges != self._held.get(name):
                backend.hold(self._request.holder, ranges)
                self._held[name] = ranges
            for number, (first, _) in ranges.items():
                if backend.earliest(number) > first:
                    # Dropped before it was held: raise the error now, not in a batch that could never succeed.
                    backend.read(number, first, 1, [])
        for name, since in read_since.items():
            since.check(before.get(name, {}), self._request.flow)

    def _listen(self, topics: Topics) -> bool:
        """Listen for appends to these topics. Returns whether it already did: if not, the caller must check the ends again."""
        # Those of the other sources, too: this one waits for all.
        names = [*topics, *(peer.topic for peer in self._agreed.peers if not peer.pattern and peer.topic not in topics)]
        if self._watch is not None and self._watch[0] == names:
            return True
        self._stop_watching()
        self._watch = names, self._log.watch_appends(names, self._pause.bell)
        return False

    def _idle_seconds(self, topics: Topics, ends: Positions, *, heard: bool) -> float:
        """How long to wait for an append, if nothing is to be read. `heard`: it already listened when it planned last.

        Long if only an append, which ends the wait, can begin a batch. If something else can, it is looked at every time:
        a view, a new topic of a pattern, an open transaction, a timer, offsets that another flow has passed.
        """
        request, short = self._request, self._request.wait_ms / 1000
        if self._pause.hurried:
            return 0
        if (
            not self._pause.bell
            or not (heard and self._agreed.took_all and self._idles)
            or Promise.DENSE_OFFSETS not in self._log.promises
            or any(topics[name].end(number) > end for (name, number), end in ends.items())
        ):
            return short
        if not request.clock:
            return IDLE_SECONDS
        due = due_time(request.clock)
        wait = IDLE_SECONDS_WITH_CLOCK if due is None else (due - now_of(request.clock, self._log.clock)) / 1_000_000
        return max(0.0, min(wait, IDLE_SECONDS_WITH_CLOCK))

    def _wait(self, topics: Topics, seconds: float) -> None:
        assert self._watch is not None
        if not self._watch[1].wait(seconds):
            for backend in topics.values():
                # One topic settles the whole log.
                backend.settle()
                break

    # Rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._check()
        start = self._translate_offset(start)
        reached = SourceOffset.read(end)
        if not self._reached or not self._request.pattern:
            self._check_topics(self._topics(dict(reached.refused)), reached)
        starts, ends = reached.began | SourceOffset.read(start).at, reached.at
        floors, watermark = self._time.floors(start, starts, ends), end.get("known")
        rows = sum(at - starts.get(lane, 0) for lane, at in ends.items())
        begins = by_topic(starts)
        slices: list[TopicSlice] = []
        for name, theirs in by_topic(ends).items():
            firsts = {number: begins.get(name, {}).get(number, 0) for number in theirs}
            share = sum(theirs.values()) - sum(firsts.values())
            wanted = max(1, round(self._request.slices * share / max(1, rows)))
            slices += slices_between(firsts, theirs, wanted, name)
        for part in slices:
            part.floors, part.watermark = tuple(floors), watermark
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.rows(partition, self._schema)

    def rows(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a slice with the columns of a schema."""
        assert isinstance(partition, TopicSlice)
        self._check()
        return read_slice(self._request, schema, partition, self._time)

    def stop(self) -> None:
        self._agreed.close()
        self._pause.close()
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch[1].close()
            self._watch = None


class TopicReader(DataSourceReader):
    """A read of one topic between the two positions in the request; a topic in the home is read by Spark itself.

    With a watermark, every record is on time: when a topic is read as a whole, nothing was known before it.
    """

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        starts, stops = (
            {int(number): at for number, at in given.items()}
            for given in (self._request.start, self._request.stop)
            if isinstance(given, Mapping)
        )
        return slices_between(starts, stops, self._request.slices, self._request.topic)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicSlice)
        time = source_time(self._request, opened_log(self._request.home, self._request.log))
        return read_slice(self._request, self._schema, partition, time)


def _begin_source(request: TopicRequest, topics: Topics) -> SourcePart:
    """A source without a batch: its `ends` are its start offsets."""
    firsts: Positions = {}
    begins: Positions = {}
    for name, backend in topics.items():
        reads = LiveReads(backend)
        while True:
            numbers = list(range(backend.settings.partitions))
            earliest = offsets_at("earliest", reads, numbers)
            at = earliest | offsets_at(request.position, reads, numbers)
            # A transaction before one of them may have written to a partition that was added meanwhile.
            if backend.settings.partitions == len(numbers):
                break
        firsts |= {(name, number): offset for number, offset in earliest.items()}
        begins |= {(name, number): offset for number, offset in at.items()}
    return SourcePart(request, topics, firsts, begins)


def _ids(topics: Topics) -> dict[str, str]:
    return {name: backend.id for name, backend in topics.items()}


def _ends(topics: Topics) -> Positions:
    return {(name, number): end for name, backend in topics.items() for number, end in readable_ends(backend).items()}
