"""KeyedRows: the input rows of an engine, each with its key, its position in the log and its times.

    group      int64      hash of the key
    check      int64      a second one: both together identify the key
    by_0 ...              the key's columns
    partition  int32      partition and offset order the rows as the log does
    offset     int64
    tie        int64      a hash of the row: orders rows of several topics with the same position
    time       int64      event time in microseconds, NO_TIME where there is none
    watermark  int64      the row's own watermark, NO_TIME if unknown
    row        struct     the whole row

Computed with Spark, or over Arrow without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.arrow_columns import microseconds, whole
from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.stage.frame_columns import record_field
from mainstem.operators.stage.hashes import key_hashes
from mainstem.operators.stage.spark_hashes import hash_columns, hashable, identify_keys

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KeyedRows", "arrow_hashes", "arrow_tie", "can_tie", "native_hashes", "native_tie"]


@dataclass(frozen=True)
class KeyedRows:
    """Converts rows of this schema, with Spark and over Arrow."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "tie"

    schema: pa.Schema
    by: tuple[str, ...]
    event_time: str | None = None

    @property
    def watermarked(self) -> bool:
        """Whether rows have watermarks of their own."""
        return "watermark" in self._record_fields

    @property
    def by_fields(self) -> list[pa.Field]:
        """The key's columns under the engine's names."""
        return [pa.field(f"by_{place}", self.schema.field(name).type) for place, name in enumerate(self.by)]

    @property
    def row_type(self) -> pa.DataType:
        """All columns of a row."""
        return pa.struct([pa.field(field.name, field.type) for field in self.schema])

    @property
    def input_schema(self) -> pa.Schema:
        """The columns of the converted rows."""
        int32, int64 = pa.int32(), pa.int64()
        places = [("partition", int32), ("offset", int64), ("tie", int64), ("time", int64), ("watermark", int64)]
        return pa.schema([("group", int64), ("check", int64), *self.by_fields, *places, ("row", self.row_type)])

    @property
    def _record_fields(self) -> list[str]:
        record = record_field(self.schema)
        return [] if record is None else [field.name for field in record.type]

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the groups that `native` does."""
        return record_field(self.schema) is not None and all(hashable(field.type) for field in self.by_fields)

    def native(self, frame: DataFrame) -> DataFrame:
        """With Spark."""
        from pyspark.sql import functions as F

        columns = {name: F.col(f"`{name.replace('`', '``')}`") for name in self.schema.names}
        keys = [columns[name] for name in self.by]
        time = F.unix_micros(columns[self.event_time].cast("timestamp")) if self.event_time else F.lit(None)
        record = self._native_record(columns)
        return frame.select(
            *native_hashes(self.schema, self.by),
            *(key.alias(f"by_{place}") for place, key in enumerate(keys)),
            record["partition"].alias("partition"),
            record["offset"].alias("offset"),
            native_tie(self.schema).alias("tie"),
            F.coalesce(time, F.lit(NO_TIME)).cast("bigint").alias("time"),
            F.coalesce(record["watermark"], F.lit(NO_TIME)).cast("bigint").alias("watermark"),
            F.struct(*(column.alias(name) for name, column in columns.items())).alias("row"),
        )

    def _native_record(self, columns: dict[str, Column]) -> dict[str, Column]:
        from pyspark.sql import functions as F

        found = record_field(self.schema)
        if found is None:
            nothing = F.lit(None).cast("bigint")
            # Rows that are not from a topic have no position: Spark's order is used instead.
            return {"partition": F.lit(0), "offset": F.monotonically_increasing_id(), "watermark": nothing}
        record = columns[found.name]
        watermark = F.unix_micros(record["watermark"]) if self.watermarked else F.lit(None).cast("bigint")
        return {"partition": record["partition"], "offset": record["offset"], "watermark": watermark}

    def arrow(self, table: pa.Table) -> pa.Table:
        """Without Spark."""
        count = table.num_rows
        keys = [table.column(name) for name in self.by]
        record = record_field(self.schema)
        places = None if record is None or not count else whole(table.column(record.name))
        partition = np.zeros(count, np.int32) if places is None else places.field("partition")
        offset = np.arange(count, dtype=np.int64) if places is None else places.field("offset")
        watermark = (
            places.field("watermark") if places is not None and self.watermarked else pa.nulls(count, pa.int64())
        )
        time = table.column(self.event_time) if self.event_time else pa.nulls(count, pa.int64())
        row = [table.column(field.name) for field in self.schema]
        schema = self.input_schema
        columns = [
            *arrow_hashes(keys, count),
            *keys,
            partition,
            offset,
            # Here rows are of one topic, whose positions are unique.
            np.zeros(count, np.int64),
            microseconds(time),
            microseconds(watermark),
            pa.StructArray.from_arrays([whole(column) for column in row], fields=list(self.row_type)),
        ]
        return pa.Table.from_arrays([_array(column) for column in columns], names=schema.names).cast(schema)


def native_hashes(schema: pa.Schema, by: Sequence[str]) -> list[Column]:
    """`group` and `check` of a key, which together identify it."""
    from pyspark.sql import functions as F

    if not by:
        return [F.lit(0).cast("bigint").alias("group"), F.lit(0).cast("bigint").alias("check")]
    keys = [F.col(f"`{name.replace('`', '``')}`") for name in by]
    # xxhash64 skips nulls: without `nulls` (null, "a") and ("a", null) would be one key, without `texts` [null] and [].
    nulls = [key.isNull() for key in keys]
    nested = [pa.types.is_nested(schema.field(name).type) for name in by]
    texts = [F.to_json(F.struct(key.alias("key"))) for key, within in zip(keys, nested, strict=True) if within]
    check = F.xxhash64(F.lit("check"), *keys, *nulls, *texts)
    return [F.xxhash64(*keys).alias("group"), check.alias("check")]


def native_tie(schema: pa.Schema) -> Column:
    """A hash that orders rows with the same position in different topics: the same in a replay, although Spark's shuffle may
    deliver them in another order."""
    from pyspark.sql import functions as F

    # Spark cannot hash maps; rows that differ only in maps may be in either order.
    names = [field.name for field in schema if "map<" not in str(field.type)]
    return F.xxhash64(*(F.col(f"`{name.replace('`', '``')}`") for name in names)) if names else F.lit(0).cast("bigint")


def can_tie(schema: pa.Schema) -> bool:
    """Whether `arrow_tie` gives what `native_tie` does."""

    def can_hash(kind: pa.DataType) -> bool:
        if pa.types.is_struct(kind):
            return all(can_hash(field.type) for field in kind)
        return can_hash(kind.value_type) if pa.types.is_list(kind) else hashable(kind)

    return all(can_hash(field.type) for field in schema if "map<" not in str(field.type))


def arrow_tie(schema: pa.Schema, rows: pa.Table) -> Int64Array:
    """`native_tie` without Spark."""
    columns = [whole(rows.column(field.name)) for field in schema if "map<" not in str(field.type)]
    return hash_columns(columns, rows.num_rows) if columns else np.zeros(rows.num_rows, np.int64)


def arrow_hashes(keys: Sequence[pa.ChunkedArray], count: int) -> tuple[Int64Array, Int64Array]:
    """`group` and `check`: Spark's hashes if all types are `hashable`, else our own."""
    if all(hashable(key.type) for key in keys):
        return identify_keys([whole(key) for key in keys], count)
    columns = list(keys)
    return key_hashes(columns, count, "group"), key_hashes(columns, count, "check")


def _array(column: object) -> pa.Array:
    return pa.array(column) if isinstance(column, np.ndarray) else column
