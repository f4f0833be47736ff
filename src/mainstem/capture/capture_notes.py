"""What captures say of themselves to a person: where they begin, how far a snapshot is, the first changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from mainstem.capture.capture_status import CaptureStatus
from mainstem.durations import show_duration

__all__ = ["CaptureNotes", "about_seconds", "snapshot_text"]

# A snapshot says how far it is this often.
PROGRESS_SECONDS = 5.0


class CaptureNotes:
    """Turns statuses into lines. Thread-safe for one thread per capture."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: dict[str, CaptureStatus] = {}
        self._said_at: dict[str, float] = {}

    def take(self, status: CaptureStatus) -> None:
        """Say what is new in a status."""
        before = self._last.get(status.name)
        self._last[status.name] = status

        def say(text: str) -> None:
            self._say(f"capture {status.name}: {text}")

        if status.state == "running" and (before is None or before.state != "running"):
            say(f"reads {', '.join(status.topics)} of {status.source}")
        if status.snapshot:
            now = time.monotonic()
            if status.name not in self._said_at or now - self._said_at[status.name] > PROGRESS_SECONDS:
                self._said_at[status.name] = now
                say(snapshot_text(status))
        elif before is not None and before.snapshot and status.state == "running":
            self._said_at.pop(status.name, None)
            say("the snapshot is complete")
        if status.changes and not (before and before.changes):
            say(f"first changes: {status.changes:,}")


def snapshot_text(status: CaptureStatus) -> str:
    """The progress of a snapshot in a line."""
    table, one = next(iter(status.snapshot.items()))
    total = f" of about {one['of']:,}" if one["of"] >= one["rows"] and one["of"] else ""
    left = [other.get("seconds_left") for other in status.snapshot.values()]
    after = f", then {', '.join(list(status.snapshot)[1:])}" if len(status.snapshot) > 1 else ""
    known = [seconds for seconds in left if seconds is not None]
    time_left = f", about {about_seconds(sum(known))} left" if known and len(known) == len(left) else ""
    verb = "paused the snapshot" if status.paused else "reads the rows"
    return f"{verb} of {table}: {one['rows']:,}{total}{after}{time_left}"


def about_seconds(seconds: float) -> str:
    """A time that is left: whole seconds, above a minute whole minutes.

    >>> about_seconds(0.2), about_seconds(42.4), about_seconds(3700)
    ('1 second', '42 seconds', '1 hour 1 minute')
    """
    whole = max(round(seconds), 1)
    return show_duration(timedelta(seconds=whole if whole < 60 else whole // 60 * 60))
