"""A snapshot of a topic as a DataFrame: a native scan of frozen Parquet files.

The files stay for as long as Spark knows the scan: every frame made from it, cached or not, holds on to the same
relation in Spark's own memory, and a weak reference there tells when the last one is gone. Looked at when the next read
begins, and at the end of the process; what a killed process left, the next one removes.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.errors import FellOff
from mainstem.log.embedded.embedded_topic import EmbeddedMoment, EmbeddedTopic
from mainstem.log.embedded.read.partition_reader import PartitionReader, Visible
from mainstem.log.embedded.read.sealed_segment import TIME
from mainstem.log.embedded.upkeep.manifest import Manifest, SealedEntry
from mainstem.log.partition_reads import Position, offsets_at, stops_at
from mainstem.log.record import RECORD, RECORD_MARK
from mainstem.log.topic_reads import MomentReads
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.processes import alive, this_process
from mainstem.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Cut", "FrozenTopic", "READ_RECORD", "freeze", "read_topic", "remove_left_behind", "with_watermark"]


# FrozenTopic: what a topic held at one moment, as a folder of Parquet files that nothing changes any more.
#
#     reads/<process>-<random>/whole/      hard links of sealed segments, and what is not sealed, written out
#                              cut/        hard links of segments of which only a range of offsets is wanted
#
# Sealed segments are linked, not copied: compaction and retention may take them out of the log meanwhile. What is not
# sealed is at most a segment of each partition. All of a transaction is in it or nothing of it, as in every bounded read.


# A sealed file may be compacted away or dropped between the look and the link; then all of it is done again.
TRIES = 10

# As sealed segments have them: Spark works by row groups.
ROW_GROUP_ROWS = 131_072

# File systems without hard links, or a topic that was moved to another one.
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True)
class Cut:
    """Offsets of one partition, of which the segments in `cut/` hold more."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True)
class FrozenTopic:
    """The files of one read."""

    folder: str
    cuts: tuple[Cut, ...]

    @property
    def whole(self) -> str:
        return f"{self.folder}/whole"

    @property
    def cut(self) -> str:
        return f"{self.folder}/cut"

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def freeze(topic: EmbeddedTopic, home: str, start: Position, stop: Position, delay: int | None) -> FrozenTopic:
    """The records between two positions. With a delay, those that are not sealed have their watermark in `record`."""
    for left in reversed(range(TRIES)):
        folder = f"{home}/reads/{_process_word()}-{uuid.uuid4().hex[:12]}"
        try:
            return _Freeze(topic, folder, delay).run(start, stop)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not left or not isinstance(error, FileNotFoundError | FellOff):
                raise
    raise AssertionError


def remove_left_behind(home: str) -> None:
    """Remove the reads of processes that are gone."""
    with suppress(FileNotFoundError):
        for name in os.listdir(f"{home}/reads"):
            pid, _, started = name.split("-")[0].partition(".")
            if not alive({"pid": int(pid), "started": int(started), "boot": this_process()["boot"]}):
                shutil.rmtree(f"{home}/reads/{name}", ignore_errors=True)


class _Freeze:
    """One try to freeze a topic."""

    def __init__(self, topic: EmbeddedTopic, folder: str, delay: int | None) -> None:
        self._topic = topic
        self._frozen = FrozenTopic(folder, ())
        self._delay = delay
        os.makedirs(self._frozen.whole)
        os.makedirs(self._frozen.cut)

    def run(self, start: Position, stop: Position) -> FrozenTopic:
        moment = self._topic.moment()
        numbers = list(range(self._topic.settings.partitions))
        reads = MomentReads(self._topic, moment)
        starts, stops = offsets_at(start, reads, numbers), stops_at(stop, reads, numbers)
        cuts: list[Cut] = []
        for number in numbers:
            if number in stops:
                first = starts.get(number, moment.earliest(number))
                cuts += self._partition(moment, number, first, min(stops[number], moment.latest(number)))
        return FrozenTopic(self._frozen.folder, tuple(cuts))

    def _partition(self, moment: EmbeddedMoment, number: int, first: int, end: int) -> Iterator[Cut]:
        reader = self._topic.store.readers[number]
        visible = moment.visible(number)
        manifest = self._manifest_of(reader, visible)
        if first < min(manifest.start, end):
            raise reader.fell_off(first, manifest.start)
        copied: list[tuple[int, int]] = []
        for entry in manifest.segments:
            low, high = max(first, entry.base), min(end, entry.end)
            if low >= high:
                continue
            if any(since < entry.end and until > entry.base for since, until in visible.hidden):
                # Decided and sealed after this moment: what is to be hidden is left out row by row.
                copied.append((low, high))
            elif (low, high) == (entry.base, entry.end):
                self._link(reader, entry, number, self._frozen.whole)
            else:
                self._link(reader, entry, number, self._frozen.cut)
                yield Cut(number, low, high)
        copied.append((max(first, manifest.end), end))
        self._write(number, chain.from_iterable(
            moment.read(number, low, high, None, self._delay) for low, high in copied if low < high
        ))  # fmt: skip
        self._manifest_of(reader, visible)

    def _manifest_of(self, reader: PartitionReader, visible: Visible) -> Manifest:
        manifest = reader.partition.manifest_file.read()
        if manifest.cleaned > visible.end:
            # Compacted meanwhile by records that this moment does not show: a key might be missing altogether.
            raise FileNotFoundError(reader.partition.folder)
        return manifest

    def _link(self, reader: PartitionReader, entry: SealedEntry, number: int, folder: str) -> None:
        if not entry.rows:
            return
        source, target = reader.whole_sealed_path(entry), f"{folder}/{number}-{entry.file}"
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(source, target)

    def _write(self, number: int, batches: Iterator[pa.RecordBatch]) -> None:
        """Uncompressed and without dictionaries: it is read soon, and not for long."""
        first = next(batches, None)
        if first is None:
            return
        with pq.ParquetWriter(
            f"{self._frozen.whole}/{number}-tail.parquet", first.schema, compression="none", use_dictionary=False,
            store_schema=False,
        ) as writer:  # fmt: skip
            held = [first]
            for batch in batches:
                held.append(batch)
                if sum(part.num_rows for part in held) >= ROW_GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(held).combine_chunks())
                    held = []
            if held:
                writer.write_table(pa.Table.from_batches(held).combine_chunks())


def _process_word() -> str:
    identity = this_process()
    return f"{identity['pid']}.{identity['started']}"


# Sealed files have the first two, what was written out for this read has the last; each is null in the other.
READ_RECORD = pa.struct([*RECORD, ("observed_up_to", TIME), ("stated_watermark", TIME), ("watermark", TIME)])


class _Read(NamedTuple):
    """Files that are in use for as long as one of the relations is known to Spark."""

    spark: SparkSession
    frozen: FrozenTopic
    relations: list[Any]

    def over(self) -> bool:
        context = self.spark.sparkContext
        return context._jsc is None or all(relation.get() is None for relation in self.relations)


_reads: list[_Read] = []
_guard = threading.Lock()


def read_topic(
    spark: SparkSession, topic: EmbeddedTopic, home: str, shown: pa.Schema, start: Position, stop: Position,
    delay: int | None,
) -> DataFrame:  # fmt: skip
    """The records between two positions, with the columns of `shown`."""
    _remove_unused(home)
    frozen = freeze(topic, home, start, stop, delay)
    try:
        rows = _scan(spark, frozen, shown, delay)
        relations = [spark._jvm.java.lang.ref.WeakReference(found) for found in _relations(rows)]  # type: ignore[union-attr]
    except BaseException:
        frozen.remove()
        raise
    with _guard:
        _reads.append(_Read(spark, frozen, relations))
    return rows


def _scan(spark: SparkSession, frozen: FrozenTopic, shown: pa.Schema, delay: int | None) -> DataFrame:
    from pyspark.sql import functions as F

    record = RECORD if delay is None else READ_RECORD
    stored = shown.set(len(shown) - 1, pa.field("record", record, metadata=RECORD_MARK))
    reader = spark.read.schema(spark_schema(stored))
    rows = reader.parquet(frozen.whole)
    if frozen.cuts:
        wanted = (
            (F.col("record.partition") == cut.partition)
            & (F.col("record.offset") >= cut.first)
            & (F.col("record.offset") < cut.end)
            for cut in frozen.cuts
        )
        rows = rows.union(reader.parquet(frozen.cut).where(reduce(or_, wanted)))
    return rows if delay is None else with_watermark(rows, delay)


def with_watermark(rows: DataFrame, delay: int) -> DataFrame:
    """With the watermark at each record in place of what it follows from."""
    from pyspark.sql import functions as F

    observed = F.col("record.observed_up_to") - F.expr(f"INTERVAL '{delay / 1_000_000:.6f}' SECOND")
    known = F.greatest(observed, F.col("record.stated_watermark"), F.col("record.watermark"))
    assert READ_RECORD.field(len(READ_RECORD) - 1).name == WATERMARKED_RECORD.field(len(RECORD)).name
    changed = F.col("record").withField("watermark", known).dropFields("observed_up_to", "stated_watermark")
    marks = {name.decode(): value.decode() for name, value in RECORD_MARK.items()}
    return rows.select(*rows.columns[:-1], changed.alias("record", metadata=marks))


def _relations(rows: DataFrame) -> list[Any]:
    """What Spark's plans hold of the scanned files, in all that is made from these rows."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    return [
        leaf.relation() if leaf.getClass().getSimpleName() == "LogicalRelation" else leaf.table()
        for leaf in (leaves.apply(index) for index in range(leaves.size()))
    ]


def _remove_unused(home: str) -> None:
    remove_left_behind(home)
    with _guard:
        for read in [read for read in _reads if read.over()]:
            read.frozen.remove()
            _reads.remove(read)


@atexit.register
def _remove_all() -> None:
    with _guard:
        while _reads:
            _reads.pop().frozen.remove()
