"""A row that a visitor appends: JSON text or an object, read as `mainstem topic append` reads a line, or refused.

A page shows BIGINT and DECIMAL as text, so text is taken for them, also inside a struct, a list or a map.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.flows.late_topic import late_topic_of
from mainstem.log.queues.queue_rejections import rejected_topic
from mainstem.log.rows.column_types import kind_of
from mainstem.log.rows.plain_values import NotAValue, json_line, json_reader, parse_json, plain_writer
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.checkpoint.rejected_rows import rejected_topic_of
from mainstem.stem import Mainstem
from mainstem.workbench.cli.flow_facts import known_flows
from mainstem.workbench.console.home_map import OWN_PREFIX

__all__ = ["exact_value", "own_writer", "read_row", "row_text"]

_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)


def read_row(given: Any, settings: TopicSettings) -> dict[str, Any]:
    """The row as Python values of the topic's columns."""
    value = _parse(given) if isinstance(given, str) else given
    if not isinstance(value, dict):
        raise Invalid(
            "the row is not a JSON object",
            detail="`row` is an object with a value for each column, or its text.",
            hint='For example: {"topic": "orders", "row": {"order_id": 7}}',
        )
    if "record" in value:
        raise Invalid(
            "a row of the console has no `record`",
            detail="It says whether a record inserts or deletes, and has its headers; the console appends inserts only.",
            hint="Leave `record` out. To delete a key: topic.delete(...), or mainstem topic append.",
        )
    types = {field.name: field.type for field in settings.stored_schema}
    try:
        return {
            name: json_reader(types[name], name)(exact_value(item, types[name])) if name in types else item
            for name, item in value.items()
        }
    except NotAValue as error:
        raise Invalid(str(error), detail="Nothing was appended.", hint=error.hint) from error
    except ArithmeticError as error:
        raise Invalid(
            "a number of the row is out of range", detail="Nothing was appended.", hint="Give a smaller number."
        ) from error


def _parse(text: str) -> Any:
    if not text.strip():
        raise Invalid(
            "there is no row to append", detail="The text is empty.", hint='Write one, for example: {"order_id": 1}'
        )
    try:
        return parse_json(text, exact=True)
    except (ValueError, RecursionError) as error:
        reason = "It is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Invalid(
            "the row is not JSON", detail=f"{reason}.", hint='Write an object, for example: {"order_id": 1}'
        ) from error


def exact_value(value: Any, data_type: pa.DataType) -> Any:
    """The value with the whole numbers that a page has as text.

    >>> exact_value({"n": "7", "name": "7"}, pa.struct([("n", pa.int64()), ("name", pa.string())]))
    {'n': 7, 'name': '7'}
    """
    kind = kind_of(data_type)
    if kind == "integer" and data_type.bit_width == 64 and isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if kind == "struct" and isinstance(value, dict):
        types = {field.name: field.type for field in data_type}
        return {name: exact_value(item, types[name]) if name in types else item for name, item in value.items()}
    if kind == "list" and isinstance(value, list):
        return [exact_value(item, data_type.value_type) for item in value]
    if kind == "map" and isinstance(value, list):
        kinds = (data_type.key_type, data_type.item_type)
        return [
            [exact_value(part, of) for part, of in zip(pair, kinds, strict=True)]
            if isinstance(pair, list) and len(pair) == 2
            else pair
            for pair in value
        ]
    return value


def row_text(row: dict[str, Any], settings: TopicSettings) -> str:
    """The row as the line that `mainstem topic append` takes."""
    types = {field.name: field.type for field in settings.stored_schema}
    return json_line({name: plain_writer(types[name])(value) for name, value in row.items()})


def own_writer(stem: Mainstem, topic: str) -> str:
    """Who in Mainstem itself writes a topic; empty if nobody does."""
    if topic.startswith(OWN_PREFIX):
        return "Mainstem"
    for flow in known_flows(stem):
        if topic in (late_topic_of(flow), rejected_topic_of(flow)):
            return f"flow {flow}"
    for name in stem.topics():
        if topic.startswith(f"{name}."):
            found = [queue for queue in Topic.queues(stem.topic(name)) if rejected_topic(name, queue) == topic]
            if found:
                return f"queue {found[0]} of {name}"
    return ""
