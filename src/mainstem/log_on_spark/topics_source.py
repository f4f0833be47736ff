"""The topics source: all topics that fit a pattern as one streaming source of Spark. As light as `topic_source`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mainstem.log_on_spark.spark_types import arrow_schema
from mainstem.log_on_spark.topic_request import TopicRequest

if TYPE_CHECKING:
    from mainstem.log_on_spark.topics_stream_reader import TopicsStreamReader

__all__ = ["TopicsSource"]


class TopicsSource(DataSource):
    """`spark.readStream.format("mainstem_topics")`; see `TopicGlob.stream`."""

    @classmethod
    def name(cls) -> str:
        return "mainstem_topics"

    def streamReader(self, schema: StructType) -> TopicsStreamReader:  # noqa: N802 - Spark's name
        from mainstem.log_on_spark.topics_stream_reader import TopicsStreamReader

        request = TopicRequest.from_options(self.options)
        if request.log:
            from mainstem.log_on_spark.kafka_topics_reader import KafkaTopicsReader

            return KafkaTopicsReader(request, arrow_schema(schema))
        return TopicsStreamReader(request, arrow_schema(schema))
