"""What `stem.run` says of itself, on standard error, if that is a terminal: Spark starts, a batch is over, what is waited for.

In a pipe, a test or a service it says nothing; `mainstem.progress` has every batch. `mainstem run` has a display of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from mainstem.capture.capture_notes import CaptureNotes
from mainstem.errors import MainstemError
from mainstem.flows.flow_waits import waits_for, way_to_learn_more
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.rejected_rows import rejected_topic_of

if TYPE_CHECKING:
    from mainstem.capture.capture_status import CaptureStatus
    from mainstem.flows.flow_handle import FlowHandle, FlowProgress
    from mainstem.stem import Mainstem

__all__ = ["RunNotes", "batch_text"]

# Two seconds: a report that is missing by then was lost, and nothing depends on it.
REPORT_LOOK_SECONDS, REPORT_LOOKS_MAX = 0.05, 40


def batch_text(flow: str, batch: FlowProgress, *, behind: int, waits: str = "") -> str:
    """One batch in a line: its number, its rows, how long it took; `waits` says why it has no output."""
    parts = [f"{batch.rows_in:,} rows in", f"{batch.rows_out:,} out" + (f": waits for {waits}" if waits else "")]
    for count, word in (
        (batch.rejected, f"rejected into {rejected_topic_of(flow)}"),
        (batch.late, "late"),
        (batch.too_late, "too late"),
    ):
        parts += [f"{count:,} {word}"] if count else []
    parts += [f"{batch.batch_ms:,} ms", f"{behind:,} behind"]
    return f"batch {batch.batch}, {', '.join(parts)}"


class RunNotes:
    """Says what a run does. Thread-safe: each note is one write."""

    def __init__(self, stem: Mainstem) -> None:
        self._stem = stem
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._explained: set[str] = set()
        # How many notes about the store of each flow were told.
        self._told: dict[str, int] = {}
        self._captures = CaptureNotes(self.say)

    def say(self, text: str) -> None:
        """One line, on a terminal."""
        if self._shown:
            sys.stderr.write(f"mainstem: {text}\n")
            sys.stderr.flush()

    def begin(self, handles: Iterable[FlowHandle], until: str) -> None:
        """The flows have started."""
        names = ", ".join(handle.name for handle in handles)
        self.say(f"running {names or 'no flows'}; {'until all is read' if until == 'idle' else 'Ctrl-C stops it'}")

    def capture(self, status: CaptureStatus) -> None:
        """A capture has reported its status."""
        if self._shown:
            self._captures.take(status)

    def batch(self, handle: FlowHandle) -> None:
        """A batch of a flow is over. One without rows is not worth a line."""
        last = handle.progress
        self._tell_notes(handle)
        if not self._shown or not (last.rows_in or last.rows_out):
            return
        waits = "" if last.rows_out else self._waits_for(handle)
        self.say(f"{handle.name}: {batch_text(handle.name, last, behind=last.lag_records, waits=waits)}")
        if waits and handle.name not in self._explained:
            self._explained.add(handle.name)
            self.say(way_to_learn_more(handle.name))

    def _tell_notes(self, handle: FlowHandle) -> None:
        told = self._told.get(handle.name, 0)
        self._told[handle.name] = told + len(new := handle.notes[told:])
        for note in new:
            self.say(f"{handle.name}: {note}")

    def end(self, handles: Iterable[FlowHandle]) -> None:
        """All records are processed. Spark reports a batch shortly after it is committed: its line is waited for."""
        if not self._shown:
            return
        moment = threading.Event()
        for _ in range(REPORT_LOOKS_MAX):
            if not any(handle.written for handle in handles):
                break
            moment.wait(REPORT_LOOK_SECONDS)
        for handle in handles:
            self._tell_notes(handle)
        self.say("all records are read")

    def _waits_for(self, handle: FlowHandle) -> str:
        if handle.run is None or not handle.planned.stages:
            return ""
        with suppress(MainstemError, OSError):
            checkpoint = FlowStore(self._stem.home, handle.run.flow).checkpoint(handle.run.version)
            found = waits_for(self._stem, checkpoint)
            return "" if found is None else str(found)
        return ""
