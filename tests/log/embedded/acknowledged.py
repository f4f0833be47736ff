"""What was promised by a partition, kept outside it, and whether it holds.

Every append has a payload of its own, so each block that is read can be told: acknowledged, or at least submitted, and
whole; or a phantom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mainstem.clock import Clock, ManualClock
from mainstem.durable_files import Files
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    ActiveSegment,
    SegmentIndex,
    published_segments,
    segments_in,
)
from mainstem.log.embedded.write.heads import End, Slots, create_slots
from mainstem.log.embedded.write.partition import Partition, Pending, create_partition

HOME = "/memory"
FOLDER = f"{HOME}/0"
HEADS = f"{HOME}/heads"


class Stored(NamedTuple):
    """A block of records as it was read."""

    offset: int
    count: int
    payload: bytes


def make_partition(files: Files, clock: Clock | None = None, *, home: str = HOME) -> None:
    """A partition with its `heads`, on disk."""
    files.make_directory(home)
    end = create_partition(files, f"{home}/0", clock or ManualClock())
    create_slots(files, f"{home}/heads", [end])
    files.sync_directory(home)
    files.sync_directory(home.rpartition("/")[0] or "/")


def open_partition(
    files: Files,
    clock: Clock | None = None,
    *,
    home: str = HOME,
    segment_bytes_max: int = 1 << 20,
    synced: Callable[[], None] | None = None,
) -> Partition:
    heads = Slots(files, f"{home}/heads")
    return Partition(
        files, f"{home}/0", heads, 0, clock or ManualClock(), title="the partition",
        segment_bytes_max=segment_bytes_max, synced=synced,
    )  # fmt: skip


def read_all(files: Files, end: End, *, folder: str = FOLDER, start: int = 0) -> list[Stored]:
    """Everything up to a published end, read without any index; raises if a block is unsound or an offset is missing."""
    stored: list[Stored] = []
    names = published_segments(files.list(folder), end.segment, end.epoch)
    for name, following in zip(names, [*names[1:], None], strict=True):
        if following is not None and following.base <= start:
            continue
        segment = ActiveSegment(files, folder, name)
        try:
            size = end.position if following is None else segment.size()
            offset = name.base
            for block in segment.blocks(PREAMBLE_BYTES, size, name.base):
                header = block.header
                if header.count and header.base_offset >= start:
                    stored.append(Stored(header.base_offset, header.count, block.payload.to_pybytes()))
                offset = header.end_offset
            expected = end.offset if following is None else following.base
            assert offset == expected, f"{name} ends at {offset}, and not at {expected}"
        finally:
            segment.close()
    return stored


def unsound_indexes(files: Files, end: End, *, folder: str = FOLDER) -> list[str]:
    """The indexes that do not hold exactly what they must."""
    wrong = []
    for name in segments_in(files.list(folder)):
        segment = ActiveSegment(files, folder, name)
        try:
            size = end.position if (end.segment, end.epoch) == name else segment.size()
            if not SegmentIndex(files, name.index_path(folder)).sound(segment, size):
                wrong.append(f"the index of {name} is wrong")
        finally:
            segment.close()
    return wrong


class Acknowledged:
    """What was submitted, and what of it was acknowledged, and where."""

    def __init__(self) -> None:
        self.submitted: dict[bytes, int] = {}
        self.offsets: dict[bytes, int] = {}
        # Records that somebody could see: they must never go away, acknowledged or not.
        self.seen: dict[int, bytes] = {}

    def append(self, partition: Partition, payload: bytes, count: int = 1) -> None:
        pending = Pending(payload, count)
        self.submitted[payload] = count
        partition.append(pending)
        self.offsets[payload] = pending.base_offset

    def look(self, stored: list[Stored]) -> None:
        """A reader has seen these."""
        self.seen.update({block.offset: block.payload for block in stored})

    def violations(self, stored: list[Stored], where: str) -> list[str]:
        """What is wrong with what was read."""
        wrong: list[str] = []
        by_offset = {block.offset: block for block in stored}
        for payload, offset in self.offsets.items():
            block = by_offset.get(offset)
            if block is None or block.payload != payload:
                wrong.append(f"{where}: acknowledged {payload[:20]!r} at {offset} is lost (there: {block})")
        for offset, payload in self.seen.items():
            block = by_offset.get(offset)
            if block is None or block.payload != payload:
                wrong.append(f"{where}: {payload[:20]!r} at {offset} was seen, and is gone (there: {block})")
        payloads = [block.payload for block in stored]
        if len(set(payloads)) != len(payloads):
            wrong.append(f"{where}: something is there twice")
        expected = stored[0].offset if stored else 0
        for block in stored:
            if block.offset != expected:
                wrong.append(f"{where}: offset {block.offset} follows {expected}")
            if self.submitted.get(block.payload) != block.count:
                wrong.append(f"{where}: phantom {block}")
            expected = block.offset + block.count
        return wrong
