"""`mainstem run`: runs the flows of a program, until they are stopped or idle."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mainstem.errors import FlowFailed, FlowNotFound, MainstemError
from mainstem.workbench.cli.command_arguments import HomeOption, SparkOption, open_home
from mainstem.workbench.cli.error_text import FAILED, show_error, with_facts
from mainstem.workbench.cli.program_file import ProgramArgument, ProgramFile, load_program
from mainstem.workbench.cli.terminal_table import show_note, show_progress

if TYPE_CHECKING:
    from mainstem.capture.capture_process import CaptureProcess
    from mainstem.flows.runner import RunningFlows
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.run_display import FlowStatus, RunDisplay, RunStatus

__all__ = ["RunSignals", "handle_signals", "run_program"]


# Turns Ctrl-C and SIGTERM into a flag that the run checks.


class RunSignals:
    """The signals received so far."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._came = threading.Event()

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first one requests the end; a second one ends at once."""
        if self.wanted is not None:
            raise KeyboardInterrupt
        self.wanted = number
        self._came.set()

    def wait(self, seconds: float) -> bool:
        """True as soon as the run is to end."""
        return self._came.wait(seconds)

    @property
    def status(self) -> int:
        """The exit status after the signal: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.wanted is None else 128 + self.wanted


@contextmanager
def handle_signals() -> Iterator[RunSignals]:
    """Inside, Ctrl-C and SIGTERM request a graceful end. Entered after Spark is started: Spark's own handler would
    cancel the running batches, so that every flow would seem to have failed."""
    signals = RunSignals()
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals.
        yield signals
        return
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Often enough that a user sees it move.
LOOK_SECONDS = 0.25
# Longer than any program should take with --until-idle.
IDLE_WAIT = "365 days"
# Two seconds: a report that is missing by then was lost, and nothing depends on it.
REPORT_LOOKS_MAX = 40


def run_program(
    program: ProgramArgument,
    *,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when the flows have caught up with the log.")
    ] = False,
    flow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this flow; may be repeated."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9464.",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="First kill stopped processes that hold a lock of the home, and fence their unfinished writes.",
        ),
    ] = False,
    spark: SparkOption = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each batch.")] = False,
    home: HomeOption = None,
) -> None:
    """Run the flows of a program (jobs). Ctrl-C stops them gracefully; the next run continues from there.

    Captures of the program run beside them in a process of their own; with --until-idle, before them. If one fails, the
    flows are stopped, and the exit status is 1. A program with only captures is run as by `capture run`, without Spark.

    A failed flow is reported at once, with its root cause first, and the others continue; the exit status is then 1. A
    flow that runs in another process is taken over from it. "Rows in" counts the rows that Spark read, without those
    that a filter kept from being read.

    Example: mainstem run shop.py --until-idle
    """
    from mainstem.workbench.cli.before_spark import check_before_spark, check_writable
    from mainstem.workbench.cli.metrics_server import MetricsServer, parse_address

    address = None if metrics is None else parse_address(metrics)
    file = load_program(program, captures_suffice=True)
    if file.without_flows:
        from mainstem.workbench.cli.capture_commands import run_captures

        if flow:
            raise FlowNotFound(
                f'the program has no flow "{flow[0]}"',
                detail="It has a function `captures` and no function `flows`.",
                hint="Leave --flow out.",
            )
        show_note("the program has no function `flows`: its captures are run alone")
        run_captures(file, until_idle=until_idle, metrics=metrics, as_json=as_json, home=home, take_over=take_over)
    missing: Literal["make", "refuse"] = "make" if file.captures else "refuse"
    with open_home(home, missing=missing, upkeep="background", spark=spark) as stem, ExitStack() as stack:
        if take_over:
            show_note(str(stem.take_over()))
        run = _Run(stem, as_json=as_json)
        check_writable(stem.home)
        # Before Spark, so that a port in use is reported at once.
        server = None if address is None else stack.enter_context(MetricsServer(address, run.metrics))
        stack.enter_context(run.capture(file, until_idle=until_idle))
        check_before_spark(stem, file, only=flow)
        with show_progress("starting Spark, which takes some seconds"):
            _ = stem.spark
        run.signals = stack.enter_context(handle_signals())
        if server is not None:
            show_note(f"metrics at {server.url}")
        run.start(file, flow)
        status = run.finish(until_idle=until_idle)
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
        self._captures: CaptureProcess | None = None
        self._display: RunDisplay | None = None
        # What captures say while Spark starts: its progress bar would erase it.
        self._held: list[str] | None = None

    @contextmanager
    def capture(self, file: ProgramFile, *, until_idle: bool) -> Iterator[None]:
        """Inside, the captures of the program run; or they have ended, if they are to be idle before the flows begin."""
        if file.captures is None:
            yield
            return
        from mainstem.capture.capture_notes import CaptureNotes
        from mainstem.capture.capture_process import start_captures
        from mainstem.workbench.cli.capture_commands import capture_warnings, captures_of_program

        # In a pipe the lines of a run are those of its flows.
        notes = CaptureNotes(self._note).take if sys.stderr.isatty() else lambda status: None
        with capture_warnings(self._note), ExitStack() as stack:
            found = captures_of_program(self._stem, file)
            self._captures = start_captures(
                self._stem.log, self._stem.home, found, until="idle" if until_idle else "stopped", tell=notes
            )
            if self._captures is not None:
                stack.enter_context(self._captures)
                if until_idle:
                    self._captures.wait()
            self._held = []
            yield

    def _note(self, text: str) -> None:
        if self._display is not None:
            self._display.print_apart(lambda: show_note(text))
        elif self._held is not None:
            self._held.append(text)
        else:
            show_note(text)

    def start(self, file: ProgramFile, only: list[str] | None) -> None:
        """Build the program and start its flows."""
        from mainstem.flows.runner import start_flows
        from mainstem.workbench.cli.run_display import RunCounts, RunStatus, run_display

        counts = RunCounts(self._stem)
        self._file = file
        with show_progress(f"building the flows of {file.path}"), file.locate_errors():
            self._running: RunningFlows = start_flows(self._stem, file.flows, only, captures=self._captures)
        self._status = RunStatus(self._stem, self._running, counts)
        for text in self._held or ():
            show_note(text)
        self._display = run_display(self._stem.log.clock, as_json=self._as_json)

    def metrics(self) -> str:
        """The page of metrics; without flows until they are started."""
        from mainstem.workbench.cli.metrics_server import capture_metrics

        captures = "" if self._captures is None else capture_metrics(self._captures.statuses.values())
        return captures + ("" if self._status is None else self._status.page())

    def _now(self) -> list[FlowStatus]:
        assert self._status is not None
        return self._status.now()

    def finish(self, *, until_idle: bool) -> int:
        """Show the run until it ends, and stop the flows that still run; returns the exit status."""
        assert self._display is not None
        try:
            if until_idle:
                threading.Thread(target=self._wait_until_idle, name="mainstem-until-idle", daemon=True).start()
            while not self._look() and not self._idle.is_set() and not self.signals.wait(LOOK_SECONDS):
                pass
            if self.signals.wanted is not None:
                self._note("stopping; press Ctrl-C again to stop at once")
        finally:
            # Also after a second Ctrl-C: stop gracefully what can still be stopped.
            self._running.stop()
            self._look()
            self._display.close()
        if not self._as_json:
            from mainstem.workbench.cli.run_display import show_status

            show_status(self._now())
        return FAILED if self._told else self.signals.status

    def _look(self) -> bool:
        """Show the status of the flows, report failed ones; True when all have ended."""
        assert self._display is not None
        self._display.show(self._now())
        if self._captures is not None and (failed := self._captures.error) is not None and "" not in self._told:
            # The empty name is no flow's.
            self._told.add("")
            self._display.print_apart(lambda: show_error(failed))
        for handle in self._running:
            if handle.error is not None and handle.name not in self._told:
                self._told.add(handle.name)
                self._tell(handle.error)
        return all(handle.state in ("stopped", "failed") for handle in self._running)

    def _tell(self, error: FlowFailed) -> None:
        assert self._display is not None
        hint = self._file.fill_hint(error.hint)
        self._display.print_apart(lambda: show_error(with_facts(error, hint=hint)))

    def _wait_until_idle(self) -> None:
        """Until every flow has caught up, also with the output of the others; failed flows are not waited for."""
        before, moment = -1, threading.Event()
        # Spark calls a flow idle after a trigger without rows, which may be the first one after a restart.
        while before != (before := sum(handle.batches for handle in self._running)) or not self._running.caught_up():
            moment.wait(LOOK_SECONDS / 5)
            for handle in self._running:
                try:
                    handle.wait_until_idle(IDLE_WAIT)
                except MainstemError:
                    # It is reported where the flows are shown.
                    continue
        self._wait_until_reported()
        self._idle.set()

    def _wait_until_reported(self) -> None:
        """Spark reports a batch shortly after it is committed; the last ones belong to the final status."""
        moment = threading.Event()
        for _ in range(REPORT_LOOKS_MAX):
            if not any(handle.written for handle in self._running):
                return
            moment.wait(LOOK_SECONDS / 5)
