"""ArrowCodec: many rows in each message, as Arrow has them in memory: several times cheaper than a message for each.

    value      schema version u32 | flags u32 | rows u32 | an Arrow record batch (IPC, without its schema)
    flags      1: a column record.change follows the topic's; 2: a column record.headers

The offset of a row is that of its message times 2^20, and its place within: it rises as rows follow one another, it is the
same for every reader, and leaves gaps. A message has no key: all its rows are of one partition, which is why such a topic can
not be compacted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from mainstem.errors import Invalid, summary_of
from mainstem.log.embedded.block import HAS_CHANGE, HAS_HEADERS
from mainstem.log.embedded.pending_blocks import stored_batch
from mainstem.log.kafka.kafka_messages import Outgoing, Unreadable, time_of
from mainstem.log.record import CHANGE, HEADERS, record_array
from mainstem.log.rows import CheckedRows
from mainstem.log.schema_evolution import fit
from mainstem.log.topic_settings import TopicSettings

__all__ = ["ArrowCodec", "check_arrow"]

PLACE_BITS = 20
PLACES = 1 << PLACE_BITS
HEAD = struct.Struct("<III")
# Messages of about this size: below what brokers take without being told.
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

    def placed(self, first: int, end: int, rows: CheckedRows | None) -> tuple[int, int]:
        # Of one message its rows are known; of several the end is that of the last message.
        if rows is not None and end - first == 1:
            return self.first_row(first), self.first_row(first) + rows.batch.num_rows
        return self.first_row(first), self.first_row(end)

    def rows_between(self, message: Message, offset: int, end: int) -> int:
        """About: as if all messages had as many rows as the next one."""
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
