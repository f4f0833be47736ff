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
