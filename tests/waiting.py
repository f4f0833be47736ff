"""Waiting for something that happens in another thread, process or server and cannot be waited for itself."""

import threading
import time
from collections.abc import Callable

__all__ = ["SECONDS_MAX", "wait_until"]

# Nothing takes this long unless it hangs, however busy the machine is.
SECONDS_MAX = 300
# Between two looks: a short while at first, longer the longer it takes.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.001, 0.05


def wait_until(happened: Callable[[], object], seconds_max: float = SECONDS_MAX) -> None:
    """Look again and again until it has happened; a test that waits in vain fails."""
    never, pause, deadline = threading.Event(), PAUSE_SECONDS_MIN, time.monotonic() + seconds_max
    while not happened():
        assert time.monotonic() < deadline, f"it has not happened in {seconds_max} seconds"
        never.wait(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
