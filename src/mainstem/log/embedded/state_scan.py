"""Keeps a partition's producers and transactions current by reading the headers that were added since."""

from __future__ import annotations

import json

from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName
from mainstem.log.embedded.block import STATE, Damage, Header
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.heads import End
from mainstem.log.embedded.partition_state import PartitionState


class StateScan:
    """Where it stands, and the state there. For one thread at a time."""

    def __init__(self, files: Files, folder: str) -> None:
        self.state = PartitionState()
        self._files = files
        self._folder = folder
        self._segment: ActiveSegment | None = None
        self._position = 0
        self._offset = 0

    def close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def apply(self, header: Header, position: int) -> None:
        """A block that this process itself has written right behind; `position` is where it ends."""
        self.state.apply(header)
        self._position, self._offset = position, header.end_offset

    def catch_up(self, end: End) -> None:
        """Read on to `end`. In another segment it begins anew: each has the whole state at its head.

        Another thread may have read on further already; a later state tells all of an earlier one, and more.
        """
        target = SegmentName(end.segment, end.epoch)
        if self._segment is None or self._segment.name != target:
            self._begin(target, end.offset)
        assert self._segment is not None
        for position, header in self._segment.headers(self._position, end.position):
            if header.base_offset != self._offset:
                break
            self.state.apply(header)
            self._position, self._offset = position + header.size, header.end_offset
        if self._position < end.position:
            raise self._segment.corrupt(Damage(self._position, self._offset), end.position, end.offset)

    @property
    def reached(self) -> int | None:
        """The offset up to which the state is known; None if it is not known where its segment begins."""
        return None if self._segment is None else self._offset

    def _begin(self, name: SegmentName, until: int) -> None:
        self.close()
        segment = ActiveSegment(self._files, self._folder, name)
        try:
            block = next(segment.blocks(PREAMBLE_BYTES, segment.size(), name.base, until), None)
            if block is None or block.header.kind != STATE:
                raise segment.corrupt(Damage(PREAMBLE_BYTES, name.base), segment.size(), until)
            self.state = PartitionState.from_json(json.loads(block.payload.to_pybytes()))
        except BaseException:
            segment.close()
            raise
        self._segment = segment
        self._position, self._offset = block.position + block.header.size, block.header.end_offset
