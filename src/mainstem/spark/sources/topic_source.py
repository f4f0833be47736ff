"""The topic source: a topic of the log as a streaming source for Spark.

Spark starts a Python process each time such a source is named, before it knows whether it will be read: so nothing
slow is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mainstem.spark.sources.topic_request import PACKING, TOPIC_SOURCE, TopicRequest
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from mainstem.spark.sources.kafka_stream_reader import KafkaTopicReader
    from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
    from mainstem.spark.sources.topics_stream_reader import TopicsStreamReader

__all__ = ["TopicSource", "TopicStreamReader", "TopicsSource"]


# The topics source: all topics that fit a pattern as one streaming source of Spark. As light as `topic_source`.


class TopicsSource(DataSource):
    """`spark.readStream.format("mainstem_topics")`; see `TopicGlob.stream`."""

    @classmethod
    def name(cls) -> str:
        return "mainstem_topics"

    def streamReader(self, schema: StructType) -> TopicsStreamReader:  # noqa: N802 - Spark's name
        from mainstem.spark.sources.topics_stream_reader import TopicsStreamReader

        request = TopicRequest.from_options(self.options)
        if request.log:
            from mainstem.spark.sources.kafka_topics_reader import KafkaTopicsReader

            return KafkaTopicsReader(request, arrow_schema(schema))
        return TopicsStreamReader(request, arrow_schema(schema))


def __getattr__(name: str) -> Any:
    """`TopicStreamReader` is found here too, and imported only when somebody asks for it."""
    if name == "TopicStreamReader":
        from mainstem.spark.sources.topic_stream_reader import TopicStreamReader

        return TopicStreamReader
    raise AttributeError(name)


class TopicSource(DataSource):
    """`spark.readStream.format("mainstem_topic")`; see `SparkTopic.stream`."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_SOURCE

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        from mainstem.spark.sources.topic_stream_reader import TopicStreamReader

        request = TopicRequest.from_options(self.options)
        if request.log:
            from mainstem.spark.sources.kafka_stream_reader import KafkaStreamReader

            return KafkaStreamReader(request, arrow_schema(schema), self.options.get(PACKING, ""))
        return TopicStreamReader(request, arrow_schema(schema), self.options.get(PACKING, ""))

    def reader(self, schema: StructType) -> KafkaTopicReader:
        """What a topic on Kafka holds; one in the home is read by Spark itself."""
        from mainstem.spark.sources.kafka_stream_reader import KafkaTopicReader

        return KafkaTopicReader(TopicRequest.from_options(self.options), arrow_schema(schema))
