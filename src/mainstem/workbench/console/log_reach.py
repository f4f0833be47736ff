"""LogReach: whether the brokers of a home's log answer. While they do not, nobody waits for them.

Without it every question of every page would wait for the brokers until its own deadline, one after the other. So the first
that waits in vain notes the error; from then on one at a time tries, and all others are told at once. A log in the home
itself is always reached.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from mainstem.errors import BrokerUnavailable
from mainstem.log.log import Log

__all__ = ["LogReach"]

# A program waits for its brokers; somebody who watches wants to know that they are away.
PATIENCE_SECONDS = 3.0
# Between two attempts.
PAUSE_US = 1_000_000


@runtime_checkable
class _OnBrokers(Protocol):
    def limit_patience(self, seconds: float) -> None: ...


class LogReach:
    """The log of a console, as far as it is reached. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._guard = threading.Lock()
        self._away: BrokerUnavailable | None = None
        self._again_at = 0
        if isinstance(log, _OnBrokers):
            log.limit_patience(PATIENCE_SECONDS)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, the log is read; raises `BrokerUnavailable` at once if it is known to be away."""
        try:
            if self._may_try():
                # Also for those who read something else.
                self._log.topic_names()
                self._note(None)
            yield
        except BrokerUnavailable as error:
            self._note(error)
            raise

    def _may_try(self) -> bool:
        """Whether the caller has to find out if the brokers are back."""
        with self._guard:
            if self._away is None:
                return False
            if self._log.clock.monotonic() < self._again_at:
                raise self._away.with_traceback(None)
            self._again_at = self._log.clock.monotonic() + int(PATIENCE_SECONDS * 1_000_000) + PAUSE_US
            return True

    def _note(self, error: BrokerUnavailable | None) -> None:
        with self._guard:
            if error is None or error is not self._away:
                self._away = error
                self._again_at = self._log.clock.monotonic() + PAUSE_US
