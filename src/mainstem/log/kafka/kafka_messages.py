"""Rows as Kafka messages and back: what all codecs share. A codec encodes a row's columns as a value.

key        the key's bytes, as the partitioner has them; null if a row has no key
value      the encoded columns; null for a deletion in a compacted topic, which Kafka then compacts
headers    the record's own; `mainstem.change` if it is not an insert; and `mainstem.transaction`, its number, in the
           first message of a transaction in each partition, so that a blocked reader can name the transaction
timestamp  when it was appended, in milliseconds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from mainstem.log.record import HEADERS, record_array
from mainstem.log.rows.partitioner import key_bytes
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings

__all__ = [
    "CHANGE_HEADER",
    "OWN_HEADERS",
    "Outgoing",
    "RowPerMessage",
    "TRANSACTION_HEADER",
    "Unreadable",
    "outgoing",
    "records_of",
    "time_of",
    "without",
]

CHANGE_HEADER = "mainstem.change"
TRANSACTION_HEADER = "mainstem.transaction"
OWN_HEADERS = "mainstem."

Header = tuple[str, bytes | None]


class Outgoing(NamedTuple):
    """A message to be sent."""

    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


class Unreadable(NamedTuple):
    """A message that the topic's codec cannot read, and why."""

    message: Message
    reason: str


def outgoing(rows: CheckedRows, values: Sequence[bytes | None], settings: TopicSettings) -> list[Outgoing]:
    """The messages for rows with their encoded values."""
    keys = key_bytes(rows.batch, settings.key).to_pylist()
    changes = [None] * len(keys) if rows.change is None else rows.change.to_pylist()
    headers = [None] * len(keys) if rows.headers is None else rows.headers.to_pylist()
    compacted = settings.keep.compacted
    made = []
    for key, value, change, given in zip(keys, values, changes, headers, strict=True):
        own: list[Header] = [(header["key"], header["value"]) for header in given or ()]
        if change is not None and change != "insert":
            own.append((CHANGE_HEADER, change.encode()))
        made.append(Outgoing(key, None if compacted and change == "delete" else value, own or None))
    return made


def records_of(partition: int, messages: Sequence[Message]) -> pa.StructArray:
    """The `record` of each message."""
    offsets = np.fromiter((message.offset() for message in messages), np.int64, len(messages))
    times = np.fromiter((time_of(message) for message in messages), np.int64, len(messages))
    changes: list[str] | None = None
    headers: list[list[dict[str, object]] | None] | None = None
    for number, message in enumerate(messages):
        given = message.headers()
        if message.value() is None or given:
            own = [pair for pair in given or () if not pair[0].startswith(OWN_HEADERS)]
            change = dict(given or ()).get(CHANGE_HEADER)
            if change is not None or message.value() is None:
                changes = changes or ["insert"] * len(messages)
                changes[number] = "delete" if change is None else change.decode()
            if own:
                headers = headers or [None] * len(messages)
                headers[number] = [{"key": key, "value": value} for key, value in own]
    return record_array(
        partition,
        offsets,
        times,
        count=len(messages),
        change=None if changes is None else pa.array(changes, pa.string()),
        headers=None if headers is None else pa.array(headers, HEADERS),
    )


def time_of(message: Message) -> int:
    """When a message was appended, in microseconds."""
    kind, milliseconds = message.timestamp()
    return 0 if kind == TIMESTAMP_NOT_AVAILABLE else int(milliseconds) * 1000


def without(rows: pa.RecordBatch, dropped: Sequence[int]) -> pa.RecordBatch:
    """The rows without the dropped ones."""
    keep = np.ones(rows.num_rows, np.bool_)
    keep[list(dropped)] = False
    return pc.filter(rows, pa.array(keep)) if dropped else rows


class RowPerMessage:
    """The offsets of a codec with one row per message: a row's offset is its message's."""

    def first_row(self, message: int) -> int:
        return message

    def message_of(self, row: int) -> int:
        return row

    def message_after(self, row: int) -> int:
        return row

    def row_range(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]:
        return first, end

    def rows_between(self, message: Message, offset: int, end: int) -> int:
        return int(end - message.offset())
