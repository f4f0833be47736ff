"""Freezes a topic: its records between two positions become the files of a `FrozenTopic`.

Sealed segments are linked, not copied: compaction and retention may take them out of the log meanwhile. What is not
sealed is at most a segment of each partition.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.errors import FellOff
from mainstem.log.embedded.read.partition_reader import PartitionReader, Visible
from mainstem.log.embedded.upkeep.manifest import Manifest, SealedEntry
from mainstem.log.frozen_topic import Cut, FrozenTopic, new_folder
from mainstem.log.partition_reads import Position, offsets_at, stops_at
from mainstem.log.topic_reads import MomentReads

if TYPE_CHECKING:
    from mainstem.log.embedded.embedded_topic import EmbeddedMoment, EmbeddedTopic

__all__ = ["freeze"]

# A sealed file may be compacted away or dropped between the look and the link; then all of it is done again.
TRIES = 10

# As sealed segments have them: Spark works by row groups.
ROW_GROUP_ROWS = 131_072

# File systems without hard links, or a topic that was moved to another one.
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def freeze(topic: EmbeddedTopic, home: str, start: Position, stop: Position, delay: int | None) -> FrozenTopic:
    """The records between two positions. With a delay, those that are not sealed have their watermark in `record`."""
    for left in reversed(range(TRIES)):
        folder = new_folder(home)
        try:
            return _Freeze(topic, folder, delay).run(start, stop)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not left or not isinstance(error, FileNotFoundError | FellOff):
                raise
    raise AssertionError


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
