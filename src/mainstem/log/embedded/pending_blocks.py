"""Turns checked rows into one block for each partition they go to."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.block import HAS_CHANGE, HAS_HEADERS
from mainstem.log.embedded.partition import Pending
from mainstem.log.partitioner import key_bytes, partitions_of, split
from mainstem.log.record import CHANGE, HEADERS
from mainstem.log.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME


def pending_blocks(
    rows: CheckedRows, keyless: int, now: int, partition: int | None = None, *, over: int | None = None
) -> dict[int, Pending]:
    """The blocks of an append. Rows without a key go to `keyless`, all together; with `partition` all go there.

    With `over` keys are placed as if the topic had that many partitions.
    """
    settings = rows.settings
    batch, flags = stored_batch(rows)
    placed = by_partition(batch, settings, keyless, over) if partition is None else {partition: batch}
    return {
        number: Pending(
            part.serialize(),
            part.num_rows,
            flags=flags,
            schema_version=settings.schema_version,
            event_time_max=_event_time_max(part, settings, now),
        )
        for number, part in placed.items()
    }


def stored_batch(rows: CheckedRows) -> tuple[pa.RecordBatch, int]:
    """The columns as they lie in a block: the user's, then change and headers where any row has them."""
    flags = 0
    batch = rows.batch
    columns, fields = None, None
    if rows.change is not None or rows.headers is not None:
        columns, fields = batch.columns, list(batch.schema)
        if rows.change is not None:
            flags |= HAS_CHANGE
            columns.append(rows.change)
            fields.append(pa.field("record.change", CHANGE))
        if rows.headers is not None:
            flags |= HAS_HEADERS
            columns.append(rows.headers)
            fields.append(pa.field("record.headers", HEADERS))
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    return batch, flags


def by_partition(
    batch: pa.RecordBatch, settings: TopicSettings, keyless: int, over: int | None = None
) -> dict[int, pa.RecordBatch]:
    """The rows of each partition, of the topic's or of `over` many; those without a key go to `keyless`."""
    partitions = over or settings.partitions
    if partitions == 1:
        return {0: batch}
    if not settings.key:
        return {keyless: batch}
    numbers = partitions_of(key_bytes(batch, settings.key), partitions)
    if batch.num_rows == 1:
        return {int(numbers[0]) if numbers[0] >= 0 else keyless: batch}
    return split(batch, np.where(numbers < 0, np.int32(keyless), numbers), partitions)


def _event_time_max(batch: pa.RecordBatch, settings: TopicSettings, now: int) -> int:
    """The highest event time of a block; one too far ahead of the clock does not count."""
    if settings.event_time is None:
        return NO_TIME
    times = batch.column(settings.event_time)
    # Arrow's functions cost ten times what they do to one value.
    highest = times[0].value if batch.num_rows == 1 else pc.max(times).value
    if highest is not None and highest > now:
        limit = now + settings.ahead_max // timedelta(microseconds=1)
        if highest > limit:
            times = times.view(pa.int64())
            highest = pc.max(times.filter(pc.less_equal(times, limit))).as_py()
    return NO_TIME if highest is None else int(highest)
