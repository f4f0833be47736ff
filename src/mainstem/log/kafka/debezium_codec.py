"""DebeziumCodec: reads topics that Debezium wrote as JSON, as rows. It writes none.

    key      {"id": 1}          or with its schema   {"schema": {...}, "payload": {"id": 1}}
    value    {"op": "u", "before": ..., "after": {"id": 1, "name": "Anne"}, "source": {...}}    or with its schema

    op c, r    insert: the columns of `after`
    op u       update: the columns of `after`; `before` is not read, since it may have only the key
    op d       delete: the columns of the key, as the message's key has them
    null       delete (tombstone). It follows each `d`; after compaction it may be all that is left of it. Deleting a key
               again changes nothing.
    op t, m    unreadable: a truncate does not say which rows it deletes, and a message of an application is no row

A column `origin` (see `mainstem.log.record`) is read from `source`, if the topic has one. Dates, times and decimals are
numbers whose unit only the schema states. Without it a date is in days, times are in microseconds, and decimals must be text
(decimal.handling.mode=string). The placeholder of a large value that was not sent makes a message unreadable.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from confluent_kafka import Message

from mainstem.errors import Invalid, MainstemError, summary_of
from mainstem.log.kafka.kafka_messages import Outgoing, RowPerMessage, Unreadable, records_of, without
from mainstem.log.record import CHANGE, is_origin
from mainstem.log.rows.plain_values import NotAValue, Reader, json_reader, parse_json
from mainstem.log.rows.python_rows import array_of
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings

__all__ = ["DebeziumCodec", "check_debezium"]

CHANGES = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}
REFUSED = {
    "t": "a truncate does not say which rows it deletes",
    "m": "a message of an application is not a row",
}
UNAVAILABLE = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The unit of a number in microseconds, by the name of its type.
_MICROSECONDS = {
    "io.debezium.time.Timestamp": 1000, "io.debezium.time.MicroTimestamp": 1, "io.debezium.time.NanoTimestamp": 0.001,
    "org.apache.kafka.connect.data.Timestamp": 1000, "io.debezium.time.Time": 1000, "io.debezium.time.MicroTime": 1,
    "io.debezium.time.NanoTime": 0.001, "org.apache.kafka.connect.data.Time": 1000,
}  # fmt: skip
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"

_Types = Mapping[str, Mapping[str, Any]]
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, NotAValue, MainstemError)


class DebeziumCodec(RowPerMessage):
    """Envelopes of changes, one for each row."""

    def messages(self, rows: CheckedRows) -> list[Outgoing]:
        raise Invalid(
            f'topic "{rows.settings.name}" is only read',
            detail='Its codec is "debezium": Debezium writes it.',
            hint="Append to another topic.",
        )

    def rows(
        self, partition: int, messages: Sequence[Message], settings: TopicSettings, start: int, stop: int
    ) -> tuple[pa.RecordBatch, pa.StructArray, list[Unreadable]]:
        schema = settings.stored_schema
        read: dict[int, tuple[str, dict[str, Any]]] = {}
        bad: dict[int, str] = {}
        for number, message in enumerate(messages):
            try:
                read[number] = _change(message, settings)
            except _UNREADABLE as error:
                bad[number] = _reason(error)
        try:
            columns = _arrays([row for _, row in read.values()], schema)
        except MainstemError:
            # A number out of its column's range is detected only here: find its row.
            for number, (_, row) in list(read.items()):
                try:
                    _arrays([row], schema)
                except MainstemError as error:
                    bad[number] = _reason(error)
                    del read[number]
            columns = _arrays([row for _, row in read.values()], schema)
        record = pa.RecordBatch.from_arrays([records_of(partition, messages)], names=["record"])
        kept = without(record, list(bad)).column("record")
        change = pa.array([change for change, _ in read.values()], CHANGE)
        arrays = [change if field.name == "change" else kept.field(field.name) for field in kept.type]
        return (
            pa.RecordBatch.from_arrays(columns, schema=schema),
            pa.StructArray.from_arrays(arrays, fields=list(kept.type)),
            [Unreadable(messages[number], reason) for number, reason in sorted(bad.items())],
        )


def _arrays(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[pa.Array]:
    return [array_of([row.get(field.name) for row in rows], field.type, path=field.name, topic="") for field in schema]


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError | TypeError | AttributeError):
        return f"it is no change of Debezium: {type(error).__name__}: {error}"[:200]
    return summary_of(error)


def check_debezium(settings: TopicSettings) -> None:
    """Refuse a topic without a key: its deletions have nothing else."""
    if not settings.key:
        raise Invalid(
            f'topic "{settings.name}" cannot have the codec "debezium" without a key',
            detail="A deletion has only the columns of the key.",
            hint='Name the columns of the key: key="id".',
        )


def _change(message: Message, settings: TopicSettings) -> tuple[str, dict[str, Any]]:
    """What kind of change a message is, and its columns."""
    value = message.value()
    envelope, types = (None, {}) if value is None else _payload(value)
    if envelope is None:
        return "delete", _key(message, settings)
    op = envelope.get("op")
    if op not in CHANGES:
        raise ValueError(REFUSED.get(str(op), f"it is no change: op is {str(op)[:60]!r}"))
    if CHANGES[op] == "delete":
        row = _key(message, settings)
    else:
        after = envelope.get("after")
        if not isinstance(after, dict):
            raise ValueError("it has no `after`")
        row = _columns(after, types.get("after", {}), settings.stored_schema)
    if "origin" in settings.schema.names and is_origin(settings.schema.field("origin")):
        row["origin"] = _origin(envelope)
    return CHANGES[op], row


def _payload(data: bytes) -> tuple[dict[str, Any] | None, Mapping[str, _Types]]:
    """The content of a key or a value, and the types of the columns by the field that has them ("" for its own)."""
    found = parse_json(data.decode(), exact=True)
    types: dict[str, _Types] = {}
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        schema = found["schema"] or {}
        types[""] = {one["field"]: one for one in schema.get("fields") or ()}
        for name, one in list(types[""].items()):
            types[name] = {inner["field"]: inner for inner in one.get("fields") or ()}
        found = found["payload"]
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"it is not an object: {str(found)[:60]}")
    return found, types


def _key(message: Message, settings: TopicSettings) -> dict[str, Any]:
    key = message.key()
    found, types = (None, {}) if key is None else _payload(key)
    if found is None or any(name not in found for name in settings.key):
        raise ValueError(f"its key lacks the columns {', '.join(settings.key)}")
    fields = pa.schema([settings.stored_schema.field(name) for name in settings.key])
    return _columns(found, types.get("", {}), fields)


@lru_cache(maxsize=64)
def _readers(schema: pa.Schema) -> dict[str, Reader]:
    return {field.name: json_reader(field.type, field.name) for field in schema}


def _columns(found: Mapping[str, Any], types: _Types, schema: pa.Schema) -> dict[str, Any]:
    readers = _readers(schema)
    row = {}
    for field in schema:
        if field.name not in found or field.name == "origin":
            continue
        value = found[field.name]
        if value == UNAVAILABLE:
            raise ValueError(
                f'column "{field.name}" was not sent because it did not change; set REPLICA IDENTITY FULL on the table'
            )
        row[field.name] = readers[field.name](_plain(value, field.type, types.get(field.name, {})))
    return row


def _plain(value: Any, data_type: pa.DataType, described: Mapping[str, Any]) -> Any:
    """A value as JSON rows have it: dates and times in ISO 8601, decimals as text."""
    name = described.get("name") or ""
    if name == _VARIABLE and isinstance(value, dict):
        return format(_decimal(value["value"], int(value["scale"])), "f")
    if name == _DECIMAL and isinstance(value, str):
        return format(_decimal(value, int((described.get("parameters") or {})["scale"])), "f")
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if kinds.is_date(data_type):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if kinds.is_timestamp(data_type) or kinds.is_time(data_type):
        factor = _MICROSECONDS.get(name, 1)
        whole = value * int(factor) if factor >= 1 else value // 1000
        at = (_EPOCH + timedelta(microseconds=whole)).replace(tzinfo=None)
        if kinds.is_time(data_type):
            return at.time().isoformat()
        return f"{at.isoformat()}Z" if data_type.tz is not None else at.isoformat()
    return value


def _decimal(text: str, scale: int) -> Decimal:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:60]!r} is not a decimal in base64") from error
    number = int.from_bytes(data, "big", signed=True)
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -scale))


def _origin(envelope: Mapping[str, Any]) -> dict[str, Any]:
    source = envelope.get("source") or {}
    snapshot = str(source.get("snapshot") or "false").lower() != "false"
    order = (envelope.get("transaction") or {}).get("total_order")
    at = source.get("ts_us") or (source["ts_ms"] * 1000 if source.get("ts_ms") is not None else None)
    return {
        "position": _position(source),
        "transaction": None if snapshot else source.get("txId"),
        "number": None if order is None else int(order),
        "committed_at": None if at is None else _EPOCH + timedelta(microseconds=int(at)),
        "snapshot": snapshot,
    }


def _position(source: Mapping[str, Any]) -> str | None:
    """The position in the form of the database."""
    if isinstance(lsn := source.get("lsn"), int):
        return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
    if source.get("file") is not None:
        return f"{source['file']}:{source.get('pos')}"
    known = next((source[name] for name in ("lsn", "commit_lsn", "scn") if source.get(name) is not None), None)
    return None if known is None else str(known)
