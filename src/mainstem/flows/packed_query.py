"""The streaming query of a flow whose rows are prepared by the readers of its topics: packed for its first stages (`packed_rows`),
or given to the column task of its sink (`columnar_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.flows.flow import Flow
from mainstem.flows.staged_batches import StagedBatches, roots_of
from mainstem.operators.stage.keyed_rows import can_tie
from mainstem.operators.stage.packed_reader import to_option
from mainstem.operators.stage.packed_rows import PACKED, Packing, is_packed
from mainstem.operators.stage.packed_source import PACKING
from mainstem.operators.stage.stage import Stage
from mainstem.spark.columnar_rows import RESULTS, ColumnPacking, ColumnTask, has_results
from mainstem.spark.plan.flow_plan import stages_in
from mainstem.spark.plan.plain_read import PlainRead, plain_reads, read_plainly
from mainstem.spark.sources.topic_request import OPTION, TOPIC_SOURCE, TopicRequest
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mainstem.flows.program import PlannedFlow

__all__ = ["BUILT_FROM", "columnar_query", "describe_columns", "packed_query", "packed_topics", "takes_columns"]

# An attribute of the rows of a query: the rows of the flow in its build, and its stages.
BUILT_FROM = "_mainstem_built_from"


def packed_query(stages: Sequence[Stage], buckets: Mapping[str, int] | None, sent: str = "") -> DataFrame | None:
    """As `query_rows`, with the rows packed; None if they cannot be. `buckets`: the number of buckets of each stage; `sent`: a
    directory for many rows.

    Its sources have the same order and the same offsets, so a checkpoint can be used with either.
    """
    if buckets is None:
        return None
    united = None
    roots = {root.number for root in roots_of(stages)}
    for stage in stages:
        if stage.number not in roots:
            continue
        reads = _plain_reads(stage)
        if not reads:
            return None
        for place, read in reads:
            rows = _pack(stage, place, read, buckets[stage.name], sent)
            united = rows if united is None else united.union(rows)
    return united


def packed_topics(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """The stages whose rows readers of topics pack, by name, each with the topics; empty if the rows of one cannot be."""
    roots = {root.number for root in roots_of(stages)}
    reads = {stage.name: _plain_reads(stage) for stage in stages if stage.number in roots}
    return (
        {name: [read.request.topic for _, read in found] for name, found in reads.items()}
        if all(reads.values())
        else {}
    )


def _plain_reads(stage: Stage) -> list[tuple[int, PlainRead]]:
    """How the readers of topics compute the inputs of a stage, each read with the number of its input; none if they cannot."""
    if stage.spec.packed is None or any(stages_in(rows) for rows in stage.inputs):
        return []
    reads = [plain_reads(rows) for rows in stage.inputs]
    found = [(place, read) for place, several in enumerate(reads) for read in several]
    if not all(_can_order(stage, place, several) for place, several in enumerate(reads)):
        return []
    return found if len({read.request.leaf for _, read in found}) == len(found) else []


def _can_order(stage: Stage, place: int, reads: Sequence[PlainRead]) -> bool:
    """Whether readers can prepare the input of a stage from these reads, so that its engine orders the rows as it does in Spark."""
    preparation = _preparation(stage, place)
    if not _share_positions(reads):
        return len(reads) == 1
    if preparation.same_position == "tie":
        return can_tie(_tied(preparation))
    return bool(preparation.same_position == "any order")


def _share_positions(reads: Sequence[PlainRead]) -> str:
    """What gives several rows one position in the log; empty if nothing does."""
    if len(reads) > 1:
        return "Union"
    most = [look_up.rows_most for read in reads for look_up in read.steps.look_ups]
    return "a join with several matches for a row" if max(most, default=1) > 1 else ""


def _preparation(stage: Stage, place: int) -> Any:
    return getattr(stage.spec.preparations[place].arrow, "__self__", None)


def _tied(preparation: Any) -> pa.Schema:
    """The columns of which a preparation's `tie` is a hash: all, if it does not say which."""
    found: pa.Schema = getattr(preparation, "tied", preparation.schema)
    return found


def _pack(stage: Stage, place: int, read: PlainRead, buckets: int, sent: str) -> DataFrame:
    taken, steps = stage.spec.packed, read.steps
    assert taken is not None
    preparation = _preparation(stage, place)
    tied = preparation.same_position == "tie" and _share_positions(plain_reads(stage.inputs[place]))
    packing = Packing(
        read.schema, steps.columns, steps.condition, preparation, taken, buckets, stage.number, sent, steps.look_ups,
        _tied(preparation) if tied else None,
    )  # fmt: skip
    return _read_packed(stage.inputs[place], read.request, packing, PACKED)


def _read_packed(
    rows: DataFrame, request: TopicRequest, packing: Packing | ColumnPacking, schema: pa.Schema
) -> DataFrame:
    """A read of a topic with a packing, in the session of `rows`."""
    reader = rows.sparkSession.readStream.format(TOPIC_SOURCE).schema(spark_schema(schema))
    return reader.option(OPTION, request.to_option()).option(PACKING, to_option(packing)).load()


def takes_columns(flow: Flow) -> bool:
    """Whether the sink of a flow takes columns."""
    return flow.mode == "batches" and getattr(flow.into, "takes_columns", False)


def columnar_query(rows: DataFrame, planned: PlannedFlow, task: ColumnTask) -> DataFrame | None:
    """The query of a flow without state whose readers run the column task of its sink; None if they cannot compute its rows.

    Its source has the same offsets, so a checkpoint can be used with either.
    """
    united = None
    for read in plain_reads(rows):
        steps, schema = read.steps, planned.schema.remove_metadata()
        packing = ColumnPacking(read.schema, steps.columns, steps.condition, schema, task, steps.look_ups)
        # The exact condition of the packing includes the one with which the source would drop rows.
        packed = _read_packed(rows, replace(read.request, condition=None), packing, RESULTS)
        united = packed if united is None else united.union(packed)
    return united


def describe_columns(planned: PlannedFlow, rows: DataFrame, staged: StagedBatches | None) -> str:
    """How far the rows of a query, `rows`, travel as columns: "from orders to windowed-0", or what prevents it."""
    sink = f"{planned.flow.into.kind} {planned.flow.into.name}"
    built, stages = rows.__dict__[BUILT_FROM]
    roots = {root.number for root in roots_of(stages)}
    heads = [stage for stage in stages if stage.number in roots]
    parts = []
    if has_results(rows):
        parts.append(f"from {', '.join(planned.sources)} to {sink}")
    elif is_packed(rows):
        topics = [planned.leaves[number].source for number in sorted(planned.leaves)]
        packed = packed_topics(stages) if len(heads) > 1 else {heads[0].name: topics}
        parts += [f"from {', '.join(topics)} to {stage}" for stage, topics in packed.items()]
    parts += [f"from {one} to {other}" for one, other in (staged.pairs if staged is not None else ())]
    if staged is not None and staged.sends_columns:
        parts.append(f"from {planned.stages[-1].name} to {sink}")
    if parts:
        return ", ".join(parts)
    inputs = [given for stage in heads for given in stage.inputs] or [built]
    reasons = [found for given in inputs if isinstance(found := read_plainly(given), str)]
    if any(stage.spec.packed is not None for stage in heads):
        # The stage takes packed rows, but not such.
        reasons += [found for given in inputs if (found := _share_positions(plain_reads(given)))]
    return f"no: Spark computes {reasons[0]}" if reasons else f"no: {heads[0].name if heads else sink} takes rows"
