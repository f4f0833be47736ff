"""What the flows of a run did so far, batch by batch: totals for the metrics, and rates for the display.

Every batch is a row in the topic `mainstem.progress`. Reading on there, instead of looking at the flows now and then,
misses none of them.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mainstem.workbench.cli.flow_facts import PROGRESS_TOPIC

if TYPE_CHECKING:
    from mainstem.flows.runner import RunningFlows
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["FlowCounts", "RunCounts"]

# Long enough that a slow batch does not make the rate jump, short enough to see it fall.
RATE_US = 10_000_000

COLUMNS = ("flow", "epoch", "rows_in", "rows_out", "rejected", "late", "too_late", "batch_ms")


@dataclass
class FlowCounts:
    """One flow's totals since the run began."""

    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    late: int = 0
    too_late: int = 0
    batches: int = 0
    batch_ms: int = 0
    # (when it was counted, rows in), of the last seconds.
    recent: deque[tuple[int, int]] = field(default_factory=deque)


class RunCounts:
    """Totals of the flows that run here. Made before they are started; thread-safe."""

    def __init__(self, stem: Mainstem) -> None:
        self._stem = stem
        self._clock = stem.log.clock
        self._guard = threading.Lock()
        self._flows: dict[str, FlowCounts] = {}
        self._first_epochs: dict[str, int] = {}
        self._began_at = self._clock.monotonic()
        self._positions: dict[int, int] = {}
        if PROGRESS_TOPIC in stem.topics():
            backend = stem.topic(PROGRESS_TOPIC).backend
            self._positions = {number: backend.latest(number) for number in range(backend.settings.partitions)}

    def look(self, running: RunningFlows) -> None:
        """Count what was reported since the last look."""
        with self._guard:
            epochs = {handle.name: handle.run.epoch for handle in running if handle.run is not None}
            for name, epoch in epochs.items():
                self._first_epochs.setdefault(name, epoch)
            now = self._clock.monotonic()
            topic: Topic = self._stem.topic(PROGRESS_TOPIC)
            for batch in topic.batches(start=self._positions, columns=COLUMNS):
                for row in batch.to_pylist():
                    place = row["record"]
                    self._positions[place["partition"]] = place["offset"] + 1
                    # Rows of the same flow that another process began later are not ours.
                    if row["flow"] in epochs and self._first_epochs[row["flow"]] <= row["epoch"] <= epochs[row["flow"]]:
                        self._count(row["flow"], row, now)

    def _count(self, flow: str, row: dict[str, int], now: int) -> None:
        counts = self._flows.setdefault(flow, FlowCounts())
        for name in ("rows_in", "rows_out", "rejected", "late", "too_late", "batch_ms"):
            setattr(counts, name, getattr(counts, name) + (row[name] or 0))
        counts.batches += 1
        counts.recent.append((now, row["rows_in"] or 0))

    def of(self, flow: str) -> FlowCounts:
        """A flow's totals."""
        with self._guard:
            return self._flows.get(flow) or FlowCounts()

    def restarts(self, flow: str, epoch: int) -> int:
        """How often a flow that is at this epoch was started again: each start raises it by one."""
        with self._guard:
            return max(0, epoch - self._first_epochs.get(flow, epoch))

    def rows_per_second(self, flow: str) -> float:
        """Rows in over the last seconds; 0 when none came."""
        with self._guard:
            recent = self._flows[flow].recent if flow in self._flows else deque[tuple[int, int]]()
            now = self._clock.monotonic()
            while recent and recent[0][0] < now - RATE_US:
                recent.popleft()
            span = min(RATE_US, max(1_000_000, now - self._began_at))
            return sum(rows for _, rows in recent) * 1_000_000 / span
