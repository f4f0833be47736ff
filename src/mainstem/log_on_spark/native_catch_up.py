"""NativeCatchUp: large batches of sealed history, scanned by Spark itself instead of being sent to it by Python.

A flow that keeps no state may run a batch in either way. Spark plans it as always: the topic source says where it ends,
holds it, and Spark notes it down. Whoever then writes the batch takes its rows from the stream, or, if they are many and
most of them are sealed, from the same program built over a native scan of the same offsets. So there is no switch to
survive: killed anywhere, the batch is run again with the same number, offsets and rows, in whichever way.

Not for a flow that looks at the clock or rolls dice: as a stream it would see the batch's own time, here another one.
Not for one with state, whose rows must come through Spark's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mainstem.errors import MainstemError
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.holds import Range
from mainstem.log.log import Log
from mainstem.log_on_spark.build import Leaf
from mainstem.log_on_spark.checkpoint_offsets import batch_offsets
from mainstem.log_on_spark.flow_run import FlowRun
from mainstem.log_on_spark.topic_read import scanned
from mainstem.log_on_spark.topic_request import holder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NativeCatchUp"]

# Less is done sooner by the stream: to link files and to build the program once more takes a tenth of a second.
ROWS_MIN = 50_000
# What is not sealed is written out first, which costs as much as to send it.
UNSEALED_SHARE_MAX = 0.25

Leaves = Mapping[int, Leaf]
# From the rows of each leaf to those of the flow.
Built = Callable[[Mapping[int, "DataFrame"]], "DataFrame"]


class NativeCatchUp:
    """The batches of one run of a flow without state. For one thread."""

    def __init__(
        self, log: Log, home: str, spark: SparkSession, run: FlowRun, checkpoint: str, leaves: Leaves, built: Built
    ) -> None:
        self._log = log
        self._home = home
        self._spark = spark
        self._run = run
        self._checkpoint = checkpoint
        self._leaves = leaves
        self._built = built

    @contextmanager
    def rows(self, number: int, stream: DataFrame) -> Iterator[DataFrame]:
        """The rows of a batch: those of the stream, or the same ones by a native scan."""
        ranges = self._ranges(number)
        if ranges is None or not self._worth_it(ranges):
            yield stream
            return
        with ExitStack() as files:
            frames = {}
            for leaf, held in ranges.items():
                topic = self._topic(leaf)
                frames[leaf] = files.enter_context(
                    scanned(self._spark, topic, self._home, self._leaves[leaf].schema, held, self._leaves[leaf].delay)
                )
                if _changed(topic, held):
                    # Compacted or dropped since the batch was planned: the stream reads what was kept of it.
                    yield stream
                    return
            yield self._same(frames, stream)

    def _same(self, frames: Mapping[int, DataFrame], stream: DataFrame) -> DataFrame:
        """The flow's rows over these; those of the stream if the program cannot be built so."""
        from pyspark.errors import PySparkException

        try:
            rows = self._built(frames)
        except (PySparkException, MainstemError):
            return stream
        same = [(field.name, field.dataType) for field in rows.schema] == [
            (field.name, field.dataType) for field in stream.schema
        ]
        return rows if same and not rows.isStreaming else stream

    def _topic(self, leaf: int) -> EmbeddedTopic:
        topic = self._log.open_topic(self._leaves[leaf].source)
        assert isinstance(topic, EmbeddedTopic)
        return topic

    def _ranges(self, number: int) -> dict[int, dict[int, Range]] | None:
        """The offsets of a batch by leaf and partition: those that are held for it. None if that is not certain."""
        ends = batch_offsets(self._checkpoint, number)
        found = {}
        for leaf in self._leaves:
            topic = self._topic(leaf)
            held = topic.store.holds.of(holder_of(self._run, leaf))
            theirs = ends.get(topic.name, {})
            if any(theirs.get(partition) != end for partition, (_, end) in held.items()):
                return None
            found[leaf] = held
        return found

    def _worth_it(self, ranges: Mapping[int, Mapping[int, Range]]) -> bool:
        rows = unsealed = 0
        for leaf, held in ranges.items():
            store = self._topic(leaf).store
            for partition, (first, end) in held.items():
                rows += end - first
                unsealed += max(0, end - max(first, store.partitions[partition].manifest_file.read().end))
        return rows >= ROWS_MIN and unsealed <= rows * UNSEALED_SHARE_MAX


def _changed(topic: EmbeddedTopic, held: Mapping[int, Range]) -> bool:
    return any(
        copy.base < end and copy.end > first
        for partition, (first, end) in held.items()
        for copy in topic.store.holds.copies(partition)
    )
