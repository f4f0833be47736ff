"""Retention: deletes whole segments, oldest first, once they are too old or the partition is too large.

A segment is deleted when its last record is older than the retention age, or while the partition exceeds its size. This
applies to sealed segments and to closed ones that are still blocks; if all records of the active segment are too old,
it is closed first, so that a topic without appends becomes empty. Records after the last stable offset are never
deleted.

In this order: a copy to the archive, if the topic has one; the manifest, whose new `start` makes the deletion
effective; the files. Offsets are never reused. What "older" means is in `manifest`: the time of day may jump, and
nothing is dropped because of it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from mainstem.durable_files import remove_if_there
from mainstem.log.embedded.read.archive import add_to_archive, archive_folder
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.manifest import MICROSECOND, Manifest, SealedEntry, UpkeepNow
from mainstem.log.embedded.upkeep.sealing import seal_closed
from mainstem.log.embedded.upkeep.upkeep_pass import (
    CheckStop,
    append_before,
    check_stop,
    closed_segments,
    now_of,
    remove_blocks,
    upkeep_of,
)
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.keep_rule import Keep
from mainstem.log.upkeep_report import RetentionReport


class _Segment(NamedTuple):
    """A segment that may be dropped, sealed or of blocks."""

    base: int
    end: int
    records: int
    bytes: int
    appended_last: int
    sealed: SealedEntry | None
    blocks: SegmentName | None


def drops_anything(keep: Keep) -> bool:
    """Whether retention applies to a topic with this setting."""
    return not keep.compacted and (keep.age is not None or keep.size is not None)


def drop_expired(store: TopicStore, number: int, check_stop: CheckStop = check_stop) -> RetentionReport:
    """Delete the expired segments of a partition."""
    keep = store.settings.keep
    if not drops_anything(keep):
        return RetentionReport()
    with upkeep_of(store.partitions[number]):
        return _Retention(store, number, keep, check_stop).run()


def retention_due(store: TopicStore, number: int) -> bool:
    """Whether a pass would drop or record anything."""
    keep = store.settings.keep
    return drops_anything(keep) and _Retention(store, number, keep, check_stop).due()


class _Retention:
    """One pass over one partition. The caller holds the upkeep lock."""

    def __init__(self, store: TopicStore, number: int, keep: Keep, check_stop: CheckStop) -> None:
        self._store = store
        self._number = number
        self._partition = store.partitions[number]
        self._archive = store.settings.archive
        self._keep = keep
        self._check_stop = check_stop

    def due(self) -> bool:
        before = self._partition.manifest_file.read()
        moment = now_of(self._partition, before, self._keep.age or timedelta(0))
        noted = before.set_clock(moment).note_future(moment.now)
        return noted != before or self._all_too_old(moment) or bool(self._find_expired(noted, moment))

    def run(self) -> RetentionReport:
        before = self._partition.manifest_file.read()
        moment = now_of(self._partition, before, self._keep.age or timedelta(0))
        if self._all_too_old(moment):
            self._partition.roll()
        if self._needs_copy(expired := self._find_expired(before, moment)) and expired:
            # Only sealed segments are copied.
            seal_closed(self._store, self._number, self._check_stop)
            before = self._partition.manifest_file.read()
        noted = before.set_clock(moment).note_future(moment.now)
        expired = self._find_expired(noted, moment)
        if self._needs_copy(expired):
            # Segments that an open transaction keeps from being sealed are not dropped yet.
            expired = [segment for segment in expired if segment.sealed is not None]
        if not expired:
            if noted != before:
                self._partition.manifest_file.write(noted)
            return RetentionReport(clock_jump=moment.jump)
        archived = self._copy_to_archive([segment.sealed for segment in expired if segment.sealed is not None])
        if not self._drop(noted, expired):
            return RetentionReport(clock_jump=moment.jump)
        return RetentionReport(
            len(expired),
            sum(segment.records for segment in expired),
            sum(segment.bytes for segment in expired),
            archived,
            moment.jump,
        )

    def _all_too_old(self, moment: UpkeepNow) -> bool:
        """Whether all records of the active segment are too old."""
        head = self._partition.published_end()
        return self._too_old(head.appended_at, moment) and head.offset > head.segment and not self._partition.fenced()

    def _too_old(self, appended_last: int, moment: UpkeepNow) -> bool:
        return self._keep.age is not None and moment.now - appended_last >= self._keep.age // MICROSECOND

    def _find_expired(self, manifest: Manifest, moment: UpkeepNow) -> list[_Segment]:
        """The segments to drop: a prefix of the partition."""
        segments = self._segments(manifest, moment.now)
        size = sum(segment.bytes for segment in segments) + self._partition.published_end().position
        expired = []
        for segment in segments:
            too_much = self._keep.size is not None and size > self._keep.size
            if not too_much and not self._too_old(segment.appended_last, moment):
                break
            size -= segment.bytes
            expired.append(segment)
        return expired

    def _segments(self, manifest: Manifest, now: int) -> list[_Segment]:
        found = [
            _Segment(entry.base, entry.end, entry.rows, entry.bytes, entry.last_append(now), entry, None)
            for entry in manifest.segments
        ]
        stable = self._store.readers[self._number].visible().end
        for name, after in closed_segments(self._partition, manifest):
            if after.base > stable:
                break
            size = self._partition.files.identity(name.path(self._partition.folder))[2]
            last = append_before(self._partition, after)
            found.append(_Segment(name.base, after.base, after.base - name.base, size, last, None, name))
        return found

    def _copy_to_archive(self, entries: list[SealedEntry]) -> int:
        if self._archive is None or not entries:
            return 0
        partition = self._partition
        folder = archive_folder(self._archive, self._store.name, self._number)
        self._check_stop()
        return add_to_archive(partition.files, partition.folder, entries, folder, partition.title)

    def _needs_copy(self, expired: list[_Segment]) -> bool:
        """Whether segments must be copied before they are dropped: to the archive, or because a reader holds them."""
        return self._archive is not None or self._is_held(expired)

    def _is_held(self, segments: list[_Segment]) -> bool:
        return self._store.holds.holds_any(self._number, [(segment.base, segment.end) for segment in segments])

    def _drop(self, manifest: Manifest, expired: list[_Segment]) -> bool:
        """False if a reader now holds a segment that is not sealed: the next pass seals it first."""
        partition = self._partition
        start = expired[-1].end
        left = tuple(entry for entry in manifest.segments if entry.end > start)
        sealed = [segment.sealed for segment in expired if segment.sealed is not None]
        with self._store.holds.copy_before_drop(partition.folder, self._number, sealed):
            if self._is_held([segment for segment in expired if segment.sealed is None]):
                return False
            partition.manifest_file.write(
                replace(manifest, start=start, cleaned=max(manifest.cleaned, start), segments=left)
            )
        for segment in expired:
            if segment.sealed is not None:
                remove_if_there(partition.files, f"{partition.folder}/{segment.sealed.file}")
            if segment.blocks is not None:
                remove_blocks(partition, segment.blocks)
        return True
