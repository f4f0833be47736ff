"""A query that would run for days, and Ctrl-C pressed once it runs."""

import os
import signal
import threading

ENDLESS = "SELECT sum(a.range * b.range) AS n FROM range(100000000) a, range(100000000) b"


def queries() -> list[threading.Thread]:
    """The threads in which queries run."""
    return [thread for thread in threading.enumerate() if thread.name == "mainstem-query"]


def interrupt_a_query() -> None:
    """Wait until a query runs, then press Ctrl-C."""
    while not queries():
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGINT)
