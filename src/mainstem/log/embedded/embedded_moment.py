"""A moment of a topic: what a bounded read shows, all of a transaction or none of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from mainstem.errors import Corrupt
from mainstem.log.embedded.partition_reader import Visible
from mainstem.log.embedded.topic_schemas import Reading
from mainstem.log.embedded.topic_store import TopicStore

__all__ = ["EmbeddedMoment"]


class EmbeddedMoment:
    """What every partition of a topic shows at one moment."""

    def __init__(self, store: TopicStore, visible: dict[int, Visible | Corrupt]) -> None:
        self._store = store
        self._schemas = store.schemas
        self._visible = visible

    def visible(self, partition: int) -> Visible:
        """Raises if that partition is damaged, and of no other one."""
        seen = self._visible[partition]
        if isinstance(seen, Corrupt):
            raise seen
        return seen

    def earliest(self, partition: int) -> int:
        return self._store.readers[partition].earliest()

    def latest(self, partition: int) -> int:
        return self.visible(partition).end

    def at_time(self, partition: int, at: int) -> int:
        return self._store.readers[partition].offset_at(at, self.visible(partition))

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        reader = self._store.readers[partition]
        reading = Reading(columns, delay=delay)
        return reader.read(self._schemas, start, self.visible(partition), stop=stop, reading=reading)
