"""Recovery of a partition after a crash: all valid blocks are kept, and only an invalid suffix is truncated.

A killed writer may leave unpublished blocks, the last of them torn. A power cut may also revert `heads` and `tail`,
which are never synced. Only the segments count: they are read block by block from the last certain end. An invalid
block below the published end, or below the end that a later block records as synced, is damage and stops with an error;
elsewhere it is the torn end of a write that was not acknowledged.

A segment whose head is incomplete was never created: a power cut reverted its roll, or its take-over. A complete one
continues the partition, and records of the segment before it at or after its base no longer count: in the same epoch
there are none, and a take-over begins where all acknowledged records end.

The caller holds the partition's write lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress

from mainstem.durable_files import Files, remove_if_there, sync_file
from mainstem.errors import Corrupt, CorruptBlock, CorruptHome
from mainstem.log.embedded.upkeep.manifest import ManifestFile
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    UNFINISHED,
    ActiveSegment,
    SegmentIndex,
    SegmentName,
    all_segments_in,
    deserves_entry,
    segments_in,
)
from mainstem.log.embedded.write.block import HEADER_BYTES, Damage, Header
from mainstem.log.embedded.write.heads import HAS_STATE, End, new_end

# A segment may disappear during recovery because it was sealed; this often in a row it has another cause.
VANISHED_MAX = 20


def after_block(end: End, header: Header, position: int) -> End:
    """The end of a partition after one more block at `position`."""
    indexes, indexed = end.indexes, end.indexed
    if deserves_entry(header, position, indexes, indexed):
        indexes, indexed = indexes + 1, position
    in_transaction = header.transaction and header.count
    return end._replace(
        flags=end.flags | HAS_STATE if header.producer_id or header.transaction else end.flags,
        offset=header.end_offset,
        position=position + header.size,
        appended_at=max(end.appended_at, header.appended_at),
        event_time_max=max(end.event_time_max, header.event_time_max),
        observed_up_to=max(end.observed_up_to, header.observed_up_to),
        stated_watermark=max(end.stated_watermark, header.stated_watermark),
        transactions_end=header.end_offset if in_transaction else end.transactions_end,
        crc=header.crc,
        indexes=indexes,
        indexed=indexed,
    )


def first_end(segment: ActiveSegment) -> End | None:
    """The end after a segment's preamble and state block, or None if they are incomplete."""
    preamble = segment.preamble()
    if preamble is None or preamble[:2] != (segment.name.epoch, segment.name.base):
        return None
    for block in segment.walk(PREAMBLE_BYTES, segment.size(), preamble.base, preamble.crc):
        if isinstance(block, Damage):
            return None
        state = json.loads(block.payload.to_pybytes())
        end = new_end(preamble.base, preamble.base, PREAMBLE_BYTES, preamble.crc, preamble.epoch)
        end = end._replace(
            flags=HAS_STATE if state["producers"] or state["open"] or state["decided"] else 0,
            event_time_max=state["event_time_max"],
            transactions_end=state["transactions_end"],
        )
        return after_block(end, block.header, PREAMBLE_BYTES)
    return None


def is_complete(files: Files, folder: str, head: End | None) -> bool:
    """Whether the last segment ends at the published end, and every one has its index: no recovery is needed."""
    there = set(files.list(folder))
    names = segments_in(there)
    indexed = all(os.path.basename(name.index_path(folder)) in there for name in names)
    if indexed and head is not None and names and names[-1] == (head.segment, head.epoch):
        with suppress(FileNotFoundError):  # left and sealed just now
            return files.identity(names[-1].path(folder))[2] == head.position
    return False


def recover(files: Files, folder: str, published: End | None) -> End:
    """Walk to the last valid block, truncate what follows, and return the end. `published` is None if unknown."""
    vanished = 0
    while True:
        names = files.list(folder)
        counted = without_sealed(files, folder, segments_in(names))
        recovery = _Recovery(files, folder, counted, all_segments_in(names), published)
        try:
            end = recovery.run()
        except FileNotFoundError:
            # Sealed after it was listed: sealing does not need this lock.
            vanished += 1
            if vanished == VANISHED_MAX:
                raise
            continue
        if end is not None:
            return end
        # An incomplete segment was removed: walk again, with the segments that it hid.


def without_sealed(files: Files, folder: str, names: list[SegmentName]) -> list[SegmentName]:
    """Without segments that were sealed or dropped: a power cut may have restored any of them, with gaps between."""
    try:
        sealed_to = ManifestFile(files, folder).read().end
    except Corrupt:
        return names  # a read of the history raises
    return [name for name in names if name.base >= sealed_to] or names[-1:]


class _Recovery:
    """One walk over the segments of a partition."""

    def __init__(
        self, files: Files, folder: str, names: list[SegmentName], every: list[SegmentName], published: End | None
    ) -> None:
        self._files = files
        self._folder = folder
        self._names = names
        self._every = every
        self._published = published

    def run(self) -> End | None:
        """The end, or None if a segment was removed and the walk must be repeated."""
        published = self._published
        if not self._names:
            path = self._folder
            if published is not None:
                path = SegmentName(published.segment, published.epoch).path(path)
            raise CorruptBlock(
                f'partition "{self._folder}" has no segment to append to',
                detail="Every partition is created with one, so it was removed.",
                hint="Restore the directory from a copy.",
                path=path,
                position=0,
            )
        # The segments before the published one are complete: they were synced before anything after them was published.
        first = 0
        if published is not None:
            first = max(
                (number for number, name in enumerate(self._names) if name.base <= published.segment), default=0
            )
        end: End | None = None
        walked: list[tuple[SegmentName, int]] = []
        for number in range(first, len(self._names)):
            segment = ActiveSegment(self._files, self._folder, self._names[number])
            try:
                end = self._walk(segment, number, has_before=number > first)
            finally:
                segment.close()
            if end is None:
                return None
            walked.append((segment.name, end.position))
        assert end is not None
        self._refuse_if_lost(end)
        # Only now, when it is certain that all of them count.
        for name, position in walked:
            self._cut(name, position)
        return end

    def _walk(self, segment: ActiveSegment, number: int, *, has_before: bool) -> End | None:
        """The end within one segment; None if it or a segment after it had to be removed."""
        name, following = self._names[number], self._names[number + 1 :]
        size = segment.size()
        published = self._published
        if published is not None and (published.segment, published.epoch) == name:
            if published.position > size:
                raise segment.corrupt(_first_damage(segment, size), size, published.offset)
            if not _fits(segment, published, size):
                raise _foreign_heads(segment, published)
            end = published
        else:
            begun = first_end(segment)
            if begun is None:
                self._remove_incomplete(segment, number, has_before=has_before)
                return None
            end = begun
        limit = following[0].base if following else None
        if limit is not None and end.offset > limit:
            # The published end is beyond the base of the next segment, so that segment was never used.
            self._refuse_if_acknowledged(segment, Damage(end.position, limit), size, following[:1])
            abandon(self._files, self._folder, following[:1])
            return None
        damage: Damage | None = None
        for item in segment.walk(end.position, size, end.offset, end.crc):
            if isinstance(item, Damage):
                damage = item
                break
            if limit is not None and item.header.end_offset > limit:
                break
            end = after_block(end, item.header, item.position)
        if end.offset == limit or (damage is None and limit is None):
            return end
        damage = damage or Damage(end.position, end.offset)
        if any(header.synced > damage.offset for _, header in segment.sound_after(damage.position, size)):
            raise segment.corrupt(damage, size)
        self._refuse_if_acknowledged(segment, damage, size, following)
        self._refuse_if_lost(end)
        if not following:
            return end
        abandon(self._files, self._folder, following)
        return None

    def _remove_incomplete(self, segment: ActiveSegment, number: int, *, has_before: bool) -> None:
        """An interrupted roll or take-over: acknowledged records need a synced head, so there are none."""
        name = self._names[number]
        hides_another = any(other.base <= name.base and other != name for other in self._every)
        size = segment.size()
        damage = Damage(0, name.base)
        if not (has_before or hides_another):
            raise segment.corrupt(damage, size)
        self._refuse_if_acknowledged(segment, damage, size, self._names[number:])
        # Removed from the last to the first, so that an interrupted removal can be repeated.
        abandon(self._files, self._folder, self._names[number:])

    def _refuse_if_acknowledged(
        self, segment: ActiveSegment, damage: Damage, size: int, names: Iterable[SegmentName]
    ) -> None:
        """Raise if a block in a later segment records that more than this was synced when it was written."""
        for name in names:
            later = ActiveSegment(self._files, self._folder, name)
            try:
                if any(header.synced > damage.offset for _, header in later.sound_after(PREAMBLE_BYTES, later.size())):
                    raise segment.corrupt(damage, size)
            finally:
                later.close()

    def _refuse_if_lost(self, end: End) -> None:
        published = self._published
        if published is None or end.offset >= published.offset:
            return
        path = SegmentName(published.segment, published.epoch).path(self._folder)
        raise CorruptBlock(
            f'partition "{self._folder}" ends at offset {end.offset}, before the last acknowledged record',
            detail=f"Records from offset {end.offset} up to offset {published.offset - 1} are missing. "
            f'They were acknowledged when "{path}" was written.',
            hint="Nothing was changed. Restore the directory from a copy.",
            path=path,
            position=0,
            first_offset=end.offset,
            last_offset=published.offset - 1,
        )

    def _cut(self, name: SegmentName, position: int) -> None:
        segment = ActiveSegment(self._files, self._folder, name)
        try:
            if position < segment.size():
                self._files.truncate(segment.handle, position)
            mend_index(self._files, self._folder, segment, position)
        finally:
            segment.close()


def _fits(segment: ActiveSegment, published: End, size: int) -> bool:
    """Whether a block of this segment may end at the published end. Published blocks are synced and never
    rewritten, so a different block there shows that the end belongs to another partition; damage shows nothing."""
    preamble = segment.preamble()
    if preamble is None:
        return True
    following = segment.header_at(published.position)
    if following is not None and following.segment == preamble.crc and following.previous == published.crc:
        return True
    # From the last block with an index entry, if it is valid.
    start = segment.header_at(published.indexed) if PREAMBLE_BYTES < published.indexed < published.position else None
    first = PREAMBLE_BYTES if start is None else published.indexed
    for position, header in segment.headers(first, min(size, published.position + HEADER_BYTES)):
        if position + header.size >= published.position:
            return (position + header.size, header.crc, header.end_offset) == (
                published.position, published.crc, published.offset,
            )  # fmt: skip
    return True


def _foreign_heads(segment: ActiveSegment, published: End) -> CorruptHome:
    path = f"{os.path.dirname(os.path.dirname(segment.path))}/heads"
    return CorruptHome(
        f'"{path}" does not belong to the segments beside it',
        detail=f'It says that published records end at byte {published.position} of "{segment.path}", after a block other '
        "than the one found there. It may be the file of another topic.",
        hint="Nothing was changed. End all processes that have the home open and remove this file: it is rebuilt from the "
        "segments.",
        path=path,
    )


def _first_damage(segment: ActiveSegment, size: int) -> Damage:
    """Where a truncated segment ends, or its first damage before that."""
    preamble = segment.preamble()
    position, offset = PREAMBLE_BYTES, segment.name.base
    if preamble is None:
        return Damage(0, offset)
    for item in segment.walk(position, size, offset, preamble.crc):
        if isinstance(item, Damage):
            return item
        position, offset = item.position + item.header.size, item.header.end_offset
    return Damage(position, offset)


def abandon(files: Files, folder: str, names: list[SegmentName]) -> None:
    """Remove segments without acknowledged records."""
    for name in reversed(names):
        with suppress(FileNotFoundError):
            handle = files.open(name.path(folder))
            try:
                # Another process may have it open, and a later segment may get the same name: the size shows that
                # process that it has the wrong file.
                files.truncate(handle, 0)
            finally:
                files.close(handle)
        remove_if_there(files, name.path(folder))
        remove_if_there(files, name.index_path(folder))
    if names:
        files.sync_directory(folder)


def mend_index(files: Files, folder: str, segment: ActiveSegment, end: int) -> None:
    """Rewrite the index if it does not match the blocks, or the next writer would append to a wrong one."""
    index = SegmentIndex(files, segment.name.index_path(folder))
    # Without a valid index, reads are slower and still correct.
    with suppress(OSError):
        if not index.sound(segment, end):
            index.rewrite(segment, end)


def make_missing_indexes(files: Files, folder: str, names: Iterable[SegmentName], end: End) -> None:
    """Rebuild the missing indexes of closed segments."""
    for name in names:
        if name.base < end.segment and not files.exists(name.index_path(folder)):
            with suppress(OSError):
                segment = ActiveSegment(files, folder, name)
                try:
                    SegmentIndex(files, name.index_path(folder)).rebuild(segment, segment.size())
                finally:
                    segment.close()


def sweep(files: Files, folder: str) -> None:
    """Remove unfinished segments, and those that a take-over has abandoned once its new segment is synced.

    The caller holds the partition's write lock, so no segment is being created.
    """
    listed = files.list(folder)
    counted = set(segments_in(listed))
    for unfinished in listed:
        if unfinished.endswith(".blocks" + UNFINISHED):
            remove_if_there(files, f"{folder}/{unfinished}")
    abandon(files, folder, [name for name in all_segments_in(listed) if name not in counted])


def cut_behind(files: Files, folder: str, end: End) -> None:
    """After a take-over, truncate what was written after the safe end, so that it is not taken for damage."""
    if end.offset == end.segment:
        return  # then the new segment has the same base, and this one will be swept away
    segment = ActiveSegment(files, folder, SegmentName(end.segment, end.epoch))
    try:
        if segment.size() > end.position:
            files.truncate(segment.handle, end.position)
            files.sync(segment.handle)
        mend_index(files, folder, segment, end.position)
        sync_file(files, segment.name.index_path(folder))
    finally:
        segment.close()
