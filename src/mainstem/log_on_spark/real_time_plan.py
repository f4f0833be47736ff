"""What of a plan Spark cannot run in real time: found before anything is started.

Spark's real-time mode passes each row on as it comes, so it has only operators that look at one row at a time, in Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["unfit_operator"]

# What Spark makes of these it takes in real time, where rows stream through them.
ALLOWED = frozenset(
    ["CollectMetrics", "Expand", "Filter", "Generate", "Join", "Project", "ResolvedHint", "StreamingRelationV2",
     "StreamingRelation", "SubqueryAlias", "Union", "View"]
)  # fmt: skip

# What a user calls the others.
WORDS = {
    "ArrowEvalPython": "a function in Python (a UDF)",
    "BatchEvalPython": "a function in Python (a UDF)",
    "ArrowEvalPythonUDTF": "a table function in Python",
    "BatchEvalPythonUDTF": "a table function in Python",
    "EventTimeWatermark": "a watermark",
    "LocalLimit": "a limit",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "PythonMapInArrow": "mapInArrow",
    "Repartition": "repartition",
    "RepartitionByExpression": "repartition",
    "Sort": "a sort",
}


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def unfit_operator(rows: DataFrame) -> str:
    """The first operator on the way of the rows that real time does not have; empty if there is none."""
    session = rows.sparkSession._jsparkSession
    plan = session.sessionState().optimizer().execute(rows._jdf.queryExecution().analyzed())
    for node in _nodes(plan):
        name = node.nodeName()
        if node.isStreaming() and name not in ALLOWED:
            return WORDS.get(name, f'"{name}"')
    return ""
