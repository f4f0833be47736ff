"""Backoff: the delay before a retry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from mainstem.arguments import check_choice, checked_calls
from mainstem.clock import Clock
from mainstem.durations import Duration, parse_duration, show_duration
from mainstem.errors import Invalid, Unavailable, summary_of

__all__ = ["Backoff", "LOGGER", "PATIENCE", "call_with_retries"]

_GROWTHS = ("linear", "exponential")


@checked_calls
@dataclass(frozen=True, init=False)
class Backoff:
    """The delay before the next delivery: `first`, growing with every delivery, at most `max`.

    Linear growth adds `first` each time, as RabbitMQ's delayed retry does; exponential growth doubles.

    >>> retry = Backoff("1 second", max="1 minute")
    >>> str(retry.delay(1)), str(retry.delay(3)), str(retry.delay(1000))
    ('0:00:01', '0:00:03', '0:01:00')
    >>> str(Backoff("1 second", max="1 minute", growth="exponential").delay(5))
    '0:00:16'
    """

    first: timedelta
    max: timedelta
    growth: str = "linear"

    def __init__(self, first: Duration, *, max: Duration | None = None, growth: str = "linear") -> None:
        object.__setattr__(self, "first", parse_duration(first, setting="first"))
        # Without a maximum the delay is constant.
        object.__setattr__(self, "max", self.first if max is None else parse_duration(max, setting="max"))
        object.__setattr__(self, "growth", growth)
        check_choice(growth, "growth", _GROWTHS)
        if self.max < self.first:
            raise Invalid(
                f'max "{show_duration(self.max)}" is shorter than first "{show_duration(self.first)}"',
                detail="The delay begins with first and grows up to max.",
                hint=f'Use max="{show_duration(self.first)}" for a delay that stays the same.',
            )

    def delay(self, deliveries: int) -> timedelta:
        """The delay after the delivery with this number; the first delivery is number 1."""
        if deliveries < 1 or not self.first:
            return timedelta(0)
        # From this multiple of `first` on the maximum applies: nothing larger is computed.
        times_max = self.max // self.first + 1
        if self.growth == "linear":
            times = min(deliveries, times_max)
        else:
            times = 1 << min(deliveries - 1, times_max.bit_length())
        return min(self.first * min(times, times_max), self.max)

    def to_json(self) -> dict[str, Any]:
        """As JSON, in a queue's settings."""
        return {"first": show_duration(self.first), "max": show_duration(self.max), "growth": self.growth}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Backoff:
        """The backoff from JSON."""
        return cls(value["first"], max=value["max"], growth=value["growth"])

    def __str__(self) -> str:
        return f"{show_duration(self.first)} to {show_duration(self.max)}, {self.growth}"


# Waits for a server that does not answer: logs its name and address, and retries.
#
# The logger is "mainstem.waiting". Without a logging configuration, Python writes it to standard error.


LOGGER = logging.getLogger("mainstem.waiting")
# As long as a restart of a server takes.
PATIENCE = timedelta(seconds=30)
RETRY = Backoff("500 milliseconds", max="8 seconds", growth="exponential")

T = TypeVar("T")


def call_with_retries(ask: Callable[[], T], *, worth_it: Callable[[Unavailable], bool], clock: Clock) -> T:
    """The result of `ask`, retried until the server answers; raises the last error when the time is over.

    `worth_it` tells whether an error is worth a retry: a rejected password will be rejected again.
    """
    deadline = clock.monotonic() + PATIENCE // timedelta(microseconds=1)
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
