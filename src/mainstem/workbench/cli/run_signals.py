"""Ctrl-C and the wish of the operating system that a run end, turned into a word the run heeds when it is ready."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["RunSignals", "heeded_signals"]


class RunSignals:
    """What has come so far."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._came = threading.Event()

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first one asks; a second one does not wait."""
        if self.wanted is not None:
            raise KeyboardInterrupt
        self.wanted = number
        self._came.set()

    def wait(self, seconds: float) -> bool:
        """True as soon as the run is to end."""
        return self._came.wait(seconds)

    @property
    def status(self) -> int:
        """The exit status of a process that ended because of it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.wanted is None else 128 + self.wanted


@contextmanager
def heeded_signals() -> Iterator[RunSignals]:
    """Inside, Ctrl-C and SIGTERM ask for an orderly end. To be entered after Spark is started: its own handler would
    cancel the batches under way, so that every flow would seem to have failed."""
    signals = RunSignals()
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread alone.
        yield signals
        return
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
