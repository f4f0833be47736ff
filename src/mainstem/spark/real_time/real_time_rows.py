"""A topic on Kafka from Spark's own source, decoded by Spark alone: for real-time flows.

The columns and the `record` are those of every other stream of the topic. Two differences: Spark's JSON reader accepts a
number as text, which `JsonCodec` does not; and an unreadable value is skipped here and counted, and the thread that watches
the flow copies it to the unreadable messages (`flows.real_time`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.log import Log
from mainstem.log.partition_reads import Position, offsets_at
from mainstem.log.topic_reads import LiveReads
from mainstem.log.topic_settings import TopicSettings
from mainstem.spark.build import Leaf
from mainstem.spark.real_time.kafka_connector import have_connector, java_options
from mainstem.spark.real_time.real_time_note import UNREADABLE, starting_offsets
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from mainstem.log.kafka.kafka_log import KafkaLog

__all__ = [
    "ORIGIN_HEADER",
    "brokers_of",
    "decode_messages",
    "messages_of",
    "read_natively",
    "real_time_rows",
    "unfit_operator",
    "unfit_sink",
]


# The operators of a plan that Spark's real-time mode does not support: found before anything is started.
#
# Real-time mode passes each row on as it arrives, so it supports only operators that work row by row, in Java.


# Nodes that real-time mode supports.
ALLOWED = frozenset(
    ["CollectMetrics", "Expand", "Filter", "Generate", "Join", "Project", "ResolvedHint", "StreamingRelationV2",
     "StreamingRelation", "SubqueryAlias", "Union", "View"]
)  # fmt: skip

# The names of the others for messages.
WORDS = {
    "ArrowEvalPython": "a function in Python (a UDF)",
    "BatchEvalPython": "a function in Python (a UDF)",
    "ArrowEvalPythonUDTF": "a table function in Python",
    "BatchEvalPythonUDTF": "a table function in Python",
    "EventTimeWatermark": "a watermark",
    "LocalLimit": "a limit",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "PythonMapInArrow": "mapInArrow",
    "Repartition": "repartition",
    "RepartitionByExpression": "repartition",
    "Sort": "a sort",
}


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def unfit_operator(rows: DataFrame) -> str:
    """The first operator that real-time mode does not support; empty if there is none."""
    session = rows.sparkSession._jsparkSession
    plan = session.sessionState().optimizer().execute(rows._jdf.queryExecution().analyzed())
    for node in _nodes(plan):
        name = node.nodeName()
        if node.isStreaming() and name not in ALLOWED:
            return WORDS.get(name, f'"{name}"')
    return ""


CORRUPT = "mainstem_corrupt"


def read_natively(kind: pa.DataType) -> bool:
    """Whether Spark reads a type from JSON as the log writes it."""
    if kinds.is_map(kind):
        return bool(kinds.is_string(kind.key_type)) and read_natively(kind.item_type)
    if kinds.is_nested(kind):
        return all(read_natively(kind.field(place).type) for place in range(kind.num_fields))
    return bool(
        kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_string(kind)
        or kinds.is_binary(kind) or kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_timestamp(kind)
    )  # fmt: skip


def brokers_of(log: Log) -> KafkaLog:
    """The log on Kafka: a real-time flow over another log is refused when its program is built."""
    # Every runner imports this module, and Kafka's client is an extra.
    from mainstem.log.kafka.kafka_log import KafkaLog

    assert isinstance(log, KafkaLog)
    return log


def real_time_rows(spark: SparkSession, log: Log, name: str, leaf: Leaf, start: Position) -> DataFrame:
    """The records of a topic as they arrive, with the columns that a flow needs."""
    brokers = brokers_of(log)
    topic = brokers.open_topic(name)
    have_connector(spark)
    numbers = list(range(topic.settings.partitions))
    reads = LiveReads(topic)
    offsets = offsets_at("earliest", reads, numbers) | offsets_at(start, reads, numbers)
    options = {
        **java_options(brokers.kafka_settings),
        "kafka.isolation.level": "read_committed",
        "subscribe": topic.kafka_name,
        "startingOffsets": starting_offsets(topic.kafka_name, offsets),
        "includeHeaders": "true",
        # Records that the brokers dropped before they were read are an error.
        "failOnDataLoss": "true",
    }
    messages = spark.readStream.format("kafka").options(**options).load()
    columns = tuple(leaf.schema.names) if leaf.columns is None else leaf.columns
    shown = leaf.schema.names if leaf.filled else columns
    wanted = pa.schema([leaf.schema.field(name) for name in shown])
    return decode_messages(messages, topic.settings, wanted, f"{UNREADABLE}{leaf.number}")


def decode_messages(messages: DataFrame, settings: TopicSettings, wanted: pa.Schema, counted_as: str) -> DataFrame:
    """The rows of messages of Spark's source; the number of unreadable ones is the metric `counted_as`."""
    from pyspark.sql import functions as F

    if settings.codec == "raw":
        [name] = settings.schema.names
        columns: dict[str, Column] = {name: F.col("value")}
        rows = messages
    else:
        rows, columns = _from_json(messages, settings, counted_as)
    columns["record"] = _record()
    marked = spark_schema(wanted)
    return rows.select(
        *(
            columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in marked
        )
    )


def _from_json(messages: DataFrame, settings: TopicSettings, counted_as: str) -> tuple[DataFrame, dict[str, Column]]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    stored = settings.stored_schema
    known = spark_schema(pa.schema([field.remove_metadata() for field in stored if read_natively(field.type)]))
    schema = StructType([*known.fields, StructField(CORRUPT, StringType())])
    parsed = F.from_json(
        F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    )
    rows = messages.withColumn("parsed", parsed)
    gone = F.col("value").isNull()
    by_key = F.col("key").isNotNull() if settings.key else F.lit(False)
    read = F.when(gone, by_key).otherwise(F.col("parsed").isNotNull() & F.col(f"parsed.{CORRUPT}").isNull())
    rows = rows.withColumn("read", read)
    rows = rows.observe(counted_as, F.count(F.when(~F.col("read"), 1)).alias("values")).where("read")
    columns: dict[str, Column] = {field.name: F.col(f"parsed.`{field.name}`") for field in known.fields}
    for place, name in enumerate(settings.key):
        # A null value (tombstone) deletes its key: the key's columns are read from the key.
        columns[name] = F.when(gone, _key_column(settings, place)).otherwise(columns[name])
    return rows, columns


def _key_column(settings: TopicSettings, place: int) -> Column:
    from pyspark.sql import functions as F

    field = settings.stored_schema.field(settings.key[place])
    data_type = spark_schema(pa.schema([field.remove_metadata()])).fields[0].dataType
    text = F.col("key").cast("string")
    if len(settings.key) == 1:
        if kinds.is_binary(field.type):
            return F.col("key")
        if kinds.is_string(field.type):
            return text
        text = F.concat(F.lit("["), text, F.lit("]"))
    part = F.get_json_object(text, f"$[{place}]")
    return F.unbase64(part) if kinds.is_binary(field.type) else part.cast(data_type)


def _record() -> Column:
    """The column `record` of a message; see `kafka_messages`."""
    from pyspark.sql import functions as F

    from mainstem.log.kafka.kafka_messages import CHANGE_HEADER, OWN_HEADERS

    headers = F.coalesce(F.col("headers"), F.expr("CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"))

    def is_change(header: Any) -> Any:
        return header["key"] == CHANGE_HEADER

    def foreign(header: Any) -> Any:
        return ~header["key"].startswith(OWN_HEADERS)

    said = F.element_at(F.transform(F.filter(headers, is_change), lambda header: header["value"].cast("string")), -1)
    change = F.coalesce(F.when(F.size(F.filter(headers, is_change)) > 0, said), F.when(
        F.col("value").isNull(), F.lit("delete")).otherwise(F.lit("insert")))  # fmt: skip
    own = F.filter(headers, foreign)
    return F.struct(
        F.col("partition").alias("partition"),
        F.col("offset").alias("offset"),
        F.col("timestamp").alias("appended_at"),
        change.alias("change"),
        F.when(F.size(own) > 0, own).alias("headers"),
    )


# The rows of a real-time flow as messages of a topic, encoded by Spark alone, for Spark's own Kafka sink.
#
# They are what `KafkaTopic.append` would send: the value as the codec writes it, the key of the partitioner, changes and
# headers of `record`. Since a row may be sent twice, rows that still have their `record` also have the header `origin`,
# such as `orders/0/512`. Rows cannot be rejected one by one: a row that does not fit the topic stops the flow.


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
    if settings.codec == "debezium":
        return 'its codec is "debezium": it is only read'
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

    `source`: the topic of the rows' `record`, if there is only one.
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
    checked = _require_columns(columns, settings, deleted)
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


def _require_columns(columns: dict[str, Column], settings: TopicSettings, deleted: Column) -> Column | None:
    """True for a row with all required columns; any other row fails the batch."""
    from pyspark.sql import functions as F

    names = [field.name for field in settings.schema if not field.nullable]
    if settings.keep.compacted:
        names += [name for name in settings.key if name not in names]
    found: Any = None
    for name in names:
        message = f'column "{name}" of topic "{settings.name}" must not be null'
        missing = columns[name].isNull()
        if name not in settings.key:
            # A deletion needs only the key.
            missing &= ~deleted
        one = F.when(missing, F.raise_error(F.lit(message)).cast("boolean")).otherwise(F.lit(True))
        found = one if found is None else found & one
    return None if found is None else found


def _headers(rows: DataFrame, change: Column, source: str) -> Column:
    """The headers of `record`, the origin of the row, and the change if it is not an insert."""
    from pyspark.sql import functions as F

    from mainstem.log.kafka.kafka_messages import CHANGE_HEADER

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
