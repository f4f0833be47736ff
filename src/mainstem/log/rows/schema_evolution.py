"""Which changes of a schema are allowed, and old rows read with a newer schema.

A later schema has every column of the earlier one, in the same order, each of the same or a wider type; new columns
may be anywhere and are null in old rows. The same holds inside structs, arrays and maps. A type is wider if it has
every value of the other exactly, and if a key of either type has the same bytes (so that it stays in its partition):

    TINYINT -> SMALLINT -> INT -> BIGINT
    TINYINT, SMALLINT, INT, FLOAT -> DOUBLE
    DECIMAL(p, s) -> DECIMAL(p + n, s)

BIGINT -> DOUBLE and DATE -> TIMESTAMP_NTZ are not allowed: large numbers and distant dates would be lost.
"""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.errors import SchemaMismatch, did_you_mean
from mainstem.log.rows.column_types import NESTED, inner_fields, kind_of
from mainstem.log.rows.normal_schema import normal_schema
from mainstem.log.rows.schema_ddl import type_to_ddl

__all__ = ["evolve", "fit"]

_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


def evolve(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The schema of a topic after a change from `old` to `new`; refuses a change that would lose data.

    >>> evolve(pa.schema({"id": pa.string(), "n": pa.int32()}), pa.schema({"id": pa.string(), "n": pa.int64()}))
    id: string
    n: int64
    """
    new = normal_schema(new)
    _check_fields(list(old), list(new), inside="")
    return new


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of an earlier schema converted to a later one; the batch itself if the schemas are equal.

    >>> fit(pa.RecordBatch.from_pydict({"n": [1]}), pa.schema({"n": pa.int64(), "note": pa.string()})).to_pylist()
    [{'n': 1, 'note': None}]
    """
    if batch.schema.equals(schema):
        return batch
    positions = {name: position for position, name in enumerate(batch.schema.names)}
    columns = [
        _column(batch.column(positions[field.name]), field.type)
        if field.name in positions
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    return column if column.type.equals(data_type) else column.cast(data_type)


def _check_fields(old: list[pa.Field], new: list[pa.Field], *, inside: str) -> None:
    before = {field.name: field for field in old}
    after = {field.name: field for field in new}
    for field in old:
        if field.name not in after:
            path = f"{inside}{field.name}"
            added = [name for name in after if name not in before]
            _refuse(
                path,
                f'column "{path}" is not in the new schema',
                "Its values in old rows would be lost; columns can be added and widened, not dropped or renamed.",
                f"{did_you_mean(field.name, added)} Keep the column (append nulls to it from now on), "
                "or create a new topic and copy the rows.",
            )
    for field in new:
        path = f"{inside}{field.name}"
        if field.name in before:
            _check_type(before[field.name].type, field.type, path)
            if before[field.name].nullable and not field.nullable:
                _refuse(
                    path, f'column "{path}" cannot become NOT NULL', "Old rows may hold nulls.", "Leave it nullable."
                )
        elif not field.nullable:
            _refuse(path, f'new column "{path}" is NOT NULL', "It is null in old rows.", "Add it without NOT NULL.")
    kept = [name for name in after if name in before]
    if kept != list(before):
        moved = next(name for name, old_name in zip(kept, before, strict=True) if name != old_name)
        _refuse(
            f"{inside}{moved}",
            f'column "{inside}{moved}" has moved',
            f"The order was {', '.join(before)}.",
            "Keep the columns in that order; new ones may be anywhere between them.",
        )


def _check_type(old: pa.DataType, new: pa.DataType, path: str) -> None:
    if (kind := kind_of(old)) == kind_of(new) == "struct":
        _check_fields(list(old), list(new), inside=f"{path}.")
    elif kind in NESTED and kind == kind_of(new):
        for before, after in zip(inner_fields(old), inner_fields(new), strict=True):
            _check_type(before.type, after.type, f"{path}.{before.name}")
    elif not (old.equals(new) or new in _WIDER.get(old, ()) or _is_wider_decimal(old, new)):
        _refuse(
            path,
            f'column "{path}" cannot change from {type_to_ddl(old)} to {type_to_ddl(new)}',
            _ways_on(old),
            f'Leave "{path}" as it is and add a column of the new type under another name.',
        )


def _ways_on(old: pa.DataType) -> str:
    if kinds.is_decimal(old):
        return f"{type_to_ddl(old)} can become a DECIMAL of more digits with scale {old.scale}."
    wider = ", ".join(type_to_ddl(data_type) for data_type in _WIDER.get(old, ()))
    return f"{type_to_ddl(old)} can become: {wider}." if wider else f"{type_to_ddl(old)} cannot become any other type."


def _is_wider_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    if not (kinds.is_decimal(old) and kinds.is_decimal(new)):
        return False
    return bool(new.scale == old.scale and new.precision > old.precision)


def _refuse(path: str, message: str, detail: str, hint: str) -> NoReturn:
    raise SchemaMismatch(message, detail=detail, hint=hint.strip(), column=path)
