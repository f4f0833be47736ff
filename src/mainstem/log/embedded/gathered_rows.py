"""Puts the rows of many blocks together to batches, so that a topic of single appends is read fast too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from mainstem.log.embedded.block import HAS_CHANGE, HAS_HEADERS, Block
from mainstem.log.embedded.topic_schemas import Reading, TopicSchemas
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.schema_evolution import fit
from mainstem.log.watermark import watermarks, with_watermark

# A batch is given out when it has this many bytes, however few its rows.
BATCH_BYTES_MAX = 8 << 20

# A block with so many rows is a batch by itself: to copy it together with others costs more than it saves.
ALONE_ROWS_MIN = 4_096


class GatheredRows:
    """The rows gathered so far from one partition. For one thread."""

    def __init__(self, partition: int, schemas: TopicSchemas, reading: Reading) -> None:
        self._partition = partition
        self._schemas = schemas
        self._plain, self._shown = schemas.shown(reading)
        *fields, self._record = self._shown
        # The columns as they are shown: a block that holds just these is read as such, which spares making it anew.
        self._marked = pa.schema(fields)
        self._whole = self._plain.names == schemas.current.names
        self._delay = reading.delay
        self._clear()

    def _clear(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._changes: list[pa.Array | None] = []
        self._headers: list[pa.Array | None] = []
        self._spans: list[tuple[int, int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, block: Block, first: int, last: int) -> None:
        header = block.header
        direct = self._whole and not header.flags and header.schema_version == self._schemas.version
        batch = self._schemas.rows(block, self._marked if direct else None)
        if last - first < header.count:
            batch = batch.slice(first - header.base_offset, last - first)
        headers = change = None
        if not direct:
            columns = batch.columns
            headers = columns.pop() if header.flags & HAS_HEADERS else None
            change = columns.pop() if header.flags & HAS_CHANGE else None
            rows = fit(pa.RecordBatch.from_arrays(columns, names=batch.schema.names[: len(columns)]), self._plain)
            batch = pa.RecordBatch.from_arrays(rows.columns, schema=self._marked)
        self._headers.append(headers)
        self._changes.append(change)
        self._batches.append(batch)
        self._spans.append((first, last, header.appended_at))
        if self._delay is not None:
            self._times.append((header.observed_up_to, header.stated_watermark))
        self._rows += last - first
        self._bytes += header.length

    def full(self, rows_max: int) -> bool:
        alone = len(self._batches) == 1 and self._rows >= ALONE_ROWS_MIN
        return alone or self._rows >= rows_max or self._bytes >= BATCH_BYTES_MAX

    def take(self, rows_max: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """What was gathered, in batches of at most so many rows, each with the offset to go on from."""
        if not self._rows:
            return
        batch, last = self._combined(), self._spans[-1][1]
        self._clear()
        for first in range(0, batch.num_rows, rows_max):
            piece = batch.slice(first, rows_max)
            if first + piece.num_rows == batch.num_rows:
                yield last, piece
            else:
                yield piece.column(piece.num_columns - 1).field("offset")[-1].as_py() + 1, piece

    def _combined(self) -> pa.RecordBatch:
        if len(self._batches) == 1:
            rows = self._batches[0]
            first, _, appended_at = self._spans[0]
            record = record_array(
                self._partition, first, appended_at, count=self._rows, change=self._changes[0], headers=self._headers[0]
            )
        else:
            rows = pa.concat_batches(self._batches)
            counts = [last - first for first, last, _ in self._spans]
            offsets = np.concatenate([np.arange(first, last, dtype=np.int64) for first, last, _ in self._spans])
            times = np.repeat(np.array([at for _, _, at in self._spans], np.int64), counts)
            record = record_array(
                self._partition,
                offsets,
                times,
                count=self._rows,
                change=_joined(self._changes, counts, pa.scalar("insert", CHANGE)),
                headers=_joined(self._headers, counts, pa.scalar(None, HEADERS)),
            )
        if self._delay is not None:
            counts = [last - first for first, last, _ in self._spans]
            observed, stated = np.repeat(np.array(self._times, np.int64), counts, axis=0).T
            record = with_watermark(record, watermarks(observed, stated, self._delay))
        # A batch without columns does not know how many rows it has.
        if not rows.num_columns:
            return pa.RecordBatch.from_arrays([record], schema=self._shown)
        return rows.append_column(self._record, record)


def _joined(parts: list[pa.Array | None], counts: list[int], default: pa.Scalar) -> pa.Array | None:
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(default, count) if part is None else part for part, count in zip(parts, counts, strict=True)]
    )
