"""Triggers: when a window's result is emitted before and after the watermark has passed its end.

A trigger is a value: after how many rows it fires, and after which periods. Both count from the last pane; a result
that was unchanged counts as emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mainstem.arguments import check_choice
from mainstem.durations import Duration, duration_us, show_span
from mainstem.errors import Invalid
from mainstem.operators.stage.engine import NEVER, NO_TIME

__all__ = ["Period", "Trigger", "after_rows", "each_row", "every", "first_of"]

_SINCE = ("epoch", "first row")


@dataclass(frozen=True)
class Period:
    """A span of processing time, in microseconds: up to its next multiple since 1970, or from the first new row."""

    length: int
    aligned: bool

    def due(self, came: int) -> int:
        """When rows that arrived at a time are to be emitted."""
        return (came // self.length + 1) * self.length if self.aligned else came + self.length


@dataclass(frozen=True)
class Trigger:
    """Fires after a number of rows since the last pane, or when one of the periods has passed; whichever is first."""

    rows: int | None = None
    periods: tuple[Period, ...] = ()

    def due(self, came: int) -> int:
        """When rows that arrived at a time are to be emitted at the latest; NEVER if time does not matter."""
        if not self.periods or came == NO_TIME:
            return NEVER
        return min(NEVER, *(period.due(came) for period in self.periods))

    @property
    def title(self) -> str:
        """As a person reads it.

        >>> first_of(every("1 minute"), after_rows(100)).title
        'every 1 minute or after 100 rows'
        """
        parts = [
            f"every {show_span(period.length)}{'' if period.aligned else ' since the first row'}"
            for period in self.periods
        ]
        if self.rows is not None:
            parts.append("each row" if self.rows == 1 else f"after {self.rows} rows")
        return " or ".join(parts)

    def describe(self) -> dict[str, Any]:
        periods = [[period.length, "epoch" if period.aligned else "first row"] for period in self.periods]
        return {"rows": self.rows, "periods": periods}


def every(period: Duration, *, since: str = "epoch") -> Trigger:
    """Emit changed results once in each period of processing time.

    Periods are aligned to 1970, so that all windows are emitted at the same time; with `since="first row"` a period starts
    at the first row that was not emitted yet.

    >>> every("1 minute").due(90_000_000)
    120000000
    >>> every("1 minute", since="first row").due(90_000_000)
    150000000
    """
    check_choice(since, "since", _SINCE)
    length = duration_us(period, setting="period")
    if length <= 0:
        detail = "A period must be longer than zero."
        raise Invalid(f'period "{period}" is not positive', detail=detail, hint='For example: every("1 minute").')
    return Trigger(periods=(Period(length, since == "epoch"),))


def after_rows(count: int) -> Trigger:
    """Emit a result after every `count` rows since the last one, counted one by one in log order.

    >>> after_rows(3).rows
    3
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        detail = "The count must be an integer of at least 1."
        raise Invalid(
            f"after_rows({count!r}) is not a number of rows", detail=detail, hint="For example: after_rows(100)."
        )
    return Trigger(rows=count)


def each_row() -> Trigger:
    """Emit a result after each row.

    >>> each_row() == after_rows(1)
    True
    """
    return after_rows(1)


def first_of(*triggers: Trigger) -> Trigger:
    """Fires when the first of the triggers fires.

    >>> first_of(every("1 minute"), after_rows(100)).rows
    100
    """
    if not triggers:
        hint = 'For example: first_of(every("1 minute"), after_rows(100)).'
        raise Invalid("first_of() has no trigger", detail="It would never fire.", hint=hint)
    return _first(triggers)


def _first(triggers: Sequence[Trigger]) -> Trigger:
    counts = [trigger.rows for trigger in triggers if trigger.rows is not None]
    periods = tuple(dict.fromkeys(period for trigger in triggers for period in trigger.periods))
    return Trigger(min(counts, default=None), periods)
