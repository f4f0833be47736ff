"""Taking a partition over: it goes on in a new segment, of a new epoch, behind what is safe.

What was being written in the old epoch is refused from then on. After a failed fsync only what was published before it is
certain; else every valid block is kept. A partition whose last segment is damaged goes on behind every sound block of it
(`damaged_partition`), and its damage stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mainstem.errors import CorruptBlock
from mainstem.log.embedded.active_segment import SegmentName, all_segments_in
from mainstem.log.embedded.crash_recovery import cut_behind, sweep
from mainstem.log.embedded.damaged_partition import end_behind_damage
from mainstem.log.embedded.files import sync_file
from mainstem.log.embedded.heads import DELETED, HAS_STATE, MENDING, SYNCING, WRITTEN, End, TailSlots
from mainstem.log.embedded.new_segment import create_segment
from mainstem.log.embedded.partition_state import PartitionState
from mainstem.log.embedded.publisher import Publisher, deleted

if TYPE_CHECKING:
    from mainstem.log.embedded.partition import Partition

__all__ = ["take_over"]


def take_over(
    partition: Partition,
    slots: TailSlots,
    publisher: Publisher,
    mended_tail: Callable[[], End],
    forget: Callable[[], None],
) -> None:
    """Raise the epoch and begin a new segment. The write and the sync lock are held."""
    files, folder = partition.files, partition.folder
    tail, mark = slots.read_all(2)
    if tail is not None and tail.flags & DELETED:
        raise deleted(partition.title)
    head = partition.heads.read(partition.slot)
    fenced = mark is not None and mark.fenced and mark.epoch > 0
    state: PartitionState | None = None
    if mark is not None and fenced:
        # After a failed fsync only what was published before it is certain.
        base = mark._replace(flags=mark.flags & HAS_STATE)
    else:
        try:
            # Every valid block is kept.
            base = mended_tail()
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
    """A segment of a new epoch that begins at `base`, on disk."""
    files, folder = partition.files, partition.folder
    # With the new epoch: from here on nothing that was written in the old one is published any more.
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
        raise publisher.sync_failed(error) from error
    return end
