"""StagedBatches: the batches of one run of a flow with stages, each with its state, its clock and its late rows.

A batch passes all stages of its flow and the sink in one Spark job. When the sink has committed it:

    the tasks' receipts  ->  late rows appended, once  ->  the batch's manifest  ->  Spark commits the batch

If that is interrupted anywhere, the batch is repeated from the manifest of the batch before, with the same rows and the
same clock, and gives the same result.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mainstem.batch import FlowRun, StageFigures, StageProgress
from mainstem.crash_points import reach
from mainstem.errors import Conflict, CorruptHome, Invalid
from mainstem.flows.late_topic import LateTopic
from mainstem.names import check_own_name
from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock
from mainstem.operators.stage.packed_rows import STAGE, Packing, is_packed
from mainstem.operators.stage.stage import Stage, prepare_batch, prepare_inputs, stage_schema
from mainstem.operators.stage.stage_task import BucketState, StageBatch, through_stage
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.checkpoint_offsets import source_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.columnar_rows import ColumnPacking, ColumnTask
from mainstem.spark.plan.bound_plan import BoundPlan, obstacle, placeholder
from mainstem.spark.plan.flow_plan import (
    Operator,
    is_straight,
    leaves_in,
    operators_in,
    stage_uses,
    stages_in,
)
from mainstem.spark.plan.plain_read import PlainSteps, read_steps
from mainstem.spark.sources.batch_clock import clocks_of, leave_due
from mainstem.spark.spark_types import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mainstem.log.log import Log

__all__ = [
    "BatchOnItsWay",
    "Root",
    "StagedBatches",
    "clock_of",
    "lags_of",
    "query_rows",
    "root_rows",
    "roots_of",
    "stage_operators",
    "stages_of",
]


# The stages of a flow, found in its plan and ordered, and the streaming query before them.


# If several streams go into stages, this column says which stream a row belongs to.
ROOT = "root"


def stages_of(rows: DataFrame, known: Mapping[int, Stage], flow: str) -> tuple[Stage, ...]:
    """The stages that a flow's rows pass, in their order, each with its name in the flow."""
    numbers: set[int] = set()
    waiting = stages_in(rows)
    if waiting:
        _check_after(rows, flow)
    while waiting:
        number = waiting.pop()
        numbers.add(number)
        for given in known[number].inputs:
            before = stages_in(given)
            if before:
                _check_after(given, flow)
            waiting |= before - numbers
    stages: list[Stage] = []
    for place, number in enumerate(sorted(numbers)):
        stage = known[number]
        name = check_own_name(stage.name or f"{stage.spec.operator}-{place}", "stage")
        if name in (other.name for other in stages):
            raise Conflict(
                f'two stages of flow "{flow}" are named "{name}"',
                detail="The name of a stage identifies its state.",
                hint="Give one of them another name: name=...",
            )
        stages.append(replace(stage, name=name))
    return tuple(stages)


def _check_after(rows: DataFrame, flow: str) -> None:
    """Operators after a stage run batch by batch: they can neither keep state nor join another stream."""
    if kept := operators_in(rows):
        raise Invalid(
            f'flow "{flow}" has Spark\'s stateful "{kept[0].name}" after an operator of mainstem',
            detail="After that operator Spark sees each batch by itself and cannot keep state between batches.",
            hint="Put it before the operator, use an operator of mainstem instead (windowed, process), or use a topic in "
            "between: one flow writes it, another one reads it.",
        )
    if leaves_in(rows):
        raise Invalid(
            f'flow "{flow}" combines another stream with the output of an operator of mainstem',
            detail="After that operator Spark sees each batch by itself; a stream that has not passed it has no batches there.",
            hint="Combine them before the operator, or use a topic in between: one flow writes it, another one reads it.",
        )


@dataclass(frozen=True)
class Root:
    """The rows that the streaming query passes to a stage: the inputs of these numbers."""

    stage: Stage
    places: tuple[int, ...]

    @property
    def number(self) -> int:
        return self.stage.number

    @cached_property
    def rows(self) -> DataFrame:
        """If the stage has several inputs, they are prepared and in one frame."""
        return self.stage.inputs[0] if len(self.stage.inputs) == 1 else prepare_inputs(self.stage, list(self.places))


def roots_of(stages: Sequence[Stage]) -> list[Root]:
    """The stages that the streaming query passes rows to."""
    found = []
    for stage in stages:
        places = tuple(place for place, rows in enumerate(stage.inputs) if not stages_in(rows))
        if places:
            found.append(Root(stage, places))
    return found


def lags_of(stages: Sequence[Stage]) -> dict[int, int]:
    """The delay of each stage's clock behind the flow's in microseconds, by the stage's number."""
    found: dict[int, int] = {}
    for stage in sorted(stages, key=lambda stage: stage.number):
        before = set().union(*(stages_in(rows) for rows in stage.inputs))
        behind = {other.number: other.spec.behind for other in stages}
        found[stage.number] = max((found[number] + behind[number] for number in before), default=0)
    return found


def _shared_stages(rows: DataFrame, stages: Sequence[Stage]) -> set[int]:
    """The numbers of the stages whose output is used more than once: by further stages or the sink."""
    uses = stage_uses(rows)
    for stage in stages:
        for given in stage.inputs:
            uses += stage_uses(given)
    return {number for number, count in uses.items() if count > 1}


def _are_counted_together(rows: DataFrame, stages: Sequence[Stage]) -> bool:
    """Whether Spark may number the tasks of a stage together with other tasks, as in a union."""
    behind = [given for stage in stages for given in stage.inputs if stages_in(given)]
    united = any(len(stage.inputs) > 1 and any(map(stages_in, stage.inputs)) for stage in stages)
    return united or bool(_shared_stages(rows, stages)) or not all(map(is_straight, [rows, *behind]))


def query_rows(stages: Sequence[Stage]) -> DataFrame:
    """The rows of the streaming query of a flow with stages: the input of its first stage, or, if there are several such
    stages, the inputs of all, each in its own column."""
    from pyspark.sql import functions as F

    roots = roots_of(stages)
    if len(roots) == 1:
        return roots[0].rows
    united = None
    for root in roots:
        columns: list[Any] = [F.lit(root.number).alias(ROOT)]
        for other in roots:
            whole = F.struct(*[other.rows[name] for name in other.rows.columns]) if other is root else None
            nothing = F.lit(None).cast(other.rows.schema)
            columns.append((nothing if whole is None else whole).alias(f"input_{other.number}"))
        rows = root.rows.select(*columns)
        united = rows if united is None else united.unionByName(rows)
    assert united is not None
    return united


def root_rows(batch: DataFrame, roots: Sequence[Root], number: int) -> DataFrame:
    """The rows of a batch of that query that go into one stage."""
    from pyspark.sql import functions as F

    if len(roots) == 1:
        return batch
    if is_packed(batch):
        return batch.where(F.col(STAGE) == number)
    [root] = [root for root in roots if root.number == number]
    given = batch.where(F.col(ROOT) == number)
    fields = root.rows.schema.fields
    return given.select(*[F.col(f"input_{number}")[at.name].alias(at.name, metadata=at.metadata) for at in fields])


def stage_operators(stages: Sequence[Stage]) -> list[Operator]:
    return [Operator(stage.name, stage.spec.bounded_by) for stage in stages]


def clock_of(checkpoint: str, number: int, time: str = "event") -> BatchClock:
    """The clock of a batch, as Spark recorded it before the batch ran; `time` says which time it uses: event or append."""
    mine, before = (clocks_of(source_offsets(checkpoint, batch)) for batch in (number, number - 1))
    if time == "append":
        return BatchClock(mine.appended, mine.now, before.appended, before.now, mine.appended)
    return BatchClock(mine.watermark, mine.now, before.watermark, before.now, mine.appended)


class StagedBatches:
    """For one run of a flow, and one thread."""

    def __init__(
        self,
        log: Log,
        home: str,
        run: FlowRun,
        stages: Sequence[Stage],
        checkpoint: str,
        rows: DataFrame,
    ) -> None:
        """`rows`: the output of the flow, behind its stages."""
        self._run = run
        self._flow_rows = rows
        self._stages = tuple(stages)
        # Stages whose output is used more than once: it is cached during a batch.
        self._shared = _shared_stages(rows, stages)
        # Whether the number of a task may differ from that of its bucket (see `stage_task`).
        self._marked = _are_counted_together(rows, stages)
        self._roots = tuple(roots_of(stages))
        self._lags = lags_of(stages)
        self._checkpoint = checkpoint
        self._store = FlowStore(home, run.flow)
        self._manifests = StageManifests(checkpoint)
        self._late = LateTopic(log, run, checkpoint)
        self.folder = self._manifests.folder
        os.makedirs(self.folder, exist_ok=True)
        # The number of buckets by which the sources divide the rows, by stage.
        self._divided: dict[str, int] = {}
        self._plans: StagePlans | None = None
        # The state of all stages after the last batch that this run finished.
        self._last: tuple[int, dict[str, Any]] | None = None

    def buckets(self, spark: SparkSession) -> dict[str, int]:
        """The number of buckets of each stage. Called before the first batch if the sources divide the rows."""
        before = (self._manifests.last() or {"stages": {}})["stages"]
        self._divided = {stage.name: self._buckets(stage, before, spark) for stage in self._stages}
        return self._divided

    def bind(self, given: DataFrame, task: ColumnTask | None = None) -> str:
        """Bind the batches of a query into the plan of the flow's rows, so that the program is not built for each of them.
        Returns why that is impossible; empty if it worked. `given`: the rows of the query; `task`: of the sink, which the
        tasks of the last stage run if they can compute the rows behind it."""
        plans = StagePlans.of(given, self._flow_rows, self._stages, self._roots, task, self._store.sent(self._run))
        if isinstance(plans, str):
            return plans
        self._plans = plans
        return ""

    @property
    def sends_columns(self) -> bool:
        """Whether the tasks of the last stage compute the flow's rows for the sink."""
        return self._plans is not None and self._plans.output is not None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The stages that pass packed rows to the next one, each with that one."""
        names = {stage.number: stage.name for stage in self._stages}
        between = {} if self._plans is None else self._plans.between
        return [(names[number], names[packing.stage]) for number, packing in between.items()]

    def begin(self, number: int, rows: DataFrame) -> BatchOnItsWay:
        """Start a batch."""
        before = self._before(number)
        buckets = {stage.name: self._buckets(stage, before, rows.sparkSession) for stage in self._stages}
        attempt = self._manifests.begin(number, uuid.uuid4().hex[:12], buckets)
        for name in buckets:
            os.makedirs(f"{attempt}/{name}")
        clock = clock_of(self._checkpoint, number)
        if len(self._roots) > 1:
            # Several stages take rows of the batch, which is to be read once.
            rows = rows.persist()
        batches = self._batches(number, before, buckets, attempt, clock)
        return BatchOnItsWay(rows, self._stages, self._roots, clock, batches, self._shared, self._plans)

    def _before(self, number: int) -> dict[str, Any]:
        if number == 0:
            return {}
        if self._last is None or self._last[0] != number - 1:
            self._last = (number - 1, self._manifests.read(number - 1)["stages"])
        return self._last[1]

    def _buckets(self, stage: Stage, before: dict[str, Any], spark: SparkSession) -> int:
        known = before.get(stage.name)
        if known is not None:
            return int(known["buckets"])
        return self._divided.get(stage.name) or int(spark.conf.get("spark.sql.shuffle.partitions") or 2)

    def _batches(
        self, number: int, before: dict[str, Any], buckets: dict[str, int], attempt: str, clock: BatchClock
    ) -> dict[str, StageBatch]:
        found = {}
        for stage in self._stages:
            state = before.get(stage.name, {}).get("state", {})
            _check_numbers(stage.name, buckets[stage.name], state)
            found[stage.name] = StageBatch(
                stage.spec.engine, f"{self.folder}/{stage.name}", f"{attempt}/{stage.name}", number,
                clock.earlier(self._lags[stage.number]) if stage.spec.time == "event"
                else clock_of(self._checkpoint, number, stage.spec.time),
                buckets[stage.name], {int(at): BucketState.from_json(content) for at, content in state.items()},
                stage.spec.behind, self._marked,
            )  # fmt: skip
        return found

    def finish(self, number: int, way: BatchOnItsWay) -> StageFigures:
        """Record late rows and state of a batch that the sink has committed."""
        before = self._before(number)
        content: dict[str, Any] = {}
        late, due, progress = [], [], []
        taken = came_late = 0
        for stage in self._stages:
            receipts = _receipts(way.batches[stage.name])
            known = before.get(stage.name, {})
            taken += sum(receipt["in"] for receipt in receipts.values() if stage.number in way.packed)
            counts = Counter(known.get("counts", {}))
            for receipt in receipts.values():
                counts.update(receipt["counts"])
                came_late += receipt["counts"].get("late", 0)
            tables = self._late.read([receipt["late"] for receipt in receipts.values()], stage)
            late += tables
            due += [_due(receipt, stage, self._lags[stage.number]) for receipt in receipts.values()]
            progress.append(_progress_of(stage.name, receipts, sum(rows.num_rows for rows in tables)))
            content[stage.name] = {
                "operator": stage.spec.operator,
                "described": stage.spec.engine.describe(),
                "buckets": way.batches[stage.name].buckets,
                "counts": dict(counts),
                "late": self._late.totals(known.get("late", {}), tables, stage),
                "state": {str(bucket): receipt["state"] for bucket, receipt in sorted(receipts.items())},
            }
        way.close()
        self._late.append(late, number)
        reach("stage_late_appended")
        clock = {"watermark": way.clock.watermark, "now": way.clock.now}
        # A fenced run must not change the state of the newer one.
        with self._store.guard(self._run):
            self._manifests.write(number, {"clock": clock, "stages": content})
        reach("stage_manifest_written")
        self._last = (number, content)
        shutil.rmtree(self._store.sent(self._run), ignore_errors=True)
        event, processing = (min(times) for times in zip(*due, strict=True)) if due else (NEVER, NEVER)
        leave_due(self.folder, event, processing, way.clock.watermark)
        states = [bucket for stage in content.values() for bucket in stage["state"].values()]
        return StageFigures(
            state_rows=sum(state["live"] for state in states),
            state_bytes=sum(run["bytes"] for state in states for run in state["runs"]),
            late=came_late,
            too_late=sum(rows.num_rows for rows in late),
            watermark=None if way.clock.watermark == NO_TIME else way.clock.watermark,
            rows_in=taken if way.packed else None,
            stages=tuple(progress),
        )


@dataclass(frozen=True)
class StagePlans:
    """The plans before, between and behind the stages of a flow, built once; each batch is bound into them."""

    # The prepared input of each stage, by its number; none if the query already prepares it.
    prepared: Mapping[int, BoundPlan]
    rows: BoundPlan
    # What the tasks of the last stage do with their rows for the sink; None if Spark computes the rows behind it.
    output: ColumnPacking | None = None
    # What the tasks of a stage do with their rows for the next one, by its number; not if Spark computes the rows between them.
    between: Mapping[int, Packing] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        given: DataFrame,
        rows: DataFrame,
        stages: Sequence[Stage],
        roots: Sequence[Root],
        task: ColumnTask | None,
        sent: str,
    ) -> StagePlans | str:
        """The plans, or why they must be built for each batch. `given`: the rows of the query, as in its batches; `sent`: the
        directory of rows from stage to stage."""
        frames: dict[int, DataFrame] = {}
        between: dict[int, Packing] = {}
        shared = _shared_stages(rows, stages)
        for stage in stages:
            behind = [place for place, before in enumerate(stage.inputs) if stages_in(before)]
            if packing := _read_between(stage, stages, shared, sent):
                between |= packing
            elif behind:
                frames[stage.number] = prepare_inputs(stage, behind)
            elif len(stage.inputs) == 1 and not is_packed(given):
                schema = given.schema if len(roots) == 1 else stage.inputs[0].schema
                frames[stage.number] = stage.spec.prepare(placeholder(given, _root(stage.number), schema))
        for frame in (*frames.values(), rows):
            if found := obstacle(frame):
                return found
        behind_all = BoundPlan(rows)
        output = None if task is None else _read_output(rows, behind_all, stages, task)
        return cls({number: BoundPlan(frame) for number, frame in frames.items()}, behind_all, output, between)


def _read_between(stage: Stage, stages: Sequence[Stage], shared: Collection[int], sent: str) -> dict[int, Packing]:
    """How the tasks of the stage before this one prepare and pack its rows, by the number of that stage; empty if they cannot."""
    taken = stage.spec.packed
    uses = stage_uses(stage.inputs[0])
    if taken is None or len(stage.inputs) > 1 or sum(uses.values()) != 1 or shared & uses.keys():
        return {}
    [before] = [other for other in stages if other.number in uses]
    rows = stage.inputs[0]
    steps = None if obstacle(rows) else _steps_behind(rows, BoundPlan(rows), before)
    if steps is None or [name for name, _ in steps.columns] != rows.columns:
        return {}
    preparation: Any = getattr(stage.spec.preparations[0].arrow, "__self__", None)
    schema = stage_schema(before.spec.engine).remove_metadata()
    return {before.number: Packing(schema, steps.columns, steps.condition, preparation, taken, 0, stage.number, sent)}


def _steps_behind(rows: DataFrame, plan: BoundPlan, stage: Stage) -> PlainSteps | None:
    """How rows are computed from the output of a stage; None if not over Arrow."""
    spark, schema = rows.sparkSession, stage_schema(stage.spec.engine)
    # A leaf about which the optimizer knows nothing.
    leaf = spark.createDataFrame(spark.sparkContext.emptyRDD(), spark_schema(schema))
    steps = read_steps(plan.bind({str(stage.number): leaf}))
    return None if isinstance(steps, str) else steps


def _read_output(rows: DataFrame, plan: BoundPlan, stages: Sequence[Stage], task: ColumnTask) -> ColumnPacking | None:
    """How the tasks of the last stage compute the flow's rows; None if they cannot, or others use its rows too."""
    last = stages[-1]
    if stage_uses(rows) != {last.number: 1} or last.number in _shared_stages(rows, stages):
        return None
    steps = _steps_behind(rows, plan, last)
    if steps is None:
        return None
    return ColumnPacking(
        stage_schema(last.spec.engine).remove_metadata(),
        steps.columns,
        steps.condition,
        arrow_schema(rows.schema).remove_metadata(),
        task,
    )


def _root(number: int) -> str:
    """The key of the placeholder for the rows that the query passes to a stage."""
    return f"root of {number}"


class BatchOnItsWay:
    """One batch of a flow in progress. If the program is built for each batch, it gets this."""

    def __init__(
        self,
        rows: DataFrame,
        stages: Sequence[Stage],
        roots: Sequence[Root],
        clock: BatchClock,
        batches: dict[str, StageBatch],
        shared: Collection[int],
        plans: StagePlans | None,
    ) -> None:
        self._stages = stages
        self._plans = plans
        self._rows = rows
        self._shared = shared
        self._kept: list[DataFrame] = []
        self._names = {stage.number: stage.name for stage in stages}
        self._roots = roots
        self.clock = clock
        self.batches = batches
        # The numbers of the stages whose rows are packed.
        self.packed = {root.number for root in roots} if is_packed(rows) else set()

    def close(self) -> None:
        """Release what was cached for the batch."""
        if self._rows.is_cached:
            self._rows.unpersist()
        for rows in self._kept:
            rows.unpersist()

    def root(self, number: int) -> DataFrame:
        return root_rows(self._rows, self._roots, number)

    def run_stage(self, stage: Stage) -> DataFrame:
        name = self._names.get(stage.number)
        if name is None:
            # A stage of another flow of the program: its output is not used.
            return stage.inputs[0].sparkSession.createDataFrame([], spark_schema(stage_schema(stage.spec.engine)))
        return self._through(stage, name, prepare_batch(self, stage))

    def bind(self) -> DataFrame | None:
        """The output of the flow for the batch; None if the program must be built for it."""
        if self._plans is None:
            return None
        heads = {root.number for root in self._roots}
        given: dict[str, DataFrame] = {}
        # The packed rows for a stage from the one before it.
        sent: dict[int, DataFrame] = {}
        for stage in self._stages:
            plan = self._plans.prepared.get(stage.number)
            root = self.root(stage.number) if stage.number in heads else None
            if stage.number in sent:
                rows = sent[stage.number]
            elif plan is None:
                assert root is not None
                rows = root
            elif root is None:
                rows = plan.bind(given)
            elif len(stage.inputs) == 1:
                rows = plan.bind({_root(stage.number): root})
            else:
                rows = root.unionByName(plan.bind(given))
            if between := self._plans.between.get(stage.number):
                between = replace(between, buckets=self.batches[self._names[between.stage]].buckets)
                sent[between.stage] = self._through(stage, stage.name, rows, between)
                continue
            output = self._plans.output if stage is self._stages[-1] else None
            given[str(stage.number)] = rows = self._through(stage, stage.name, rows, output)
            if output is not None:
                return rows
        return self._plans.rows.bind(given)

    def _through(
        self, stage: Stage, name: str, prepared: DataFrame, output: Packing | ColumnPacking | None = None
    ) -> DataFrame:
        rows = through_stage(prepared, stage.spec, self.batches[name], output)
        if stage.number in self._shared:
            # The engine runs once, however often its output is used.
            rows = rows.persist()
            self._kept.append(rows)
        return rows


def _check_numbers(stage: str, buckets: int, state: Collection[str]) -> None:
    strange = [at for at in state if int(at) >= buckets]
    if strange:
        raise CorruptHome(
            f'stage "{stage}" has state for buckets beyond its number of buckets',
            detail=f"It has {buckets} buckets, and there is state for the buckets {', '.join(strange)}: an early version "
            "numbered them so and could lose them.",
            hint="The log has all rows: rebuild the flow's sink, or delete the flow's checkpoint together with what it has "
            "written, and run it again.",
            path=stage,
        )


def _due(receipt: dict[str, Any], stage: Stage, lag: int) -> tuple[int, int]:
    """When a bucket is due: by the flow's watermark, and by the clock. Append times are times of the clock."""
    event, processing = receipt["event_due"], receipt["processing_due"]
    event = event + lag if event < NEVER - lag else event
    return (event, processing) if stage.spec.time == "event" else (NEVER, min(event, processing))


def _progress_of(stage: str, receipts: Mapping[int, Mapping[str, Any]], too_late: int) -> StageProgress:
    """A stage in a batch, by the receipts of its buckets."""
    each = list(receipts.values())
    slowest = max(each, key=lambda receipt: receipt["ms"])
    return StageProgress(
        stage,
        rows_in=sum(receipt["in"] for receipt in each),
        rows_out=sum(receipt["out"] for receipt in each),
        ms=sum(receipt["ms"] for receipt in each),
        state_rows=sum(receipt["state"]["live"] for receipt in each),
        state_bytes=sum(run["bytes"] for receipt in each for run in receipt["state"]["runs"]),
        late=sum(receipt["counts"].get("late", 0) for receipt in each),
        too_late=too_late,
        slowest_bucket=slowest["bucket"],
        slowest_ms=slowest["ms"],
    )


def _receipts(batch: StageBatch) -> dict[int, dict[str, Any]]:
    """One for each bucket; a task that ran twice left two equal ones."""
    found: dict[int, dict[str, Any]] = {}
    for name in sorted(os.listdir(batch.attempt)):
        if name.endswith(".json"):
            with open(f"{batch.attempt}/{name}", encoding="utf-8") as file:
                receipt = json.load(file)
            found[receipt["bucket"]] = receipt
    if len(found) != batch.buckets:
        raise Conflict(
            f"the sink read only a part of batch {batch.number}",
            detail=f"It read {len(found)} of {batch.buckets} buckets of a stage.",
            hint="A sink must read all rows of a batch. If the sink is your own, correct it.",
        )
    return found
