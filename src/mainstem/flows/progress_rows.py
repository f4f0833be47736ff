"""ProgressRows: writes the reports on batches to `mainstem.progress`, and their sums by minute to `mainstem.progress.minutes`.

A run appends at most once a second, for all of its flows together: an append costs a block of its own and a sync of the
disk, whatever it holds. The first report of a quiet run is appended at once; what comes within a second after that waits for
the rest of it, or for `flush`. A run that is killed loses the reports that wait, and the sums of the current minute; nothing
else depends on them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime
from typing import Any

from mainstem.clock import as_datetime
from mainstem.errors import MainstemError
from mainstem.log.log import Log
from mainstem.log.own_topic import own_topic
from mainstem.log.rows.rows import check_rows

__all__ = ["MINUTES_TOPIC", "PROGRESS_TOPIC", "ProgressRows", "SCHEMA"]

PROGRESS_TOPIC = "mainstem.progress"
SCHEMA = (
    "flow STRING, epoch BIGINT, version INT, batch BIGINT, at TIMESTAMP, rows_in BIGINT, rows_out BIGINT, "
    "rejected BIGINT, late BIGINT, too_late BIGINT, lag_records BIGINT, lag_seconds DOUBLE, watermark TIMESTAMP, state_rows BIGINT, "
    "state_bytes BIGINT, batch_ms BIGINT, rows_per_second DOUBLE, phases MAP<STRING, BIGINT>, sink_ms BIGINT, "
    "sources ARRAY<STRUCT<source: STRING, records: BIGINT, "
    "partitions: ARRAY<STRUCT<partition: INT, start: BIGINT, stop: BIGINT, watermark: TIMESTAMP>>>>, "
    "stages ARRAY<STRUCT<stage: STRING, rows_in: BIGINT, rows_out: BIGINT, ms: BIGINT, state_rows: BIGINT, state_bytes: BIGINT, "
    "late: BIGINT, too_late: BIGINT, slowest_bucket: INT, slowest_ms: BIGINT>>"
)
KEEP = "7 days"

MINUTES_TOPIC = "mainstem.progress.minutes"
MINUTES_SCHEMA = (
    "flow STRING, version INT, minute TIMESTAMP, rows_in BIGINT, rows_out BIGINT, rejected BIGINT, late BIGINT, too_late BIGINT, "
    "lag_seconds_max DOUBLE, batches BIGINT, batch_ms_max BIGINT, batch_ms BIGINT"
)
MINUTES_KEEP = "90 days"
SUMMED = ("rows_in", "rows_out", "rejected", "late", "too_late", "batch_ms")

PAUSE_US = 1_000_000
# How often it looks whether something waits; not by the clock of the log, which a test may stop.
LOOK_SECONDS = 1.0


class ProgressRows:
    """The reports of one run of a program. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._guard = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._sums: dict[tuple[str, int], dict[str, Any]] = {}
        self._appended_at: int | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # Made before the first batch, so that it can be read from the beginning of the run.
        own_topic(log, PROGRESS_TOPIC, schema=SCHEMA, keep=KEEP)

    def add(self, row: dict[str, Any]) -> None:
        """Append a report, now or within a second."""
        with self._guard:
            self._waiting.append(row)
            self._count(row)
            now = self._log.clock.monotonic()
            if self._ended.is_set() or self._appended_at is None or now - self._appended_at >= PAUSE_US:
                self._append()
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._append_later, name="mainstem-progress", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Append what waits."""
        with self._guard:
            self._append()

    def end(self) -> None:
        """Append what waits, and the sums of the current minute. May be called twice."""
        self._ended.set()
        with self._guard:
            self._append()
            self._append_sums(list(self._sums))

    def _append_later(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with self._guard:
                self._append()
                minute = _minute_of(as_datetime(self._log.clock.now()))
                self._append_sums([known for known, sums in self._sums.items() if sums["minute"] < minute])
                if not self._waiting and not self._sums:
                    # Nothing happens: the next report starts another thread.
                    self._thread = None
                    return

    # With the lock held

    def _append(self) -> None:
        rows, self._waiting = self._waiting, []
        if rows:
            self._appended_at = self._log.clock.monotonic()
            self._write(PROGRESS_TOPIC, SCHEMA, "at", KEEP, rows)

    def _count(self, row: dict[str, Any]) -> None:
        known, minute = (row["flow"], row["version"]), _minute_of(row["at"])
        if known in self._sums and self._sums[known]["minute"] != minute:
            self._append_sums([known])
        sums = self._sums.setdefault(
            known,
            {
                "flow": row["flow"], "version": row["version"], "minute": minute, **dict.fromkeys(SUMMED, 0), "batches": 0,
                "lag_seconds_max": 0.0, "batch_ms_max": 0,
            },
        )  # fmt: skip
        for name in SUMMED:
            sums[name] += row[name]
        sums["batches"] += 1
        sums["lag_seconds_max"] = max(sums["lag_seconds_max"], row["lag_seconds"])
        sums["batch_ms_max"] = max(sums["batch_ms_max"], row["batch_ms"])

    def _append_sums(self, over: list[tuple[str, int]]) -> None:
        rows = [self._sums.pop(known) for known in over]
        if rows:
            self._write(MINUTES_TOPIC, MINUTES_SCHEMA, "minute", MINUTES_KEEP, rows)

    def _write(self, name: str, schema: str, event_time: str, keep: str, rows: list[dict[str, Any]]) -> None:
        # A failed report never stops a flow. If the disk is full, the sink fails and says so.
        with suppress(MainstemError, OSError):
            topic = own_topic(self._log, name, schema=schema, event_time=event_time, keep=keep)
            topic.append(check_rows(rows, topic.settings))


def _minute_of(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)
