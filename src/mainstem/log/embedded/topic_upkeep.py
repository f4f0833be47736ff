"""What is due in one topic now: segments to close, to drop, to seal, to compact. Finding nothing costs little."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mainstem.errors import LockHeld
from mainstem.log.embedded.active_segment import SegmentName
from mainstem.log.embedded.compaction import compact, compaction_due
from mainstem.log.embedded.partition import Partition
from mainstem.log.embedded.partition_lock import UPKEEP
from mainstem.log.embedded.retention import drop_expired, retention_due
from mainstem.log.embedded.sealing import seal
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep_clock import MICROSECOND
from mainstem.log.embedded.upkeep_pass import GoOn, closed_segments, first_append, now_of
from mainstem.log.upkeep_report import CompactionReport, RetentionReport

Report = RetentionReport | CompactionReport


class TopicUpkeep:
    """Looks after one topic, with handles of its own: nobody closes them under it. For one thread at a time."""

    def __init__(self, store: TopicStore) -> None:
        self.store = store
        # Of each partition the segment being appended to, since when its first record is there, and the boot clock
        # when it was first seen.
        self._active: dict[int, tuple[SegmentName, int, int]] = {}

    def current(self) -> bool:
        """Whether the topic is still there, and the one it was."""
        return self.store.is_current()

    def steps(self, go_on: GoOn) -> Iterator[Callable[[], Report | int | None]]:
        """What may be due, one after the other; each may fail without the others."""
        self.store.refresh()
        for number, partition in enumerate(self.store.partitions):
            go_on()
            for step in (self._close_old, self._drop, self._seal, self._compact):
                # Another process at it does it for all.
                if partition.lock.holder(UPKEEP) is None:
                    yield lambda step=step, number=number: _unless_held(step, number, go_on)  # type: ignore[misc]

    def _close_old(self, number: int, go_on: GoOn) -> None:
        """Close a segment that has been appended to for longer than the topic wants."""
        partition = self.store.partitions[number]
        age_max = self.store.settings.segment_age_max // MICROSECOND
        boot = partition.clock.boot()
        active = self._active_since(number, partition, boot)
        if active is None:
            return
        _, first, seen = active
        now = now_of(partition, partition.manifest_file.read(), self.store.settings.segment_age_max).now
        # By the boot clock as well: append times may lie in the future.
        if (now - first >= age_max or boot - seen >= age_max) and not partition.fenced():
            partition.roll()

    def _active_since(self, number: int, partition: Partition, boot: int) -> tuple[SegmentName, int, int] | None:
        head = partition.published()
        name = SegmentName(head.segment, head.epoch)
        known = self._active.get(number)
        if known is None or known[0] != name:
            self._active.pop(number, None)
            first = first_append(partition, name) if head.offset > head.segment else None
            if first is None:
                return None
            known = self._active[number] = (name, first, boot)
        return known

    def _drop(self, number: int, go_on: GoOn) -> RetentionReport | None:
        return drop_expired(self.store, number, go_on) if retention_due(self.store, number) else None

    def _seal(self, number: int, go_on: GoOn) -> int:
        partition = self.store.partitions[number]
        closed = closed_segments(partition, partition.manifest_file.read())
        if not closed or closed[0][1].base > self.store.readers[number].visible().end:
            return 0
        return seal(self.store, number, go_on)

    def _compact(self, number: int, go_on: GoOn) -> CompactionReport | None:
        return compact(self.store, number, go_on) if compaction_due(self.store, number) else None


def _unless_held(step: Callable[[int, GoOn], Report | int | None], number: int, go_on: GoOn) -> Report | int | None:
    try:
        return step(number, go_on)
    except LockHeld:
        return None  # another process came first, and is long at it
