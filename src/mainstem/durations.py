"""Durations and sizes as people write them: "10 minutes", "1 day 2 hours", "64 MiB".

A bare number is refused everywhere, because `session=10` does not tell the unit. So is a month, which has no fixed
length.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from mainstem.errors import Invalid, did_you_mean

__all__ = ["Duration", "duration_us", "parse_duration", "parse_size", "show_duration", "show_size", "show_span"]

Duration = str | timedelta

# Longest first: the order in which a duration is shown.
_UNITS_US = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
# As other systems write them; refused, with the words.
_SHORT = {
    "w": "week",
    "d": "day",
    "h": "hour",
    "hr": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_WITHOUT_LENGTH = ("month", "quarter", "year")
_DURATION_FORM = (
    'A duration is a number and a unit, or several: "10 minutes", "1 day 2 hours". '
    "The units are microseconds, milliseconds, seconds, minutes, hours, days, weeks."
)

_SIZES = {
    "byte": 1,
    "bytes": 1,
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
    "kB": 1000,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
}
_SIZES_BY_FOLDED = {unit.casefold(): size for unit, size in _SIZES.items()}
_SIZE_FORM = (
    'A size is a number and a unit: "64 MiB" (1024 x 1024) or "64 MB" (1000 x 1000); also bytes, KiB, GiB, TiB, PiB.'
)

_PART = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)(?:\s+|$)")
_SHORT_PART = re.compile(r"([0-9.]+)\s*([A-Za-z]+)\s*")
# A number with more digits is a mistake, and arithmetic on a much longer one would be slow.
_LENGTH_MAX = 100
# 273 years: added to any time, in microseconds, it fits into 64 bits, and in seconds into a wait of the system.
_LONGEST = timedelta(days=100_000)
_LONGEST_FORM = "The longest duration is 100000 days."


def parse_duration(value: Duration, *, setting: str = "duration") -> timedelta:
    """The duration in `value`; `setting` is its name in an error.

    >>> parse_duration("1 day 2 hours")
    datetime.timedelta(days=1, seconds=7200)
    >>> parse_duration("1.5 seconds")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise _refusal(setting, str(value), "is negative", "A duration cannot be negative.")
        if value > _LONGEST:
            raise _refusal(setting, str(value), "is too long", _LONGEST_FORM)
        return value
    if not isinstance(value, str):
        raise _refusal(setting, value, "has no unit" if _is_number(value) else "is not a duration", _DURATION_FORM)
    total = Decimal(0)
    seen: set[str] = set()
    for number, word in _parts(value, setting, "is not a duration", _DURATION_FORM):
        unit = _unit(word, value, setting)
        if number < 0:
            raise _refusal(setting, value, "is negative", "A duration cannot be negative.")
        if unit in seen:
            raise _refusal(setting, value, f"names {unit}s twice", _DURATION_FORM)
        seen.add(unit)
        total += number * _UNITS_US[unit]
    if total != int(total):
        raise _refusal(setting, value, "is finer than a microsecond", "Mainstem counts time in whole microseconds.")
    if total > _LONGEST // timedelta(microseconds=1):
        raise _refusal(setting, value, "is too long", _LONGEST_FORM)
    return timedelta(microseconds=int(total))


def duration_us(value: Duration, *, setting: str = "duration") -> int:
    """The duration in `value`, in microseconds.

    >>> duration_us("500 milliseconds")
    500000
    """
    return parse_duration(value, setting=setting) // timedelta(microseconds=1)


def show_duration(duration: timedelta) -> str:
    """The duration as people write it; `parse_duration` reads it back. Weeks are shown as days.

    >>> show_duration(timedelta(days=7, minutes=1))
    '7 days 1 minute'
    """
    if duration < timedelta(0):
        return f"-({show_duration(-duration)})"
    rest = duration // timedelta(microseconds=1)
    words = []
    for unit, length in _UNITS_US.items():
        if unit != "week" and rest >= length:
            count, rest = divmod(rest, length)
            words.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(words) or "0 seconds"


def show_span(microseconds: int | None) -> str | None:
    """The same for microseconds; None for none.

    >>> show_span(90_000_000)
    '1 minute 30 seconds'
    """
    return None if microseconds is None else show_duration(timedelta(microseconds=microseconds))


def parse_size(value: str, *, setting: str = "size") -> int:
    """The number of bytes in `value`; `setting` is its name in an error.

    >>> parse_size("64 MiB"), parse_size("1 GB")
    (67108864, 1000000000)
    """
    if not isinstance(value, str):
        raise _refusal(setting, value, "has no unit" if _is_number(value) else "is not a size", _SIZE_FORM)
    parts = _parts(value, setting, "is not a size", _SIZE_FORM)
    number, word = parts[0]
    size = _SIZES_BY_FOLDED.get(word.casefold())
    if len(parts) > 1 or (word and size is None):
        raise _refusal(setting, value, "is not a size", _SIZE_FORM)
    if size is None:
        raise _refusal(setting, value, "has no unit", _SIZE_FORM)
    if number < 0:
        raise _refusal(setting, value, "is negative", _SIZE_FORM)
    if number * size != int(number * size):
        raise _refusal(setting, value, "is not a whole number of bytes", _SIZE_FORM)
    return int(number * size)


def show_size(size: int) -> str:
    """The size as people write it, in the largest unit that is exact; `parse_size` reads it back.

    >>> show_size(67108864), show_size(1000), show_size(1)
    ('64 MiB', '1000 bytes', '1 byte')
    """
    for prefix, power in (("P", 5), ("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {prefix}iB"
    return f"{size} byte{'' if size == 1 else 's'}"


def _parts(value: str, setting: str, complaint: str, form: str) -> list[tuple[Decimal, str]]:
    """Pairs of number and unit; an error if any part of `value` is neither."""
    text = value.strip()
    parts: list[tuple[Decimal, str]] = []
    position = 0
    while position < len(text) <= _LENGTH_MAX and (part := _PART.match(text, position)):
        parts.append((Decimal(part[1]), part[2]))
        position = part.end()
    if not parts or position < len(text):
        raise _refusal(setting, value, complaint, form)
    return parts


def _unit(word: str, value: str, setting: str) -> str:
    unit = word.casefold().removesuffix("s")
    if unit in _UNITS_US:
        return unit
    if not word:
        raise _refusal(setting, value, "has no unit", _DURATION_FORM)
    if unit in _WITHOUT_LENGTH:
        same = f"{unit.capitalize()}s differ in length, so the duration would not be fixed."
        raise _refusal(setting, value, f"is in {unit}s", same, hint='Give it in days: "30 days".')
    near = did_you_mean(word, [f"{known}s" for known in _UNITS_US])
    if word.casefold() in _SHORT:
        near = f'Write: "{_SHORT_PART.sub(_in_words, value).strip()}".'
    raise _refusal(setting, value, f'has the unknown unit "{word}"', _DURATION_FORM, hint=near)


def _in_words(part: re.Match[str]) -> str:
    unit = _SHORT.get(part[2].casefold(), part[2])
    return f"{part[1]} {unit}{'s' if unit in _UNITS_US and part[1] != '1' else ''} "


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _refusal(setting: str, value: object, complaint: str, detail: str, *, hint: str = "") -> Invalid:
    shown = str(value) if len(str(value)) <= _LENGTH_MAX else f"{str(value)[:_LENGTH_MAX]}..."
    if not hint:
        hint = _suggestion(value, detail)
    return Invalid(f'{setting} "{shown}" {complaint}', detail=detail, hint=hint)


def _suggestion(value: object, detail: str) -> str:
    number = str(value).strip().removeprefix("-")
    if not re.fullmatch(r"[0-9]{1,9}", number):
        number = "10"
    return f'For example: "{number} MiB".' if detail is _SIZE_FORM else f'For example: "{number} seconds".'
