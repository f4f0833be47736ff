"""Appends blocks to a segment, and their entries to its index."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import google_crc32c
import pyarrow as pa

from mainstem.clock import Clock
from mainstem.durable_files import Files, create_file, sync_file
from mainstem.log.embedded.upkeep.manifest import Manifest, encode_manifest, first_reading
from mainstem.log.embedded.write.active_segment import (
    ENTRY,
    UNFINISHED,
    ActiveSegment,
    SegmentIndex,
    SegmentName,
    encode_entry,
    encode_preamble,
)
from mainstem.log.embedded.write.block import STATE, Damage, Header, encode_header
from mainstem.log.embedded.write.crash_recovery import after_block, first_end
from mainstem.log.embedded.write.group_commit import Pending
from mainstem.log.embedded.write.heads import DELETED, HAS_STATE, End, encode_tail, new_end
from mainstem.log.embedded.write.partition_state import PartitionState
from mainstem.log.sequence_runs import NO_SEQUENCE

__all__ = []


# How a segment begins, and with it a partition.


def create_partition(files: Files, folder: str, clock: Clock) -> End:
    """Make a partition's directory with an empty manifest and first segment; on disk when this returns.

    The directory's own name is for the caller to sync.
    """
    files.make_directory(folder)
    create_file(files, f"{folder}/manifest", encode_manifest(Manifest(clock=first_reading(clock))))
    end = create_segment(files, folder, new_end(0, 0, 0, 0, epoch=1), PartitionState(), now=clock.now(), synced=0)
    sync_file(files, SegmentName(end.segment, end.epoch).path(folder))
    create_file(files, f"{folder}/tail", encode_tail(end))
    files.sync_directory(folder)
    return end


def create_segment(files: Files, folder: str, before: End, state: PartitionState, *, now: int, synced: int) -> End:
    """A new segment that begins at the end `before`, with its epoch; not synced: the first append's fsync does that.

    It gets its name when it is whole, so who finds it need not ask whether it is. `synced` is the end offset known to
    be on disk.
    """
    name = SegmentName(before.offset, before.epoch)
    preamble, crc = encode_preamble(name, now)
    snapshot = {
        **state.to_json(),
        "event_time_max": before.event_time_max,
        "transactions_end": before.transactions_end,
    }
    payload = json.dumps(snapshot).encode()
    header, _ = encode_header(
        STATE, 0, len(payload), google_crc32c.value(payload), crc, 0, 0, 0, before.offset, 0, NO_SEQUENCE, 0,
        before.appended_at, before.event_time_max, before.observed_up_to, before.stated_watermark, synced,
        before.epoch, crc, 0, 0, 0,
    )  # fmt: skip
    path = name.path(folder)
    handle = files.create(path + UNFINISHED)
    try:
        files.pwritev(handle, [preamble, header, payload], 0)
    finally:
        files.close(handle)
    files.rename(path + UNFINISHED, path)
    files.close(files.create(name.index_path(folder)))
    segment = ActiveSegment(files, folder, name)
    try:
        end = first_end(segment)
    finally:
        segment.close()
    assert end is not None
    return end._replace(flags=before.flags & (DELETED | HAS_STATE))


# The blocks of one group of appends, as they are about to be written behind the end of a partition.


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


class SegmentWriter:
    """The segment being appended to, open in this process; for who holds the partition's write lock."""

    def __init__(self, files: Files, folder: str, name: SegmentName, end: int) -> None:
        self.name = name
        self._files = files
        self._index_path = name.index_path(folder)
        self.segment = ActiveSegment(files, folder, name)
        try:
            preamble = self.segment.preamble()
            if preamble is None:
                raise self.segment.corrupt(Damage(0, name.base), end)
            self.segment_id = preamble.crc
        except BaseException:
            self.segment.close()
            raise

    def size(self) -> int:
        return self.segment.size()

    def close(self) -> None:
        self.segment.close()

    def write(self, blocks: WrittenBlocks) -> None:
        """Write all of it, or leave the segment as it was and raise."""
        try:
            self._files.pwritev(self.segment.handle, blocks.buffers, blocks.begin)
        except OSError:
            # Half a block is taken back, so that the next append need not; if that fails too, recovery will.
            with suppress(OSError):
                self._files.truncate(self.segment.handle, blocks.begin)
            raise
        if blocks.entries:
            self.mend_index(blocks.first_entry, blocks.begin)
            # Without its entries a record is found more slowly, and by the size of the file the next writer sees it.
            with suppress(OSError):
                handle = self._files.open(self._index_path)
                try:
                    self._files.pwrite(handle, b"".join(blocks.entries), blocks.first_entry * ENTRY.size)
                finally:
                    self._files.close(handle)

    def mend_index(self, entries: int, end: int) -> None:
        """Make the index again if it has not so many entries, for the blocks up to `end`."""
        with suppress(OSError):
            if not self._has_entries(entries):
                SegmentIndex(self._files, self._index_path).rewrite(self.segment, end)

    def _has_entries(self, entries: int) -> bool:
        try:
            return self._files.identity(self._index_path)[2] == entries * ENTRY.size
        except FileNotFoundError:
            return False
