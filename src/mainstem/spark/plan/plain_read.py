"""PlainRead: a stream of a topic with only filters, columns and look-ups that can be computed over Arrow.

The reader of the topic can compute such a stream itself. It is recognised in the optimized plan, so it does not matter how
it was written: `where`, `select`, `drop`, `withColumnRenamed`, SQL. A union of such streams is several reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.spark.look_up import LookUp
from mainstem.spark.plan.catalyst_expression import NotTranslated, parts_of, translate
from mainstem.spark.plan.flow_plan import attributes_of, leaf_of, nodes_of, optimize, uses_current_time
from mainstem.spark.plan.row_expression import Condition, Expression, all_of, columns_in
from mainstem.spark.plan.static_table import StaticJoin, TableRead, check_tables, read_join
from mainstem.spark.sources.topic_request import OPTION, TOPIC_SOURCE, TopicRequest
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlainRead", "PlainSteps", "can_read_plainly", "plain_reads", "read_plainly", "read_steps"]

# An attribute of a frame: its plain reads.
_PLAIN_READS = "_mainstem_plain_reads"


@dataclass(frozen=True)
class PlainSteps:
    """How rows are computed from the rows of a leaf, whose columns are named: only a filter and columns over Arrow."""

    columns: tuple[tuple[str, Expression], ...]
    # The exact filter of its rows.
    condition: Condition | None
    # Joins with small tables, before the filter, one after the other; each with the filter before it.
    look_ups: tuple[LookUp, ...] = ()


@dataclass(frozen=True)
class PlainRead:
    """The request, the columns of its source, and how the stream is computed from them."""

    request: TopicRequest
    schema: pa.Schema
    steps: PlainSteps


def plain_reads(rows: DataFrame) -> tuple[PlainRead, ...]:
    """The plain reads of a stream; none if it is not made of them."""
    found = read_plainly(rows)
    return () if isinstance(found, str) else found


def read_plainly(rows: DataFrame) -> tuple[PlainRead, ...] | str:
    """The plain reads of a stream, in the order of its sources; if there are none, the expression or the operator that
    prevents it. Tables that it is joined with are read. Read once for a frame."""
    if _PLAIN_READS not in rows.__dict__:
        try:
            rows.__dict__[_PLAIN_READS] = _read_plainly(rows, StaticJoin.read)
        except NotTranslated as refused:
            rows.__dict__[_PLAIN_READS] = str(refused)
    found: tuple[PlainRead, ...] | str = rows.__dict__[_PLAIN_READS]
    return found


def can_read_plainly(rows: DataFrame) -> bool:
    """Whether a stream has plain reads, unless a table that it is joined with is too large: tables are not read."""
    try:
        return bool(_read_plainly(rows, StaticJoin.describe))
    except NotTranslated:
        return False


def _read_plainly(rows: DataFrame, read_table: TableRead) -> tuple[PlainRead, ...]:
    from pyspark.sql.types import StructType

    if uses_current_time(rows):
        raise NotTranslated("the current time")
    found = []
    for branch in _Branches(rows, read_table).of(optimize(rows)):
        leaf = branch.leaf
        if leaf.nodeName() != "StreamingRelationV2":
            raise NotTranslated(str(leaf.nodeName()))
        option = leaf.extraOptions().get(OPTION)
        if leaf.sourceName() != TOPIC_SOURCE or option is None:
            raise NotTranslated(f"the source {leaf.sourceName()}")
        steps = branch.steps(optimize(rows).output())
        if [name for name, _ in steps.columns] != rows.columns:
            raise NotTranslated("the order of the columns")
        schema = arrow_schema(StructType.fromJson(json.loads(leaf.schema().json())))
        found.append(PlainRead(TopicRequest.from_options({OPTION: option}), schema, steps))
    if len(found) > 1:
        # Spark numbers the sources in the order of the analysed plan, and has one for a stream that is there twice.
        analysed = (leaf_of(node) for node in nodes_of(rows._jdf.queryExecution().analyzed()))
        leaves = [read.request.leaf for read in found]
        if leaves != [leaf for leaf in analysed if leaf is not None] or len(set(leaves)) < len(leaves):
            raise NotTranslated("Union")
    return tuple(found)


def read_steps(rows: DataFrame) -> PlainSteps | str:
    """The steps of a frame that is no stream over its only leaf; if they are not plain, what prevents it."""
    plan = rows._jdf.queryExecution().optimizedPlan()
    try:
        branches = _Branches(rows, StaticJoin.read).of(plan)
        others = [branch.leaf.nodeName() for branch in branches if branch.leaf.nodeName() != "LogicalRDD"]
        if others or len(branches) > 1:
            return str(others[0] if others else "Union")
        return branches[0].steps(plan.output())
    except NotTranslated as refused:
        return str(refused)


@dataclass
class _Branch:
    """The rows of one leaf on their way up through a plan: the columns there by their ids, over those of the leaf."""

    leaf: Any
    known: dict[int, Expression]
    # Since the last look-up.
    conditions: list[Condition] = field(default_factory=list)
    look_ups: list[LookUp] = field(default_factory=list)

    def steps(self, output: Any) -> PlainSteps:
        columns = tuple((name, self.known[number]) for number, name in attributes_of(output))
        condition = all_of(self.conditions)
        parts = [value for _, value in columns] + [key for it in self.look_ups for key in it.keys]
        parts += [it for it in (condition, *(look_up.condition for look_up in self.look_ups)) if it is not None]
        used = {name for part in parts for name in columns_in(part)}
        return PlainSteps(columns, condition, tuple(it.with_columns(used) for it in self.look_ups))


class _Branches:
    """How the rows of a plan are computed from its leaves. What cannot be computed over Arrow raises `NotTranslated`."""

    def __init__(self, rows: DataFrame, read_table: TableRead) -> None:
        self._rows = rows
        self._read_table = read_table
        self._joins = 0

    def of(self, node: Any) -> list[_Branch]:
        name = node.nodeName()
        if name == "Union":
            return [branch for child in parts_of(node.children()) for branch in self._renamed(child, node)]
        if name == "Join":
            return self._joined(node)
        if name not in ("Project", "Filter", "EventTimeWatermark"):
            return [_Branch(node, {number: ["column", named] for number, named in attributes_of(node.output())})]
        branches = self.of(node.children().apply(0))
        for branch in branches:
            if name == "Filter":
                branch.conditions.append(translate(node.condition(), branch.known))
            elif name == "Project":
                branch.known = _project(node.projectList(), branch.known)
        return branches

    def _renamed(self, child: Any, union: Any) -> list[_Branch]:
        """The branches of a part of a union, whose columns are by position."""
        ids = [
            (ours, theirs)
            for (ours, _), (theirs, _) in zip(*map(attributes_of, (union.output(), child.output())), strict=True)
        ]
        branches = self.of(child)
        for branch in branches:
            branch.known = {ours: branch.known[theirs] for ours, theirs in ids}
        return branches

    def _joined(self, node: Any) -> list[_Branch]:
        join = read_join(node)
        check_tables(self._rows)
        branches = self.of(join.stream)
        self._joins += 1
        table = self._read_table(join, f"mainstem_look_up_{self._joins}", self._rows.sparkSession)
        for branch in branches:
            branch.look_ups.append(join.look_up(branch.known, all_of(branch.conditions), table))
            branch.known |= {number: ["column", name] for number, name in table.added.items()}
            branch.conditions = [translate(part, branch.known) for part in join.others]
        return branches


def _project(expressions: Any, known: dict[int, Expression]) -> dict[int, Expression]:
    found = {}
    for place in range(expressions.size()):
        expression = expressions.apply(place)
        named = expression.child() if expression.nodeName() == "Alias" else expression
        found[int(expression.exprId().id())] = translate(named, known)
    return found
