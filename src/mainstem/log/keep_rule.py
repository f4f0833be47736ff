"""Keep: a topic's retention, by age, by size, forever, or the latest record per key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mainstem.arguments import checked_calls, whole_number
from mainstem.durations import Duration, parse_duration, parse_size, show_duration, show_size
from mainstem.errors import Invalid

__all__ = ["Keep"]

_FOREVER = "forever"
_LATEST_PER_KEY = "latest per key"
_TOMBSTONES = timedelta(days=1)


@checked_calls
@dataclass(frozen=True, init=False)
class Keep:
    """The retention of a topic.

    With `age` and `size` (per partition) whole segments are deleted once they exceed the limit; both may be given.
    `Keep.latest_per_key()` keeps the latest record of each key: a tombstone is kept for `tombstones` after the records
    it deletes, records younger than `lag_min` are not compacted, and records older than `lag_max` always are.

    >>> str(Keep(age="7 days", size="10 GiB")), str(Keep.forever())
    ('7 days, 10 GiB', 'forever')
    """

    age: timedelta | None
    size: int | None
    compacted: bool
    tombstones: timedelta
    lag_min: timedelta
    lag_max: timedelta | None

    def __init__(
        self,
        age: Duration | None = None,
        size: str | int | None = None,
        *,
        compacted: bool = False,
        tombstones: Duration = _TOMBSTONES,
        lag_min: Duration = timedelta(0),
        lag_max: Duration | None = None,
    ) -> None:
        values: dict[str, Any] = {
            "age": None if age is None else parse_duration(age, setting="keep age"),
            "size": _size_of(size),
            "compacted": compacted,
            "tombstones": parse_duration(tombstones, setting="tombstones"),
            "lag_min": parse_duration(lag_min, setting="lag_min"),
            "lag_max": None if lag_max is None else parse_duration(lag_max, setting="lag_max"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if self.compacted and (self.age is not None or self.size is not None):
            raise Invalid(
                "keep cannot be the latest record per key and also an age or a size",
                detail="A compacted topic keeps the latest record of every key, however old.",
                hint="Use Keep.latest_per_key() alone, or Keep(age=..., size=...) alone.",
            )
        if self.age == timedelta(0) or (self.size is not None and self.size <= 0):
            raise Invalid(
                "keep must be greater than zero",
                detail="Records would be deleted before they could be read.",
                hint='Use an age such as "1 hour" or a size such as "64 MiB".',
            )
        if self.lag_max is not None and self.lag_max < self.lag_min:
            raise Invalid(
                f'lag_max "{show_duration(self.lag_max)}" is shorter than lag_min "{show_duration(self.lag_min)}"',
                detail="Records are not compacted before lag_min, and are compacted by lag_max.",
                hint="Make lag_max the longer one, or leave it out.",
            )

    @classmethod
    def forever(cls) -> Keep:
        """Keep every record.

        >>> Keep.forever() == Keep.parse("forever")
        True
        """
        return cls()

    @classmethod
    def latest_per_key(
        cls,
        *,
        tombstones: Duration = _TOMBSTONES,
        lag_min: Duration = timedelta(0),
        lag_max: Duration | None = None,
    ) -> Keep:
        """Keep the latest record of each key (a compacted topic).

        >>> str(Keep.latest_per_key(tombstones="1 hour"))
        'latest per key (tombstones 1 hour)'
        """
        return cls(compacted=True, tombstones=tombstones, lag_min=lag_min, lag_max=lag_max)

    @classmethod
    def parse(cls, value: str | timedelta | Keep) -> Keep:
        """Parse a value of `keep=`: an age, a size, both with a comma, "forever", "latest per key", or a `Keep`.

        >>> Keep.parse("10 GiB").size
        10737418240
        """
        if isinstance(value, Keep):
            return value
        if isinstance(value, timedelta):
            return cls(age=value)
        if not isinstance(value, str):
            raise _refusal(value)
        word = " ".join(value.split()).casefold()
        if word == _FOREVER:
            return cls()
        if word == _LATEST_PER_KEY:
            return cls.latest_per_key()
        age: timedelta | None = None
        size: int | None = None
        for part in value.split(","):
            try:
                found = parse_size(part, setting="keep")
            except Invalid:
                if age is not None:
                    raise _refusal(value) from None
                age = parse_duration(part, setting="keep")
            else:
                if size is not None:
                    raise _refusal(value)
                size = found
        return cls(age=age, size=size)

    def to_json(self) -> dict[str, Any]:
        """As JSON, in a topic's settings."""
        if self.compacted:
            return {
                "compacted": True,
                "tombstones": show_duration(self.tombstones),
                "lag_min": show_duration(self.lag_min),
                "lag_max": None if self.lag_max is None else show_duration(self.lag_max),
            }
        return {"age": None if self.age is None else show_duration(self.age), "size": self.size}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Keep:
        """The retention from JSON."""
        return cls(**value)

    def __str__(self) -> str:
        if self.compacted:
            lags = f", lag_min {show_duration(self.lag_min)}" if self.lag_min else ""
            lags += f", lag_max {show_duration(self.lag_max)}" if self.lag_max is not None else ""
            return f"{_LATEST_PER_KEY} (tombstones {show_duration(self.tombstones)}{lags})"
        parts = [show_duration(self.age)] if self.age is not None else []
        parts += [show_size(self.size)] if self.size is not None else []
        return ", ".join(parts) or _FOREVER


def _refusal(value: object) -> Invalid:
    return Invalid(
        f'keep "{str(value)[:100]}" is not understood',
        detail='It is an age ("7 days"), a size ("10 GiB"), both ("7 days, 10 GiB"), "forever" or "latest per key".',
        hint='For example: keep="7 days", or Keep.latest_per_key(tombstones="1 day").',
    )


def _size_of(size: str | int | None) -> int | None:
    if size is None:
        return None
    return parse_size(size, setting="keep size") if isinstance(size, str) else whole_number(size, "keep size")
