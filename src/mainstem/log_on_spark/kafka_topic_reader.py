"""KafkaTopicReader: what a topic on Kafka holds between two positions, as Arrow batches.

With a watermark asked for, every record is on time: when a topic is read as a whole, nothing was known before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mainstem.log_on_spark.kafka_stream_reader import KafkaSlice, read_kafka
from mainstem.log_on_spark.topic_request import TopicRequest
from mainstem.log_on_spark.topic_stream_reader import slices_between

__all__ = ["KafkaTopicReader"]


class KafkaTopicReader(DataSourceReader):
    """A read of one topic; its range stands in the request."""

    def __init__(self, request: TopicRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        starts, stops = (
            {int(number): at for number, at in given.items()} for given in (self._request.start, self._request.stop)
        )
        parts = slices_between(starts, stops, self._request.slices)
        return [KafkaSlice(part.partition, part.start, part.end, None) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KafkaSlice)
        return read_kafka(self._request, self._schema, partition)
