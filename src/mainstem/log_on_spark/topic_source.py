"""The topic source: a topic of the log as a streaming source of Spark.

Spark begins a Python process each time such a source is named, before it knows whether it will be read: so nothing that
takes long is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mainstem.log_on_spark.spark_types import arrow_schema
from mainstem.log_on_spark.topic_request import PACKING, TOPIC_SOURCE, TopicRequest

if TYPE_CHECKING:
    from mainstem.log_on_spark.kafka_topic_reader import KafkaTopicReader
    from mainstem.log_on_spark.topic_stream_reader import TopicStreamReader

__all__ = ["TopicSource", "TopicStreamReader"]


def __getattr__(name: str) -> Any:
    """`TopicStreamReader` is found here too, and imported only when somebody asks for it."""
    if name == "TopicStreamReader":
        from mainstem.log_on_spark.topic_stream_reader import TopicStreamReader

        return TopicStreamReader
    raise AttributeError(name)


class TopicSource(DataSource):
    """`spark.readStream.format("mainstem_topic")`; see `SparkTopic.stream`."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_SOURCE

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        from mainstem.log_on_spark.topic_stream_reader import TopicStreamReader

        request = TopicRequest.from_options(self.options)
        if request.log:
            from mainstem.log_on_spark.kafka_stream_reader import KafkaStreamReader

            return KafkaStreamReader(request, arrow_schema(schema), self.options.get(PACKING, ""))
        return TopicStreamReader(request, arrow_schema(schema), self.options.get(PACKING, ""))

    def reader(self, schema: StructType) -> KafkaTopicReader:
        """What a topic on Kafka holds; one in the home is read by Spark itself."""
        from mainstem.log_on_spark.kafka_topic_reader import KafkaTopicReader

        return KafkaTopicReader(TopicRequest.from_options(self.options), arrow_schema(schema))
