"""The steps of a partition: its blocks, and pieces of large blocks and of sealed segments.

Headers suffice for small blocks. Where a time is passed inside a step is found in its rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mainstem.log.embedded.read.partition_reader import PartitionReader, sealed_at
from mainstem.log.embedded.read.sealed_segment import read_sealed
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.write.block import DATA
from mainstem.log.steps import Int64Array, Steps
from mainstem.log.watermark import NO_TIME, times_of

__all__ = ["first_after", "partition_steps", "times_reached"]

# Small enough to cut within a row group, large enough that a million rows are a thousand steps.
STEP_ROWS = 1024

TRIES = 100


def partition_steps(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str | None, start: int, rows_min: int
) -> Steps:
    """The steps from `start` on, until they have `rows_min` rows or the partition ends."""
    end = reader.visible().end
    found: list[tuple[int, int, int]] = []
    rows = tries = 0
    while start < end and rows < rows_min:
        try:
            for step in _segment_steps(reader, schemas, event_time, start, end):
                found.append(step)
                start = step[0]
                rows += step[1]
                tries = 0
                if rows >= rows_min:
                    break
        except FileNotFoundError:  # sealed or compacted meanwhile
            tries += 1
            if tries == TRIES:
                raise
    return Steps.of(found)


def _segment_steps(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str | None, start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """The steps in the segment that holds `start`; the last one ends with the segment."""
    manifest = reader.partition.manifest_file.read()
    if start < manifest.start:
        raise reader.fell_off(start, manifest.start)
    if start >= manifest.end:
        yield from _block_steps(reader, schemas, event_time, start, end)
        return
    entry = sealed_at(manifest, start)
    stop = min(entry.end, end)
    leaves = ["record.offset"] if event_time else ["record.offset", "record.appended_at"]
    columns = [event_time] if event_time else []
    path = reader.sealed_path(entry)
    reached = start
    for batch in read_sealed(reader.files, path, columns=columns, start=start, stop=stop, record_columns=leaves):
        record = batch.column("record")
        offsets = record.field("offset").to_numpy()
        named = event_time is not None and event_time in batch.schema.names
        times = batch.column(event_time) if named else None
        if times is None and not event_time:
            times = record.field("appended_at")
        highest = times_of(times) if times is not None else np.full(len(offsets), NO_TIME)
        for step in _pieces(offsets, highest):
            reached = step[0]
            yield step
    if reached < stop:
        yield stop, 0, NO_TIME


def _block_steps(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str | None, start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    reached = start
    for header in reader.headers_from(start):
        if header.base_offset >= end:
            break
        rows = header.count if header.kind == DATA else 0
        first, reached = max(start, header.base_offset), min(end, header.end_offset)
        if reached <= start:
            continue
        if event_time and rows > STEP_ROWS:
            for offsets, times in _times(reader, schemas, event_time, first, reached):
                yield from _pieces(offsets, times)
            yield reached, 0, NO_TIME
            continue
        time = header.event_time_max if event_time else header.appended_at
        yield reached, min(rows, reached - first), time if rows else NO_TIME
    if reached == start:
        raise FileNotFoundError(reader.partition.folder)


def first_after(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str, start: int, stop: int, time: int
) -> int:
    """The first offset from `start` on whose event time is later; `stop` if there is none before."""
    for offsets, times in _times_cheaply(reader, schemas, event_time, start, stop):
        later = np.flatnonzero(times > time)
        if len(later):
            return int(offsets[later[0]])
    return stop


def times_reached(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str, start: int, stop: int
) -> tuple[Int64Array, Int64Array]:
    """The offsets of the records in a range, and the latest event time from `start` up to each."""
    none = np.empty(0, np.int64)
    parts = list(_times_cheaply(reader, schemas, event_time, start, stop))
    offsets = np.concatenate([none, *(part[0] for part in parts)])
    times = np.concatenate([none, *(part[1] for part in parts)])
    return offsets, np.maximum.accumulate(times)


def _times_cheaply(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str, start: int, stop: int
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The same from a sealed segment, reading only the event times, if the file still exists."""
    manifest = reader.partition.manifest_file.read()
    entry = sealed_at(manifest, start) if manifest.start <= start < manifest.end else None
    if entry is None or stop > entry.end:
        yield from _times(reader, schemas, event_time, start, stop)
        return
    leaves = ["record.offset"]
    try:
        path = reader.sealed_path(entry)
        batches = read_sealed(reader.files, path, columns=[event_time], start=start, stop=stop, record_columns=leaves)
        for batch in batches:
            offsets = batch.column("record").field("offset").to_numpy(zero_copy_only=False)
            named = event_time in batch.schema.names
            yield offsets, times_of(batch.column(event_time)) if named else np.full(len(offsets), NO_TIME)
            start = int(offsets[-1]) + 1
    except FileNotFoundError:  # compacted meanwhile
        yield from _times(reader, schemas, event_time, start, stop)


def _times(
    reader: PartitionReader, schemas: TopicSchemas, event_time: str, start: int, stop: int
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Offsets and event times of the records in a range."""
    for batch in reader.read(schemas, start, reader.visible(), stop=stop, reading=Reading([event_time])):
        offsets = batch.column("record").field("offset").to_numpy(zero_copy_only=False)
        yield offsets, times_of(batch.column(event_time))


def _pieces(offsets: Int64Array, times: Int64Array) -> Iterator[tuple[int, int, int]]:
    firsts = np.arange(0, len(offsets), STEP_ROWS)
    if not len(firsts):
        return
    for first, time in zip(firsts.tolist(), np.maximum.reduceat(times, firsts).tolist(), strict=True):
        last = min(first + STEP_ROWS, len(offsets)) - 1
        yield int(offsets[last]) + 1, last - first + 1, time
