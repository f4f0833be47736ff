"""TopicWaiter: sleeps until a record, a ledger entry, the end of a process, or a moment comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainstem.log.log import TopicBackend
from mainstem.log.processes import Identity
from mainstem.log.state_ledger import StateLedger

# However long one asks to wait: transactions left behind by a dead process are settled by those who wait for them.
WAIT_SECONDS_MAX = 1.0


class TopicWaiter:
    """Waits for one topic and one ledger. What happened since the last return counts too. For one thread."""

    def __init__(self, backend: TopicBackend, ledger: StateLedger[Any]) -> None:
        self._backend = backend
        self._waking = backend.waking(ledger)

    def wait(self, timeout_seconds: float, until: int | None, holders: Sequence[Identity]) -> None:
        seconds = min(timeout_seconds, WAIT_SECONDS_MAX)
        if until is not None:
            seconds = min(seconds, (until - self._backend.clock.now()) / 1_000_000)
        if seconds > 0 and not self._waking.wait(seconds, holders):
            self._backend.settle()
