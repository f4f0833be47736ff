"""CaptureProcess: captures in a process of their own, without Spark, for as long as the process that started it.

The child gets what it is to do as one line of JSON on its standard input, which nobody else can read: addresses may have
passwords. It ends when its standard input ends, when its parent dies, or at SIGTERM. On its standard output it reports, a
line of JSON each:

    {"status": {...}}           about once a second for each capture
    {"log": [level, text]}      for the parent's logging
    {"failed": {...}}           the error that ended it
    {"ended": true}             the last line; without it, it died
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, Self

from mainstem import errors
from mainstem.capture.capture import Capture
from mainstem.capture.capture_status import CaptureStatus
from mainstem.capture.capture_threads import CaptureThreads
from mainstem.capture.captured_topics import find_or_make_topics, make_topics
from mainstem.errors import MainstemError, Unavailable
from mainstem.log.log import Log
from mainstem.log.opened_log import opened_log
from mainstem.processes import DeathWatch, this_process

__all__ = ["CaptureProcess", "error_from_json", "error_to_json", "start_captures"]

LOGGER = logging.getLogger("mainstem.capture")

# A chunk that is being committed is waited for; then the process is killed, which loses nothing.
STOP_SECONDS = 30
# How often the child looks whether its captures have ended.
LOOK_MILLISECONDS = 100


class CaptureProcess:
    """The captures of a program, running in a child process. With `with` it is stopped at the end.

    `tell` gets the status of each capture about once a second, from a thread of its own. Thread-safe.
    """

    def __init__(
        self, captures: Sequence[Capture], *, home: str, address: str = "", until: Literal["stopped", "idle"] = "stopped",
        tell: Callable[[CaptureStatus], None] = lambda status: None,
    ) -> None:  # fmt: skip
        self.names = [one.name for one in captures]
        self.error: MainstemError | None = None
        self.statuses: dict[str, CaptureStatus] = {}
        self._tell = tell
        self._stopping = self._over = False
        self._ended = threading.Event()
        # Not in the terminal's group: Ctrl-C is for the parent, which stops it in order. -P: a file in the current directory
        # must not take the place of a library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mainstem.capture.capture_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="mainstem-captures", daemon=True)
        spec = {
            "captures": [one.to_json() for one in captures],
            "home": os.path.abspath(home),
            "address": address,
            "until": until,
            "parent": this_process(),
        }
        assert self._process.stdin is not None
        # If it has ended already, that is reported by the reader.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(spec).encode() + b"\n")
            self._process.stdin.flush()
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child's id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all captures; the next run continues there. May be called twice."""
        self._stopping = True
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def wait(self) -> None:
        """Return when all captures have ended; raises the error of one that failed."""
        self._reader.join()
        self.check()

    def check(self) -> None:
        """Raise the error that ended the captures, if any."""
        if self.error is not None:
            raise self.error

    @property
    def ended(self) -> bool:
        """Whether all captures have ended."""
        return self._ended.is_set()

    def when_failed(self, do: Callable[[], None]) -> None:
        """Call `do`, from a thread of its own, once the captures have failed."""

        def wait() -> None:
            self._ended.wait()
            if self.error is not None:
                do()

        threading.Thread(target=wait, name="mainstem-captures-end", daemon=True).start()

    # What the child reports

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    self._take(json.loads(line))
        status = self._process.wait()
        if self.error is None and not self._over and not self._stopping:
            self.error = self._died(status)
        self._ended.set()

    def _take(self, report: Mapping[str, Any]) -> None:
        if "status" in report:
            status = CaptureStatus(**report["status"])
            self.statuses[status.name] = status
            self._tell(status)
        elif "log" in report:
            LOGGER.log(*report["log"])
        elif "failed" in report:
            self.error = error_from_json(report["failed"])
        elif "ended" in report:
            self._over = True

    def _died(self, status: int) -> Unavailable:
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        return Unavailable(
            f"the process of captures {', '.join(self.names)} died",
            detail=f"Process {self.pid} ended {how} and reported no error.",
            hint="Run the program again: captures continue after the last position in the log. If it was killed, the machine "
            "may be out of memory.",
        )


def start_captures(
    log: Log, home: str, captures: Sequence[Capture], *, until: Literal["stopped", "idle"] = "stopped",
    tell: Callable[[CaptureStatus], None] = lambda status: None,
) -> CaptureProcess | None:  # fmt: skip
    """Make the topics of captures, and start these in a process of their own; None if there are none."""
    for one in captures:
        # A run that ends by itself does not wait for a source that does not answer.
        (make_topics if until == "idle" else find_or_make_topics)(log, home, one)
    return CaptureProcess(captures, home=home, address=log.address, until=until, tell=tell) if captures else None


# Errors as JSON: the parent raises the one that the child raised.


def error_to_json(error: MainstemError) -> dict[str, Any]:
    """The parts and fields of an error; fields that JSON does not have become text."""
    fields = {name: value for name, value in vars(error).items() if name not in ("detail", "hint", "__notes__")}
    found: dict[str, Any] = json.loads(json.dumps(fields, default=str))
    return {
        "class": type(error).__name__, "summary": error.summary, "detail": error.detail, "hint": error.hint, "fields": found,
    }  # fmt: skip


def error_from_json(value: Mapping[str, Any]) -> MainstemError:
    """The error.

    >>> error_from_json(error_to_json(errors.PositionLost("it is gone", hint="Read again.", position="0/1")))
    PositionLost('it is gone')
    """
    found = getattr(errors, value["class"], None)
    chosen = found if isinstance(found, type) and issubclass(found, MainstemError) else MainstemError
    return chosen(value["summary"], detail=value["detail"], hint=value["hint"], **value["fields"])


# The child


class _Reports(logging.Handler):
    """Writes lines to the parent; one that cannot be written is for nobody."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self._handle = handle
        self._one_at_a_time = threading.Lock()

    def write(self, report: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(report, default=str).encode() + b"\n")
        with self._one_at_a_time, suppress(OSError):
            while data:
                data = data[os.write(self._handle, data) :]

    def emit(self, record: logging.LogRecord) -> None:
        self.write({"log": [record.levelno, self.format(record)]})


def main() -> None:
    """Run the captures that standard input names."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ending.set())
    with os.fdopen(os.dup(0), "rb", buffering=0) as given:
        spec = json.loads(given.readline())
    reports = _Reports(os.dup(1))
    # What a library prints must not be taken for a report.
    os.dup2(2, 1)
    LOGGER.addHandler(reports)
    LOGGER.propagate = False
    LOGGER.setLevel(logging.DEBUG)
    try:
        log = opened_log(spec["home"], spec["address"])
        captures = [Capture.from_json(one) for one in spec["captures"]]
        threads = CaptureThreads(
            log,
            spec["home"],
            captures,
            until=spec["until"],
            tell=lambda status: reports.write({"status": asdict(status)}),
        )
        threads.start()
        _watch(threads, DeathWatch([spec["parent"]]), ending)
        threads.stop()
        threads.join(STOP_SECONDS)
        if threads.error is not None:
            reports.write({"failed": error_to_json(threads.error)})
        log.close()
    except MainstemError as error:
        reports.write({"failed": error_to_json(error)})
    reports.write({"ended": True})


def _watch(threads: CaptureThreads, parent: DeathWatch, ending: threading.Event) -> None:
    """Until the captures have ended, or are to end."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    parent.register(poll)
    while not (ending.is_set() or parent.gone or threads.join(0)):
        # The parent sends nothing more: what can be read is the end. A signal interrupts it for no longer than a look.
        if poll.poll(LOOK_MILLISECONDS):
            return


if __name__ == "__main__":
    main()
