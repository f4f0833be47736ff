"""Rows as JSON for a page: BIGINT and DECIMAL as text, long texts cut, columns with their types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.rows.column_types import kind_of
from mainstem.log.rows.plain_values import Writer, column_values, plain_writer
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["CELL_CHARACTERS_MAX", "cell_writer", "column_facts", "json_rows"]

# A longer text is cut: nobody reads it in a table, and one row must not fill a stream.
CELL_CHARACTERS_MAX = 2_000
CUT = "…"


def cell_writer(data_type: pa.DataType) -> Writer:
    """A function that converts a Python value of that type to a JSON value.

    >>> cell_writer(pa.struct([("n", pa.int64()), ("m", pa.int32())]))({"n": 7, "m": 7})
    {'n': '7', 'm': 7}
    """
    inner = _writer(data_type)
    return lambda value: None if value is None else inner(value)


def _writer(data_type: pa.DataType) -> Writer:
    kind = kind_of(data_type)
    if kind == "integer":
        return str if data_type.bit_width == 64 else lambda value: value
    if kind == "struct":
        fields = {field.name: cell_writer(field.type) for field in data_type}
        return lambda value: {name: write(value[name]) for name, write in fields.items()}
    if kind == "list":
        element = cell_writer(data_type.value_type)
        return lambda value: [element(item) for item in value]
    if kind == "map":
        key, item = cell_writer(data_type.key_type), cell_writer(data_type.item_type)
        return lambda value: [[key(name), item(inner)] for name, inner in value]
    plain = plain_writer(data_type)
    return lambda value: cut_text(plain(value))


def cut_text(value: Any) -> Any:
    """A long text ends with an ellipsis and its length.

    >>> cut_text("x" * 3_000)[-22:]
    'xx… (3,000 characters)'
    """
    if isinstance(value, str) and len(value) > CELL_CHARACTERS_MAX:
        return f"{value[:CELL_CHARACTERS_MAX]}{CUT} ({len(value):,} characters)"
    return value


def column_facts(schema: pa.Schema) -> list[dict[str, str]]:
    """The name and the type of each column."""
    return [{"name": field.name, "type": _type_text(field.type)} for field in schema]


def _type_text(data_type: pa.DataType) -> str:
    try:
        return type_to_ddl(data_type)
    except KeyError:
        # DuckDB has types that topics have not.
        return str(data_type).upper()


def json_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Each row as an object."""
    names = rows.schema.names
    columns = [
        _column(column, cell_writer(field.type)) for column, field in zip(rows.columns, rows.schema, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(column: pa.Array | pa.ChunkedArray, write: Writer) -> list[Any]:
    if kinds.is_null(column.type):
        return [None] * len(column)
    return column_values(column, write)
