"""How each flow of a run stands at one moment: what the display shows and the metrics tell."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.errors import MainstemError
from mainstem.log.lag import Lag
from mainstem.log_on_spark.agreed_cut import cut_note
from mainstem.log_on_spark.checkpoint_offsets import last_batch
from mainstem.log_on_spark.flow_cut import Holder
from mainstem.log_on_spark.flow_store import FlowStore
from mainstem.workbench.cli.flow_facts import flow_lag
from mainstem.workbench.cli.metrics_text import FlowFigures, metrics_text, seconds_of
from mainstem.workbench.cli.run_counts import FlowCounts, RunCounts
from mainstem.workbench.cli.stage_facts import HolderFacts, waits_for

if TYPE_CHECKING:
    from mainstem.flows.flow_handle import FlowHandle, FlowProgress
    from mainstem.flows.runner import RunningFlows
    from mainstem.stem import Mainstem

__all__ = ["RunStandings", "Standing"]

LAG_US = 1_000_000


@dataclass(frozen=True)
class Standing:
    """One flow now. `progress` is the last batch of this run, `counts` what all of them came to; `batch` is the last one
    that is complete, of this run or of one before."""

    flow: str
    state: str
    progress: FlowProgress
    counts: FlowCounts
    rows_per_second: float
    lag: Lag
    restarts: int
    batch: int | None = None
    # What it waits for: a transaction that is open, or, where it keeps rows that wait for time, a partition.
    waits_for: HolderFacts | Holder | None = None

    def figures(self) -> FlowFigures:
        """As Prometheus gets them."""
        last, counts = self.progress, self.counts
        known = last.batch is not None
        return FlowFigures(
            self.flow,
            {
                "running": int(self.state in ("running", "catching up")),
                "rows_in_total": counts.rows_in,
                "rows_out_total": counts.rows_out,
                "rejected_total": counts.rejected,
                "late_total": counts.late,
                "too_late_total": counts.too_late,
                "batches_total": counts.batches,
                "batch_seconds_total": counts.batch_ms / 1000,
                "restarts_total": self.restarts,
                "lag_records": self.lag.records,
                "lag_seconds": self.lag.seconds,
                "watermark_seconds": seconds_of(last.watermark),
                "state_rows": last.state_rows if known else None,
                "state_bytes": last.state_bytes if known else None,
                "last_batch": last.batch,
                "last_batch_seconds": last.batch_ms / 1000 if known else None,
            },
        )

    def to_json(self) -> dict[str, Any]:
        """For a program that watches the run."""
        last = self.progress
        return {
            "flow": self.flow, "state": self.state, "batch": last.batch, "rows_in": last.rows_in,
            "rows_out": last.rows_out, "rejected": last.rejected, "late": last.late, "too_late": last.too_late,
            "lag_records": self.lag.records,
            "lag_seconds": self.lag.seconds, "watermark": last.watermark, "state_rows": last.state_rows,
            "state_bytes": last.state_bytes, "batch_ms": last.batch_ms, "restarts": self.restarts,
            "waits_for": None if self.waits_for is None else str(self.waits_for),
        }  # fmt: skip


class RunStandings:
    """Looks at the flows that run here. Thread-safe: the display and the metrics ask for themselves."""

    def __init__(self, stem: Mainstem, running: RunningFlows, counts: RunCounts) -> None:
        self._stem = stem
        self._running = running
        self._counts = counts
        self._guard = threading.Lock()
        self._lags: dict[str, tuple[int, tuple[str, int | None], Lag]] = {}

    def now(self) -> list[Standing]:
        """Each flow, in the order of the program."""
        # Not at once from two threads: each would count the same batches.
        with self._guard:
            self._counts.look(self._running)
            return [self._of(handle) for handle in self._running]

    def page(self) -> str:
        """The page of metrics."""
        return metrics_text([standing.figures() for standing in self.now()])

    def _of(self, handle: FlowHandle) -> Standing:
        run = handle.run
        batch = None if run is None else last_batch(FlowStore(self._stem.home, run.flow).checkpoint(run.version))
        return Standing(
            handle.name,
            handle.state,
            handle.progress,
            self._counts.of(handle.name),
            self._counts.rows_per_second(handle.name),
            self._recent_lag(handle, batch),
            0 if run is None else self._counts.restarts(handle.name, run.epoch),
            batch,
            self._waits_for(handle),
        )

    def _waits_for(self, handle: FlowHandle) -> HolderFacts | Holder | None:
        """Time is looked up for flows whose last batch gave nothing, and for all of them when they have ended."""
        if handle.run is None:
            return None
        checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version)
        if open_ones := cut_note(checkpoint).waits:
            return open_ones[0]
        quiet = handle.progress.state_rows and not handle.progress.rows_out
        if not handle.planned.stages or not (quiet or handle.state == "stopped"):
            return None
        try:
            return waits_for(self._stem, checkpoint)
        except (MainstemError, OSError):
            return None

    def _recent_lag(self, handle: FlowHandle, batch: int | None) -> Lag:
        """Looked up at most once a second, and after each batch that is committed: it reads a record of every partition
        that is behind."""
        now = self._stem.log.clock.monotonic()
        looked_at, seen, lag = self._lags.get(handle.name, (0, ("", None), Lag()))
        if seen != (handle.state, batch) or now - looked_at > LAG_US:
            lag = self._lag(handle)
            self._lags[handle.name] = (now, (handle.state, batch), lag)
        return lag

    def _lag(self, handle: FlowHandle) -> Lag:
        """As of now; what cannot be looked up at this moment is as of the last batch."""
        if handle.run is not None:
            checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version)
            try:
                return flow_lag(self._stem, checkpoint, handle.planned.sources)
            except (MainstemError, OSError):
                pass
        return Lag(records=handle.progress.lag_records, seconds=handle.progress.lag_seconds)
