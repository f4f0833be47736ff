"""Checked rows as one Arrow batch, as both logs store it, and its rows for each partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mainstem.log.record import CHANGE, HEADERS
from mainstem.log.rows.partitioner import key_bytes, partitions_of, split
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings

__all__ = ["HAS_CHANGE", "HAS_HEADERS", "by_partition", "stored_batch"]

# Flags of a stored batch: which of the two columns follow the user's own.
HAS_CHANGE = 1
HAS_HEADERS = 2


def stored_batch(rows: CheckedRows) -> tuple[pa.RecordBatch, int]:
    """The columns of a block: the user's, then change and headers if any row has them."""
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
    """The rows of each partition (of the topic's, or of `over` partitions); rows without a key go to `keyless`."""
    partitions = over or settings.partitions
    if partitions == 1:
        return {0: batch}
    if not settings.key:
        return {keyless: batch}
    numbers = partitions_of(key_bytes(batch, settings.key), partitions)
    if batch.num_rows == 1:
        return {int(numbers[0]) if numbers[0] >= 0 else keyless: batch}
    return split(batch, np.where(numbers < 0, np.int32(keyless), numbers), partitions)
