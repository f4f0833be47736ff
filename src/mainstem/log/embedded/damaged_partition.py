"""Where a damaged partition can go on: behind every block of it that is sound.

Taking over a partition whose last segment is damaged begins a new segment there. Nothing is cut and no offset is used again:
what is sound on either side of the damage stays readable, and who reads the damaged offsets is told so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment, segments_in
from mainstem.log.embedded.block import STATE, Block, Header
from mainstem.log.embedded.crash_recovery import after_block
from mainstem.log.embedded.files import Files
from mainstem.log.embedded.heads import HAS_STATE, End
from mainstem.log.embedded.partition_state import PartitionState

__all__ = ["end_behind_damage"]


def end_behind_damage(files: Files, folder: str, published: End) -> tuple[End, PartitionState]:
    """The end behind what was published and behind every sound block; and what those blocks say of producers and
    transactions. An append that was damaged is not known any more: repeated, it is appended again."""
    end = published._replace(flags=published.flags & HAS_STATE)
    state, known = PartitionState(), 0
    for position, header, payload in _sound_blocks(files, folder):
        if header.kind == STATE:
            if header.base_offset >= known:
                # The whole state at this place, also of what is damaged before it.
                state, known = PartitionState.from_json(json.loads(payload)), header.base_offset
        elif header.base_offset >= known:
            state.apply(header)
            known = header.end_offset
        if header.end_offset > end.offset:
            end = after_block(end, header, position)
    return end, state


def _sound_blocks(files: Files, folder: str) -> Iterator[tuple[int, Header, bytes]]:
    """The blocks with sound headers of all segments, in order; with the payloads of those that hold a state."""
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
