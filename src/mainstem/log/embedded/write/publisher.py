"""Makes writes durable, and then visible.

Under the sync lock of a partition: note in the tail how far the fsync is to reach, fsync, publish the end in `heads`. A
failed fsync is never retried, since the kernel drops the pages that it could not write: the partition is fenced for
every process, and the end of the safe records is noted with it. If the process dies before it can do that, the noted
end of the fsync lies ahead of `heads`, and the next writer writes the same bytes again before its own fsync. One per
partition and process. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from mainstem.durable_files import NO_HANDLE, Files, sync_file
from mainstem.errors import CorruptBlock, Fenced, TopicNotFound, Unavailable
from mainstem.file_locks import SYNC, PartitionLock
from mainstem.log.embedded.upkeep.manifest import ManifestFile
from mainstem.log.embedded.write.active_segment import ActiveSegment, SegmentName, segments_in
from mainstem.log.embedded.write.block import Damage
from mainstem.log.embedded.write.crash_recovery import after_block, first_end, without_sealed
from mainstem.log.embedded.write.heads import (
    DELETED,
    FENCED,
    HAS_STATE,
    SYNCING,
    WRITTEN,
    End,
    Slots,
    TailSlots,
    new_end,
)

__all__ = ["Publisher", "deleted_error"]


# If the result of the last fsync is unknown, its bytes are written again.
#
# A process may be killed inside an fsync that fails. The kernel reports a failure once and then considers the pages
# clean, so the next fsync succeeds and proves nothing. Rewriting the bytes makes the pages dirty, and their fsync
# counts.


CHUNK_BYTES = 4 << 20


class _Stretch(NamedTuple):
    """Bytes of a segment, and the offset of their first record."""

    name: SegmentName
    position: int
    end: int
    offset: int


def write_again(files: Files, folder: str, head: End | None, end: End) -> None:
    """Rewrite in place the blocks between the published end and `end`; raises `CorruptBlock` if one is invalid."""
    first = head.segment if head is not None else 0
    counted = without_sealed(files, folder, segments_in(files.list(folder)))
    names = [name for name in counted if first <= name.base <= end.segment]
    stretches: list[_Stretch] = []
    synced = 0
    for name, following in zip(names, [*names[1:], None], strict=False):
        segment = ActiveSegment(files, folder, name)
        try:
            synced = max(synced, _blocks(segment, following, head, end, stretches))
        finally:
            segment.close()
    for stretch in stretches:
        # Blocks below the end that a later block records as synced need no rewrite.
        if stretch.offset >= synced:
            _write(files, folder, stretch)


def _blocks(
    segment: ActiveSegment, following: SegmentName | None, head: End | None, end: End, stretches: list[_Stretch]
) -> int:
    """Add the verified blocks of one segment; returns the highest end that one of them records as synced."""
    name = segment.name
    last = name == (end.segment, end.epoch)
    size = end.position if last else segment.size()
    if head is not None and name == (head.segment, head.epoch):
        at = head
    else:
        begun = first_end(segment)
        if begun is None:
            raise segment.corrupt(Damage(0, name.base), size)
        stretches.append(_Stretch(name, 0, begun.position, name.base))
        at = begun
    synced = 0
    for item in segment.walk(at.position, size, at.offset, at.crc):
        if isinstance(item, Damage) or (following is not None and item.header.end_offset > following.base):
            break
        header = item.header
        stretches.append(_Stretch(name, item.position, item.position + header.size, header.base_offset))
        synced = max(synced, header.synced)
        at = after_block(at, header, item.position)
    if (last and at.position != end.position) or (following is not None and at.offset != following.base):
        raise segment.corrupt(Damage(at.position, at.offset), size)
    return synced


def _write(files: Files, folder: str, stretch: _Stretch) -> None:
    handle = files.open(stretch.name.path(folder))
    try:
        for position in range(stretch.position, stretch.end, CHUNK_BYTES):
            files.pwrite(handle, files.pread(handle, min(CHUNK_BYTES, stretch.end - position), position), position)
    finally:
        files.close(handle)


# The safe end is unknown.
UNKNOWN = new_end(0, 0, 0, 0, epoch=0)

TAKE_OVER_HINT = (
    "Check the disk, then begin a new segment after the safe records: topic.take_over(), "
    "or --take-over on the command line."
)


class Publisher:
    """Syncs and publishes one partition for this process."""

    def __init__(
        self,
        files: Files,
        folder: str,
        heads: Slots,
        slot: int,
        tail: TailSlots,
        lock: PartitionLock,
        *,
        title: str,
        synced: Callable[[], None] | None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._heads = heads
        self._slot = slot
        self._tail = tail
        self._lock = lock
        self._title = title
        self._synced = synced

    def publish(self, end: End, segment: ActiveSegment | None = None) -> None:
        """Make everything written up to `end` durable and visible. `segment` is the one that the caller has written to:
        its handle was open when a disk error occurred, so its fsync reports it."""
        with self._lock.hold(SYNC):
            head = self._heads.read(self._slot)
            self._refuse_if_older(end, head)
            if head is not None and head.place >= end.place:
                return
            # Read before the fsync: it may not cover later writes.
            tail, mark = self._tail.read_all(2)
            if mark is not None and mark.fenced:
                self._publish_safe(head, mark)
                raise self.fenced_error(mark)
            # The next writer repairs an unreadable tail; our own end is known.
            tail = end if tail is None else tail
            self._refuse_if_older(end, tail)
            if tail.place < end.place:
                raise self._reverted_error()
            self.make_durable(head, tail, segment)
            self._heads.write(self._slot, tail._replace(flags=tail.flags & (DELETED | HAS_STATE)))

    def make_durable(self, head: End | None, end: End, segment: ActiveSegment | None = None) -> None:
        """Sync everything up to `end`. The caller holds the sync lock, and the partition is not fenced."""
        mark = self._tail.read(SYNCING)
        if head is None or mark is None or mark.fenced or mark.place > head.place:
            try:
                write_again(self._files, self._folder, head, end)
            except CorruptBlock as error:
                self.fence(head)
                raise Unavailable(
                    f"the last write to {self._title} cannot be read back",
                    detail=f"It was not acknowledged. {error.detail}",
                    hint=TAKE_OVER_HINT,
                ) from error
        self._tail.write(SYNCING, end)
        self._sync(head, end, segment)
        if self._synced is not None:
            self._synced()

    def _sync(self, head: End | None, end: End, segment: ActiveSegment | None) -> None:
        name = SegmentName(end.segment, end.epoch)
        try:
            # A shorter one was removed in another process's recovery, and its name reused for the segment that is
            # meant.
            if segment is not None and (segment.name != name or segment.size() < end.position):
                segment = None
            if head is not None and (head.segment, head.epoch) == name:
                self._sync_last(name, segment)
                return
            # After a roll: sync first the older segments, then the new one, then the directory.
            first = head.segment if head is not None else 0
            for older in segments_in(self._files.list(self._folder)):
                if first <= older.base < end.segment:
                    self._sync_closed(older)
            self._sync_last(name, segment)
            self._files.sync_directory(self._folder)
        except OSError as error:
            self._refuse_if_deleted()
            if error.errno in NO_HANDLE:
                raise  # nothing was synced, and nothing failed to be
            self.fence(head)
            raise self.sync_error(error) from error

    def _sync_last(self, name: SegmentName, segment: ActiveSegment | None) -> None:
        if segment is not None:
            self._files.sync(segment.handle)
        else:
            sync_file(self._files, name.path(self._folder))

    def _sync_closed(self, name: SegmentName) -> None:
        try:
            sync_file(self._files, name.path(self._folder))
        except FileNotFoundError:
            # Sealed after it was listed, so synced as Parquet.
            if ManifestFile(self._files, self._folder).read().end <= name.base:
                raise
        # No writer will append to its index or check it: sync it, so that it need not be rebuilt.
        with suppress(OSError):
            sync_file(self._files, name.index_path(self._folder))

    # Fencing

    def fence(self, safe: End | None) -> None:
        """Fence the partition until a take-over; `safe` is the end that is certainly on disk."""
        mark = UNKNOWN if safe is None else safe
        # If this write fails too, the noted end of the unfinished fsync has the same effect, more slowly.
        with suppress(OSError):
            self._tail.write(SYNCING, mark._replace(flags=(mark.flags & HAS_STATE) | FENCED))

    def _publish_safe(self, head: End | None, mark: End) -> None:
        """After a power cut `heads` may be older than the safe end at the time of fencing."""
        if mark.epoch and (head is None or head.place < mark.place):
            self._heads.write(self._slot, mark._replace(flags=mark.flags & HAS_STATE))

    def fenced_error(self, mark: End) -> Unavailable:
        safe = f"Acknowledged records end at offset {mark.offset} and are safe; later" if mark.epoch else "Later"
        return Unavailable(
            f"{self._title} is fenced: an fsync failed",
            detail=f"{safe} writes may be lost, and another fsync would not report it.",
            hint=TAKE_OVER_HINT,
        )

    def sync_error(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"fsync failed on {self._title}: {os.strerror(error.errno or 0)}",
            detail="The append was not acknowledged, and the partition is fenced: after a failed fsync no later one "
            "can tell what is on disk.",
            hint=TAKE_OVER_HINT,
        )

    def _refuse_if_older(self, end: End, other: End | None) -> None:
        if other is not None and other.epoch > end.epoch:
            raise Fenced(
                f"{self._title} was taken over",
                detail=f"This append was written in epoch {end.epoch}; the partition is in epoch {other.epoch}. "
                "It was not acknowledged.",
                hint="Append again: the next append finds the partition as it is now.",
                epoch=end.epoch,
                current_epoch=other.epoch,
            )

    def _reverted_error(self) -> Unavailable:
        return Unavailable(
            f"the last write to {self._title} could not be read back and was truncated",
            detail="The append was not acknowledged.",
            hint="Append again.",
        )

    def _refuse_if_deleted(self) -> None:
        tail = self._tail.read(WRITTEN)
        if tail is not None and tail.flags & DELETED:
            raise deleted_error(self._title)


def deleted_error(title: str) -> TopicNotFound:
    """The error for an append to a deleted topic."""
    return TopicNotFound(
        f"{title} was deleted",
        detail="Another process deleted it while this one had it open.",
        hint="Create it again if you need it.",
    )
