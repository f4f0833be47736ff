"""What Spark's optimizer says about a flow that is not started: its sources, columns, operators, output mode.

Spark has no public door to this; everything here goes through its logical plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid
from mainstem.log_on_spark.catalyst_condition import condition_of
from mainstem.log_on_spark.row_condition import Condition, all_of, any_of
from mainstem.log_on_spark.topic_request import OPTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Operator",
    "fingerprint",
    "leaves_in",
    "needed_columns",
    "operators_in",
    "output_mode",
    "row_conditions",
]

# Operators that keep something from one batch to the next, by the name of their node, and what a user calls them.
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


@dataclass(frozen=True)
class Operator:
    """One stateful operator, and what lets it forget (empty: nothing does)."""

    name: str
    bounded_by: str


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _optimized(rows: DataFrame) -> Any:
    """`optimizedPlan` of a stream throws; the optimizer itself does not mind."""
    session = rows.sparkSession._jsparkSession
    return session.sessionState().optimizer().execute(rows._jdf.queryExecution().analyzed())


def _leaf_of(node: Any) -> int | None:
    if node.nodeName() != "StreamingRelationV2":
        return None
    option = node.extraOptions().get(OPTION)
    return None if option is None else int(json.loads(option)["leaf"])


def leaves_in(rows: DataFrame) -> set[int]:
    """The leaves of the build that a frame reads."""
    found = (_leaf_of(node) for node in _nodes(rows._jdf.queryExecution().analyzed()))
    return {leaf for leaf in found if leaf is not None}


def fingerprint(rows: DataFrame, sources: Mapping[int, str]) -> dict[str, Any]:
    """What a checkpoint depends on: the sources in their order, and what each stateful operator keeps.

    Everything else of a flow may change between two runs of it.
    """
    plan = rows._jdf.queryExecution().analyzed()
    leaves = [leaf for node in _nodes(plan) if (leaf := _leaf_of(node)) is not None]
    kept = [_kept(node) for node in _nodes(plan) if node.nodeName() in STATEFUL and node.isStreaming()]
    return {"sources": [sources[leaf] for leaf in leaves], "operators": kept}


def _kept(node: Any) -> dict[str, Any]:
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
    return found


def _definitions(node: Any) -> dict[int, str]:
    """What the columns are that were made below a node, by their id: a window is one of them."""
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
    """Expressions as SQL, without the names they are given: a column may be renamed."""
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
    plan = _optimized(rows)
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


def row_conditions(rows: DataFrame) -> dict[int, Condition]:
    """For each leaf what the filters right above it ask of its rows. A leaf that is read twice gets what either wants.

    A filter above a watermark is none of these: rows that it keeps out have moved the watermark.
    """
    found: dict[int, list[Condition | None]] = {}

    def look(node: Any, above: list[Any]) -> None:
        leaf = _leaf_of(node)
        if leaf is not None:
            wanted = [part for part in map(condition_of, above) if part is not None]
            found.setdefault(leaf, []).append(all_of(wanted))
            return
        children = node.children()
        name = node.nodeName()
        for index in range(children.size()):
            if name == "Filter":
                look(children.apply(index), [*above, node.condition()])
            else:
                look(children.apply(index), above if name == "Project" and _passes_on(node) else [])

    look(_optimized(rows), [])
    return {leaf: condition for leaf, wanted in found.items() if (condition := any_of(wanted)) is not None}


def _passes_on(project: Any) -> bool:
    """Whether a projection only leaves columns out."""
    expressions = project.projectList()
    return all(
        expressions.apply(index).getClass().getSimpleName() == "AttributeReference"
        for index in range(expressions.size())
    )


def output_mode(rows: DataFrame, flow: str) -> str:
    """Update where Spark allows it, else append."""
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
        hint="An aggregate over all time wants update mode, a sorted one none at all: give the stream a watermark, or "
        "leave out what needs all rows at once.",
    )


def _reason(error: Exception) -> str:
    text = str(getattr(error, "_desc", "") or error).splitlines()[0]
    return text if text.endswith(".") else text + "."


def operators_in(rows: DataFrame) -> list[Operator]:
    """The operators that keep state, innermost first, and by what it is bounded."""
    found = []
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if name in STATEFUL and node.isStreaming():
            if name == "Join" and not all(
                node.children().apply(index).isStreaming() for index in range(node.children().size())
            ):
                continue
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
