"""SnapshotRate: how many rows of snapshots are read in a second, and so how long the rest takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["SnapshotRate"]

# The rate is that of this much time: a snapshot that was paused, or slowed down, is soon estimated anew.
WINDOW_SECONDS = 30.0


class SnapshotRate:
    """The rate of the last half minute.

    >>> rate = SnapshotRate()
    >>> rate.estimate({"orders": {"rows": 0, "of": 1000}}, at=0.0)
    >>> progress = {"orders": {"rows": 200, "of": 1000}, "items": {"rows": 0, "of": 400}, "new": {"rows": 0, "of": 0}}
    >>> rate.estimate(progress, at=2.0)
    >>> [one["seconds_left"] for one in progress.values()]
    [8.0, 4.0, None]
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._read = 0
        self._samples: deque[tuple[float, int]] = deque()

    def estimate(self, progress: Mapping[str, dict[str, Any]], at: float) -> None:
        """Add `seconds_left` to the progress of each table; None if it cannot be told: nothing was read yet, or the source
        does not know how many rows there are. Tables are read one after the other."""
        for table, one in progress.items():
            # A snapshot that begins again starts at 0.
            self._read += max(one["rows"] - self._rows.get(table, 0), 0)
        self._rows = {table: one["rows"] for table, one in progress.items()}
        self._samples.append((at, self._read))
        while at - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()
        began, before = self._samples[0]
        rate = (self._read - before) / (at - began) if at > began else 0.0
        for one in progress.values():
            known = rate and one["of"] and one["of"] >= one["rows"]
            one["seconds_left"] = round((one["of"] - one["rows"]) / rate, 1) if known else None
