"""Durations as people say them: "0.4 s", "2 min 31 s"."""

from __future__ import annotations

__all__ = ["spoken_seconds"]


def spoken_seconds(seconds: float) -> str:
    """A duration in its two largest units.

    >>> [spoken_seconds(it) for it in (0.04, 0.42, 7, 151.4, 3600, 90_061)]
    ['0.0 s', '0.4 s', '7.0 s', '2 min 31 s', '1 h 0 min', '1 d 1 h']
    """
    whole = round(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400:,} d {whole % 86_400 // 3600} h"
