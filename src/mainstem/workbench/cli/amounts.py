"""Counts, sizes and times as a person reads them at a glance: rounded, unlike those of `mainstem.durations`."""

from __future__ import annotations

from datetime import datetime, timedelta

__all__ = ["about_duration", "about_size", "counted", "moment"]

_PREFIXES = "KMGTP"
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def counted(count: int, noun: str = "", *, plural: str = "") -> str:
    """A count with its noun.

    >>> counted(1234, "record"), counted(1, "record"), counted(2, "entry", plural="entries"), counted(70000)
    ('1,234 records', '1 record', '2 entries', '70,000')
    """
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def about_size(size: int) -> str:
    """A size in bytes, to three digits.

    >>> about_size(999), about_size(1536), about_size(64 << 20)
    ('999 B', '1.5 KiB', '64 MiB')
    """
    if size < 1024:
        return f"{size} B"
    value, power = size / 1024, 0
    while value >= 1000 and power < len(_PREFIXES) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.3g} {_PREFIXES[power]}iB"


def about_duration(length: timedelta | float | None, *, none: str = "never") -> str:
    """A duration, or seconds: days with hours, hours with minutes, else minutes or seconds alone.

    >>> about_duration(90061.0), about_duration(timedelta(seconds=119.9)), about_duration(0.25), about_duration(None)
    ('1 day 1 hour', '1 minute', 'under a second', 'never')
    """
    if length is None:
        return none
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds <= 0:
        return "0 seconds"
    if seconds < 1:
        return "under a second"
    whole = int(seconds)
    index = next(index for index, (_, size) in enumerate(_UNITS) if whole >= size)
    unit, size = _UNITS[index]
    count, rest = divmod(whole, size)
    text = counted(count, unit)
    if unit in ("day", "hour"):
        smaller, size = _UNITS[index + 1]
        text += f" {counted(rest // size, smaller)}" if rest >= size else ""
    return text


def moment(at: datetime | None, *, none: str = "never") -> str:
    """A time to the second, in UTC.

    >>> from datetime import UTC
    >>> moment(datetime(2026, 1, 1, 9, 30, 5, 250_000, tzinfo=UTC))
    '2026-01-01 09:30:05Z'
    """
    return none if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")
