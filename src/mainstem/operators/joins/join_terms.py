"""JoinTerms: which rows of two streams meet, until when, and what is shown of them.

A left row at time t meets the right rows of its key from t - before to t + after. From then on, when the watermark is past
t + after, its time is *up*: if it met nobody and the join shows such rows, it is shown alone. `lateness` later it meets
nobody any more.

              t - before          t           t + after          t + after + lateness
    ---------------|--------------|---------------|-----------------------|----------> watermark when the partner came
                                    the pair            the pair, and what    too late: told in <flow>.late
                                                        was shown is taken back

Whether two rows make a pair depends on their times and their own watermarks alone, never on what was read first: both must
have come before the other's time was up by more than `lateness`. So rows are kept until nobody can come any more for whom they
count: to be met, and, a span of `before` and `after` longer, to be named to somebody who came too late for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mainstem.operators.joins.pairing import shifted
from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array

__all__ = ["HOW", "LEFT", "RIGHT", "How", "JoinTerms"]

How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOW: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class JoinTerms:
    """In microseconds. Without bounds (None) rows meet whatever their times are, and are kept for ever."""

    how: How
    before: int | None
    after: int | None
    lateness: int = 0
    # How many others a row may meet when it comes.
    limit: int = 10_000

    @property
    def bounded(self) -> bool:
        return self.before is not None

    @property
    def span(self) -> int:
        """From the first to the last that a row meets."""
        return (self.before or 0) + (self.after or 0)

    @property
    def behind(self) -> int:
        """By how much the event times of results may be behind the watermark."""
        return max(self.before or 0, self.after or 0)

    def follows(self, side: int) -> bool:
        """Whether it must be known of the rows of a side if they have met anybody."""
        return self.how in (("left", "full", "semi", "anti") if side == LEFT else ("right", "full"))

    def shows_alone(self, side: int) -> bool:
        """Whether a row of a side that met nobody is shown."""
        return self.how != "semi" and self.follows(side)

    def range_of(self, side: int, times: Int64Array) -> tuple[Int64Array, Int64Array]:
        """From when to when the others are that rows of a side meet."""
        if self.before is None or self.after is None:
            # A row without a time has NO_TIME, the lowest number there is: nothing may lie below the range.
            return np.full(len(times), NO_TIME), np.full(len(times), NEVER)
        before, after = (self.before, self.after) if side == LEFT else (self.after, self.before)
        return shifted(times, -before), shifted(times, after)

    def up(self, side: int, times: Int64Array) -> Int64Array:
        """When the time of rows of a side is up: the last moment of what they meet."""
        return self.range_of(side, times)[1]

    def closed(self, side: int, times: Int64Array) -> Int64Array:
        """The last watermark with which another row can come to meet them."""
        return shifted(self.up(side, times), self.lateness) if self.bounded else np.full(len(times), NEVER)

    def forgotten(self, side: int, times: Int64Array) -> Int64Array:
        """At which watermark they are needed no more."""
        return shifted(self.closed(side, times), self.span + 1) if self.bounded else np.full(len(times), NEVER)

    def hopeless(self, times: Int64Array, watermarks: Int64Array) -> Any:
        """Whether rows come too late for everybody, known or not."""
        if not self.bounded:
            return np.zeros(len(times), np.bool_)
        return watermarks > shifted(times, self.span + self.lateness)
