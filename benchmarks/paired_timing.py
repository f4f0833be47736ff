"""Two things timed against each other, in turns, since a machine is rarely ours alone.

What disturbs one disturbs the other a moment later, so the ratio of neighbours says more than two averages. Who goes
first changes each round, and the median leaves out the rounds in which only one of them was disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class PairedTiming:
    """The seconds that each took, round by round."""

    subject: Sequence[float]
    baseline: Sequence[float]

    @property
    def slowdown(self) -> float:
        """How many times as long as the baseline the subject takes."""
        return median(ours / theirs for ours, theirs in zip(self.subject, self.baseline, strict=True))

    @property
    def rate(self) -> float:
        """The subject's rate as a share of the baseline's, for the same work."""
        return 1 / self.slowdown

    @property
    def detail(self) -> str:
        """Both medians."""
        return f"{shown_seconds(median(self.subject))} against {shown_seconds(median(self.baseline))}"

    def facts(self) -> dict[str, float]:
        return {"subject_seconds": median(self.subject), "baseline_seconds": median(self.baseline)}


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def timed_in_turns(
    subject: Callable[[], object], baseline: Callable[[], object], *, rounds: int, warm_up: int = 1
) -> PairedTiming:
    """Run both in turns; the first rounds do not count."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(-warm_up, rounds):
        if number % 2:
            taken = seconds_of(subject)
            other = seconds_of(baseline)
        else:
            other = seconds_of(baseline)
            taken = seconds_of(subject)
        if number >= 0:
            ours.append(taken)
            theirs.append(other)
    return PairedTiming(ours, theirs)


def shown_seconds(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> shown_seconds(0.00012), shown_seconds(0.25)
    ('120 us', '250 ms')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
