"""Prints rows: a table for people, JSON lines, CSV, or Arrow for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.clock import Clock, SystemClock, as_datetime
from mainstem.errors import Invalid
from mainstem.log.rows.column_types import is_nested, is_window, kind_of
from mainstem.log.rows.plain_values import Writer, cell_text, column_values, json_line, plain_writer
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.workbench.cli.terminal_table import ALL_COLUMNS, Column, GrowingTable, is_terminal, show_note
from mainstem.workbench.cli.window_text import window_text

__all__ = [
    "RowWriter",
    "TableRows",
    "column_of",
    "distinct_names",
    "row_writer",
    "shown_cells",
    "today_of",
    "write_rows",
]


# Writers of rows.


class RowWriter(Protocol):
    """Writes batches of one schema, each flushed at once."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def row_writer(form: str, schema: pa.Schema, *, all_columns: bool = False) -> RowWriter:
    if form == "table":
        return TableRows(schema, all_columns=all_columns)
    makers: dict[str, Callable[[pa.Schema], RowWriter]] = {"json": JsonRows, "csv": CsvRows, "arrow": ArrowRows}
    return makers[form](schema)


def write_rows(
    form: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    limit: int | None = None,
    all_columns: bool = False,
) -> None:
    """Write batches of a schema, at most `limit` rows in all."""
    writer = row_writer(form, schema, all_columns=all_columns)
    try:
        for batch in _limit(batches, limit):
            writer.write(batch)
    except KeyboardInterrupt:
        # The end of --follow: columns that were not shown are named then too.
        if isinstance(writer, TableRows):
            writer.close()
        raise
    # Not after an error: then the output must not look complete.
    writer.close()


def _limit(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Batches with at most `limit` rows in all; ends with the last of them, without waiting for the next batch."""
    if limit is None:
        yield from batches
        return
    left = limit
    for batch in batches:
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names of columns for an object, which has each name once.

    >>> distinct_names(["a", "b", "a", "a_2", "a"])
    ['a', 'b', 'a_2', 'a_2_2', 'a_3']
    """
    found: list[str] = []
    for name in names:
        number, own = 1, name
        while own in found:
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


class JsonRows:
    """One object per line."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = distinct_names(schema.names)
        self._writers: list[Writer] = [plain_writer(field.type) for field in schema]

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [column_values(column, write) for column, write in zip(batch.columns, self._writers, strict=True)]
        lines = [json_line(dict(zip(self._names, row, strict=True))) for row in zip(*columns, strict=True)]
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        """Nothing to do."""


class CsvRows:
    """A line of names, then one line per row; the fields of `record` are columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = [name for field in schema for name in _spread_names(field)]
        self._begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._begin()
        columns = [
            column_values(column, plain_writer(column.type))
            for field, array in zip(self._schema, batch.columns, strict=True)
            for column in (array.flatten() if _is_record(field) else [array])
        ]
        sys.stdout.write("".join(_csv_line(row) for row in zip(*columns, strict=True)))
        sys.stdout.flush()

    def _begin(self) -> None:
        if not self._begun:
            sys.stdout.write(_csv_line(self._names))
            self._begun = True

    def close(self) -> None:
        self._begin()


def _spread_names(field: pa.Field) -> list[str]:
    return [f"record.{inner.name}" for inner in field.type] if _is_record(field) else [field.name]


def _is_record(field: pa.Field) -> bool:
    return field.name == "record" and bool(kinds.is_struct(field.type))


def _csv_line(values: Sequence[Any]) -> str:
    return ",".join(map(_csv_cell, values)) + "\n"


def _csv_cell(value: Any) -> str:
    text = cell_text(value)
    # An empty cell is null, so an empty string is quoted.
    if text == "":
        return "" if value is None else '""'
    if any(mark in text for mark in '",\r\n') or text[0] == " " or text[-1] == " ":
        return '"' + text.replace('"', '""') + '"'
    return text


class ArrowRows:
    """An Arrow stream."""

    def __init__(self, schema: pa.Schema) -> None:
        if sys.stdout.isatty():
            raise Invalid(
                "Arrow would be bytes on the terminal",
                detail="The format is for programs.",
                hint="Send it to a file or a program: ... --format arrow > rows.arrow",
            )
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        self._writer.close()
        sys.stdout.buffer.flush()


class TableRows:
    """A table; of `record` it shows partition:offset, the change if it is not an insert, and the append time.

    On a terminal types stand under the titles, a window is shown as 12:20-12:21, `pane` is left out, and so are columns
    that do not fit; they are named at the end. With `all_columns`, and in a pipe, everything is shown.
    """

    def __init__(self, schema: pa.Schema, *, all_columns: bool = False, clock: Clock | None = None) -> None:
        self._today = today_of(clock or SystemClock()) if is_terminal() else None
        hidden = {
            field.name for field in schema if _is_pane(field) and is_terminal() and not all_columns and len(schema) > 1
        }
        self._hidden = [name for name in schema.names if name in hidden]
        self._shown = [at for at, name in enumerate(schema.names) if name not in hidden]
        self._schema = schema
        columns: list[Column] = []
        for at in self._shown:
            field = schema.field(at)
            if _is_record(field):
                columns += [
                    Column("record", style="dim", firm=True, spared=1),
                    Column("appended_at", style="dim", firm=True, spared=2),
                ]
            else:
                columns.append(column_of(field))
        self._table = GrowingTable(columns, complete=all_columns)
        self._empty = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._empty &= not batch.num_rows
        columns: list[list[str]] = []
        for at in self._shown:
            field, array = self._schema.field(at), batch.column(at)
            if _is_record(field):
                records = array.to_pylist()
                columns.append([_place(record) for record in records])
                columns.append([f"{record['appended_at']:%Y-%m-%d %H:%M:%S}Z" for record in records])
            else:
                columns.append(shown_cells(array, self._today))
        self._table.add(list(zip(*columns, strict=True)))

    def close(self) -> None:
        """Says so if there were no rows, and which columns are not shown."""
        if self._empty:
            show_note("no rows")
        else:
            self._table.close(ALL_COLUMNS, also=self._hidden)


def column_of(field: pa.Field) -> Column:
    """The column of a table for a column of rows: numbers on the right; numbers, times and windows are not truncated."""
    number = kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type)
    firm = number or kinds.is_temporal(field.type) or kinds.is_boolean(field.type) or is_window(field.type)
    align: Literal["left", "right"] = "right" if number else "left"
    return Column(field.name, align=align, firm=bool(firm), type=_type_text(field.type))


def today_of(clock: Clock) -> date:
    """The date in UTC."""
    return as_datetime(clock.now()).date()


def shown_cells(values: pa.Array, today: date | None) -> list[str]:
    """The cells of a column. With a date they are for a terminal: a window is shown as people write it."""
    if today is not None and is_window(values.type):
        return ["null" if value is None else window_text(value, today=today) for value in values.to_pylist()]
    plain = column_values(values, plain_writer(values.type))
    return ["null" if value is None else cell_text(value) for value in plain]


def _type_text(data_type: pa.DataType) -> str:
    if is_window(data_type):
        return "window"
    if is_nested(data_type):
        return kind_of(data_type)
    try:
        return type_to_ddl(data_type).lower()
    except KeyError:
        # DuckDB has types that topics have not.
        return str(data_type)


def _is_pane(field: pa.Field) -> bool:
    return field.name == "pane" and bool(kinds.is_struct(field.type))


def _place(record: dict[str, Any]) -> str:
    change = "" if record["change"] == "insert" else f" {record['change']}"
    return f"{record['partition']}:{record['offset']}{change}"
