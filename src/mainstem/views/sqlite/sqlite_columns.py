"""A view's columns as SQLite stores them, readable with any SQLite client.

    BOOLEAN                          INTEGER, 0 or 1
    TINYINT to BIGINT                INTEGER
    FLOAT, DOUBLE                    a real number; NaN, for which SQLite has none, is the text NaN
    DECIMAL(p, s)                    TEXT with all s digits after the point: exact
    STRING                           TEXT
    BINARY                           BLOB
    TIMESTAMP, TIMESTAMP_NTZ         INTEGER, microseconds since 1970 (UTC; without a zone: as if it were UTC)
    TIME                             INTEGER, microseconds since midnight
    DATE                             INTEGER, days since 1970
    STRUCT, ARRAY, MAP               TEXT: JSON, see nested_json.py

Times are numbers because a number is compared, sorted and read several times as fast as text, and is a third of its
size; the SQL view with the name of the view shows them as text. FLOAT and DOUBLE columns are declared without a type:
as REAL, SQLite would make 0.0 of -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.errors import InvalidRows
from mainstem.log.rows.column_types import NESTED, kind_of
from mainstem.log.rows.nested_json import from_json, to_json
from mainstem.log.rows.row_errors import format_value
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.names import quote_name

__all__ = ["arrow_column", "column_type", "python_row", "python_value", "shown_column", "stored_values"]

_NOT_A_NUMBER = "NaN"
# Kind -> the declared type of a column, and the Arrow type of its stored values; None: its own.
_STORED: dict[str, tuple[str, pa.DataType | None]] = {
    "boolean": ("INTEGER", pa.int8()),
    "integer": ("INTEGER", None),
    "floating": ("", pa.float64()),
    "decimal": ("TEXT", pa.string()),
    "string": ("TEXT", None),
    "binary": ("BLOB", None),
    "date": ("INTEGER", pa.int32()),
    "time": ("INTEGER", pa.int64()),
    "timestamp": ("INTEGER", pa.int64()),
    "timestamp_ntz": ("INTEGER", pa.int64()),
    **dict.fromkeys(NESTED, ("TEXT", None)),
}


def column_type(data_type: pa.DataType) -> str:
    """The declared type of a column."""
    return _STORED[kind_of(data_type)][0]


def stored_values(column: pa.Array) -> list[Any]:
    """The values of a column in SQLite's form.

    >>> stored_values(pa.array([1.5, float("nan"), None]))
    [1.5, 'NaN', None]
    """
    kind = kind_of(column.type)
    if kind in NESTED:
        return _to_list(to_json(column))
    form = _STORED[kind][1]
    values = _to_list(column if form is None else column.cast(form))
    if kind == "floating" and pc.any(pc.is_nan(column)).as_py():
        return [_NOT_A_NUMBER if value != value else value for value in values]  # noqa: PLR0124
    return values


def _to_list(column: pa.Array) -> list[Any]:
    if column.null_count == 0 and kinds.is_primitive(column.type):
        # Several times as fast as to_pylist, which creates a scalar for each value.
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def arrow_column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """The column that `stored_values` was given.

    >>> arrow_column([0, None], pa.timestamp("us")).to_pylist()
    [datetime.datetime(1970, 1, 1, 0, 0), None]
    """
    kind = kind_of(data_type)
    if kind in NESTED:
        return from_json(values, data_type)
    if kind == "floating" and _NOT_A_NUMBER in values:
        values = [float(value) if value == _NOT_A_NUMBER else value for value in values]
    form = _STORED[kind][1]
    return pa.array(values, data_type) if form is None else pa.array(values, form).cast(data_type)


def python_value(value: Any, data_type: pa.DataType) -> Any:
    """One stored value as a Python value: the same as through Arrow, which takes 20 times as long for a single one.

    >>> python_value(1, pa.bool_()), python_value(86_400_000_000, pa.timestamp("us"))
    (True, datetime.datetime(1970, 1, 2, 0, 0))
    """
    kind = kind_of(data_type)
    if value is None or kind in ("integer", "string", "binary") or (kind == "floating" and isinstance(value, float)):
        return value
    if kind == "boolean":
        return bool(value)
    return arrow_column([value], data_type)[0].as_py()


def python_row(values: Sequence[Any], schema: pa.Schema, *, view: str) -> dict[str, Any]:
    """The stored values of a row as Python values; raises `InvalidRows` if Python cannot represent one of them."""
    found = {}
    for field, value in zip(schema, values, strict=True):
        try:
            found[field.name] = python_value(value, field.type)
        except (ValueError, OverflowError) as error:
            raise InvalidRows(
                f'column "{field.name}" of the row in view "{view}" cannot be read by Python',
                detail=f"It is {type_to_ddl(field.type)} and stored as {format_value(value)}; an older Mainstem accepted it.",
                hint="Read it as Arrow: view.to_arrow(). A rebuild writes such rows to the rejected rows of the flow: "
                f"mainstem view rebuild {view}.",
                column=field.name,
            ) from error
    return found


def shown_column(field: pa.Field) -> str:
    """SQL that shows the column in a readable form: times as text, everything else as it is."""
    name = quote_name(field.name)
    if kinds.is_date(field.type):
        return f"date({name} * 86400, 'unixepoch') AS {name}"
    if kinds.is_time(field.type):
        return f"time({name} / 1000000, 'unixepoch') || printf('.%06d', {name} % 1000000) AS {name}"
    if kinds.is_timestamp(field.type):
        fraction = f"(({name} % 1000000) + 1000000) % 1000000"
        second = f"({name} - {fraction}) / 1000000"
        zone = "Z" if field.type.tz else ""
        return f"strftime('%Y-%m-%dT%H:%M:%S', {second}, 'unixepoch') || printf('.%06d{zone}', {fraction}) AS {name}"
    return name
