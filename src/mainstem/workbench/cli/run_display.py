"""The display of a run: on a terminal a live table, else one line per batch.

Errors of flows are printed to standard error when they occur; the status of each flow is printed at the end.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mainstem.clock import Clock, as_datetime
from mainstem.errors import MainstemError, reason_of
from mainstem.flows.flow_waits import HolderFacts, waits_for, way_to_learn_more
from mainstem.flows.run_notes import batch_text
from mainstem.log.flow_cut import Holder
from mainstem.log.lag import Lag
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.rejected_rows import rejected_topic_of
from mainstem.spark.sources.agreed_cut import cut_note
from mainstem.workbench.cli.flow_facts import PROGRESS_TOPIC, flow_lag
from mainstem.workbench.cli.metrics_server import FlowFigures, metrics_text, seconds_of
from mainstem.workbench.cli.terminal_table import (
    PIPE_WIDTH,
    Column,
    about_duration,
    about_size,
    moment,
    show_count,
    show_note,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.flows.flow_handle import FlowHandle, FlowProgress
    from mainstem.flows.runner import RunningFlows
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = [
    "FlowCounts",
    "RunCounts",
    "RunDisplay",
    "RunStatus",
    "FlowStatus",
    "run_display",
    "show_status",
    "waiting_lines",
]


# The totals of a run's flows, for the metrics, and rates for the display.
#
# Every batch is a row in the topic `mainstem.progress`. Reading that topic, instead of polling the flows, misses none.


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
    # (time of counting, rows in), of the last seconds.
    recent: deque[tuple[int, int]] = field(default_factory=deque)


class RunCounts:
    """The totals of the flows that run here. Created before they are started; thread-safe."""

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
        """Count the batches reported since the last call."""
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
                    # Rows of a newer run in another process are not ours.
                    if row["flow"] in epochs and self._first_epochs[row["flow"]] <= row["epoch"] <= epochs[row["flow"]]:
                        self._count(row["flow"], row, now)

    def _count(self, flow: str, row: dict[str, int], now: int) -> None:
        counts = self._flows.setdefault(flow, FlowCounts())
        for name in ("rows_in", "rows_out", "rejected", "late", "too_late", "batch_ms"):
            setattr(counts, name, getattr(counts, name) + (row[name] or 0))
        counts.batches += 1
        counts.recent.append((now, row["rows_in"] or 0))

    def of(self, flow: str) -> FlowCounts:
        with self._guard:
            return self._flows.get(flow) or FlowCounts()

    def restarts(self, flow: str, epoch: int) -> int:
        """How often a flow that is at this epoch was restarted: each start increments it."""
        with self._guard:
            return max(0, epoch - self._first_epochs.get(flow, epoch))

    def rows_per_second(self, flow: str) -> float:
        """Rows in per second over the last seconds."""
        with self._guard:
            recent = self._flows[flow].recent if flow in self._flows else deque[tuple[int, int]]()
            now = self._clock.monotonic()
            while recent and recent[0][0] < now - RATE_US:
                recent.popleft()
            span = min(RATE_US, max(1_000_000, now - self._began_at))
            return sum(rows for _, rows in recent) * 1_000_000 / span


# The status of each flow of a run, for the display and the metrics.


LAG_US = 1_000_000


@dataclass(frozen=True)
class FlowStatus:
    """One flow now. `progress` is the last batch of this run, `counts` are the totals of this run; `batch` is the last
    committed one, of this run or an earlier one."""

    flow: str
    state: str
    progress: FlowProgress
    counts: FlowCounts
    rows_per_second: float
    lag: Lag
    restarts: int
    batch: int | None = None
    # What it waits for: an open transaction or, if it keeps rows that wait for time, a partition.
    waits_for: HolderFacts | Holder | None = None
    # Why it waits to restart; else empty.
    retried_after: str = ""
    # What became of its store in this run, oldest first.
    notes: tuple[str, ...] = ()

    def figures(self) -> FlowFigures:
        """For Prometheus."""
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
        """As JSON, for programs that watch the run."""
        last = self.progress
        return {
            "flow": self.flow, "state": self.state, "batch": last.batch, "rows_in": last.rows_in,
            "rows_out": last.rows_out, "rejected": last.rejected, "late": last.late, "too_late": last.too_late,
            "lag_records": self.lag.records,
            "lag_seconds": self.lag.seconds, "watermark": None if last.watermark is None else last.watermark.replace("+00:00", "Z"), "state_rows": last.state_rows,
            "state_bytes": last.state_bytes, "batch_ms": last.batch_ms, "restarts": self.restarts,
            "waits_for": None if self.waits_for is None else str(self.waits_for),
            "retried_after": self.retried_after or None,
        }  # fmt: skip


class RunStatus:
    """Reads the status of the flows that run here. Thread-safe: the display and the metrics both use it."""

    def __init__(self, stem: Mainstem, running: RunningFlows, counts: RunCounts) -> None:
        self._stem = stem
        self._running = running
        self._counts = counts
        self._guard = threading.Lock()
        self._lags: dict[str, tuple[int, tuple[str, int | None], Lag]] = {}

    def now(self) -> list[FlowStatus]:
        """The status of each flow, in the order of the program."""
        # Not from two threads at once: both would count the same batches.
        with self._guard:
            self._counts.look(self._running)
            return [self._of(handle) for handle in self._running]

    def page(self) -> str:
        """The page of metrics."""
        return metrics_text([status.figures() for status in self.now()])

    def _of(self, handle: FlowHandle) -> FlowStatus:
        run = handle.run
        checkpoint = None if run is None else FlowStore(self._stem.home, run.flow).checkpoint(run.version)
        batch = None if checkpoint is None else last_batch(checkpoint)
        return FlowStatus(
            handle.name,
            handle.state,
            handle.progress,
            self._counts.of(handle.name),
            self._counts.rows_per_second(handle.name),
            self._recent_lag(handle, checkpoint, batch),
            0 if run is None else self._counts.restarts(handle.name, run.epoch),
            batch,
            None if checkpoint is None else self._waits_for(handle, checkpoint),
            self._retried_after(handle),
            tuple(handle.notes),
        )

    def _retried_after(self, handle: FlowHandle) -> str:
        if handle.state != "waiting to restart" or handle.retried_after is None or handle.waiting_since is None:
            return ""
        return f"{reason_of(handle.retried_after)}, since {moment(as_datetime(handle.waiting_since))}"

    def _waits_for(self, handle: FlowHandle, checkpoint: str) -> HolderFacts | Holder | None:
        """Time is looked up for flows whose last batch gave nothing, and for all of them when they have ended."""
        if open_ones := cut_note(checkpoint).waits:
            return open_ones[0]
        quiet = handle.progress.state_rows and not handle.progress.rows_out
        if not handle.planned.stages or not (quiet or handle.state == "stopped"):
            return None
        with suppress(MainstemError, OSError):
            return waits_for(self._stem, checkpoint)
        return None

    def _recent_lag(self, handle: FlowHandle, checkpoint: str | None, batch: int | None) -> Lag:
        """Looked up at most once a second, and after each batch that is committed: it reads a record of every partition
        that is behind."""
        now = self._stem.log.clock.monotonic()
        looked_at, seen, lag = self._lags.get(handle.name, (0, ("", None), Lag()))
        if seen != (handle.state, batch) or now - looked_at > LAG_US:
            lag = self._lag(handle, checkpoint)
            self._lags[handle.name] = (now, (handle.state, batch), lag)
        return lag

    def _lag(self, handle: FlowHandle, checkpoint: str | None) -> Lag:
        """As of now; what cannot be looked up at this moment is as of the last batch."""
        if checkpoint is not None:
            with suppress(MainstemError, OSError):
                return flow_lag(self._stem, checkpoint, handle.planned.sources)
        return Lag(records=handle.progress.lag_records, seconds=handle.progress.lag_seconds)


STATE_STYLES = {"running": "green", "catching up": "cyan", "failed": "bold red", "waiting to restart": "yellow"}

TITLES = ("flow", "state", "rows/s", "rows in", "rows out", "behind", "oldest", "watermark", "keeps", "batch", "took")
LEFT = frozenset(["flow", "state", "oldest", "watermark"])
# Columns that are omitted first on a narrow terminal: a truncated number would be wrong.
SPARED = ("keeps", "oldest", "rows in", "watermark", "rows out", "took")


class RunDisplay(Protocol):
    """Shows the flows of a run."""

    def show(self, statuses: Sequence[FlowStatus]) -> None:
        """Show the current status."""

    def print_apart(self, say: Callable[[], None]) -> None:
        """Let `say` print something in between."""

    def close(self) -> None:
        """End the display."""


class NewNotes:
    """The notes about flows that were not shown yet."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def take(self, statuses: Sequence[FlowStatus]) -> list[tuple[FlowStatus, str]]:
        """Those that are new since the last call."""
        found = [(it, note) for it in statuses for note in it.notes[self._shown.get(it.flow, 0) :]]
        self._shown |= {it.flow: len(it.notes) for it in statuses}
        return found


def run_display(clock: Clock, *, as_json: bool) -> RunDisplay:
    """The display for this output."""
    if as_json:
        return JsonLines(clock)
    return LiveTable() if sys.stdout.isatty() else BatchLines(clock)


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._notes = NewNotes()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, statuses: Sequence[FlowStatus]) -> None:
        lines = [Text(line, style="dim", overflow="fold") for line in waiting_lines(statuses)]
        for it, note in self._notes.take(statuses):
            self._console.print(f"{it.flow}: {note}", markup=False)
        self._live.update(Group(live_table(statuses, self._console), *lines), refresh=True)

    def print_apart(self, say: Callable[[], None]) -> None:
        self._live.stop()
        say()
        self._live.start()

    def close(self) -> None:
        self._live.stop()


def waiting_lines(statuses: Sequence[FlowStatus]) -> list[str]:
    """What flows wait for that have no output, and whether all of them have read everything."""
    lines = []
    for it in statuses:
        if it.retried_after:
            lines.append(f"{it.flow} retries: {it.retried_after}")
        elif it.waits_for is not None:
            lines.append(f"{it.flow} waits for {it.waits_for}")
    if waiting := [it.flow for it in statuses if it.waits_for is not None and not it.retried_after]:
        lines.append(f"  {way_to_learn_more(waiting[0])}")
    started = [it for it in statuses if it.batch is not None]
    if not started:
        return ["reading the first records ..."] if any(it.state == "running" for it in statuses) else lines
    if all(it.state == "running" and not it.lag.records for it in statuses):
        lines.append("everything is read; waiting for new records, Ctrl-C stops")
    return lines


def live_table(statuses: Sequence[FlowStatus], console: Console) -> Table:
    """The flows as a table, with as many columns as fit."""
    tables = (
        _table(statuses, [title for title in TITLES if title not in SPARED[:count]]) for count in range(len(SPARED) + 1)
    )
    unbound = console.options.update(width=PIPE_WIDTH)
    fitting = (table for table in tables if console.measure(table, options=unbound).maximum <= console.width)
    return next(fitting, None) or _table(statuses, [title for title in TITLES if title not in SPARED])


def _table(statuses: Sequence[FlowStatus], titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=True)
    for it in statuses:
        cells = dict(zip(TITLES, _cells(it), strict=True))
        table.add_row(*(Text(cells[title], style=_style(title, it)) for title in titles))
    return table


def _style(title: str, status: FlowStatus) -> str:
    if title == "state":
        return STATE_STYLES.get(status.state, "dim")
    return "bold" if title == "flow" else ""


def _cells(it: FlowStatus) -> list[str]:
    last, counts = it.progress, it.counts
    bad = f", {show_count(counts.rejected)} rejected" if counts.rejected else ""
    bad += f", {show_count(counts.late)} late" if counts.late else ""
    bad += f", {show_count(counts.too_late)} too late" if counts.too_late else ""
    keeps = f"{show_count(last.state_rows)} ({about_size(last.state_bytes)})" if last.state_rows else ""
    return [
        it.flow,
        it.state,
        f"{it.rows_per_second:,.0f}",
        show_count(counts.rows_in),
        show_count(counts.rows_out) + bad,
        show_count(it.lag.records),
        about_duration(it.lag.seconds) if it.lag.records else "",
        _time(last.watermark),
        keeps,
        "" if it.batch is None else str(it.batch),
        f"{last.batch_ms:,} ms" if last.batch is not None else "",
    ]


def _time(watermark: str | None) -> str:
    return "" if watermark is None else moment(datetime.fromisoformat(watermark))


class BatchLines:
    """One line per batch; if several were committed since the last call, only the last of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[str, int | None]] = {}
        self._notes = NewNotes()

    def show(self, statuses: Sequence[FlowStatus]) -> None:
        for it, note in self._notes.take(statuses):
            typer.echo(self._note(it, note))
        for it in statuses:
            now = (it.state, it.progress.batch)
            if now != self._told.get(it.flow, ("starting", None)):
                self._told[it.flow] = now
                typer.echo(self._line(it))

    def _line(self, it: FlowStatus) -> str:
        return f"{moment(as_datetime(self._clock.now()))}  {batch_line(it)}"

    def _note(self, it: FlowStatus, note: str) -> str:
        return f"{moment(as_datetime(self._clock.now()))}  {it.flow}: {note}"

    def print_apart(self, say: Callable[[], None]) -> None:
        say()

    def close(self) -> None:
        """Nothing to do."""


class JsonLines(BatchLines):
    """The same as an object a line, for a program that watches."""

    def _line(self, it: FlowStatus) -> str:
        return json.dumps(it.to_json(), ensure_ascii=False)

    def _note(self, it: FlowStatus, note: str) -> str:
        return json.dumps({"flow": it.flow, "note": note}, ensure_ascii=False)


def batch_line(it: FlowStatus) -> str:
    """One batch of a flow, or the end of the flow, as a line."""
    last = it.progress
    if it.state not in ("running", "catching up") or last.batch is None:
        return f"{it.flow}: {it.state}{f': {it.retried_after}' if it.retried_after else ''}"
    waits = "" if it.waits_for is None else str(it.waits_for)
    parts = [batch_text(it.flow, last, behind=it.lag.records, waits=waits)]
    parts += [f"watermark {_time(last.watermark)}"] if last.watermark else []
    parts += [f"keeps {show_count(last.state_rows)}"] if last.state_rows else []
    return f"{it.flow}: {', '.join(parts)}"


def show_status(statuses: Sequence[FlowStatus]) -> None:
    """The status of each flow at the end of a run, from which the next one continues."""
    show_table(
        [
            Column("flow", style="bold"), Column("state"), Column("last batch", "right"), Column("rows in", "right"),
            Column("rows out", "right"), Column("rejected", "right"), Column("late", "right"),
            Column("too late", "right"), Column("behind", "right"),
        ],
        (
            [
                it.flow, it.state, "none" if it.batch is None else str(it.batch),
                show_count(it.counts.rows_in), show_count(it.counts.rows_out), show_count(it.counts.rejected),
                show_count(it.counts.late), show_count(it.counts.too_late), show_count(it.lag.records),
            ]
            for it in statuses
        ),
        empty="the program has no flows",
    )  # fmt: skip
    without_output = []
    for it in statuses:
        if it.counts.rejected:
            name = rejected_topic_of(it.flow)
            show_note(f"{it.flow}: the rejected rows are in topic {name}, with the reasons: mainstem topic read {name}")
        if it.waits_for is not None:
            typer.echo(f"{it.flow} waits for {it.waits_for}")
            without_output.append(it.flow)
        elif it.counts.rows_in and not it.counts.rows_out and it.state == "stopped":
            show_note(f"{it.flow} wrote no rows in this run")
            without_output.append(it.flow)
    if without_output:
        show_note(way_to_learn_more(without_output[0]))
