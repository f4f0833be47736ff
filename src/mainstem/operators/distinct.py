"""distinct: each row of a changing table once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.operators.stage.frame_columns import Shown, check_record, columns_of
from mainstem.operators.stage.stage import StageSpec, add_stage, remember
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.changing import check_hashable, row_columns, show_changes
from mainstem.operators.tables.distinct_engine import DistinctEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["distinct"]


def distinct(changes: DataFrame, *, name: str | None = None) -> DataFrame:
    """The distinct rows of a changing table, each once for as long as the table has it at least once.

    Two rows are equal if all columns except `record` are equal; null equals null. The state is a count for each
    distinct row.

    >>> from mainstem.testing import TestStream
    >>> visits = TestStream("page STRING").rows([{"page": "/"}, {"page": "/about"}]).rows([{"page": "/"}])
    >>> visits.run(distinct).changes
    [('insert', {'page': '/about'}), ('insert', {'page': '/'})]
    """
    spec, columns = remember("distinct", lambda: _plan(changes))
    return show_changes(add_stage(changes, spec, name=name), columns)


def _plan(changes: DataFrame) -> tuple[StageSpec, list[Shown]]:
    schema = columns_of(changes)
    check_record(schema, "distinct")
    fields = row_columns(schema)
    check_hashable(fields, "distinct")
    names = tuple(field.name for field in fields)
    rows = ChangedRows(schema, names, row=names)
    # No key columns: the row has them.
    engine = DistinctEngine(rows.row_type)
    spec = StageSpec(
        "distinct", engine, rows.native, rows.arrow, bounded_by="one count for each distinct row of the table",
        definition={"by": list(names)}, packed=rows.input_schema if rows.packable else None,
        lineage={"row": list(names)},
    )  # fmt: skip
    return spec, [Shown(f"row.{field.name}", field) for field in fields]
