"""RowTime: the time of a row that decides its window, and its position in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.stage.frame_columns import check_column, event_time_of, record_field

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["RowTime", "row_time"]


@dataclass(frozen=True)
class RowTime:
    """The path of a time, the microseconds subtracted from it, and the `record` of the rows."""

    path: tuple[str, ...]
    less: int = 0
    record: str | None = None
    # Whether each row has a watermark of its own; whether it decides if the row is late.
    watermarked: bool = False
    judged: bool = False

    @property
    def title(self) -> str:
        return ".".join(self.path)

    # With Spark

    def native(self) -> Column:
        """The time in microseconds."""
        from pyspark.sql import functions as F

        time = F.unix_micros(F.col(".".join(f"`{part.replace('`', '``')}`" for part in self.path)).cast("timestamp"))
        return time - F.lit(self.less) if self.less else time

    def native_columns(self) -> list[Column]:
        """time, watermark, topic, partition, offset."""
        from pyspark.sql import functions as F

        # Rows that are not from a topic have no position: Spark's order is used instead.
        partition, offset, watermark = F.lit(0), F.monotonically_increasing_id(), F.lit(None)
        if self.record is not None:
            record = F.col(f"`{self.record.replace('`', '``')}`")
            partition, offset = record["partition"], record["offset"]
            watermark = F.unix_micros(record["watermark"]) if self.judged else watermark
        return [
            self.native().alias("time"),
            watermark.cast("bigint").alias("watermark"),
            F.lit(0).alias("topic"),
            partition.cast("int").alias("partition"),
            offset.cast("bigint").alias("offset"),
        ]

    @property
    def appended(self) -> bool:
        """Whether it is the time of the append."""
        return self.record is not None and self.path == (self.record, "appended_at")

    # Over Arrow

    def arrow(self, rows: pa.Table) -> pa.Table:
        """The same columns."""
        count = rows.num_rows
        time = _microseconds(_follow(rows, self.path))
        place: dict[str, pa.Array] = {
            "watermark": pa.nulls(count, pa.int64()),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(np.arange(count)),
        }
        if self.record is not None and count:
            record = _whole(rows.column(self.record))
            place |= {name: record.field(name) for name in ("partition", "offset")}
            if self.judged:
                place["watermark"] = _microseconds(record.field("watermark"))
        return pa.table(
            {
                "time": pc.subtract(time, self.less),
                "watermark": place["watermark"],
                "topic": pa.array(np.zeros(count, np.int32)),
                "partition": place["partition"].cast(pa.int32()),
                "offset": place["offset"].cast(pa.int64()),
            }
        )


def row_time(schema: pa.Schema, on: str | None) -> RowTime:
    """The named time, else the marked event time, else the last moment of the row's window."""
    record = record_field(schema)
    watermarked = record is not None and record.type.get_field_index("watermark") >= 0
    name = None if record is None else record.name
    if on is None and _has_windows(schema):
        return RowTime(("window", "end"), 1, name, watermarked, watermarked)
    path = tuple((event_time_of(schema, "windowed") if on is None else on).split("."))
    if on is not None and path[0] not in schema.names and on in schema.names:
        path = (on,)
    check_column(path[0], schema, "windowed")
    of = schema.field(path[0]).type
    for part in path[1:]:
        if not pa.types.is_struct(of) or of.get_field_index(part) < 0:
            raise Invalid(
                f'windowed uses the time "{on}", which the rows lack',
                detail=f'Column "{path[0]}" is {of}.',
                hint='Name a TIMESTAMP column: on="placed_at", or on="record.appended_at".',
            )
        of = of.field(part).type
    if not pa.types.is_timestamp(of):
        raise Invalid(
            f'windowed uses the time "{".".join(path)}", which is {of}',
            detail="The time of a window must be a TIMESTAMP.",
            hint="Convert it: F.timestamp_millis(...), F.to_timestamp(...).",
        )
    # A row is never late by its append time.
    appended = name is not None and path == (name, "appended_at")
    return RowTime(path, 0, name, watermarked, watermarked and not appended)


def _has_windows(schema: pa.Schema) -> bool:
    marked = any(b"mainstem.event_time" in (field.metadata or {}) for field in schema)
    if marked or "window" not in schema.names:
        return False
    of = schema.field("window").type
    return bool(pa.types.is_struct(of) and of.get_field_index("end") >= 0)


def _follow(rows: pa.Table, path: tuple[str, ...]) -> pa.Array:
    found = _whole(rows.column(path[0]))
    return found if len(path) == 1 else pc.struct_field(found, list(path[1:]))


def _microseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int64())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
