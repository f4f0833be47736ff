"""The sources of Spark that read topics: one topic, or all topics that match a pattern.

Spark starts a Python process each time such a source is named, before it knows whether it will be read: so nothing
slow is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mainstem.spark.sources.topic_request import TOPIC_SOURCE, TOPICS_SOURCE, TopicRequest
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from mainstem.spark.sources.topic_stream_reader import TopicReader, TopicStreamReader

__all__ = ["TopicSource", "TopicsSource"]


class TopicSource(DataSource):
    """`spark.readStream.format("mainstem_topic")`; see `SparkTopic.stream`."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_SOURCE

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        from mainstem.spark.sources.topic_stream_reader import TopicStreamReader

        return TopicStreamReader(TopicRequest.from_options(self.options), arrow_schema(schema))

    def reader(self, schema: StructType) -> TopicReader:
        from mainstem.spark.sources.topic_stream_reader import TopicReader

        return TopicReader(TopicRequest.from_options(self.options), arrow_schema(schema))


class TopicsSource(TopicSource):
    """`spark.readStream.format("mainstem_topics")`; see `TopicGlob.stream`."""

    @classmethod
    def name(cls) -> str:
        return TOPICS_SOURCE
