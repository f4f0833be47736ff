"""Clocks: the only module that reads the time.

Code that needs the time takes a `Clock`, so that a test can pass a `ManualClock` and control time itself. Inside
Mainstem a time is an integer, microseconds since 1970 in UTC; users see a datetime with a zone.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from mainstem.arguments import show_value
from mainstem.durations import Duration, parse_duration
from mainstem.errors import Invalid

__all__ = ["Clock", "ManualClock", "SystemClock", "as_datetime", "as_us"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """Three clocks, all in microseconds."""

    def now(self) -> int:
        """The wall clock since 1970, UTC. It can be set, also back."""

    def boot(self) -> int:
        """Time since boot, with sleep. It cannot be set, so it bounds `now`."""

    def monotonic(self) -> int:
        """Monotonic time, for timeouts and measurements."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def boot(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000


class ManualClock:
    """A clock that moves only when a test moves it. Thread-safe.

    >>> clock = ManualClock()
    >>> as_datetime(clock.now()).isoformat()
    '2026-01-01T00:00:00+00:00'
    >>> clock.advance("90 seconds")
    >>> as_datetime(clock.now()).isoformat()
    '2026-01-01T00:01:30+00:00'

    `set` changes the wall clock only.

    >>> boot = clock.boot()
    >>> clock.set(datetime(2036, 1, 1, tzinfo=UTC))
    >>> clock.boot() == boot
    True
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = as_us(start)
        # Not zero, so that a test notices when two clocks are confused.
        self._boot = 1_000_000_000
        self._monotonic = 500_000_000

    def now(self) -> int:
        return self._now

    def boot(self) -> int:
        return self._boot

    def monotonic(self) -> int:
        return self._monotonic

    def advance(self, duration: Duration) -> None:
        """Advance all three clocks."""
        passed = parse_duration(duration) // _MICROSECOND
        with self._lock:
            self._now += passed
            self._boot += passed
            self._monotonic += passed

    def set(self, moment: datetime) -> None:
        """Set the wall clock only, forwards or back."""
        with self._lock:
            self._now = as_us(moment)


def as_datetime(us: int) -> datetime:
    """The datetime, in UTC, of microseconds since 1970.

    >>> as_datetime(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return _EPOCH + timedelta(microseconds=us)


def as_us(moment: datetime) -> int:
    """Microseconds since 1970 of a datetime with a time zone; one without is refused as ambiguous.

    >>> as_us(datetime(1970, 1, 1, 1, tzinfo=UTC))
    3600000000
    """
    if not isinstance(moment, datetime):
        raise Invalid(
            f"{show_value(moment)} is not a time",
            detail=f"It is of type {type(moment).__name__}.",
            hint="Give a datetime with a zone: datetime(2026, 1, 1, tzinfo=UTC).",
        )
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise Invalid(
            f'time "{moment.isoformat(sep=" ")}" has no time zone',
            detail="Without a time zone it does not name one moment.",
            hint="Give it one: datetime(..., tzinfo=UTC), or moment.astimezone(UTC) if it was this machine's local time.",
        )
    return (moment - _EPOCH) // _MICROSECOND
