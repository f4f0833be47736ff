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
from mainstem.log.rows.row_errors import shown
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.views.nested_json import from_json, is_nested, to_json

__all__ = ["arrow_column", "column_type", "python_row", "python_value", "quoted", "shown_column", "stored_values"]

_NOT_A_NUMBER = "NaN"
_AS_THEY_ARE = frozenset([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()])


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it is.

    >>> quoted("unit price")
    '"unit price"'
    """
    return '"' + name.replace('"', '""') + '"'


def column_type(data_type: pa.DataType) -> str:
    """What a column of this type is declared as."""
    if kinds.is_floating(data_type):
        return ""
    if kinds.is_binary(data_type):
        return "BLOB"
    if is_nested(data_type) or kinds.is_string(data_type) or kinds.is_decimal(data_type):
        return "TEXT"
    return "INTEGER"


def stored_values(column: pa.Array) -> list[Any]:
    """The values of a column as SQLite is given them.

    >>> stored_values(pa.array([1.5, float("nan"), None]))
    [1.5, 'NaN', None]
    """
    data_type = column.type
    if is_nested(data_type):
        return _listed(to_json(column))
    if kinds.is_floating(data_type):
        values = _listed(column.cast(pa.float64()))
        if pc.any(pc.is_nan(column)).as_py():
            return [_NOT_A_NUMBER if value != value else value for value in values]  # noqa: PLR0124
        return values
    if kinds.is_decimal(data_type):
        return _listed(column.cast(pa.string()))
    if kinds.is_boolean(data_type):
        return _listed(column.cast(pa.int8()))
    if kinds.is_date(data_type):
        return _listed(column.cast(pa.int32()))
    if kinds.is_temporal(data_type):
        return _listed(column.cast(pa.int64()))
    return _listed(column)


def _listed(column: pa.Array) -> list[Any]:
    if column.null_count == 0 and kinds.is_primitive(column.type):
        # Several times as fast as to_pylist, which makes a scalar of each value first.
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def arrow_column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """The column that `stored_values` was given.

    >>> arrow_column([0, None], pa.timestamp("us")).to_pylist()
    [datetime.datetime(1970, 1, 1, 0, 0), None]
    """
    if is_nested(data_type):
        return from_json(values, data_type)
    if kinds.is_floating(data_type):
        if _NOT_A_NUMBER in values:
            values = [float(value) if value == _NOT_A_NUMBER else value for value in values]
        return pa.array(values, pa.float64()).cast(data_type)
    if kinds.is_decimal(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    if kinds.is_boolean(data_type):
        return pa.array(values, pa.int8()).cast(data_type)
    if kinds.is_date(data_type):
        return pa.array(values, pa.int32()).cast(data_type)
    if kinds.is_temporal(data_type):
        return pa.array(values, pa.int64()).cast(data_type)
    return pa.array(values, data_type)


def python_value(value: Any, data_type: pa.DataType) -> Any:
    """One stored value as a row shows it: the same as through Arrow, which takes 20 times as long for a single one.

    >>> python_value(1, pa.bool_()), python_value(86_400_000_000, pa.timestamp("us"))
    (True, datetime.datetime(1970, 1, 2, 0, 0))
    """
    if value is None or data_type in _AS_THEY_ARE:
        return value
    if kinds.is_floating(data_type) and isinstance(value, float):
        return value
    if kinds.is_boolean(data_type):
        return bool(value)
    return arrow_column([value], data_type)[0].as_py()


def python_row(values: Sequence[Any], schema: pa.Schema, *, view: str) -> dict[str, Any]:
    """The stored values of a row as it is shown; raises `InvalidRows` if Python cannot read one of them."""
    found = {}
    for field, value in zip(schema, values, strict=True):
        try:
            found[field.name] = python_value(value, field.type)
        except (ValueError, OverflowError) as error:
            raise InvalidRows(
                f'column "{field.name}" of the row in view "{view}" cannot be read by Python',
                detail=f"It is {type_to_ddl(field.type)} and stored as {shown(value)}; an older Mainstem accepted it.",
                hint="Read it as Arrow: view.to_arrow(). A rebuild writes such rows to the rejected rows of the flow: "
                f"mainstem view rebuild {view}.",
                column=field.name,
            ) from error
    return found


def shown_column(field: pa.Field) -> str:
    """SQL that shows the column to a person: times as text, everything else as it is."""
    name = quoted(field.name)
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
