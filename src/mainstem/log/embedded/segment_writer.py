"""Writes blocks behind the last one of a segment, and their entries into its index."""

from __future__ import annotations

from contextlib import suppress

from mainstem.log.embedded.active_segment import ActiveSegment, SegmentName
from mainstem.log.embedded.block import Damage
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.segment_index import ENTRY, SegmentIndex
from mainstem.log.embedded.written_blocks import WrittenBlocks


class SegmentWriter:
    """The segment being appended to, open in this process; for who holds the partition's write lock."""

    def __init__(self, files: Files, folder: str, name: SegmentName, end: int) -> None:
        self.name = name
        self._files = files
        self._index = SegmentIndex(files, name.index_path(folder))
        self._segment = ActiveSegment(files, folder, name)
        try:
            preamble = self._segment.preamble()
            if preamble is None:
                raise self._segment.corrupt(Damage(0, name.base), end)
            self.segment_id = preamble.crc
            try:
                self._index_handle = files.open(name.index_path(folder))
            except FileNotFoundError:
                self._index.rebuild(self._segment, end)
                self._index_handle = files.open(name.index_path(folder))
        except BaseException:
            self._segment.close()
            raise

    def size(self) -> int:
        return self._segment.size()

    def close(self) -> None:
        self._segment.close()
        self._files.close(self._index_handle)

    def write(self, blocks: WrittenBlocks) -> None:
        """Write all of it, or leave the segment as it was and raise."""
        try:
            self._files.pwritev(self._segment.handle, blocks.buffers, blocks.begin)
        except OSError:
            # Half a block is taken back, so that the next append need not; if that fails too, recovery will.
            with suppress(OSError):
                self._files.truncate(self._segment.handle, blocks.begin)
            raise
        if blocks.entries:
            self.mend_index(blocks.first_entry, blocks.begin)
            # Without its entries a record is found more slowly, and by the size of the file the next writer sees it.
            with suppress(OSError):
                self._files.pwrite(self._index_handle, b"".join(blocks.entries), blocks.first_entry * ENTRY.size)

    def mend_index(self, entries: int, end: int) -> None:
        """Make the index again if it has not so many entries, for the blocks up to `end`."""
        with suppress(OSError):
            if self._files.size(self._index_handle) != entries * ENTRY.size:
                self._index.rewrite(self._segment, end)
