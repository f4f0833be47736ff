"""The rows of a flow in real time as messages of a topic, encoded by Spark alone, for Spark's own Kafka sink.

They are what `KafkaTopic.append` would send: the value as the codec writes it, the key as the partitioner has it, changes and
headers of `record`. Each also says where it came from, for a row may come twice: `origin`, a header such as `orders/0/512`, on
rows that still have their `record`. There is nobody to reject a row for its own sake: one that the topic cannot take stops
the flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.kafka.kafka_messages import CHANGE_HEADER
from mainstem.log.topic_settings import TopicSettings
from mainstem.log_on_spark.real_time_rows import read_natively
from mainstem.log_on_spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["ORIGIN_HEADER", "messages_of", "unfit_sink"]

ORIGIN_HEADER = "origin"
_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def unfit_sink(settings: TopicSettings) -> str:
    """Why Spark alone cannot write messages for a topic; empty if it can."""
    if settings.codec == "arrow":
        return 'its codec is "arrow": a message holds many rows'
    if len(settings.key) > 1:
        return f"its key has {len(settings.key)} columns"
    for name in settings.key:
        kind = settings.schema.field(name).type
        if not (kinds.is_string(kind) or kinds.is_binary(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind)):
            return f'its key "{name}" is neither text, nor bytes, nor a whole number'
    if unfit := [field.name for field in settings.schema if not read_natively(field.type)]:
        return f'Spark does not write the type of its column "{unfit[0]}" as the log does'
    return ""


def messages_of(rows: DataFrame, settings: TopicSettings, *, source: str = "") -> DataFrame:
    """Rows with the columns `key`, `value` and `headers`, as Spark's Kafka sink takes them.

    `source`: the topic that the rows' `record` is of, where it is of one alone.
    """
    from pyspark.sql import functions as F

    stored = settings.stored_schema
    columns: dict[str, Column] = {}
    for field, spark_field in zip(stored, spark_schema(_plain(stored)).fields, strict=True):
        given = F.col(f"`{field.name}`") if field.name in rows.columns else F.lit(None)
        columns[field.name] = given.cast(spark_field.dataType)
    change = F.col("record.change") if "record" in rows.columns else F.lit("insert")
    deleted = F.coalesce(change == "delete", F.lit(False))
    value = _value(columns, settings)
    if settings.keep.compacted:
        value = F.when(~deleted, value)
    key = _key(columns[settings.key[0]], stored.field(settings.key[0]).type) if settings.key else F.lit(None)
    checked = _required(columns, settings, deleted)
    return rows.select(
        key.cast("binary").alias("key"),
        (value if checked is None else F.when(checked, value)).cast("binary").alias("value"),
        _headers(rows, change, source).alias("headers"),
    )


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def _value(columns: dict[str, Column], settings: TopicSettings) -> Column:
    from pyspark.sql import functions as F

    if settings.codec == "raw":
        [column] = columns.values()
        return column
    kinds_of = {field.name: field.dataType for field in spark_schema(_plain(settings.stored_schema)).fields}
    parts = [column.cast(_textual(kinds_of[name])).alias(name) for name, column in columns.items()]
    return F.to_json(F.struct(*parts), _JSON)


def _textual(kind: DataType) -> DataType:
    """The same type with decimals as text, so that no reader rounds them."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_textual(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _textual(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(at.name, _textual(at.dataType), at.nullable) for at in kind.fields])
    return kind


def _key(column: Column, kind: pa.DataType) -> Column:
    return column if kinds.is_binary(kind) else column.cast("string")


def _required(columns: dict[str, Column], settings: TopicSettings, deleted: Column) -> Column | None:
    """True of a row that has all it must have; any other ends the batch."""
    from pyspark.sql import functions as F

    names = [field.name for field in settings.schema if not field.nullable]
    if settings.keep.compacted:
        names += [name for name in settings.key if name not in names]
    found: Any = None
    for name in names:
        message = f'column "{name}" of topic "{settings.name}" must not be null'
        missing = columns[name].isNull()
        if name not in settings.key:
            # In a deletion nothing but the key is needed.
            missing &= ~deleted
        one = F.when(missing, F.raise_error(F.lit(message)).cast("boolean")).otherwise(F.lit(True))
        found = one if found is None else found & one
    return None if found is None else found


def _headers(rows: DataFrame, change: Column, source: str) -> Column:
    """Those of `record`, where the row came from, and the change where it is not an insert."""
    from pyspark.sql import functions as F

    kind = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
    none = F.expr(f"CAST(array() AS {kind})")
    if "record" not in rows.columns:
        return none

    def header(name: str, value: Column) -> Column:
        return F.array(F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))).cast(kind)

    said = F.when(F.coalesce(change != "insert", F.lit(False)), header(CHANGE_HEADER, change)).otherwise(none)
    given = F.coalesce(F.col("record.headers").cast(kind), none)
    if not source:
        return F.concat(given, said)
    place = F.concat_ws("/", F.lit(source), F.col("record.partition"), F.col("record.offset"))
    kept = F.filter(given, lambda each: each["key"] != ORIGIN_HEADER)
    return F.concat(kept, header(ORIGIN_HEADER, place), said)
