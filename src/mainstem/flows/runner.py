"""Runner: the flows of a program in one Spark session.

Each flow is one streaming query that writes its batches into its sink, watched by its own thread: after an error that
may pass (`Unavailable`) it is restarted with growing delays; after any other it stops, and the other flows continue.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import unquote

from mainstem import errors
from mainstem.arguments import checked_calls
from mainstem.batch import Batch, FlowRun, Offsets, Written
from mainstem.crash_points import reach
from mainstem.errors import (
    BrokerUnavailable,
    DatabaseUnavailable,
    Fenced,
    FlowFailed,
    FlowNotFound,
    MainstemError,
    Unavailable,
    did_you_mean,
    reason_of,
)
from mainstem.flows.checkpoint_fit import SinkIdentity, check_code, check_held, check_sink, check_sources, way_out
from mainstem.flows.flow_activity import FlowActivity, note_killed
from mainstem.flows.flow_description import write_description
from mainstem.flows.flow_handle import FlowHandle, spark_has_ended
from mainstem.flows.flow_lineage import write_lineage
from mainstem.flows.flow_progress import ProgressReports, query_name
from mainstem.flows.native_catch_up import NativeCatchUp
from mainstem.flows.packed_query import describe_columns, takes_columns
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.real_time import check_mode, look_through_last_batch, start_real_time
from mainstem.flows.staged_batches import StagedBatches
from mainstem.flows.store_fill import StoreFill, begin_again_if_lost
from mainstem.log.backoff import Backoff
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.batch_gate import BatchGate
from mainstem.spark.checkpoint.checkpoint_check import check_checkpoint, note_rows
from mainstem.spark.checkpoint.checkpoint_location import CheckpointLocation
from mainstem.spark.checkpoint.checkpoint_offsets import applied_offsets, batch_offsets, last_batch, source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore, check_epoch
from mainstem.spark.checkpoint.rejected_rows import RejectedRows
from mainstem.spark.columnar_rows import ColumnarRows, ColumnTask, ColumnWriter, SendRows, has_results
from mainstem.spark.sources.batch_clock import clocks_of, is_due, now_of, watermark_of
from mainstem.spark.sources.passed_tokens import PassedTokens
from mainstem.spark.spark_session import CALLED_WITH
from mainstem.views.view_offsets import missing_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from mainstem.capture.capture_process import CaptureProcess
    from mainstem.sinks.sink import BatchWriter
    from mainstem.stem import Mainstem

__all__ = ["RunningFlows", "caught_up", "flow_failed", "root_cause", "start_flows"]


# Whether a flow has caught up with its sources, from its checkpoint and the current ends of the log.
#
# Spark's own answer may be outdated by one trigger, which may have started before the last append.


def caught_up(stem: Mainstem, checkpoint: str) -> bool:
    """True also for a flow without a batch: its start offsets are not recorded yet."""
    number = last_batch(checkpoint)
    if number is None:
        return True
    for topic, reached in batch_offsets(checkpoint, number).items():
        backend = stem.log.open_topic(topic)
        partitions = range(backend.settings.partitions)
        if any(backend.latest(partition) > reached.get(partition, 0) for partition in partitions):
            return False
    if _waits(stem, checkpoint, number):
        return False
    offsets = list(source_offsets(checkpoint, number))
    return all(_has(stem, offset) for offset in offsets if "view" in offset) and all(
        _has_tokens(stem, offset) for offset in offsets if "topic" in offset
    )


def _has_tokens(stem: Mainstem, offset: Mapping[str, Any]) -> bool:
    """Whether the flow has read all output of the flows that write into its topic."""
    backend = stem.log.open_topic(offset["topic"])
    passed = PassedTokens(lambda: stem.log, stem.home, offset["topic"]).find(backend)
    ends = {number: backend.latest(number) for number in passed.ends}
    # Nothing behind an open transaction can be read yet.
    return not passed.reached(ends) or not missing_of(
        _parse_ends(passed.applied), _parse_ends(offset.get("applied", {}))
    )


def _parse_ends(applied: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(number): end for number, end in ends.items()} for topic, ends in applied.items()}


def _has(stem: Mainstem, offset: Mapping[str, Any]) -> bool:
    """Whether the flow has read everything of a view, including applied records that changed nothing in it."""
    view = stem.view(offset["view"])
    if not view.exists:
        return True
    position, applied = view.status()
    return position <= offset["position"] and not missing_of(applied, _parse_ends(offset.get("applied", {})))


def _waits(stem: Mainstem, checkpoint: str, number: int) -> bool:
    """Whether a flow with stages will have a batch without new records, because a timer in its state is due."""
    folder = StageManifests(checkpoint).folder
    offsets = [offset for offset in source_offsets(checkpoint, number) if "now" in offset]
    if not offsets:
        return False
    now = now_of(folder, stem.log.clock)
    return is_due(folder, max(clocks_of(offsets).watermark, watermark_of(stem.log, offsets, checkpoint, now)), now)


# The root cause of a flow's failure, extracted from Spark's stack traces.


# The last line of a Python traceback inside Spark's message: the class, its message, then our notes.
_RAISED = re.compile(r"^(?:\w+\.)*(?P<kind>[A-Z]\w+)(?:: (?P<message>.*))?$")
# The class of a library, such as pyarrow.lib.ArrowInvalid.
_DOTTED = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*(?:: |$)")
_JAVA = re.compile(r"(?:Caused by: |: )[\w.$]+(?:: .*)?$")
# Only the worker process died: retry.
_WORKER = re.compile(r"Python worker failed to connect back|Python worker exited unexpectedly \(crashed\)")
# Errors of Kafka's Java client, in Spark's own connector, for unavailable brokers.
_BROKER = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|LeaderNotAvailable|NotLeaderOrFollower|NotEnoughReplicas"
    r"|NotEnoughReplicasAfterAppend|CoordinatorNotAvailable|BrokerNotAvailable)Exception(?:: (?P<said>[^\n]*))?"
)
# A file that a batch was to read, such as that of a table that rows are joined with.
_FILE = re.compile(
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (?P<path>.+?)\. File does not exist"
)
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
# Files that are not the user's.
_OTHERS = re.compile(r"[/\\](?:pyspark|py4j|mainstem|site-packages)[/\\]")
_SPARK = re.compile(r"\[(?P<kind>[A-Z_.]+)\] (?P<message>.*)")


def root_cause(text: str) -> MainstemError | str:
    """The root cause of a Spark exception: one of our errors as it was raised, or the most telling line."""
    lines = text.splitlines()
    if found := _WORKER.search(text):
        return Unavailable(
            "a Python worker of Spark did not start, or died",
            detail=f"Spark says: {found[0]}.",
            hint="The machine may be overloaded or out of memory. The flow retries.",
        )
    if found := _BROKER.search(text):
        return BrokerUnavailable(
            "no Kafka broker answers Spark's connector",
            detail=f"The client says: {(found['said'] or 'nothing').rstrip('.')}.",
            hint="Start the broker, or correct the address. The flow retries.",
        )
    if found := _FILE.search(text):
        return Unavailable(
            f'the flow reads "{unquote(found["path"].removeprefix("file://"))}", which does not exist',
            detail="It was there when the flow started: it was removed, or is being written again.",
            hint="Write the file again. The flow retries until it is there.",
        )
    for index in range(len(lines) - 1, -1, -1):
        found = _RAISED.match(lines[index].strip())
        ours = getattr(errors, found["kind"], None) if found else None
        if found and isinstance(ours, type) and issubclass(ours, MainstemError):
            notes = dict(
                line.strip().split(": ", 1)
                for line in lines[index + 1 : index + 3]
                if line.strip().startswith(("Detail: ", "Hint: "))
            )
            return ours(found["message"] or "", detail=notes.get("Detail", ""), hint=notes.get("Hint", ""))
    # The traceback of any other error ends with the line that names it.
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index].strip()
        found = _RAISED.match(line)
        if found and (_is_error(found["kind"]) or _DOTTED.match(line)) and "py4j" not in line:
            return line + _line_of_program(lines[:index]) + _call(lines[index + 1 :])
    for line in lines:
        if found := _SPARK.search(line):
            return found["message"]
    # The innermost Java cause says what happened; the others wrap it.
    causes = [
        line.strip().removeprefix("Caused by: ").removeprefix(": ") for line in lines if _JAVA.match(line.strip())
    ]
    if causes:
        return causes[-1]
    return next((line.strip() for line in lines if line.strip()), "nothing was said")


def _is_error(kind: str) -> bool:
    return kind.endswith(("Error", "Exception", "Interrupt", "Exit"))


def _line_of_program(lines: list[str]) -> str:
    """The line of the user's program: the last frame of the traceback that is not ours or Spark's."""
    for line in reversed(lines):
        if line.startswith("Traceback") or line.endswith("Traceback (most recent call last):"):
            return ""
        found = _FRAME.match(line.strip())
        if found and not _OTHERS.search(found["path"]):
            return f" ({os.path.basename(found['path'])}, line {found['line']}, in {found['function']})"
    return ""


def _call(lines: list[str]) -> str:
    """The arguments with which a user's function failed, if they were recorded (`spark_session`)."""
    said = next((line.strip() for line in lines[:3] if line.strip().startswith(CALLED_WITH)), "")
    return f", called with ({said.removeprefix(CALLED_WITH)})" if said else ""


def flow_failed(
    flow: str, batch: int | None, cause: BaseException | str, offsets: str = "", *, refused: bool = False
) -> FlowFailed:
    """The error that a user sees first. `refused`: the flow was not started, and cannot be with this program."""
    where = "stopped before its first batch" if batch is None else f"stopped at batch {batch}"
    hint = ""
    if isinstance(cause, MainstemError):
        facts = f"{type(cause).__name__}: {cause.summary}. {cause.detail}".strip()
        hint = cause.hint
    elif isinstance(cause, BaseException):
        facts = f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else 'no message'}."
    else:
        facts = cause if cause.endswith(".") else f"{cause}."
    advice = hint or "Fix the cause, then run the program again."
    resumes = "" if batch is None or refused else f" Rows are safe in the topic; the next run resumes at batch {batch}."
    error = FlowFailed(
        f'flow "{flow}" {"was not started" if refused else where}',
        detail=facts if refused else f"{facts} {offsets}".strip(),
        hint=f"{advice}{resumes}",
        flow=flow,
        batch=batch,
    )
    if isinstance(cause, BaseException):
        error.__cause__ = cause
    return error


# How often a flow checks for a stop request of another process.
LOOK_SECONDS = 1
# A signal to a group of processes may end Java before this process is told to stop.
SIGNAL_SECONDS = 2
# How often it checks whether the files are read; it is idle from then until the check.
SWITCH_SECONDS = 0.05
# How often an idle flow checks whether its store still has what was written.
STORE_SECONDS = 5
RETRY = Backoff("1 second", max="1 minute", growth="exponential")


def start_flows(
    stem: Mainstem, flows: Flows, only: Sequence[str] | None = None, tell: Callable[[FlowHandle], None] | None = None,
    captures: CaptureProcess | None = None,
) -> RunningFlows:  # fmt: skip
    """Build the program and start its flows (or those named). `tell` is called after each batch. `captures` run already:
    they end with the flows."""
    program = Program(stem, flows)
    return RunningFlows(stem, program, program.only(only), tell, captures)


def _column_task(planned: PlannedFlow, writer: BatchWriter, stem: Mainstem, run: FlowRun) -> ColumnTask | None:
    """What readers or stages do with the rows for the sink; None if it takes rows."""
    if not (takes_columns(planned.flow) and isinstance(writer, ColumnWriter)):
        return None
    task = writer.column_task
    if isinstance(task, SendRows) and not stem.log.address:
        # Tasks read the topics in the home, so they can write there.
        task = SendRows(FlowStore(stem.home, run.flow).sent(run))
    return task


class _VersionChanged(Exception):
    """The sink switched to another version: the flow continues with that version's checkpoint."""


@checked_calls
class RunningFlows:
    """The flows that were started together: a handle for each, by name. Used with `with`, it stops them at the end."""

    def __init__(
        self,
        stem: Mainstem,
        program: Program,
        planned: Sequence[PlannedFlow],
        tell: Callable[[FlowHandle], None] | None = None,
        captures: CaptureProcess | None = None,
    ) -> None:
        self._stem = stem
        self.captures = captures
        self._program = program
        self._reports = ProgressReports(stem, tell)
        self.handles = {flow.name: FlowHandle(flow, stem.log.clock) for flow in planned}
        self._activity = {name: FlowActivity(stem.log, name) for name in self.handles}
        note_killed(stem.log, stem.home)
        self._reports.begin(self.handles.values())
        self._threads = [
            threading.Thread(target=self._watch, args=(handle,), name=f"mainstem-flow-{handle.name}", daemon=True)
            for handle in self.handles.values()
        ]
        for thread in self._threads:
            thread.start()
        if captures is not None:
            captures.when_failed(self._stop_flows)

    def __iter__(self) -> Iterator[FlowHandle]:
        return iter(self.handles.values())

    def __getitem__(self, name: str) -> FlowHandle:
        if name not in self.handles:
            raise FlowNotFound(
                f'no flow "{name}" was started',
                detail=f"Started flows: {', '.join(self.handles) or 'none'}.",
                hint=did_you_mean(name, self.handles) or "Name one of these.",
            )
        return self.handles[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all captures, then all flows, in the order in which the program has them."""
        if self.captures is not None:
            self.captures.stop()
        self._stop_flows()
        for thread in self._threads:
            thread.join(60)
        self._reports.end()

    def _stop_flows(self) -> None:
        for handle in self.handles.values():
            handle.stop()

    def wait_until_idle(self) -> None:
        """Return when every flow has processed all records of the log, including those that the other flows wrote meanwhile."""
        before = -1
        with ExitStack() as hurries:
            for handle in self.handles.values():
                hurries.enter_context(handle.pace.hurry())
            while before != (before := self._batches()) or not all(map(self._caught_up, self.handles.values())):
                for handle in self.handles.values():
                    handle.wait_until_idle()
        self._reports.flush()
        if self.captures is not None:
            self.captures.check()

    def wait(self) -> None:
        """Return when every flow has ended; raises the error of the first that failed, or that of a capture, which ends the
        flows."""
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error of a capture or a flow that failed, if any."""
        if self.captures is not None:
            self.captures.check()
        for handle in self.handles.values():
            if handle.error is not None:
                raise handle.error

    def caught_up(self) -> bool:
        """Whether every flow that did not fail has processed all records of the log."""
        return all(self._caught_up(handle) for handle in self.handles.values() if handle.error is None)

    def _caught_up(self, handle: FlowHandle) -> bool:
        """True also for a stopped flow, which makes no further progress."""
        if handle.run is None or handle.location is None or handle.state == "stopped":
            return handle.state == "stopped"
        try:
            handle.location.pull()
        except Unavailable:
            return False
        return caught_up(self._stem, FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version))

    def _batches(self) -> int:
        return sum(handle.batches for handle in self.handles.values())

    # One flow

    def _watch(self, handle: FlowHandle) -> None:
        failures = 0
        while not handle.stopping.is_set():
            before = handle.batches
            handle.raised = handle.query = None
            try:
                self._run_once(handle)
            except Exception as error:  # noqa: BLE001 - any error is reported with its flow
                if handle.stopping.is_set() or (spark_has_ended(error) and handle.stopping.wait(SIGNAL_SECONDS)):
                    break
                if isinstance(handle.raised, _VersionChanged):
                    handle.become("starting")
                    continue
                failed = self._explain(handle, error)
                cause = failed.__cause__
                # A login that is rejected at once is a mistake; later it is waited for.
                mistake = isinstance(cause, DatabaseUnavailable) and cause.refused and not (failures or handle.batches)
                if not isinstance(cause, Unavailable) or mistake:
                    self._end(handle, "failed", failed)
                    return
                if handle.batches > before or not failures:
                    failures, handle.waiting_since = 0, self._stem.log.clock.now()
                failures += 1
                handle.retried_after = cause
                self._activity[handle.name].waits(handle.run, cause, handle.batches)
                self._tell_wait(handle, cause)
                handle.become("waiting to restart")
                self._pause(handle, RETRY.delay(failures).total_seconds())
            else:
                break
        self._end(handle, "stopped")

    def _end(self, handle: FlowHandle, state: Literal["stopped", "failed"], error: FlowFailed | None = None) -> None:
        """Record the outcome of a flow, for other processes too."""
        first, *others = [""] if error is None else error.parts()
        lines = [] if error is None else [f"mainstem.{type(error).__name__}: {first}", *others]
        store = FlowStore(self._stem.home, handle.name)
        # A home that cannot be written to must not prevent a flow from ending.
        with suppress(MainstemError, OSError):
            if handle.run is not None:
                store.end(handle.run, state, lines)
            elif error is not None:
                store.refuse(handle.planned.flow.into.version, lines)
        activity = self._activity[handle.name]
        if error is not None:
            activity.failed(handle.run, error)
        else:
            done = None if handle.run is None else last_batch(store.checkpoint(handle.run.version))
            activity.ended(handle.run, handle.batches, done)
        self._reports.flush()
        self._tell_wait(handle, None)
        handle.become(state, error)

    def _tell_wait(self, handle: FlowHandle, cause: Unavailable | None) -> None:
        """Record for other processes what the flow waits for; None if it no longer does."""
        store = FlowStore(self._stem.home, handle.name)
        with suppress(MainstemError, OSError):
            if cause is not None:
                into = handle.planned.flow.into
                store.wait(f"{into.kind} {into.name}", reason_of(cause), handle.waiting_since or 0)
            elif store.exists():
                store.wait_no_longer()

    def _pause(self, handle: FlowHandle, seconds: float) -> None:
        """Wait before the next attempt, unless a stop was requested."""
        while seconds > 0 and not handle.stopping.wait(min(LOOK_SECONDS, seconds)):
            seconds -= LOOK_SECONDS
            self._heed_wish(handle)

    def _heed_wish(self, handle: FlowHandle) -> bool:
        """Whether another process has requested a stop; if so, the flow stops."""
        if handle.run is not None and FlowStore(self._stem.home, handle.name).asked_to_stop(handle.run):
            handle.stopping.set()
        return handle.stopping.is_set()

    def _run_once(self, handle: FlowHandle) -> None:
        """Run a query from its start to its end; if the flow is far behind, a query over sealed files runs first."""
        planned = handle.planned
        store = FlowStore(self._stem.home, planned.name)
        version = planned.flow.into.version
        checkpoint = store.checkpoint(version)
        # Getting the session makes it the active one of this thread, in which the program is built again.
        location = handle.location = CheckpointLocation.of(self._stem.spark, checkpoint, self._stem.checkpoints)
        location.pull(begin=True)
        known = store.of_version(version)
        check_mode(planned, known, checkpoint)
        check_code(planned, known, checkpoint, self._stem.log)
        check_sources(planned, checkpoint, self._stem.log)
        identity = check_sink(planned, known, checkpoint, self._stem.log)
        sink = planned.flow.into
        if note := begin_again_if_lost(planned, checkpoint, self._stem):
            handle.notes.append(note)
            handle.raised = _VersionChanged()
            raise handle.raised
        # Set at once: any later line may fail, and the next attempt needs this run.
        run = handle.run = store.begin(
            version, after=handle.run, plan=planned.plan, sink=f"{sink.kind} {sink.name}", **identity.facts(),
            sources=planned.sources, pace=planned.flow.mode, every_us=planned.flow.every_us,
            folder=getattr(sink, "path", None),
        )  # fmt: skip
        write_description(store, run, planned)
        write_lineage(store, run, planned)
        self._activity[handle.name].begun(run, last_batch(checkpoint))
        if planned.flow.mode == "real-time":
            self._run_in_real_time(handle, run, checkpoint)
            return
        writer = sink.writer(run, planned.schema)
        try:
            made = SinkIdentity.of(sink, self._stem.log)
            if made.id not in ("", identity.id):
                # The writer has just created it.
                store.note(run, **made.facts())
            check_held(planned, writer, checkpoint)
            fill = StoreFill.of(planned, writer, checkpoint, self._stem, handle.notes.append)
            check_checkpoint(
                checkpoint, writer.committed_batch, accounts="rows" if sink.kind == "topic" else "every batch",
                otherwise=f"Or start over. {way_out(planned)}",
            )  # fmt: skip
            location.push_removals()
            if sink.kind == "topic":
                with store.guard(run):
                    note_rows(checkpoint, writer.committed_batch)
            catch_up = NativeCatchUp.begin(planned, checkpoint, self._stem.log)
            if catch_up is not None and not catch_up.over:
                catch_up.prepare()
                flow = self._program.build_for(planned, run, files=catch_up.history)
                query = self._start_query(handle, flow.rows, writer, run, checkpoint, catch_up, fill=fill)
                self._follow(handle, query, run, catch_up, fill)
                if not catch_up.over:
                    return
                reach("history_over")
            # What tasks of an earlier run left.
            shutil.rmtree(os.path.dirname(store.sent(run)), ignore_errors=True)
            task = _column_task(planned, writer, self._stem, run)
            staged = None
            if planned.stages:
                staged = StagedBatches(
                    self._stem.log, self._stem.home, run, planned.stages, checkpoint, planned.flow.rows
                )
            flow = self._program.build_for(
                planned, run, after=None if catch_up is None else catch_up.history,
                clock="" if staged is None else staged.folder,
                buckets=None if staged is None else staged.buckets(self._stem.spark),
                task=task, pace=handle.pace,
            )  # fmt: skip
            built = "" if staged is None else staged.bind(flow.rows, task)
            store.note(run, built=built, columns=describe_columns(planned, flow.rows, staged))
            query = self._start_query(handle, flow.rows, writer, run, checkpoint, catch_up, staged, fill)
            self._follow(handle, query, run, fill=fill)
        finally:
            handle.pace.close()
            writer.close()

    def _run_in_real_time(self, handle: FlowHandle, run: FlowRun, checkpoint: str) -> None:
        """Run a query with Spark's own source and sink."""
        planned, log = handle.planned, self._stem.log
        assert handle.location is not None
        check_checkpoint(checkpoint, in_sink=-1)
        handle.location.push_removals()
        look_through_last_batch(log, checkpoint)
        flow = self._program.build_for(planned, run)
        query = start_real_time(flow, planned, run, handle.location, log, query_name(run))
        FlowStore(self._stem.home, run.flow).note(run, sink_id=log.open_topic(planned.flow.into.name).id)
        self._follow(handle, query, run)

    def _follow(
        self, handle: FlowHandle, query: StreamingQuery, run: FlowRun, catch_up: NativeCatchUp | None = None,
        fill: StoreFill | None = None,
    ) -> None:  # fmt: skip
        """Watch a query until it ends, or until it has caught up."""
        handle.query = query
        if handle.stopping.is_set():
            query.stop()
        handle.become("running" if catch_up is None else "catching up")
        seconds: Any = LOOK_SECONDS if catch_up is None else SWITCH_SECONDS  # PySpark takes parts of a second too
        changed, looked_at = None, time.monotonic()
        try:
            while not query.awaitTermination(seconds):
                self._activity[handle.name].look(run, handle.batches, query)
                if fill is not None and changed is None and time.monotonic() - looked_at >= STORE_SECONDS:
                    changed, looked_at = fill.find_change(), time.monotonic()
                if (
                    changed is not None
                    or self._heed_wish(handle)
                    or (catch_up is not None and catch_up.over)
                    or self._replaced(handle, run)
                ):
                    with handle.pace.hurry():
                        query.stop()
        finally:
            # Whatever the stop did to the batch.
            handle.raised = changed or handle.raised
        if changed is not None:
            raise changed
        if not handle.stopping.is_set():
            # Within one session Spark itself stops a query when another one uses its checkpoint.
            check_epoch(self._stem.home, run)

    def _replaced(self, handle: FlowHandle, run: FlowRun) -> bool:
        """Whether a newer run has started. In the mode "batches" every batch checks that itself."""
        if handle.planned.flow.mode == "batches":
            return False
        try:
            check_epoch(self._stem.home, run)
        except Fenced:
            return True
        return False

    def _start_query(
        self, handle: FlowHandle, rows: DataFrame, writer: BatchWriter, run: FlowRun, checkpoint: str,
        catch_up: NativeCatchUp | None, staged: StagedBatches | None = None, fill: StoreFill | None = None,
    ) -> StreamingQuery:  # fmt: skip
        context = rows.sparkSession.sparkContext
        context.setLocalProperty("spark.scheduler.pool", handle.name)
        home, location = self._stem.home, handle.location
        store = FlowStore(home, run.flow)
        assert location is not None
        planned, sink = handle.planned, handle.planned.flow.into
        rejected = RejectedRows(
            self._stem.log, checkpoint, sink=f"{sink.kind} {sink.name}", topics=planned.topics,
            share_max=planned.flow.rejected_max, staged=bool(planned.stages),
        )  # fmt: skip

        gate = BatchGate(checkpoint, run.epoch)
        reached: Offsets = {}

        def each_batch(rows: DataFrame, number: int) -> None:
            begun = handle.pace.now()
            try:
                with gate.batch(number):
                    offsets = one_batch(rows, number)
                nonlocal reached
                if offsets != reached:
                    # One without new records changes nothing: a timer was due.
                    reached = offsets
                    handle.pace.batch_over(begun)
            except BaseException as error:
                # Spark passes it on as text; `flow_failed` needs the error itself.
                handle.raised = error
                raise

        def one_batch(rows: DataFrame, number: int) -> Offsets:
            reach("batch_begun", number)
            check_epoch(home, run)
            if sink.version != run.version:
                raise _VersionChanged
            location.pull()
            batch = Batch(number, run, applied_offsets(checkpoint, number), rejected)
            way = None if staged is None else staged.begin(number, rows)
            if way is not None:
                bound = way.bind()
                rows = self._program.batch_rows(planned, run, way) if bound is None else bound
            if number <= writer.committed_batch:
                # The batch must be read completely, or Spark's state store refuses the commit.
                rows.write.format("noop").mode("append").save()
                written = Written(0)
            else:
                written = self._write(rows, writer, batch, planned)
                if written.rows and sink.kind == "topic":
                    # A fenced run must not change the notes of the newer one.
                    with store.guard(run):
                        note_rows(checkpoint, number)
            if fill is not None:
                fill.batch_over(batch.offsets)
            reach("batch_written", number)
            if staged is not None and way is not None:
                figures = staged.finish(number, way)
                written = replace(written, stages=figures, rows_read=figures.rows_in)
            handle.written[number] = written
            handle.batches += 1
            if catch_up is not None:
                catch_up.advance(number)
            return batch.offsets

        return (
            rows.writeStream.queryName(query_name(run))
            .outputMode(planned.output_mode)
            .option("checkpointLocation", location.address)
            .foreachBatch(each_batch)
            .start()
        )

    def _write(self, rows: DataFrame, writer: BatchWriter, batch: Batch, planned: PlannedFlow) -> Written:
        if not has_results(rows):
            return writer.write(rows, batch)
        assert isinstance(writer, ColumnWriter)
        columns = ColumnarRows(rows, planned.schema)
        written = writer.write_columns(columns, batch)
        return replace(written, rows_read=columns.rows_read)

    def _explain(self, handle: FlowHandle, error: Exception) -> FlowFailed:
        if isinstance(error, FlowFailed):
            return error
        cause: Any = handle.raised or error
        query = handle.query
        if type(cause).__module__.startswith(("pyspark", "py4j")):
            cause = root_cause(str(query.exception() or error) if query is not None else str(error))
        # If a newer run has fenced this one, that is the cause of any error (missing files, a concurrent query).
        if handle.run is not None and not isinstance(cause, MainstemError):
            try:
                check_epoch(self._stem.home, handle.run)
            except Fenced as fenced:
                cause = fenced
            except (MainstemError, OSError):
                pass  # the home itself may be damaged
        checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version if handle.run else 1)
        planned, done = last_batch(checkpoint, "offsets"), last_batch(checkpoint)
        batch = planned if planned is not None and planned != done else None if done is None else done + 1
        offsets = ""
        ends: Offsets = {}
        # The recorded offsets may be the damaged part.
        with suppress(MainstemError):
            ends = {} if batch is None else batch_offsets(checkpoint, batch)
        if ends:
            ranges = [f"{topic}[{number}] up to {end}" for topic, by in ends.items() for number, end in by.items()]
            offsets = f"The batch held {', '.join(ranges[:4])}{' ...' if len(ranges) > 4 else ''}."
        return flow_failed(handle.name, batch, cause, offsets, refused=handle.run is None)
