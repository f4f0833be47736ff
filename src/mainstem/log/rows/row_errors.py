"""The errors for rows that a topic refuses: the row, the column, the value, and what to do."""

from __future__ import annotations

from datetime import datetime, time

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.durations import show_size
from mainstem.errors import InvalidRows, SchemaMismatch, did_you_mean
from mainstem.log.rows.column_types import NUMBERS, TIMESTAMPS, kind_of
from mainstem.log.rows.readable_values import Unreadable
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = [
    "APPEND_BYTES_MAX",
    "NOTHING_WRITTEN",
    "format_value",
    "missing_value",
    "out_of_range",
    "refused_record",
    "too_large",
    "unknown_column",
    "unreadable",
    "wrong_type",
    "wrong_value",
]

# Arrow counts the bytes of a string column in 31 bits.
APPEND_BYTES_MAX = (1 << 31) - 1
NOTHING_WRITTEN = "Nothing was written."
_SHOWN_MAX = 60


def format_value(value: object) -> str:
    """A value for a message: on one line, and not too long.

    >>> format_value("x" * 1000)[-10:]
    'xxxxxxx...'
    """
    if isinstance(value, str | bytes | bytearray):
        value = value[: _SHOWN_MAX + 1]
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def wrong_value(row: int, path: str, data_type: pa.DataType, value: object) -> InvalidRows:
    """A Python value of a type that the column does not accept."""
    zone = ""
    if isinstance(value, datetime | time):
        zone = " without a zone" if value.tzinfo is None else " with a zone"
    return InvalidRows(
        f'row {row}: column "{path}" is {type_to_ddl(data_type)}, got {type(value).__name__}{zone}',
        detail=f"The value is {format_value(value)}. {NOTHING_WRITTEN}",
        hint=_value_hint(data_type, value),
        row=row,
        column=path,
    )


_HINTS = {
    "date": "Use a date; a datetime becomes one by value.date().",
    "time": "Use a datetime.time without a zone.",
    "string": "Use str; bytes become text by value.decode(), other values by str(value).",
    "binary": "Use bytes; text becomes bytes by value.encode().",
    "map": "Use a dict, or a list of (key, value) pairs.",
    "list": "Use a list.",
}


def _value_hint(data_type: pa.DataType, value: object) -> str:
    kind = kind_of(data_type)
    if kind in TIMESTAMPS:
        if not isinstance(value, datetime):
            return "Use a datetime; text in ISO 8601 becomes one by datetime.fromisoformat(value)."
        if kind == "timestamp":
            return "Which zone is it in? For UTC: value.replace(tzinfo=timezone.utc)."
        return "The column takes times without a zone: use value.replace(tzinfo=None), or make it a TIMESTAMP."
    if kind == "decimal" and isinstance(value, float):
        return f'Use Decimal("{value!r}"): a float is not exact.'
    if kind == "struct":
        return f"Use a dict with: {', '.join(field.name for field in data_type)}."
    return _HINTS.get(kind) or f"Give a value that {type_to_ddl(data_type)} holds exactly, or None."


def out_of_range(row: int, path: str, data_type: pa.DataType, value: object, reason: str) -> InvalidRows:
    """A value of the right kind that the column cannot represent exactly."""
    kind = kind_of(data_type)
    hint = "Correct the row."
    if kind == "time" or kind in TIMESTAMPS:
        hint = "Round it to microseconds first."
    elif kind in NUMBERS:
        hint = "Correct the row, or widen the column."
    return InvalidRows(
        f'row {row}: {format_value(value)} does not fit column "{path}", which is {type_to_ddl(data_type)}',
        detail=f"{_range_of(data_type) or (reason or 'It is out of range').splitlines()[0].rstrip('.')}. {NOTHING_WRITTEN}",
        hint=hint,
        row=row,
        column=path,
    )


def _range_of(data_type: pa.DataType) -> str:
    """The range of a type, if that is clearer than Arrow's message."""
    if kinds.is_integer(data_type):
        largest = (1 << (data_type.bit_width - 1)) - 1
        return f"{type_to_ddl(data_type)} holds whole numbers from {-largest - 1} to {largest}"
    if kinds.is_decimal(data_type):
        before = data_type.precision - data_type.scale
        return f"{type_to_ddl(data_type)} has {before} digits before the point and {data_type.scale} after it"
    return ""


def unreadable(found: Unreadable) -> InvalidRows:
    """A value of the column's type that some readers cannot read."""
    hint = "Correct the row, or keep the value in a column of another type."
    if kinds.is_string(found.data_type):
        hint = "Bytes become text by value.decode(), with the encoding they are in; or use a BINARY column."
    return InvalidRows(
        f'row {found.row}: column "{found.path}" has a value of type {type_to_ddl(found.data_type)} that cannot be read: '
        f"{found.reason}",
        detail=f"Python, Spark and DuckDB must all be able to read what a topic holds. {NOTHING_WRITTEN}",
        hint=hint,
        row=found.row,
        column=found.path,
    )


def too_large(size: int) -> InvalidRows:
    """More bytes than one append can take."""
    return InvalidRows(
        f"rows of {show_size(size)} are too large for one append",
        detail=f"An append takes less than {show_size(APPEND_BYTES_MAX + 1)}. {NOTHING_WRITTEN}",
        hint="Append them in several parts, in one transaction if they belong together.",
    )


def missing_value(row: int, path: str) -> InvalidRows:
    """A null or missing value in a column that is NOT NULL."""
    return InvalidRows(
        f'row {row}: column "{path}" is NOT NULL, got null',
        detail=f"The row has no value for it, or None. {NOTHING_WRITTEN}",
        hint="Give it a value. A row that deletes its key needs none: see Topic.delete.",
        row=row,
        column=path,
    )


def unknown_column(path: str, known: list[str], topic: str, row: int | None) -> SchemaMismatch:
    """A column, or a field of a struct, that the topic does not have."""
    prefix, _, name = path.rpartition(".")
    where = f"row {row}: " if row is not None else ""
    inside = f'"{prefix}" has' if prefix else "The columns are"
    return SchemaMismatch(
        f'{where}topic "{topic}" has no column "{path}"',
        detail=f"{inside}: {', '.join(known)}. {NOTHING_WRITTEN}",
        hint=did_you_mean(name, known) or "Leave it out, or add the column to the topic first.",
        column=path,
        row=row,
        topic=topic,
    )


def wrong_type(path: str, data_type: pa.DataType, given: pa.DataType) -> SchemaMismatch:
    """An Arrow column of a type that the topic's column does not accept, whatever its values."""
    naive = kinds.is_timestamp(data_type) and kinds.is_timestamp(given)
    if naive and data_type.tz:
        hint = "Which zone is it in? Say so before appending: pyarrow.compute.assume_timezone(column, 'UTC'), or of a pandas frame frame[column].dt.tz_localize('UTC')."
    elif naive:
        hint = "The column takes times without a zone: pyarrow.compute.local_timestamp(column)."
    else:
        hint = f"Cast the column to {data_type} first."
    return SchemaMismatch(
        f'column "{path}" is {type_to_ddl(data_type)}, got {given}',
        detail=f"Values are converted only where they stay exactly the same. {NOTHING_WRITTEN}",
        hint=hint,
        column=path,
    )


def refused_record(
    batch: pa.RecordBatch, row: int, where: str, done: str, reason: str, *, detail: str, hint: str, column: str = ""
) -> InvalidRows:
    """The error for an unusable record of the log. It names the offset, since row numbers are only valid within a batch."""
    offset = batch.column("record").field("offset")[row].as_py()
    return InvalidRows(
        f"record {offset} of {where} cannot be {done}: {reason}",
        detail=f"An older Mainstem accepted it. {detail}".strip(),
        hint=hint,
        row=row,
        column=column,
    )
