"""Converts rows in any form to one Arrow batch of the topic's schema, and checks all of them.

    pyarrow Table, RecordBatch          as they are
    __arrow_c_stream__, _c_array__      polars, pandas, a DuckDB relation, a RecordBatchReader
    dicts                               a list or any other iterable

A batch that already has the topic's schema is only checked for nulls and size: microseconds, no copy. Rows may have the
column `record`, as rows read from a topic: its change and headers are used, the rest is ignored.
Nothing is written before every row is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.arguments import type_name
from mainstem.durations import show_size
from mainstem.errors import Invalid, InvalidRows, SchemaMismatch, did_you_mean
from mainstem.log.record import CHANGE, CHANGES, HEADERS
from mainstem.log.rows.arrow_rows import check_required, convert
from mainstem.log.rows.column_types import NESTED, kind_of, parts_of
from mainstem.log.rows.python_rows import array_of, arrays_of, dicts_of
from mainstem.log.rows.readable_values import doubtful_from_python, unreadable_value
from mainstem.log.rows.row_errors import (
    APPEND_BYTES_MAX,
    NOTHING_WRITTEN,
    format_value,
    too_large,
    unknown_column,
    unreadable,
)
from mainstem.log.topic_settings import TopicSettings

__all__ = [
    "CheckedRows",
    "GivenKeys",
    "GivenRows",
    "batch_of",
    "check_rows",
    "checked_changes",
    "row_bytes",
    "tombstones",
]


# The size of each row, for the limit of a record: an estimate of its Arrow form.


Int64Array = npt.NDArray[np.int64]

# The size of an offset of a string, a list or a map.
_OFFSET_BYTES = 4


def row_bytes(columns: list[pa.Array]) -> Int64Array:
    """The bytes of each row over all columns.

    >>> row_bytes([pa.array(["abc", None]), pa.array([1, 2], pa.int64())]).tolist()
    [15, 12]
    """
    total: Int64Array = np.sum([_bytes_of(column) for column in columns], axis=0, dtype=np.int64)
    return total


def _bytes_of(array: pa.Array) -> Int64Array:
    kind = kind_of(array.type)
    if kind in ("string", "binary"):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0), np.int64) + _OFFSET_BYTES
    if kind not in NESTED:
        return np.full(len(array), max(array.type.bit_width // 8, 1), np.int64)
    columns, offsets = parts_of(array)
    inside = row_bytes(columns)
    return inside if offsets is None else np.diff(np.concatenate(([0], np.cumsum(inside)))[offsets]) + _OFFSET_BYTES


# One Arrow batch from anything that is Arrow or can be exported as Arrow.


# The name of an unnamed pandas index in Arrow: it is not a column of the user.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


class ArrowStream(Protocol):
    """A table that can be exported as Arrow: of pyarrow, polars, pandas or DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# The rows that a user may append, and the keys that a user may delete.
GivenRows: TypeAlias = "ArrowStream | Iterable[Mapping[str, Any]]"
GivenKeys: TypeAlias = "ArrowStream | Iterable[Any]"


def batch_of(rows: GivenKeys) -> pa.RecordBatch | None:
    """One batch of rows that are Arrow or can be exported as Arrow; None for others, which must be dicts."""
    if isinstance(rows, pa.RecordBatch):
        batch = rows
    elif isinstance(rows, pa.Table):
        batch = _one_batch(rows)
    elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        try:
            batch = _one_batch(pa.table(rows))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidRows(
                f"rows given as {type_name(rows)} cannot be read as a table",
                detail=f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. {NOTHING_WRITTEN}",
                hint="Give a table with a column for each column of the topic, or a list of dicts.",
            ) from error
    else:
        _refuse_single(rows)
        return None
    if batch.nbytes > APPEND_BYTES_MAX:
        raise too_large(batch.nbytes)
    if batch.schema.metadata and b"pandas" in batch.schema.metadata:
        keep = [name for name in batch.schema.names if not _UNNAMED_INDEX.fullmatch(name)]
        return batch.select(keep) if len(keep) < batch.num_columns else batch
    return batch


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.nbytes > APPEND_BYTES_MAX:
        raise too_large(table.nbytes)
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _refuse_single(rows: object) -> None:
    if isinstance(rows, Mapping):
        hint = "Write [row] for one row; a dict of columns becomes rows by pyarrow.table(columns)."
    elif isinstance(rows, str | bytes | bytearray) or not isinstance(rows, Iterable):
        hint = "Give a list of dicts, a pyarrow Table, or a polars or pandas frame."
    else:
        return
    raise InvalidRows(
        f"rows are {type_name(rows)}, not a list of rows",
        detail=f"Got {format_value(rows)}. {NOTHING_WRITTEN}",
        hint=hint,
    )


# The quick check of a batch's size counts a shared buffer once: assume that this many columns share it.
_SHARED_MAX = 1024


@dataclass(frozen=True)
class CheckedRows:
    """Rows that fit a topic: `batch` has its stored schema; `change` None means all inserts, `headers` None no headers.

    The stored schema has every column nullable: NOT NULL has been checked, and tombstones are exempt from it.
    """

    batch: pa.RecordBatch
    # The settings they were checked against: the topic may be altered before they are appended.
    settings: TopicSettings
    change: pa.Array | None = None
    headers: pa.Array | None = None


def check_rows(rows: GivenRows, settings: TopicSettings) -> CheckedRows:
    """The rows as a batch of the topic's schema; raises `InvalidRows` or `SchemaMismatch` if one does not fit.

    >>> orders = TopicSettings.of("orders", schema="order_id STRING, amount DOUBLE", key="order_id")
    >>> check_rows([{"order_id": "o-1", "amount": 9.5}], orders).batch.num_rows
    1
    """
    if _fits_as_it_is(rows, settings):
        _check_nulls(rows, None, rows.schema.names, settings)
        _check_key(rows, settings)
        _check_readable(rows)
        return CheckedRows(rows, settings)
    batch = batch_of(rows)
    dicts: list[Mapping[str, Any]] = []
    if batch is None:
        dicts = dicts_of(cast("Iterable[Any]", rows))
        checked = _from_columns(arrays_of(dicts, settings.stored_schema, topic=settings.name), len(dicts), settings)
        change, headers = _record_of_dicts(dicts, settings.name)
    elif batch.schema.equals(settings.stored_schema):
        checked, change, headers = batch, None, None
    else:
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        change, headers = _record_of_arrow(columns.pop("record", None), settings.name)
        _check_names(batch.schema, settings)
        converted_columns = {
            field.name: convert(columns[field.name], field.type, path=field.name, topic=settings.name)
            for field in settings.stored_schema
            if field.name in columns
        }
        checked = _from_columns(converted_columns, batch.num_rows, settings)
    change = checked_changes(change)
    headers = _checked_headers(headers)
    given = settings.schema.names if batch is None else batch.schema.names
    _check_nulls(checked, change, given, settings)
    if checked.num_rows:
        _check_there(
            given if batch is not None else [name for name in given if any(name in row for row in dicts)], settings
        )
    _check_key(checked, settings)
    _check_size(checked, headers, settings)
    if batch is None:
        # For other types every Python value can be read by all.
        checked_names = [field.name for field in checked.schema if doubtful_from_python(field.type)]
        _check_readable(checked.select(checked_names))
    else:
        _check_readable(checked)
    if headers is not None and batch is not None:
        _check_readable(pa.record_batch({"record.headers": headers}))
    return CheckedRows(checked, settings, change, headers)


def _check_there(given: Sequence[str], settings: TopicSettings) -> None:
    """Refuse rows without the whole key or the event time; any other missing column is null."""
    times = (settings.event_time,) if settings.event_time else ()
    for role, names in (("key", settings.key), ("event time", times)):
        if names and not any(name in given for name in names):
            may_be_null = role != "key" or not settings.keep.compacted
            raise SchemaMismatch(
                f'column "{names[0]}" is missing, the {role} of topic "{settings.name}"',
                detail=f"The columns given are: {', '.join(given) or 'none'}. {NOTHING_WRITTEN}",
                hint=f'Give every row "{names[0]}"{"; where it is not known, write null" if may_be_null else ""}.',
                column=names[0],
            )


def _fits_as_it_is(rows: object, settings: TopicSettings) -> TypeGuard[pa.RecordBatch]:
    """Whether this batch has the right schema and is small, by a quick estimate: the exact size costs 50 times more."""
    return (
        isinstance(rows, pa.RecordBatch)
        and rows.schema.equals(settings.stored_schema)
        and rows.get_total_buffer_size() * _SHARED_MAX <= settings.record_bytes_max
    )


def tombstones(keys: GivenKeys, settings: TopicSettings) -> CheckedRows:
    """Rows that delete these keys: the key's columns and nothing else.

    `keys`: values of the key's one column; of several, tuples in the key's order or dicts.

    >>> orders = TopicSettings.of("orders", schema="order_id STRING, amount DOUBLE NOT NULL", key="order_id")
    >>> tombstones(["o-17"], orders).batch.to_pylist()
    [{'order_id': 'o-17', 'amount': None}]
    """
    if not settings.key:
        raise Invalid(
            f'topic "{settings.name}" has no key, so nothing in it can be deleted by key',
            detail="A topic gets its key when it is created.",
            hint='Create a topic with key="..." and copy the rows.',
        )
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise InvalidRows(
            f"keys are {type_name(keys)}, not a list",
            detail=f"Keys are given as a list, one entry for each key to delete; got {format_value(keys)}.",
            hint=f"For one key write [{format_value(keys)}].",
        )
    given = keys.to_pylist() if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys)
    dicts = [_key_dict(key, number, settings) for number, key in enumerate(given)]
    schema = pa.schema([settings.stored_schema.field(name) for name in settings.key])
    batch = _from_columns(arrays_of(dicts, schema, topic=settings.name), len(dicts), settings)
    _refuse_null_key(batch, settings, "a tombstone deletes one key")
    _check_size(batch, None, settings)
    return CheckedRows(batch, settings, pa.repeat(pa.scalar("delete", CHANGE), len(dicts)), None)


def _key_dict(key: Any, number: int, settings: TopicSettings) -> Mapping[str, Any]:
    if isinstance(key, Mapping):
        return key
    parts = (key,) if len(settings.key) == 1 and not isinstance(key, tuple) else key
    if isinstance(parts, Sequence) and not isinstance(parts, str | bytes) and len(parts) == len(settings.key):
        return dict(zip(settings.key, parts, strict=True))
    names = ", ".join(settings.key)
    raise InvalidRows(
        f"key {number} lacks the columns {names}",
        detail=f"It is {format_value(key)}. {NOTHING_WRITTEN}",
        hint=f"Give a tuple ({names}) or a dict." if len(settings.key) > 1 else f"Give the value of {names}.",
        row=number,
    )


def _check_names(schema: pa.Schema, settings: TopicSettings) -> None:
    known = settings.stored_schema.names
    for name in schema.names:
        if name not in known and name != "record":
            raise unknown_column(name, known, settings.name, None)
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaMismatch(
            f'column "{twice}" appears twice',
            detail=f"The columns given are: {', '.join(schema.names)}. {NOTHING_WRITTEN}",
            hint="Drop or rename one of them.",
            column=twice,
        )


def _from_columns(columns: Mapping[str, pa.Array], count: int, settings: TopicSettings) -> pa.RecordBatch:
    """The columns in the topic's order; missing ones are null."""
    schema = settings.stored_schema
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _record_of_arrow(record: pa.Array | None, topic: str) -> tuple[pa.Array | None, pa.Array | None]:
    if record is None or kinds.is_null(record.type):
        return None, None
    if not kinds.is_struct(record.type):
        raise SchemaMismatch(
            f'column "record" is {record.type}, not a struct',
            detail="The name is reserved for a row's metadata; its change and headers are used.",
            hint="Leave the column out, or rename it.",
            column="record",
        )
    fields = dict(zip((field.name for field in record.type), record.flatten(), strict=True))
    found: list[pa.Array | None] = [
        convert(fields[name], data_type, path=f"record.{name}", topic=topic) if name in fields else None
        for name, data_type in (("change", CHANGE), ("headers", HEADERS))
    ]
    return found[0], found[1]


def _record_of_dicts(rows: list[Mapping[str, Any]], topic: str) -> tuple[pa.Array | None, pa.Array | None]:
    records = [row.get("record") for row in rows]
    if all(record is None for record in records):
        return None, None
    for number, record in enumerate(records):
        if record is not None and not isinstance(record, Mapping):
            raise InvalidRows(
                f'row {number}: column "record" is {type(record).__name__}, not a dict',
                detail=f"The value is {format_value(record)}. {NOTHING_WRITTEN}",
                hint='Write it as in {"change": "update", "headers": [{"key": "trace", "value": b"7"}]}.',
                row=number,
                column="record",
            )
    values = [{} if record is None else record for record in records]
    change = array_of([value.get("change") for value in values], CHANGE, path="record.change", topic=topic)
    headers = array_of([value.get("headers") for value in values], HEADERS, path="record.headers", topic=topic)
    return change, headers


def checked_changes(change: pa.Array | None) -> pa.Array | None:
    if change is None or change.null_count == len(change):
        return None
    change = pc.fill_null(change, "insert")
    known = pc.is_in(change, pa.array(CHANGES))
    if not pc.all(known).as_py():
        _check_readable(pa.record_batch({"record.change": change}))
        row = pc.index(known, pa.scalar(value=False)).as_py()
        raise InvalidRows(
            f"row {row}: record.change is {format_value(change[row].as_py())}",
            detail=f"A change is one of: {', '.join(CHANGES)}. {NOTHING_WRITTEN}",
            hint="Leave it out for an insert.",
            row=row,
            column="record.change",
        )
    return None if pc.all(pc.equal(change, "insert")).as_py() else change


def _checked_headers(headers: pa.Array | None) -> pa.Array | None:
    if headers is None or headers.null_count == len(headers):
        return None
    keys = headers.flatten().flatten()[0]
    if keys.null_count:
        element = pc.index(keys.is_null(), pa.scalar(value=True)).as_py()
        row = pc.list_parent_indices(headers)[element].as_py()
        raise InvalidRows(
            f"row {row}: a header has no key",
            detail=f"Every header is a key and a value. {NOTHING_WRITTEN}",
            hint='Write it as in {"key": "trace", "value": b"7"}.',
            row=row,
            column="record.headers",
        )
    return headers


def _check_nulls(batch: pa.RecordBatch, change: pa.Array | None, given: list[str], settings: TopicSettings) -> None:
    # A delete needs only its key: other NOT NULL columns may be null.
    deletes = None if change is None else pc.equal(change, "delete")
    for field in settings.required_fields:
        if field.name not in given and not field.nullable and batch.num_rows and deletes is None:
            raise SchemaMismatch(
                f'column "{field.name}" is missing, and it is NOT NULL',
                detail=f"The columns given are: {', '.join(given)}. {NOTHING_WRITTEN}",
                hint=did_you_mean(field.name, given) or "Add the column to the rows.",
                column=field.name,
            )
        check_required(batch.column(field.name), field, path=field.name, exempt=deletes)


def _check_key(batch: pa.RecordBatch, settings: TopicSettings) -> None:
    if settings.keep.compacted:
        _refuse_null_key(batch, settings, "a compacted topic keeps the latest record per key")


def _refuse_null_key(batch: pa.RecordBatch, settings: TopicSettings, reason: str) -> None:
    columns = [batch.column(name) for name in settings.key]
    if not all(column.null_count for column in columns):
        return
    nothing = columns[0].is_null()
    for column in columns[1:]:
        nothing = pc.and_(nothing, column.is_null())
    if pc.any(nothing).as_py():
        row = pc.index(nothing, pa.scalar(value=True)).as_py()
        names = ", ".join(settings.key)
        raise InvalidRows(
            f'row {row}: the key of topic "{settings.name}" is null',
            detail=f"The key is {names}, and {reason}. {NOTHING_WRITTEN}",
            hint=f"Give {names} a value.",
            row=row,
            column=settings.key[0],
        )


def _check_readable(batch: pa.RecordBatch) -> None:
    """Refuse values that some readers cannot read: they would make the rows around them unreadable too."""
    if (found := unreadable_value(batch)) is not None:
        raise unreadable(found)


def _check_size(batch: pa.RecordBatch, headers: pa.Array | None, settings: TopicSettings) -> None:
    limit = settings.record_bytes_max
    # No record is larger than the whole batch, and most batches are smaller than the limit of one record.
    if batch.nbytes + (headers.nbytes if headers is not None else 0) <= limit:
        return
    sizes = row_bytes([*batch.columns, *([headers] if headers is not None else [])])
    largest = int(np.argmax(sizes > limit))
    if sizes[largest] > limit:
        raise InvalidRows(
            f"row {largest} has {show_size(int(sizes[largest]))}, more than the maximum size of a record",
            detail=f'record_bytes_max of topic "{settings.name}" is {show_size(limit)}. {NOTHING_WRITTEN}',
            hint="Store large values elsewhere and their address here, or raise record_bytes_max.",
            row=largest,
        )
