"""Appends of many threads that share one write and one fsync.

The first thread that arrives when none waits becomes the next leader: it takes the lock, collects all waiting appends
and its own, commits them together and wakes their threads, which never take the lock themselves. Under load, threads
that were just acknowledged append again within microseconds, so the leader waits a moment for half of them: an fsync
costs more than that. A single thread never waits.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from mainstem.errors import AppendConflict, Fenced, Unavailable
from mainstem.log.embedded.write.block import DATA, MARKERS
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition_state import StateScan
from mainstem.log.sequence_runs import NO_SEQUENCE
from mainstem.log.watermark import NO_TIME

__all__ = []


# An append on its way to one partition.


@dataclass(slots=True)
class Pending:
    """One append to one partition on its way, and afterwards where it lies."""

    payload: pa.Buffer | bytes
    count: int
    kind: int = DATA
    flags: int = 0
    schema_version: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = NO_SEQUENCE
    parts: int = 0
    partitions: int = 0
    dense: int = 0
    transaction: int = 0
    event_time_max: int = NO_TIME
    stated_watermark: int = NO_TIME
    expected: int | None = None  # append only if the partition ends here
    check: Callable[[], None] | None = None  # raises if the append may not be, asked under the lock
    payload_crc: int = 0

    base_offset: int = -1
    end_offset: int = -1
    appended_at: int = 0
    duplicate: bool = False
    epoch: int = 0
    settled: bool = False
    error: BaseException | None = None


# Whether an append may be written, decided under the partition's write lock.


def admit(pending: Pending, tail: End, scan: StateScan | None, title: str) -> bool:
    """Whether to write it: not if it is there already. Raises if it may not be written."""
    if pending.expected is not None and pending.expected != tail.offset:
        raise AppendConflict(
            f"{title} does not end at offset {pending.expected}",
            detail=f"It ends at {tail.offset}: another append came first.",
            hint="Read the new records, decide again, and append with the new end.",
        )
    if pending.check is not None:
        pending.check()
    if pending.kind in MARKERS:
        # The owner of a transaction and somebody who settles it may both come to write its marker.
        assert scan is not None
        pending.duplicate = pending.transaction not in scan.state.open
        return not pending.duplicate
    if not pending.producer_id:
        return True
    assert scan is not None
    known = scan.state.producers.get(pending.producer_id)
    if known is None:
        return True
    if known.epoch > pending.producer_epoch:
        raise Fenced(
            f"a newer run of this producer has appended to {title}",
            detail=f"This run has epoch {pending.producer_epoch}, the newer one {known.epoch}.",
            hint="Only one run of a producer may append: stop this one, or open the producer again to fence the other.",
            epoch=pending.producer_epoch,
            current_epoch=known.epoch,
        )
    if pending.kind == DATA and pending.count and pending.sequence <= known.kept:
        pending.duplicate = True
        pending.appended_at, pending.epoch = known.appended_at, tail.epoch
        if pending.sequence == known.kept:
            pending.base_offset, pending.end_offset = known.base_offset, known.end_offset
        return False
    return True


# Long enough for some ten threads to get through the interpreter, short beside any disk's fsync under load.
GATHER_SECONDS_MAX = 0.002

# A thread that was interrupted may have left without waking another: then that one looks for itself.
LOOK_SECONDS = 0.1


class Settling(Protocol):
    """Something that waits to be committed: when settled it has a result, or the error to raise."""

    settled: bool
    error: BaseException | None


P = TypeVar("P", bound=Settling)

_all: weakref.WeakSet[GroupCommit] = weakref.WeakSet()  # type: ignore[type-arg]


class _Waiter(Generic[P]):
    """A thread with its append: its bell rings when the append is settled, or when it is the one to lead."""

    __slots__ = ("bell", "pending")

    def __init__(self, pending: P) -> None:
        self.pending = pending
        self.bell: threading.Lock | None = None

    def ring(self) -> None:
        if self.bell is not None:
            with suppress(RuntimeError):  # it rang already
                self.bell.release()


class GroupCommit(Generic[P]):
    """One per partition and process. Thread-safe."""

    def __init__(self, commit: Callable[[list[P]], None]) -> None:
        self._commit = commit
        self.renew_in_child()
        _all.add(self)

    def renew_in_child(self) -> None:
        """Reset: a forked child has none of its parent's threads, so none of their appends."""
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[_Waiter[P]] = []
        # About how many threads append at present: what a leader goes by when it waits for others.
        self._company = 1
        self._wanted = 0
        self._gathered: threading.Lock | None = None
        self._refusal: Callable[[], Exception] | None = None

    def close(self, refusal: Callable[[], Exception]) -> None:
        """Wait for appends in progress, and refuse new ones."""
        with self._turn:
            self._refusal = refusal

    def submit(self, pending: P) -> None:
        """Returns when `pending` is committed; raises when it could not be."""
        waiter = _Waiter(pending)
        try:
            with self._guard:
                if self._waiting:
                    waiter.bell = _silent_bell()
                self._waiting.append(waiter)
                if self._gathered is not None and len(self._waiting) >= self._wanted:
                    self._gathered.release()
                    self._gathered = None
            if waiter.bell is not None:
                waiter.bell.acquire(timeout=LOOK_SECONDS)
            if not pending.settled:
                # Held by `with` and never handed on, so that an interrupted thread cannot take it along.
                with self._turn:
                    if self._refusal is not None and not pending.settled:
                        raise self._refusal()
                    if not pending.settled:
                        self._lead(pending)
        except BaseException:
            self._leave(waiter)
            raise
        if pending.error is not None:
            raise pending.error

    def _lead(self, own: P) -> None:
        in_time = self._gather()
        with self._guard:
            group, self._waiting = self._waiting, []
        try:
            self._carry([waiter.pending for waiter in group], own)
        finally:
            for waiter in group:
                waiter.ring()
        with self._guard:
            present = len(group) + len(self._waiting)
            # One fewer each time, since some of those who are gone for the moment are on their way back.
            self._company = max(present, self._company - 1) if in_time else present

    def _gather(self) -> bool:
        """Wait a moment for half of those who append at present; whether they came."""
        with self._guard:
            self._wanted = self._company // 2
            if len(self._waiting) >= self._wanted:
                return True
            gathered = self._gathered = _silent_bell()
        came = gathered.acquire(timeout=GATHER_SECONDS_MAX)
        with self._guard:
            self._gathered = None
        return came

    def _carry(self, group: list[P], own: P) -> None:
        # Not among those who wait, though not settled: the leader that had taken it was interrupted.
        own.error = None if any(pending is own for pending in group) else _for_another_thread(KeyboardInterrupt())
        try:
            if group:
                self._commit(group)
        except BaseException as error:
            for pending in group:
                if not pending.settled:
                    pending.error = error if pending is own else _for_another_thread(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for pending in (own, *group):
                pending.settled = True

    def _leave(self, waiter: _Waiter[P]) -> None:
        """Interrupted: what nobody has taken yet nobody may take later, and somebody else is the one to lead."""
        with self._guard:
            self._waiting = [other for other in self._waiting if other is not waiter]
            if self._waiting:
                self._waiting[0].ring()


def _silent_bell() -> threading.Lock:
    """A lock that is taken: to acquire it waits until somebody releases it, once."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def _for_another_thread(error: BaseException) -> Exception:
    """The error as another thread may raise it: an object of its own, since raising writes into it."""
    if not isinstance(error, Exception):
        return Unavailable(
            "the thread that committed this append was interrupted",
            detail=f"That thread raised {type(error).__name__}. The append was not acknowledged.",
            hint="Append again.",
        )
    try:
        other = copy.copy(error)
    except Exception:  # noqa: BLE001 - a foreign error that cannot be copied is better shared than lost
        return error
    other.__cause__ = error.__cause__
    return other


def _renew_in_child() -> None:
    for group in list(_all):
        group.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)
