"""TakeOverReport: what a take-over did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TakeOverReport"]


@dataclass(frozen=True, slots=True)
class TakeOverReport:
    """The processes that were ended, and what was taken over; two reports add up.

    >>> one = TakeOverReport(ended=("4711 (python)",), taken=('"orders" partition 0',))
    >>> print(one + TakeOverReport(taken=("transactions",)))
    took over "orders" partition 0, transactions; ended the stopped process 4711 (python)
    >>> print(TakeOverReport())
    nothing to take over: no lock is held by a stopped process
    """

    ended: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    def __add__(self, other: TakeOverReport) -> TakeOverReport:
        # A process may have held several locks.
        ended = dict.fromkeys(self.ended + other.ended)
        return TakeOverReport(tuple(ended), self.taken + other.taken)

    def __str__(self) -> str:
        if not self.taken:
            return "nothing to take over: no lock is held by a stopped process"
        words = "process" if len(self.ended) == 1 else "processes"
        ended = f"; ended the stopped {words} {', '.join(self.ended)}" if self.ended else "; no process had to be ended"
        return f"took over {', '.join(self.taken)}{ended}"
