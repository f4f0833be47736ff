"""JoinSide: converts the rows of one side of a join to the input of its engine, with Spark and over Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.watermark import NO_TIME
from mainstem.operators.joins.join_results import INPUT_COLUMNS
from mainstem.operators.joins.join_terms import LEFT
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.frame_columns import record_field
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.windows.window_time import RowTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["JoinSide"]

# The number of groups for rows without a key.
UNKEYED_GROUPS = 16


@dataclass(frozen=True)
class JoinSide:
    """`schema`: of the frame; `side`: LEFT or RIGHT; `other`: the type of the other side's rows."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "tie"

    schema: pa.Schema
    on: tuple[str, ...]
    time: RowTime | None
    side: int
    other: pa.DataType = pa.null()  # noqa: RUF009 - a value
    # Whether a delete without a time has the time of its append.
    dated: bool = False

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that are joined: all but `record`."""
        record = record_field(self.schema)
        return [field for field in self.schema if record is None or field.name != record.name]

    @property
    def row_type(self) -> pa.DataType:
        return pa.struct([pa.field(field.name, field.type) for field in self.fields])

    @property
    def lineage(self) -> dict[str, Any]:
        """Its columns, and the path of its time with the microseconds subtracted from it."""
        record = record_field(self.schema)
        return {
            "on": list(self.on),
            "row": [field.name for field in self.fields],
            "time": None if self.time is None else list(self.time.path),
            "less": 0 if self.time is None else self.time.less,
            "record": None if record is None else record.name,
            "dated": self.dated,
        }

    @property
    def watermarked(self) -> bool:
        """Whether rows have watermarks of their own."""
        return self._keyed_rows.watermarked

    @property
    def placed(self) -> bool:
        """Whether rows have a position in the log."""
        return record_field(self.schema) is not None

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the groups that `native` does."""
        return self.placed and all(hashable(self.schema.field(name).type) for name in self.on)

    @property
    def _keyed_rows(self) -> KeyedRows:
        return KeyedRows(self.schema, self.on)

    @property
    def _columns(self) -> tuple[str, str]:
        """The column of this side's rows, and that of the other's."""
        return ("left", "right") if self.side == LEFT else ("right", "left")

    def native(self, frame: DataFrame) -> DataFrame:
        """With Spark, row by row."""
        from pyspark.sql import functions as F

        from mainstem.spark.spark_types import spark_schema

        keyed = F.lit(True)
        for place in range(len(self.on)):
            keyed = keyed & F.col(f"by_{place}").isNotNull()
        mine, other = self._columns
        row = F.struct(*[F.col("row")[field.name].alias(field.name) for field in self.fields])
        # Rows with a null key match nothing: they are spread over groups, else all would be in one.
        group = F.when(keyed, F.col("group")).otherwise(F.col("tie"))
        time = F.lit(None).cast("bigint")
        if self.time is not None:
            at = F.col("row")
            for part in self.time.path:
                at = at[part]
            time = F.unix_micros(at.cast("timestamp")) - F.lit(self.time.less)
        record = record_field(self.schema)
        deleted = F.lit(False) if record is None else F.col("row")[record.name]["change"].eqNullSafe(F.lit("delete"))
        if self.dated and record is not None:
            time = F.coalesce(time, F.when(deleted, F.unix_micros(F.col("row")[record.name]["appended_at"])))
        columns = {
            "taken_back": deleted,
            "time": F.coalesce(time, F.lit(NO_TIME)),
            "group": group, "keyed": keyed, "side": F.lit(self.side).cast("tinyint"), mine: row,
            other: F.lit(None).cast(spark_schema(pa.schema([("row", self.other)])).fields[0].dataType),
        }  # fmt: skip
        names = [*(at.name for at in INPUT_COLUMNS), "left", "right"]
        ready = self._keyed_rows.native(frame)
        return ready.select(*[columns.get(name, F.col(name)).alias(name) for name in names])

    def arrow(self, table: pa.Table) -> pa.Table:
        """Without Spark."""
        ready = self._keyed_rows.arrow(table)
        count = table.num_rows
        keyed = np.ones(count, np.bool_)
        for place in range(len(self.on)):
            keyed &= np.asarray(whole(ready.column(f"by_{place}")).is_valid())
        mine, other = self._columns
        row = pa.StructArray.from_arrays([whole(table.column(field.name)) for field in self.fields],
                                         fields=list(self.row_type))  # fmt: skip
        record = record_field(self.schema)
        changes = pa.nulls(count, pa.string()) if record is None else _changes(table.column(record.name))
        times = pa.nulls(count, pa.int64()) if self.time is None else self.time.arrow(table).column("time")
        if self.dated and record is not None and count:
            appended = pc.struct_field(whole(table.column(record.name)), ["appended_at"]).view(pa.int64())
            times = pc.if_else(
                pc.fill_null(pc.equal(changes, "delete"), False), pc.coalesce(whole(times), appended), whole(times)
            )
        places = [np.asarray(whole(ready.column(name))) for name in ("partition", "offset")]
        # Rows with a null key match nothing: they are spread over groups, else all would be in one.
        group = np.where(keyed, np.asarray(whole(ready.column("group"))), mix(*places) % UNKEYED_GROUPS)
        columns = {
            "group": pa.array(group),
            "time": pc.fill_null(times, NO_TIME),
            "taken_back": pc.fill_null(pc.equal(changes, "delete"), False),
            "keyed": pa.array(keyed), "side": pa.array(np.full(count, self.side, np.int8)), mine: row,
            other: pa.nulls(count, self.other),
        }  # fmt: skip
        names = [*(at.name for at in INPUT_COLUMNS), "left", "right"]
        arrays = [columns[name] if name in columns else ready.column(name) for name in names]
        return pa.table([whole(column) for column in arrays], names=names)


def _changes(record: pa.ChunkedArray) -> pa.Array:
    return pc.struct_field(whole(record), ["change"])
