"""A view's columns as PostgreSQL stores them, and as they are sent: whole columns at a time, exact to the bit.

    BOOLEAN                          boolean
    TINYINT, SMALLINT; INT; BIGINT   smallint; integer; bigint
    FLOAT, DOUBLE                    real, double precision
    DECIMAL(p, s)                    numeric(p, s)
    STRING                           text, compared byte by byte (COLLATE "C"), as Spark and SQLite do
    BINARY                           bytea
    TIMESTAMP, TIMESTAMP_NTZ         timestamp with time zone, timestamp
    TIME, DATE                       time, date
    STRUCT, ARRAY, MAP               text: JSON, see nested_json.py; the plain view shows it as json

Rows that PostgreSQL cannot store are rejected: text with U+0000, moments before 4714 BC, days after the year 5874897,
keys of more than 2,600 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.log.rows.column_types import is_nested
from mainstem.log.rows.nested_json import to_json
from mainstem.names import quote_name

__all__ = [
    "EPOCH_DAYS",
    "EPOCH_US",
    "cast_sent",
    "comparable",
    "copy_rows",
    "encode_column",
    "postgres_type",
    "select_column",
    "shown_column",
    "unfit",
    "wire_type",
]

# PostgreSQL counts from the year 2000.
EPOCH_DAYS = 10_957
EPOCH_US = EPOCH_DAYS * 86_400_000_000
_FIRST_US = -210_866_803_200_000_000
_DAYS = (-2_451_545 + EPOCH_DAYS, 2_145_031_948 + EPOCH_DAYS)
# An index entry has at most 2,704 bytes, including some overhead.
KEY_BYTES_MAX = 2_600

_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
# Type -> its name and number (OID) in PostgreSQL, and the binary form of a value.
_FIXED = {
    pa.bool_(): ("boolean", 16, "u1"),
    pa.int8(): ("smallint", 21, ">i2"),
    pa.int16(): ("smallint", 21, ">i2"),
    pa.int32(): ("integer", 23, ">i4"),
    pa.int64(): ("bigint", 20, ">i8"),
    pa.float32(): ("real", 700, ">f4"),
    pa.float64(): ("double precision", 701, ">f8"),
    pa.date32(): ("date", 1082, ">i4"),
    pa.time64("us"): ("time", 1083, ">i8"),
    pa.timestamp("us"): ("timestamp", 1114, ">i8"),
    pa.timestamp("us", "UTC"): ("timestamp with time zone", 1184, ">i8"),
}
_TEXT, _BYTES = 25, 17
_NUMBERS = frozenset(["smallint", "integer", "bigint", "real", "double precision"])


def postgres_type(data_type: pa.DataType) -> str:
    """The declared type of a column.

    >>> postgres_type(pa.decimal128(12, 2)), postgres_type(pa.timestamp("us", "UTC"))
    ('numeric(12, 2)', 'timestamp with time zone')
    """
    if kinds.is_decimal(data_type):
        return f"numeric({data_type.precision}, {data_type.scale})"
    name, number = wire_type(data_type)
    return f'{name} COLLATE "C"' if number == _TEXT else name


def wire_type(data_type: pa.DataType) -> tuple[str, int]:
    """Name and number (OID) of the type in which values are sent: decimals as text, which PostgreSQL reads exactly."""
    if data_type in _FIXED:
        return _FIXED[data_type][:2]
    return ("bytea", _BYTES) if kinds.is_binary(data_type) else ("text", _TEXT)


def cast_sent(column: str, data_type: pa.DataType) -> str:
    """SQL that converts a sent value to the type of its column."""
    return f"{column}::{postgres_type(data_type)}" if kinds.is_decimal(data_type) else column


def select_column(alias: str, field: pa.Field) -> str:
    """SQL that reads a column in the form of `arrow_column`."""
    column = f"{alias}.{quote_name(field.name)}"
    return f"{column}::text" if kinds.is_decimal(field.type) else column


def shown_column(field: pa.Field) -> str:
    """SQL that shows the column in a readable form."""
    name = quote_name(field.name)
    return f"{name}::json AS {name}" if is_nested(field.type) else name


def comparable(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether PostgreSQL can compare values of the two types."""
    first, second = (postgres_type(one) for one in (new, old))
    numbers = [name in _NUMBERS or name.startswith("numeric") for name in (first, second)]
    return first == second or all(numbers)


def encode_column(column: pa.Array) -> pa.Array:
    """Each value in PostgreSQL's binary form; null stays null."""
    data_type = column.type
    if is_nested(data_type):
        return to_json(column).cast(pa.large_binary())
    if kinds.is_decimal(data_type):
        return column.cast(pa.string()).cast(pa.large_binary())
    if kinds.is_string(data_type) or kinds.is_binary(data_type):
        return column.cast(pa.large_binary())
    fixed = _encode_fixed(_numbers(column).astype(_FIXED[data_type][2]))
    return pc.if_else(column.is_valid(), fixed, pa.scalar(None, pa.large_binary())) if column.null_count else fixed


def _numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """A column of fixed width as numbers, relative to PostgreSQL's epoch; arbitrary where it is null."""
    data_type = column.type
    if kinds.is_date(data_type):
        return _fill_nulls(column.cast(pa.int32())).astype(np.int64) - EPOCH_DAYS
    if kinds.is_timestamp(data_type):
        # Wraps around for times before PostgreSQL's first: such rows were rejected, and are null here.
        return _fill_nulls(column.cast(pa.int64())) - EPOCH_US
    if kinds.is_time(data_type):
        return _fill_nulls(column.cast(pa.int64()))
    return _fill_nulls(column.cast(pa.uint8()) if kinds.is_boolean(data_type) else column)


def _fill_nulls(column: pa.Array) -> np.ndarray[Any, Any]:
    whole = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
    found: np.ndarray[Any, Any] = whole.to_numpy(zero_copy_only=False)
    return found


def _encode_fixed(values: np.ndarray[Any, Any]) -> pa.Array:
    """The bytes of each number as a binary value."""
    whole = np.ascontiguousarray(values)
    data = pa.py_buffer(whole.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(whole.itemsize), len(whole), [None, data]).cast(
        pa.large_binary()
    )


def copy_rows(columns: list[pa.Array]) -> bytes:
    """Rows as `COPY ... FROM STDIN (FORMAT binary)` takes them:

    "PGCOPY" newline 0xff return newline 0 | flags u32 | extension u32
    a row: number of columns u16, then each value: length i32 (-1: null), bytes; all of it big endian
    -1 i16
    """
    header, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
    if not len(columns[0]):
        return header + end
    parts = []
    for column in columns:
        values = encode_column(column)
        lengths = _encode_fixed(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(">i4"))
        part = pc.binary_join_element_wise(lengths, pc.fill_null(values, b""), pa.scalar(b"", pa.large_binary()))
        parts.append(pc.if_else(values.is_valid(), part, _NULL) if values.null_count else part)
    count = pa.scalar(len(columns).to_bytes(2, "big"), pa.large_binary())
    rows = pc.binary_join_element_wise(count, *parts, pa.scalar(b"", pa.large_binary()))
    first, last = (
        np.frombuffer(rows.buffers()[1], np.int64)[place] for place in (rows.offset, rows.offset + len(rows))
    )
    return header + bytes(memoryview(rows.buffers()[2])[first:last]) + end


def unfit(column: pa.Array, field: pa.Field, key: tuple[str, ...] = ()) -> Mapping[int, str]:
    """Rows with a value that PostgreSQL cannot store, each with the reason."""
    found: dict[int, str] = {}
    if kinds.is_string(field.type):
        _tell(found, pc.match_substring(column, "\0"), f'column "{field.name}" has the character U+0000')
    elif kinds.is_timestamp(field.type):
        early = pc.less(column.cast(pa.int64()), _FIRST_US)
        _tell(found, early, f'column "{field.name}" has a time before 4714 BC')
    elif kinds.is_date(field.type):
        days = column.cast(pa.int32())
        outside = pc.or_(pc.less(days, _DAYS[0]), pc.greater(days, _DAYS[1]))
        _tell(found, outside, f'column "{field.name}" has a date before 4714 BC or after 5874897')
    if field.name in key and wire_type(field.type)[1] in (_TEXT, _BYTES):
        # Divided among the columns of the key, so that they fit together.
        most = KEY_BYTES_MAX // len(key)
        long = pc.greater(pc.binary_length(encode_column(column)), most)
        _tell(found, long, f'column "{field.name}" is in the key and longer than {most:,} bytes')
    return found


def _tell(found: dict[int, str], rows: pa.Array, complaint: str) -> None:
    for row in np.flatnonzero(pc.fill_null(rows, fill_value=False).to_numpy(zero_copy_only=False)).tolist():
        found.setdefault(row, f"{complaint}, which PostgreSQL cannot store")
