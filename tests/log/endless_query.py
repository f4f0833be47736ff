"""A query that would run for days, and Ctrl-C pressed once it runs."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import wait_until

ENDLESS = "SELECT sum(a.range * b.range) AS n FROM range(100000000) a, range(100000000) b"


def queries() -> list[threading.Thread]:
    """The threads in which queries run."""
    return [thread for thread in threading.enumerate() if thread.name == "mainstem-query"]


@contextmanager
def ctrl_c_in_a_query() -> Iterator[None]:
    """Ctrl-C is pressed as soon as a query runs that did not run before. For the main thread."""
    before, over = set(queries()), threading.Event()

    def press() -> None:
        wait_until(lambda: over.is_set() or set(queries()) - before)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    # A Spark session of this process has a handler of its own, which asks Java first.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        yield
    finally:
        over.set()
        pressing.join()
        signal.signal(signal.SIGINT, handler)
