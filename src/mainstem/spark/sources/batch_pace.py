"""When the next batch of a flow may begin.

A batch of ten rows costs as much as one of a thousand. So a flow pauses after a batch: as long as the batch took, at most
200 ms; with `every`, until so much time has passed since the batch began. Rows that are appended meanwhile are in the next
batch. The driver says how long (`BatchPace`); the sources of the query wait (`BatchPause`), each in its own process:

    <checkpoint>/cut/<random>/pace      {"until": 51234250000, "pause": 200000, "hurry": false}

`until` is in microseconds of the machine's monotonic clock; a source that is asked before it waits, but never longer than
`pause`. While `hurry` is true no source pauses: a caller waits until the flow is idle, or stops it. A write to the file ends
every wait.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mainstem.clock import Clock, SystemClock
from mainstem.file_watch import Watch

__all__ = ["BatchPace", "BatchPause", "PAUSE_US_MAX", "pace_path"]

# The longest pause of a flow without `every`: with the batch itself a row is in the sink within half a second.
PAUSE_US_MAX = 200_000
# The longest single wait of a source: a timer of a stage, or an input that became idle, may begin a batch without rows.
_WAIT_US_MAX = 1_000_000
# More than any value takes; the rest are spaces.
_FILE_BYTES = 128


def pace_path(folder: str) -> str:
    return f"{folder}/pace"


class BatchPace:
    """The pace of one flow, in the driver. Thread-safe."""

    def __init__(self, every: int | None, clock: Clock | None = None) -> None:
        self._every = every
        # Not that of the log: other processes compare with it.
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._path = ""
        self._hurries = 0
        self._until = self._pause = 0

    def begin(self, folder: str) -> None:
        """A query begins whose sources agree in this folder; its first batch begins at once."""
        with self._lock:
            self._until = self._pause = 0
            self._path = pace_path(folder)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._write()

    def close(self) -> None:
        """The query has ended."""
        with self._lock:
            self._path = ""

    def now(self) -> int:
        """The time, for `batch_over`."""
        return self._clock.monotonic()

    def batch_over(self, begun: int) -> None:
        """A batch with rows that began then is over."""
        now = self._clock.monotonic()
        until = now + min(now - begun, PAUSE_US_MAX) if self._every is None else begun + self._every
        with self._lock:
            self._until, self._pause = until, max(0, until - now)
            self._write()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """No source waits inside."""
        with self._lock:
            self._hurries += 1
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._hurries -= 1
                self._write()

    def _write(self) -> None:
        """Overwrite in place, always with as many bytes: there is never a rest of an older value.

        The file is not kept open: if a newer run removes it, that wakes the sources of this one.
        """
        if not self._path:
            return
        value = {"until": self._until, "pause": self._pause, "hurry": self._hurries > 0}
        # If it was removed, or the disk is full, the flow runs as if there were no pause.
        with suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(handle, json.dumps(value).encode().ljust(_FILE_BYTES), 0)
            finally:
                os.close(handle)


class BatchPause:
    """The pauses of one source. For one thread. Without a folder, or a pace in it, there are none."""

    def __init__(
        self, folder: str, clock: Clock | None = None, listen: Callable[[Sequence[str]], Watch] = Watch
    ) -> None:
        self._path = pace_path(folder) if folder else ""
        self._clock = SystemClock() if clock is None else clock
        self._listen = listen
        self._watch: Watch | None = None

    def wait(self, wake: int | None = None) -> bool:
        """Wait until the next batch may begin; False if it still may not. `wake`: the upper bound of the wait, in microseconds."""
        deadline = self._clock.monotonic() + min(_WAIT_US_MAX, _WAIT_US_MAX if wake is None else max(0, wake))
        while (left := self._left()) > 0:
            allowed = deadline - self._clock.monotonic()
            if allowed <= 0:
                return False
            if self._watch is None:
                # Then look again: it may have been written in between.
                self._watch = self._listen([self._path])
            else:
                self._watch.wait(min(left, allowed) / 1_000_000)
        return True

    @property
    def bell(self) -> str:
        """The file whose writes end every wait; empty if nobody writes to it."""
        return self._path if self._path and os.path.exists(self._path) else ""

    @property
    def hurried(self) -> bool:
        """Whether nothing may wait."""
        return bool(self._read().get("hurry"))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _left(self) -> int:
        """How many microseconds are left of the pause."""
        known = self._read()
        if not known or known["hurry"]:
            return 0
        return int(min(known["until"] - self._clock.monotonic(), known["pause"]))

    def _read(self) -> dict[str, Any]:
        if not self._path:
            return {}
        try:
            with open(self._path, encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
        except (FileNotFoundError, ValueError):
            return {}
        return found
