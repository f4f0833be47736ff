"""The analysis of a flow before its start, from Spark's optimizer: its sources, columns, operators, output mode.

Spark has no public API for this; everything here uses its logical plans.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.durations import show_span
from mainstem.errors import Invalid
from mainstem.spark.plan.catalyst_expression import condition_of
from mainstem.spark.plan.row_expression import Condition, Expression, all_of, any_of
from mainstem.spark.sources.topic_request import OPTION, TOPIC_SOURCE, TopicRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Operator",
    "STAGE_OPTION",
    "attributes_of",
    "describe_operators",
    "find_leaves_without_record",
    "fingerprint",
    "has_watermark",
    "is_straight",
    "leaf_of",
    "leaves_in",
    "needed_columns",
    "nodes_of",
    "only_request",
    "operators_in",
    "optimize",
    "output_mode",
    "plan_text",
    "row_conditions",
    "stage_uses",
    "stages_in",
    "uses_current_time",
    "without_incidental",
]

# The option that identifies a stage's placeholder in a plan.
STAGE_OPTION = "mainstem_stage"

# An attribute of a frame: its optimized plan.
_OPTIMIZED = "_mainstem_optimized"

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

_INCIDENTAL_ID = re.compile(r"#\d+L?")

# In the metadata of a column that has a watermark.
_WATERMARKED = "spark.watermarkDelayMs"

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


# How Spark writes its windows, and the names that it gives them.
WINDOW_TEXT = "named_struct('start', "
WINDOW_NAMES = ("window", "session_window")
_WINDOW_STEP = re.compile(r"precisetimestampconversion\((?P<on>[^()]+)\) - \d+L\) % (?P<slide>\d+)L")
_WINDOW_SIZE = re.compile(r"\+ (\d+)L\)+$")
_SESSION = re.compile(r"CAST\((?P<on>[^()]+) \+ CAST\('(?P<gap>[^']+)' AS INTERVAL\) AS TIMESTAMP\)")

PER_KEY = "FlatMapGroupsInPandasWithState"

# The two kinds of streaming sources in Spark's plans.
STREAMS = ("StreamingRelationV2", "StreamingRelation")


@dataclass(frozen=True)
class Operator:
    """One stateful operator, and what bounds its state (empty: its state is never evicted)."""

    name: str
    bounded_by: str


def nodes_of(plan: Any) -> Iterator[Any]:
    """A plan and all plans below it."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from nodes_of(children.apply(index))


def optimize(rows: DataFrame) -> Any:
    """The optimized plan, computed once for a frame. `optimizedPlan` of a stream raises an error; the optimizer does not."""
    if _OPTIMIZED not in rows.__dict__:
        session = rows.sparkSession._jsparkSession
        plan = session.sessionState().optimizer().execute(rows._jdf.queryExecution().analyzed())
        rows.__dict__[_OPTIMIZED] = plan
    return rows.__dict__[_OPTIMIZED]


def leaf_of(node: Any) -> int | None:
    """The leaf of the build that a node reads."""
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
    for node in nodes_of(plan) if STAGE_OPTION in plan.toString() else ():
        if node.nodeName() == "StreamingRelationV2":
            option = node.extraOptions().get(STAGE_OPTION)
            if option is not None:
                found[int(option)] += 1
    return found


def is_straight(rows: DataFrame) -> bool:
    """Whether the partitions of the frame are those of its source: it has no union, join or shuffle."""
    return all(node.nodeName() in STRAIGHT for node in nodes_of(rows._jdf.queryExecution().analyzed()))


def leaves_in(rows: DataFrame) -> set[int]:
    """The leaves of the build that a frame reads."""
    found = (leaf_of(node) for node in nodes_of(rows._jdf.queryExecution().analyzed()))
    return {leaf for leaf in found if leaf is not None}


def only_request(rows: DataFrame) -> TopicRequest | None:
    """The request of the only source of a frame; None if there are several, or it is no topic."""
    found = [node for node in nodes_of(rows._jdf.queryExecution().analyzed()) if node.nodeName() in STREAMS]
    if len(found) != 1 or leaf_of(found[0]) is None or found[0].sourceName() != TOPIC_SOURCE:
        return None
    return TopicRequest.from_options({OPTION: found[0].extraOptions().get(OPTION)})


def has_watermark(rows: DataFrame) -> bool:
    """Whether a frame has a watermark."""
    return any(node.nodeName() == "EventTimeWatermark" for node in nodes_of(rows._jdf.queryExecution().analyzed()))


def fingerprint(rows: DataFrame, sources: Mapping[int, str]) -> dict[str, Any]:
    """What a checkpoint depends on: the sources in their order, and the state of each stateful operator.

    Everything else of a flow may change between two runs. The state of an operator is by position, not by
    name, in the order of the optimizer: Spark would silently confuse two sums, or two columns of a join, that changed
    places.
    """
    plan = rows._jdf.queryExecution().analyzed()
    leaves = [(leaf, node) for node in nodes_of(plan) if (leaf := leaf_of(node)) is not None]
    kept = [_describe_state(node) for node in nodes_of(plan) if _keeps(node)]
    placed = [_places(node) for node in nodes_of(optimize(rows)) if _keeps(node)]
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


def describe_operators(rows: DataFrame) -> list[dict[str, Any]]:
    """The stateful operators of Spark, innermost first, as a person reads them: groups, windows, aggregates, conditions."""
    plan = rows._jdf.queryExecution().analyzed()
    found = [_describe_operator(node) for node in nodes_of(plan) if _keeps(node)]
    return found[::-1]


def _describe_operator(node: Any) -> dict[str, Any]:
    state = _describe_state(node)
    given: dict[str, Any] = {}
    if state["operator"] == "aggregate":
        window = _window_below(node)
        columns = [
            text for text in state["by"] if not text.startswith(WINDOW_TEXT) and not (window and text in WINDOW_NAMES)
        ]
        given = {"by": columns, "aggregates": state["of"], **(window or {})}
    elif state["operator"] == "join":
        how, where = state["by"]
        given = {"how": how.lower().replace(" ", "_"), "where": where}
    elif "by" in state:
        given = {"by": state["by"]}
    return {"operator": state["operator"], "stage": None, "parameters": given}


def _window_below(aggregate: Any) -> dict[str, str] | None:
    """The windows by which an aggregate groups; None if it has none. Spark computes them in a projection below it."""
    if not any(name in str(aggregate.groupingExpressions()) for name in WINDOW_NAMES):
        return None
    for node in nodes_of(aggregate):
        if node.nodeName() in ("Project", "Expand"):
            iterator = node.expressions().iterator()
            while iterator.hasNext():
                expression = iterator.next()
                window = window_in((expression.child() if expression.nodeName() == "Alias" else expression).sql())
                if window is not None:
                    return window
    return None


def window_in(text: str) -> dict[str, str] | None:
    """The windows that an expression of Spark computes, as `show_window` has them; None if it computes none.

    >>> start = "precisetimestampconversion(((precisetimestampconversion(at) - 0L) % 60000000L) - 0L)"
    >>> window_in(f"named_struct('start', {start}, 'end', precisetimestampconversion(((... - 0L) + 300000000L)))")
    {'window': 'hopping', 'size': '5 minutes', 'slide': '1 minute', 'on': 'at'}
    """
    if not text.startswith(WINDOW_TEXT):
        return None
    if session := _SESSION.search(text):
        return {"window": "sessions", "gap": session["gap"], "on": session["on"]}
    step, size = _WINDOW_STEP.search(text), _WINDOW_SIZE.search(text)
    if step is None or size is None:
        return None
    spans = {"size": show_span(int(size[1])) or "", "slide": show_span(int(step["slide"])) or ""}
    if spans["size"] == spans["slide"]:
        return {"window": "tumbling", "size": spans["size"], "on": step["on"]}
    return {"window": "hopping", **spans, "on": step["on"]}


def _definitions(node: Any) -> dict[int, str]:
    """The definitions of the columns computed below a node (such as windows), by their id."""
    found = {}
    for below in nodes_of(node):
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
    for node in nodes_of(plan):
        leaf = leaf_of(node)
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
    for node in nodes_of(rows._jdf.queryExecution().analyzed()):
        if node.nodeName() == "Aggregate" and node.isStreaming():
            found |= {leaf for below in nodes_of(node) if (leaf := leaf_of(below)) is not None}
    needed = needed_columns(rows) if found else {}
    return {leaf for leaf in found if "record" not in needed.get(leaf, ())}


def row_conditions(rows: DataFrame) -> dict[int, Condition]:
    """For each leaf the condition of the filters right above it; for a leaf that is read twice, either condition.

    A filter above a watermark does not count: rows that it drops advance the watermark.
    """
    if uses_current_time(rows):
        return {}
    found: dict[int, list[Condition | None]] = {}

    def look(node: Any, above: list[Any]) -> None:
        leaf = leaf_of(node)
        if leaf is not None:
            # By id, not by name: Spark ignores case.
            known: dict[int, Expression] = {number: ["column", named] for number, named in attributes_of(node.output())}
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
    ordered = any(node.nodeName() in ("Sort", "GlobalLimit") for node in nodes_of(plan))
    raise Invalid(
        f'flow "{flow}" cannot run as a stream',
        detail=reasons[-1],
        hint='Spark does not sort a stream. For the first rows by an order: top(rows, 10, order="revenue DESC") of '
        "mainstem.operators, which keeps them current. To sort what you read, ORDER BY when you query the view."
        if ordered
        else "Spark cannot run an aggregate without a watermark in append mode, nor sort a stream: give the stream a "
        "watermark, or leave out what needs all rows at once.",
    )


def _reason(error: Exception) -> str:
    text = str(getattr(error, "_desc", "") or error).splitlines()[0].rstrip(";")
    return text if text.endswith(".") else text + "."


def operators_in(rows: DataFrame) -> list[Operator]:
    """The stateful operators, innermost first, and what bounds their state."""
    found = []
    for node in nodes_of(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if _keeps(node):
            found.append(Operator(STATEFUL[name], _bound(node, name)))
    return found[::-1]


def _bound(node: Any, name: str) -> str:
    """What bounds an operator's state: a watermark by which it is evicted, or the number of its keys; empty if it grows
    for as long as rows come."""
    if name == "GlobalLimit":
        return "its number"
    watermarked = [child for child in nodes_of(node) if child.nodeName() == "EventTimeWatermark"]
    columns = ", ".join(sorted({child.eventTime().name() for child in watermarked}))
    if name == "Aggregate":
        if watermarked and _keyed_by_time(node.groupingExpressions()):
            return f"the watermark of {columns}"
        return _bound_by_keys(node)
    if name == "Deduplicate" and not _keyed_by_time(node.keys()):
        return ""
    if name == "Join" and not _bound_in_time(node):
        return ""
    return f"the watermark of {columns}" if watermarked else ""


def _bound_by_keys(aggregate: Any) -> str:
    """One row for each key, as the operator `aggregate` keeps. Empty if there is a new key for every span of time, or if
    the values of a key are collected: then rows or their sizes grow with time."""
    keys = [_INCIDENTAL_ID.sub("", key.toString()) for key in _each(aggregate.groupingExpressions())]
    types = [key.dataType().catalogString() for key in _each(aggregate.groupingExpressions())]
    if any(word in of for of in types for word in ("timestamp", "date")):
        return ""
    made = _aliased(aggregate)
    if any(_grows(key, made) for key in _each(aggregate.groupingExpressions())):
        return ""
    if any(word in aggregate.aggregateExpressions().toString() for word in ("collect_list(", "collect_set(")):
        return ""
    return f"one row for each {', '.join(keys)}" if keys else "one row"


# Functions of a time or a number that have few values, however many it has.
_CYCLIC = frozenset(
    ["DayOfMonth", "DayOfWeek", "DayOfYear", "Hour", "Minute", "Month", "Pmod", "Quarter", "Remainder",
     "Second", "WeekDay", "WeekOfYear"]
)  # fmt: skip


def _grows(key: Any, made: Mapping[int, Any]) -> bool:
    """Whether an expression has a new value for every span of time, or for every record: a month as text, an offset."""
    name, of = key.nodeName(), key.dataType().catalogString()
    if of == "boolean" or name in _CYCLIC:
        return False
    if name == "AttributeReference":
        known = made.get(key.exprId().id())
        return of.startswith(("timestamp", "date")) if known is None else _grows(known, made)
    if name == "GetStructField":
        return of.startswith(("timestamp", "date")) or str(key.sql()).replace("`", "").endswith("record.offset")
    if name == "DateFormatClass" and key.right().foldable() and "y" not in str(key.right().sql()).lower():
        return False
    return any(_grows(part, made) for part in _each(key.children()))


def _aliased(node: Any) -> dict[int, Any]:
    """The expressions of columns computed below a node, by their id."""
    found = {}
    for below in nodes_of(node):
        if below.nodeName() == "Project":
            for expression in _each(below.projectList()):
                if expression.nodeName() == "Alias":
                    found[expression.exprId().id()] = expression.child()
    return found


def _bound_in_time(join: Any) -> bool:
    """Whether the condition of a join compares columns with watermarks of both sides: only then are rows evicted."""
    if join.condition().isEmpty():
        return False
    sides = [join.children().apply(index).outputSet() for index in range(2)]
    timed = [it for it in _each(join.condition().get().references()) if it.metadata().contains(_WATERMARKED)]
    return all(any(side.contains(it) for it in timed) for side in sides)


def _each(expressions: Any) -> Iterator[Any]:
    iterator = expressions.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _keyed_by_time(expressions: Any) -> bool:
    """Whether one of the keys is a time with a watermark, or a window of it. Spark does not evict by what is computed from it,
    such as its day."""
    keys = (key for key in _each(expressions) if key.nodeName() == "AttributeReference")
    return any(key.metadata().contains(_WATERMARKED) for key in keys)


def uses_current_time(rows: DataFrame) -> bool:
    """Whether a stream uses the time of the batch: the optimizer replaces it by the time of this plan."""
    jvm: Any = rows.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(rows._jdf.queryExecution().analyzed().containsPattern(pattern))


def attributes_of(attributes: Any) -> list[tuple[int, str]]:
    """Columns of a plan: the id and the name of each."""
    found = []
    iterator = attributes.iterator()
    while iterator.hasNext():
        attribute = iterator.next()
        found.append((int(attribute.exprId().id()), str(attribute.name())))
    return found
