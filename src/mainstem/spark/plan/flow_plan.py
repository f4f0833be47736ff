"""The analysis of a flow before its start, from Spark's optimizer: its sources, columns, operators, output mode.

Spark has no public API for this; everything here uses its logical plans.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.spark.look_up import LookUp
from mainstem.spark.plan.catalyst_expression import NotTranslated, condition_of, parts_of, translate
from mainstem.spark.plan.row_expression import Condition, Expression, all_of, any_of, columns_in
from mainstem.spark.plan.static_table import StaticJoin, TableRead, check_tables, read_join
from mainstem.spark.sources.topic_request import OPTION, TOPIC_SOURCE, TopicRequest
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Operator",
    "PlainRead",
    "PlainSteps",
    "STAGE_OPTION",
    "can_read_plainly",
    "find_leaves_without_record",
    "fingerprint",
    "has_watermark",
    "is_straight",
    "leaves_in",
    "needed_columns",
    "only_request",
    "operators_in",
    "optimize",
    "output_mode",
    "plain_reads",
    "plan_text",
    "read_plainly",
    "read_steps",
    "row_conditions",
    "stage_uses",
    "stages_in",
    "without_incidental",
]

# The option that identifies a stage's placeholder in a plan.
STAGE_OPTION = "mainstem_stage"

# Attributes of a frame: its optimized plan, and its plain reads.
_OPTIMIZED = "_mainstem_optimized"
_PLAIN_READS = "_mainstem_plain_reads"

# Nodes that keep the partitions of their input, and the order of rows.
STRAIGHT = ("Filter", "Generate", "Project", "StreamingRelationV2", "SubqueryAlias")

# Differences between equal plans: ids, addresses of objects, and random seeds.
_INCIDENTAL = (
    (re.compile(r"\blambda (\w+?)_\d+#"), r"lambda \1#"),
    (re.compile(r"\b(CTERelationDef|CTERelationRef) \d+"), r"\1"),
    (re.compile(r"#\d+L?"), "#"),
    # The hash of a Java object is rarely shorter than four digits; behind a class's name it is a hash all the same.
    (re.compile(r"@[0-9a-f]{4,}|(?<=[a-z0-9])@[0-9a-f]{1,3}(?=[,\s)\]])"), "@"),
    (re.compile(r"(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z])"), "an id"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "an id"),
    (re.compile(r"\b(randn?)\(-?\d+\)"), r"\1()"),
    (re.compile(r"\bSome\(-?\d+\)"), "Some()"),
    (re.compile(r"\b(Sample [^\n]*?), -?\d{4,}"), r"\1"),
)

# Stateful operators, by the name of their node, with the names that users know.
STATEFUL = {
    "Aggregate": "aggregate",
    "Deduplicate": "deduplicate",
    "DeduplicateWithinWatermark": "deduplicate within the watermark",
    "Join": "join",
    "FlatMapGroupsWithState": "per-key state",
    "FlatMapGroupsInPandasWithState": "per-key state",
    "TransformWithState": "per-key state",
    "TransformWithStateInPySpark": "per-key state",
    "GlobalLimit": "limit",
}


PER_KEY = "FlatMapGroupsInPandasWithState"

# The two kinds of streaming sources in Spark's plans.
STREAMS = ("StreamingRelationV2", "StreamingRelation")


@dataclass(frozen=True)
class Operator:
    """One stateful operator, and what bounds its state (empty: its state is never evicted)."""

    name: str
    bounded_by: str


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def optimize(rows: DataFrame) -> Any:
    """The optimized plan, computed once for a frame. `optimizedPlan` of a stream raises an error; the optimizer does not."""
    if _OPTIMIZED not in rows.__dict__:
        session = rows.sparkSession._jsparkSession
        plan = session.sessionState().optimizer().execute(rows._jdf.queryExecution().analyzed())
        rows.__dict__[_OPTIMIZED] = plan
    return rows.__dict__[_OPTIMIZED]


def _leaf_of(node: Any) -> int | None:
    if node.nodeName() != "StreamingRelationV2":
        return None
    option = node.extraOptions().get(OPTION)
    return None if option is None else int(json.loads(option)["leaf"])


def plan_text(rows: DataFrame) -> list[str]:
    """The nodes of a frame's plan as text, equal for all builds of a deterministic program."""
    text = without_incidental(rows._jdf.queryExecution().analyzed().toString())
    return [line.strip(" :+-~") for line in text.splitlines()]


def without_incidental(text: str) -> str:
    """A plan's text without what differs between two builds of one program."""
    for pattern, instead in _INCIDENTAL:
        text = pattern.sub(instead, text)
    return text


def stages_in(rows: DataFrame) -> set[int]:
    """The stages of the build whose rows a frame has."""
    return set(stage_uses(rows))


def stage_uses(rows: DataFrame) -> Counter[int]:
    """The stages of the build whose rows a frame has, and in how many places."""
    found: Counter[int] = Counter()
    plan = rows._jdf.queryExecution().analyzed()
    # The text is one call to Java, a walk over the nodes five for each.
    for node in _nodes(plan) if STAGE_OPTION in plan.toString() else ():
        if node.nodeName() == "StreamingRelationV2":
            option = node.extraOptions().get(STAGE_OPTION)
            if option is not None:
                found[int(option)] += 1
    return found


def is_straight(rows: DataFrame) -> bool:
    """Whether the partitions of the frame are those of its source: it has no union, join or shuffle."""
    return all(node.nodeName() in STRAIGHT for node in _nodes(rows._jdf.queryExecution().analyzed()))


def leaves_in(rows: DataFrame) -> set[int]:
    """The leaves of the build that a frame reads."""
    found = (_leaf_of(node) for node in _nodes(rows._jdf.queryExecution().analyzed()))
    return {leaf for leaf in found if leaf is not None}


def only_request(rows: DataFrame) -> TopicRequest | None:
    """The request of the only source of a frame; None if there are several, or it is no topic."""
    found = [node for node in _nodes(rows._jdf.queryExecution().analyzed()) if node.nodeName() in STREAMS]
    if len(found) != 1 or _leaf_of(found[0]) is None or found[0].sourceName() != TOPIC_SOURCE:
        return None
    return TopicRequest.from_options({OPTION: found[0].extraOptions().get(OPTION)})


def has_watermark(rows: DataFrame) -> bool:
    """Whether a frame has a watermark."""
    return any(node.nodeName() == "EventTimeWatermark" for node in _nodes(rows._jdf.queryExecution().analyzed()))


def fingerprint(rows: DataFrame, sources: Mapping[int, str]) -> dict[str, Any]:
    """What a checkpoint depends on: the sources in their order, and the state of each stateful operator.

    Everything else of a flow may change between two runs. The state of an operator is by position, not by
    name, in the order of the optimizer: Spark would silently confuse two sums, or two columns of a join, that changed
    places.
    """
    plan = rows._jdf.queryExecution().analyzed()
    leaves = [(leaf, node) for node in _nodes(plan) if (leaf := _leaf_of(node)) is not None]
    kept = [_describe_state(node) for node in _nodes(plan) if _keeps(node)]
    placed = [_places(node) for node in _nodes(optimize(rows)) if _keeps(node)]
    return {
        "sources": [sources[leaf] for leaf, _ in leaves],
        # The delay of the watermark of each, in microseconds; None if it has none.
        "watermarks": [json.loads(node.extraOptions().get(OPTION)).get("delay") for _, node in leaves],
        "operators": kept,
        "places": placed,
    }


def _keeps(node: Any) -> bool:
    """Whether a node has state: a join with a table that is not a stream has none."""
    if node.nodeName() not in STATEFUL or not node.isStreaming():
        return False
    children = node.children()
    return node.nodeName() != "Join" or all(children.apply(index).isStreaming() for index in range(children.size()))


def _places(node: Any) -> list[str]:
    """The layout of the state of an operator of the optimized plan."""
    name, made = node.nodeName(), _definitions(node)
    if name == "Aggregate":
        keys, values = _typed_texts(node.groupingExpressions(), made), _typed_texts(node.aggregateExpressions(), made)
        return [*keys, "->", *(value for value in values if value not in keys)]
    if name == "Join":
        left, right = (node.children().apply(index) for index in range(2))
        return [*_typed_texts(left.output(), made), "->", *_typed_texts(right.output(), made)]
    if name.startswith("Deduplicate"):
        return _typed_texts(node.keys(), made)
    return [*_typed_texts(_grouping(node), made), *([node.stateType().catalogString()] if name == PER_KEY else [])]


def _grouping(node: Any) -> Any:
    """The columns by which an operator with a user's function keys its state."""
    if node.nodeName() == PER_KEY:
        return node.groupingAttributes()
    first = node.children().apply(0).output()
    return first.take(node.groupingAttributesLen() if node.nodeName() == "TransformWithStateInPySpark" else 0)


def _typed_texts(expressions: Any, made: Mapping[int, str]) -> list[str]:
    """Expressions with their types, each once, in their order."""
    types = []
    iterator = expressions.iterator()
    while iterator.hasNext():
        types.append(iterator.next().dataType().catalogString())
    texts = _texts(expressions, made)
    return list(dict.fromkeys(f"{text} {kind}" for text, kind in zip(texts, types, strict=True)))


def _describe_state(node: Any) -> dict[str, Any]:
    name = node.nodeName()
    found: dict[str, Any] = {"operator": STATEFUL[name]}
    made = _definitions(node)
    if name == "Aggregate":
        found["by"] = _texts(node.groupingExpressions(), made)
        found["of"] = sorted(set(_texts(node.aggregateExpressions(), made)) - set(found["by"]))
    elif name.startswith("Deduplicate"):
        found["by"] = _texts(node.keys(), made)
    elif name == "Join":
        condition = node.condition()
        found["by"] = [node.joinType().sql(), condition.get().sql() if condition.isDefined() else ""]
    elif STATEFUL[name] == "per-key state":
        found["by"] = _texts(_grouping(node), made)
    return found


def _definitions(node: Any) -> dict[int, str]:
    """The definitions of the columns computed below a node (such as windows), by their id."""
    found = {}
    for below in _nodes(node):
        if below.nodeName() in ("Project", "Window", "Expand"):
            iterator = below.expressions().iterator()
            while iterator.hasNext():
                expression = iterator.next()
                if expression.nodeName() == "Alias":
                    found[expression.exprId().id()] = expression.child().sql()
    return found


def _texts(expressions: Any, made: Mapping[int, str]) -> list[str]:
    """Expressions as SQL, without aliases: a column may be renamed."""
    iterator = expressions.iterator()
    found = []
    while iterator.hasNext():
        expression = iterator.next()
        if expression.nodeName() == "Alias":
            expression = expression.child()
        plain = expression.nodeName() == "AttributeReference"
        found.append(made.get(expression.exprId().id(), expression.sql()) if plain else expression.sql())
    return found


def _ids(attributes: Any) -> set[int]:
    iterator = attributes.iterator()
    found = set()
    while iterator.hasNext():
        found.add(iterator.next().exprId().id())
    return found


def needed_columns(rows: DataFrame) -> dict[int, list[str]]:
    """For each leaf the columns that anything above it uses."""
    plan = optimize(rows)
    used = _ids(plan.output())
    leaves = []
    for node in _nodes(plan):
        leaf = _leaf_of(node)
        if leaf is not None:
            leaves.append((leaf, node))
        elif node.children().size():
            used |= _ids(node.references())
    needed: dict[int, list[str]] = {}
    for leaf, node in leaves:
        iterator = node.output().iterator()
        known = needed.setdefault(leaf, [])
        while iterator.hasNext():
            attribute = iterator.next()
            if attribute.exprId().id() in used and attribute.name() not in known:
                known.append(attribute.name())
    return needed


def find_leaves_without_record(rows: DataFrame) -> set[int]:
    """The leaves below an aggregate over a stream whose `record` is not used."""
    found = set()
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        if node.nodeName() == "Aggregate" and node.isStreaming():
            found |= {leaf for below in _nodes(node) if (leaf := _leaf_of(below)) is not None}
    needed = needed_columns(rows) if found else {}
    return {leaf for leaf in found if "record" not in needed.get(leaf, ())}


def row_conditions(rows: DataFrame) -> dict[int, Condition]:
    """For each leaf the condition of the filters right above it; for a leaf that is read twice, either condition.

    A filter above a watermark does not count: rows that it drops advance the watermark.
    """
    if _uses_current_time(rows):
        return {}
    found: dict[int, list[Condition | None]] = {}

    def look(node: Any, above: list[Any]) -> None:
        leaf = _leaf_of(node)
        if leaf is not None:
            # By id, not by name: Spark ignores case.
            known: dict[int, Expression] = {number: ["column", named] for number, named in _attributes(node.output())}
            wanted = [part for part in (condition_of(each, known) for each in above) if part is not None]
            found.setdefault(leaf, []).append(all_of(wanted))
            return
        children = node.children()
        name = node.nodeName()
        for index in range(children.size()):
            if name == "Filter":
                look(children.apply(index), [*above, node.condition()])
            else:
                look(children.apply(index), above if name == "Project" and _passes_on(node) else [])

    look(optimize(rows), [])
    return {leaf: condition for leaf, wanted in found.items() if (condition := any_of(wanted)) is not None}


def _passes_on(project: Any) -> bool:
    """Whether a projection only drops columns."""
    expressions = project.projectList()
    return all(
        expressions.apply(index).getClass().getSimpleName() == "AttributeReference"
        for index in range(expressions.size())
    )


def output_mode(rows: DataFrame, flow: str) -> str:
    """Update if Spark allows it, else append."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    jvm: Any = rows.sparkSession._jvm
    plan = rows._jdf.queryExecution().analyzed()
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    reasons = []
    for name, mode in (("update", modes.Update()), ("append", modes.Append())):
        try:
            checker.checkForStreaming(plan, mode)
        except (AnalysisException, Py4JJavaError) as error:
            reasons.append(_reason(error))
        else:
            return name
    raise Invalid(
        f'flow "{flow}" cannot run as a stream',
        detail=reasons[-1],
        hint="Spark cannot run an aggregate without a watermark in append mode, nor sort a stream: give the stream a "
        "watermark, or leave out what needs all rows at once.",
    )


def _reason(error: Exception) -> str:
    text = str(getattr(error, "_desc", "") or error).splitlines()[0]
    return text if text.endswith(".") else text + "."


def operators_in(rows: DataFrame) -> list[Operator]:
    """The stateful operators, innermost first, and what bounds their state."""
    found = []
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if _keeps(node):
            found.append(Operator(STATEFUL[name], _bound(node, name)))
    return found[::-1]


def _bound(node: Any, name: str) -> str:
    """The event-time column with a watermark that an operator's state is keyed by, if there is one."""
    if name == "GlobalLimit":
        return "its number"
    watermarked = [child for child in _nodes(node) if child.nodeName() == "EventTimeWatermark"]
    if not watermarked:
        return ""
    columns = ", ".join(sorted({child.eventTime().name() for child in watermarked}))
    if name == "Aggregate" and not _keyed_by_time(node.groupingExpressions()):
        return ""
    if name == "Deduplicate" and not _keyed_by_time(node.keys()):
        return ""
    return f"the watermark of {columns}"


def _keyed_by_time(expressions: Any) -> bool:
    iterator = expressions.iterator()
    while iterator.hasNext():
        references = iterator.next().references().iterator()
        while references.hasNext():
            if references.next().metadata().contains("spark.watermarkDelayMs"):
                return True
    return False


# PlainRead: a stream of a topic with only filters, columns and look-ups that can be computed over Arrow.
#
# The reader of the topic can compute such a stream itself. It is recognised in the optimized plan, so it does not matter how
# it was written: `where`, `select`, `drop`, `withColumnRenamed`, SQL. A union of such streams is several reads.


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

    if _uses_current_time(rows):
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
        analysed = (_leaf_of(node) for node in _nodes(rows._jdf.queryExecution().analyzed()))
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
        columns = tuple((name, self.known[number]) for number, name in _attributes(output))
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
            return [_Branch(node, {number: ["column", named] for number, named in _attributes(node.output())})]
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
            for (ours, _), (theirs, _) in zip(*map(_attributes, (union.output(), child.output())), strict=True)
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
        table = self._read_table(join, f"look_up_{self._joins}", self._rows.sparkSession)
        for branch in branches:
            branch.look_ups.append(join.look_up(branch.known, all_of(branch.conditions), table))
            branch.known |= {number: ["column", name] for number, name in table.added.items()}
            branch.conditions = [translate(part, branch.known) for part in join.others]
        return branches


def _uses_current_time(rows: DataFrame) -> bool:
    """Whether a stream uses the time of the batch: the optimizer replaces it by the time of this plan."""
    jvm: Any = rows.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(rows._jdf.queryExecution().analyzed().containsPattern(pattern))


def _project(expressions: Any, known: dict[int, Expression]) -> dict[int, Expression]:
    found = {}
    for place in range(expressions.size()):
        expression = expressions.apply(place)
        named = expression.child() if expression.nodeName() == "Alias" else expression
        found[int(expression.exprId().id())] = translate(named, known)
    return found


def _attributes(attributes: Any) -> list[tuple[int, str]]:
    found = []
    iterator = attributes.iterator()
    while iterator.hasNext():
        attribute = iterator.next()
        found.append((int(attribute.exprId().id()), str(attribute.name())))
    return found
