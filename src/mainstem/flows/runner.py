"""Runner: the flows of a program in one Spark session.

Each flow is one streaming query whose batches go into its sink, watched by a thread of its own: it is restarted with
growing pauses where that can help (`Unavailable`), and otherwise stops alone while the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from mainstem.crash_points import reach
from mainstem.errors import Fenced, FlowFailed, FlowNotFound, MainstemError, Unavailable, did_you_mean
from mainstem.flows.checkpoint_fit import check_code, check_held, check_sources, way_out
from mainstem.flows.flow_failure import flow_failed, root_cause
from mainstem.flows.flow_handle import FlowHandle
from mainstem.flows.flow_progress import ProgressReports, query_name
from mainstem.flows.flow_stages import are_counted_together, shared_stages
from mainstem.flows.idleness import caught_up
from mainstem.flows.native_catch_up import NativeCatchUp
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.real_time import check_pace, start_real_time
from mainstem.flows.real_time_watch import look_through_last_batch
from mainstem.flows.sink_identity import SinkIdentity, check_sink
from mainstem.flows.staged_batches import StagedBatches
from mainstem.log.backoff import Backoff
from mainstem.log_on_spark.batch_gate import BatchGate
from mainstem.log_on_spark.checkpoint_check import check_checkpoint
from mainstem.log_on_spark.checkpoint_offsets import applied_offsets, batch_offsets, last_batch
from mainstem.log_on_spark.checkpoint_place import CheckpointPlace
from mainstem.log_on_spark.flow_run import Batch, FlowRun, Offsets, Written
from mainstem.log_on_spark.flow_store import FlowStore, check_epoch
from mainstem.log_on_spark.rejected_rows import RejectedRows
from mainstem.log_on_spark.sink_rows import note_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from mainstem.sinks.sink import BatchWriter
    from mainstem.stem import Mainstem

__all__ = ["RunningFlows", "start_flows"]

# How often a flow looks whether another process wishes that it stop.
LOOK_SECONDS = 1
# How often it looks whether it has caught up: until it does, it stands still.
SWITCH_SECONDS = 0.05
RETRY = Backoff("1 second", max="1 minute", growth="exponential")


def start_flows(stem: Mainstem, flows: Flows, only: Sequence[str] | None = None) -> RunningFlows:
    """Build the program and start its flows (or those named)."""
    program = Program(stem, flows)
    return RunningFlows(stem, program, program.only(only))


class _VersionChanged(Exception):
    """Another version of the sink was put to use: the flow goes on with that one's checkpoint."""


class RunningFlows:
    """The flows that were started together: a handle for each, by name. Used with `with`, it stops them at the end."""

    def __init__(self, stem: Mainstem, program: Program, planned: Sequence[PlannedFlow]) -> None:
        self._stem = stem
        self._program = program
        self._reports = ProgressReports(stem)
        self.handles = {flow.name: FlowHandle(flow, stem.log.clock) for flow in planned}
        self._reports.begin(self.handles.values())
        self._threads = [
            threading.Thread(target=self._watch, args=(handle,), name=f"mainstem-flow-{handle.name}", daemon=True)
            for handle in self.handles.values()
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[FlowHandle]:
        return iter(self.handles.values())

    def __getitem__(self, name: str) -> FlowHandle:
        if name not in self.handles:
            raise FlowNotFound(
                f'no flow "{name}" was started',
                detail=f"Started were: {', '.join(self.handles) or 'none'}.",
                hint=did_you_mean(name, self.handles) or "Name one of these.",
            )
        return self.handles[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all flows, in the order in which the program has them."""
        for handle in self.handles.values():
            handle.stop()
        for thread in self._threads:
            thread.join(60)
        self._reports.end()

    def wait_until_idle(self) -> None:
        """Return when every flow has everything that the log has, also what the others gave it meanwhile."""
        before = -1
        while before != (before := self._batches()) or not all(map(self._caught_up, self.handles.values())):
            for handle in self.handles.values():
                handle.wait_until_idle()

    def wait(self) -> None:
        """Return when every flow has ended; raises what the first one died of."""
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raise what a flow died of, if one did."""
        for handle in self.handles.values():
            if handle.error is not None:
                raise handle.error

    def caught_up(self) -> bool:
        """Whether every flow that did not fail has everything that the log has."""
        return all(self._caught_up(handle) for handle in self.handles.values() if handle.error is None)

    def _caught_up(self, handle: FlowHandle) -> bool:
        """A flow that was stopped will not get any further."""
        if handle.run is None or handle.place is None or handle.state == "stopped":
            return handle.state == "stopped"
        try:
            handle.place.pull()
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
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told to who asks for this flow
                if handle.stopping.is_set():
                    break
                if isinstance(handle.raised, _VersionChanged):
                    handle.become("starting")
                    continue
                failed = self._explained(handle, error)
                if not isinstance(failed.__cause__, Unavailable):
                    self._end(handle, "failed", failed)
                    return
                failures = 1 if handle.batches > before else failures + 1
                handle.become("waiting to restart")
                self._pause(handle, RETRY.delay(failures).total_seconds())
            else:
                break
        self._end(handle, "stopped")

    def _end(self, handle: FlowHandle, state: Literal["stopped", "failed"], error: FlowFailed | None = None) -> None:
        """Note what became of a flow, for other processes too."""
        first, *others = [""] if error is None else error.parts()
        lines = [] if error is None else [f"mainstem.{type(error).__name__}: {first}", *others]
        store = FlowStore(self._stem.home, handle.name)
        # A home that cannot be written to any more must not keep a flow from ending.
        with suppress(MainstemError, OSError):
            if handle.run is not None:
                store.end(handle.run, state, lines)
            elif error is not None:
                store.refuse(handle.planned.flow.into.version, lines)
        handle.become(state, error)

    def _pause(self, handle: FlowHandle, seconds: float) -> None:
        """Wait before the next attempt, unless somebody wishes that there be none."""
        while seconds > 0 and not handle.stopping.wait(min(LOOK_SECONDS, seconds)):
            seconds -= LOOK_SECONDS
            self._heed_wish(handle)

    def _heed_wish(self, handle: FlowHandle) -> bool:
        """Whether another process wishes that the flow stop; it does from then on."""
        if handle.run is not None and FlowStore(self._stem.home, handle.name).asked_to_stop(handle.run):
            handle.stopping.set()
        return handle.stopping.is_set()

    def _run_once(self, handle: FlowHandle) -> None:
        """From the start of a query to its end; a flow that is far behind may have one over sealed files before it."""
        planned = handle.planned
        store = FlowStore(self._stem.home, planned.name)
        version = planned.flow.into.version
        checkpoint = store.checkpoint(version)
        # To ask for the session is to make it this thread's: the program is built again here.
        place = handle.place = CheckpointPlace.of(self._stem.spark, checkpoint, self._stem.checkpoints)
        place.pull(begin=True)
        known = store.of_version(version)
        check_pace(planned, known, checkpoint)
        check_code(planned, known, checkpoint, self._stem.log)
        check_sources(planned, checkpoint, self._stem.log)
        identity = check_sink(planned, known, checkpoint, self._stem.log)
        sink = planned.flow.into
        # Noted at once: what begins anew after this attempt may fail at the next line.
        run = handle.run = store.begin(
            version, after=handle.run, plan=planned.plan, sink=f"{sink.kind} {sink.name}", **identity.facts(),
            sources=planned.sources, pace=planned.flow.pace, folder=getattr(sink, "path", None),
        )  # fmt: skip
        if planned.flow.pace == "real-time":
            self._run_in_real_time(handle, run, checkpoint)
            return
        writer = sink.writer(run, planned.schema)
        try:
            made = SinkIdentity.of(sink, self._stem.log)
            if made.id not in ("", identity.id):
                # Made just now, from the rows.
                store.note(run, **made.facts())
            check_held(planned, writer, checkpoint)
            check_checkpoint(
                checkpoint, writer.held, accounts="rows" if sink.kind == "topic" else "every batch",
                otherwise=f"Or begin anew. {way_out(planned)}",
            )  # fmt: skip
            place.push_removals()
            if sink.kind == "topic":
                with store.guarded(run):
                    note_rows(checkpoint, writer.held)
            catch_up = NativeCatchUp.begin(planned, checkpoint, self._stem.log)
            if catch_up is not None and not catch_up.over:
                catch_up.prepare()
                flow = self._program.built_for(planned, run, files=catch_up.history)
                query = self._start_query(handle, flow.rows, writer, run, checkpoint, catch_up)
                self._follow(handle, query, run, catch_up)
                if not catch_up.over:
                    return
                reach("history_over")
            staged = None
            if planned.stages:
                shared = shared_stages(planned.flow.rows, planned.stages)
                staged = StagedBatches(
                    self._stem.log, self._stem.home, run, planned.stages, checkpoint, shared,
                    marked=are_counted_together(planned.flow.rows, planned.stages),
                )  # fmt: skip
            flow = self._program.built_for(
                planned, run, after=None if catch_up is None else catch_up.history,
                clock="" if staged is None else staged.folder,
                buckets=None if staged is None else staged.buckets(self._stem.spark),
            )  # fmt: skip
            if staged is not None:
                store.note(run, built=staged.bind(flow.rows, planned.flow.rows))
            self._follow(handle, self._start_query(handle, flow.rows, writer, run, checkpoint, catch_up, staged), run)
        finally:
            writer.close()

    def _run_in_real_time(self, handle: FlowHandle, run: FlowRun, checkpoint: str) -> None:
        """The query is Spark's own from end to end."""
        planned, log = handle.planned, self._stem.log
        assert handle.place is not None
        check_checkpoint(checkpoint, held=-1)
        handle.place.push_removals()
        look_through_last_batch(log, checkpoint)
        flow = self._program.built_for(planned, run)
        query = start_real_time(flow, planned, run, handle.place, log, query_name(run))
        FlowStore(self._stem.home, run.flow).note(run, sink_id=log.open_topic(planned.flow.into.name).id)
        self._follow(handle, query, run)

    def _follow(
        self, handle: FlowHandle, query: StreamingQuery, run: FlowRun, catch_up: NativeCatchUp | None = None
    ) -> None:
        """Watch a query until it ends, or until it has caught up."""
        handle.query = query
        if handle.stopping.is_set():
            query.stop()
        handle.become("running" if catch_up is None else "catching up")
        seconds: Any = LOOK_SECONDS if catch_up is None else SWITCH_SECONDS  # PySpark takes parts of a second too
        while not query.awaitTermination(seconds):
            if self._heed_wish(handle) or (catch_up is not None and catch_up.over) or self._replaced(handle, run):
                query.stop()
        if not handle.stopping.is_set():
            # In one session Spark itself stops a query when another one takes its checkpoint.
            check_epoch(self._stem.home, run)

    def _replaced(self, handle: FlowHandle, run: FlowRun) -> bool:
        """Whether a later run has begun. In batches that is found out by every step of a batch."""
        if handle.planned.flow.pace == "batches":
            return False
        try:
            check_epoch(self._stem.home, run)
        except Fenced:
            return True
        return False

    def _start_query(
        self, handle: FlowHandle, rows: DataFrame, writer: BatchWriter, run: FlowRun, checkpoint: str,
        catch_up: NativeCatchUp | None, staged: StagedBatches | None = None,
    ) -> StreamingQuery:  # fmt: skip
        context = rows.sparkSession.sparkContext
        context.setLocalProperty("spark.scheduler.pool", handle.name)
        home, place = self._stem.home, handle.place
        store = FlowStore(home, run.flow)
        assert place is not None
        planned, sink = handle.planned, handle.planned.flow.into
        rejected = RejectedRows(
            self._stem.log, checkpoint, sink=f"{sink.kind} {sink.name}", topics=planned.topics,
            share_max=planned.flow.rejected_max,
        )  # fmt: skip

        gate = BatchGate(checkpoint, run.epoch)

        def each_batch(rows: DataFrame, number: int) -> None:
            try:
                with gate.batch(number):
                    one_batch(rows, number)
            except BaseException as error:
                # Spark passes it on as text; whoever explains the failure wants the error itself.
                handle.raised = error
                raise

        def one_batch(rows: DataFrame, number: int) -> None:
            reach("batch_begun")
            check_epoch(home, run)
            if sink.version != run.version:
                raise _VersionChanged
            place.pull()
            batch = Batch(number, run, applied_offsets(checkpoint, number), rejected)
            way = None if staged is None else staged.begin(number, rows)
            if way is not None:
                bound = way.bound()
                rows = self._program.batch_rows(planned, run, way) if bound is None else bound
            if number <= writer.held:
                # Spark must see it consumed whole, or its state store refuses the commit.
                rows.write.format("noop").mode("append").save()
                written = Written(0)
            else:
                written = writer.write(rows, batch)
                if written.rows and sink.kind == "topic":
                    # A run that was replaced must not touch the notes of the later one.
                    with store.guarded(run):
                        note_rows(checkpoint, number)
            reach("batch_written")
            if staged is not None and way is not None:
                written = replace(written, stages=staged.finish(number, way))
            handle.written[number] = written
            handle.batches += 1
            if catch_up is not None:
                catch_up.written(number)

        return (
            rows.writeStream.queryName(query_name(run))
            .outputMode(handle.planned.mode)
            .option("checkpointLocation", place.location)
            .foreachBatch(each_batch)
            .start()
        )

    def _explained(self, handle: FlowHandle, error: Exception) -> FlowFailed:
        if isinstance(error, FlowFailed):
            return error
        cause: Any = handle.raised or error
        query = handle.query
        if type(cause).__module__.startswith(("pyspark", "py4j")):
            cause = root_cause(str(query.exception() or error) if query is not None else str(error))
        # Whatever a run dies of that a later one has replaced (its files are gone, Spark finds another at work), that is why.
        if handle.run is not None and not isinstance(cause, MainstemError):
            try:
                check_epoch(self._stem.home, handle.run)
            except Fenced as fenced:
                cause = fenced
            except (MainstemError, OSError):
                pass  # the home may be what is damaged
        checkpoint = FlowStore(self._stem.home, handle.name).checkpoint(handle.run.version if handle.run else 1)
        planned, done = last_batch(checkpoint, "offsets"), last_batch(checkpoint)
        batch = planned if planned is not None and planned != done else None if done is None else done + 1
        offsets = ""
        ends: Offsets = {}
        # What says how far it is may be the very thing that is damaged.
        with suppress(MainstemError):
            ends = {} if batch is None else batch_offsets(checkpoint, batch)
        if ends:
            ranges = [f"{topic}[{number}] up to {end}" for topic, by in ends.items() for number, end in by.items()]
            offsets = f"The batch held {', '.join(ranges[:4])}{' ...' if len(ranges) > 4 else ''}."
        return flow_failed(handle.name, batch, cause, offsets, refused=handle.run is None)
