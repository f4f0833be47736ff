"""PlainRead: a stream that is a topic with nothing of Spark's but filters and columns left out, renamed or taken from structs,
and tumbling windows.

What such a stream has can be made by the reader of the topic itself. It is found in the optimized plan, so it does not matter
how it was written: `where`, `select`, `drop`, `withColumnRenamed`, SQL.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.log_on_spark.catalyst_condition import exact_condition_of, window_of
from mainstem.log_on_spark.flow_plan import optimized
from mainstem.log_on_spark.row_condition import Condition, all_of
from mainstem.log_on_spark.spark_types import arrow_schema
from mainstem.log_on_spark.topic_request import OPTION, TOPIC_SOURCE, TopicRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlainRead", "plain_read"]

# How a column is made of the source's; see `row_condition`.
Value = list[Any]


@dataclass(frozen=True)
class PlainRead:
    """What is asked of the topic, the columns that its source gives then, and what of them makes the stream."""

    request: TopicRequest
    schema: pa.Schema
    # The stream's columns, each with what it is in the source's.
    columns: tuple[tuple[str, Value], ...]
    # Exactly this is asked of its rows.
    condition: Condition | None


def plain_read(rows: DataFrame) -> PlainRead | None:
    """What a stream reads, if it is such a one."""
    from pyspark.sql.types import StructType

    chain = []
    node = optimized(rows)
    while node.nodeName() in ("Project", "Filter", "EventTimeWatermark"):
        chain.append(node)
        node = node.children().apply(0)
    if node.nodeName() != "StreamingRelationV2" or node.sourceName() != TOPIC_SOURCE:
        return None
    option = node.extraOptions().get(OPTION)
    if option is None:
        return None
    source = _attributes(node.output())
    known: dict[int, Value] = {number: ["column", name] for number, name in source}
    conditions: list[Condition] = []
    for above in reversed(chain):
        if above.nodeName() == "Filter":
            if not _is_of_source(above, known):
                return None
            condition = exact_condition_of(above.condition())
            if condition is None:
                return None
            conditions.append(condition)
        elif above.nodeName() == "Project":
            projected = _projected(above.projectList(), known)
            if projected is None:
                return None
            known = projected
    columns = tuple((name, known[number]) for number, name in _attributes((chain[0] if chain else node).output()))
    if [name for name, _ in columns] != rows.columns:
        return None
    schema = arrow_schema(StructType.fromJson(json.loads(node.schema().json())))
    return PlainRead(TopicRequest.from_options({OPTION: option}), schema, columns, all_of(conditions))


def _projected(expressions: Any, known: dict[int, Value]) -> dict[int, Value] | None:
    found = {}
    for place in range(expressions.size()):
        expression = expressions.apply(place)
        named = expression.child() if _kind(expression) == "Alias" else expression
        value = _path(named, known)
        if value is None and _is_of_source(named, known):
            value = window_of(named)
        if value is None:
            return None
        found[expression.exprId().id()] = value
    return found


def _path(expression: Any, known: dict[int, Value]) -> Value | None:
    if _kind(expression) == "AttributeReference":
        return known.get(expression.exprId().id())
    if _kind(expression) == "GetStructField":
        of, name = _path(expression.child(), known), str(expression.extractFieldName())
        if of is not None and of[0] == "struct":
            field: Value = dict(of[1:])[name]
            return field
        return [*of, name] if of is not None and of[0] == "column" else None
    return None


def _is_of_source(above: Any, known: dict[int, Value]) -> bool:
    """Whether all that it refers to are columns of the source, under the names they have there."""
    return all(known.get(number) == ["column", name] for number, name in _attributes(above.references().toSeq()))


def _attributes(attributes: Any) -> list[tuple[int, str]]:
    found = []
    iterator = attributes.iterator()
    while iterator.hasNext():
        attribute = iterator.next()
        found.append((int(attribute.exprId().id()), str(attribute.name())))
    return found


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
