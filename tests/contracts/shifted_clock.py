"""A clock that runs like the machine's and can be moved on: an hour's lease ends at once, and a wait still ends."""

from datetime import timedelta

from mainstem.clock import SystemClock
from mainstem.durations import Duration, duration_us


class ShiftedClock:
    """The machine's clocks, all three ahead by as much as they were advanced. Tests leave margins of minutes."""

    def __init__(self) -> None:
        self._machine = SystemClock()
        self._ahead = 0
        self._set = 0

    def now(self) -> int:
        return self._machine.now() + self._ahead + self._set

    def boot(self) -> int:
        return self._machine.boot() + self._ahead

    def monotonic(self) -> int:
        return self._machine.monotonic() + self._ahead

    def advance(self, duration: Duration) -> None:
        """Let time pass, on all three clocks."""
        self._ahead += duration_us(duration, setting="duration")

    def set_by(self, change: timedelta) -> None:
        """Somebody changes the time of day alone, forwards or back."""
        self._set += change // timedelta(microseconds=1)
