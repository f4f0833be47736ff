"""CaptureThreads: captures that run in this process, a thread each. If one of them fails, the others stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from mainstem.capture.capture import Capture
from mainstem.capture.capture_run import CaptureRun
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.errors import MainstemError
from mainstem.log.log import Log

__all__ = ["CaptureThreads"]

LOGGER = logging.getLogger("mainstem.capture")

# How often a stop request of another process is looked for.
LOOK_SECONDS = 0.5


class CaptureThreads:
    """The running captures. `tell` gets the status of each about once a second, from its thread. Thread-safe."""

    def __init__(
        self, log: Log, home: str, captures: Sequence[Capture], *, until: Literal["stopped", "idle"] = "stopped",
        tell: Callable[[CaptureStatus], None] = lambda status: None,
    ) -> None:  # fmt: skip
        self._log = log
        self._home = home
        self._until = until
        self._tell = tell
        self._ending = threading.Event()
        self._guard = threading.Lock()
        # The first error: others may follow from it.
        self.error: MainstemError | None = None
        self.statuses: dict[str, CaptureStatus] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name=f"mainstem-capture-{one.name}", daemon=True)
            for one in captures
        ]

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all stop after what they are committing; the next run continues there."""
        self._ending.set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until all have ended, but at most so long; whether they have."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, capture: Capture) -> None:
        files = StatusFile(self._home, capture.name)
        # One that was left for an earlier run.
        files.stop_requested()
        looked_at = time.monotonic()
        requested = False

        def stopped() -> bool:
            nonlocal looked_at, requested
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                requested = requested or files.stop_requested()
            return requested or self._ending.is_set()

        # Any error ends the run, and is raised where it was started.
        try:
            CaptureRun(self._log, self._home, capture, stopped=stopped, tell=self._take).run(self._until)
        except Exception as error:
            LOGGER.debug('capture "%s" failed', capture.name, exc_info=True)
            with self._guard:
                self.error = self.error or _explain(capture.name, error)
            self._ending.set()

    def _take(self, status: CaptureStatus) -> None:
        before = self.statuses.get(status.name)
        self.statuses[status.name] = status
        if status.alarm and not (before and before.alarm):
            LOGGER.warning('capture "%s": %s', status.name, status.alarm_text)
        self._tell(status)


def _explain(capture: str, error: Exception) -> MainstemError:
    if isinstance(error, MainstemError):
        vars(error).setdefault("capture", capture)
        return error
    first = str(error).splitlines()[0] if str(error) else "no message"
    found = MainstemError(
        f'capture "{capture}" failed',
        detail=f"{type(error).__name__}: {first.rstrip('.')}.",
        hint="Nothing is lost: the next run continues after the last position in the log.",
        capture=capture,
    )
    found.__cause__ = error
    return found
