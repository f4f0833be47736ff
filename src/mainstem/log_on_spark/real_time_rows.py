"""A topic on Kafka as Spark's own source gives it, decoded by Spark alone: for flows in real time.

The columns and the `record` are those that every other stream of the topic has. What differs: Spark reads JSON, which takes
a number for text where `JsonCodec` does not; and a value that cannot be read is left out here and counted, and whoever
watches the flow has it noted where all unreadable values are (`real_time_watch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_messages import CHANGE_HEADER, OWN_HEADERS
from mainstem.log.log import Log
from mainstem.log.partition_reads import Position, offsets_at
from mainstem.log.topic_reads import LiveReads
from mainstem.log.topic_settings import TopicSettings
from mainstem.log_on_spark.build import Leaf
from mainstem.log_on_spark.kafka_connector import have_connector, java_options
from mainstem.log_on_spark.real_time_note import UNREADABLE, starting_offsets
from mainstem.log_on_spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["decoded", "read_natively", "real_time_rows"]

CORRUPT = "mainstem_corrupt"


def read_natively(kind: pa.DataType) -> bool:
    """Whether Spark reads a type out of JSON as the log writes it there."""
    if kinds.is_map(kind):
        return bool(kinds.is_string(kind.key_type)) and read_natively(kind.item_type)
    if kinds.is_nested(kind):
        return all(read_natively(kind.field(place).type) for place in range(kind.num_fields))
    return bool(
        kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_string(kind)
        or kinds.is_binary(kind) or kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_timestamp(kind)
    )  # fmt: skip


def real_time_rows(spark: SparkSession, log: Log, name: str, leaf: Leaf, start: Position) -> DataFrame:
    """The records of a topic as they come, with the columns that a flow needs of it."""
    assert isinstance(log, KafkaLog), "nothing else is let through when a program is built"
    topic = log.open_topic(name)
    have_connector(spark)
    numbers = list(range(topic.settings.partitions))
    reads = LiveReads(topic)
    offsets = offsets_at("earliest", reads, numbers) | offsets_at(start, reads, numbers)
    options = {
        **java_options(log.kafka_settings),
        "kafka.isolation.level": "read_committed",
        "subscribe": topic.kafka_name,
        "startingOffsets": starting_offsets(topic.kafka_name, offsets),
        "includeHeaders": "true",
        # What the brokers dropped before it was read is told, not passed over.
        "failOnDataLoss": "true",
    }
    messages = spark.readStream.format("kafka").options(**options).load()
    columns = tuple(leaf.schema.names) if leaf.columns is None else leaf.columns
    shown = leaf.schema.names if leaf.filled else columns
    wanted = pa.schema([leaf.schema.field(name) for name in shown])
    return decoded(messages, topic.settings, wanted, f"{UNREADABLE}{leaf.number}")


def decoded(messages: DataFrame, settings: TopicSettings, wanted: pa.Schema, counted_as: str) -> DataFrame:
    """The rows of messages as Spark's source has them; how many could not be read is observed under a name."""
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
        # A value of null deletes its key: the key's columns are read from the key.
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
    """What the log knows of a message; see `kafka_messages`."""
    from pyspark.sql import functions as F

    headers = F.coalesce(F.col("headers"), F.expr("CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"))

    def named(header: Any) -> Any:
        return header["key"] == CHANGE_HEADER

    def foreign(header: Any) -> Any:
        return ~header["key"].startswith(OWN_HEADERS)

    said = F.element_at(F.transform(F.filter(headers, named), lambda header: header["value"].cast("string")), -1)
    change = F.coalesce(F.when(F.size(F.filter(headers, named)) > 0, said), F.when(
        F.col("value").isNull(), F.lit("delete")).otherwise(F.lit("insert")))  # fmt: skip
    own = F.filter(headers, foreign)
    return F.struct(
        F.col("partition").alias("partition"),
        F.col("offset").alias("offset"),
        F.col("timestamp").alias("appended_at"),
        change.alias("change"),
        F.when(F.size(own) > 0, own).alias("headers"),
    )
