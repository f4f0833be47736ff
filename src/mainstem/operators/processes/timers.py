"""Timers: what a user's own operator asks to be woken for, one key at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from mainstem.clock import as_datetime, as_us
from mainstem.errors import Invalid
from mainstem.operators.stage.engine import NEVER, BatchClock
from mainstem.operators.stage.stage_task import END_OF_TIME

__all__ = ["Timer", "Timers"]

# The last moment that a datetime can name; over a table the clock stands later than that.
_LAST = as_us(datetime.max.replace(tzinfo=UTC))


@dataclass(frozen=True, order=True)
class Timer:
    """When a key is to be woken, in microseconds, and what it called that. Ordered as they go off."""

    kind: Literal["event", "processing"]
    at: int
    name: str


class Timers:
    """The timers of one key: set, moved and cancelled by name. A name is one timer, of either kind.

    >>> from datetime import UTC, datetime
    >>> timers = Timers({}, BatchClock(now=0))
    >>> timers.set_event("close", datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
    >>> timers.set_event("close", datetime(2026, 1, 1, 12, 45, tzinfo=UTC))
    >>> timers.cancel("close"), timers.cancel("close")
    (True, False)
    """

    def __init__(self, set_before: dict[str, Timer], clock: BatchClock) -> None:
        self.by_name = dict(set_before)
        self._clock = clock
        # The earliest in event time, looked at before every row.
        self.next_event = _earliest(self.by_name)

    @property
    def now(self) -> datetime:
        """The time of day, as it was written down for the batch: a batch that is done again sees the same."""
        return as_datetime(max(0, min(self._clock.now, _LAST)))

    @property
    def ended(self) -> bool:
        """Whether no more rows can come, as over a table: then every timer goes off, whatever it waits for."""
        return self._clock.watermark >= END_OF_TIME

    def set_event(self, name: str, at: datetime) -> None:
        """Wake this key when the watermark reaches `at`."""
        self._set("event", name, at)

    def set_processing(self, name: str, at: datetime) -> None:
        """Wake this key when the clock on the wall reaches `at`."""
        self._set("processing", name, at)

    def cancel(self, name: str) -> bool:
        """Let go of a timer; whether there was one."""
        found = self.by_name.pop(name, None)
        self.next_event = _earliest(self.by_name)
        return found is not None

    def _set(self, kind: Literal["event", "processing"], name: str, at: datetime) -> None:
        if not isinstance(name, str) or not isinstance(at, datetime):
            raise Invalid(
                f"a timer {name!r} cannot be set to {at!r}",
                detail="A timer has a name, and a datetime with a zone at which it goes off.",
                hint='For example: timers.set_event("close", row["at"] + timedelta(minutes=30)).',
            )
        self.by_name[name] = Timer(kind, as_us(at), name)
        self.next_event = _earliest(self.by_name)


def _earliest(timers: dict[str, Timer]) -> int:
    return min((timer.at for timer in timers.values() if timer.kind == "event"), default=NEVER)
