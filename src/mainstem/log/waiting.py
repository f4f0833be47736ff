"""Waiting for a server that does not answer: said by name and address to whoever runs the program, and tried again.

What is said goes to the logger "mainstem.waiting". Where nobody has configured logging, Python writes it to standard error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from mainstem.clock import Clock
from mainstem.errors import Unavailable, summary_of
from mainstem.log.backoff import Backoff

__all__ = ["LOGGER", "PATIENCE", "patiently"]

LOGGER = logging.getLogger("mainstem.waiting")
# As long as a server takes to be started again, by a person or by what watches it.
PATIENCE = timedelta(seconds=30)
RETRY = Backoff("500 milliseconds", max="8 seconds", growth="exponential")

T = TypeVar("T")


def patiently(
    ask: Callable[[], T],
    *,
    worth_it: Callable[[Unavailable], bool],
    clock: Clock,
    patience: timedelta = PATIENCE,
) -> T:
    """What `ask` gives, as soon as the server behind it answers; raises its error when patience is over.

    `worth_it` says of an error whether it may pass: a password that is refused will be refused again.
    """
    deadline = clock.monotonic() + patience // timedelta(microseconds=1)
    pause = threading.Event()
    attempts = 0
    while True:
        try:
            return ask()
        except Unavailable as error:
            if not worth_it(error) or clock.monotonic() >= deadline:
                raise
            attempts += 1
            LOGGER.warning("%s; trying again", summary_of(error))
        pause.wait(RETRY.delay(attempts).total_seconds())
