"""The rows of blocks as they lie in a sealed segment: the topic's present columns, then the sealed `record`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.block import HAS_CHANGE, HAS_HEADERS, Block
from mainstem.log.embedded.sealed_segment import SEALED_RECORD, TIME, sealed_schema
from mainstem.log.embedded.topic_schemas import Reading, TopicSchemas
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.schema_evolution import fit
from mainstem.log.watermark import NO_TIME

# Blocks are put together up to this much, so that a topic of single appends is sealed fast too.
BATCH_ROWS = 65_536
BATCH_BYTES = 8 << 20


class SealedRows:
    """Gathers the rows of blocks of one partition. For one thread."""

    def __init__(self, partition: int, schemas: TopicSchemas) -> None:
        self.tombstones = 0
        self._partition = partition
        self._schemas = schemas
        self._plain, _ = schemas.shown(Reading())
        self._schema = sealed_schema(schemas.current)
        self._clear()

    def _clear(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._changes: list[pa.Array | None] = []
        self._headers: list[pa.Array | None] = []
        # Of each block: first offset, count, appended at, observed up to, stated watermark.
        self._blocks: list[tuple[int, int, int, int, int]] = []
        self._rows = self._bytes = 0

    def add(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Take a block's rows; gives a batch when there is enough for one."""
        header = block.header
        stored = self._schemas.rows(block)
        columns = stored.columns
        self._headers.append(columns.pop() if header.flags & HAS_HEADERS else None)
        change = columns.pop() if header.flags & HAS_CHANGE else None
        self._changes.append(change)
        if change is not None:
            self.tombstones += pc.sum(pc.equal(change, "delete")).as_py() or 0
        self._batches.append(
            fit(pa.RecordBatch.from_arrays(columns, names=stored.schema.names[: len(columns)]), self._plain)
        )
        self._blocks.append(
            (header.base_offset, header.count, header.appended_at, header.observed_up_to, header.stated_watermark)
        )
        self._rows += header.count
        self._bytes += header.length
        if self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            yield self._batch()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What was taken and not given yet."""
        if self._rows:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        rows = self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        first, counts, *times = np.array(self._blocks, np.int64).T
        # The offset of a row: its block's first, and how far it is behind the first row of that block.
        within = np.arange(self._rows, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        appended_at, observed, stated = (np.repeat(at, counts) for at in times)
        record = record_array(
            self._partition,
            np.repeat(first, counts) + within,
            appended_at,
            count=self._rows,
            change=_joined(self._changes, counts.tolist(), pa.scalar("insert", CHANGE)),
            headers=_joined(self._headers, counts.tolist(), pa.scalar(None, HEADERS)),
        )
        self._clear()
        sealed = pa.StructArray.from_arrays(
            [*record.flatten(), _times(observed), _times(stated)], fields=list(SEALED_RECORD)
        )
        return pa.RecordBatch.from_arrays([*rows.columns, sealed], schema=self._schema)


def _joined(parts: list[pa.Array | None], counts: list[int], default: pa.Scalar) -> pa.Array | None:
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(default, count) if part is None else part for part, count in zip(parts, counts, strict=True)]
    )


def _times(at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(at, mask=at == NO_TIME).view(TIME)
