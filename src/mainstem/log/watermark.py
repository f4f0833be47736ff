"""The watermark at a record: how far event time was complete when it was appended.

With each block the log records `observed_up_to`, the lowest over the topic's partitions (without idle ones) of the
highest event time so far, and the lowest watermark that living producers have declared. A record's watermark is the
first minus the reader's delay, or the second if that is later. So it is a fact of the log, the same for every reader,
every run and every division into batches. A record is late if its event time is below it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.record import RECORD

__all__ = ["NO_TIME", "TIME", "WATERMARKED_RECORD", "times_of", "watermarks", "with_watermark"]

# No time. Below every real one, so that `max` is correct.
NO_TIME = -(2**63)

TIME = pa.timestamp("us", "UTC")
WATERMARKED_RECORD = pa.struct([*RECORD, ("watermark", TIME)])


def watermarks(observed: npt.NDArray[np.int64], declared: npt.NDArray[np.int64], delay: int) -> pa.Array:
    """The watermarks of some records, null where unknown; all in microseconds.

    >>> watermarks(np.array([60_000_000, NO_TIME]), np.array([NO_TIME, NO_TIME]), 10_000_000).cast(pa.int64()).to_pylist()
    [50000000, None]
    """
    less = np.where(observed == NO_TIME, NO_TIME, observed - np.int64(delay))
    values = np.maximum(less, declared)
    return pa.array(values, mask=values == NO_TIME).view(TIME)


def with_watermark(record: pa.StructArray, watermark: pa.Array) -> pa.StructArray:
    """The `record` with a watermark as its last field."""
    return pa.StructArray.from_arrays([*record.flatten(), watermark], fields=list(WATERMARKED_RECORD))


def times_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Times as numbers; null becomes `NO_TIME`."""
    return np.asarray(pc.fill_null(column.view(pa.int64()), NO_TIME))
