"""The parts of every pass of upkeep over a partition: its lock, its time, its steps.

A step is atomic: new files are written, synced and renamed; then the manifest, replaced as a whole, makes them part of
the log; only then the files that it no longer names are removed. An interrupted pass leaves files that the manifest
does not name, and the next pass removes them.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa

from mainstem.durable_files import remove_if_there
from mainstem.errors import DiskFull, MainstemError, Unavailable
from mainstem.file_locks import UPKEEP
from mainstem.log.embedded.read.sealed_segment import SealedFile, write_sealed
from mainstem.log.embedded.upkeep.manifest import Manifest, UpkeepNow, first_reading, upkeep_now
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    ActiveSegment,
    SegmentName,
    missing_records,
    segments_in,
)
from mainstem.log.embedded.write.block import Damage
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.transaction_cut import NO_SPANS, TransactionSpans
from mainstem.log.watermark import NO_TIME

# Called between steps; raises when the work is to stop. An unfinished step has no effect.
CheckStop = Callable[[], None]


def check_stop() -> None:
    """Never stops the work."""


@contextmanager
def upkeep_of(partition: Partition) -> Iterator[None]:
    """Holds the upkeep lock, and removes the leftovers of interrupted passes."""
    with _our_errors(partition), partition.lock.hold(UPKEEP):
        # The folder may be deleted, or belong to a new topic.
        partition.refuse_if_deleted()
        clear_leftovers(partition)
        yield


@contextmanager
def _our_errors(partition: Partition) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, MainstemError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"no space left for the upkeep of {partition.title}",
                detail=f'Nothing in "{partition.folder}" has changed; reads and appends are not affected.',
                hint="Free disk space or shorten the topics' retention; upkeep then resumes by itself.",
                path=partition.folder,
            ) from error
        if isinstance(error, FileNotFoundError):
            partition.check_there()
        raise Unavailable(
            f"could not use the files of {partition.title}: {os.strerror(error.errno or 0)}",
            detail=f'Its upkeep was skipped; nothing in "{partition.folder}" is lost. {error}',
            hint="Check the disk; upkeep is retried by itself.",
        ) from error


def new_file_name(base: int) -> str:
    """A unique file name: facts cached by file name stay true."""
    return f"{base:020d}-{uuid.uuid4().hex[:8]}.parquet"


def put_sealed(
    partition: Partition,
    base: int,
    schema: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    spans: TransactionSpans = NO_SPANS,
) -> tuple[str, SealedFile]:
    """Write a sealed file under a new name; synced when this returns, but not yet in the manifest."""
    files, folder = partition.files, partition.folder
    file = new_file_name(base)
    written = write_sealed(files, f"{folder}/{file}.new", schema, rows, spans)
    files.rename(f"{folder}/{file}.new", f"{folder}/{file}")
    files.sync_directory(folder)
    return file, written


def now_of(partition: Partition, manifest: Manifest, believe_after: timedelta) -> UpkeepNow:
    """Upkeep's time in a partition; see `manifest`."""
    reading = manifest.clock
    if reading is None:
        # The age of its records is unknown: it is counted from now.
        first = first_reading(partition.clock)
        oldest = [entry.appended_first for entry in manifest.segments if entry.appended_first != NO_TIME]
        reading = replace(first, now=min([first.now, *oldest]))
    return upkeep_now(reading, partition.clock, believe_after=believe_after)


def clear_leftovers(partition: Partition) -> None:
    """Remove the leftovers of an interrupted pass. The caller holds the upkeep lock."""
    manifest = partition.manifest_file.read()
    names = partition.files.list(partition.folder)
    known = {entry.file for entry in manifest.segments}
    unknown = [name for name in names if name.endswith((".parquet", ".parquet.new")) and name not in known]
    # The last one is the active segment, whatever its base.
    blocks = [segment for segment in segments_in(names)[:-1] if segment.base < manifest.end]
    if unknown or blocks:
        # The manifest of that pass may not be synced yet; until it is, these blocks are the only copy.
        partition.manifest_file.write(manifest)
    for name in unknown:
        remove_if_there(partition.files, f"{partition.folder}/{name}")
    for segment in blocks:
        remove_blocks(partition, segment)


def remove_blocks(partition: Partition, name: SegmentName) -> None:
    """Remove a segment of blocks that the manifest no longer needs."""
    remove_if_there(partition.files, name.path(partition.folder))
    with suppress(OSError):
        remove_if_there(partition.files, name.index_path(partition.folder))


def closed_segments(partition: Partition, manifest: Manifest) -> list[tuple[SegmentName, SegmentName]]:
    """The closed segments that are not sealed, each with the one that follows it.

    Without one closed just now: until something is published in the next one, a writer may be about to sync it.
    """
    listed = segments_in(partition.files.list(partition.folder))
    names = [name for name in listed if name.base >= manifest.end]
    if names and names[0].base != manifest.end:
        if partition.manifest_file.read() != manifest:
            return []  # sealed by another process since it was read
        raise missing_records(partition.title, partition.folder, manifest.end, names[0].base)
    published = partition.published_end().segment
    return [(name, after) for name, after in pairwise(names) if after.base <= published]


def first_append(partition: Partition, name: SegmentName) -> int | None:
    """When the first record of a segment of blocks was appended; None if it has none."""
    with suppress(FileNotFoundError):
        segment = ActiveSegment(partition.files, partition.folder, name)
        try:
            headers = segment.headers(PREAMBLE_BYTES, segment.size())
            return next((header.appended_at for _, header in headers if header.count), None)
        finally:
            segment.close()
    return None


def append_before(partition: Partition, name: SegmentName) -> int:
    """When the last record before a segment of blocks was appended, read from its state block."""
    segment = ActiveSegment(partition.files, partition.folder, name)
    try:
        header = segment.header_at(PREAMBLE_BYTES)
        if header is None:
            raise segment.corrupt(Damage(PREAMBLE_BYTES, name.base), segment.size())
        return header.appended_at
    finally:
        segment.close()
