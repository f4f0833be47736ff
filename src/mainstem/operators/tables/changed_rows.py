"""ChangedRows: the input rows of an engine over a changing table, each with its weight: 1 for an insert, -1 for a delete.

    group      int64      hash of the key
    check      int64      a second one: both together identify the key
    weight     int64      1 or -1; null for an update, which does not have the row that it replaces
    h_0 ...    int64      hashes of several columns each, for the engine
    by_0 ...              the key's columns
    ...                   columns that are passed through
    row        struct     the row, if the engine emits rows

An engine over them does not depend on their order. Computed with Spark, or over Arrow without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.engine import Int64Array
from mainstem.operators.stage.frame_columns import quote_name, record_field
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.keyed_rows import arrow_hashes, native_hashes
from mainstem.operators.stage.spark_hashes import hash_columns, hashable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ChangedRows"]


@dataclass(frozen=True)
class ChangedRows:
    """Converts rows of this schema, with Spark and over Arrow."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "any order"

    schema: pa.Schema
    by: tuple[str, ...]
    # Which columns go into h_0, h_1, ...
    hashed: tuple[tuple[str, ...], ...] = ()
    # Columns that are passed through.
    kept: tuple[str, ...] = ()
    # The columns of `row`; empty if the engine emits no rows.
    row: tuple[str, ...] = ()

    @property
    def by_fields(self) -> tuple[pa.Field, ...]:
        """The key's columns under the engine's names."""
        return tuple(pa.field(f"by_{place}", self.schema.field(name).type) for place, name in enumerate(self.by))

    @property
    def row_type(self) -> pa.DataType:
        """All columns of a row."""
        return pa.struct([pa.field(name, self.schema.field(name).type) for name in self.row])

    @property
    def input_schema(self) -> pa.Schema:
        """The columns of the converted rows."""
        numbers = ["group", "check", "weight", *(f"h_{place}" for place in range(len(self.hashed)))]
        kept = [pa.field(name, self.schema.field(name).type) for name in self.kept]
        row = [pa.field("row", self.row_type)] if self.row else []
        return pa.schema([*((name, pa.int64()) for name in numbers), *self.by_fields, *kept, *row])

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the groups and hashes that `native` does."""
        names = {*self.by, *(name for names in self.hashed for name in names)}
        return all(hashable(self.schema.field(name).type) for name in names)

    def native(self, frame: DataFrame) -> DataFrame:
        """With Spark."""
        from pyspark.sql import functions as F

        columns = {name: F.col(quote_name(name)) for name in self.schema.names}
        hashes = [F.xxhash64(*native_hashes(self.schema, names)) for names in self.hashed]
        row = [F.struct(*(columns[name].alias(name) for name in self.row)).alias("row")] if self.row else []
        return frame.select(
            *native_hashes(self.schema, self.by),
            self._native_weight(columns).alias("weight"),
            *(found.alias(f"h_{place}") for place, found in enumerate(hashes)),
            *(columns[name].alias(f"by_{place}") for place, name in enumerate(self.by)),
            *(columns[name] for name in self.kept),
            *row,
        )

    def _native_weight(self, columns: dict[str, Column]) -> Column:
        from pyspark.sql import functions as F

        found = record_field(self.schema)
        if found is None:
            return F.lit(1).cast("bigint")
        change = columns[found.name]["change"]
        put = F.when(change.isNull() | (change == "insert"), F.lit(1))
        return put.when(change == "delete", F.lit(-1)).cast("bigint")

    def arrow(self, table: pa.Table) -> pa.Table:
        """Without Spark."""
        count = table.num_rows
        keys = [table.column(name) for name in self.by]
        row = [whole(table.column(name)) for name in self.row]
        columns = [
            *map(pa.array, arrow_hashes(keys, count)),
            self._arrow_weight(table),
            *(pa.array(self._arrow_hash(table, names)) for names in self.hashed),
            *keys,
            *(table.column(name) for name in self.kept),
            *([pa.StructArray.from_arrays(row, fields=list(self.row_type))] if self.row else []),
        ]
        schema = self.input_schema
        return pa.Table.from_arrays(columns, names=schema.names).cast(schema)

    def _arrow_hash(self, table: pa.Table, names: tuple[str, ...]) -> Int64Array:
        columns, count = [table.column(name) for name in names], table.num_rows
        hashes = arrow_hashes(columns, count)
        return hash_columns([pa.array(it) for it in hashes], count) if self.packable else mix(*hashes)

    def _arrow_weight(self, table: pa.Table) -> pa.Array:
        record = record_field(self.schema)
        if record is None or not table.num_rows:
            return pa.array(np.ones(table.num_rows, np.int64))
        change = pc.fill_null(whole(table.column(record.name)).field("change"), "insert")
        taken = pc.if_else(pc.equal(change, "delete"), -1, pa.scalar(None, pa.int64()))
        return pc.if_else(pc.equal(change, "insert"), 1, taken).cast(pa.int64())
