"""Taking a partition over: it continues in a new segment, with a new epoch, after the safe records.

Unfinished writes of the old epoch are fenced. After a failed fsync only records published before it are certain;
otherwise every valid block is kept. A partition whose last segment is damaged continues after all of its valid blocks,
and the damage stays where it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from mainstem.durable_files import Files, sync_file
from mainstem.errors import CorruptBlock
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    ActiveSegment,
    SegmentName,
    all_segments_in,
    segments_in,
)
from mainstem.log.embedded.write.block import STATE, Block, Header
from mainstem.log.embedded.write.crash_recovery import after_block, cut_behind, sweep
from mainstem.log.embedded.write.heads import DELETED, HAS_STATE, MENDING, SYNCING, WRITTEN, End, TailSlots
from mainstem.log.embedded.write.partition_state import PartitionState
from mainstem.log.embedded.write.publisher import Publisher, deleted_error
from mainstem.log.embedded.write.segment_writer import create_segment

if TYPE_CHECKING:
    from mainstem.log.embedded.write.partition import Partition

__all__ = ["end_behind_damage", "take_over"]


# Where a damaged partition can continue: after all its valid blocks.
#
# Taking over a partition whose last segment is damaged creates a new segment there. Nothing is truncated and no offset
# is reused: valid records on either side of the damage stay readable, and a read of the damaged offsets raises.


def end_behind_damage(files: Files, folder: str, published: End) -> tuple[End, PartitionState]:
    """The end after all published and all valid blocks, and the state of producers and transactions there. A
    damaged append is not in that state: repeated, it is appended again."""
    end = published._replace(flags=published.flags & HAS_STATE)
    state, known = PartitionState(), 0
    for position, header, payload in _valid_blocks(files, folder):
        if header.kind == STATE:
            if header.base_offset >= known:
                # The complete state at this offset, with that of damaged blocks before it.
                state, known = PartitionState.from_json(json.loads(payload)), header.base_offset
        elif header.base_offset >= known:
            state.apply(header)
            known = header.end_offset
        if header.end_offset > end.offset:
            end = after_block(end, header, position)
    return end, state


def _valid_blocks(files: Files, folder: str) -> Iterator[tuple[int, Header, bytes]]:
    """The blocks with valid headers of all segments, in order; with the payloads of state blocks."""
    for name in segments_in(files.list(folder)):
        segment = ActiveSegment(files, folder, name)
        try:
            for position, header in segment.sound_after(PREAMBLE_BYTES, segment.size()):
                if header.kind != STATE:
                    yield position, header, b""
                    continue
                for block in segment.walk(position, position + header.size, header.base_offset):
                    if isinstance(block, Block):
                        yield position, header, block.payload.to_pybytes()
        finally:
            segment.close()


def take_over(
    partition: Partition,
    slots: TailSlots,
    publisher: Publisher,
    mend_tail: Callable[[], End],
    forget: Callable[[], None],
) -> None:
    """Raise the epoch and create a new segment. The caller holds the write and the sync lock."""
    files, folder = partition.files, partition.folder
    tail, mark = slots.read_all(2)
    if tail is not None and tail.flags & DELETED:
        raise deleted_error(partition.title)
    head = partition.heads.read(partition.slot)
    fenced = mark is not None and mark.fenced and mark.epoch > 0
    state: PartitionState | None = None
    if mark is not None and fenced:
        # After a failed fsync only what was published before it is certain.
        base = mark._replace(flags=mark.flags & HAS_STATE)
    else:
        try:
            # Every valid block is kept.
            base = mend_tail()
            publisher.make_durable(head, base)
        except CorruptBlock:
            if head is None:
                raise
            base, state = end_behind_damage(files, folder, head)
    forget()
    before = base._replace(epoch=_next_epoch(partition, [end for end in (tail, head, mark) if end is not None]))
    damaged = state is not None
    if state is None:
        state = partition.state_scan(base).state if base.flags & HAS_STATE else PartitionState()
    end = _begin_epoch(partition, slots, publisher, base, before, state, fenced=fenced)
    if not damaged:
        with suppress(OSError):
            cut_behind(files, folder, base)
    slots.write(WRITTEN, end)
    partition.heads.write(partition.slot, end)
    slots.write(SYNCING, end)
    forget()
    if not damaged:
        with suppress(OSError):
            sweep(files, folder)


def _next_epoch(partition: Partition, ends: list[End]) -> int:
    names = all_segments_in(partition.files.list(partition.folder))
    return max([*(end.epoch for end in ends), *(name.epoch for name in names)]) + 1


def _begin_epoch(
    partition: Partition,
    slots: TailSlots,
    publisher: Publisher,
    base: End,
    before: End,
    state: PartitionState,
    *,
    fenced: bool,
) -> End:
    """Create a segment of a new epoch at `base`, synced."""
    files, folder = partition.files, partition.folder
    # With the new epoch: from here on nothing written in the old one is published.
    slots.write(WRITTEN, before._replace(flags=before.flags | MENDING))
    now = max(partition.clock.now(), base.appended_at)
    end = create_segment(files, folder, before, state, now=now, synced=base.offset)
    if not fenced:
        slots.write(SYNCING, end)
    try:
        sync_file(files, SegmentName(end.segment, end.epoch).path(folder))
        files.sync_directory(folder)
    except OSError as error:
        publisher.fence(base)
        raise publisher.sync_error(error) from error
    return end
