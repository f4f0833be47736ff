"""Lag: how far a reader is behind, in records, bytes and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind the end a position is.

    `records` and `bytes` remain to be read; `seconds` is the age of the next record (0 if there is none);
    `until_dropped` is the time left until retention deletes that record, None if it never will.

    >>> Lag.total([Lag(2, 200, 5.0, None), Lag(1, 90, 7.5, timedelta(hours=1))])
    Lag(records=3, bytes=290, seconds=7.5, until_dropped=datetime.timedelta(seconds=3600))
    """

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    until_dropped: timedelta | None = None

    @classmethod
    def total(cls, lags: Iterable[Lag]) -> Lag:
        """The lag over several partitions: the sums of records and bytes, and the worst of the times."""
        parts = list(lags)
        drops = [part.until_dropped for part in parts if part.until_dropped is not None]
        return cls(
            records=sum(part.records for part in parts),
            bytes=sum(part.bytes for part in parts),
            seconds=max((part.seconds for part in parts), default=0.0),
            until_dropped=min(drops, default=None),
        )
