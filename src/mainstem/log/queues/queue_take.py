"""Which messages a take delivers, as one pure function.

In this order:

1. Messages over a limit are rejected: those delivered too often, then, oldest first, those that waited too long
   (`expires`) and those over the queue's length (`length_max`). None of these is held.
2. Messages that were delivered before and are due again, oldest first. Due are released messages whose delay is over,
   and held messages whose process died or whose lease expired.
3. Messages never delivered, oldest first over all partitions.

In a queue ordered by key only the oldest open message of a key is delivered. Later ones of the same key are parked
(recorded, not delivered) and the scan continues after them, so a key that fails does not block other keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from mainstem.durations import show_duration
from mainstem.log.queues.queue_scan import FreshRow, PartitionScan, QueueScan
from mainstem.log.queues.queue_settings import BY_KEY
from mainstem.log.queues.queue_state import Address, OpenMessage, QueueState
from mainstem.log.state_ledger import Entry
from mainstem.processes import Identity

__all__ = ["PARKED_MAX", "REJECTIONS_MAX", "Taking", "take"]

# Messages of one rejection: they are read and appended together.
REJECTIONS_MAX = 500
# Messages that wait for a key. At this number the scan stops: one key must not make the state large.
PARKED_MAX = 10_000
# A scan over at least this many rows is recorded even if it found nothing, so that others need not repeat it.
PASSED_MIN = 1_000
MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class Taking:
    """The result of a take.

    `messages` have their state after the entries are applied, with their rows; if there are none, something may change
    at `due_at`, or when one of `holders` ends. `unfinished`: more must be rejected first; take again.
    """

    messages: list[tuple[OpenMessage, pa.RecordBatch]] = field(default_factory=list)
    rejected: int = 0
    unfinished: bool = False
    due_at: int | None = None
    holders: list[Identity] = field(default_factory=list)


def take(
    state: QueueState,
    now: int,
    scan: QueueScan,
    *,
    cursors: dict[int, int],
    count: int,
    holder: Identity | None,
    alive: Callable[[Identity], bool],
) -> tuple[list[Entry], Taking]:
    """Choose up to `count` messages for `holder`. `cursors` are those of the state and of partitions added since."""
    return _Choice(state, now, scan, cursors, alive).take(count, holder)


class _Choice:
    """One decision in progress."""

    def __init__(
        self,
        state: QueueState,
        now: int,
        scan: QueueScan,
        cursors: dict[int, int],
        alive: Callable[[Identity], bool],
    ) -> None:
        self.state = state
        self.settings = state.settings
        self.now = now
        self.scan = scan
        self.scans = [scan.ahead(partition, cursor) for partition, cursor in sorted(cursors.items())]
        self.rejected_again: list[list[Any]] = []
        self.rejected_first: list[list[Any]] = []
        # The messages to deliver, in order, with their rows; then those to park.
        self.chosen: list[tuple[OpenMessage | FreshRow, pa.RecordBatch]] = []
        self.behind: list[FreshRow] = []
        self.outdated = False
        self.held, self.loose = self._split_held(alive)

    def take(self, count: int, holder: Identity | None) -> tuple[list[Entry], Taking]:
        self._reject_over_deliveries()
        self._reject_from_the_oldest()
        cursors_after_rejecting = self._moved_cursors()
        unfinished = self._rejections() >= REJECTIONS_MAX

        if not unfinished:
            self._choose(count)
            unfinished = not self.chosen and (self._rejections() > 0 or self.outdated)

        entries: list[Entry] = []
        if self._rejections():
            rejected = {"again": self.rejected_again, "first": self.rejected_first}
            entries.append({"kind": "rejecting", **rejected, "cursors": cursors_after_rejecting})
        moved = {"cursors": self._moved_cursors(), "behind": [row.entry() for row in self.behind]}
        until = self.now + self.settings.lease // MICROSECOND
        if self.chosen:
            taken = {
                "again": [message.address for message, _ in self.chosen if isinstance(message, OpenMessage)],
                "first": [message.entry() for message, _ in self.chosen if isinstance(message, FreshRow)],
            }
            entries.append({"kind": "taken", **taken, "holder": holder, "until": until, **moved})
        elif not unfinished and self._count_passed() >= PASSED_MIN:
            entries.append({"kind": "passed", **moved})
        given = [(self._deliver(message, holder, until), row) for message, row in self.chosen]
        return entries, Taking(given, self._rejections(), unfinished, self._due_at(), self._holders())

    def _deliver(self, message: OpenMessage | FreshRow, holder: Identity | None, until: int) -> OpenMessage:
        """A message after the entries are applied."""
        if isinstance(message, FreshRow):
            message = OpenMessage(message.partition, message.offset, message.appended_at, message.key)
        take_number = self.state.takes + 1
        return replace(message, deliveries=message.deliveries + 1, take=take_number, holder=holder, until=until)

    def _split_held(self, alive: Callable[[Identity], bool]) -> tuple[list[OpenMessage], list[OpenMessage]]:
        """The messages that are held, and those that are free, oldest first."""
        held: list[OpenMessage] = []
        loose: list[OpenMessage] = []
        living: dict[int, bool] = {}
        for message in self.state.open.values():
            holds = message.take > 0 and message.until > self.now
            if holds and message.holder is not None:
                # Checked once per process, not per message: the messages of a take share the identity.
                if id(message.holder) not in living:
                    living[id(message.holder)] = alive(message.holder)
                holds = living[id(message.holder)]
            (held if holds else loose).append(message)
        loose.sort(key=lambda message: message.age_order)
        return held, loose

    # Limits

    def _reject_over_deliveries(self) -> None:
        limit = self.settings.deliveries_max
        if limit is None:
            return
        over = [message for message in self.loose if message.deliveries >= limit][:REJECTIONS_MAX]
        for message in over:
            times = "once" if message.deliveries == 1 else f"{message.deliveries} times"
            self._reject(message, "deliveries", f"given out {times} without being acknowledged")
        gone = {message.address for message in over}
        self.loose = [message for message in self.loose if message.address not in gone]

    def _reject_from_the_oldest(self) -> None:
        """Both limits reject the oldest first, so a scan from the oldest on finds all messages over it."""
        expires, length_max = self.settings.expires, self.settings.length_max
        if expires is None and length_max is None:
            return
        surplus = 0
        if length_max is not None:
            surplus = len(self.loose) + sum(scan.count() for scan in self.scans) - length_max
        rejected: set[Address] = set()
        if expires is not None:
            self._reject_expired(expires, rejected)
            self.loose = [message for message in self.loose if message.address not in rejected]
            surplus -= len(rejected)
        waiting = _build_heap([*self.loose], self.scans)
        while waiting and surplus > 0 and self._rejections() < REJECTIONS_MAX:
            message, scan = _next(waiting)
            self._reject(message, "length", f"more than {length_max} messages waited")
            surplus -= 1
            rejected.add((message.partition, message.offset))
            _pop(waiting, scan)
        self.loose = [message for message in self.loose if message.address not in rejected]

    def _reject_expired(self, expires: timedelta, rejected: set[Address]) -> None:
        waiting = _build_heap([*self.loose], self.scans)
        while waiting and self._rejections() < REJECTIONS_MAX:
            message, scan = _next(waiting)
            if self._expires_at(message, expires) <= self.now:
                self._reject(message, "expired", f"waited for {show_duration(expires)}")
                rejected.add((message.partition, message.offset))
            elif not (isinstance(message, OpenMessage) and message.restored_at):
                # Only restored messages expire later than younger ones.
                break
            _pop(waiting, scan)

    def _expires_at(self, message: OpenMessage | FreshRow, expires: timedelta) -> int:
        restored_at = message.restored_at if isinstance(message, OpenMessage) else 0
        return max(message.appended_at, restored_at) + expires // MICROSECOND

    def _reject(self, message: OpenMessage | FreshRow, cause: str, reason: str) -> None:
        known = isinstance(message, OpenMessage)
        rejections = self.rejected_again if known else self.rejected_first
        rejections.append([message.partition, message.offset, cause, reason])

    def _rejections(self) -> int:
        return len(self.rejected_again) + len(self.rejected_first)

    # The choice

    def _choose(self, count: int) -> None:
        leaders = self._leaders()
        free = [
            message
            for message in self.loose
            if message.key is None or leaders.get(message.key, message.address) == message.address
        ]
        # An expired lease counts as due: it ended, or its holder died.
        returned = [message for message in free if message.deliveries and (message.take or message.until <= self.now)]
        parked = [message for message in free if not message.deliveries]
        parked_count = sum(not message.deliveries and not message.restored_at for message in self.loose)

        for due in returned:
            if len(self.chosen) == count or self._rejections() >= REJECTIONS_MAX:
                return
            self._give_again(due)
        waiting = _build_heap(parked, self.scans)
        while waiting and len(self.chosen) < count and self._rejections() < REJECTIONS_MAX:
            message, scan = _next(waiting)
            if isinstance(message, OpenMessage):
                self._give_again(message)
            elif message.key is not None and message.key in leaders:
                if parked_count + len(self.behind) >= PARKED_MAX:
                    return
                self.behind.append(message)
            else:
                if message.key is not None:
                    leaders[message.key] = message.partition, message.offset
                row = self.scan.row(message.partition, message.offset)
                if row is None:
                    # Dropped since it was read. Read the partition again, so that the gap is handled as usual.
                    self.scan.forget(message.partition)
                    self.outdated = True
                    return
                self.chosen.append((message, row))
            _pop(waiting, scan)

    def _give_again(self, message: OpenMessage) -> None:
        row = self.scan.row(message.partition, message.offset)
        if row is None:
            self._reject(message, "fell_off", "the topic no longer keeps this record")
        else:
            self.chosen.append((message, row))

    def _leaders(self) -> dict[str, Address]:
        """The oldest open message of each key, in a queue ordered by key; a held one, though an older one was restored."""
        if self.settings.ordered != BY_KEY:
            return {}
        leaders = {message.key: message for message in self.held if message.key is not None}
        # Sorted by age.
        for message in self.loose:
            if message.key is not None:
                leaders.setdefault(message.key, message)
        return {key: leader.address for key, leader in leaders.items()}

    # The result

    def _moved_cursors(self) -> dict[str, int]:
        return {str(scan.partition): scan.position for scan in self.scans if scan.position > scan.cursor}

    def _count_passed(self) -> int:
        return sum(scan.position - scan.cursor for scan in self.scans)

    def _due_at(self) -> int | None:
        moments = [message.until for message in [*self.held, *self.loose] if message.until > self.now]
        if self.settings.expires is not None:
            moments += [self._expires_at(message, self.settings.expires) for message in self.loose]
        return min(moments, default=None)

    def _holders(self) -> list[Identity]:
        holders: list[Identity] = []
        for message in self.held:
            if message.holder is not None and message.holder not in holders:
                holders.append(message.holder)
        return holders


_Waiting = tuple[tuple[int, int, int], OpenMessage | FreshRow, PartitionScan | None]


def _build_heap(messages: Sequence[OpenMessage], scans: Sequence[PartitionScan]) -> list[_Waiting]:
    """A heap of these messages and the next row of each partition."""
    waiting: list[_Waiting] = [(message.age_order, message, None) for message in messages]
    waiting += [(row.age_order, row, scan) for scan in scans if (row := scan.peek()) is not None]
    heapq.heapify(waiting)
    return waiting


def _next(waiting: list[_Waiting]) -> tuple[OpenMessage | FreshRow, PartitionScan | None]:
    _, message, scan = waiting[0]
    return message, scan


def _pop(waiting: list[_Waiting], scan: PartitionScan | None) -> None:
    """Remove the first one; if it came from a partition, add the partition's next row."""
    if scan is not None:
        scan.advance()
        if (row := scan.peek()) is not None:
            heapq.heapreplace(waiting, (row.age_order, row, scan))
            return
    heapq.heappop(waiting)
