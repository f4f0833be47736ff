"""MemberPositions: the partitions a member of a group owns, and what it reads next in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from mainstem.errors import FellOff
from mainstem.log.partition_reads import PartitionReads
from mainstem.log.record import next_offset

__all__ = ["MemberPositions"]


class MemberPositions:
    """What a member knows it owns. A partition without an offset waits for a transaction of its last owner."""

    def __init__(self) -> None:
        # Since which generation of the group each partition is owned.
        self.owned: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
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

    def keep(self, partitions: Iterable[int]) -> None:
        """Forget all but these."""
        kept = set(partitions)
        self.owned = {partition: since for partition, since in self.owned.items() if partition in kept}
        self.offsets = {partition: offset for partition, offset in self.offsets.items() if partition in kept}

    def uncommitted(self, committed: Mapping[int, int]) -> dict[int, int]:
        """The offsets that differ from what is committed."""
        return {partition: offset for partition, offset in self.offsets.items() if offset != committed[partition]}

    def read(self, reads: PartitionReads, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of the first partition that has some, beginning after the one read last."""
        partitions = sorted(self.offsets)
        first = next((index for index, partition in enumerate(partitions) if partition >= self._turn), 0)
        for partition in partitions[first:] + partitions[:first]:
            try:
                batch = reads.read(partition, self.offsets[partition], rows_max)
            except FellOff as error:
                kept = reads.earliest(partition)
                raise FellOff(
                    str(error),
                    detail=error.detail,
                    hint=f"Go on with the first record that is kept: member.seek({{{partition}: {kept}}}).",
                    topic=error.topic,
                    partition=error.partition,
                    first_lost=error.first_lost,
                    last_lost=error.last_lost,
                ) from error
            if batch is not None:
                self.offsets[partition] = next_offset(batch)
                self._turn = partition + 1
                return batch
        return None
