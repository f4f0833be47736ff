"""A query that would run for days, and Ctrl-C pressed once it runs."""

import os
import signal
import threading

ENDLESS = "SELECT sum(a.range * b.range) AS n FROM range(100000000) a, range(100000000) b"


def queries() -> list[threading.Thread]:
    """The threads in which queries run."""
    return [thread for thread in threading.enumerate() if thread.name == "mainstem-query"]


def interrupt_a_query() -> None:
    """Wait until a query runs that did not run before, then press Ctrl-C."""
    before = queries()
    while not set(queries()) - set(before):
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGINT)
