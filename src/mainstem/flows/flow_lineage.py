"""The lineage of a flow: how the rows of its sink follow from the records of its sources.

    flows/<name>/lineage-v<version>.json    {"format": 1, "flow": "revenue", "version": 1, "epoch": 7, "program": "9f2c...",
        "sink": {"kind": "view", "name": "revenue", "key": ["store", "window"]},
        "rows": {"is": "rows", "where": [], "columns": [["store", ["column", "by_0"]], ...],
                 "of": {"is": "stage", "operator": "windowed", "stage": "windowed-0", "how": {"window": {...}, ...},
                        "behind": 0,
                        "of": [{"is": "rows", "of": {"is": "read", "source": "orders", "leaf": 0, "delay": 60000000}, ...}]}},
        "because": "", "starts": {"orders": {"0": 120}},
        "changed": {"batch": 3, "filters": true, "offsets": {"orders": {"0": 400}}}, "crc32c": ...}

A tree of nodes is drawn in `plan_lineage`. A stage has `how` its engine's output columns follow from the columns of its inputs
(`StageSpec.lineage`), and how far its event times may be `behind` its watermark. If the lineage cannot be said, `rows` is null and
`because` names what prevents it.

`starts`: at which offsets the version began to read each topic; those that are missing are not known. `changed`: the last batch, and
what it had read, before a run of this version had another lineage, or one that is not known; null if there was none. `filters`: only
filters differed.

The first run writes it, and a run of another `program` (a hash of its plans) replaces it, atomically. Without it, or if it is
damaged, `view.why` names ranges of offsets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainstem.batch import FlowRun, Offsets
from mainstem.durable_files import REAL_FILES, encode_checked, replace_file
from mainstem.flows.flow_description import key_of
from mainstem.flows.program import PlannedFlow, plan_texts
from mainstem.flows.why.lineage_file import FORMAT, read_lineage
from mainstem.operators.stage.stage import Stage, stage_schema
from mainstem.spark.build import Leaf
from mainstem.spark.checkpoint.checkpoint_offsets import applied_offsets, last_batch
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.bound_plan import BoundPlan, obstacle
from mainstem.spark.plan.flow_plan import attributes_of, stage_uses
from mainstem.spark.plan.plan_lineage import Tree, Unsaid, trace_frame, trace_stream
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["trace_flow", "write_lineage"]


def write_lineage(store: FlowStore, run: FlowRun, planned: PlannedFlow) -> None:
    """Write the lineage of a flow, unless it is there, if it can be written: no flow fails for want of it."""
    program = _program_hash(planned)
    before, checkpoint = read_lineage(store, run.version), store.checkpoint(run.version)
    # A batch that was planned may have been written by the run before.
    last = last_batch(checkpoint, "offsets")
    if before is not None and before.get("program") == program and last is not None:
        return
    try:
        rows, because = trace_flow(planned.flow.rows, planned.stages, planned.leaves), ""
    except Unsaid as unsaid:
        rows, because = None, str(unsaid)
    except Exception as error:  # noqa: BLE001 - Spark's plans have no public form: whatever they do, the flow runs
        rows, because = None, f"{type(error).__name__} in its plan"
    sink = planned.flow.into
    content = {
        "format": FORMAT,
        "flow": planned.name,
        "version": run.version,
        "epoch": run.epoch,
        "program": program,
        "sink": {"kind": sink.kind, "name": sink.name, "key": key_of(sink)},
        "rows": rows,
        "because": because,
        "starts": _starts(planned.leaves.values()) if last is None else (before or {}).get("starts", {}),
        "changed": None if last is None else _changed(before, rows, last, applied_offsets(checkpoint, last)),
    }
    with suppress(OSError):
        replace_file(REAL_FILES, store.lineage(run.version), encode_checked(content))


def _starts(leaves: Iterable[Leaf]) -> dict[str, dict[str, int]]:
    """The offsets at which topics are read first; an empty one: all from their first record."""
    found: dict[str, list[dict[str, int] | None]] = {}
    for leaf in leaves:
        start = {} if leaf.from_earliest else leaf.start
        found.setdefault(leaf.source, []).append(None if start is None else dict(start))
    return {
        source: starts[0]
        for source, starts in found.items()
        if starts[0] is not None and starts == starts[:1] * len(starts)
    }


def _changed(before: dict[str, Any] | None, rows: Tree | None, last: int, offsets: Offsets) -> dict[str, Any] | None:
    """The last batch of another lineage than this one."""
    earlier = (before or {}).get("changed")
    same = json.loads(json.dumps(rows))
    if before is not None and rows is not None and before["rows"] == same:
        return dict(earlier) if earlier else None
    filters = before is not None and rows is not None and _unfiltered(before["rows"]) == _unfiltered(same)
    return {"batch": last, "filters": filters and (not earlier or earlier["filters"]), "offsets": offsets}


def _unfiltered(tree: Any) -> Any:
    if isinstance(tree, list):
        return list(map(_unfiltered, tree))
    if not isinstance(tree, dict):
        return tree
    return {name: _unfiltered(part) for name, part in tree.items() if name != "where" or tree.get("is") != "rows"}


def _program_hash(planned: PlannedFlow) -> str:
    """Differs for flows whose rows follow from their sources in another way."""
    sources = [f"{number} {leaf.source} {leaf.delay}" for number, leaf in sorted(planned.leaves.items())]
    texts = [*sources, *plan_texts(planned.flow.rows, planned.stages)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


def trace_flow(rows: DataFrame, stages: Sequence[Stage], leaves: Mapping[int, Leaf]) -> Tree:
    """The tree of a flow's rows; raises `Unsaid` if there is none."""
    sources: dict[int, Tree] = {
        number: {"is": "read", "source": leaf.source, "leaf": number, "delay": leaf.delay}
        for number, leaf in leaves.items()
    }
    made: dict[int, tuple[Stage, Tree]] = {}
    for stage in stages:
        if stage.spec.lineage is None:
            raise Unsaid(stage.spec.operator)
        tree: Tree = {
            "is": "stage",
            "operator": stage.spec.operator,
            "stage": stage.name,
            "how": dict(stage.spec.lineage),
            "behind": stage.spec.behind,
            "of": [_trace(given, made, sources) for given in stage.inputs],
        }
        made[stage.number] = stage, tree
    return _trace(rows, made, sources)


def _trace(rows: DataFrame, made: Mapping[int, tuple[Stage, Tree]], sources: Mapping[int, Tree]) -> Tree:
    before = stage_uses(rows)
    if not before:
        return trace_stream(rows, sources)
    if found := obstacle(rows):
        raise Unsaid(found)
    spark = rows.sparkSession
    bound: dict[str, DataFrame] = {}
    stages: dict[int, Tree] = {}
    for number in before:
        stage, tree = made[number]
        # A leaf about which the optimizer knows nothing.
        leaf = spark.createDataFrame(
            spark.sparkContext.emptyRDD(), spark_schema(stage_schema(stage.spec.engine).remove_metadata())
        )
        for column, _ in attributes_of(leaf._jdf.queryExecution().analyzed().output()):
            stages[column] = tree
        bound[str(number)] = leaf
    return trace_frame(BoundPlan(rows).bind(bound), stages)
