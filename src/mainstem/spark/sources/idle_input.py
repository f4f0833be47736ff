"""IdleInput: an idle input of a flow no longer holds back the flow's watermark.

The watermark of a batch is the lowest of the flow's inputs. A table that is written once would hold it back for ever. So an
input may have an `idle_after`: when it had no append for that long, the flow uses the watermark of the inputs *beside*
it, those that have no `idle_after`. Rows after such a gap may be late for what was released meanwhile, and are marked so:
their own watermark is raised to the *floor*, the watermark that was recorded beside them before the gap ended.

    appends of users     |||                                   |||
    appends of orders    | | | | | | | | | | | | | | | | | | | | | |
                            <- idle_after ->.. users hold ..S  floor of these = the watermark of orders at S
                                               nothing back

S, the append time of the first record after a gap, and the watermarks of records are recorded in the log: the
floor of a row is the same for every split into batches, and in every replay. A batch may end in one partition at a later
append than in another: so a gap is looked for by time in all partitions, read or not. A record that was appended at the same
time as S or later does not count. An input that has no record yet is not idle: nothing is known of it.

At the end of the log, when the inputs beside it are idle too, the clock releases rows: the watermark is then the one that
the next record would get, which is not recorded yet. Only there may a replay give a different result, and only if a
later record is late by less than that.

    offset  {..., "idle": {"after": 60000000, "beside": [["orders", 600000000]], "floor": ...}}
            microseconds; "floor" is that of a row appended at the offset's "appended", the earliest that can come; null for none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import FellOff
from mainstem.log.log import Log, TopicBackend
from mainstem.log.steps import Int64Array
from mainstem.log.watermark import NO_TIME, TIME, times_of

__all__ = ["Floor", "IdleInput", "floor_of", "raise_watermarks"]

NEVER = 2**63 - 1

# The next offset of each partition, by topic and number.
Positions = Mapping[tuple[str, int], int]

# An append time, and the minimal watermark of rows appended from then on.
Floor = tuple[int, int]


@dataclass(frozen=True)
class IdleInput:
    """One input, of one topic or several, and the topics that do not wait for it, each with the delay of its watermark.

    An input of several topics is idle when all of them are.
    """

    log: Log
    topics: Mapping[str, TopicBackend]
    after: int
    beside: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, log: Log, topics: Mapping[str, TopicBackend], written: Mapping[str, Any]) -> IdleInput:
        """From the `idle` of a request or an offset."""
        return cls(log, topics, written["after"], tuple((topic, delay) for topic, delay in written["beside"]))

    def to_json(self, floor: int) -> dict[str, Any]:
        return {
            "after": self.after,
            "beside": [list(pair) for pair in self.beside],
            "floor": None if floor == NO_TIME else floor,
        }

    def floor(self, start: Mapping[str, Any], starts: Positions, ends: Positions, now: int) -> int:
        """The floor of the earliest row that can come after a batch; see `to_json`."""
        begun = self._find_begin(start, starts)
        gaps = self._gaps(begun, self._find_earliest_append(ends, now), starts, ends)
        return max([floor_of(start), *(floor for _, floor in gaps)])

    def floors(self, start: Mapping[str, Any], starts: Positions, ends: Positions) -> list[Floor]:
        """The floors of a batch's rows, in the order of time. Floor and watermark of the start offset hold for them, also if
        the clock released rows."""
        first = max(floor_of(start), NO_TIME if start.get("watermark") is None else start["watermark"])
        # Including records that are not in the batch: batch boundaries must not create a gap.
        read = [(topic, number, end) for (topic, number), end in ends.items() if end > starts.get((topic, number), 0)]
        last = max((last_record(self.topics[of], number, end, 0)[0] for of, number, end in read), default=NO_TIME)
        return [(NO_TIME, first), *self._gaps(self._find_begin(start, starts), last, starts, ends)]

    def watermark(self, positions: Positions, floor: int, own: int, now: int) -> int:
        """The lowest watermark of a row from some offsets on. `floor`: the known floor of the earliest of them; `own`: the
        watermark of the input by itself."""
        known = max(own, floor)
        coming = self._find_earliest_append(positions, now)
        last = self._last_before(coming)
        if NO_TIME in (last, coming) or coming - last <= self.after:
            return known
        known = max(known, self._beside_before(coming))
        quiet = coming == now and all(now - self._last(topic)[0] > self.after for topic, _ in self.beside)
        return max(known, self._beside_next()) if quiet else known

    def _find_begin(self, start: Mapping[str, Any], starts: Positions) -> int:
        """The append time before which no row of a batch was appended."""
        found: int | None = start.get("appended")
        return self._find_earliest_append(starts, NEVER) if found is None else found

    def _find_earliest_append(self, positions: Positions, now: int) -> int:
        """The earliest append time that a record from these offsets on can have, including future ones."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, number), at in positions.items():
            by_topic.setdefault(topic, {})[number] = at
        return min((self.topics[topic].earliest_append(at, now) for topic, at in by_topic.items()), default=now)

    def _gaps(self, first: int, last: int, starts: Positions, ends: Positions) -> list[Floor]:
        """The gaps that end between two times (inclusive), independent of batch boundaries."""
        if first > last:
            return []
        found = [self._appends(*lane, first, last, starts.get(lane, 0), end) for lane, end in ends.items()]
        times = np.unique(np.concatenate(found)) if found else np.array([], np.int64)
        before = self._last_before(first)
        times = times if before == NO_TIME else np.r_[before, times]
        return [(int(at), self._beside_before(int(at))) for at in times[1:][np.diff(times) > self.after]]

    def _appends(self, topic: str, number: int, first: int, last: int, start: int, end: int) -> Int64Array:
        """The append times of one partition between two times. Only the records between the offsets are held."""
        backend = self.topics[topic]
        parts = [
            _append_times(backend, number, backend.at_time(number, first), start),
            *(_read_append_times(batch) for batch in backend.read_held(number, start, end, [], None)),
            _append_times(backend, number, end, backend.at_time(number, last + 1)),
        ]
        times = np.concatenate(parts)
        return times[(times >= first) & (times <= last)]

    def _last_before(self, at: int) -> int:
        """The append time of the last record before a time."""
        found = [
            last_record(backend, number, min(end, backend.at_time(number, at)), 0)[0]
            for backend in self.topics.values()
            for number, end in _ends(backend).items()
        ]
        return max(found, default=NO_TIME)

    def _beside_before(self, at: int) -> int:
        """The watermark of the inputs beside it, from their last records before a time."""
        found = [self._last(topic, delay, at) for topic, delay in self.beside]
        return min((watermark for appended, watermark in found if appended != NO_TIME), default=NO_TIME)

    def _beside_next(self) -> int:
        """The lowest watermark that the next record beside it can have."""
        found = []
        for topic, delay in self.beside:
            backend = self.log.open_topic(topic)
            found.append(backend.watermark_from(_ends(backend), delay))
        return min(found, default=NO_TIME)

    def _last(self, topic: str, delay: int = 0, at: int | None = None) -> tuple[int, int]:
        """The latest append time and the highest watermark of the last records of a topic, or of those before a time."""
        backend = self.log.open_topic(topic)
        found = [
            last_record(backend, number, end if at is None else min(end, backend.at_time(number, at)), delay)
            for number, end in _ends(backend).items()
        ]
        return max(appended for appended, _ in found), max(watermark for _, watermark in found)


def last_record(backend: TopicBackend, partition: int, stop: int, delay: int) -> tuple[int, int]:
    """The append time and watermark of the last record before an offset; NO_TIME if there is none."""
    first, step = backend.earliest(partition), 1
    timed = delay if backend.settings.event_time is not None else None
    while stop > first:
        # Not every offset is a record: some are markers, or were compacted away.
        start = max(first, stop - step)
        found = NO_TIME, NO_TIME
        for batch in _batches(backend, partition, start, stop, timed):
            record = batch.column("record").slice(batch.num_rows - 1)
            watermark = NO_TIME if timed is None else int(times_of(record.field("watermark"))[0])
            found = int(times_of(record.field("appended_at"))[0]), watermark
        if found[0] != NO_TIME or start == first:
            return found
        step *= 4
    return NO_TIME, NO_TIME


def _batches(
    backend: TopicBackend, partition: int, start: int, stop: int, delay: int | None
) -> Iterator[pa.RecordBatch]:
    """The records from `start` to before `stop`."""
    while start < stop and (batch := backend.read(partition, start, stop - start, [], delay)) is not None:
        offsets = np.asarray(batch.column("record").field("offset"))
        within = int(np.searchsorted(offsets, stop))
        if not within:
            return
        yield batch.slice(0, within)
        start = int(offsets[-1]) + 1


def _append_times(backend: TopicBackend, partition: int, start: int, stop: int) -> Int64Array:
    """The append times of the retained records between two offsets."""
    while True:
        try:
            found = [
                _read_append_times(it)
                for it in _batches(backend, partition, max(start, backend.earliest(partition)), stop, None)
            ]
            return np.concatenate([np.array([], np.int64), *found])
        except FellOff:
            # Dropped meanwhile: the partition starts later now.
            continue


def _read_append_times(batch: pa.RecordBatch) -> Int64Array:
    return times_of(batch.column("record").field("appended_at"))


def _ends(backend: TopicBackend) -> dict[int, int]:
    return {number: backend.latest(number) for number in range(backend.settings.partitions)}


def floor_of(offset: Mapping[str, Any]) -> int:
    """The floor of the last record before an offset."""
    floor = offset.get("idle", {}).get("floor")
    return NO_TIME if floor is None else int(floor)


def raise_watermarks(batch: pa.RecordBatch, floors: Sequence[Floor]) -> pa.RecordBatch:
    """The rows with their watermark raised to the floor of their append time."""
    place = batch.schema.get_field_index("record")
    if not floors or place < 0:
        return batch
    record = batch.column(place)
    own, appended = times_of(record.field("watermark")), times_of(record.field("appended_at"))
    begins, lowest = (np.array(column, np.int64) for column in zip(*floors, strict=True))
    which = np.searchsorted(begins, appended, side="right") - 1
    values = np.maximum(own, np.where(which >= 0, np.maximum.accumulate(lowest)[np.maximum(which, 0)], NO_TIME))
    watermark = pa.array(values, mask=values == NO_TIME).view(TIME)
    fields = [watermark if field.name == "watermark" else pc.struct_field(record, field.name) for field in record.type]
    changed = pa.StructArray.from_arrays(fields, fields=list(record.type))
    return batch.set_column(place, batch.schema.field(place), changed)
