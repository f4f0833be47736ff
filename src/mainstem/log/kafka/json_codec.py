"""JsonCodec: a row is a JSON object, as other programs expect it.

    {"order_id": "o-1", "amount": "9.50", "placed_at": "2026-01-01T12:00:00Z"}

Decimals are text, so that no reader rounds them; times are ISO 8601 with their zone; bytes are base64; what is not finite is
text. A column that is missing is null, and one that the topic does not know is passed over: other programs may add some.
A value of null deletes its key; the key's columns are then read from the key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from confluent_kafka import Message

from mainstem.errors import MainstemError, summary_of
from mainstem.log.kafka.json_lines import lines_read
from mainstem.log.plain_values import column_values, plain_writer
from mainstem.log.python_rows import array_of
from mainstem.log.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.typed_values import NotAValue, Reader, has_decimals, json_reader, parse_json

__all__ = ["JsonCodec"]

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class JsonCodec:
    """Turns rows into JSON objects, and back."""

    name = "json"

    def encode(self, rows: CheckedRows) -> list[bytes | None]:
        batch = rows.batch
        columns = [column_values(column, plain_writer(column.type)) for column in batch.columns]
        names = batch.schema.names
        return [_ENCODE(dict(zip(names, values, strict=True))).encode() for values in zip(*columns, strict=True)]

    def decode(
        self, messages: Sequence[Message], settings: TopicSettings
    ) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        """The columns of each message; of those that cannot be read null in all, with their number and the reason."""
        schema = settings.stored_schema
        if (read := lines_read([message.value() for message in messages], schema)) is not None:
            return read, []
        readers = _readers(schema)
        rows: list[dict[str, Any]] = []
        unreadable: list[tuple[int, str]] = []
        for number, message in enumerate(messages):
            try:
                rows.append(_row(message, settings, readers))
            except (ValueError, RecursionError, NotAValue, MainstemError) as error:
                rows.append({})
                unreadable.append((number, summary_of(error)))
        try:
            arrays = [_array(rows, field) for field in schema]
        except MainstemError:
            # A number out of its column's range is noticed only here: find out whose it is.
            for number, row in enumerate(rows):
                try:
                    for field in schema:
                        _array([row], field)
                except MainstemError as error:
                    rows[number] = {}
                    unreadable.append((number, summary_of(error)))
            arrays = [_array(rows, field) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema), sorted(unreadable)


def _array(rows: list[dict[str, Any]], field: pa.Field) -> pa.Array:
    return array_of([row.get(field.name) for row in rows], field.type, path=field.name, topic="")


@lru_cache(maxsize=64)
def _readers(schema: pa.Schema) -> tuple[dict[str, Reader], bool]:
    exact = any(has_decimals(field.type) for field in schema)
    return {field.name: json_reader(field.type, field.name) for field in schema}, exact


def _row(message: Message, settings: TopicSettings, readers: tuple[dict[str, Reader], bool]) -> dict[str, Any]:
    value = message.value()
    if value is None:
        return key_columns(message.key(), settings)
    known, exact = readers
    found = parse_json(value.decode(), exact=exact)
    if not isinstance(found, dict):
        raise ValueError(f"the value is not an object: {str(found)[:60]}")
    return {name: reader(found[name]) for name, reader in known.items() if name in found}


def key_columns(key: bytes | None, settings: TopicSettings) -> dict[str, Any]:
    """The key's columns, read from a message's key."""
    if key is None or not settings.key:
        raise ValueError("the value is null, and there is no key")
    fields = [settings.stored_schema.field(name) for name in settings.key]
    if len(fields) == 1:
        [field] = fields
        if kinds.is_string(field.type):
            return {field.name: key.decode()}
        if kinds.is_binary(field.type):
            return {field.name: key}
    read = parse_json(key.decode(), exact=any(has_decimals(field.type) for field in fields))
    found = read if len(fields) > 1 else [read]
    if not isinstance(found, list) or len(found) != len(fields):
        raise ValueError("the key has not the topic's key columns")
    return {field.name: json_reader(field.type, field.name)(item) for field, item in zip(fields, found, strict=True)}
