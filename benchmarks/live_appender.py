"""LiveAppender: appends bids to a topic at a steady rate, in a thread of its own, for benchmarks of latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from benchmarks.nexmark_events import Nexmark
from mainstem.stem import Mainstem

APPENDS_PER_SECOND = 50


def append_bids(stem: Mainstem, rows_per_second: int) -> Iterator[tuple[float, str]]:
    """Each append of the trickle: when it began, and its token."""
    topic = stem.topic("live_bids")
    market = Nexmark(events=50_000_000, events_per_second=rows_per_second * 50 // 46)  # of 50 events 46 are bids
    for batch in market.batches("bids", rows_max=rows_per_second // APPENDS_PER_SECOND):
        begun = time.perf_counter()
        yield begun, topic.append(batch).token


class LiveAppender:
    """Appends rows to the topic `live_bids` at a rate; `latest` says when the last append began, and its token."""

    def __init__(self, stem: Mainstem, rows_per_second: int) -> None:
        self._appends = append_bids(stem, rows_per_second)
        self._ended = threading.Event()
        self._appended = threading.Condition()
        self._latest: tuple[float, str] | None = None
        self._thread = threading.Thread(target=self._append, daemon=True)

    @property
    def latest(self) -> tuple[float, str]:
        """The next append, once it has returned."""
        with self._appended:
            before = self._latest
            self._appended.wait_for(lambda: self._latest is not before, timeout=10)
            assert self._latest is not None
            return self._latest

    def __enter__(self) -> LiveAppender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _append(self) -> None:
        due = time.perf_counter()
        for latest in self._appends:
            with self._appended:
                self._latest = latest
                self._appended.notify_all()
            due += 1 / APPENDS_PER_SECOND
            if self._ended.wait(max(0.0, due - time.perf_counter())):
                return
