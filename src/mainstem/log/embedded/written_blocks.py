"""The blocks of one group of appends, as they are about to be written behind the end of a partition."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from mainstem.log.embedded.block import Header, encode_header
from mainstem.log.embedded.crash_recovery import after_block
from mainstem.log.embedded.heads import End
from mainstem.log.embedded.pending import Pending
from mainstem.log.embedded.segment_index import encode_entry


class WrittenBlocks:
    """Bytes to write at `begin`, index entries for them, and the end after them."""

    def __init__(self, tail: End, segment_id: int, slot: int, now: int, synced: int) -> None:
        self.begin = tail.position
        self.first_entry = tail.indexes
        self.end = tail
        self.buffers: list[bytes | pa.Buffer] = []
        self.entries: list[bytes] = []
        self._segment_id = segment_id
        self._slot = slot
        self._now = now
        self._synced = synced

    def add(self, pending: Pending, observe: Callable[[int, int, int], int] | None) -> Header:
        """Add the block of one append, and tell it where it will lie."""
        end = self.end
        observed = end.observed_up_to
        if observe is not None:
            # What this append brings is not known before it: the rows of one append do not make each other late.
            observed = max(observed, observe(self._slot, end.event_time_max, self._now))
        packed, header = encode_header(
            pending.kind, pending.flags, len(pending.payload), pending.payload_crc, end.crc, pending.count,
            pending.schema_version, pending.producer_epoch, end.offset, pending.producer_id, pending.sequence,
            pending.transaction, self._now, pending.event_time_max, observed,
            max(pending.stated_watermark, end.stated_watermark), self._synced, end.epoch, self._segment_id,
            pending.parts, pending.partitions, pending.dense,
        )  # fmt: skip
        self.buffers.append(packed)
        self.buffers.append(pending.payload)
        pending.base_offset, pending.end_offset = end.offset, header.end_offset
        pending.appended_at, pending.epoch = self._now, end.epoch
        self.end = after_block(end, header, end.position)
        if self.end.indexes > end.indexes:
            self.entries.append(encode_entry(header, end.position))
        return header
