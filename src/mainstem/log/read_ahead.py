"""ReadAhead: a reader that asks for few rows at a time is given slices of what was read for it in one go.

What lies on disk is read and checked in whole blocks and pages: a reader of single rows would read each of them many
times over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from mainstem.log.log import TopicBackend
from mainstem.log.missed_deletions import DeletionWatch
from mainstem.log.record import next_offset
from mainstem.log.topic_settings import TopicSettings

__all__ = ["ReadAhead"]

# Whoever asks for at least this many is given what it asked for, and nothing is held back.
ROWS = 4096


class _Rest(NamedTuple):
    """Rows of a partition that were read and not given out yet, and the position that they follow."""

    position: int
    batch: pa.RecordBatch
    settings: TopicSettings


class ReadAhead:
    """Reads a topic's partitions for one reader, which says each time where it is. For one thread."""

    def __init__(self, backend: TopicBackend, columns: Sequence[str] | None = None, delay: int | None = None) -> None:
        self._backend = backend
        self._columns = columns
        self._delay = delay
        self._rests: dict[int, _Rest] = {}
        self._deletions = DeletionWatch(backend)

    def read(self, partition: int, start: int, rows_max: int) -> pa.RecordBatch | None:
        """The next 1 to `rows_max` records from `start` on; None if there are none yet."""
        settings = self._backend.settings
        rest = self._rests.pop(partition, None)
        # A reader that went elsewhere, or a topic that has other columns now, begins anew.
        if rest is not None and rest.position == start and rest.settings is settings:
            batch = rest.batch
        else:
            self._deletions.before(partition)
            read = self._backend.read(partition, start, max(rows_max, ROWS), self._columns, self._delay)
            # Also where nothing is left to read: then the tombstones were the last records.
            self._deletions.after(partition, start)
            if read is None:
                return None
            batch = read
        if batch.num_rows <= rows_max:
            return batch
        given = batch.slice(0, rows_max)
        self._rests[partition] = _Rest(next_offset(given), batch.slice(rows_max), settings)
        return given
