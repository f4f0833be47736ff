"""What a person sees of a run: on a terminal a table that is kept current, else a line for each batch.

Errors of flows are told on standard error when they happen; how each flow stands is said at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mainstem.clock import Clock, as_datetime
from mainstem.workbench.cli.amounts import about_duration, about_size, counted, moment
from mainstem.workbench.cli.run_standing import Standing
from mainstem.workbench.cli.terminal_table import PIPE_WIDTH, Column, show_table

__all__ = ["RunDisplay", "run_display", "show_standings"]

STATE_STYLES = {"running": "green", "catching up": "cyan", "failed": "bold red", "waiting to restart": "yellow"}

TITLES = ("flow", "state", "rows/s", "rows in", "rows out", "behind", "oldest", "watermark", "keeps", "batch", "took")
LEFT = frozenset(["flow", "state", "oldest", "watermark"])
# What is left out first where the terminal is narrow: a figure that is cut would be another figure.
SPARED = ("keeps", "oldest", "rows in", "watermark", "rows out", "took")


class RunDisplay(Protocol):
    """Shows the flows of a run."""

    def show(self, standings: Sequence[Standing]) -> None:
        """How they stand now."""

    def apart(self, say: Callable[[], None]) -> None:
        """Let something else be said in between."""

    def close(self) -> None:
        """The last time was the last."""


def run_display(clock: Clock, *, as_json: bool) -> RunDisplay:
    """The display for this output."""
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else BatchLines(clock)


class LiveTable:
    """A table in its place on the terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, standings: Sequence[Standing]) -> None:
        self._live.update(live_table(standings, self._console), refresh=True)

    def apart(self, say: Callable[[], None]) -> None:
        self._live.stop()
        say()
        self._live.start()

    def close(self) -> None:
        self._live.stop()


def live_table(standings: Sequence[Standing], console: Console) -> Table:
    """The flows as a table, with as many columns as fit."""
    tables = (
        _table(standings, [title for title in TITLES if title not in SPARED[:count]])
        for count in range(len(SPARED) + 1)
    )
    unbound = console.options.update(width=PIPE_WIDTH)
    fitting = (table for table in tables if console.measure(table, options=unbound).maximum <= console.width)
    return next(fitting, None) or _table(standings, [title for title in TITLES if title not in SPARED])


def _table(standings: Sequence[Standing], titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=True)
    for it in standings:
        cells = dict(zip(TITLES, _cells(it), strict=True))
        table.add_row(*(Text(cells[title], style=_style(title, it)) for title in titles))
    return table


def _style(title: str, standing: Standing) -> str:
    if title == "state":
        return STATE_STYLES.get(standing.state, "dim")
    return "bold" if title == "flow" else ""


def _cells(it: Standing) -> list[str]:
    last, counts = it.progress, it.counts
    bad = f", {counted(counts.rejected)} rejected" if counts.rejected else ""
    bad += f", {counted(counts.late)} late" if counts.late else ""
    bad += f", {counted(counts.too_late)} too late" if counts.too_late else ""
    keeps = f"{counted(last.state_rows)} ({about_size(last.state_bytes)})" if last.state_rows else ""
    return [
        it.flow,
        it.state,
        f"{it.rows_per_second:,.0f}",
        counted(counts.rows_in),
        counted(counts.rows_out) + bad,
        counted(it.lag.records),
        about_duration(it.lag.seconds) if it.lag.records else "",
        _time(last.watermark),
        keeps,
        "" if it.batch is None else str(it.batch),
        f"{last.batch_ms:,} ms" if last.batch is not None else "",
    ]


def _time(watermark: str | None) -> str:
    return "" if watermark is None else moment(datetime.fromisoformat(watermark))


class BatchLines:
    """A line for each batch, or for the last of those that were done since the look before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[str, int | None]] = {}

    def show(self, standings: Sequence[Standing]) -> None:
        for it in standings:
            if changed(self._told, it):
                typer.echo(f"{moment(as_datetime(self._clock.now()))}  {batch_line(it)}")

    def apart(self, say: Callable[[], None]) -> None:
        say()

    def close(self) -> None:
        """Each line was the last."""


def batch_line(it: Standing) -> str:
    """One batch of a flow, or what became of the flow, in a line."""
    last = it.progress
    if it.state not in ("running", "catching up") or last.batch is None:
        return f"{it.flow}: {it.state}"
    waits = "" if it.waits_for is None else f": waits for {it.waits_for}"
    parts = [f"{counted(last.rows_in)} rows in", f"{counted(last.rows_out)} out{waits}"]
    parts += [f"{counted(last.rejected)} rejected"] if last.rejected else []
    parts += [f"{counted(last.late)} late"] if last.late else []
    parts += [f"{counted(last.too_late)} too late"] if last.too_late else []
    parts += [f"{last.batch_ms:,} ms", f"{counted(it.lag.records)} behind"]
    parts += [f"watermark {_time(last.watermark)}"] if last.watermark else []
    parts += [f"keeps {counted(last.state_rows)}"] if last.state_rows else []
    return f"{it.flow}: batch {last.batch}, {', '.join(parts)}"


class JsonLines:
    """The same as an object a line, for a program that watches."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int | None]] = {}

    def show(self, standings: Sequence[Standing]) -> None:
        for it in standings:
            if changed(self._told, it):
                sys.stdout.write(json.dumps(it.to_json(), ensure_ascii=False) + "\n")
                sys.stdout.flush()

    def apart(self, say: Callable[[], None]) -> None:
        say()

    def close(self) -> None:
        """Each line was the last."""


def changed(told: dict[str, tuple[str, int | None]], it: Standing) -> bool:
    """Whether there is anything new to say of a flow; notes that it was said."""
    now = (it.state, it.progress.batch)
    if now == told.get(it.flow, ("starting", None)):
        return False
    told[it.flow] = now
    return True


def show_standings(standings: Sequence[Standing]) -> None:
    """Where each flow stands at the end of a run, and so where the next one goes on."""
    show_table(
        [
            Column("flow", style="bold"), Column("state"), Column("last batch", "right"), Column("rows in", "right"),
            Column("rows out", "right"), Column("rejected", "right"), Column("late", "right"),
            Column("too late", "right"), Column("behind", "right"),
        ],
        (
            [
                it.flow, it.state, "none" if it.batch is None else str(it.batch),
                counted(it.counts.rows_in), counted(it.counts.rows_out), counted(it.counts.rejected),
                counted(it.counts.late), counted(it.counts.too_late), counted(it.lag.records),
            ]
            for it in standings
        ),
        empty="the program has no flows",
    )  # fmt: skip
    for it in standings:
        if it.waits_for is not None:
            typer.echo(f"{it.flow} waits for {it.waits_for}")
