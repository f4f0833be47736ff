"""FlowActivity: what happens to a flow, as rows of the topic `mainstem.activity`.

A flow that cannot reach a store, a database or a broker retries with growing delays: that is one wait, with a row when it
begins and one when the flow works again. Waits that follow each other closely have no rows of their own; the next row has
their number. So a flow writes at most a few rows a minute, whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.batch import FlowRun
from mainstem.errors import Fenced, FlowFailed, MainstemError, Unavailable
from mainstem.log.activity import NotedWaits, What, note_activity
from mainstem.log.log import Log
from mainstem.spark.checkpoint.flow_store import FlowStore, flow_names

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FlowActivity", "note_killed"]

# Spark's status of a query that has read everything.
IDLE = "Waiting for data to arrive"


class FlowActivity:
    """The activity of one flow in a run of its program. For the thread that watches the flow."""

    def __init__(self, log: Log, flow: str) -> None:
        self._log = log
        self._flow = flow
        self._version: int | None = None
        self._waits = NotedWaits()
        # The number of batches when the wait ended, after which the flow works again.
        self._batches = 0

    def begun(self, run: FlowRun, batch: int | None) -> None:
        """A run of this version has started; `batch` is its last one. Another attempt after a wait is not noted."""
        if run.version == self._version:
            return
        first, self._version = self._version is None, run.version
        where = "at its first batch" if batch is None else f"after batch {batch}"
        verb = "began" if first else "continues"
        self._note(run, "begun", f'flow "{self._flow}" {verb} with version {run.version}, {where}')

    def waits(self, run: FlowRun | None, cause: Unavailable, batches: int) -> None:
        """The flow retries because of this; called for each attempt, with the number of batches that it has done."""
        self._batches = batches
        more = self._waits.begin(self._log.clock.monotonic())
        if more is not None:
            text = f'flow "{self._flow}" waits and retries{more}: {cause.summary}'
            self._note(run, "waiting", text, cause.detail, cause.hint)

    def look(self, run: FlowRun, batches: int, query: StreamingQuery) -> None:
        """Note that a flow that waited works again: it has done a batch, or has nothing to do. Called once a second."""
        if self._waits.now and (batches > self._batches or query.status["message"] == IDLE):
            self._works(run)

    def ended(self, run: FlowRun | None, batches: int, batch: int | None) -> None:
        """The flow was stopped after this batch."""
        if run is None:
            return
        if self._waits.now and batches > self._batches:
            self._works(run)
        where = "before its first batch" if batch is None else f"after batch {batch}"
        self._note(run, "ended", f'flow "{self._flow}" stopped {where}')

    def failed(self, run: FlowRun | None, error: FlowFailed) -> None:
        """The flow has ended with an error."""
        what: What = "fenced" if isinstance(error.__cause__, Fenced) else "failed"
        self._note(run, what, error.summary, error.detail, error.hint)

    def _works(self, run: FlowRun) -> None:
        if self._waits.end():
            self._note(run, "restarted", f'flow "{self._flow}" works again')

    def _note(self, run: FlowRun | None, what: What, text: str, detail: str = "", hint: str = "") -> None:
        version, epoch = (None, None) if run is None else (run.version, run.epoch)
        note_activity(self._log, "flow", self._flow, what, text, version=version, epoch=epoch, detail=detail, hint=hint)


def note_killed(log: Log, home: str) -> None:
    """Note the runs of any flow of the home whose process died without recording an exit, each once."""
    for name in flow_names(home):
        try:
            killed = FlowStore(home, name).find_killed()
        except (MainstemError, OSError):
            # Damaged, or not to be written to.
            continue
        for version, run in killed:
            note_activity(
                log, "flow", name, "killed", f'flow "{name}" was killed', version=version, epoch=run["epoch"],
                detail=f"Its process {run['process']['pid']} ended without stopping it.",
                hint="Nothing is lost: the next run continues with the batch that was not finished.",
            )  # fmt: skip
