"""What an operator needs of its rows: their columns, which of them is the event time, which make a key, and steps that
compute columns.

Rows are a DataFrame. Another class of rows registers its own `columns_of`, `transform_with`, `add_stage`, `read_aggregates`,
`read_order` and `read_values`: operators use nothing else of their rows, except `isStreaming` and `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Invalid, did_you_mean
from mainstem.log.record import CHANGING_MARK, CORRECTED_MARK, EVENT_TIME_MARK, RECORD_MARK
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "WINDOW_MARK",
    "Shown",
    "Value",
    "add_columns",
    "by_names",
    "check_column",
    "check_lasting",
    "check_record",
    "check_uncorrected",
    "columns_of",
    "event_time_of",
    "quote_name",
    "record_field",
    "select_columns",
    "shown_results",
    "transform",
    "transform_with",
]


# A mark of the column `window` of `windowed`: "final" if each window is emitted once, else its `results`.
WINDOW_MARK = "mainstem.results"


@dataclass(frozen=True)
class Shown:
    """A column as a user sees it, and where it comes from: a column, or a field of a struct ("row.amount")."""

    source: str
    field: pa.Field


# An expression over the columns of rows: a Spark column, or SQL for rows without Spark.
Value: TypeAlias = "Column | str"


@singledispatch
def columns_of(rows: DataFrame) -> pa.Schema:
    """The columns with their marks."""
    return arrow_schema(rows.schema)


@singledispatch
def transform_with(
    rows: DataFrame,
    values: Mapping[str, Value],
    native: Callable[[DataFrame, Mapping[str, Column]], DataFrame],
    arrow: Callable[[pa.Table, pa.Table], pa.Table],
) -> DataFrame:
    """The rows after a stateless step, which is implemented twice: for Spark, and over Arrow for rows without Spark.

    Each gets the rows and the values: `native` as columns to select, `arrow` computed, as a table of these columns.
    """
    return native(rows, cast("Mapping[str, Column]", values))


def transform(
    rows: DataFrame, native: Callable[[DataFrame], DataFrame], arrow: Callable[[pa.Table], pa.Table]
) -> DataFrame:
    """The same for a step that needs no values."""
    return transform_with(rows, {}, lambda frame, _: native(frame), lambda table, _: arrow(table))


def record_field(schema: pa.Schema) -> pa.Field | None:
    """The column with the position of a row in the log; None if rows are not from a topic."""
    return next((field for field in schema if _marked(field, RECORD_MARK) and pa.types.is_struct(field.type)), None)


def check_record(schema: pa.Schema, operator: str) -> None:
    """Raise if the rows have a column `record` that is not from a topic."""
    if "record" in schema.names and not _marked(schema.field("record"), RECORD_MARK):
        raise Invalid(
            f'{operator} cannot take rows with a column "record" that is not from a topic',
            detail="Its result has its own `record`, with the position of a row in the log.",
            hint='Give yours another name: rows.withColumnRenamed("record", ...); or read the topic with read() or stream().',
        )


def check_lasting(rows: DataFrame, schema: pa.Schema, operator: str) -> None:
    """Raise if rows of a stream retract or replace earlier ones: the operator would count these as new rows."""
    check_uncorrected(rows, schema, operator)
    if rows.isStreaming and shown_results(schema) in ("accumulate", "retract"):
        raise Invalid(
            f"{operator} cannot take windows that are emitted more than once",
            detail='An early or late result of windowed replaces the one before: with results="retract" by rows that retract '
            'it, with "accumulate" by rows with the new total. Each of these would be counted as a new row.',
            hint='Leave early= and lateness= out of windowed, or use results="discard"; or make a table of the windows: '
            'table(windows, key=[..., "window"]).',
        )


def shown_results(schema: pa.Schema) -> str:
    """The value of `WINDOW_MARK` if the rows are windows; else empty."""
    marks = (schema.field("window").metadata or {}) if schema.names.count("window") == 1 else {}
    return str(marks.get(WINDOW_MARK.encode(), b"").decode())


def check_uncorrected(rows: DataFrame, schema: pa.Schema, operator: str) -> None:
    """The same for changing tables and for corrections of joins and lookups; not for windows."""
    record = record_field(schema)
    if not rows.isStreaming or record is None:
        return
    if _marked(record, CHANGING_MARK):
        raise Invalid(
            f"{operator} cannot take a changing table",
            detail="When a row changes, the old row is deleted and the new one inserted; both would be counted as rows.",
            hint="Join the two tables: join(table(...), table(...), on=...); or give it the rows that the table is built from."
            if operator == "enrich"
            else "Use aggregate(rows, by=..., aggregates=...), with the window as a column of by=; or give it the rows that the "
            "table is built from.",
        )
    if _marked(record, CORRECTED_MARK):
        raise Invalid(
            f"{operator} cannot take rows that retract earlier ones",
            detail="A join with lateness= may retract its unmatched rows, and enrich its results with "
            'corrections="re-emit". Retractions would be counted as new rows.',
            hint='Leave lateness= out of the join, or use how="inner"; corrections="ignore" in enrich.',
        )


def event_time_of(schema: pa.Schema, operator: str, *, named: str = "on") -> str:
    """The name of the marked event-time column; `named`: the operator's parameter for another column."""
    marked = [field.name for field in schema if _marked(field, EVENT_TIME_MARK)]
    if len(marked) != 1:
        raise Invalid(
            f"{operator} needs one event time, and {len(marked) or 'no'} columns are marked as event time",
            detail=f"The columns are: {', '.join(schema.names)}. A topic marks the column it was created with.",
            hint=f'Create the topic with event_time="...", or name the column: {named}="...".',
        )
    return str(marked[0])


def by_names(by: str | Sequence[str], schema: pa.Schema, operator: str) -> tuple[str, ...]:
    """The columns of a key; raises if one is missing."""
    names = (by,) if isinstance(by, str) else tuple(by)
    for name in names:
        check_column(name, schema, operator)
        if pa.types.is_map(schema.field(name).type):
            raise Invalid(
                f'{operator} cannot use the map "{name}" as a key',
                detail="Maps with the same entries in a different order would be different keys.",
                hint="Use one of its values, or its sorted entries.",
            )
    if len(set(names)) != len(names):
        raise Invalid(f"the key of {operator} names a column twice", detail=f"It is: {', '.join(names)}.")
    return names


def check_column(name: str, schema: pa.Schema, operator: str) -> None:
    """Raise if there is no such column, or two."""
    if schema.names.count(name) != 1:
        raise Invalid(
            f'{operator} uses the column "{name}", which the rows {"have twice" if name in schema.names else "lack"}',
            detail=f"The columns are: {', '.join(schema.names)}.",
            hint=did_you_mean(name, schema.names) or "Name one of these.",
        )


def add_columns(table: pa.Table, columns: pa.Table) -> pa.Table:
    """The table with these columns after its own."""
    for field, column in zip(columns.schema, columns.columns, strict=True):
        table = table.append_column(field, column)
    return table


def select_columns(rows: DataFrame, columns: Sequence[Shown | str]) -> DataFrame:
    """The rows with these columns, under these names and with these marks; a plain name is a column that stays unchanged.

    Only a select.
    """
    return transform(rows, lambda frame: _select(frame, columns), lambda table: _select_arrow(table, columns))


def _select(frame: DataFrame, columns: Sequence[Shown | str]) -> DataFrame:
    from pyspark.sql import functions as F

    def column(shown: Shown | str) -> Column:
        if isinstance(shown, str):
            return F.col(quote_name(shown))
        first, _, rest = shown.source.partition(".")
        path = f"{first}.{quote_name(rest)}" if rest else quote_name(first)
        return F.col(path).alias(shown.field.name, **_marks(shown.field))

    return frame.select([column(shown) for shown in columns])


def _select_arrow(table: pa.Table, columns: Sequence[Shown | str]) -> pa.Table:
    def column(shown: Shown | str) -> pa.ChunkedArray:
        first, _, rest = (shown, "", "") if isinstance(shown, str) else shown.source.partition(".")
        return pc.struct_field(table.column(first), [rest]) if rest else table.column(first)

    fields = [table.schema.field(shown) if isinstance(shown, str) else shown.field for shown in columns]
    found = [column(shown) for shown in columns]
    return pa.Table.from_arrays(found, names=[field.name for field in fields]).cast(pa.schema(fields))


def quote_name(name: str) -> str:
    """A column name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _marks(field: pa.Field) -> dict[str, Any]:
    marks = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
    return {"metadata": marks} if marks else {}


def _marked(field: pa.Field, mark: dict[bytes, bytes]) -> bool:
    return any(name in (field.metadata or {}) for name in mark)
