"""NativeCatchUp: a flow that starts far behind reads sealed files with Spark's own file source, then goes live.

    link        hard links of the sealed files, beside the checkpoint; then the note (`native_history`)
    files       a query over Spark's file source; after each batch is written, the next portion is placed
    switch      when the last portion is committed, that query is stopped
    live        another query on the same checkpoint, over the topic source; it gets the file source's last offset,
                and translates it with the note into offsets of the log
    remove      the links, when a batch of the live query is committed

A run that is killed at any point finds its position in the checkpoint: batches planned as files are finished as files,
since Spark replays them; after a batch of the topic source is planned, files are not read again.

Not for a flow whose reader computes its rows as columns, which costs less (`columnar_rows`). Only for a flow with one source, a whole topic, and no operator that evicts or drops by a watermark: Spark's watermark
is the highest event time read so far, and files are not cut by event time. And only if the files can be divided
into portions that do not end inside a transaction: a sink never has a part of one.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mainstem.crash_points import reach
from mainstem.errors import Conflict, CorruptHome
from mainstem.log.first_reads import is_captured
from mainstem.log.log import Log, TopicBackend
from mainstem.spark.checkpoint.checkpoint_location import is_elsewhere
from mainstem.spark.checkpoint.checkpoint_offsets import HistoryStatus, file_offset, history_status, last_batch
from mainstem.spark.checkpoint.native_history import (
    HistoryLimits,
    NativeHistory,
    link_history,
    noted_history,
    sealed_history,
)
from mainstem.spark.plan.flow_plan import has_watermark, only_request
from mainstem.spark.sources.topic_request import BYTES_MAX, LIGHT_ROWS_MAX

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow

__all__ = ["ROWS_MIN", "NativeCatchUp", "could_catch_up", "foreseen_history"]

# With fewer rows a second query does not pay: it costs a third of a second of CPU time, and a row from a file saves 0.2 to
# 0.35 microseconds.
ROWS_MIN = 1_000_000
# The state of these does not depend on the order of rows. That of a limit does, that of a user's own code may.
ORDERLESS = {"aggregate", "deduplicate"}
# Spark's file source reads the home's path as a glob pattern.
PATTERN = frozenset("*?[]{}\\")


def could_catch_up(planned: PlannedFlow) -> bool:
    """Whether a flow gives the same rows if it reads sealed files first."""
    request = only_request(planned.flow.rows)
    return (
        request is not None
        and request.start == "earliest"
        and request.cuts is None
        and not planned.stages
        and not planned.columnar
        and all(operator.name in ORDERLESS for operator in planned.operators)
        and not (planned.operators and has_watermark(planned.flow.rows))
    )


class NativeCatchUp:
    """The catch-up of one run of a flow. For one thread at a time."""

    def __init__(self, checkpoint: str, history: NativeHistory) -> None:
        self.history = history
        self._checkpoint = checkpoint
        self._removed = False

    @classmethod
    def begin(cls, planned: PlannedFlow, checkpoint: str, log: Log) -> NativeCatchUp | None:
        """The catch-up of a checkpoint: in progress, finished or new; None if there is none."""
        if is_elsewhere(checkpoint):
            # Spark's own metadata of files would be stored there too.
            return None
        history = noted_history(checkpoint)
        if history is None and last_batch(checkpoint, "offsets") is None and could_catch_up(planned):
            history = _link_and_note(planned, checkpoint, log)
        return None if history is None else cls(checkpoint, _relocate(history, checkpoint))

    @property
    def over(self) -> bool:
        """Whether everything in the files is committed."""
        planned, done = last_batch(self._checkpoint, "offsets"), last_batch(self._checkpoint)
        if planned is None:
            return False
        at = file_offset(self._checkpoint, planned)
        return at is None or (planned == done and at == self.history.last)

    def prepare(self) -> None:
        """Place the files that the query over files reads first; call it before the query starts."""
        planned, done = last_batch(self._checkpoint, "offsets"), last_batch(self._checkpoint)
        reached = -1 if planned is None else file_offset(self._checkpoint, planned)
        assert reached is not None, "the topic source has begun"
        self._check_noted(reached)
        if planned == done:
            self.history.place(reached + 1)
        elif gone := self.history.find_missing(reached):
            raise _damage_error(self.history.read, f"The files of the current batch are missing: {', '.join(gone)}.")
        # Else the current batch has its files; the next ones are placed after it is written.

    def advance(self, number: int) -> None:
        """After a batch is committed: place the next files, or remove the links if they are no longer needed."""
        at = file_offset(self._checkpoint, number)
        if at is None:
            if not self._removed and file_offset(self._checkpoint, number - 1) is None:
                self.history.remove()
                self._removed = True
            return
        # The last committed batch may be replayed, if its commit turns out to be damaged.
        self.history.let_go(at - 2)
        if at < self.history.last:
            self.history.place(at + 1)
            reach("history_placed", number)

    def _check_noted(self, reached: int) -> None:
        """Raise `CorruptHome` if Spark would silently skip files or read them twice."""
        folder = f"{self._checkpoint}/sources/0"
        known = _files_in(folder)
        for number in (reached - 1, reached):
            if number < 0:
                continue
            if not known.issuperset(self.history.portions[number].files):
                raise _damage_error(folder, f"It does not name the files of portion {number}, which was planned.")


def _relocate(history: NativeHistory, checkpoint: str) -> NativeHistory:
    """The history with the current path of its links: the home may have been moved. Spark knows files by name."""
    here = f"{checkpoint}/history/{os.path.basename(history.folder)}"
    if not os.path.isdir(here) or (os.path.isdir(history.folder) and os.path.samefile(here, history.folder)):
        return history
    planned = last_batch(checkpoint, "offsets")
    if planned != last_batch(checkpoint) and planned is not None and file_offset(checkpoint, planned) is not None:
        raise Conflict(
            f'the home of "{checkpoint}" was moved in the middle of a batch',
            detail=f'Spark repeats batch {planned} and looks for its files in "{history.folder}".',
            hint="Move the home back and run the program there until it is idle. Or start over: delete the checkpoint "
            "together with what the flow has written; the next run rebuilds both from the log.",
        )
    return replace(history, folder=here)


def foreseen_history(planned: PlannedFlow, checkpoint: str, log: Log) -> HistoryStatus | None:
    """The sealed files that a run started now would read before it goes live; None if none."""
    status = history_status(checkpoint)
    if status is not None:
        return None if status.over else status
    if last_batch(checkpoint, "offsets") is not None or not could_catch_up(planned):
        return None
    topic = _topic_of(planned, checkpoint, log)
    sealed = None if topic is None else sealed_history(topic, _limits(planned))
    return None if sealed is None else HistoryStatus(sealed.rows, 0)


def _topic_of(planned: PlannedFlow, checkpoint: str, log: Log) -> TopicBackend | None:
    [name] = planned.topics
    if name not in log.topic_names():
        return None  # an earlier flow of the program will create it
    topic = log.open_topic(name)
    # The first batch over captured rows has an end of its own.
    return None if PATTERN & set(checkpoint) or is_captured(topic.settings) else topic


def _limits(planned: PlannedFlow) -> HistoryLimits:
    sink = planned.flow.into
    # A view or a store with the column `record` finds the last row of a key by it.
    ordered = sink.kind == "topic" or (sink.kind in ("view", "store") and "record" not in planned.schema.names)
    return HistoryLimits(ROWS_MIN, planned.rows_max, planned.flow.rows_max or LIGHT_ROWS_MAX, BYTES_MAX, ordered)


def _link_and_note(planned: PlannedFlow, checkpoint: str, log: Log) -> NativeHistory | None:
    topic = _topic_of(planned, checkpoint, log)
    history = None if topic is None else link_history(topic, checkpoint, _limits(planned))
    if history is None:
        return None
    history.note(checkpoint)
    reach("history_noted")
    # If another run was faster, its links are used.
    return noted_history(checkpoint)


def _files_in(folder: str) -> set[str]:
    """The names of the files that Spark's file source has recorded as seen."""
    found = set()
    try:
        names = [name for name in os.listdir(folder) if name.removesuffix(".compact").isdigit()]
    except FileNotFoundError:
        return set()
    for name in names:
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
            for line in file.read().splitlines()[1:]:
                try:
                    entry: dict[str, Any] = json.loads(line)
                except ValueError as error:
                    raise _damage_error(f"{folder}/{name}", f"It is not valid JSON: {error}.") from error
                found.add(os.path.basename(entry["path"]))
    return found


def _damage_error(path: str, detail: str) -> CorruptHome:
    return CorruptHome(
        f'the checkpoint file "{path}" is damaged',
        detail=detail,
        hint="Restore the checkpoint from a copy. Or start over: delete it together with what the flow has written; the "
        "next run rebuilds both from the log.",
        path=path,
    )
