"""The steps of a partition: its blocks, and pieces of its sealed segments. Payloads of blocks are not read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mainstem.log.embedded.block import DATA
from mainstem.log.embedded.partition_reader import PartitionReader, sealed_at
from mainstem.log.embedded.sealed_segment import read_sealed
from mainstem.log.steps import Steps
from mainstem.log.watermark import NO_TIME, times_of

__all__ = ["partition_steps"]

# Fine enough for a cut within a row group, coarse enough that a million rows are a thousand steps.
SEALED_STEP_ROWS = 1024

TRIES = 100


def partition_steps(reader: PartitionReader, event_time: str | None, start: int, rows_min: int) -> Steps:
    """The steps from `start` on, until there are `rows_min` rows in them or the partition ends."""
    end = reader.visible().end
    found: list[tuple[int, int, int]] = []
    rows = tries = 0
    while start < end and rows < rows_min:
        try:
            for step in _segment_steps(reader, event_time, start, end):
                found.append(step)
                start = step[0]
                rows += step[1]
                tries = 0
                if rows >= rows_min:
                    break
        except FileNotFoundError:  # sealed or compacted since we looked
            tries += 1
            if tries == TRIES:
                raise
    return Steps.of(found)


def _segment_steps(
    reader: PartitionReader, event_time: str | None, start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """The steps in the segment that holds `start`; the last one ends where the segment does."""
    manifest = reader.partition.manifest_file.read()
    if start < manifest.start:
        raise reader.fell_off(start, manifest.start)
    if start >= manifest.end:
        yield from _block_steps(reader, event_time, start, end)
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
        firsts = np.arange(0, len(offsets), SEALED_STEP_ROWS)
        for first, time in zip(firsts.tolist(), np.maximum.reduceat(highest, firsts).tolist(), strict=True):
            last = min(first + SEALED_STEP_ROWS, len(offsets)) - 1
            reached = int(offsets[last]) + 1
            yield reached, last - first + 1, time
    if reached < stop:
        yield stop, 0, NO_TIME


def _block_steps(
    reader: PartitionReader, event_time: str | None, start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    reached = start
    for header in reader.headers_from(start):
        if header.base_offset >= end:
            break
        rows = header.count if header.kind == DATA else 0
        first, reached = max(start, header.base_offset), min(end, header.end_offset)
        if reached <= start:
            continue
        time = header.event_time_max if event_time else header.appended_at
        yield reached, min(rows, reached - first), time if rows else NO_TIME
    if reached == start:
        raise FileNotFoundError(reader.partition.folder)
