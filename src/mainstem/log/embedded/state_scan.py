"""Keeps a partition's producers and transactions current by reading the headers that were added since."""

from __future__ import annotations

import json

from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName
from mainstem.log.embedded.block import STATE, Damage, Header
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.heads import End
from mainstem.log.embedded.partition_state import PartitionState


class StateScan:
    """Where it stands, and the state there; its segment is open only while it is read. For one thread at a time."""

    def __init__(self, files: Files, folder: str) -> None:
        self.state = PartitionState()
        self._files = files
        self._folder = folder
        self._name: SegmentName | None = None
        # What the segment's preamble has: after a crash another one may get its name.
        self.segment_id = 0
        self._position = 0
        self._offset = 0

    def apply(self, header: Header, position: int) -> None:
        """A block that this process itself has written right behind; `position` is where it ends."""
        self.state.apply(header)
        self._position, self._offset = position, header.end_offset

    def catch_up(self, end: End) -> None:
        """Read on to `end`. In another segment it begins anew: each has the whole state at its head.

        Another thread may have read on further already; a later state tells all of an earlier one, and more.
        """
        name = SegmentName(end.segment, end.epoch)
        if self._name == name and self._position >= end.position:
            return
        segment = ActiveSegment(self._files, self._folder, name)
        try:
            preamble = segment.preamble()
            segment_id = 0 if preamble is None else preamble.crc
            if self._name != name or self.segment_id != segment_id:
                self._begin(segment, segment_id, end.offset)
            for position, header in segment.headers(self._position, end.position):
                if header.base_offset != self._offset:
                    break
                self.state.apply(header)
                self._position, self._offset = position + header.size, header.end_offset
            if self._position < end.position:
                raise segment.corrupt(Damage(self._position, self._offset), end.position, end.offset)
        finally:
            segment.close()

    @property
    def reached(self) -> int | None:
        """The offset up to which the state is known; None if it is not known where its segment begins."""
        return None if self._name is None else self._offset

    def _begin(self, segment: ActiveSegment, segment_id: int, until: int) -> None:
        self._name = None
        block = next(segment.blocks(PREAMBLE_BYTES, segment.size(), segment.name.base, until), None)
        if block is None or block.header.kind != STATE:
            raise segment.corrupt(Damage(PREAMBLE_BYTES, segment.name.base), segment.size(), until)
        self.state = PartitionState.from_json(json.loads(block.payload.to_pybytes()))
        self._name, self.segment_id = segment.name, segment_id
        self._position, self._offset = block.position + block.header.size, block.header.end_offset
