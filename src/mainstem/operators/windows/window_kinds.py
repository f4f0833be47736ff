"""Window kinds: which windows a row belongs to, as values. Lengths are in microseconds.

`Tumbling`, `Hopping`, `Cumulating`, `Calendar` and `Everything` are fixed: a row's windows depend on its time alone.
Those of `Sessions`, `Sliding` and `Validity` depend on the other rows of the key.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mainstem.arguments import check_choice, text
from mainstem.durations import Duration, duration_us, show_span
from mainstem.errors import Invalid

__all__ = [
    "Calendar", "Cumulating", "Everything", "Hopping", "Sessions", "Sliding", "Tumbling", "Validity", "WindowKind",
    "calendar", "cumulating", "everything", "hopping", "sessions", "show_window", "sliding", "tumbling", "validity",
]  # fmt: skip

_UNITS = ("hour", "day", "week", "month", "quarter", "year")
_TOUCHING = ("split", "join")


@dataclass(frozen=True)
class Tumbling:
    """Windows of one length that do not overlap."""

    size: int
    offset: int = 0


@dataclass(frozen=True)
class Hopping:
    """Windows of one length, a new one at each slide: they overlap if it is shorter, and leave gaps if it is longer."""

    size: int
    slide: int
    offset: int = 0


@dataclass(frozen=True)
class Cumulating:
    """Windows with the same start that end one step after the other, up to `size`; then the next series starts."""

    step: int
    size: int
    offset: int = 0


@dataclass(frozen=True)
class Calendar:
    """Hours, days, weeks (from Monday), months, quarters or years of a time zone."""

    unit: str
    time_zone: str


@dataclass(frozen=True)
class Everything:
    """One window, which ends when all rows have arrived."""


@dataclass(frozen=True)
class Sliding:
    """One window for each distinct set of rows within the span, both ends included."""

    span: int


@dataclass(frozen=True)
class Sessions:
    """Rows that follow each other within a gap. `gap` is a number, or a Spark column with the gap of each row."""

    gap: Any
    # Whether rows exactly one gap apart are one session.
    touching: str = "split"


@dataclass(frozen=True)
class Validity:
    """From each row's time to the next row's."""


WindowKind = Tumbling | Hopping | Cumulating | Calendar | Everything | Sliding | Sessions | Validity


def show_window(window: WindowKind) -> dict[str, str]:
    """The kind of a window and its parameters, as a person reads them.

    >>> show_window(tumbling("90 seconds"))
    {'window': 'tumbling', 'size': '1 minute 30 seconds', 'offset': '0 seconds'}
    """
    given = {at.name: getattr(window, at.name) for at in fields(window)}
    shown = {name: str(show_span(value) if isinstance(value, int) else value) for name, value in given.items()}
    return {"window": type(window).__name__.lower(), **shown}


def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> Tumbling:
    """Windows of one length that do not overlap, aligned to 1970 (UTC) plus `offset`, which may be "-6 minutes".

    >>> tumbling("10 minutes")
    Tumbling(size=600000000, offset=0)
    """
    length = _positive(size, "size")
    return Tumbling(length, _offset(offset) % length)


def hopping(size: Duration, *, slide: Duration, offset: Duration = "0 seconds") -> Hopping:
    """Windows of one length, a new one at each `slide`; with a slide longer than the size, rows in between are in no window.

    >>> hopping("10 minutes", slide="5 minutes")
    Hopping(size=600000000, slide=300000000, offset=0)
    """
    step = _positive(slide, "slide")
    return Hopping(_positive(size, "size"), step, _offset(offset) % step)


def cumulating(size: Duration, *, step: Duration, offset: Duration = "0 seconds") -> Cumulating:
    """Windows with the same start that end one `step` after the other, up to `size`.

    >>> cumulating("1 day", step="1 hour").step
    3600000000
    """
    length, short = _positive(size, "size"), _positive(step, "step")
    if length % short:
        detail = "The last window of each series would be cut off."
        hint = "Use a size that is a multiple of the step."
        raise Invalid(f'size "{size}" is not a multiple of step "{step}"', detail=detail, hint=hint)
    return Cumulating(short, length, _offset(offset) % length)


def calendar(unit: str, *, time_zone: str = "UTC") -> Calendar:
    """Calendar days, weeks (from Monday), months and so on in a time zone.

    >>> calendar("month", time_zone="Europe/Berlin")
    Calendar(unit='month', time_zone='Europe/Berlin')
    """
    check_choice(unit, "unit", _UNITS)
    text(time_zone, "time_zone", hint='Write it as in the time zone database: "Europe/Berlin".')
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        hint = 'Write it as in the time zone database: "Europe/Berlin".'
        raise Invalid(f'time zone "{time_zone}" is not known', detail=str(error), hint=hint) from error
    return Calendar(unit, time_zone)


def everything() -> Everything:
    """One window over all rows, emitted on time when all rows have arrived.

    >>> everything()
    Everything()
    """
    return Everything()


def sliding(span: Duration) -> Sliding:
    """One window for each distinct set of rows within the span, both ends included.

    >>> sliding("10 minutes")
    Sliding(span=600000000)
    """
    return Sliding(_positive(span, "span"))


def sessions(gap: Any, *, touching: str = "split") -> Sessions:
    """Rows that follow each other within `gap`: a duration, or a Spark column with the duration of each row.

    >>> sessions("30 minutes")
    Sessions(gap=1800000000, touching='split')
    """
    detail = 'Rows exactly one gap apart are one session with touching="join", two with touching="split".'
    check_choice(touching, "touching", _TOUCHING, detail=detail)
    plain = isinstance(gap, str | int | float | timedelta)
    return Sessions(_positive(gap, "gap") if plain else gap, touching)


def validity() -> Validity:
    """From each row's time to the time of the next row of its key: how long a value is valid.

    >>> validity()
    Validity()
    """
    return Validity()


def _positive(value: Duration, setting: str) -> int:
    length = duration_us(value, setting=setting)
    if length <= 0:
        detail = "A window must be longer than zero."
        raise Invalid(f'{setting} "{value}" is not positive', detail=detail, hint='For example: "10 minutes".')
    return length


def _offset(value: Duration) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, str) and value.strip().startswith("-"):
        return -duration_us(value.strip()[1:], setting="offset")
    return duration_us(value, setting="offset")
