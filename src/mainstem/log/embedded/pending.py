"""An append on its way to one partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from mainstem.log.embedded.block import DATA
from mainstem.log.sequence_runs import NO_SEQUENCE
from mainstem.log.watermark import NO_TIME


@dataclass(slots=True)
class Pending:
    """One append to one partition on its way, and afterwards where it lies."""

    payload: pa.Buffer | bytes
    count: int
    kind: int = DATA
    flags: int = 0
    schema_version: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = NO_SEQUENCE
    parts: int = 0
    partitions: int = 0
    dense: int = 0
    transaction: int = 0
    event_time_max: int = NO_TIME
    stated_watermark: int = NO_TIME
    expected: int | None = None  # append only if the partition ends here
    check: Callable[[], None] | None = None  # raises if the append may not be, asked under the lock
    payload_crc: int = 0

    base_offset: int = -1
    end_offset: int = -1
    appended_at: int = 0
    duplicate: bool = False
    epoch: int = 0
    settled: bool = False
    error: BaseException | None = None
