"""Queue: delivers the messages of a topic one by one, until each is acknowledged.

A queue reads a topic not by offset but by acknowledgement. Any number of workers take from it; each message goes to one
of them. A message that a worker does not settle is delivered again: at once if its process died, else when the lease
ends. The topic itself does not change, and any number of queues and groups can read it at the same time.

A queue's state is kept in a ledger, so it survives any crash, and can be rewound to a time.

- Delivery is at least once: if a worker dies after the work and before the acknowledgement, the next one gets the
  message with `redelivered` set.
- Messages are delivered oldest first, but a returned one comes after those taken meanwhile. Where that matters, use
  `ordered="by key"`.

A queue may be used from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal, Self

import pyarrow as pa

from mainstem.arguments import checked_calls, text, values, whole_number
from mainstem.clock import Clock, as_datetime, as_us
from mainstem.durations import Duration, duration_us, parse_duration
from mainstem.errors import FellOff, Invalid, MissedDeletions
from mainstem.log.lag import Lag
from mainstem.log.log import no_such_reader
from mainstem.log.missed_deletions import UNREAD, check_deletions
from mainstem.log.partition_reads import HINT, PartitionReads, Position, Processes, Waiter, check_position, offsets_at
from mainstem.log.queues import queue_state as decisions
from mainstem.log.queues.message import ERROR_CHARACTERS_MAX, Message, error_text
from mainstem.log.queues.queue_description import (
    QueueDescription,
    held_messages,
    held_table,
    parked_table,
)
from mainstem.log.queues.queue_rejections import (
    Rejections,
    complete_rejections,
    last_rejected,
    rejected_rows,
    rejected_schema,
    rejected_topic,
)
from mainstem.log.queues.queue_scan import QueueScan, key_text
from mainstem.log.queues.queue_settings import BY_KEY, QueueSettings
from mainstem.log.queues.queue_state import Address, QueueState, Rejection, RestoredRow
from mainstem.log.queues.queue_take import Taking, take
from mainstem.log.queues.rejected_position import Rejected, no_longer_kept, not_rejected, parse_addresses
from mainstem.log.rows.partitioner import key_bytes
from mainstem.log.rows.readable_values import unreadable_value
from mainstem.log.state_ledger import Entry, StateLedger
from mainstem.names import check_name, check_own_name

__all__ = ["Queue"]

# Rejected messages that are restored or dropped in one entry.
SETTLED_MAX = 1_000


@checked_calls
class Queue:
    """A queue over one topic; returned by `topic.queue(name)`.

    `held_by="process"`: messages taken by this object are returned as soon as this process ends. `held_by="lease"`:
    only the lease counts, for consumers whose process ends before the work does, such as a command line.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     mails = stem.create_topic("mails", schema="address STRING")
    ...     placed = mails.append([{"address": "a@example.org"}, {"address": "nobody"}])
    ...     queue = mails.queue("sending", lease="30 seconds", deliveries_max=5)
    ...     first, second = queue.take(2)
    ...     first.acknowledge()
    ...     second.reject("no such address")
    ...     stem.query('SELECT address, rejection.reason FROM "mails.sending.rejected"').to_pylist()
    [{'address': 'nobody', 'reason': 'no such address'}]
    """

    def __init__(
        self,
        name: str,
        ledger: StateLedger[QueueState],
        reads: PartitionReads,
        rejections: Rejections,
        new_waiter: Callable[[], Waiter],
        *,
        processes: Processes,
        clock: Clock,
        held_by: Literal["process", "lease"] = "process",
        rewound: Callable[[str], None] = lambda to: None,
    ) -> None:
        """`rewound` is called after a rewind, with its position as text."""
        self.name = check_name(name, "queue")
        self.rejected_topic = check_own_name(rejected_topic(reads.name, name))
        self._ledger = ledger
        self._reads = reads
        self._rejections = rejections
        self._new_waiter = new_waiter
        # One waiter for each thread, so that an event that wakes one thread wakes the others too.
        self._waiters = threading.local()
        self._processes = processes
        self._clock = clock
        self._held_by = held_by
        self._rewound = rewound
        self._lock = threading.RLock()
        # The queue of this name that the scan belongs to: one created later may have another filter.
        self._scan_of = 0
        self._scan = QueueScan(reads, None)
        # Partitions without a taken message: the cursor, and how far they were compacted when rows were first read.
        self._begun: dict[int, tuple[int, int]] = {}
        # The partitions whose end is known to be at or after the queue's cursor.
        self._checked: set[int] = set()

    def open(self, given: QueueSettings | None = None, *, start: Position = "earliest") -> Self:
        """Create the queue at `start` if it does not exist. `Conflict` if it exists with other settings."""
        settings = given or QueueSettings()
        if settings.ordered == BY_KEY and not self._reads.key():
            raise Invalid(
                f'queue "{self.name}" cannot be ordered by key',
                detail=f'Topic "{self._reads.name}" has no key.',
                hint="Create a topic with key=..., or leave ordered= out.",
            )
        # Created only to check the condition; an invalid one must not become a queue.
        self._make_scan(settings)

        def decision(state: QueueState, now: int) -> tuple[list[Entry], None]:
            partitions = range(self._reads.partitions())
            cursors: dict[int, int] = {}
            if state.opened_at is None:
                cursors = offsets_at("earliest", self._reads, partitions)
                cursors |= offsets_at(start, self._reads, partitions)
            return decisions.open_queue(state, self.name, given, cursors), None

        self._ledger.decide(decision)
        return self

    def require(self) -> Self:
        """This queue if it exists, else `QueueNotFound`."""
        self._require_opened(self._ledger.current())
        return self

    # Taking

    def take(self, count: int = 1, *, wait: Duration | None = None) -> list[Message]:
        """Take up to `count` messages, as many as are available now; waits up to `wait` for the first one."""
        whole_number(count, "count", least=1)
        wait_us = 0 if wait is None else duration_us(wait, setting="wait")
        deadline = self._clock.monotonic() + wait_us
        waiter = self._own_waiter() if wait_us else None
        while True:
            with self._lock:
                self._complete_rejections()
                taking = self._take(count)
                if taking.rejected:
                    self._complete_rejections()
            if messages := self._messages(taking):
                return messages
            if taking.unfinished or taking.messages:
                continue
            left = deadline - self._clock.monotonic()
            if waiter is None or left <= 0:
                return []
            waiter.wait(left / 1_000_000, taking.due_at, taking.holders)

    def _messages(self, taking: Taking) -> list[Message]:
        """The messages taken. An unreadable row is rejected by itself; the others are delivered."""
        key = self._reads.key()
        found = []
        for opened, row in taking.messages:
            try:
                found.append(Message(self, opened, row, key))
            except (ValueError, OverflowError):
                unread = unreadable_value(row)
                reason = "it cannot be read" if unread is None else f'column "{unread.path}": {unread.reason}'
                self.reject(opened.receipt, f"{reason}; an older Mainstem took it")
        return found

    def _own_waiter(self) -> Waiter:
        """This thread's waiter; created before the first read, so that it sees everything after it."""
        waiter: Waiter | None = getattr(self._waiters, "waiter", None)
        if waiter is None:
            waiter = self._waiters.waiter = self._new_waiter()
        return waiter

    def _take(self, count: int) -> Taking:
        holder = self._processes.this_process() if self._held_by == "process" else None

        def decision(state: QueueState, now: int) -> tuple[list[Entry], Taking]:
            self._require_opened(state)
            if self._scan_of != state.openings:
                self._scan = self._make_scan(state.settings)
                self._scan_of = state.openings
                self._begun = {}
            cursors = self._cursors(state)
            self._check_positions(cursors)
            while True:
                since = self._read_since(state, cursors)
                entries, taking = take(
                    state,
                    now,
                    self._scan,
                    cursors=cursors,
                    count=count,
                    holder=holder,
                    alive=self._processes.alive,
                )
                # After the records were read, and before they are delivered.
                if self._check_deletions(state, cursors, since):
                    break
            return _with_cleaned(entries, state, since), taking

        try:
            return self._ledger.decide(decision)
        except MissedDeletions:
            raise
        except FellOff as error:
            kept = self._reads.earliest(error.partition)
            raise FellOff(
                error.summary,
                detail=error.detail,
                hint=f"Continue with the first retained record: queue.rewind({{{error.partition}: {kept}}}).",
                topic=error.topic,
                partition=error.partition,
                first_lost=error.first_lost,
                last_lost=error.last_lost,
            ) from error

    def _cursors(self, state: QueueState) -> dict[int, int]:
        """The cursor of each partition; one added after the queue was created is read from its beginning."""
        return {
            partition: state.cursors[partition] if partition in state.cursors else self._reads.earliest(partition)
            for partition in range(self._reads.partitions())
        }

    def _read_since(self, state: QueueState, cursors: Mapping[int, int]) -> dict[int, int]:
        """How far each partition was compacted when the queue began to read it: as recorded or, if it begins now, as of
        now. Called before records are read."""
        found = {}
        for partition, cursor in cursors.items():
            since = state.cleaned.get(partition, 0)
            if _unread(state, partition):
                begun = self._begun.get(partition)
                if begun is None or begun[0] != cursor:
                    # Rows read ahead before this are read again.
                    self._scan.forget(partition)
                    compacted = self._reads.compaction(partition)
                    begun = self._begun[partition] = (cursor, 0 if compacted is None else compacted.cleaned)
                since = begun[1]
            found[partition] = since
        return found

    def _check_deletions(self, state: QueueState, cursors: Mapping[int, int], since: Mapping[int, int]) -> bool:
        """Raise `MissedDeletions` if messages were taken. Otherwise the queue starts again: False means read again."""
        hint = 'Discard the results of the messages so far and start again: queue.rewind("earliest").'
        whole = True
        for partition, cursor in cursors.items():
            try:
                check_deletions(
                    self._reads, partition, cursor, since[partition], reader=f'queue "{self.name}"', hint=hint
                )
            except MissedDeletions:
                if not _unread(state, partition):
                    raise
                del self._begun[partition]
                whole = False
        return whole

    def _check_positions(self, cursors: Mapping[int, int]) -> None:
        """Raise `BeyondEnd` if the topic was restored to an end before a cursor. Checked once: an open topic is not
        restored."""
        hint = HINT.format(where='queue.rewind("earliest"), "latest" or a time')
        for partition, cursor in cursors.items():
            if partition not in self._checked:
                check_position(self._reads, partition, cursor, reader=f'queue "{self.name}"', hint=hint)
                self._checked.add(partition)

    # Settling

    def acknowledge(self, messages: Iterable[Message | str] | Message | str) -> None:
        """Settle messages, or their receipts, at once. Valid ones are settled even if `Fenced` names others."""
        given = [messages] if isinstance(messages, str | Message) else values(messages, "messages")
        wanted = [message.receipt if isinstance(message, Message) else text(message, "receipt") for message in given]

        def decision(state: QueueState, now: int) -> tuple[list[Entry], list[str]]:
            self._require_opened(state)
            return decisions.acknowledge(state, wanted)

        if stale := self._ledger.decide(decision):
            raise decisions.fenced_error(stale, acknowledged=len(set(wanted)) - len(stale))

    def extend(self, receipt: str, duration: Duration) -> datetime:
        """Extend the lease of a message to `duration` from now; returns when it ends."""
        length = QueueSettings.lease_of(duration)

        def decision(state: QueueState, now: int) -> tuple[list[Entry], int]:
            self._require_opened(state)
            return decisions.extend(state, now, receipt, length)

        return as_datetime(self._ledger.decide(decision))

    def release(self, receipt: str, *, delay: Duration | None = None, error: BaseException | str | None = None) -> None:
        """Return a message, to be delivered again after `delay` (by default the queue's `retry`), with its error."""
        length = None if delay is None else parse_duration(delay, setting="delay")
        told = error_text(error)

        def decision(state: QueueState, now: int) -> tuple[list[Entry], None]:
            self._require_opened(state)
            return decisions.release(state, now, receipt, length, told), None

        with self._lock:
            self._ledger.decide(decision)
            self._complete_rejections()

    def reject(self, receipt: str, reason: str) -> None:
        """Send a message to the rejected topic."""
        shown = text(reason, "reason")[:ERROR_CHARACTERS_MAX]

        def decision(state: QueueState, now: int) -> tuple[list[Entry], None]:
            self._require_opened(state)
            return decisions.reject(state, receipt, shown), None

        with self._lock:
            self._ledger.decide(decision)
            self._complete_rejections()

    def _complete_rejections(self) -> None:
        complete_rejections(self._ledger, self._rejections, self._rejected_rows)

    def _rejected_rows(self, decided_at: int, messages: list[Rejection]) -> pa.Table:
        rows = [self._scan.row(message.partition, message.offset) for message in messages]
        where = {"topic": self._reads.name, "queue": self.name}
        return rejected_rows(self._reads.schema(), messages, rows, decided_at=decided_at, **where)

    # Rejected messages

    def rejected(self, limit: int = 100) -> pa.Table:
        """The last rejected messages that were neither restored nor dropped, as rows of the rejected topic, oldest first.

        Of more than 100,000 such messages the oldest are only in that topic.
        """
        whole_number(limit, "limit", least=1)
        with self._lock:
            self._complete_rejections()
        wanted = dict(self._require_opened(self._ledger.current()).rejected)
        return last_rejected(self._rejections, rejected_schema(self._reads.schema()), wanted, limit)

    def restore(self, positions: Iterable[Rejected] | Rejected) -> None:
        """Deliver rejected messages again, as if never delivered. A position is `(partition, offset)` in the topic, or "0:17".

        A message is restored once, whoever tries: if one is not rejected, or no longer, the others are restored, and
        `NotFound` names it. Raises `FellOff` for a message whose record the topic no longer keeps.
        """
        wanted = parse_addresses(positions)
        unknown: list[Address] = []
        lost: list[Address] = []
        with self._lock:
            self._complete_rejections()
            for first in range(0, len(wanted), SETTLED_MAX):
                found, missing, gone = self._find_rejected(wanted[first : first + SETTLED_MAX])
                unknown += missing + self._ledger.decide(self._restoring(found))
                lost += gone
        self._refuse(unknown, lost, len(wanted), "restored")

    def _find_rejected(self, wanted: list[Address]) -> tuple[list[RestoredRow], list[Address], list[Address]]:
        """Of rejected messages what an entry needs; those that are not rejected, and those whose record is gone."""
        state = self._require_opened(self._ledger.current())
        by_key = self._reads.key() if state.settings.ordered == BY_KEY else ()
        found: list[RestoredRow] = []
        unknown, lost = [], []
        for address in wanted:
            if address not in state.rejected:
                unknown.append(address)
            elif (row := self._scan.row(*address)) is None:
                lost.append(address)
            else:
                appended_at = row.column("record").field("appended_at").cast(pa.int64())[0].as_py()
                found.append((address, appended_at, key_text(key_bytes(row, by_key)[0].as_py()) if by_key else None))
        return found, unknown, lost

    def _restoring(self, found: list[RestoredRow]) -> Callable[[QueueState, int], tuple[list[Entry], list[Address]]]:
        def decision(state: QueueState, now: int) -> tuple[list[Entry], list[Address]]:
            self._require_opened(state)
            return decisions.restore(state, found)

        return decision

    def drop(self, positions: Iterable[Rejected] | Rejected) -> None:
        """Forget rejected messages, given as for `restore`: they are done. Their rows stay in the rejected topic.

        If one is not rejected, or no longer, the others are dropped, and `NotFound` names it.
        """
        wanted = parse_addresses(positions)
        with self._lock:
            self._complete_rejections()
        unknown: list[Address] = []
        for first in range(0, len(wanted), SETTLED_MAX):

            def decision(
                state: QueueState, now: int, part: list[Address] = wanted[first : first + SETTLED_MAX]
            ) -> tuple[list[Entry], list[Address]]:
                self._require_opened(state)
                return decisions.drop(state, part)

            unknown += self._ledger.decide(decision)
        self._refuse(unknown, [], len(wanted), "dropped")

    def rejected_positions(self) -> list[Address]:
        """The partition and offset of each message that `restore` and `drop` accept, in the order of their rejections."""
        return list(self._require_opened(self._ledger.current()).rejected)

    def _refuse(self, unknown: list[Address], lost: list[Address], count: int, done: str) -> None:
        if unknown:
            raise not_rejected(self.name, unknown, count - len(unknown) - len(lost), done)
        if lost:
            raise no_longer_kept(self.name, self._reads.name, self.rejected_topic, lost)

    # The whole queue

    def rewind(self, to: Position) -> None:
        """Rewind the queue; earlier receipts become invalid.

        To a time: restores the state of the queue at that time, with delivery counts, delays and errors; messages held
        then are due at once. To a time before the queue was created, or any other position: messages before it count as
        done, messages from it on as never delivered; partitions that are not named do not change.
        """
        shown = to.isoformat() if isinstance(to, datetime) else str(to)
        earlier = self._ledger.state_at(as_us(to)) if isinstance(to, datetime) else None

        def decision(state: QueueState, now: int) -> tuple[list[Entry], None]:
            self._require_opened(state)
            partitions = range(self._reads.partitions())
            if earlier is not None and earlier.opened_at is not None and earlier.openings == state.openings:
                added = [partition for partition in partitions if partition not in earlier.cursors]
                begins = offsets_at("earliest", self._reads, added)
                return decisions.rewind_to_state(shown, earlier, begins), None
            return decisions.rewind(shown, offsets_at(to, self._reads, partitions)), None

        self._ledger.decide(decision)
        self._rewound(shown)

    def delete(self) -> None:
        """Delete the queue. Its topic and its rejected messages are kept."""

        def decision(state: QueueState, now: int) -> tuple[list[Entry], None]:
            self._require_opened(state)
            return decisions.delete(), None

        with self._lock:
            self._complete_rejections()
            self._ledger.decide(decision)

    def describe(self) -> QueueDescription:
        """The number of messages in each state, and the queue's counters."""
        state = self._require_opened(self._ledger.current())
        now = self._clock.now()
        opened = list(state.open.values())
        held = held_messages(state, now, self._processes)
        held_now = {message.address for message in held}
        returned = [message for message in opened if message.deliveries and message.address not in held_now]
        due = sum(message.take > 0 or message.until <= now for message in returned)
        parked = sum(not message.deliveries and not message.waiting for message in opened)
        lag = self.lag()
        return QueueDescription(
            name=self.name,
            topic=self._reads.name,
            rejected_topic=self.rejected_topic,
            settings=state.settings,
            waiting=max(0, lag.records - len(held) - (len(returned) - due) - parked),
            held=len(held),
            returned=len(returned),
            due=due,
            parked=parked,
            rejecting=sum(len(messages) for _, messages in state.rejecting.values()),
            rejected=len(state.rejected),
            cursors=dict(sorted(self._cursors(state).items())),
            lag=lag,
            counts=dict(state.counts),
        )

    def held(self) -> pa.Table:
        """The messages that are delivered and not settled, as a table: who holds them, since when, and until when."""
        state = self._require_opened(self._ledger.current())
        return held_table(held_messages(state, self._clock.now(), self._processes), self._processes)

    def parked(self) -> pa.Table:
        """The messages that wait for a delay or for an earlier message of their key, as a table."""
        return parked_table(self._require_opened(self._ledger.current()), self._clock.now())

    def lag(self) -> Lag:
        """The messages that are not done, new or open. Bytes and times count from the oldest one."""
        state = self._require_opened(self._ledger.current())
        parts = []
        for partition, cursor in self._cursors(state).items():
            ahead = self._reads.behind(partition, cursor)
            opened = [message.offset for message in state.open.values() if message.partition == partition]
            whole = self._reads.behind(partition, min(opened)) if opened else ahead
            parts.append(Lag(ahead.records + len(opened), whole.bytes, whole.seconds, whole.until_dropped))
        return Lag.total(parts)

    def _make_scan(self, settings: QueueSettings) -> QueueScan:
        by_key = self._reads.key() if settings.ordered == BY_KEY else ()
        if settings.where is None:
            return QueueScan(self._reads, None, by_key=by_key)
        # DuckDB takes a tenth of a second to load; only queues with a condition need it.
        from mainstem.log.record import record_schema
        from mainstem.log.rows.row_filter import RowFilter

        condition = RowFilter(settings.where, record_schema(self._reads.schema()))
        return QueueScan(self._reads, condition.mask, by_key=by_key)

    def _require_opened(self, state: QueueState) -> QueueState:
        if state.opened_at is None:
            raise no_such_reader("queue", self.name, self._reads.name)
        return state


def _unread(state: QueueState, partition: int) -> bool:
    """Whether no message of a partition was taken since the queue began to read it."""
    return state.cleaned.get(partition, 0 if partition in state.cursors else UNREAD) == UNREAD


def _with_cleaned(entries: list[Entry], state: QueueState, since: Mapping[int, int]) -> list[Entry]:
    """With how far partitions were compacted, in the entries that move their cursors for the first time."""
    for entry in entries:
        begun = {number: since[int(number)] for number in entry["cursors"] if state.cleaned.get(int(number)) == UNREAD}
        begun |= {number: since[int(number)] for number in entry["cursors"] if int(number) not in state.cursors}
        if begun:
            entry["cleaned"] = begun
    return entries
