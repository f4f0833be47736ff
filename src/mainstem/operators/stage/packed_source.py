"""The Spark source of one topic; its rows are packed if a stage asks for it (see `packed_rows`).

As light to import as `topic_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_source import TopicSource
from mainstem.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from mainstem.spark.sources.topic_stream_reader import TopicStreamReader

__all__ = ["PACKING", "PackedTopicSource"]

# The option with the packing.
PACKING = "packing"


class PackedTopicSource(TopicSource):
    """`TopicSource`, with rows that are packed if the option is given."""

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        if PACKING not in self.options:
            return super().streamReader(schema)
        from mainstem.operators.stage.packed_reader import PackedTopicReader

        request = TopicRequest.from_options(self.options)
        return PackedTopicReader(request, arrow_schema(schema), self.options[PACKING])
