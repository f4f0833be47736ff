"""The schemas of a topic by version: how the blocks of each version are read as the current schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from mainstem.errors import CorruptHome, summary_of
from mainstem.log.embedded.write.block import Block
from mainstem.log.record import CHANGE, HEADERS, RECORD, record_schema
from mainstem.log.rows.stored_batch import HAS_CHANGE, HAS_HEADERS
from mainstem.log.watermark import WATERMARKED_RECORD

# Raised by Arrow if rows do not have the expected columns; an unknown version is a `LookupError`.
UNREADABLE = (pa.ArrowException, LookupError, ValueError, OSError)


class Reading(NamedTuple):
    """How rows are read: the columns, the maximum number of rows of a batch, the delay of the watermark, and the fields of
    `record` that are needed: others may be null."""

    columns: Sequence[str] | None = None
    rows_max: int = 65_536
    delay: int | None = None
    fields: Sequence[str] | None = None


class TopicSchemas:
    """The schemas of one topic by version, as the file at `path` names them. Immutable."""

    def __init__(self, by_version: Mapping[int, pa.Schema], event_time: str | None, path: str = "") -> None:
        self.path = path
        self.by_version = by_version
        self.version = max(by_version)
        self.current = by_version[self.version]
        self.event_time = event_time
        self._stored: dict[tuple[int, int], pa.Schema] = {}

    def stored_schema(self, version: int, flags: int) -> pa.Schema:
        """The schema of a block's payload: the columns of its version, then change and headers if it has them."""
        known = self._stored.get((version, flags))
        if known is None:
            fields = [field.with_nullable(True).remove_metadata() for field in self.by_version[version]]
            if flags & HAS_CHANGE:
                fields.append(pa.field("record.change", CHANGE))
            if flags & HAS_HEADERS:
                fields.append(pa.field("record.headers", HEADERS))
            known = self._stored[version, flags] = pa.schema(fields)
        return known

    def rows(self, block: Block, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """The rows of a block, read as `schema` or as stored; `CorruptHome` if it was written with other columns."""
        header = block.header
        try:
            stored = self.stored_schema(header.schema_version, header.flags) if schema is None else schema
            batch = pa.ipc.read_record_batch(block.payload, stored)
            # With other types a value could point outside its buffer.
            batch.validate()
        except UNREADABLE as error:
            raise self.other_columns(header.base_offset, error) from error
        return batch

    def other_columns(self, offset: int, error: Exception) -> CorruptHome:
        """The error for a record with a valid checksum whose columns are not those of the topic's settings."""
        return CorruptHome(
            f'"{self.path}" does not have the columns of the records',
            detail=f"The record of offset {offset} was written with other columns: {summary_of(error)}.",
            hint="Nothing was changed. Restore the file from a copy.",
            path=self.path,
        )

    def output_schemas(self, reading: Reading) -> tuple[pa.Schema, pa.Schema]:
        """The schema of the requested columns, without and with `record`."""
        names = set(reading.columns) if reading.columns is not None else None
        plain = pa.schema([field.with_nullable(True) for field in self.current if names is None or field.name in names])
        record = RECORD if reading.delay is None else WATERMARKED_RECORD
        return plain, record_schema(plain, self.event_time, record=record)
