"""`mainstem run`: the flows of a program, until they are stopped or have all that the log has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.errors import FlowFailed, MainstemError
from mainstem.workbench.cli.command_arguments import HomeOption, SparkOption, open_home
from mainstem.workbench.cli.error_text import FAILED, show_error, with_facts
from mainstem.workbench.cli.program_file import ProgramArgument, ProgramFile, load_program
from mainstem.workbench.cli.terminal_table import show_note, show_progress

if TYPE_CHECKING:
    from mainstem.flows.runner import RunningFlows
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.run_display import FlowStatus, RunDisplay, RunStatus

__all__ = ["RunSignals", "heeded_signals", "run_program"]


# Ctrl-C and the wish of the operating system that a run end, turned into a word the run heeds when it is ready.


class RunSignals:
    """What has come so far."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._came = threading.Event()

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first one asks; a second one does not wait."""
        if self.wanted is not None:
            raise KeyboardInterrupt
        self.wanted = number
        self._came.set()

    def wait(self, seconds: float) -> bool:
        """True as soon as the run is to end."""
        return self._came.wait(seconds)

    @property
    def status(self) -> int:
        """The exit status of a process that ended because of it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.wanted is None else 128 + self.wanted


@contextmanager
def heeded_signals() -> Iterator[RunSignals]:
    """Inside, Ctrl-C and SIGTERM ask for an orderly end. To be entered after Spark is started: its own handler would
    cancel the batches under way, so that every flow would seem to have failed."""
    signals = RunSignals()
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread alone.
        yield signals
        return
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Often enough for a person to see it move.
LOOK_SECONDS = 0.25
# A program that catches up for longer than this is better run without --until-idle.
IDLE_WAIT = "365 days"
# Two seconds: a report that is not there by then was lost, and nothing hangs on it.
REPORT_LOOKS_MAX = 40


def run_program(
    program: ProgramArgument,
    *,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when the flows have all that the log has.")
    ] = False,
    flow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this flow; may be given again.", show_default=False),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus, as 127.0.0.1:9464.", show_default=False),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="First end stopped processes that hold a lock of the home, and fence what they did."
        ),
    ] = False,
    spark: SparkOption = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each batch.")] = False,
    home: HomeOption = None,
) -> None:
    """Run the flows of a program (in the field: jobs). Ctrl-C stops them in order; the next run goes on from there.

    A flow that fails is told at once, with its cause first, and the others go on; the exit status is 1 then. Whoever runs
    a flow that runs elsewhere takes over from there. "Rows in" are those that came into Spark, without what a condition
    kept from being read.

    Example: mainstem run shop.py --until-idle
    """
    from mainstem.workbench.cli.before_spark import check_before_spark, check_writable
    from mainstem.workbench.cli.metrics_server import MetricsServer, parse_address

    address = None if metrics is None else parse_address(metrics)
    file = load_program(program)
    with open_home(home, upkeep="background", spark=spark) as stem, ExitStack() as stack:
        if take_over:
            show_note(str(stem.take_over()))
        run = _Run(stem, as_json=as_json)
        check_writable(stem.home)
        check_before_spark(stem, file, only=flow)
        # Before Spark: a port that is taken is known at once.
        server = None if address is None else stack.enter_context(MetricsServer(address, run.metrics))
        with show_progress("start Spark"):
            _ = stem.spark
        run.signals = stack.enter_context(heeded_signals())
        if server is not None:
            show_note(f"metrics at {server.url}")
        run.start(file, flow)
        status = run.to_the_end(until_idle=until_idle)
    raise typer.Exit(status)


class _Run:
    """One run, from the start of the flows to their end."""

    signals: RunSignals

    def __init__(self, stem: Mainstem, *, as_json: bool) -> None:
        self._stem = stem
        self._as_json = as_json
        self._status: RunStatus | None = None
        self._told: set[str] = set()
        self._idle = threading.Event()

    def start(self, file: ProgramFile, only: list[str] | None) -> None:
        """Build the program and start its flows."""
        from mainstem.workbench.cli.run_display import RunCounts, RunStatus, run_display

        counts = RunCounts(self._stem)
        self._file = file
        with file.building():
            self._running: RunningFlows = self._stem.start(file.flows, only=only)
        self._status = RunStatus(self._stem, self._running, counts)
        self._display: RunDisplay = run_display(self._stem.log.clock, as_json=self._as_json)

    def metrics(self) -> str:
        """The page of metrics; without a line until the flows are started."""
        return "" if self._status is None else self._status.page()

    def _now(self) -> list[FlowStatus]:
        assert self._status is not None
        return self._status.now()

    def to_the_end(self, *, until_idle: bool) -> int:
        """Show the run until it is over, stop what still runs; the exit status."""
        try:
            if until_idle:
                threading.Thread(target=self._wait_until_idle, name="mainstem-until-idle", daemon=True).start()
            while not self._look() and not self._idle.is_set() and not self.signals.wait(LOOK_SECONDS):
                pass
            if self.signals.wanted is not None:
                self._display.apart(lambda: show_note("stopping; once more Ctrl-C does not wait for it"))
        finally:
            # Also after a second Ctrl-C: whatever can still be stopped in order is.
            self._running.stop()
            self._look()
            self._display.close()
        if not self._as_json:
            from mainstem.workbench.cli.run_display import show_status

            show_status(self._now())
        return FAILED if self._told else self.signals.status

    def _look(self) -> bool:
        """Show how the flows stand, tell of those that failed; True when all have ended."""
        self._display.show(self._now())
        for handle in self._running:
            if handle.error is not None and handle.name not in self._told:
                self._told.add(handle.name)
                self._tell(handle.error)
        return all(handle.state in ("stopped", "failed") for handle in self._running)

    def _tell(self, error: FlowFailed) -> None:
        hint = self._file.named_in(error.hint)
        self._display.apart(lambda: show_error(with_facts(error, hint=hint)))

    def _wait_until_idle(self) -> None:
        """Until every flow has everything, also what the others gave it meanwhile; one that failed is not waited for."""
        before, moment = -1, threading.Event()
        # Spark calls a flow idle after a trigger without rows, as the first one after a restart may be.
        while before != (before := sum(handle.batches for handle in self._running)) or not self._running.caught_up():
            moment.wait(LOOK_SECONDS / 5)
            for handle in self._running:
                try:
                    handle.wait_until_idle(IDLE_WAIT)
                except MainstemError:
                    # It is told where the flows are shown.
                    continue
        self._wait_until_reported()
        self._idle.set()

    def _wait_until_reported(self) -> None:
        """Spark tells of a batch a moment after it is done; the last ones belong to what is said at the end."""
        moment = threading.Event()
        for _ in range(REPORT_LOOKS_MAX):
            if not any(handle.written for handle in self._running):
                return
            moment.wait(LOOK_SECONDS / 5)
