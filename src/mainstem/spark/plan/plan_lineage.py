"""The lineage of a frame: how its rows follow from those of its sources, as JSON, read from its optimized plan.

    {"is": "read", "source": "orders", "leaf": 0, "delay": 60000000}        the records of a source; `delay` of its watermark
    {"is": "stage", ...}                                                    rows of a stage of Mainstem (see `flow_lineage`)
    {"is": "rows", "of": tree, "where": [condition, ...], "columns": [[name, expression], ...]}
    {"is": "union", "of": [tree, ...]}
    {"is": "groups", "of": tree, "by": [column, ...], "late": column or null}     Spark's groupBy; `late`: see `traced_groups`
    {"is": "pairs", "of": [left, right], "how": "inner", "on": [[column, column], ...]}    Spark's join of two streams
    {"is": "some", "of": tree, "because": text}         some of these rows, not known which: dropDuplicates, a static table

Expressions are those of `row_expression`; null stands for a column that cannot be said, and ["unsaid", text] for a condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.spark.plan.catalyst_expression import NotTranslated, parts_of, translate
from mainstem.spark.plan.flow_plan import attributes_of, leaf_of, optimize, uses_current_time
from mainstem.spark.plan.row_expression import Expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Tree", "Unsaid", "trace_frame", "trace_stream"]

Tree = dict[str, Any]
UNSAID = "unsaid"
# A condition is split into its parts, so that one that cannot be said does not hide the others.
_PASSED = ("EventTimeWatermark", "SubqueryAlias", "Repartition", "RepartitionByExpression")
_HOW = {"INNER": "inner", "LEFT OUTER": "left", "RIGHT OUTER": "right", "FULL OUTER": "full", "LEFT SEMI": "semi"}


class Unsaid(Exception):
    """The lineage of a plan cannot be said; its text is the part that prevents it."""


def trace_stream(rows: DataFrame, sources: Mapping[int, Tree]) -> Tree:
    """The lineage of a stream over the leaves of a build, by their numbers."""
    if uses_current_time(rows):
        raise Unsaid("the current time")
    plan = optimize(rows)
    return _Tracer(sources, {}).named(plan, plan.output())


def trace_frame(rows: DataFrame, stages: Mapping[int, Tree]) -> Tree:
    """The lineage of a frame that is no stream over rows of stages: `stages` by the id of the first column of each."""
    plan = rows._jdf.queryExecution().optimizedPlan()
    return _Tracer({}, stages).named(plan, plan.output())


@dataclass
class _Part:
    """Rows of a tree, with steps that are not written down yet: the columns by their ids, over those of the tree."""

    tree: Tree
    known: dict[int, Expression | None]
    where: list[Expression] = field(default_factory=list)
    # Columns that cannot be said, as they are written, by their ids.
    unsaid: dict[int, str] = field(default_factory=dict)

    def translate(self, expression: Any) -> Expression | None:
        try:
            return translate(expression, {number: it for number, it in self.known.items() if it is not None})
        except NotTranslated:
            return None

    def written(self, expression: Any) -> str:
        """An expression as its program has it: Spark computes what rows are grouped by in a column of its own."""
        own = expression.nodeName() == "AttributeReference" and self.unsaid.get(int(expression.exprId().id()))
        return own or str(expression.sql())


class _Tracer:
    def __init__(self, sources: Mapping[int, Tree], stages: Mapping[int, Tree]) -> None:
        self._sources = sources
        self._stages = stages

    def named(self, node: Any, output: Any) -> Tree:
        """The rows of a plan, with the names of their columns."""
        part = self._of(node)
        columns = [[name, part.known.get(number)] for number, name in attributes_of(output)]
        return {"is": "rows", "of": part.tree, "where": part.where, "columns": columns}

    def _numbered(self, part: _Part, numbers: list[int]) -> Tree:
        """The same with columns that are named by their place."""
        columns = [[f"c{place}", part.known.get(number)] for place, number in enumerate(numbers)]
        return {"is": "rows", "of": part.tree, "where": part.where, "columns": columns}

    def _of(self, node: Any) -> _Part:
        name = str(node.nodeName())
        if (leaf := leaf_of(node)) is not None and leaf in self._sources:
            return _Part(self._sources[leaf], _columns(node))
        if name == "LogicalRDD":
            columns = attributes_of(node.output())
            if columns and columns[0][0] in self._stages:
                return _Part(self._stages[columns[0][0]], _columns(node))
        if name == "Project":
            return self._project(node)
        if name == "Filter":
            return self._filter(node)
        if name in _PASSED:
            return self._of(node.children().apply(0))
        if name == "Union":
            return self._union(node)
        if name == "Expand":
            return self._expand(node)
        if name == "Aggregate":
            return self._groups(node)
        if name == "Join":
            return self._join(node)
        if name in ("Deduplicate", "DeduplicateWithinWatermark"):
            part = self._of(node.children().apply(0))
            return _Part(
                *self._closed(part, node.children().apply(0).output(), "which of several equal rows Spark kept")
            )
        raise Unsaid(name)

    def _project(self, node: Any) -> _Part:
        part = self._of(node.children().apply(0))
        known: dict[int, Expression | None] = {}
        unsaid = dict(part.unsaid)
        for expression in parts_of(node.projectList()):
            named = expression.child() if expression.nodeName() == "Alias" else expression
            number = int(expression.exprId().id())
            known[number] = part.translate(named)
            if known[number] is None:
                unsaid.setdefault(number, str(named.sql()))
        return _Part(part.tree, known, part.where, unsaid)

    def _filter(self, node: Any) -> _Part:
        part = self._of(node.children().apply(0))
        return _Part(part.tree, part.known, [*part.where, *_conditions(node.condition(), part)], part.unsaid)

    def _closed(self, part: _Part, output: Any, some: str = "") -> tuple[Tree, dict[int, Expression | None]]:
        """The rows so far written down, and their columns."""
        numbers = [number for number, _ in attributes_of(output)]
        tree = self._numbered(part, numbers)
        if some:
            tree = {"is": "some", "of": tree, "because": some}
        return tree, {number: ["column", f"c{place}"] for place, number in enumerate(numbers)}

    def _union(self, node: Any) -> _Part:
        trees = [
            self._numbered(self._of(child), [number for number, _ in attributes_of(child.output())])
            for child in parts_of(node.children())
        ]
        return _Part({"is": "union", "of": trees}, _by_place(node))

    def _expand(self, node: Any) -> _Part:
        """A row for each projection, as Spark computes windows that overlap."""
        trees = []
        for projection in parts_of(node.projections()):
            part = self._of(node.children().apply(0))
            columns = [[f"c{place}", part.translate(it)] for place, it in enumerate(parts_of(projection))]
            trees.append({"is": "rows", "of": part.tree, "where": part.where, "columns": columns})
        return _Part({"is": "union", "of": trees}, _by_place(node))

    def _groups(self, node: Any) -> _Part:
        part = self._of(node.children().apply(0))
        grouping = parts_of(node.groupingExpressions())
        if any("session_window" in str(expression.sql()) for expression in grouping):
            raise Unsaid("Spark's session_window")
        by = [part.translate(expression) for expression in grouping]
        if None in by:
            raise Unsaid(part.written(grouping[by.index(None)]))
        columns = [[f"by_{place}", expression] for place, expression in enumerate(by)]
        late = next((place for place, it in enumerate(grouping) if _is_watermarked(it)), None)
        tree: Tree = {
            "is": "groups",
            "of": {"is": "rows", "of": part.tree, "where": part.where, "columns": columns},
            "by": [name for name, _ in columns],
            "late": None if late is None else f"by_{late}",
        }
        known: dict[int, Expression | None] = {}
        for expression in parts_of(node.aggregateExpressions()):
            named = expression.child() if expression.nodeName() == "Alias" else expression
            place = next((at for at, it in enumerate(grouping) if it.semanticEquals(named)), None)
            known[int(expression.exprId().id())] = None if place is None else ["column", f"by_{place}"]
        return _Part(tree, known)

    def _join(self, node: Any) -> _Part:
        sides = parts_of(node.children())
        how = _HOW.get(str(node.joinType().sql()))
        if how is None:
            raise Unsaid(f"Spark's join ({node.joinType().sql()})")
        streams = [bool(side.isStreaming()) for side in sides]
        if self._sources and not all(streams):
            return self._static_join(node, sides, streams)
        parts = [self._of(side) for side in sides]
        trees: list[Tree] = []
        known: dict[int, Expression | None] = {}
        for which, (part, side) in enumerate(zip(parts, sides, strict=True)):
            tree, columns = self._closed(part, side.output())
            tree["columns"] = [[f"{'lr'[which]}{name[1:]}", it] for name, it in tree["columns"]]
            trees.append(tree)
            known |= {number: ["column", f"{'lr'[which]}{it[1][1:]}"] for number, it in columns.items() if it}
        both = _Part({}, known)
        where = [] if node.condition().isEmpty() else _conditions(node.condition().get(), both)
        on = [pair for pair in map(_equated, where) if pair is not None]
        tree = {"is": "pairs", "of": trees, "how": how, "on": on, "where": where}
        return _Part(tree, known)

    def _static_join(self, node: Any, sides: list[Any], streams: list[bool]) -> _Part:
        """The rows of the stream; columns of the table cannot be said, and rows without a match may be missing."""
        side = sides[streams.index(True)]
        part = self._of(side)
        tree, known = self._closed(part, side.output(), "which rows the table had a match for")
        table = {number: None for number, _ in attributes_of(sides[streams.index(False)].output())}
        return _Part(tree, {**table, **known})


def _columns(node: Any) -> dict[int, Expression | None]:
    return {number: ["column", name] for number, name in attributes_of(node.output())}


def _by_place(node: Any) -> dict[int, Expression | None]:
    return {number: ["column", f"c{place}"] for place, (number, _) in enumerate(attributes_of(node.output()))}


def _conditions(condition: Any, part: _Part) -> list[Expression]:
    """The parts of a condition."""
    if condition.nodeName() == "And":
        return [*_conditions(condition.left(), part), *_conditions(condition.right(), part)]
    found = part.translate(condition)
    return [found if found is not None else [UNSAID, str(condition.sql())]]


def _equated(condition: Expression) -> list[str] | None:
    """The columns of both sides that a condition has equal."""
    if condition[0] != "=" or any(part[0] != "column" or len(part) > 2 for part in condition[1:]):
        return None
    names = sorted(part[1] for part in condition[1:])
    return names if names[0][0] == "l" and names[1][0] == "r" else None


def _is_watermarked(expression: Any) -> bool:
    return bool(
        expression.nodeName() == "AttributeReference" and expression.metadata().contains("spark.watermarkDelayMs")
    )
