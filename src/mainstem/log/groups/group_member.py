"""Member: one reader among several that share a topic's partitions.

A member owns some partitions, reads them in turn, and commits its offsets with `commit`. After a crash, rows that were
polled but not committed are delivered again, to it or to another member: at least once, and exactly once where the
offsets are committed in the same transaction as the results.

- Waiting members detect at once that a member's process ended; a member without heartbeats for longer than its
  `session` is detected by all others within a third of theirs. Its partitions are reassigned; its late `commit` raises
  `Fenced`. If it is still alive, its next `poll` rejoins and continues from the committed offsets.
- When a partition is to move to another live member, its owner releases it as soon as all rows polled from it are
  committed, and at its next `poll` at the latest. So commit before you poll again, or those rows are delivered twice.
- Leaving (the end of the `with` block) releases all partitions at once, and commits nothing.

A member is for one thread; several threads join several times.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Literal, Protocol, Self

import pyarrow as pa

from mainstem.arguments import checked_calls, whole_number
from mainstem.clock import Clock
from mainstem.durations import Duration, duration_us
from mainstem.errors import FellOff, Invalid, MainstemError
from mainstem.log.groups import group_state as decisions
from mainstem.log.groups.group_state import GroupState
from mainstem.log.lag import Lag
from mainstem.log.missed_deletions import UNREAD, DeletionWatch
from mainstem.log.own_process import OwnProcess
from mainstem.log.partition_reads import HINT, PartitionReads, Position, Processes, Waiter, check_position, offsets_at
from mainstem.log.record import next_offset
from mainstem.log.state_ledger import Entry, StateLedger
from mainstem.processes import Identity

__all__ = [
    "Heartbeat",
    "HeartbeatThread",
    "Heartbeats",
    "Member",
    "MemberPositions",
    "Outcomes",
    "check_session",
    "dead_members",
]


# HeartbeatThread: calls a member's `heartbeat` periodically while the member exists.


class Heartbeats(Protocol):
    """When each member last sent a heartbeat. Kept beside the ledger: heartbeats are too frequent to be entries."""

    def heartbeat(self, member: str) -> None:
        """Record that this member is alive."""

    def age(self, member: str) -> int | None:
        """How long ago (microseconds) this member last sent a heartbeat; None if it never did.

        Measured by the boot clock (`Clock.boot`), so that setting the wall clock does not expire members.
        """

    def forget(self, member: str) -> None:
        """Remove a member that has left."""


class Heartbeat(Protocol):
    """Sends heartbeats until it is stopped."""

    def stop(self) -> None:
        """Stop the heartbeats. May be called twice."""


class HeartbeatThread:
    """A daemon thread that calls `heartbeat` at once and then every `seconds`.

    It holds `heartbeat`'s object weakly: a member that was dropped without leaving stops its heartbeats, and the others
    take its partitions after its session.
    """

    def __init__(self, heartbeat: Callable[[], None], seconds: float) -> None:
        self._heartbeat = weakref.WeakMethod(heartbeat)
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstem-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            heartbeat = self._heartbeat()
            if heartbeat is None:
                return
            heartbeat()
            # Not referenced while waiting, else the member would never be collected.
            del heartbeat
            self._stopped.wait(self._seconds)

    def stop(self) -> None:
        """Stop the heartbeats; waits for one in progress, unless called from within it."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


# MemberPositions: the partitions that a member owns, and the next offset in each.


BEGIN_AGAIN = 'Discard the results of the records read so far and start again: member.seek("earliest").'


class MemberPositions:
    """The partitions that a member owns. One without an offset waits for a transaction of its last owner."""

    def __init__(self, reads: PartitionReads) -> None:
        self._reads = reads
        self._deletions = DeletionWatch(reads)
        # The generation of the group since which each partition is owned.
        self.owned: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        # Partitions whose committed offset this member has not yet compared with the end of the topic.
        self._unchecked: set[int] = set()
        # The partition to read first next time, so that a busy one does not block the others.
        self._turn = 0

    def set_owned(self, owned: Mapping[int, int]) -> list[int]:
        """Set the owned partitions; returns those without an offset.

        A partition that was lost and regained counts as lost, since another member may have read it in between.
        """
        self.offsets = {
            partition: offset
            for partition, offset in self.offsets.items()
            if owned.get(partition) == self.owned.get(partition)
        }
        self.owned = dict(owned)
        return [partition for partition in self.owned if partition not in self.offsets]

    def start(self, partition: int, offset: int, cleaned: int) -> None:
        """Start reading a partition; `cleaned` as the group has recorded it."""
        self.offsets[partition] = offset
        self._unchecked.add(partition)
        self._deletions.since.pop(partition, None)
        if cleaned != UNREAD:
            self._deletions.since[partition] = cleaned

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Continue at these offsets."""
        self.offsets |= offsets
        self._unchecked -= offsets.keys()
        for partition in offsets:
            self._deletions.since.pop(partition, None)

    @property
    def cleaned(self) -> Mapping[int, int]:
        """How far each partition was compacted when the group began to read it."""
        return self._deletions.since

    def keep(self, partitions: Iterable[int]) -> None:
        """Drop all other partitions."""
        kept = set(partitions)
        self.owned = {partition: since for partition, since in self.owned.items() if partition in kept}
        self.offsets = {partition: offset for partition, offset in self.offsets.items() if partition in kept}

    def find_uncommitted(self, committed: Mapping[int, int]) -> dict[int, int]:
        """The offsets that differ from the committed ones."""
        return {partition: offset for partition, offset in self.offsets.items() if offset != committed[partition]}

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of the first partition that has any, beginning after the one read last."""
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
                    hint=f"Continue with the first retained record: member.seek({{{partition}: {kept}}}).",
                    topic=error.topic,
                    partition=error.partition,
                    first_lost=error.first_lost,
                    last_lost=error.last_lost,
                ) from error
            # Also at the end of the partition: the removed tombstones may have been its last records.
            self._deletions.after(partition, self.offsets[partition], reader="the group", hint=BEGIN_AGAIN)
            if batch is not None:
                self.offsets[partition] = next_offset(batch)
                self._turn = partition + 1
                return batch
        return None

    def _check_position(self, partition: int) -> None:
        """Raise `BeyondEnd` if the topic was restored to an end before the group's committed offset. Checked once: an
        open topic is not restored."""
        if partition in self._unchecked:
            hint = HINT.format(where='member.seek("earliest"), "latest" or a time')
            check_position(self._reads, partition, self.offsets[partition], reader="the group", hint=hint)
            self._unchecked.discard(partition)


class Outcomes(Protocol):
    """The log, for the outcomes of transactions."""

    @property
    def identity(self) -> str:
        """The same each time the log is opened."""

    @property
    def title(self) -> str: ...

    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]:
        """The outcome of a transaction; one whose owner died or whose timeout is over is aborted first."""


def check_session(session: Duration) -> int:
    """A session in microseconds."""
    length = duration_us(session, setting="session")
    if length == 0:
        raise Invalid(
            "session must be longer than zero",
            detail="The other members would consider this member dead at once.",
            hint='Give some seconds, for instance session="10 seconds".',
        )
    return length


@checked_calls
class Member:
    """A member of a reader group; returned by `topic.join_group(name)`.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     orders = stem.create_topic("orders", schema="order_id STRING")
    ...     placed = orders.append([{"order_id": "o-1"}, {"order_id": "o-2"}])
    ...     with orders.join_group("billing", session="10 seconds") as member:
    ...         batch = member.poll(wait="5 seconds")
    ...         member.commit()
    ...     batch.column("order_id").to_pylist()
    ['o-1', 'o-2']
    """

    def __init__(
        self,
        group: str,
        ledger: StateLedger[GroupState],
        reads: PartitionReads,
        waiter: Waiter,
        heartbeats: Heartbeats,
        *,
        processes: Processes,
        clock: Clock,
        outcomes: Outcomes | None = None,
        session: Duration = "10 seconds",
        start: Position = "earliest",
        beating: Callable[[Callable[[], None], float], Heartbeat] = HeartbeatThread,
    ) -> None:
        self.group = group
        self._ledger = ledger
        self._reads = reads
        self._waiter = waiter
        self._heartbeats = heartbeats
        self._processes = processes
        self._clock = clock
        self._outcomes = outcomes
        self._start = start
        self._session = check_session(session)
        self._lock = threading.RLock()
        self._process = OwnProcess()
        self._left = False
        self._generation = 0
        self._positions = MemberPositions(reads)
        self._id = ""
        self._join()
        # Three heartbeats a session: one may be late, one may be lost.
        self._heartbeat = beating(self.heartbeat, self._session / 3 / 1_000_000)

    @property
    def topic(self) -> str:
        """The topic it reads."""
        return self._reads.name

    @property
    def log(self) -> Outcomes | None:
        """The log that its topic is in."""
        return self._outcomes

    # For the reader

    def poll(self, *, wait: Duration | None = None, rows_max: int = 10_000) -> pa.RecordBatch | None:
        """The next rows of one of the member's partitions; None if none arrived within `wait`."""
        whole_number(rows_max, "rows_max", least=1)
        wait_us = 0 if wait is None else duration_us(wait, setting="wait")
        deadline = self._clock.monotonic() + wait_us
        while True:
            self._check_process()
            with self._lock:
                self._check_not_left()
                self._catch_up()
                self._release(self._partitions_to_release())
                batch = self._positions.read(rows_max)
                if batch is None and self._evict_dead():
                    # The partitions of a dead member may be ours now.
                    self._catch_up()
                    batch = self._positions.read(rows_max)
                others = self._other_processes()
            left = deadline - self._clock.monotonic()
            if batch is not None or left <= 0:
                return batch
            self._waiter.wait(min(left, self._session // 3) / 1_000_000, None, others)

    def commit(self) -> None:
        """Commit the offsets of everything polled so far.

        Raises `Fenced` if this member was removed from the group meanwhile: other members then have its partitions, and
        read again what it did not commit. Its next `poll` rejoins.
        """
        self._commit(None)

    def commit_in(self, transaction: str) -> dict[int, int]:
        """As `commit`, but effective when `transaction` is committed; returns the offsets. Raises `Fenced`."""
        return self._commit(transaction)

    def _commit(self, transaction: str | None) -> dict[int, int]:
        self._check_process()
        with self._lock:
            self._check_not_left()
            generation, offsets, cleaned = self._generation, self._find_uncommitted(), self._positions.cleaned

            def decision(state: GroupState, now: int) -> tuple[list[Entry], None]:
                if transaction is None:
                    return decisions.commit(state, self._id, generation, offsets, cleaned), None
                return decisions.hold_pending(state, self._id, generation, transaction, offsets, cleaned), None

            self._ledger.decide(decision)
            if transaction is None:
                self._release_committed()
            return offsets

    def seek(self, to: Position) -> None:
        """Continue at another position in the partitions owned now, and commit it, so that it survives a crash.

        `to` is "earliest", "latest", a datetime with a zone, {partition: offset}, an append's token, or "committed":
        back to the last commit, so that rows polled since are delivered again.
        """
        self._check_process()
        with self._lock:
            self._check_not_left()
            state = self._ledger.current()
            if isinstance(to, str) and to == "committed":
                decisions.check_owned(state, self._id, self._generation, self._positions.offsets)
                self._positions.offsets = {
                    partition: state.committed[partition] for partition in self._positions.offsets
                }
                return
            offsets = offsets_at(to, self._reads, sorted(self._positions.owned))
            generation = self._generation
            self._ledger.decide(
                lambda state, now: (decisions.seek(state, self._id, generation, offsets), None),
            )
            self._positions.seek(offsets)

    def leave(self) -> None:
        """Leave the group and release all partitions. Uncommitted rows are delivered again. May be called twice.

        Does nothing in a forked child: the member belongs to the parent.
        """
        if self._left or self._process.forked:
            return
        self._left = True
        self._heartbeat.stop()
        with self._lock:
            self._ledger.decide(lambda state, now: (decisions.leave(state, self._id), None))
            self._positions.keep([])
            self._heartbeats.forget(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # Facts

    @property
    def id(self) -> str:
        """The name of this member in the group; it changes when the member has to rejoin."""
        return self._id

    @property
    def assignment(self) -> tuple[int, ...]:
        """The partitions of this member, as of its last poll."""
        return tuple(sorted(self._positions.owned))

    @property
    def position(self) -> dict[int, int]:
        """The offset to be polled next in each partition."""
        with self._lock:
            return dict(sorted(self._positions.offsets.items()))

    def lag(self) -> Lag:
        """How far this member is behind the end of its partitions."""
        with self._lock:
            offsets = self._positions.offsets
            return Lag.total(self._reads.behind(partition, offset) for partition, offset in offsets.items())

    # Heartbeats and assignment

    def heartbeat(self) -> None:
        """Send a heartbeat, remove dead members, release partitions that are to move. For the heartbeat thread."""
        # A failure is not lost: if it persists, the member expires, and its next commit raises `Fenced`; its next poll
        # raises the same error.
        try:
            self._heartbeats.heartbeat(self._id)
            with self._lock:
                if not self._left and self._id in self._ledger.current().members:
                    self._evict_dead()
                    self._release_committed()
        except (MainstemError, OSError):
            return

    def _join(self) -> None:
        # A new id each time, so that the old one stays fenced.
        member = uuid.uuid4().hex[:16]
        process = self._processes.this_process()
        # Before the entry, so that every member in the state has sent a heartbeat.
        self._heartbeats.heartbeat(member)
        self._id = member

        def decision(state: GroupState, now: int) -> tuple[list[dict[str, object]], None]:
            offsets = self._start_offsets(state)
            dead = dead_members(state, now, self._heartbeats, self._processes)
            return decisions.join(
                state, member, process=process, session=self._session, offsets=offsets, dead=dead
            ), None

        self._ledger.decide(decision)
        self._positions.keep([])
        self._catch_up()

    def _start_offsets(self, state: GroupState) -> dict[int, int]:
        """Where to start in partitions that the group does not have yet. Partitions added later are read from the
        start."""
        new = [partition for partition in range(self._reads.partitions()) if partition not in state.committed]
        if not new:
            return {}
        offsets = offsets_at("earliest", self._reads, new)
        return offsets if state.opened_at is not None else offsets | offsets_at(self._start, self._reads, new)

    def _catch_up(self) -> None:
        """Apply the decisions of the group: rejoin if this member was removed, drop lost partitions, start new ones."""
        state = self._ledger.current()
        if self._id not in state.members:
            self._join()
            return
        if self._reads.partitions() > state.partitions:
            self._ledger.decide(lambda state, now: (decisions.grow(state, self._start_offsets(state)), None))
            state = self._ledger.current()
        self._generation = state.generation
        owned = {partition: state.owned_since[partition] for partition in state.owned_by(self._id)}
        for partition in self._positions.set_owned(owned):
            if not self._is_unsettled(partition):
                state = self._ledger.current()
                self._positions.start(partition, state.committed[partition], state.cleaned.get(partition, 0))

    def _is_unsettled(self, partition: int) -> bool:
        """Whether a transaction may still move this partition's offset; records the outcome of those that ended."""
        for transaction in self._ledger.current().transactions_on(partition):
            outcome = "open" if self._outcomes is None else self._outcomes.outcome(transaction)
            if outcome == "open":
                return True
            self._ledger.decide(
                lambda state, now, transaction=transaction, outcome=outcome: (  # type: ignore[misc]
                    decisions.settle(state, transaction, outcome),
                    None,
                )
            )
        return False

    def _find_uncommitted(self) -> dict[int, int]:
        return self._positions.find_uncommitted(self._ledger.current().committed)

    def _partitions_to_release(self) -> list[int]:
        return self._ledger.current().partitions_to_release(self._id)

    def _release_committed(self) -> None:
        """Release the partitions that others wait for, if all rows polled from them are committed."""
        if handed_over := self._partitions_to_release():
            uncommitted = self._find_uncommitted()
            self._release([partition for partition in handed_over if partition not in uncommitted])

    def _release(self, partitions: list[int]) -> None:
        if not partitions:
            return
        self._ledger.decide(lambda state, now: (decisions.release(state, self._id, partitions), None))
        self._positions.keep(self._ledger.current().owned_by(self._id))

    def _evict_dead(self) -> bool:
        """Remove dead members; whether there were any."""

        def decision(state: GroupState, now: int) -> tuple[list[dict[str, object]], set[str]]:
            dead = dead_members(state, now, self._heartbeats, self._processes) - {self._id}
            return decisions.evict(state, dead), dead

        evicted = self._ledger.decide(decision)
        for member in evicted:
            self._heartbeats.forget(member)
        return bool(evicted)

    def _other_processes(self) -> list[Identity]:
        members = self._ledger.current().members.values()
        return [member.process for member in members if member.id != self._id and member.process is not None]

    def _check_process(self) -> None:
        # Before taking the lock: a thread of the parent may have held it.
        self._process.check(f'a member of group "{self.group}"', "Open the log and join the group in this process.")

    def _check_not_left(self) -> None:
        if self._left:
            raise Invalid(
                f'this member has left group "{self.group}"',
                detail="A member leaves at the end of its with block, or by leave().",
                hint=f'Join again: topic.join_group("{self.group}").',
            )


def dead_members(state: GroupState, now: int, heartbeats: Heartbeats, processes: Processes) -> set[str]:
    """The members whose process has ended, or that have sent no heartbeat for longer than their session."""
    dead = set()
    for member in state.members.values():
        age = heartbeats.age(member.id)
        silent_for = now - member.joined_at if age is None else age
        ended = member.process is not None and not processes.alive(member.process)
        if ended or silent_for > member.session:
            dead.add(member.id)
    return dead
