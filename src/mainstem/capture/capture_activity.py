"""CaptureActivity: what happens to a capture, as rows of the topic `mainstem.activity`.

A capture that cannot reach its source tries again with growing pauses: that is one wait, with a row when it begins and one when the
capture works again. Waits that follow each other closely have no rows of their own; the next row has their number.
"""

from __future__ import annotations

from mainstem.capture.capture_status import CaptureStatus
from mainstem.errors import Fenced, MainstemError, Unavailable, summary_of
from mainstem.log.activity import NotedWaits, What, note_activity
from mainstem.log.log import Log

__all__ = ["CaptureActivity"]


class CaptureActivity:
    """The activity of one run of a capture. For the thread that runs it."""

    def __init__(self, log: Log, name: str, source: str) -> None:
        self._log = log
        self._name = name
        self._source = source
        self._begun = False
        self._waits = NotedWaits()

    def found(self, before: CaptureStatus | None) -> None:
        """The last report of the run before: was its process killed?"""
        if before is None or before.state not in ("running", "waiting") or before.running:
            return
        self._note(
            "killed",
            f'capture "{self._name}" was killed',
            f"Its process {before.process['pid']} ended without stopping it.",
            "Nothing is lost: the next run continues after the last position in the log.",
        )

    def works(self, position: str | None) -> None:
        """It reads the stream of its source: for the first time, or again after a wait."""
        if not self._begun:
            self._begun = True
            self._waits.end()
            where = "from the beginning" if position is None else f"after {position}"
            self._note("begun", f'capture "{self._name}" of {self._source} began {where}')
        elif self._waits.now and self._waits.end():
            self._note("restarted", f'capture "{self._name}" works again')

    def waits(self, cause: Unavailable) -> None:
        """It retries because of this; called for each attempt."""
        more = self._waits.begin(self._log.clock.monotonic())
        if more is not None:
            text = f'capture "{self._name}" waits and retries{more}: {cause.summary}'
            self._note("waiting", text, cause.detail, cause.hint)

    def ended(self, position: str | None) -> None:
        """It was stopped, or has read everything."""
        if self._begun:
            where = "before its first position" if position is None else f"at {position}"
            self._note("ended", f'capture "{self._name}" stopped {where}')

    def failed(self, error: BaseException) -> None:
        """It ended with an error."""
        what: What = "fenced" if isinstance(error, Fenced) else "failed"
        if isinstance(error, MainstemError):
            self._note(what, f'capture "{self._name}" failed: {error.summary}', error.detail, error.hint)
        elif isinstance(error, Exception):
            self._note(what, f'capture "{self._name}" failed: {summary_of(error)}')

    def _note(self, what: What, text: str, detail: str = "", hint: str = "") -> None:
        note_activity(self._log, "capture", self._name, what, text, detail=detail, hint=hint)
