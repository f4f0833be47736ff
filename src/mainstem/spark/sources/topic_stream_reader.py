"""TopicStreamReader: reads the records of a topic, batch by batch, as Arrow batches.

The driver's side (offsets) lives in one Python process for as long as the query runs; `read` runs in the workers. A
batch is defined by its offsets: `read` opens the log of the home itself and finds the same rows at every replay.

    offset  {"topic": "orders", "id": "5f..", "offsets": {"0": 512, "1": 498}}      the next offset of each partition
            {"topic": ..., "applied": {"carts": {"0": 77}}}     and the offsets applied of other topics, if flows write into it
            {"topic": ..., "cleaned": {"0": 512}}               of a compacted topic: see `read_since`

Every request checks the epoch: a run that a newer one has replaced is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from mainstem.clock import as_datetime
from mainstem.errors import SchemaMismatch
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.log import TopicBackend, Waking
from mainstem.log.partition_reads import offsets_at
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.log.topic_reads import LiveReads
from mainstem.log.watermark import NO_TIME
from mainstem.spark.checkpoint.checkpoint_check import check_reached, check_same_topic
from mainstem.spark.checkpoint.flow_store import check_epoch
from mainstem.spark.checkpoint.read_since import ReadSince
from mainstem.spark.plan.row_condition import columns_in, condition_mask
from mainstem.spark.sources.agreed_cut import AgreedCut
from mainstem.spark.sources.batch_clock import Clocks, clocked, now_of, unread
from mainstem.spark.sources.flow_cut import BatchCut, Lane, Positions, SourcePart, readable_ends
from mainstem.spark.sources.idle_input import Floor, IdleInput, raised
from mainstem.spark.sources.passed_tokens import PassedTokens
from mainstem.spark.sources.topic_request import TopicRequest, from_text
from mainstem.spark.sources.worker_memory import spare_collections

__all__ = ["TopicSlice", "TopicStreamReader", "open_log", "planned_batches", "read_slice", "slices_between"]


class TopicSlice(InputPartition):
    """A range of offsets of one partition."""

    def __init__(self, partition: int, start: int, end: int, floors: Sequence[Floor] = ()) -> None:
        super().__init__((partition, start, end))
        self.partition, self.start, self.end = partition, start, end
        # See `idle_input`.
        self.floors = tuple(floors)


# A worker serves many batches: it opens a home once.
@lru_cache(maxsize=4)
def open_log(home: str) -> EmbeddedLog:
    return EmbeddedLog(home)


@lru_cache(maxsize=16)
def packing_of(option: str) -> Any:
    """What is to be done with rows: `operators.stage.packed_rows.Packing`, which is above this layer."""
    return from_text(option)


def open_backend(request: TopicRequest) -> EmbeddedTopic:
    return open_log(request.home).open_topic(request.topic)


# A task costs more than to read so many rows.
SLICE_ROWS_MIN = 10_000


def slices_between(starts: Mapping[int, int], ends: Mapping[int, int], wanted: int) -> list[TopicSlice]:
    """About `wanted` slices, none of more than one partition; a partition's lie in order. Small ones are not cut."""
    sizes = {partition: ends[partition] - starts.get(partition, 0) for partition in sorted(ends)}
    share = max(SLICE_ROWS_MIN, sum(sizes.values()) / max(1, wanted))
    slices = []
    for partition, size in sizes.items():
        count = max(1, round(size / share))
        first = starts.get(partition, 0)
        bounds = [first + size * number // count for number in range(count + 1)]
        slices += [TopicSlice(partition, low, high) for low, high in pairwise(bounds) if low < high]
    return slices


def read_slice(request: TopicRequest, schema: pa.Schema, part: TopicSlice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice that are wanted, with the asked columns in their order."""
    backend = open_backend(request)
    condition = request.condition
    columns = {*request.columns, *(() if condition is None else columns_in(condition))} - {"record"}
    batches = backend.read_held(part.partition, part.start, part.end, list(columns), request.delay)
    return planned_batches(request, schema, (raised(batch, part.floors) for batch in batches))


def planned_batches(
    request: TopicRequest, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows that are wanted, with the asked columns in their order."""
    condition = request.condition
    spare_collections()
    for batch in batches:
        wanted = batch if condition is None else batch.filter(condition_mask(condition, batch))
        if wanted.num_rows:
            yield _as_planned(_filled(wanted.select(list(request.columns)), schema), schema, request.topic)


def _filled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With nulls in the columns that the flow names and does not need."""
    if len(schema) == batch.num_columns:
        return batch
    there = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    columns = [there[field.name] if field.name in there else pa.nulls(batch.num_rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _as_planned(batch: pa.RecordBatch, schema: pa.Schema, topic: str) -> pa.RecordBatch:
    """The columns with the types that the flow was built with: they may have been widened since."""
    for place, field in enumerate(schema):
        column = batch.column(place)
        if column.type != field.type and not pa.types.is_nested(field.type):
            try:
                batch = batch.set_column(place, field, column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise SchemaMismatch(
                    f'column "{field.name}" of topic "{topic}" was widened to {type_to_ddl(column.type)}',
                    detail=f"When the flow was built it was {type_to_ddl(field.type)}, which cannot hold all values: "
                    f"{error}.",
                    hint="Run the program again.",
                    column=field.name,
                ) from error
    return batch


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic, batch by batch."""

    def __init__(self, request: TopicRequest, schema: pa.Schema, packing: str = "") -> None:
        """`packing`: what is done with the rows for a stage before they are given; empty for nothing."""
        self._request = request
        self._schema = schema
        self._packing = packing
        self._batch_cut = BatchCut(request.rows_max, request.bytes_max)
        self._limit: dict[int, int] | None = None
        self._tokens = PassedTokens(request.home, request.topic)
        self._waking: Waking | None = None
        self._agreed = AgreedCut(request, lambda: open_log(request.home))
        # How far the topic could be read when the last batch was planned; None if another source has planned it.
        self._readable: dict[int, int] | None = None
        # None: what an earlier run holds is not known.
        self._held: dict[int, tuple[int, int]] | None = None
        # Whether the topic was seen to hold all that was read of it: it is never set back while it is open.
        self._reached = False

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the request and what is to come of it, nothing else.
        return {"_request": self._request, "_schema": self._schema, "_packing": self._packing}

    def _check(self) -> EmbeddedTopic:
        if self._request.run is not None:
            check_epoch(self._request.home, self._request.run)
        return open_backend(self._request)

    def _offset(self, backend: TopicBackend, positions: Mapping[int, int]) -> dict[str, Any]:
        return {
            "topic": self._request.topic,
            "id": backend.id,
            "offsets": {str(number): at for number, at in sorted(positions.items())},
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names from here on
        backend = self._check()
        cleaned = ReadSince.beginning(backend)
        first = unread(self._first_offset(backend), self._request.delay, self._request.clock, backend.clock)
        return first if cleaned is None else first | {"cleaned": cleaned}

    def _first_offset(self, backend: EmbeddedTopic) -> dict[str, Any]:
        begun = self._agreed.begun()
        if begun is not None:
            return self._offset(backend, {number: at for (_, number), at in begun.items()})
        sources = {self._request.leaf: _beginning(self._request, backend)}
        peers = self._agreed.peers
        agreed = not any(peer.pattern for peer in peers)
        if agreed:
            sources |= {peer.leaf: _beginning(peer, self._backend_of(peer)) for peer in peers}
        at = self._agreed.beginnings(sources)
        if agreed:
            self._agreed.begin(at)
        return self._offset(backend, {number: first for (_, number), first in at[self._request.leaf].items()})

    def _backend_of(self, request: TopicRequest) -> TopicBackend:
        return open_backend(request)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = readable_ends(open_backend(self._request))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        backend = self._check()
        start = self._known(start)
        check_same_topic(backend, start.get("id", ""), self._request.flow)
        starts = _positions(start)
        self._check_reached(backend, starts)
        # Before the ends: what is committed now is in what can be read then.
        passed = self._tokens.passed(backend)
        read_since = ReadSince(backend, start.get("cleaned"))
        cut = self._next_ends(backend, starts)
        # Before they are held: what is compacted in between counts as dropped too early, and not as never read.
        cleaned = read_since.next(starts, cut)
        planned = self._planned(backend, starts, cut)
        read_since.check(starts, self._request.flow)
        applied = passed.applied if passed.applied and passed.reached(planned) else start.get("applied", {})
        offset = self._offset(backend, planned) | ({"applied": applied} if applied else {})
        if cleaned is not None:
            offset["cleaned"] = cleaned
        if not self._request.clock:
            return offset
        delay = self._request.delay
        watermark = NO_TIME if delay is None else backend.watermark_from(planned, delay)
        now = now_of(self._request.clock, backend.clock)
        idle, floor = self._idle(backend), NO_TIME
        if idle is not None:
            lanes = self._lanes(planned)
            floor = idle.floor(start, self._lanes(starts), lanes, now)
            watermark = idle.watermark(lanes, floor, watermark, now)
        clocks = Clocks(watermark, now, backend.appended_from(planned, now))
        found = clocked(offset, start, clocks, delay, self._request.clock)
        return found if idle is None or found == start else {**found, "idle": idle.to_json(floor)}

    def _check_reached(self, backend: TopicBackend, positions: Mapping[int, int]) -> None:
        if not self._reached:
            check_reached(backend, positions, self._request.flow)
            self._reached = True

    def _next_ends(self, backend: TopicBackend, starts: dict[int, int]) -> dict[int, int]:
        """Where the next batch ends: where another source of the flow has planned it, else as this one finds it."""
        lanes = self._lanes(starts)
        if (given := self._agreed.given(lanes)) is not None:
            self._readable = None
            return {number: end for (_, number), end in given.items()}
        ends = self._ends(backend)
        if self._limit is None and not _beyond(starts, ends):
            if self._waking is None:
                self._waking = backend.waking()
                ends = self._ends(backend)
            if not _beyond(starts, ends):
                self._wait(backend)
                ends = self._ends(backend)
        self._readable = ends
        if self._request.cuts is not None:
            return self._cut(backend, starts, self._replayed(starts, ends))
        found = self._agreed.ends({self._request.topic: backend}, lanes, self._lanes(ends))
        if self._agreed.waits and self._limit is None:
            # For a transaction that is not decided: whoever has it open may be gone.
            self._wait(backend)
        return {number: end for (_, number), end in found.items()}

    def _wait(self, backend: TopicBackend) -> None:
        if self._waking is None:
            self._waking = backend.waking()
        if not self._waking.wait(self._request.wait_ms / 1000):
            backend.settle()

    def _lanes(self, at: Mapping[int, int]) -> Positions:
        return {(self._request.topic, number): offset for number, offset in at.items()}

    def _planned(self, backend: TopicBackend, starts: Mapping[int, int], ends: dict[int, int]) -> dict[int, int]:
        """Hold a batch before Spark notes it down: from then on it reads the same rows however often it is run.

        Spark asks for the next batch when the last one is committed, so that one need not be held any more.
        """
        ranges = {number: (starts.get(number, 0), end) for number, end in ends.items() if end > starts.get(number, 0)}
        if self._request.holder and ranges != self._held:
            backend.hold(self._request.holder, ranges)
            self._held = ranges
        for number, (first, _) in ranges.items():
            if backend.earliest(number) > first:
                # Dropped before it was held. Said now, and not by a batch that could never end.
                backend.read(number, first, 1, [])
        return ends

    def _replayed(self, starts: Mapping[int, int], ends: dict[int, int]) -> dict[int, int]:
        """Of what there is, what the next batch of a replay may have."""
        for cut in self._request.cuts or ():
            within = {number: min(end, cut.get(str(number), 0)) for number, end in ends.items()}
            if _beyond(starts, within):
                return within
        return ends if self._request.cuts is None else {number: starts.get(number, 0) for number in ends}

    def _ends(self, backend: TopicBackend) -> dict[int, int]:
        return readable_ends(backend) if self._limit is None else self._limit

    def _cut(self, backend: TopicBackend, starts: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
        lanes = {number: Lane(backend, number) for number in ends}
        return self._batch_cut.ends(lanes, {number: starts.get(number, 0) for number in ends}, ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        backend = self._check()
        check_same_topic(backend, end.get("id", ""), self._request.flow)
        self._check_reached(backend, _positions(end))
        start = self._known(start)
        starts, ends = _positions(start), _positions(end)
        slices = slices_between(starts, ends, self._request.slices)
        if (idle := self._idle(backend)) is None:
            return slices
        floors = idle.floors(start, self._lanes(starts), self._lanes(ends))
        return [TopicSlice(part.partition, part.start, part.end, floors) for part in slices]

    def _idle(self, backend: TopicBackend) -> IdleInput | None:
        request = self._request
        if request.idle is None or request.delay is None or not request.clock:
            return None
        return IdleInput.of(open_log(request.home), {request.topic: backend}, request.idle)

    def _known(self, offset: dict[str, Any]) -> dict[str, Any]:
        """An offset as this source writes it: at its first batch it is handed that of the file source before it."""
        return self._request.history if "logOffset" in offset else offset

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicSlice)
        self._check()
        return self._given(lambda schema: read_slice(self._request, schema, partition))

    def _given(self, read: Callable[[pa.Schema], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What is read, with the columns that it is to have."""
        if not self._packing:
            return read(self._schema)
        packing = packing_of(self._packing)
        packed: Iterator[pa.RecordBatch] = packing.packed(read(packing.schema))
        return packed

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        backend = open_backend(self._request)
        return self._offset(backend, readable_ends(backend))

    def stop(self) -> None:
        self._agreed.close()
        if self._waking is not None:
            self._waking.close()
            self._waking = None


def _beginning(request: TopicRequest, backend: TopicBackend) -> SourcePart:
    """A source that has had no batch: its `ends` are where it is to begin."""
    reads = LiveReads(backend)
    start = request.start
    if isinstance(start, dict):
        start = as_datetime(start["at"]) if "at" in start else {int(number): at for number, at in start.items()}
    while True:
        numbers = list(range(backend.settings.partitions))
        earliest = offsets_at("earliest", reads, numbers)
        at = earliest | offsets_at(start, reads, numbers)
        # A transaction that is before one of them may have written to one that was added meanwhile.
        if backend.settings.partitions == len(numbers):
            break
    firsts, begins = ({(request.topic, number): offset for number, offset in by.items()} for by in (earliest, at))
    return SourcePart(request, {request.topic: backend}, firsts, begins)


def _beyond(starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return any(end > starts.get(number, 0) for number, end in ends.items())


def _positions(offset: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): at for number, at in offset["offsets"].items()}
