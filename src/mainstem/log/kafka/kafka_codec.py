"""KafkaCodec: how rows lie in messages: what is in a value, and which offset a row has.

json     a JSON object for each row; a row's offset is its message's
raw      the one column's bytes for each row; a row's offset is its message's
arrow    many rows in each message; a row's offset is its message's times 2^20, and its place within
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from confluent_kafka import Message

from mainstem.log.kafka.arrow_codec import ArrowCodec
from mainstem.log.kafka.json_codec import JsonCodec
from mainstem.log.kafka.kafka_messages import Outgoing, Unreadable, outgoing, records_of, without
from mainstem.log.kafka.raw_codec import RawCodec
from mainstem.log.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings

__all__ = ["KafkaCodec", "codec_of"]


class KafkaCodec(Protocol):
    """What a topic needs to know of its codec."""

    def messages(self, rows: CheckedRows) -> list[Outgoing]: ...
    def rows(
        self, partition: int, messages: Sequence[Message], settings: TopicSettings, start: int, stop: int
    ) -> tuple[pa.RecordBatch, pa.StructArray, list[Unreadable]]: ...
    def first_row(self, message: int) -> int: ...
    def message_of(self, row: int) -> int: ...
    def message_after(self, row: int) -> int: ...
    def placed(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]: ...
    def rows_between(self, message: Message, offset: int, end: int) -> int: ...


class Values(Protocol):
    """A codec of one row a message: its values alone."""

    def encode(self, rows: CheckedRows) -> list[bytes | None]: ...
    def decode(
        self, messages: Sequence[Message], settings: TopicSettings
    ) -> tuple[pa.RecordBatch, list[tuple[int, str]]]: ...


class RowCodec:
    """One row a message, so a row's offset is its message's."""

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

    def first_row(self, message: int) -> int:
        return message

    def message_of(self, row: int) -> int:
        return row

    def message_after(self, row: int) -> int:
        return row

    def placed(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]:
        return first, end

    def rows_between(self, message: Message, offset: int, end: int) -> int:
        return int(end - message.offset())


_CODECS: dict[str, KafkaCodec] = {"json": RowCodec(JsonCodec()), "raw": RowCodec(RawCodec()), "arrow": ArrowCodec()}


def codec_of(settings: TopicSettings) -> KafkaCodec:
    return _CODECS[settings.codec or "json"]
