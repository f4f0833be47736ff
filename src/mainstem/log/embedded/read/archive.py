"""The archive: sealed segments copied to another directory before retention deletes them.

    <archive>/<topic>/<partition>/manifest and the Parquet files it names, as in a home

A segment is copied whole (read with its checksum checked, written, synced, renamed), then the archive's manifest names
it, and only after that is it deleted from the topic: an interrupted pass copies it again. Nothing is ever removed from
an archive. Its segments lie in order, with gaps where something was dropped while the topic had no archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import google_crc32c
import numpy as np
import pyarrow as pa

from mainstem.durable_files import Files, remove_if_there
from mainstem.errors import Conflict, FellOff, NotFound
from mainstem.log.embedded.read.sealed_check import CHECK_BYTES, check_frame_once, corrupt_segment
from mainstem.log.embedded.read.sealed_segment import read_for_reader, read_sealed
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.upkeep.manifest import Manifest, ManifestFile, SealedEntry


def archive_folder(archive: str, topic: str, number: int) -> str:
    """The directory of a partition in an archive."""
    return f"{archive}/{topic}/{number}"


def read_manifest(files: Files, folder: str) -> Manifest:
    """The manifest of a partition in an archive; empty if the archive has none."""
    return ManifestFile(files, folder).read() if files.exists(f"{folder}/manifest") else Manifest()


def add_to_archive(files: Files, source: str, entries: Sequence[SealedEntry], folder: str, title: str) -> int:
    """Copy sealed segments of the partition at `source`; synced when this returns. Returns the number of copies
    made."""
    manifest = read_manifest(files, folder)
    known = {(entry.base, entry.end, entry.crc32c) for entry in manifest.segments}
    fresh = [entry for entry in entries if (entry.base, entry.end, entry.crc32c) not in known]
    if not fresh:
        return 0
    if manifest.segments and fresh[0].base < manifest.end:
        raise Conflict(
            f'archive "{folder}" already has other records with the offsets of {title}',
            detail=f"It goes up to offset {manifest.end - 1}; the segment to be archived begins at {fresh[0].base}. "
            "It may be of an earlier topic of this name. Nothing was dropped.",
            hint="Move that archive, or give the topic another one: topic.alter(archive=...).",
        )
    _make_folder(files, folder)
    for entry in fresh:
        copy_segment(files, f"{source}/{entry.file}", f"{folder}/{entry.file}", entry)
    files.sync_directory(folder)
    start = manifest.start if manifest.segments else fresh[0].base
    ManifestFile(files, folder).write(Manifest(start=start, segments=(*manifest.segments, *fresh)))
    return len(fresh)


def _make_folder(files: Files, folder: str) -> None:
    """Create the folder and its parents, and sync each parent."""
    missing = []
    path = folder
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    files.make_directory(folder)
    for path in missing:
        files.sync_directory(os.path.dirname(path))


def copy_segment(files: Files, path: str, to: str, entry: SealedEntry) -> None:
    """Copy a sealed segment and verify its checksum; synced when this returns, its directory not yet."""
    source = files.open(path)
    try:
        target = files.create(f"{to}.new")
        try:
            crc = 0
            for position in range(0, entry.bytes, CHECK_BYTES):
                data = files.pread(source, min(CHECK_BYTES, entry.bytes - position), position)
                crc = google_crc32c.extend(crc, data)
                files.pwrite(target, data, position)
            if crc != entry.crc32c or files.size(source) != entry.bytes:
                raise corrupt_segment(path, (entry.base, entry.end))
            files.sync(target)
        finally:
            files.close(target)
    except Exception:
        with suppress(OSError):
            remove_if_there(files, f"{to}.new")
        raise
    finally:
        files.close(source)
    files.rename(f"{to}.new", to)


def check_archive(files: Files, archive: str, topic: str) -> None:
    """Refuse a directory that does not exist."""
    if not files.exists(archive):
        raise NotFound(
            f'archive "{archive}" does not exist',
            detail=f'There is no such directory to read "{topic}" from.',
            hint="Give the topic's archive directory; topic.settings.archive has it.",
        )


class Archive:
    """The archived segments of one partition, for reading. A snapshot: segments added later are not seen."""

    def __init__(self, files: Files, archive: str, topic: str, number: int, schemas: TopicSchemas) -> None:
        self._files = files
        self._schemas = schemas
        self._topic = topic
        self._number = number
        self._folder = archive_folder(archive, topic, number)
        self._segments = read_manifest(files, self._folder).segments

    def earliest(self) -> int | None:
        """The first offset in the archive; None if it is empty."""
        return self._segments[0].base if self._segments else None

    def at_time(self, at: int) -> int | None:
        """The first offset in the archive that was appended at that time or later; None if there is none."""
        for entry in self._segments:
            if entry.appended_last < at:
                continue
            leaves = ("record.offset", "record.appended_at")
            for batch in read_sealed(self._files, self._check_path(entry), columns=[], record_columns=leaves):
                times = batch.column("record").field("appended_at").cast(pa.int64()).to_numpy(zero_copy_only=False)
                first = int(np.searchsorted(times, at))
                if first < len(times):
                    return int(batch.column("record").field("offset")[first].as_py())
        return None

    def read(self, start: int, stop: int, columns: Sequence[str] | None, delay: int | None) -> Iterator[pa.RecordBatch]:
        """The records with offsets from `start` up to `stop`; `FellOff` if the archive does not have them."""
        reading = Reading(columns, delay=delay)
        for entry in self._segments:
            if entry.end <= start or entry.base >= stop:
                continue
            if entry.base > start:
                raise self._fell_off(start, entry.base)
            first, start = start, entry.end
            for _, batch in read_for_reader(
                self._files, self._check_path(entry), self._schemas, reading, start=first, stop=min(stop, entry.end)
            ):
                yield batch
        if start < stop:
            raise self._fell_off(start, stop)

    def _check_path(self, entry: SealedEntry) -> str:
        path = f"{self._folder}/{entry.file}"
        check_frame_once(self._files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def _fell_off(self, first: int, end: int) -> FellOff:
        return FellOff(
            f'records {first} to {end - 1} of "{self._topic}" partition {self._number} are neither kept nor archived',
            detail=f'The archive at "{self._folder}" has '
            + (f"records {self._segments[0].base} to {self._segments[-1].end - 1}." if self._segments else "nothing."),
            hint=f"Continue after them: start={{{self._number}: {end}}}.",
            topic=self._topic,
            partition=self._number,
            first_lost=first,
            last_lost=end - 1,
        )
