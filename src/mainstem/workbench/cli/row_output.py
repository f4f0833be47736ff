"""Prints rows: a table for people, JSON lines, CSV, or Arrow for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.errors import Invalid
from mainstem.log.rows.plain_values import Writer, cell_text, column_values, json_line, plain_writer
from mainstem.workbench.cli.terminal_table import Column, GrowingTable, show_note

__all__ = ["RowWriter", "row_writer", "write_rows"]


# Writers of rows.


class RowWriter(Protocol):
    """Writes batches of one schema, each flushed at once."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def row_writer(form: str, schema: pa.Schema) -> RowWriter:
    makers: dict[str, Callable[[pa.Schema], RowWriter]] = {
        "table": TableRows, "json": JsonRows, "csv": CsvRows, "arrow": ArrowRows
    }  # fmt: skip
    return makers[form](schema)


def write_rows(form: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, limit: int | None = None) -> None:
    """Write batches of a schema, at most `limit` rows in all."""
    writer = row_writer(form, schema)
    for batch in _limit(batches, limit):
        writer.write(batch)
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


class JsonRows:
    """One object per line."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
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
    """A table; of `record` it shows partition:offset, the change if it is not an insert, and the append time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        columns: list[Column] = []
        for field in schema:
            if _is_record(field):
                columns += [Column("record", style="dim", firm=True), Column("appended_at", style="dim", firm=True)]
            else:
                number = kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type)
                firm = number or kinds.is_temporal(field.type) or kinds.is_boolean(field.type)
                columns.append(Column(field.name, align="right" if number else "left", firm=bool(firm)))
        self._table = GrowingTable(columns)
        self._empty = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._empty &= not batch.num_rows
        columns: list[list[str]] = []
        for field, array in zip(self._schema, batch.columns, strict=True):
            if _is_record(field):
                records = array.to_pylist()
                columns.append([_place(record) for record in records])
                columns.append([f"{record['appended_at']:%Y-%m-%d %H:%M:%S}Z" for record in records])
            else:
                values = column_values(array, plain_writer(array.type))
                columns.append(["null" if value is None else cell_text(value) for value in values])
        self._table.add(list(zip(*columns, strict=True)))

    def close(self) -> None:
        """Says so if there were no rows."""
        if self._empty:
            show_note("no rows")


def _place(record: dict[str, Any]) -> str:
    change = "" if record["change"] == "insert" else f" {record['change']}"
    return f"{record['partition']}:{record['offset']}{change}"
