"""RawCodec: a topic of one BINARY column, whose bytes are the message's value as they are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as kinds
from confluent_kafka import Message

from mainstem.errors import Invalid
from mainstem.log.rows import CheckedRows
from mainstem.log.topic_settings import TopicSettings

__all__ = ["RawCodec", "check_raw"]


class RawCodec:
    """Passes bytes through. A null is an empty message of no key: nothing can be unreadable."""

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
