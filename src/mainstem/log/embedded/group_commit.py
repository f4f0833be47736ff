"""Appends of many threads that share one write and one fsync.

One thread leads: it takes every append that waits, its own among them, and carries all of them through, while the
others sleep. Then it wakes those whose appends are settled, and the first of those that came meanwhile leads on. When
more threads are on their way than wait, the leader lets them catch up for a moment: an fsync costs more than that. A
single thread never waits.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from mainstem.errors import Unavailable

# Long enough for some ten threads to get through the interpreter, short beside any disk's fsync under load.
GATHER_SECONDS_MAX = 0.002


class Settling(Protocol):
    """Something that waits to be committed: when settled it has a result, or the error to raise."""

    settled: bool
    error: BaseException | None


P = TypeVar("P", bound=Settling)

_all: weakref.WeakSet[GroupCommit] = weakref.WeakSet()  # type: ignore[type-arg]


class _Waiter(Generic[P]):
    """A thread that waits for its append to be settled, or to lead."""

    __slots__ = ("pending", "woken")

    def __init__(self, pending: P) -> None:
        self.pending = pending
        self.woken = threading.Lock()
        self.woken.acquire()


class GroupCommit(Generic[P]):
    """One per partition and process. Thread-safe."""

    def __init__(self, commit: Callable[[list[P]], None]) -> None:
        self._commit = commit
        self.renew_in_child()
        _all.add(self)

    def renew_in_child(self) -> None:
        """Begin anew: a forked child has none of its parent's threads, so none of their appends."""
        self._waiting: list[_Waiter[P]] = []
        self._leader: _Waiter[P] | None = None
        self._arrived = threading.Condition(threading.Lock())
        self._inside: set[int] = set()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around everything a thread does for an append: it makes the others wait for it a moment."""
        thread = threading.get_ident()
        if thread in self._inside:  # a thread is asked about itself alone, so no lock is needed
            yield
            return
        with self._arrived:
            self._inside.add(thread)
        try:
            yield
        finally:
            with self._arrived:
                self._inside.discard(thread)
                self._arrived.notify()

    def submit(self, pending: P) -> None:
        """Returns when `pending` is committed; raises when it could not be."""
        waiter = _Waiter(pending)
        with self._arrived:
            self._waiting.append(waiter)
            if self._leader is None:
                self._leader = waiter
            else:
                self._arrived.notify()
        try:
            if self._leader is not waiter:
                waiter.woken.acquire()
            if self._leader is waiter:
                self._lead(waiter)
        except BaseException:
            # Interrupted: what nobody has taken yet nobody may take later, when its thread has gone on.
            with self._arrived:
                self._waiting = [other for other in self._waiting if other is not waiter]
                if self._leader is waiter:
                    self._hand_over()
            raise
        if pending.error is not None:
            raise pending.error

    def _lead(self, own: _Waiter[P]) -> None:
        with self._arrived:
            if not self._gathered():
                self._arrived.wait_for(self._gathered, GATHER_SECONDS_MAX)
            group, self._waiting = self._waiting, []
        try:
            self._commit([waiter.pending for waiter in group])
        except BaseException as error:
            for waiter in group:
                if not waiter.pending.settled:
                    waiter.pending.error = error if waiter is own else _for_another_thread(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._arrived:
                for waiter in group:
                    waiter.pending.settled = True
                self._hand_over()
            for waiter in group:
                if waiter is not own:
                    waiter.woken.release()

    def _gathered(self) -> bool:
        return len(self._waiting) * 2 >= len(self._inside)

    def _hand_over(self) -> None:
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.woken.release()


def _for_another_thread(error: BaseException) -> Exception:
    """The error as another thread may raise it: an object of its own, since raising writes into it."""
    if not isinstance(error, Exception):
        return Unavailable(
            "the append was carried by a thread that was interrupted",
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
