"""Ctrl-C at a moment when it does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupt_afterwards"]


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """A Ctrl-C inside takes effect at the end, so that one knows what was done; a second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread alone.
        yield
        return
    wanted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal wanted
        if wanted:
            raise KeyboardInterrupt
        wanted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if wanted:
        raise KeyboardInterrupt
