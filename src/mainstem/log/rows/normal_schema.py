"""The Arrow types of topics, and the one to which every other Arrow type is converted.

A topic's rows are stored in Arrow blocks first and in Parquet files later, and both are read by Spark and DuckDB. So a
topic has only types that Arrow and Parquet both support natively, each in one form:

    BOOLEAN           bool                    STRING           string
    TINYINT           int8                    BINARY           binary
    SMALLINT          int16                   DATE             date32
    INT               int32                   TIME             time64[us]
    BIGINT            int64                   TIMESTAMP        timestamp[us, UTC]
    FLOAT             float                   TIMESTAMP_NTZ    timestamp[us]
    DOUBLE            double                  ARRAY<T>         list<element: T>
    DECIMAL(p, s)     decimal128(p, s)        MAP<K, V>        map<K, V>
                                              STRUCT<a: T>     struct<a: T>

Not supported: intervals (Parquet stores a duration as a plain number, so that readers other than Arrow see BIGINT once a
segment is sealed, and has no type for months), VARIANT, VOID, unions, 64-bit unsigned numbers.
Elements of arrays and values of maps are always nullable, because DDL cannot say otherwise; of a field's metadata only
the comment is kept.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.errors import Invalid
from mainstem.log.rows.column_types import SCALARS, TIMESTAMPS, inner_fields, kind_of, nested_type

__all__ = [
    "ALLOWED_TYPES",
    "COMMENT",
    "DEPTH_MAX",
    "cannot_store",
    "has_required",
    "normal_schema",
    "normal_type",
    "nullable_schema",
]

ALLOWED_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIME, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<...>, MAP<..., ...>, STRUCT<...>"
)
# The metadata key of a column's comment, as in Spark.
COMMENT = b"comment"
# Arrow's files allow 64 levels, and Parquet uses two for an array: half of that is safe in both.
DEPTH_MAX = 32
# Unicode categories that a column name may not have: control characters, line and paragraph separators, surrogates.
UNPRINTABLE = {"Cc", "Zl", "Zp", "Cs"}

_SAME = frozenset(SCALARS.values())
_WIDENED: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
}
# The type of each kind with a single width.
_FORMS = {kind: SCALARS[kind.upper()] for kind in ("string", "binary", "date", "time", *TIMESTAMPS)}
_REASONS: tuple[tuple[Callable[[pa.DataType], bool], str, str], ...] = (
    (kinds.is_uint64, "BIGINT does not reach as far.", "Use int64 or decimal128(20, 0)."),
    (kinds.is_duration, "Parquet keeps a duration as a plain number.", "Use int64 with the unit in the name."),
    (kinds.is_interval, "Parquet has no form for it.", "Use int64 with the unit in the name."),
    (kinds.is_null, "Such a column can hold nothing.", "Say the type of the values that will come."),
    (kinds.is_decimal, "A decimal has 1 to 38 digits, of which 0 to all may follow the point.", "Use fewer digits."),
)


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as a topic stores it; refuses names and types that topics do not support.

    >>> normal_schema(pa.schema({"id": pa.large_string(), "placed_at": pa.timestamp("ns", "Europe/Berlin")}))
    id: string
    placed_at: timestamp[us, tz=UTC]
    """
    if len(schema) == 0:
        raise Invalid(
            "a schema needs at least one column",
            detail="The schema given is empty.",
            hint='Give columns as in "order_id STRING, amount DOUBLE".',
        )
    check_names(schema.names, inside="")
    for name in schema.names:
        if name.startswith("_"):
            raise Invalid(
                f'column "{name}" begins with an underscore',
                detail="Spark renames such columns inside its Python workers.",
                hint=f'Call it "{name.lstrip("_") or "value"}".',
                column=name,
            )
        # A sealed segment has columns such as "record.offset".
        if name.casefold() == "record" or name.casefold().startswith("record."):
            raise Invalid(
                f'column "{name}" has a reserved name',
                detail='Every topic has a struct "record" with the partition, offset, time, change and headers of a row.',
                hint='Call it something else, such as "entry".',
                column=name,
            )
    return pa.schema([_normal_field(field, field.name, 1) for field in schema])


def normal_type(data_type: pa.DataType, path: str = "", depth: int = 1) -> pa.DataType:
    """The type in which a topic stores values of this Arrow type; `path` names the column in an error.

    >>> normal_type(pa.dictionary(pa.int32(), pa.large_string()))
    DataType(string)
    """
    if depth > DEPTH_MAX:
        raise Invalid(
            f'column "{path[:80]}..." is nested too deeply',
            detail=f"A topic stores types of at most {DEPTH_MAX} levels.",
            hint="Flatten the inner levels, or keep them as a STRING of JSON.",
            column=path,
        )
    if data_type in _SAME:
        return data_type
    if (widened := _WIDENED.get(data_type)) is not None:
        return widened
    kind = kind_of(data_type)
    if kind in _FORMS:
        return _FORMS[kind]
    if kind == "decimal" and 1 <= data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return pa.decimal128(data_type.precision, data_type.scale)
    if kinds.is_dictionary(data_type) or kinds.is_run_end_encoded(data_type):
        return normal_type(data_type.value_type, path, depth)
    if isinstance(data_type, pa.JsonType):
        return normal_type(data_type.storage_type, path, depth)
    return _normal_nested(data_type, path, depth)


def _normal_nested(data_type: pa.DataType, path: str, depth: int) -> pa.DataType:
    if fields := inner_fields(data_type):
        if kinds.is_struct(data_type):
            check_names([field.name for field in fields], inside=path)
        return nested_type(data_type, [_normal_field(field, f"{path}.{field.name}", depth + 1) for field in fields])
    reason, remedy = next(((why, hint) for matches, why, hint in _REASONS if matches(data_type)), ("", ""))
    raise cannot_store(path, data_type, reason, f"{remedy} Or convert the column to one of these types.")


def cannot_store(path: str, data_type: object, reason: str, hint: str) -> Invalid:
    """The error for a column of a type that topics do not support."""
    return Invalid(
        f'column "{path}" has type {data_type}, which a topic cannot store',
        detail=f"{reason} Arrow and Parquet both support: {ALLOWED_TYPES}.",
        hint=hint,
        column=path,
    )


def _normal_field(field: pa.Field, path: str, depth: int) -> pa.Field:
    comment = (field.metadata or {}).get(COMMENT)
    metadata = {COMMENT: comment} if comment else None
    return pa.field(field.name, normal_type(field.type, path, depth), nullable=field.nullable, metadata=metadata)


def check_names(names: Iterable[str], *, inside: str) -> None:
    """Refuses names of columns, or of the fields of the struct `inside`, that are ambiguous or not printable."""
    where = f' in "{inside}"' if inside else ""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise Invalid(
                f"a column{where} has no name",
                detail="Its name is the empty string.",
                hint="Give every column a name.",
                column=name,
            )
        if any(unicodedata.category(character) in UNPRINTABLE for character in name):
            raise Invalid(
                f"column {name!a}{where} has a control character in its name",
                detail="Such a name cannot be shown or typed.",
                hint="Use letters, digits and underscores.",
                column=name,
            )
        if (twin := seen.setdefault(name.casefold(), name)) is not name:
            raise Invalid(
                f'column "{name}"{where} appears twice',
                detail=f'Spark and DuckDB treat "{twin}" and "{name}" as the same name.',
                hint="Rename one of them.",
                column=name,
            )


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every column and every field nullable: how rows are stored.

    NOT NULL is checked on append only: a tombstone has nulls in all columns but its key.

    >>> nullable_schema(pa.schema([pa.field("id", pa.string(), nullable=False)]))
    id: string
    """
    return pa.schema([_nullable_field(field) for field in schema], metadata=schema.metadata)


def has_required(field: pa.Field) -> bool:
    """Whether a field, or one inside it, is NOT NULL."""
    return not field.nullable or any(map(has_required, inner_fields(field.type)))


def _nullable_field(field: pa.Field) -> pa.Field:
    data_type = nested_type(field.type, [_nullable_field(inner) for inner in inner_fields(field.type)])
    return pa.field(field.name, data_type, metadata=field.metadata)
