"""What to do when nobody knows how the last fsync ended: write again what it was to bring to disk.

A process may be killed inside an fsync that fails. The kernel tells a failure once and then holds the pages for clean,
so the next fsync succeeds and proves nothing. Bytes that are written again are dirty again, and their fsync counts.
"""

from __future__ import annotations

from typing import NamedTuple

from mainstem.log.embedded.active_segment import ActiveSegment, SegmentName, segments_in
from mainstem.log.embedded.block import Damage
from mainstem.log.embedded.crash_recovery import after_block, first_end, not_sealed
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.heads import End

CHUNK_BYTES = 4 << 20


class _Stretch(NamedTuple):
    """Bytes of a segment, and the offset of the first record in them."""

    name: SegmentName
    position: int
    end: int
    offset: int


def write_again(files: Files, folder: str, head: End | None, end: End) -> None:
    """Write again, in place, the blocks between what is published and `end`; raises `CorruptBlock` if one is unsound."""
    first = head.segment if head is not None else 0
    counted = not_sealed(files, folder, segments_in(files.list(folder)))
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
        # What a later block says was on disk when that one was written is there.
        if stretch.offset >= synced:
            _write(files, folder, stretch)


def _blocks(
    segment: ActiveSegment, following: SegmentName | None, head: End | None, end: End, stretches: list[_Stretch]
) -> int:
    """Add the blocks of one segment, each checked; gives the highest end that one of them says was on disk."""
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
