"""BeatThread: calls a member's `beat` every so often, for as long as the member is there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["Beat", "BeatThread", "Beats"]


class Beats(Protocol):
    """When each member last gave a sign of life. Kept beside the ledger: a beat is too frequent to be an entry."""

    def beat(self, member: str) -> None:
        """This member lives."""

    def age(self, member: str) -> int | None:
        """How long ago (microseconds) this member last gave a sign of life; None if it never did.

        Measured by a clock that nobody can set (`Clock.boot`), else a changed time of day would kill members.
        """

    def forget(self, member: str) -> None:
        """This member is gone; nobody will ask for it again."""


class Beat(Protocol):
    """Something that beats until it is stopped."""

    def stop(self) -> None:
        """Beat no more. May be called twice."""


class BeatThread:
    """A daemon thread that calls `beat` at once and then every `seconds`.

    It holds `beat`'s object weakly: a member that was dropped without leaving stops beating, and the others take its
    partitions after its session.
    """

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self._beat = weakref.WeakMethod(beat)
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstem-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            beat = self._beat()
            if beat is None:
                return
            beat()
            # Not held while waiting, else the member could never be dropped.
            del beat
            self._stopped.wait(self._seconds)

    def stop(self) -> None:
        """Beat no more; returns once a beat under way is over, unless called from within it."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
