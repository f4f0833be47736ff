"""Program: a function from a mainstem to flows, checked without starting any of them.

    def flows(stem):
        yield Flow(stem.topic("orders").stream().where("amount > 1000"), into=stem.topic("big_orders"))

Errors that can be found before the start are found here: an unknown topic or column, a sink that cannot store the rows, two
flows into one sink, an operator that Spark cannot run as a stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from mainstem.arguments import call_with_stem, type_name
from mainstem.batch import FlowRun
from mainstem.errors import (
    Conflict,
    FlowNotFound,
    Invalid,
    MainstemError,
    SchemaMismatch,
    Unavailable,
    did_you_mean,
)
from mainstem.flows.flow import Flow
from mainstem.flows.packed_query import BUILT_FROM, columnar_query, packed_query, takes_columns
from mainstem.flows.real_time import check_cores, check_real_time
from mainstem.flows.staged_batches import query_rows, stage_operators, stages_of
from mainstem.log.log import Log
from mainstem.log.record import ORIGIN
from mainstem.operators.stage.stage import BatchStages, Stage
from mainstem.sinks.store import Store
from mainstem.spark.build import NEVER_IDLE, Build, Leaf
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.checkpoint.native_history import NativeHistory
from mainstem.spark.columnar_rows import ColumnTask
from mainstem.spark.plan.flow_plan import (
    Operator,
    find_leaves_without_record,
    fingerprint,
    leaves_in,
    needed_columns,
    operators_in,
    output_mode,
    plan_text,
    row_conditions,
)
from mainstem.spark.plan.plain_read import can_read_plainly
from mainstem.spark.sources.agreed_cut import new_agreement, write_sources
from mainstem.spark.sources.batch_pace import BatchPace
from mainstem.spark.sources.topic_glob import match_topics
from mainstem.spark.sources.topic_request import LIGHT_ROWS_MAX, ROWS_MAX
from mainstem.spark.spark_session import has_times
from mainstem.spark.spark_types import TIME_HINT, arrow_schema, check_no_times
from mainstem.views.home_views import wait_for_views
from mainstem.views.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.stem import Mainstem

__all__ = [
    "Flows",
    "PlannedFlow",
    "Program",
    "plan_texts",
    "spark_errors",
    "with_idle_inputs",
]


# Translation of Spark's errors, all in one place.


_COLUMN = re.compile(
    r"with name `(?P<name>[^`]+)` cannot be resolved(?:\. Did you mean one of the following\? \[(?P<known>[^\]]*)\])?"
)


_ATTRIBUTE = re.compile(r"Attribute `(\w+)` is not supported")
# Methods of pandas, and what they are in Spark.
_OF_PANDAS = {
    "assign": 'rows.withColumn("total", F.col("amount") * 2)',
    "astype": 'rows.withColumn("amount", F.col("amount").cast("double"))',
    "groupby": 'rows.groupBy("store")',
    "merge": 'rows.join(others, "store")',
    "query": 'rows.where("amount > 100")',
    "rename": 'rows.withColumnRenamed("old", "new")',
}
_NO_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?P<path>.+?)\.(?: SQLSTATE|$)", re.MULTILINE)


@contextmanager
def spark_errors(subject: str) -> Iterator[None]:
    """Raises Spark's errors while a plan is built as ours: `Invalid`, or `Unavailable` for a path that does not exist."""
    try:
        yield
    except MainstemError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("pyspark"):
            raise
        raise translate_error(error, subject) from error


def translate_error(error: Exception, subject: str) -> MainstemError:
    """An error of Spark as one of ours, without its stack trace."""
    text = str(error)
    if found := _NO_PATH.search(text):
        # While a flow runs, a file may be away for as long as it is written again: the flow is built again later.
        return Unavailable(
            f'{subject} reads "{found["path"].removeprefix("file:")}", which does not exist',
            detail="It may have been removed, or is being written again.",
            hint="Write the file, or correct the path. A flow that already runs retries until it is there.",
        )
    if found := _COLUMN.search(text):
        known = [name.strip(" `") for name in (found["known"] or "").split(",") if name.strip()]
        return SchemaMismatch(
            f'{subject} uses the column "{found["name"]}", which does not exist',
            detail=f"The most similar columns are: {', '.join(known)}." if known else "",
            hint=did_you_mean(found["name"], known) or "Name a column that the rows have.",
            column=found["name"],
        )
    if "UNSUPPORTED_TIME_TYPE" in text:
        return Invalid(
            f"{subject} uses a TIME, which this Spark session does not support",
            detail="Mainstem enables Spark's TIME type unless the session's settings disable it.",
            hint=TIME_HINT,
        )
    if "Queries with streaming sources must be executed with writeStream.start()" in text:
        return Invalid(
            f"{subject} asks a stream for its rows",
            detail="A stream has no end, so count(), collect(), show() and the like have no result.",
            hint='For a number that is kept current: rows.groupBy("...").count() into a view. To see rows now, use .read() '
            "instead of .stream(), or mainstem topic read.",
        )
    if found := _ATTRIBUTE.search(text):
        instead = _OF_PANDAS.get(found[1])
        return Invalid(
            f'{subject} uses "{found[1]}", which a DataFrame of Spark does not have',
            detail="It is neither a method nor a column.",
            hint=f"As in Spark: {instead}."
            if instead
            else "Name a method of Spark's DataFrame, or a column that the rows have.",
        )
    first = text.splitlines()[0] if text else type(error).__name__
    first = re.sub(r"^\[[A-Z_.]+\] ", "", first)
    return Invalid(
        f"{subject} cannot be built",
        detail=first if first.endswith(".") else f"{first}.",
        hint="Nothing was started. Correct the program and check it again.",
    )


# Idle inputs: which inputs of a flow no longer hold back the watermark when they are idle, and which ones ignore them.


MICROSECOND = timedelta(microseconds=1)
VIEW, TOPICS = "view ", "topics "


def with_idle_inputs(leaves: Mapping[int, Leaf], tables: Collection[int], log: Log, flow: str) -> dict[int, Leaf]:
    """The inputs of a flow, each with its `idle_after`; see `idle_input`.

    `tables`: the numbers of the inputs of tables in which rows are looked up by time. Unless the program says otherwise,
    such an input uses the setting of its topic.
    """
    spans = {
        number: _span(leaf, log, table=number in tables) for number, leaf in leaves.items() if leaf.delay is not None
    }
    going = [number for number, span in spans.items() if span is None]
    if len(spans) > 2 and not going:
        raise Invalid(
            f'every input of flow "{flow}" has an idle_after',
            detail=f"They are: {', '.join(leaves[number].source for number in spans)}. While one is idle, the flow uses the "
            "watermark of the inputs without idle_after.",
            hint='Leave idle_after= out for at least one of them; for the table of an enrich: idle_after="never".',
        )
    found = {number: replace(leaf, table=number in tables) for number, leaf in leaves.items()}
    for number, span in spans.items():
        beside = [(leaves[other], leaves[other].delay) for other in going or spans if other != number]
        if span is not None and beside:
            pairs = [[topic, delay] for leaf, delay in beside for topic in _topics(leaf, log)]
            found[number] = replace(found[number], idle={"after": span, "beside": pairs})
    return found


def _span(leaf: Leaf, log: Log, *, table: bool) -> int | None:
    """After how many microseconds an input is idle; None if it never is."""
    if leaf.idle_after is not None:
        return None if leaf.idle_after == NEVER_IDLE else leaf.idle_after
    if not table or leaf.source.startswith((VIEW, TOPICS)):
        return None
    return log.open_topic(leaf.source).settings.idle_after // MICROSECOND


def _topics(leaf: Leaf, log: Log) -> list[str]:
    """The topics that an input reads."""
    glob = leaf.source.removeprefix(TOPICS)
    return [leaf.source] if glob == leaf.source else match_topics(glob, log.topic_names())


Flows: TypeAlias = "Callable[[Mainstem], Iterable[Flow]]"


@dataclass(frozen=True)
class PlannedFlow:
    """A flow that can be started: its sources, state and output."""

    flow: Flow
    output_mode: str
    schema: pa.Schema
    leaves: dict[int, Leaf]
    operators: Sequence[Operator]
    # What its checkpoint depends on.
    plan: dict[str, Any]
    # The operators whose state is kept in Python; may be empty.
    stages: tuple[Stage, ...] = ()
    # Whether the reader of its topic can compute its rows, and the sink takes them as columns; see `columnar_rows`.
    columnar: bool = False
    # Whether a topic has the name of its view.
    hidden: bool = False

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def sources(self) -> list[str]:
        return sorted({leaf.source for leaf in self.leaves.values()})

    @property
    def topics(self) -> list[str]:
        """The topics among its sources."""
        return [source for source in self.sources if not source.startswith(("view ", "topics "))]

    @property
    def topic_reads(self) -> int:
        """The number of topic reads; a topic that is joined with itself is read twice."""
        return sum(not source.startswith("view ") for source in self.plan["sources"])

    @property
    def rows_max(self) -> int:
        """The maximal number of rows of a batch. Unless the flow sets it, it is lower if rows pass through the driver's memory
        (topics and views) or the flow has state.
        """
        if self.flow.rows_max is not None:
            return self.flow.rows_max
        light = not self.operators and self.flow.into.kind not in ("topic", "view", "store")
        return LIGHT_ROWS_MAX if light else ROWS_MAX

    def warnings(self) -> list[str]:
        """What is valid, but will cause problems."""
        unbounded = [
            f'the state of "{operator.name}" in flow "{self.name}" grows without bound: it is never evicted'
            f"{_WAYS_TO_BOUND.get(operator.name, '')}"
            for operator in self.operators
            if not operator.bounded_by
        ]
        waiting = [
            f'flow "{self.name}" waits for {leaf.source}, a table of enrich, while nothing is appended to it: '
            "it has no idle_after"
            for leaf in self.leaves.values()
            if leaf.table and leaf.delay is not None and leaf.idle is None
        ]
        circle = [
            f'flow "{self.name}" writes into topic "{self.flow.into.name}", which it reads: it reads each row that it writes, and '
            "ends only if it filters them out"
            for _ in range(self.flow.into.kind == "topic" and self.flow.into.name in self.topics)
        ]
        hidden = [
            f'SQL queries do not see view "{self.flow.into.name}": a topic has the same name; give the view another one'
            for _ in range(self.hidden)
        ]
        return [*unbounded, *waiting, *self._replaced_windows(), *circle, *hidden]

    def _replaced_windows(self) -> list[str]:
        """A view of windows whose key has no window keeps one window for each key."""
        key = getattr(self.flow.into, "key", None) or ()
        place = self.schema.get_field_index("window")
        if self.flow.into.kind != "view" or place < 0 or "window" in key:
            return []
        of = self.schema.field(place).type
        if not pa.types.is_struct(of) or [field.name for field in of] != ["start", "end"]:
            return []
        return [
            (
                f'view "{self.flow.into.name}" keeps one window for each {", ".join(key)}, the last that is written: its key lacks '
                'the window; to keep all, add "window" to its key'
            )
        ]


# What bounds the state of an operator of Spark.
_WAYS_TO_BOUND = {
    "aggregate": "; group by the time of a stream with a watermark, and collect no lists",
    "deduplicate": "; give the stream a watermark and use dropDuplicatesWithinWatermark, or dedupe of mainstem.operators",
    "join": "; give both streams a watermark and compare their times in the condition, or use join of mainstem.operators",
}


class Program:
    """The flows of one program on one mainstem."""

    def __init__(
        self, stem: Mainstem, flows: Flows, *, cuts: Mapping[str, Any] | None = None, rebuilt: str | None = None
    ) -> None:
        """`rebuilt`: the view or store of which a new version is built, which may have other columns than the live one."""
        self._stem = stem
        self._flows = flows
        self._rebuilt = rebuilt
        # The batch boundaries of a replay; see `Build.cuts`.
        self._cuts = cuts or {}
        self._build = Build()
        self.flows = wait_for_views(self._plan_flows, stem.log.clock)

    def only(self, names: Sequence[str] | None) -> list[PlannedFlow]:
        """The flows with these names, or all; checks that they can run together."""
        if names is None:
            check_cores(self.flows, self._stem.log)
            return self.flows
        known = {flow.name: flow for flow in self.flows}
        for name in names:
            if name not in known:
                raise FlowNotFound(
                    f'the program has no flow "{name}"',
                    detail=f"Its flows are: {', '.join(known) or 'none'}.",
                    hint=did_you_mean(name, known) or "Name one of these.",
                )
        chosen = [known[name] for name in names]
        check_cores(chosen, self._stem.log)
        return chosen

    def _plan_flows(self) -> list[PlannedFlow]:
        planned: list[PlannedFlow] = []
        self._build = Build(cuts=self._cuts)
        with self._build.enter():
            for flow in _iterate_flows(self._flows, self._stem):
                _check_apart(flow, planned)
                with spark_errors(f'flow "{flow.name}"'):
                    planned.append(self._plan(flow))
                self._build.schemas[f"{flow.into.kind}:{flow.into.name}"] = planned[-1].schema
        self._check_repeatable(planned)
        return planned

    def _check_repeatable(self, planned: Sequence[PlannedFlow]) -> None:
        """Build the program a second time, and raise `Invalid` if it differs: a run is built from what was checked."""
        again = Build(cuts=self._cuts, schemas=self._build.schemas)
        with again.enter():
            flows = list(_iterate_flows(self._flows, self._stem))
        if (names := [flow.name for flow in flows]) != [flow.name for flow in planned]:
            raise _not_repeatable(
                "the program", ", ".join(flow.name for flow in planned) or "no flow", ", ".join(names) or "no flow"
            )
        for flow, before in zip(flows, planned, strict=True):
            stages = stages_of(flow.rows, again.stages, flow.name)
            for one, other in zip_longest(plan_texts(before.flow.rows, before.stages), plan_texts(flow.rows, stages)):
                if one != other:
                    raise _not_repeatable(f'flow "{flow.name}"', str(one), str(other))

    def _plan(self, flow: Flow) -> PlannedFlow:
        if not flow.rows.isStreaming:
            raise Invalid(
                f'the rows of flow "{flow.name}" are not a stream',
                detail="They are a snapshot taken when the program was built, and would never change.",
                hint='Use .stream() instead of .read(): stem.topic("...").stream().',
            )
        schema = arrow_schema(flow.rows.schema)
        _check_columns_once(schema.names, flow.name)
        if not has_times(flow.rows.sparkSession):
            check_no_times(schema, f'flow "{flow.name}"')
        if isinstance(flow.into, View) and flow.into.name == self._rebuilt:
            flow.into.accept(schema, version=0)  # as for a version that does not exist yet
        elif isinstance(flow.into, Store) and self._rebuilt is not None:
            # As for a version that does not exist yet; other stores may have to be rebuilt too, one after the other.
            flow.into.at_version(0).accept(schema)
        else:
            flow.into.accept(schema)
        stages = stages_of(flow.rows, self._build.stages, flow.name)
        # Behind the first stage nothing is a stream of Spark.
        rows = query_rows(stages) if stages else flow.rows
        self._check_changes(rows, flow.name)
        needed = needed_columns(rows)
        conditions = row_conditions(rows)
        leaves = {}
        for number in leaves_in(rows):
            leaf = self._build.leaves[number]
            # In the column order of the topic.
            wanted = [name for name in leaf.schema.names if name in needed.get(number, ())]
            # A count needs no column, but its rows must be counted.
            columns = tuple(wanted) or (leaf.schema.names[-1],)
            leaves[number] = replace(leaf, columns=columns, condition=conditions.get(number))
        leaves = with_idle_inputs(leaves, self._build.tables, self._stem.log, flow.name)
        if flow.mode == "real-time":
            check_real_time(flow, leaves, stages, self._stem.log)
        names = {number: leaf.source for number, leaf in leaves.items()}
        plan = fingerprint(rows, names)
        plan["operators"] += [
            {
                "operator": stage.name,
                "of": dict(stage.spec.definition),
                "parameters": dict(stage.spec.parameters),
                **stage.spec.engine.describe(),
            }
            for stage in stages
        ]
        return PlannedFlow(
            flow,
            output_mode(rows, flow.name),
            schema,
            leaves,
            [*operators_in(rows), *stage_operators(stages)],
            plan,
            stages,
            columnar=not stages and takes_columns(flow) and can_read_plainly(flow.rows),
            hidden=flow.into.kind == "view" and flow.into.name in self._stem.log.topic_names(),
        )

    def _check_changes(self, rows: DataFrame, flow: str) -> None:
        """Raise `Invalid` if Spark would count the deletes of a view as rows."""
        for number in sorted(find_leaves_without_record(rows)):
            source = self._build.leaves[number].source
            if source.startswith("view "):
                raise Invalid(
                    f'flow "{flow}" aggregates the changes of {source} as if each change were a row',
                    detail="An update arrives as a delete of the old row and an insert of the new one, and a deleted row "
                    "arrives again as a delete: all of them would be counted.",
                    hint="Use aggregate(changes, by=..., aggregates=...) of mainstem.operators, which subtracts deleted "
                    'rows; to count the changes themselves, group by "record.change" too.',
                )

    def build_for(
        self,
        planned: PlannedFlow,
        run: FlowRun,
        *,
        files: NativeHistory | None = None,
        after: NativeHistory | None = None,
        clock: str = "",
        buckets: Mapping[str, int] | None = None,
        task: ColumnTask | None = None,
        pace: BatchPace | None = None,
    ) -> Flow:
        """The flow built again, with its sources bound to this run and pruned to the columns and rows that it needs.

        Its only source may be sealed `files` instead of their topic, or the topic `after` them. The rows of a flow with
        stages are those of the query before them; `clock` is the folder of its batches' clock. With `buckets` (the number of
        buckets of each stage) rows are packed if they can be; with a `task` of the sink, the readers run it if they can compute the
        rows of the flow. `pace` tells its sources when a batch may begin.

        If the program cannot be built with fewer columns (another flow names one that this flow does not need, or a column
        that is dropped later is derived from it), these columns are null; if that fails too, nothing is pruned.
        """
        filled = {number: replace(leaf, filled=True) for number, leaf in planned.leaves.items()}
        everything = {
            number: replace(leaf, columns=None, condition=None, filled=False) for number, leaf in planned.leaves.items()
        }
        together = self._agreement(planned, run)
        if pace is not None and together:
            pace.begin(together)
        only_topics = not any(leaf.source.startswith(VIEW) for leaf in planned.leaves.values())
        for leaves in (planned.leaves, filled, everything):
            build = Build(
                run=run, leaves=leaves, frames=self._build.frames, wait_ms=100 if len(leaves) == 1 else 10,
                only_topics=only_topics,
                rows_max=planned.rows_max, schemas=self._build.schemas, files=files, after=after,
                memory=self._build.memory, clock=clock, mode=planned.flow.mode, cuts=self._cuts,
                together=together,
            )  # fmt: skip
            try:
                with build.enter():
                    flow = next(flow for flow in _iterate_flows(self._flows, self._stem) if flow.name == planned.name)
                    if arrow_schema(flow.rows.schema).equals(planned.schema, check_metadata=False):
                        stages = stages_of(flow.rows, build.stages, flow.name)
                        if together and planned.topic_reads > 1:
                            write_sources(together, build.requests)
                        if stages:
                            sent = FlowStore(self._stem.home, run.flow).sent(run)
                            rows = packed_query(stages, buckets, sent) or query_rows(stages)
                        else:
                            rows = (columnar_query(flow.rows, planned, task) if task else None) or flow.rows
                        # A snapshot of a topic or a view has files for as long as there is a frame over them.
                        rows.__dict__[BUILT_FROM] = (flow.rows, stages)
                        return replace(flow, rows=rows)
            except Exception:
                if leaves is everything:
                    raise
        raise _not_repeatable(f'flow "{planned.name}"', f"columns {planned.schema.names}", "different columns")

    def _agreement(self, planned: PlannedFlow, run: FlowRun) -> str:
        """The folder in which the sources of a query agree on batch boundaries; empty if they do not."""
        if self._cuts or planned.flow.mode == "real-time":
            return ""
        return new_agreement(FlowStore(self._stem.home, run.flow).checkpoint(run.version))

    def batch_rows(self, planned: PlannedFlow, run: FlowRun, batch: BatchStages) -> DataFrame:
        """The output of a flow with stages for one batch of the query before them."""
        build = Build(
            run=run, frames=self._build.frames, schemas=self._build.schemas, memory=self._build.memory, batch=batch
        )
        with build.enter():
            return next(flow for flow in _iterate_flows(self._flows, self._stem) if flow.name == planned.name).rows


def plan_texts(rows: DataFrame, stages: Sequence[Stage]) -> list[str]:
    """Everything that a build determines about a flow, as lines."""
    found = plan_text(rows)
    for stage in stages:
        found += [f"{stage.name}: {stage.spec.definition} {stage.spec.parameters}"]
        found += [line for given in stage.inputs for line in plan_text(given)]
    return found


def _not_repeatable(what: str, one: str, other: str) -> Invalid:
    return Invalid(
        f"{what} is not deterministic: it changed between two builds",
        detail=f"The first build has: {one}. The second build has: {other}.",
        hint="Make the program depend only on the mainstem that is passed to it. For the time of a batch, use "
        "current_timestamp() in SQL, which Spark evaluates in every batch.",
    )


def _iterate_flows(flows: Flows, stem: Mainstem) -> Iterable[Flow]:
    with spark_errors("the program"):
        made = call_with_stem(flows, stem, "flows")
        if not isinstance(made, Iterable):
            raise Invalid(
                f"the program returned {type_name(made)}, not flows",
                detail="`flows` must be a function that yields flows or returns a list of them.",
                hint="Write: yield Flow(rows, into=sink).",
            )
        for flow in made:
            if not isinstance(flow, Flow):
                raise Invalid(
                    f"the program yielded {type_name(flow)}, not a flow",
                    detail=f"It is {str(flow)[:200]}.",
                    hint="Write: yield Flow(rows, into=sink).",
                )
            yield replace(flow, rows=_without_origin(flow.rows))


def _without_origin(rows: DataFrame) -> DataFrame:
    """Captured rows without the column that says where they come from; no sink takes it."""
    for field in rows.schema:
        # A struct has names; its type alone is compared, so that Spark is not imported here.
        names = getattr(field.dataType, "names", None)
        if field.name == "origin" and names == [one.name for one in ORIGIN]:
            return rows.drop("origin")
    return rows


def _check_columns_once(names: Sequence[str], flow: str) -> None:
    """Raise `SchemaMismatch` if two columns have one name, as Spark's own join leaves them."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is None:
        return
    why = " Every stream of a topic has a `record`." if twice == "record" else ""
    raise SchemaMismatch(
        f'the rows of flow "{flow}" have two columns "{twice}"',
        detail=f"Their columns are: {', '.join(names)}. Spark's join keeps the columns of both sides.{why}",
        hint=f'Drop or rename one of them before the join: orders.join(payments.drop("{twice}"), ...).',
        column=twice,
    )


def _check_apart(flow: Flow, earlier: Sequence[PlannedFlow]) -> None:
    for other in earlier:
        sink, theirs = flow.into, other.flow.into
        if (sink.kind, sink.name) == (theirs.kind, theirs.name):
            raise Conflict(
                f'two flows write into {sink.kind} "{sink.name}"',
                detail=f'They are "{other.name}" and "{flow.name}". A sink tracks the batches of one flow only.',
                hint="Union their rows into one flow, or give each flow its own sink.",
            )
        if flow.name == other.name:
            raise Conflict(
                f'two flows are named "{flow.name}"',
                detail="The name of a flow identifies its checkpoint.",
                hint="Give one of them another name: Flow(..., name=...).",
            )
