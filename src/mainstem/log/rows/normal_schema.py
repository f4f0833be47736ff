"""The Arrow types a topic keeps, and the one that every other Arrow type becomes.

A topic's rows lie in Arrow blocks first and in Parquet files later, and both are read by Spark and DuckDB. So a topic
keeps only types that Arrow and Parquet both hold by themselves, each in one form:

    BOOLEAN           bool                    STRING           string
    TINYINT           int8                    BINARY           binary
    SMALLINT          int16                   DATE             date32
    INT               int32                   TIME             time64[us]
    BIGINT            int64                   TIMESTAMP        timestamp[us, UTC]
    FLOAT             float                   TIMESTAMP_NTZ    timestamp[us]
    DOUBLE            double                  ARRAY<T>         list<element: T>
    DECIMAL(p, s)     decimal128(p, s)        MAP<K, V>        map<K, V>
                                              STRUCT<a: T>     struct<a: T>

Not among them: intervals (Parquet keeps a duration as a plain number, so that a reader other than Arrow sees BIGINT
once a segment is sealed, and has no form at all for months), VARIANT, VOID, unions, 64-bit unsigned numbers.
Elements of arrays and values of maps may always be null, because DDL cannot say otherwise; of a field's metadata only
the comment stays.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.errors import Invalid

__all__ = [
    "ALLOWED_TYPES",
    "COMMENT",
    "DEPTH_MAX",
    "has_required",
    "is_array",
    "normal_schema",
    "normal_type",
    "nullable_schema",
]

ALLOWED_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIME, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<...>, MAP<..., ...>, STRUCT<...>"
)
# The key under which Spark, too, keeps a column's comment.
COMMENT = b"comment"
# Arrow's own files allow 64 levels, and Parquet spends two on an array: half of that is safe in both.
DEPTH_MAX = 32
# Categories of characters that no column name may hold: control, line and paragraph separators, halves of a pair.
UNPRINTABLE = {"Cc", "Zl", "Zp", "Cs"}

_SAME: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.time64("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
)
_WIDENED: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_REASONS: tuple[tuple[Callable[[pa.DataType], bool], str, str], ...] = (
    (kinds.is_uint64, "BIGINT does not reach as far.", "Use int64 or decimal128(20, 0)."),
    (kinds.is_duration, "Parquet keeps a duration as a plain number.", "Use int64 with the unit in the name."),
    (kinds.is_interval, "Parquet has no form for it.", "Use int64 with the unit in the name."),
    (kinds.is_null, "Such a column can hold nothing.", "Say the type of the values that will come."),
    (kinds.is_decimal, "A decimal has 1 to 38 digits, of which 0 to all may follow the point.", "Use fewer digits."),
)


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as a topic keeps it; refuses names and types that have no place in a topic.

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
        if name.casefold() == "record":
            raise Invalid(
                f'column "{name}" has a reserved name',
                detail='Every topic has a struct "record" with the partition, offset, time, change and headers of a row.',
                hint='Call it something else, such as "entry".',
                column=name,
            )
    return pa.schema([_normal_field(field, field.name, 1) for field in schema])


def normal_type(data_type: pa.DataType, path: str = "", depth: int = 1) -> pa.DataType:
    """The type that a topic keeps values of this Arrow type as; `path` names the column in an error.

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
    if kinds.is_timestamp(data_type):
        return pa.timestamp("us", "UTC" if data_type.tz else None)
    if kinds.is_time(data_type):
        return pa.time64("us")
    if kinds.is_fixed_size_binary(data_type) and not kinds.is_decimal(data_type):
        return pa.binary()
    if kinds.is_decimal(data_type) and 1 <= data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return pa.decimal128(data_type.precision, data_type.scale)
    if kinds.is_dictionary(data_type) or kinds.is_run_end_encoded(data_type):
        return normal_type(data_type.value_type, path, depth)
    if isinstance(data_type, pa.JsonType):
        return normal_type(data_type.storage_type, path, depth)
    return _normal_nested(data_type, path, depth)


def _normal_nested(data_type: pa.DataType, path: str, depth: int) -> pa.DataType:
    if kinds.is_map(data_type):
        return pa.map_(
            normal_type(data_type.key_type, f"{path}.key", depth + 1),
            normal_type(data_type.item_type, f"{path}.value", depth + 1),
        )
    if is_array(data_type):
        return pa.list_(pa.field("element", normal_type(data_type.value_type, f"{path}.element", depth + 1)))
    if kinds.is_struct(data_type) and data_type.num_fields:
        fields = list(data_type)
        check_names([field.name for field in fields], inside=path)
        return pa.struct([_normal_field(field, f"{path}.{field.name}", depth + 1) for field in fields])
    detail, hint = "", ""
    for matches, reason, remedy in _REASONS:
        if matches(data_type):
            detail, hint = f"{reason} ", f"{remedy} "
    raise Invalid(
        f'column "{path}" has type {data_type}, which a topic cannot store',
        detail=f"{detail}Arrow and Parquet both support: {ALLOWED_TYPES}.",
        hint=f"{hint}Or convert the column to one of these types.",
        column=path,
    )


def _normal_field(field: pa.Field, path: str, depth: int) -> pa.Field:
    comment = (field.metadata or {}).get(COMMENT)
    metadata = {COMMENT: comment} if comment else None
    return pa.field(field.name, normal_type(field.type, path, depth), nullable=field.nullable, metadata=metadata)


def is_array(data_type: pa.DataType) -> bool:
    """Whether values are lists, in any of Arrow's five forms."""
    return bool(
        kinds.is_list(data_type)
        or kinds.is_large_list(data_type)
        or kinds.is_fixed_size_list(data_type)
        or kinds.is_list_view(data_type)
        or kinds.is_large_list_view(data_type)
    )


def check_names(names: Iterable[str], *, inside: str) -> None:
    """Refuses names of columns, or of the fields of the struct `inside`, that no tool could tell apart or show."""
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

    NOT NULL is a check on append; a tombstone has no other columns than its key, so what is stored must allow it.

    >>> nullable_schema(pa.schema([pa.field("id", pa.string(), nullable=False)]))
    id: string
    """
    return pa.schema([_nullable_field(field) for field in schema], metadata=schema.metadata)


def has_required(field: pa.Field) -> bool:
    """Whether a field is NOT NULL, or one inside it is."""
    if not field.nullable:
        return True
    if kinds.is_struct(field.type):
        return any(map(has_required, field.type))
    if kinds.is_map(field.type):
        return has_required(pa.field("key", field.type.key_type)) or has_required(field.type.item_field)
    return bool(kinds.is_list(field.type) and has_required(field.type.value_field))


def _nullable_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _nullable_type(field.type), metadata=field.metadata)


def _nullable_type(data_type: pa.DataType) -> pa.DataType:
    if kinds.is_struct(data_type):
        return pa.struct([_nullable_field(field) for field in data_type])
    if kinds.is_map(data_type):
        return pa.map_(_nullable_type(data_type.key_type), _nullable_type(data_type.item_type))
    if kinds.is_list(data_type):
        return pa.list_(pa.field("element", _nullable_type(data_type.value_type)))
    return data_type
