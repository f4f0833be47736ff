"""A changing table: a frame of inserts (`record.change` = "insert") and deletes ("delete").

It has a mark on its `record`, which survives select, where and rename. A changed row is a delete of the old row
and an insert of the new one: so Spark's filters, projections and unions work between operators as on tables. A row may
be in it several times; a delete removes one of them.

In a batch all deletes come before the inserts, also if the old and the new row of a key come from
two buckets of a stage: the `partition` of a delete is -1 - bucket, and sinks order by partition and offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.log.record import CHANGING_MARK, RECORD_MARK, is_origin
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.frame_columns import Shown, record_field, select_columns, transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "CHANGING_MARK",
    "TableSource",
    "check_hashable",
    "is_changing",
    "row_columns",
    "show_changes",
    "table_source",
]

_RECORD = pa.field("record", WATERMARKED_RECORD, metadata={**RECORD_MARK, **CHANGING_MARK})


@dataclass(frozen=True)
class TableSource:
    """The input rows of `table`: every version of each key, while its result has only the newest."""

    # None if they do not tell which of them are deletes.
    rows: DataFrame | None
    key: tuple[str, ...]
    # The columns of its order; an expression has a column of its own that `rows` lack.
    order: tuple[str, ...] = ()
    # As the user wrote it.
    order_by: str | list[str] | None = None


def is_changing(schema: pa.Schema) -> bool:
    """Whether rows of this schema are those of a changing table."""
    record = record_field(schema)
    return record is not None and any(name in (record.metadata or {}) for name in CHANGING_MARK)


def table_source(rows: DataFrame) -> TableSource | None:
    """The input of `table`, if this frame is its result; else None."""
    found = getattr(rows, "__dict__", {}).get("_mainstem_table")
    return found if isinstance(found, TableSource) else None


def row_columns(schema: pa.Schema) -> list[pa.Field]:
    """The columns of a row, without `record` and `origin`."""
    record = record_field(schema)
    return [field for field in schema if (record is None or field.name != record.name) and not is_origin(field)]


def check_hashable(fields: Sequence[pa.Field], operator: str) -> None:
    """Raise if rows cannot be compared by these columns."""
    for field in fields:
        if "map<" in str(field.type):
            raise Invalid(
                f'{operator} cannot compare rows by the map "{field.name}"',
                detail="Maps with the same entries in a different order would be different rows.",
                hint=f'Leave it out, or convert it to a sorted list: F.array_sort(F.map_entries("{field.name}")).',
            )


def show_changes(rows: DataFrame, columns: Sequence[Shown | str]) -> DataFrame:
    """The output of a stage as a changing table, with these columns."""
    deletes_first = transform(rows, _number_deletes, _number_deletes_arrow)
    return select_columns(deletes_first, [*columns, Shown("record", _RECORD)])


def _number_deletes(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    record = F.col("record")
    partition = F.when(record["change"] == "delete", -1 - record["partition"]).otherwise(record["partition"])
    # A struct of its own: the tasks of a stage compute it themselves, and `withField` they do not.
    names = rows.select("record.*").columns
    fields = {name: record[name] for name in names} | {"partition": partition.cast("int")}
    return rows.withColumn("record", F.struct(*(field.alias(name) for name, field in fields.items())))


def _number_deletes_arrow(rows: pa.Table) -> pa.Table:
    if not rows.num_rows:
        return rows
    record = whole(rows.column("record"))
    partition = record.field("partition")
    deleted = pc.equal(record.field("change"), "delete")
    moved = pc.if_else(deleted, pc.subtract(pa.scalar(-1, pa.int32()), partition), partition)
    fields = [moved if field.name == "partition" else record.field(field.name) for field in record.type]
    place = rows.schema.get_field_index("record")
    return rows.set_column(
        place, rows.schema.field(place), pa.StructArray.from_arrays(fields, fields=list(record.type))
    )
