"""BoundPlan: the analysed plan of a frame over placeholders, which are replaced by the rows of each batch.

The plan behind a stage is built and analysed once, over a placeholder (see `flow_plan.STAGE_OPTION`). For a batch it is
copied with the batch's rows instead of the placeholder, and with the ids of the placeholder's columns:

    Project [total * 2 AS double#9]                      Project [total * 2 AS double#9]
      Project [null AS key#4, null AS total#5]   ->        Project [key#71 AS key#4, total#72 AS total#5]
        StreamingRelationV2 stage 0                          the batch's own plan, with key#71 and total#72

Spark has no public API for this. A plan with a part that must be evaluated anew in every batch is not bound: `obstacle`
says which part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainstem.spark.plan.flow_plan import STAGE_OPTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BoundPlan", "obstacle", "placeholder"]

# Leaves that are the same in every batch. Files and tables may change between batches.
_CONSTANT = ("LocalRelation", "LogicalRDD", "OneRowRelation", "Range")


def placeholder(rows: DataFrame, key: object, schema: StructType) -> DataFrame:
    """A stream that is never read, with the columns of a schema; found in a plan by its key."""
    from pyspark.sql import functions as F

    source = rows.sparkSession.readStream.format("rate").option(STAGE_OPTION, str(key)).load()
    columns = [F.lit(None).cast(at.dataType).alias(at.name, metadata=at.metadata) for at in schema.fields]
    return source.select(*columns)


def obstacle(rows: DataFrame) -> str:
    """Why a frame over placeholders must be built again for every batch; empty if it need not."""
    plan = rows._jdf.queryExecution().analyzed()
    patterns = rows.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    if not plan.deterministic():
        return "it has a function that is not deterministic, such as rand()"
    if plan.containsPattern(patterns.CURRENT_LIKE()):
        return "it has a function of the present, such as current_timestamp()"
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        return "it has a query within an expression"
    return _foreign_leaf(plan)


def _foreign_leaf(plan: Any) -> str:
    children = _children(plan)
    if not children and _key(plan) is None and plan.nodeName() not in _CONSTANT:
        return f"it reads a table or files that may change ({plan.nodeName()})"
    return next((found for child in children if (found := _foreign_leaf(child))), "")


class BoundPlan:
    """The plan of one frame. For one thread."""

    def __init__(self, rows: DataFrame) -> None:
        self._session = rows.sparkSession
        self._plan = rows._jdf.queryExecution().analyzed()
        jvm: Any = self._session._jvm
        self._seq = jvm.PythonUtils.toSeq
        self._alias = jvm.org.apache.spark.sql.catalyst.expressions.Alias
        self._project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
        self._frames = jvm.org.apache.spark.sql.classic.Dataset
        self._none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        self._some = jvm.scala.Some

    def bind(self, given: Mapping[str, DataFrame]) -> DataFrame:
        """The frame with these rows in place of the placeholders, by their keys."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        plans = {key: rows._jdf.queryExecution().analyzed() for key, rows in given.items()}
        bound = self._bind(self._plan, plans)
        bound.setAnalyzed()
        return ClassicFrame(self._frames.ofRows(self._session._jsparkSession, bound), self._session)

    def _bind(self, node: Any, plans: Mapping[str, Any]) -> Any:
        children = _children(node)
        if len(children) == 1 and (key := _key(children[0])) is not None:
            return self._rows(node, plans[key])
        if node.nodeName() == "EventTimeWatermark":
            # Spark omits this node for a batch; here the plan was built for a stream.
            return self._bind(children[0], plans)
        if not children:
            return node
        return node.withNewChildren(self._seq([self._bind(child, plans) for child in children]))

    def _rows(self, place: Any, plan: Any) -> Any:
        """The rows of a plan, with the names, ids and metadata of the columns of a placeholder."""
        mine, theirs = place.output(), plan.output()
        columns = []
        for index in range(mine.size()):
            column = mine.apply(index)
            columns.append(
                self._alias(theirs.apply(index), column.name(), column.exprId(), self._seq([]),
                            self._some(column.metadata()), self._seq([]))
            )  # fmt: skip
        return self._project(self._seq(columns), plan)


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]


def _key(node: Any) -> str | None:
    """The key of a placeholder."""
    if node.nodeName() != "StreamingRelationV2":
        return None
    found: str | None = node.extraOptions().get(STAGE_OPTION)
    return found
