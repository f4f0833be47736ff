"""A topic at one moment together with its archive: what is no longer kept is read from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from mainstem.errors import FellOff
from mainstem.log.log import ArchivedPartition, ReadMoment, TopicBackend
from mainstem.log.record import next_offset

__all__ = ["ArchivedMoment"]


class ArchivedMoment:
    """Reads like the moment it is made of; its partitions begin where the archive begins."""

    def __init__(self, moment: ReadMoment, topic: TopicBackend, archive: str) -> None:
        self._moment = moment
        self._topic = topic
        self._archive = archive

    def _archived(self, partition: int) -> ArchivedPartition:
        return self._topic.archived(self._archive, partition)

    def earliest(self, partition: int) -> int:
        """The first record that is archived, or kept."""
        archived = self._archived(partition).earliest()
        kept = self._moment.earliest(partition)
        return kept if archived is None else min(archived, kept)

    def latest(self, partition: int) -> int:
        return self._moment.latest(partition)

    def at_time(self, partition: int, at: int) -> int:
        archived = self._archived(partition).at_time(at)
        kept = self._moment.at_time(partition, at)
        return kept if archived is None else min(archived, kept)

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to `stop`; a gap between the archive and what is kept is `FellOff`."""
        while start < stop:
            kept = min(self._moment.earliest(partition), stop)
            if start < kept:
                yield from self._archived(partition).read(start, kept, columns, delay)
                start = kept
            try:
                for batch in self._moment.read(partition, start, stop, columns, delay):
                    yield batch
                    start = next_offset(batch)
                return
            except FellOff:
                # Archived and dropped since we looked.
                if self._moment.earliest(partition) <= start:
                    raise
