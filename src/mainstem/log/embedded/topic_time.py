"""What can be said of the records that a reader has not read yet, and of those to come: how late they can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from mainstem.log.embedded.heads import End
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.watermark import NO_TIME, times_of

__all__ = ["TopicTime"]

# partition, offset, delay -> the first record from there on, with its watermark where there is a delay
FirstRecord = Callable[[int, int, int | None], pa.RecordBatch | None]


class TopicTime:
    """The times of one topic behind some offsets."""

    def __init__(self, store: TopicStore, first: FirstRecord) -> None:
        self._store = store
        self._first = first

    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int:
        """The lowest watermark that a record from these offsets on can have, those to come included; NO_TIME if it is not
        known.

        What a next append would write down is at least the lowest of all partitions, and never less than was written down
        already: times only rise. An append that is under way at this very moment may know less.
        """
        ends = self._ends()
        observed = max(min(end.event_time_max for end in ends), *(end.observed_up_to for end in ends))
        return min(
            self._next_watermark(number, end, observed, positions.get(number, 0), delay)
            for number, end in enumerate(ends)
        )

    def appended_from(self, positions: Mapping[int, int], now: int) -> int:
        """The earliest append time that a record from these offsets on can have, those to come included."""
        unread = [number for number, end in enumerate(self._ends()) if positions.get(number, 0) < end.offset]
        return min([now, *(self._time("appended_at", number, positions.get(number, 0)) for number in unread)])

    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]:
        """How far each partition that was written to has come by itself: the lowest holds the watermark back."""
        return {
            number: self._next_watermark(number, end, end.event_time_max, positions.get(number, 0), delay)
            for number, end in enumerate(self._ends())
            if end.event_time_max != NO_TIME or end.stated_watermark != NO_TIME
        }

    def _ends(self) -> list[End]:
        self._store.refresh()
        return self._store.ends()

    def _next_watermark(self, partition: int, end: End, observed: int, position: int, delay: int) -> int:
        """The lowest watermark that the next record of one partition can have."""
        if position >= end.offset:
            return max(observed - delay if observed != NO_TIME else NO_TIME, end.stated_watermark)
        return self._time("watermark", partition, position, delay)

    def _time(self, field: str, partition: int, position: int, delay: int | None = None) -> int:
        """A time of the first record from an offset on. What is not decided yet may come with any that it was written with."""
        first = self._first(partition, position, delay)
        return NO_TIME if first is None else int(times_of(first.column("record").field(field))[0])
