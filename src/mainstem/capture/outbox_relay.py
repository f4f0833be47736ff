"""OutboxRelay: messages of an outbox, read from the source's log, go into their topics."""

from __future__ import annotations

from mainstem.capture.capture_log import CaptureLog
from mainstem.capture.source import Changes

__all__ = ["OutboxRelay"]


class OutboxRelay:
    """Appends messages as a part of the capture's transaction."""

    def __init__(self, log: CaptureLog) -> None:
        self._log = log

    def append(self, changes: Changes) -> None:
        """Append the inserted messages."""
        raise NotImplementedError
