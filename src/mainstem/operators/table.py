"""table: the newest row of each key, as a changing table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.frame_columns import Shown, by_names, check_column, check_record, columns_of, record_field
from mainstem.operators.stage.keyed_rows import arrow_hashes, native_hashes, native_tie
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.stage.stage import StageSpec, add_stage, remember
from mainstem.operators.tables.changing import TableSource, check_hashable, row_columns, show_changes
from mainstem.operators.tables.table_engine import TableEngine, table_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["table"]


def table(
    rows: DataFrame, *, key: str | Sequence[str], order_by: str | None = None, name: str | None = None
) -> DataFrame:
    """The newest row of each key: a changing table, built from facts ("this customer's address is now ...").

    The newest row is the last in the log; `key` should then be the key of the topic, since there is no order between
    partitions. With the column `order_by` it is the row with the highest value, and of those the last in the log; a row
    that arrives out of order changes nothing. A delete (`topic.delete(...)`) removes its key; without a value of
    `order_by` it removes the current row when it arrives. A row equal to the current one changes nothing.

    When a row replaces another, the result has a delete of the old row, then an insert of the new one.

    >>> from mainstem.testing import TestStream
    >>> customers = TestStream("id INT, city STRING").rows([{"id": 1, "city": "Bonn"}]).rows([{"id": 1, "city": "Ulm"}])
    >>> customers.run(lambda rows: table(rows, key="id")).changes[1:]
    [('delete', {'id': 1, 'city': 'Bonn'}), ('insert', {'id': 1, 'city': 'Ulm'})]
    """
    spec, columns, names = remember("table", lambda: _plan(rows, key, order_by))
    shown = show_changes(add_stage(rows, spec, name=name), columns)
    # For `enrich`, which also needs older versions.
    shown.__dict__["_mainstem_table"] = TableSource(rows, names, order_by)
    return shown


def _plan(
    rows: DataFrame, key: str | Sequence[str], order_by: str | None
) -> tuple[StageSpec, list[Shown], tuple[str, ...]]:
    schema = columns_of(rows)
    names = by_names(key, schema, "table")
    if not names:
        raise Invalid("table has no key", detail="It keeps the newest row of each key.", hint='For example: key="id".')
    check_record(schema, "table")
    fields = row_columns(schema)
    check_hashable(fields, "table")
    order = None
    if order_by is not None:
        check_column(order_by, schema, "table")
        order = schema.field(order_by).type
        if pa.types.is_nested(order):
            raise Invalid(
                f'table cannot order rows by "{order_by}"',
                detail=f"It is {order}; rows can be ordered by a number, a text or a time.",
                hint="Name a column of such a type.",
            )
    plan = TableRows(schema, names, tuple(field.name for field in fields), order_by)
    by = f" by {order_by}" if order_by else ""
    spec = StageSpec(
        "table",
        TableEngine(plan.row_type, order),
        plan.native,
        plan.arrow,
        bounded_by=f"one row for each {', '.join(names)}{', deleted ones included' if order_by else ''}",
        definition={"key": list(names), "newest": f"the last in the log{by}"},
        parameters={"key": list(names), "order_by": order_by},
        packed=plan.input_schema if plan.packable else None,
    )
    return spec, [Shown(f"row.{field.name}", field) for field in fields], names


@dataclass(frozen=True)
class TableRows:
    """Converts facts to the input of the engine."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "tie"

    schema: pa.Schema
    key: tuple[str, ...]
    row: tuple[str, ...]
    order_by: str | None

    @property
    def row_type(self) -> pa.DataType:
        return pa.struct([pa.field(name, self.schema.field(name).type) for name in self.row])

    @property
    def input_schema(self) -> pa.Schema:
        order = None if self.order_by is None else self.schema.field(self.order_by).type
        return table_input(self.row_type, order)

    def native(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        columns = {name: F.col("`" + name.replace("`", "``") + "`") for name in self.schema.names}
        found = record_field(self.schema)
        record = None if found is None else columns[found.name]
        places: list[Any] = [F.lit(0), F.monotonically_increasing_id()]
        deleted = F.lit(False)
        if record is not None:
            places = [record["partition"], record["offset"]]
            deleted = F.coalesce(record["change"] == "delete", F.lit(False))
        return frame.select(
            *native_hashes(self.schema, self.key),
            deleted.alias("deleted"),
            *([] if self.order_by is None else [columns[self.order_by].alias("order")]),
            places[0].alias("partition"),
            places[1].alias("offset"),
            native_tie(self.schema).alias("tie"),
            F.struct(*(columns[name].alias(name) for name in self.row)).alias("row"),
        )

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the same groups as `native`."""
        return record_field(self.schema) is not None and all(
            hashable(self.schema.field(name).type) for name in self.key
        )

    def arrow(self, table: pa.Table) -> pa.Table:
        count = table.num_rows
        keys, row = ([table.column(name) for name in names] for names in (self.key, self.row))
        found = record_field(self.schema)
        record = None if found is None or not count else whole(table.column(found.name))
        change = pa.nulls(count, pa.string()) if record is None else record.field("change")
        columns = [
            *arrow_hashes(keys, count),
            pc.fill_null(pc.equal(change, "delete"), False),
            *([] if self.order_by is None else [table.column(self.order_by)]),
            np.zeros(count, np.int32) if record is None else record.field("partition"),
            np.arange(count) if record is None else record.field("offset"),
            # Here rows are of one topic, whose positions are unique.
            np.zeros(count, np.int64),
            pa.StructArray.from_arrays([whole(column) for column in row], fields=list(self.row_type)),
        ]
        arrays = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
        schema = self.input_schema
        return pa.Table.from_arrays(arrays, names=schema.names).cast(schema)
