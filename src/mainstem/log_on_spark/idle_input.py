"""IdleInput: an input of a flow that is silent for long stops holding the flow's watermark back.

The watermark of a batch is the lowest over the flow's inputs. A table that is written once would hold it back for ever. So an
input may have an `idle_after`: when it had no append for that long, the flow goes on with the watermark of the inputs *beside*
it, those that have no `idle_after`. What comes after such a gap comes late for what was released meanwhile, and its rows say so:
their own watermark is raised to the *floor*, the watermark that was recorded beside them before the gap ended.

    appends of users     |||                                   |||
    appends of orders    | | | | | | | | | | | | | | | | | | | | | |
                            <- idle_after ->.. users hold ..S  floor of these = the watermark of orders at S
                                               nothing back

S, the append time of the first record after a gap, and the watermarks that records were appended with are facts of the log: the
floor of a row is the same however the log is cut into batches, and in every replay. A record that was appended at the same
time as S or later does not count. An input that has no record yet is not idle: nothing is known of it.

At the quiet end of the log, where the inputs beside it are silent too, the clock releases rows: the watermark is then what the
log would tell of the next record, which is recorded nowhere yet. Only there may a replay give another result, and only if a
record comes later that is late by less than that.

    offset  {..., "idle": {"after": 60000000, "beside": [["orders", 600000000]], "floor": ...}}
            microseconds; "floor" is that of the last record before the offset, null if it has none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.log import Log, TopicBackend
from mainstem.log.watermark import NO_TIME, TIME, times_of

__all__ = ["Floor", "IdleInput", "floor_of", "raised"]

# From which append time on the own watermark of rows is at least this.
Floor = tuple[int, int]


@dataclass(frozen=True)
class IdleInput:
    """One input, and the topics that go on without it, each with the delay of its watermark."""

    log: Log
    backend: TopicBackend
    after: int
    beside: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, log: Log, backend: TopicBackend, written: Mapping[str, Any]) -> IdleInput:
        """As it stands in a request or an offset."""
        return cls(log, backend, written["after"], tuple((topic, delay) for topic, delay in written["beside"]))

    def to_json(self, floor: int) -> dict[str, Any]:
        return {
            "after": self.after,
            "beside": [list(pair) for pair in self.beside],
            "floor": None if floor == NO_TIME else floor,
        }

    def floors(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Floor]:
        """Where gaps end between some offsets, in the order of time."""
        appends = [
            times_of(batch.column("record").field("appended_at"))
            for number, end in ends.items()
            if end > starts.get(number, 0)
            for batch in self.backend.read_held(number, starts.get(number, 0), end, [], None)
        ]
        if not appends:
            return []
        times = np.unique(np.concatenate(appends))
        last = self._last_append(starts)
        times = times if last == NO_TIME else np.r_[last, times[times > last]]
        return [(int(at), self._beside_before(int(at))) for at in times[1:][np.diff(times) > self.after]]

    def watermark(self, positions: Mapping[int, int], floor: int, own: int, now: int) -> int:
        """The lowest watermark of a row that comes from some offsets on. `floor`: that of the last row before them; `own`: what
        the log says of the input by itself."""
        known = max(own, floor)
        last = self._last_append(positions)
        coming = self.backend.appended_from(positions, now)
        if last == NO_TIME or coming - last <= self.after or coming == NO_TIME:
            return known
        known = max(known, self._beside_before(coming))
        quiet = coming == now and all(now - self._last(topic)[0] > self.after for topic, _ in self.beside)
        return max(known, self._beside_next()) if quiet else known

    def _last_append(self, positions: Mapping[int, int]) -> int:
        """When the last record before some offsets was appended."""
        found = (last_record(self.backend, number, stop, 0) for number, stop in positions.items())
        return max((appended for appended, _ in found), default=NO_TIME)

    def _beside_before(self, at: int) -> int:
        """The watermark of the inputs beside it, as the last records say that were appended before a time."""
        found = [self._last(topic, delay, at) for topic, delay in self.beside]
        return min((watermark for appended, watermark in found if appended != NO_TIME), default=NO_TIME)

    def _beside_next(self) -> int:
        """The lowest watermark that a next record beside it can have."""
        found = []
        for topic, delay in self.beside:
            backend = self.log.open_topic(topic)
            found.append(backend.watermark_from(_ends(backend), delay))
        return min(found, default=NO_TIME)

    def _last(self, topic: str, delay: int = 0, at: int | None = None) -> tuple[int, int]:
        """Of the last records of a topic, or those before a time, the latest append and the highest watermark."""
        backend = self.log.open_topic(topic)
        found = [
            last_record(backend, number, end if at is None else min(end, backend.at_time(number, at)), delay)
            for number, end in _ends(backend).items()
        ]
        return max(appended for appended, _ in found), max(watermark for _, watermark in found)


def last_record(backend: TopicBackend, partition: int, stop: int, delay: int) -> tuple[int, int]:
    """When the last record before an offset was appended, and with which watermark; NO_TIME where there is none."""
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
    """The records from an offset on that lie before another one."""
    while start < stop and (batch := backend.read(partition, start, stop - start, [], delay)) is not None:
        offsets = np.asarray(batch.column("record").field("offset"))
        within = int(np.searchsorted(offsets, stop))
        if not within:
            return
        yield batch.slice(0, within)
        start = int(offsets[-1]) + 1


def _ends(backend: TopicBackend) -> dict[int, int]:
    return {number: backend.latest(number) for number in range(backend.settings.partitions)}


def floor_of(offset: Mapping[str, Any]) -> int:
    """The floor of the last record before an offset."""
    floor = offset.get("idle", {}).get("floor")
    return NO_TIME if floor is None else int(floor)


def raised(batch: pa.RecordBatch, floors: Sequence[Floor]) -> pa.RecordBatch:
    """Rows whose own watermark is at least the floor of the time at which they were appended."""
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
