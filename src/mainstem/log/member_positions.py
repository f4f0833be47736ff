"""MemberPositions: the partitions a member of a group owns, and what it reads next in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from mainstem.errors import FellOff
from mainstem.log.missed_deletions import UNREAD, DeletionWatch
from mainstem.log.partition_reads import HINT, PartitionReads, check_position
from mainstem.log.record import next_offset

__all__ = ["MemberPositions"]

BEGIN_AGAIN = 'Begin again, without what the group has made of the records so far: member.seek("earliest").'


class MemberPositions:
    """What a member knows it owns. A partition without an offset waits for a transaction of its last owner."""

    def __init__(self, reads: PartitionReads) -> None:
        self._reads = reads
        self._deletions = DeletionWatch(reads)
        # Since which generation of the group each partition is owned.
        self.owned: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        # Where the group stands as its ledger says, and this member has not looked yet whether the topic reaches so far.
        self._unchecked: set[int] = set()
        # The partition that is read first next time, so that a busy one does not hold up the others.
        self._turn = 0

    def become(self, owned: Mapping[int, int]) -> list[int]:
        """Own these partitions from now on; those of them without an offset.

        Lost and gained again counts as lost, since others may have gone on there: it may happen between a release and
        the look at what is left.
        """
        self.offsets = {
            partition: offset
            for partition, offset in self.offsets.items()
            if owned.get(partition) == self.owned.get(partition)
        }
        self.owned = dict(owned)
        return [partition for partition in self.owned if partition not in self.offsets]

    def start(self, partition: int, offset: int, cleaned: int) -> None:
        """Go on in a partition that was gained; `cleaned` as the group knows it."""
        self.offsets[partition] = offset
        self._unchecked.add(partition)
        self._deletions.since.pop(partition, None)
        if cleaned != UNREAD:
            self._deletions.since[partition] = cleaned

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on elsewhere."""
        self.offsets |= offsets
        self._unchecked -= offsets.keys()
        for partition in offsets:
            self._deletions.since.pop(partition, None)

    @property
    def cleaned(self) -> Mapping[int, int]:
        """How far each partition was compacted when the group began to read it."""
        return self._deletions.since

    def keep(self, partitions: Iterable[int]) -> None:
        """Forget all but these."""
        kept = set(partitions)
        self.owned = {partition: since for partition, since in self.owned.items() if partition in kept}
        self.offsets = {partition: offset for partition, offset in self.offsets.items() if partition in kept}

    def uncommitted(self, committed: Mapping[int, int]) -> dict[int, int]:
        """The offsets that differ from what is committed."""
        return {partition: offset for partition, offset in self.offsets.items() if offset != committed[partition]}

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of the first partition that has some, beginning after the one read last."""
        partitions = sorted(self.offsets)
        first = next((index for index, partition in enumerate(partitions) if partition >= self._turn), 0)
        for partition in partitions[first:] + partitions[:first]:
            self._check_position(partition)
            try:
                self._deletions.before(partition)
                batch = self._reads.read(partition, self.offsets[partition], rows_max)
            except FellOff as error:
                kept = self._reads.earliest(partition)
                raise FellOff(
                    error.summary,
                    detail=error.detail,
                    hint=f"Go on with the first record that is kept: member.seek({{{partition}: {kept}}}).",
                    topic=error.topic,
                    partition=error.partition,
                    first_lost=error.first_lost,
                    last_lost=error.last_lost,
                ) from error
            # Also where nothing is left to read: then the tombstones were the last records.
            self._deletions.after(partition, self.offsets[partition], reader="the group", hint=BEGIN_AGAIN)
            if batch is not None:
                self.offsets[partition] = next_offset(batch)
                self._turn = partition + 1
                return batch
        return None

    def _check_position(self, partition: int) -> None:
        """Raise `BeyondEnd` if the topic was set back behind what the group has committed. Once: it is never set back while it
        is open."""
        if partition in self._unchecked:
            hint = HINT.format(where='member.seek("earliest"), "latest" or a time')
            check_position(self._reads, partition, self.offsets[partition], reader="the group", hint=hint)
            self._unchecked.discard(partition)
