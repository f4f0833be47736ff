"""Compaction: of each key the latest record stays, where it was; a deleted key goes altogether, in the end.

Only sealed segments are compacted, and of those only what is older than `lag_min`: whoever reads close behind the
writers sees every record. Offsets and order never change. A pass looks at the keys of what was sealed since the last
one (from `cleaned` on), marks every record before that they replace, and writes the segments anew that lose any; the
others keep their files. It does so run by run, each an atomic step, the oldest first; a last step moves `cleaned`.
Whoever is cut short between has taken out records that something later replaces, and nothing else.

A tombstone replaces what it deletes at once, and stays itself, so that readers learn of it: for `tombstones` after the
pass that first cleaned its segment. In that pass everything before it with its key went, so when it goes nothing
returns. The manifest says up to where tombstones are gone, so that a reader that still needs one is refused. A transaction's marker goes the same way once all records of the transaction are gone.

A record is looked for in its own partition. After a topic was given more partitions a key may have its older records
in one and its newer ones in another, where they replace nothing: copy such a topic to a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.active_segment import SegmentName
from mainstem.log.embedded.files import remove_if_there
from mainstem.log.embedded.latest_offsets import KeyRows, RowMarks, key_rows, replaced_rows
from mainstem.log.embedded.manifest import Manifest, Marker, SealedEntry
from mainstem.log.embedded.sealed_check import check_once
from mainstem.log.embedded.sealed_segment import read_sealed
from mainstem.log.embedded.sealing import seal_closed
from mainstem.log.embedded.segment_merge import merged, plan_merges, without_empty
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep_clock import MICROSECOND, UpkeepNow
from mainstem.log.embedded.upkeep_pass import GoOn, first_append, go_on, now_of, upkeep_of
from mainstem.log.keep_rule import Keep
from mainstem.log.upkeep_report import CompactionReport


def compact(store: TopicStore, number: int, go_on: GoOn = go_on) -> CompactionReport:
    """One pass over one partition of a topic that keeps the latest record per key."""
    partition, keep = store.partitions[number], store.settings.keep
    with upkeep_of(partition):
        moment = _moment(store, number, keep)
        if unsealed_too_long(store, number, keep, moment.now):
            partition.roll()
        sealed = seal_closed(store, number, go_on)
        # Looked at after sealing: whatever schema the segments have is known now.
        store.refresh()
        return replace(_Compaction(store, number, keep, moment, go_on).run(), sealed=sealed)


def compaction_due(store: TopicStore, number: int) -> bool:
    """Whether a pass is worth it: most of it is new, something new waits too long, or a tombstone's time is over."""
    keep = store.settings.keep
    if not keep.compacted:
        return False
    manifest = store.partitions[number].manifest_file.read()
    now = _moment(store, number, keep).now
    eligible = _eligible(manifest, keep, now)
    fresh = [entry for entry in eligible if entry.base >= manifest.cleaned]
    return (
        sum(entry.bytes for entry in fresh) * 2 > sum(entry.bytes for entry in eligible)
        or unsealed_too_long(store, number, keep, now)
        or (keep.lag_max is not None and any(now - entry.appended_first >= _us(keep.lag_max) for entry in fresh))
        or any(_tombstones_over(entry, keep, now) for entry in eligible)
        or any(_marker_over(marker, keep, now) for entry in eligible for marker in entry.markers)
    )


def unsealed_too_long(store: TopicStore, number: int, keep: Keep, now: int) -> bool:
    """Whether a record older than `lag_max` is in the segment being appended to."""
    partition = store.partitions[number]
    if keep.lag_max is None or partition.fenced():
        return False
    head = partition.published()
    first = first_append(partition, SegmentName(head.segment, head.epoch))
    return first is not None and now - first >= _us(keep.lag_max)


def _moment(store: TopicStore, number: int, keep: Keep) -> UpkeepNow:
    partition = store.partitions[number]
    return now_of(partition, partition.manifest_file.read(), max(keep.lag_min, keep.tombstones))


def _us(duration: timedelta) -> int:
    return duration // MICROSECOND


def _eligible(manifest: Manifest, keep: Keep, now: int) -> list[SealedEntry]:
    """The segments that may be compacted: the first ones, up to one that is too young."""
    if not keep.lag_min:
        return list(manifest.segments)
    found = []
    for entry in manifest.segments:
        if now - entry.last_append(now) < _us(keep.lag_min):
            break
        found.append(entry)
    return found


def _tombstones_over(entry: SealedEntry, keep: Keep, now: int) -> bool:
    return bool(entry.tombstones) and entry.cleaned_at is not None and now - entry.cleaned_at >= _us(keep.tombstones)


def _marker_over(marker: Marker, keep: Keep, now: int) -> bool:
    return marker.bare_since is not None and now - marker.bare_since >= _us(keep.tombstones)


class _Compaction:
    """One pass over one partition. The upkeep lock is held."""

    def __init__(self, store: TopicStore, number: int, keep: Keep, moment: UpkeepNow, go_on: GoOn) -> None:
        self._partition = store.partitions[number]
        self._number = number
        self._holds = store.holds
        self._schemas = store.schemas
        self._key = store.settings.key
        self._keep = keep
        self._moment = moment
        self._now = moment.now
        self._go_on = go_on
        self._found = self._partition.manifest_file.read()
        self._manifest = self._found.timed(moment).noted(moment.now)
        self._entries = {entry.base: entry for entry in _eligible(self._manifest, keep, self._now)}

    def run(self) -> CompactionReport:
        before, entries = self._manifest, list(self._entries.values())
        fresh = [entry for entry in entries if entry.base >= before.cleaned]
        over = [entry for entry in entries if _tombstones_over(entry, self._keep, self._now)]
        markers_over = any(_marker_over(marker, self._keep, self._now) for entry in entries for marker in entry.markers)
        removed = tombstones = 0
        if fresh or over or markers_over:
            rows = {entry.base: entry.rows for entry in entries}
            gone = replaced_rows(rows, [entry.base for entry in fresh], self._keys, self._go_on)
            removed = sum(gone.count(entry.base) for entry in entries)
            forgotten = max((self._mark_tombstones(entry, gone) for entry in over), default=0)
            tombstones = sum(gone.count(entry.base) for entry in entries) - removed
            # Written with the first step, so no later than the first of them is gone.
            self._manifest = replace(self._manifest, forgotten=max(self._manifest.forgotten, forgotten))
            markers = self._markers(entries, gone)
            # What was cleaned before and what was not stay apart: cut short, the pass must know them again.
            for part in ([entry for entry in entries if entry.base < before.cleaned], fresh):
                for run in plan_merges(part, gone, self._partition.segment_bytes_max):
                    self._rewrite(run, gone)
            self._finish(entries[-1].end, markers)
        if self._manifest != self._found:
            self._partition.manifest_file.write(self._manifest)
        return self._report(before, removed, tombstones)

    def _keys(self, base: int) -> Iterator[KeyRows]:
        schema = pa.schema([self._schemas.current.field(name).with_nullable(True) for name in self._key])
        batches = read_sealed(
            self._partition.files, self._path(base), columns=self._key, record_columns=("record.offset",)
        )
        return key_rows(base, batches, self._key, schema)

    def _path(self, base: int) -> str:
        entry = self._entries[base]
        path = f"{self._partition.folder}/{entry.file}"
        check_once(self._partition.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        return path

    def _mark_tombstones(self, entry: SealedEntry, gone: RowMarks) -> int:
        """Mark them to go; the offset behind the last of those that nothing later replaces, 0 if there is none."""
        row, end, replaced = 0, 0, gone.of(entry.base)
        leaves = ("record.offset", "record.change")
        for batch in read_sealed(self._partition.files, self._path(entry.base), columns=[], record_columns=leaves):
            deleted = pc.equal(batch.column("record").field("change"), "delete").to_numpy(zero_copy_only=False)
            gone.add_places(entry.base, row + np.flatnonzero(deleted))
            forgotten = np.flatnonzero(deleted & ~replaced[row : row + batch.num_rows])
            if len(forgotten):
                end = batch.column("record").field("offset")[int(forgotten[-1])].as_py() + 1
            row += batch.num_rows
        return end

    # Markers of transactions

    def _markers(self, entries: list[SealedEntry], gone: RowMarks) -> dict[int, Marker]:
        """The markers that stay, by offset, each with a note of when its last record went."""
        markers = [marker for entry in entries for marker in entry.markers]
        left = self._records_left([marker for marker in markers if marker.bare_since is None], entries, gone)
        return {
            marker.offset: marker if marker.bare_since is not None or left[marker.offset] else self._bare(marker)
            for marker in markers
            if not _marker_over(marker, self._keep, self._now)
        }

    def _bare(self, marker: Marker) -> Marker:
        return replace(marker, bare_since=self._now)

    def _records_left(self, markers: list[Marker], entries: list[SealedEntry], gone: RowMarks) -> dict[int, int]:
        """How many records each transaction still has."""
        spans = [(marker.offset, *span) for marker in markers if marker.committed for span in marker.ranges]
        left = dict.fromkeys((marker.offset for marker in markers), 0)
        if not spans:
            return left
        owners, first, end = np.array(spans, np.int64).T
        counts = np.zeros(len(owners), np.int64)
        for entry in entries:
            if ((first < entry.end) & (end > entry.base)).any():
                offsets = self._offsets_left(entry, gone)
                counts += np.searchsorted(offsets, end) - np.searchsorted(offsets, first)
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            left[owner] += count
        return left

    def _offsets_left(self, entry: SealedEntry, gone: RowMarks) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        self._go_on()
        leaves = ("record.offset",)
        batches = read_sealed(self._partition.files, self._path(entry.base), columns=[], record_columns=leaves)
        parts = [batch.column("record").field("offset").to_numpy(zero_copy_only=False) for batch in batches]
        return np.concatenate([np.empty(0, np.int64), *parts])[~gone.of(entry.base)]

    # Steps

    def _rewrite(self, run: list[SealedEntry], gone: RowMarks) -> None:
        """One step: a run of segments becomes one. Its markers and their notes are the last step's."""
        partition = self._partition
        entry = merged(partition, self._schemas, run, gone, self._go_on)
        segments = list(self._manifest.segments)
        at = segments.index(run[0])
        segments[at : at + len(run)] = [entry]
        self._manifest = replace(self._manifest, segments=tuple(segments))
        with self._holds.sparing(partition.folder, self._number, run):
            partition.manifest_file.write(self._manifest)
        self._found = self._manifest
        for old in run:
            remove_if_there(partition.files, f"{partition.folder}/{old.file}")

    def _finish(self, end: int, markers: dict[int, Marker]) -> None:
        """The last step: all up to `end` is clean, and the time of its tombstones runs."""
        partition, before = self._partition, self._manifest.segments
        clean = [
            replace(
                entry,
                cleaned_at=self._now if entry.cleaned_at is None else entry.cleaned_at,
                markers=[markers[marker.offset] for marker in entry.markers if marker.offset in markers],
                aborted=[],
            )
            for entry in before
            if entry.end <= end
        ]
        rest = [entry for entry in before if entry.end > end]
        self._manifest = replace(
            self._manifest, cleaned=max(end, self._manifest.cleaned), segments=(*without_empty(clean), *rest)
        )
        partition.manifest_file.write(self._manifest)
        self._found = self._manifest
        for file in {entry.file for entry in before} - {entry.file for entry in self._manifest.segments}:
            remove_if_there(partition.files, f"{partition.folder}/{file}")

    def _report(self, before: Manifest, removed: int, tombstones: int) -> CompactionReport:
        after = self._manifest
        return CompactionReport(
            records_before=sum(entry.rows for entry in before.segments),
            records_after=sum(entry.rows for entry in after.segments),
            removed=removed,
            tombstones=tombstones,
            markers=sum(len(entry.markers) for entry in before.segments)
            - sum(len(entry.markers) for entry in after.segments),
            bytes_before=before.bytes,
            bytes_after=after.bytes,
            segments_before=len(before.segments),
            segments_after=len(after.segments),
            clock_jump=self._moment.jump,
        )
