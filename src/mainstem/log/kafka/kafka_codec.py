"""KafkaCodec: how rows are encoded in messages, and which offset a row has.

json     a JSON object for each row; a row's offset is its message's
raw      the one column's bytes for each row; a row's offset is its message's
arrow    many rows in each message; a row's offset is its message's times 2^20, plus its index within
debezium a change for each row, only read; see `DebeziumCodec`
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as kinds
from confluent_kafka import Message

from mainstem.errors import Invalid, MainstemError, summary_of
from mainstem.log.kafka.debezium_codec import DebeziumCodec
from mainstem.log.kafka.kafka_messages import (
    Outgoing,
    RowPerMessage,
    Unreadable,
    outgoing,
    records_of,
    time_of,
    without,
)
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.rows.column_types import SCALARS
from mainstem.log.rows.plain_values import (
    NotAValue,
    Reader,
    column_values,
    has_decimals,
    json_reader,
    parse_json,
    plain_writer,
)
from mainstem.log.rows.python_rows import array_of
from mainstem.log.rows.readable_values import unreadable_value
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.rows.stored_batch import HAS_CHANGE, HAS_HEADERS, stored_batch
from mainstem.log.topic_settings import TopicSettings

__all__ = ["ArrowCodec", "JsonCodec", "KafkaCodec", "RawCodec", "check_arrow", "check_raw", "codec_of", "lines_read"]


# RawCodec: a topic of one BINARY column, whose bytes are the value of the message.


class RawCodec:
    """Passes bytes through: every value can be read. A null is a message with a null value and no key."""

    def encode(self, rows: CheckedRows) -> list[bytes | None]:
        return list(rows.batch.column(0).to_pylist())

    def decode(
        self, messages: Sequence[Message], settings: TopicSettings
    ) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        values = pa.array([message.value() for message in messages], pa.binary())
        return pa.RecordBatch.from_arrays([values], schema=settings.stored_schema), []


def check_raw(settings: TopicSettings) -> None:
    if len(settings.schema) != 1 or not kinds.is_binary(settings.schema.field(0).type) or settings.key:
        raise Invalid(
            f'topic "{settings.name}" cannot have the codec "raw"',
            detail="Such a topic has one BINARY column and no key: the bytes of its messages.",
            hint='Give schema="value BINARY", or leave codec= out: rows are then JSON.',
        )


# ArrowCodec: many rows in each message, in Arrow's format: several times cheaper than one message per row.
#
#     value      schema version u32 | flags u32 | rows u32 | an Arrow record batch (IPC, without its schema)
#     flags      1: a column record.change follows the topic's; 2: a column record.headers
#
# The offset of a row is that of its message times 2^20, plus its index within: offsets increase, are the same for every
# reader, and have gaps. A message has no key, since it has many rows of one partition: so such a topic cannot be compacted.


PLACE_BITS = 20
PLACES = 1 << PLACE_BITS
HEAD = struct.Struct("<III")
# The target size of messages: below the default limit of brokers.
MESSAGE_BYTES = 512 << 10


class ArrowCodec:
    """Blocks of rows."""

    def messages(self, rows: CheckedRows) -> list[Outgoing]:
        batch, flags = stored_batch(rows)
        each = max(1, min(PLACES, batch.num_rows * MESSAGE_BYTES // max(1, batch.nbytes)))
        version = rows.settings.schema_version
        parts = [batch.slice(first, each) for first in range(0, batch.num_rows, each)]
        return [
            Outgoing(None, HEAD.pack(version, flags, part.num_rows) + part.serialize().to_pybytes(), None)
            for part in parts
        ]

    def rows(
        self, partition: int, messages: Sequence[Message], settings: TopicSettings, start: int, stop: int
    ) -> tuple[pa.RecordBatch, pa.StructArray, list[Unreadable]]:
        columns, records, unreadable = [], [], []
        for message in messages:
            try:
                rows, record = _block(partition, message, settings)
            except (ValueError, struct.error, IndexError, TypeError, pa.ArrowException) as error:
                unreadable.append(Unreadable(message, f"{type(error).__name__}: {summary_of(error)}"[:200]))
                continue
            base = self.first_row(message.offset())
            first, end = max(0, start - base), min(rows.num_rows, stop - base)
            if first < end:
                columns.append(rows.slice(first, end - first))
                records.append(record.slice(first, end - first))
        if not columns:
            nothing = pa.RecordBatch.from_pylist([], schema=settings.stored_schema)
            return nothing, record_array(partition, 0, 0, count=0), unreadable
        return pa.concat_batches(columns), pa.concat_arrays(records), unreadable

    def first_row(self, message: int) -> int:
        return message << PLACE_BITS

    def message_of(self, row: int) -> int:
        return row >> PLACE_BITS

    def message_after(self, row: int) -> int:
        return -(-row >> PLACE_BITS)

    def row_range(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]:
        # For one message the number of rows is known; for several the end is that of the last message.
        if rows is not None and end - first == 1:
            return self.first_row(first), self.first_row(first) + rows.batch.num_rows
        return self.first_row(first), self.first_row(end)

    def rows_between(self, message: Message, offset: int, end: int) -> int:
        """An estimate, as if all messages had as many rows as the next one."""
        value = message.value() or b""
        count = HEAD.unpack_from(value)[2] if len(value) >= HEAD.size else 1
        ahead = max(0, offset - self.first_row(message.offset()))
        return max(1, count * int(end - message.offset()) - ahead)


def _block(partition: int, message: Message, settings: TopicSettings) -> tuple[pa.RecordBatch, pa.StructArray]:
    value = message.value()
    if value is None:
        raise ValueError("the value is null")
    version, flags, count = HEAD.unpack_from(value)
    schema = settings.schema_of(version)
    fields = list(schema)
    if flags & HAS_CHANGE:
        fields.append(pa.field("record.change", CHANGE))
    if flags & HAS_HEADERS:
        fields.append(pa.field("record.headers", HEADERS))
    batch = pa.ipc.read_record_batch(pa.py_buffer(value)[HEAD.size :], pa.schema(fields))
    batch.validate()
    if batch.num_rows != count or count > PLACES:
        raise ValueError(f"{batch.num_rows} rows where {count} were promised")
    offsets = (np.int64(message.offset()) << PLACE_BITS) + np.arange(batch.num_rows, dtype=np.int64)
    record = record_array(
        partition,
        offsets,
        time_of(message),
        count=batch.num_rows,
        change=batch.column("record.change") if flags & HAS_CHANGE else None,
        headers=batch.column("record.headers") if flags & HAS_HEADERS else None,
    )
    rows = batch.select(schema.names)
    return (rows if version == settings.schema_version else fit(rows, settings.stored_schema)), record


def check_arrow(settings: TopicSettings) -> None:
    if settings.keep.compacted:
        raise Invalid(
            f'topic "{settings.name}" cannot have the codec "arrow" and keep the latest record per key',
            detail="A message of many rows has no key by which Kafka could compact it.",
            hint="Leave codec= out: each row is then a message of its own, in JSON.",
        )


# Fast path: Arrow reads many JSON values at once, if they are plain.
#
# Arrow is several times as fast as reading values one by one. It is stricter than `JsonCodec` in some cases: the codec then
# reads the values one by one, and reports which one is wrong.


# Types that Arrow reads as the codec does: not those written as other text, nor nested ones.
_PLAIN = frozenset(SCALARS.values()) - {SCALARS[name] for name in ("FLOAT", "BINARY", "DATE", "TIME", "TIMESTAMP_NTZ")}


def lines_read(values: Sequence[bytes | None], schema: pa.Schema) -> pa.RecordBatch | None:
    """The columns of some values; None if they must be read one by one."""
    if not values or not _PLAIN.issuperset(schema.types):
        return None
    # Each value begins an object and has no line break, so equal numbers of rows and values mean one row per value.
    if not all(value is not None and value[:1] == b"{" and b"\n" not in value for value in values):
        return None
    lines = b"\n".join(values)  # type: ignore[arg-type]
    # A time must have a zone, which Arrow's reader does not require.
    kept = [pa.field(at.name, pa.string() if kinds.is_timestamp(at.type) else at.type) for at in schema]
    asked = pyarrow.json.ParseOptions(explicit_schema=pa.schema(kept), unexpected_field_behavior="ignore")
    try:
        read = pyarrow.json.read_json(
            io.BytesIO(lines), pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1), asked
        )
        if read.num_rows != len(values):
            return None
        columns = [_whole(read.column(at.name)) for at in kept]
        for place, kind in enumerate(schema.types):
            if kinds.is_timestamp(kind):
                if not pc.all(pc.ends_with(columns[place], "Z"), min_count=0).as_py():
                    return None
                columns[place] = columns[place].cast(kind)
            elif kinds.is_floating(kind) and pc.any(pc.is_inf(columns[place])).as_py():
                # A number out of range.
                return None
    except pa.ArrowInvalid:
        return None
    found = pa.RecordBatch.from_arrays(columns, schema=schema)
    # Arrow accepts bytes that are not UTF-8, and the year 0.
    return found if unreadable_value(found) is None else None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


# JsonCodec: a row is a JSON object, as other programs expect it.
#
#     {"order_id": "o-1", "amount": "9.50", "placed_at": "2026-01-01T12:00:00Z"}
#
# Decimals are text, so that no reader rounds them; times are ISO 8601 with their zone; bytes are base64; NaN and infinities
# are text. A missing column is null, and an unknown one is ignored: other programs may add some. A null value (tombstone)
# deletes its key; the key's columns are then read from the key.


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
        """The columns of each message, and the number and reason of each unreadable one, whose columns are null."""
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
            # A number out of its column's range is detected only here: find its row.
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


class KafkaCodec(Protocol):
    """The codec of a topic."""

    def messages(self, rows: CheckedRows) -> list[Outgoing]: ...
    def rows(
        self, partition: int, messages: Sequence[Message], settings: TopicSettings, start: int, stop: int
    ) -> tuple[pa.RecordBatch, pa.StructArray, list[Unreadable]]: ...
    def first_row(self, message: int) -> int: ...
    def message_of(self, row: int) -> int: ...
    def message_after(self, row: int) -> int: ...
    def row_range(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]: ...
    def rows_between(self, message: Message, offset: int, end: int) -> int: ...


class Values(Protocol):
    """A codec with one row per message: only its values."""

    def encode(self, rows: CheckedRows) -> list[bytes | None]: ...
    def decode(
        self, messages: Sequence[Message], settings: TopicSettings
    ) -> tuple[pa.RecordBatch, list[tuple[int, str]]]: ...


class RowCodec(RowPerMessage):
    """Values of one row, in any form."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def messages(self, rows: CheckedRows) -> list[Outgoing]:
        return outgoing(rows, self._values.encode(rows), rows.settings)

    def rows(
        self, partition: int, messages: Sequence[Message], settings: TopicSettings, start: int, stop: int
    ) -> tuple[pa.RecordBatch, pa.StructArray, list[Unreadable]]:
        columns, bad = self._values.decode(messages, settings)
        record = records_of(partition, messages)
        if not bad:
            return columns, record, []
        numbers = [number for number, _ in bad]
        kept = without(pa.RecordBatch.from_arrays([record], names=["record"]), numbers)
        unreadable = [Unreadable(messages[number], reason) for number, reason in bad]
        return without(columns, numbers), kept.column("record"), unreadable


_CODECS: dict[str, KafkaCodec] = {
    "json": RowCodec(JsonCodec()), "raw": RowCodec(RawCodec()), "arrow": ArrowCodec(), "debezium": DebeziumCodec()
}  # fmt: skip


def codec_of(settings: TopicSettings) -> KafkaCodec:
    return _CODECS[settings.codec or "json"]
