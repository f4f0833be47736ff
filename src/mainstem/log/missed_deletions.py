"""Whether a reader has missed deletions: compaction finally removes a tombstone, and a reader that comes later keeps
the deleted key.

A tombstone deletes everything before it with its key in the pass that first cleans its segment, and is removed itself
`tombstones` later. So a reader that began when the partition was cleaned up to `since` has never read records that
tombstones below `since` delete. It may have read records that a later tombstone deletes, and needs that tombstone:

    0            since           position           forgotten
    |--------------|----------------|-------------------|------      refused: forgotten > max(position, since)
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mainstem.errors import MissedDeletions

__all__ = ["BEGIN_AGAIN", "UNREAD", "Compacted", "DeletionWatch", "check_deletions"]

# Instead of how far a partition was cleaned: the reader has read nothing yet.
UNREAD = -1

BEGIN_AGAIN = 'Discard the results of the records read so far and start again with start="earliest".'


class Compacted(NamedTuple):
    """How far a partition is compacted: up to `cleaned`; tombstones below `forgotten` were removed."""

    cleaned: int
    forgotten: int


class CompactedReads(Protocol):
    """A topic with information on its compaction."""

    @property
    def name(self) -> str: ...
    def compaction(self, partition: int) -> Compacted | None:
        """None if the topic is not compacted, or if its log does not tell."""


def check_deletions(
    reads: CompactedReads,
    partition: int,
    position: int,
    since: int,
    *,
    reader: str = "a reader",
    hint: str = BEGIN_AGAIN,
) -> None:
    """Raise `MissedDeletions` if a reader that began with the partition cleaned up to `since` cannot continue."""
    compacted = reads.compaction(partition)
    if compacted is None or compacted.forgotten <= max(position, since):
        return
    raise MissedDeletions(
        f'{reader} has missed deletions in "{reads.name}" partition {partition}',
        detail=f"It would continue from offset {position}, but compaction has removed tombstones up to offset "
        f"{compacted.forgotten - 1}: it lagged for longer than the topic keeps them. Keys that it has read may have been "
        "deleted since.",
        hint=f"{hint} A topic keeps tombstones longer with Keep.latest_per_key(tombstones=...).",
        topic=reads.name,
        partition=partition,
        first_lost=position,
        last_lost=compacted.forgotten - 1,
    )


class DeletionWatch:
    """For one reader: how far each partition was cleaned when the reader began to read it."""

    def __init__(self, reads: CompactedReads) -> None:
        self._reads = reads
        self.since: dict[int, int] = {}

    def before(self, partition: int) -> None:
        """Call it before reading records: the first call counts."""
        if partition not in self.since:
            compacted = self._reads.compaction(partition)
            self.since[partition] = 0 if compacted is None else compacted.cleaned

    def after(self, partition: int, position: int, *, reader: str = "a reader", hint: str = BEGIN_AGAIN) -> None:
        """Call it after reading records from `position` on, before using them."""
        check_deletions(self._reads, partition, position, self.since[partition], reader=reader, hint=hint)
