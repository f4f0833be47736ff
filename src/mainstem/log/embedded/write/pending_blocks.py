"""Turns checked rows into one block for each partition they go to."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.write.partition import Pending
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.rows.stored_batch import by_partition, stored_batch
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
