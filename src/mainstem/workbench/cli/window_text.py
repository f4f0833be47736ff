"""A window as people write it: 12:20-12:21, with the date if that is not today. Times are in UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

__all__ = ["window_text"]


def window_text(window: dict[str, Any], *, today: date | None) -> str:
    """A window with `start` and `end`; the date of its start is left out if it is `today`.

    >>> nine = datetime(2026, 11, 17, 9, 0, tzinfo=UTC)
    >>> window_text({"start": nine, "end": nine + timedelta(minutes=5)}, today=nine.date())
    '09:00-09:05'
    >>> window_text({"start": nine, "end": nine + timedelta(days=7)}, today=None)
    '2026-11-17 09:00 - 2026-11-24 09:00'
    """
    start, end = (None if (at := window[side]) is None else at.astimezone(UTC) for side in ("start", "end"))
    if start is None or end is None:
        return " - ".join("null" if at is None else _moment(at, seconds=_fine(at)) for at in (start, end))
    fine = _fine(start) or _fine(end)
    # A window that ends at midnight, or less than a day later, is still read aright without a second date.
    if end - start >= timedelta(days=1):
        return f"{_moment(start, seconds=fine)} - {_moment(end, seconds=fine)}"
    on = "" if start.date() == today else f"{start:%Y-%m-%d} "
    return f"{on}{_clock(start.time(), seconds=fine)}-{_clock(end.time(), seconds=fine)}"


def _fine(at: datetime) -> bool:
    return bool(at.second or at.microsecond)


def _clock(at: time, *, seconds: bool) -> str:
    if not seconds:
        return f"{at:%H:%M}"
    return f"{at:%H:%M:%S}" if not at.microsecond else f"{at:%H:%M:%S.%f}".rstrip("0")


def _moment(at: datetime, *, seconds: bool) -> str:
    return f"{at:%Y-%m-%d} {_clock(at.time(), seconds=seconds)}"
