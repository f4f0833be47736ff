"""Compaction: keeps the latest record of each key, at its offset; finally removes a deleted key completely.

Only sealed segments are compacted, and only records older than `lag_min`: a reader close behind the writers sees every
record. Offsets and order never change. A pass reads the keys of segments sealed since the last one (from `cleaned` on),
marks every earlier record that they replace, and rewrites the segments that lose records; the others keep their files.
It works run by run, each an atomic step, oldest first; a last step moves `cleaned`. An interrupted pass has removed
only records that a later one replaces.

A tombstone removes the earlier records of its key at once. It is kept itself for `tombstones` after the pass that first
cleaned its segment, so that readers see the deletion; removing it later brings nothing back. The manifest records up to
which offset tombstones were removed, so that a reader that still needs one gets an error. The marker of a transaction
is removed the same way, once all records of the transaction are gone.

Compaction works within a partition. After partitions were added to a topic, a key may have older records in one
partition and newer ones in another; these do not replace each other: copy such a topic to a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.durable_files import remove_if_there
from mainstem.log.embedded.read.sealed_check import check_once, check_sealed
from mainstem.log.embedded.read.sealed_segment import read_sealed, read_spans, sealed_schema
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.manifest import MICROSECOND, Manifest, Marker, SealedEntry, UpkeepNow
from mainstem.log.embedded.upkeep.sealing import seal_closed
from mainstem.log.embedded.upkeep.upkeep_pass import CheckStop, check_stop, first_append, now_of, put_sealed, upkeep_of
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.keep_rule import Keep
from mainstem.log.rows.partitioner import key_bytes, murmur2
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.transaction_cut import TransactionSpans
from mainstem.log.upkeep_report import CompactionReport

__all__ = ["compact", "compaction_due"]


# Finds the records that a later record of the same key replaces, with bounded memory.
#
# The last offset of each key in the new segments is collected; then the keys of all segments are looked up among them,
# a column at a time. Exact: keys are compared byte by byte. If there are too many keys for memory, they are split into
# shares by hash, and one share is processed at a time.


# Limits of one share; with the memory for look-ups about 300 MB.
KEYS_MAX = 1_000_000
KEY_BYTES_MAX = 32 << 20

# Rows are reduced or looked up in groups of at least this size, and at least as many as there are keys in memory,
# because both steps go over all of those keys.
ROWS_TOGETHER = 250_000
ROW_BYTES_TOGETHER = 16 << 20

# More shares are needed only for huge keys; then a share may exceed its limits.
SHARES_MAX = 4096

Offsets = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


class KeyRows(NamedTuple):
    """Rows of a segment: their row numbers, keys and offsets."""

    segment: int
    places: Offsets
    keys: pa.BinaryArray
    offsets: Offsets

    def only(self, wanted: pa.BooleanArray) -> KeyRows:
        """The rows that `wanted` selects."""
        if wanted.true_count == len(wanted):
            return self
        chosen = wanted.to_numpy(zero_copy_only=False)
        return KeyRows(self.segment, self.places[chosen], self.keys.filter(wanted), self.offsets[chosen])


def key_rows(
    segment: int, batches: Iterable[pa.RecordBatch], key: Sequence[str], schema: pa.Schema
) -> Iterator[KeyRows]:
    """The keys of a segment's batches, which have the key columns and `record.offset`; `schema` is the current schema
    of the key."""
    row = 0
    for batch in batches:
        offsets = batch.column(batch.num_columns - 1).field("offset").to_numpy(zero_copy_only=False)
        # Cast to the current type: a widened column has the same bytes.
        places = np.arange(row, row + batch.num_rows, dtype=np.int64)
        yield KeyRows(segment, places, key_bytes(fit(batch.select(list(key)), schema), key), offsets)
        row += batch.num_rows


class RowMarks:
    """A bitmap of rows for each segment."""

    def __init__(self, rows: dict[int, int]) -> None:
        self._rows = rows
        self._bits = {segment: np.zeros((count + 7) // 8, np.uint8) for segment, count in rows.items()}

    def add(self, rows: KeyRows, marks: Marks) -> None:
        """Mark rows of a segment."""
        self.add_places(rows.segment, rows.places[marks])

    def add_places(self, segment: int, places: Offsets) -> None:
        if len(places):
            all_marks = self.of(segment)
            all_marks[places] = True
            self._bits[segment] = np.packbits(all_marks)

    def of(self, segment: int) -> Marks:
        return np.unpackbits(self._bits[segment], count=self._rows[segment]).astype(np.bool_)

    def count(self, segment: int) -> int:
        return int(np.bitwise_count(self._bits[segment]).sum())


class LatestOffsets:
    """The last offset of each key in one share. `full`: the share has more keys than fit in memory."""

    def __init__(self, share: int, shares: int) -> None:
        self.full = False
        self._share = share
        self._shares = shares
        self._keys = pa.chunked_array([], pa.binary())
        self._offsets = pa.chunked_array([], pa.int64())
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0

    def own_rows(self, rows: KeyRows) -> pa.Array:
        """The rows that belong to this share; a record without a key belongs to none and replaces none."""
        known = pc.is_valid(rows.keys)
        if self._shares == 1:
            return known
        # Without the lowest bits, which determined the partition.
        return pc.and_(known, pa.array((murmur2(rows.keys) >> np.uint32(10)) % np.uint32(self._shares) == self._share))

    def add(self, rows: KeyRows) -> None:
        self._waiting.append(pa.table({"key": rows.keys, "offset": rows.offsets}).filter(self.own_rows(rows)))
        self._rows += len(self._waiting[-1])
        self._bytes += self._waiting[-1].nbytes
        if self.enough(self._rows, self._bytes):
            self.reduce()

    def enough(self, rows: int, size: int) -> bool:
        """Whether there are enough rows for one pass over all keys."""
        return rows >= max(ROWS_TOGETHER, len(self._keys)) or size >= max(ROW_BYTES_TOGETHER, self._keys.nbytes)

    def reduce(self) -> None:
        """Reduce the collected rows to the last offset of each key."""
        if not self._waiting:
            return
        known = pa.table({"key": self._keys, "offset": self._offsets})
        latest = (
            pa.concat_tables([known, *self._waiting]).group_by("key", use_threads=False).aggregate([("offset", "max")])
        )
        self._keys = latest.column("key")
        self._offsets = latest.column("offset_max")
        self._waiting, self._rows, self._bytes = [], 0, 0
        self.full = len(latest) > KEYS_MAX or self._keys.nbytes > KEY_BYTES_MAX

    def find_replaced(self, pieces: Sequence[KeyRows]) -> Iterator[tuple[KeyRows, Marks]]:
        """For each piece, the rows that a later record of the same key replaces."""
        places = pc.index_in(pa.chunked_array([piece.keys for piece in pieces], pa.binary()), value_set=self._keys)
        # A key that was not found gets the last index, which holds an offset below every other.
        latest = np.append(self._offsets.to_numpy(), -1)
        found = pc.fill_null(places, len(latest) - 1).to_numpy()
        at = 0
        for piece in pieces:
            yield piece, latest[found[at : at + len(piece.keys)]] > piece.offsets
            at += len(piece.keys)


def replaced_rows(
    rows: dict[int, int],
    fresh: Sequence[int],
    read: Callable[[int], Iterator[KeyRows]],
    check_stop: Callable[[], None],
) -> RowMarks:
    """The rows that a later record in the `fresh` segments replaces.

    `rows`: the number of rows in each segment. `read` returns the keys of a segment, in order.
    """
    marks = RowMarks(rows)
    share, shares = 0, 1 if fresh else 0
    while share < shares:
        latest = LatestOffsets(share, shares)
        seen = _gather(latest, fresh, read, check_stop, to_the_end=shares >= SHARES_MAX)
        if latest.full and shares < SHARES_MAX:
            # Extrapolated from the rows read so far.
            needed = -(-shares * sum(rows[segment] for segment in fresh) * 5 // (4 * seen))
            share, shares = 0, min(SHARES_MAX, max(2 * shares, needed))
            continue
        for pieces in _group_keys(latest, rows, read, check_stop):
            for piece, replaced in latest.find_replaced(pieces):
                marks.add(piece, replaced)
        share += 1
    return marks


def _gather(
    latest: LatestOffsets,
    fresh: Sequence[int],
    read: Callable[[int], Iterator[KeyRows]],
    check_stop: Callable[[], None],
    *,
    to_the_end: bool,
) -> int:
    """Collect the keys of the fresh segments until the share is full; returns the number of rows read."""
    seen = 0
    for segment in fresh:
        for piece in read(segment):
            check_stop()
            seen += len(piece.keys)
            latest.add(piece)
            if latest.full and not to_the_end:
                return seen
    latest.reduce()
    return seen


def _group_keys(
    latest: LatestOffsets,
    segments: Iterable[int],
    read: Callable[[int], Iterator[KeyRows]],
    check_stop: Callable[[], None],
) -> Iterator[list[KeyRows]]:
    """The keys of this share in all segments, in groups that are looked up at once."""
    pieces: list[KeyRows] = []
    count = size = 0
    for segment in segments:
        for piece in read(segment):
            check_stop()
            pieces.append(piece.only(latest.own_rows(piece)))
            count += len(pieces[-1].keys)
            size += pieces[-1].keys.nbytes
            if latest.enough(count, size):
                yield pieces
                pieces, count, size = [], 0, 0
    if pieces:
        yield pieces


# Rewrites sealed segments without the removed rows, and merges small neighbours.
#
# A segment that loses no rows keeps its file, unless it is small compared with those it is merged with: so a row is
# rewritten only a few times, however often the partition is compacted.


def plan_merges(entries: Sequence[SealedEntry], gone: RowMarks, bytes_max: int) -> list[list[SealedEntry]]:
    """The runs of neighbouring segments to rewrite, each as one segment."""
    left = {entry.base: entry.rows - gone.count(entry.base) for entry in entries}

    def size(entry: SealedEntry) -> int:
        return entry.bytes * left[entry.base] // entry.rows if entry.rows else 0

    def touched(entry: SealedEntry) -> bool:
        return left[entry.base] < entry.rows

    runs: list[list[SealedEntry]] = []
    for entry in entries:
        run = runs[-1] if runs else []
        fits = sum(map(size, run)) + size(entry) <= bytes_max and all(_same_age(entry, other) for other in run)
        if run and fits:
            run.append(entry)
        else:
            runs.append([entry])
    return [part for run in runs for part in _runs_to_rewrite(run, size, touched)]


def _same_age(one: SealedEntry, other: SealedEntry) -> bool:
    """Whether both may become one segment: their tombstones expire at the same time."""
    return one.cleaned_at == other.cleaned_at or not one.tombstones or not other.tombstones


def _runs_to_rewrite(
    run: list[SealedEntry], size: Callable[[SealedEntry], int], touched: Callable[[SealedEntry], bool]
) -> Iterator[list[SealedEntry]]:
    """The parts of a run to rewrite: a segment that loses no rows is not rewritten to merge it with smaller ones."""
    if not run or (len(run) == 1 and not touched(run[0])):
        return
    whole = [entry for entry in run if not touched(entry)]
    largest = max(whole, key=size, default=None)
    if largest is not None and size(largest) > sum(size(entry) for entry in run if entry is not largest):
        at = run.index(largest)
        yield from _runs_to_rewrite(run[:at], size, touched)
        yield from _runs_to_rewrite(run[at + 1 :], size, touched)
    else:
        yield run


def without_empty(entries: Sequence[SealedEntry]) -> list[SealedEntry]:
    """Merge segments without rows into a neighbour, whose file stays as it is."""
    found: list[SealedEntry] = []
    for entry in entries:
        if found and not (entry.rows and found[-1].rows):
            before = found.pop()
            has_rows = entry if entry.rows else before
            found.append(replace(has_rows, **_merged_fields([before, entry])))
        else:
            found.append(entry)
    return found


def _merged_fields(run: Sequence[SealedEntry]) -> dict[str, Any]:
    """The manifest fields of several neighbours merged into one segment, whatever rows are left."""
    futures = [entry.future_since for entry in run if entry.future_since is not None]
    return {
        "base": run[0].base,
        "end": run[-1].end,
        "appended_first": min(entry.appended_first for entry in run),
        "appended_last": max(entry.appended_last for entry in run),
        "event_time_max": max(entry.event_time_max for entry in run),
        "observed_up_to": max(entry.observed_up_to for entry in run),
        "stated_watermark": max(entry.stated_watermark for entry in run),
        "markers": [marker for entry in run for marker in entry.markers],
        "aborted": [span for entry in run for span in entry.aborted],
        "marked": sum(entry.marked for entry in run),
        "future_since": max(futures, default=None),
    }


def merge_segments(
    partition: Partition, schemas: TopicSchemas, run: Sequence[SealedEntry], gone: RowMarks, check_stop: CheckStop
) -> SealedEntry:
    """Rewrite a run as one segment; synced when this returns, but not yet in the manifest."""
    tombstones: list[int] = []
    rows = _rows(partition, schemas, run, gone, tombstones, check_stop)
    spans = TransactionSpans.merge(
        read_spans(partition.files, f"{partition.folder}/{entry.file}") for entry in run if entry.transactions
    )
    file, written = put_sealed(partition, run[0].base, sealed_schema(schemas.current), rows, spans)
    # A segment without tombstones does not affect when they expire.
    ages = [entry.cleaned_at for entry in run if entry.tombstones] or [entry.cleaned_at for entry in run]
    return SealedEntry(
        file=file,
        bytes=written.bytes,
        crc32c=written.crc32c,
        rows=written.rows,
        schema_version=schemas.version,
        cleaned_at=ages[0],
        tombstones=sum(tombstones),
        transactions=None if all(entry.transactions is None for entry in run) else spans.numbers_between(),
        **_merged_fields(run),
    )


def _rows(
    partition: Partition,
    schemas: TopicSchemas,
    run: Sequence[SealedEntry],
    gone: RowMarks,
    tombstones: list[int],
    check_stop: CheckStop,
) -> Iterator[pa.RecordBatch]:
    plain, _ = schemas.output_schemas(Reading())
    schema = sealed_schema(schemas.current)
    for entry in run:
        path = f"{partition.folder}/{entry.file}"
        # Checked every time: rewriting damaged bytes would give them a valid checksum.
        check_sealed(partition.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        stays = ~gone.of(entry.base)
        row = 0
        for batch in read_sealed(partition.files, path, record_columns=("record",)):
            check_stop()
            left = batch.filter(pa.array(stays[row : row + batch.num_rows]))
            row += batch.num_rows
            if not left.num_rows:
                continue
            record = left.column(left.num_columns - 1)
            tombstones.append(pc.sum(pc.equal(record.field("change"), "delete")).as_py() or 0)
            rows = fit(left.select(left.schema.names[:-1]), plain)
            yield pa.RecordBatch.from_arrays([*rows.columns, record], schema=schema)


def compact(store: TopicStore, number: int, check_stop: CheckStop = check_stop) -> CompactionReport:
    """One pass over one partition of a topic that keeps the latest record per key."""
    partition, keep = store.partitions[number], store.settings.keep
    with upkeep_of(partition):
        moment = _moment(store, number, keep)
        if is_unsealed_too_long(store, number, keep, moment.now):
            partition.roll()
        sealed = seal_closed(store, number, check_stop)
        # Refreshed after sealing, so that the schemas of all segments are known.
        store.refresh()
        return replace(_Compaction(store, number, keep, moment, check_stop).run(), sealed=sealed)


def compaction_due(store: TopicStore, number: int) -> bool:
    """Whether a pass is due: most records are new, a new one is older than `lag_max`, or a tombstone has expired."""
    keep = store.settings.keep
    if not keep.compacted:
        return False
    manifest = store.partitions[number].manifest_file.read()
    now = _moment(store, number, keep).now
    eligible = _eligible_segments(manifest, keep, now)
    fresh = [entry for entry in eligible if entry.base >= manifest.cleaned]
    return (
        sum(entry.bytes for entry in fresh) * 2 > sum(entry.bytes for entry in eligible)
        or is_unsealed_too_long(store, number, keep, now)
        or (keep.lag_max is not None and any(now - entry.appended_first >= _us(keep.lag_max) for entry in fresh))
        or any(_tombstones_expired(entry, keep, now) for entry in eligible)
        or any(_marker_expired(marker, keep, now) for entry in eligible for marker in entry.markers)
    )


def is_unsealed_too_long(store: TopicStore, number: int, keep: Keep, now: int) -> bool:
    """Whether a record older than `lag_max` is in the active segment."""
    partition = store.partitions[number]
    if keep.lag_max is None or partition.fenced():
        return False
    head = partition.published_end()
    first = first_append(partition, SegmentName(head.segment, head.epoch))
    return first is not None and now - first >= _us(keep.lag_max)


def _moment(store: TopicStore, number: int, keep: Keep) -> UpkeepNow:
    partition = store.partitions[number]
    return now_of(partition, partition.manifest_file.read(), max(keep.lag_min, keep.tombstones))


def _us(duration: timedelta) -> int:
    return duration // MICROSECOND


def _eligible_segments(manifest: Manifest, keep: Keep, now: int) -> list[SealedEntry]:
    """The segments old enough to be compacted: a prefix of the partition."""
    if not keep.lag_min:
        return list(manifest.segments)
    found = []
    for entry in manifest.segments:
        if now - entry.last_append(now) < _us(keep.lag_min):
            break
        found.append(entry)
    return found


def _tombstones_expired(entry: SealedEntry, keep: Keep, now: int) -> bool:
    return bool(entry.tombstones) and entry.cleaned_at is not None and now - entry.cleaned_at >= _us(keep.tombstones)


def _marker_expired(marker: Marker, keep: Keep, now: int) -> bool:
    return marker.bare_since is not None and now - marker.bare_since >= _us(keep.tombstones)


class _Compaction:
    """One pass over one partition. The caller holds the upkeep lock."""

    def __init__(self, store: TopicStore, number: int, keep: Keep, moment: UpkeepNow, check_stop: CheckStop) -> None:
        self._partition = store.partitions[number]
        self._number = number
        self._holds = store.holds
        self._schemas = store.schemas
        self._key = store.settings.key
        self._keep = keep
        self._moment = moment
        self._now = moment.now
        self._check_stop = check_stop
        self._found = self._partition.manifest_file.read()
        self._manifest = self._found.set_clock(moment).note_future(moment.now)
        self._entries = {entry.base: entry for entry in _eligible_segments(self._manifest, keep, self._now)}

    def run(self) -> CompactionReport:
        before, entries = self._manifest, list(self._entries.values())
        fresh = [entry for entry in entries if entry.base >= before.cleaned]
        over = [entry for entry in entries if _tombstones_expired(entry, self._keep, self._now)]
        markers_over = any(
            _marker_expired(marker, self._keep, self._now) for entry in entries for marker in entry.markers
        )
        removed = tombstones = 0
        if fresh or over or markers_over:
            rows = {entry.base: entry.rows for entry in entries}
            gone = replaced_rows(rows, [entry.base for entry in fresh], self._keys, self._check_stop)
            removed = sum(gone.count(entry.base) for entry in entries)
            forgotten = max((self._mark_tombstones(entry, gone) for entry in over), default=0)
            tombstones = sum(gone.count(entry.base) for entry in entries) - removed
            # Written with the first step, so before the first tombstone is removed.
            self._manifest = replace(self._manifest, forgotten=max(self._manifest.forgotten, forgotten))
            markers = self._markers(entries, gone)
            # Cleaned and new segments are not merged: a restarted pass must tell them apart.
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
        """Mark expired tombstones; returns the offset after the last one that no later record replaces, or 0."""
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
        """The markers to keep, by offset, each with the time when its last record was removed."""
        markers = [marker for entry in entries for marker in entry.markers]
        left = self._records_left([marker for marker in markers if marker.bare_since is None], entries, gone)
        return {
            marker.offset: marker if marker.bare_since is not None or left[marker.offset] else self._bare(marker)
            for marker in markers
            if not _marker_expired(marker, self._keep, self._now)
        }

    def _bare(self, marker: Marker) -> Marker:
        return replace(marker, bare_since=self._now)

    def _records_left(self, markers: list[Marker], entries: list[SealedEntry], gone: RowMarks) -> dict[int, int]:
        """The number of remaining records of each transaction."""
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
        self._check_stop()
        leaves = ("record.offset",)
        batches = read_sealed(self._partition.files, self._path(entry.base), columns=[], record_columns=leaves)
        parts = [batch.column("record").field("offset").to_numpy(zero_copy_only=False) for batch in batches]
        return np.concatenate([np.empty(0, np.int64), *parts])[~gone.of(entry.base)]

    # Steps

    def _rewrite(self, run: list[SealedEntry], gone: RowMarks) -> None:
        """One step: merge a run of segments into one. The last step updates its markers."""
        partition = self._partition
        entry = merge_segments(partition, self._schemas, run, gone, self._check_stop)
        segments = list(self._manifest.segments)
        at = segments.index(run[0])
        segments[at : at + len(run)] = [entry]
        self._manifest = replace(self._manifest, segments=tuple(segments))
        with self._holds.copy_before_drop(partition.folder, self._number, run):
            partition.manifest_file.write(self._manifest)
        self._found = self._manifest
        for old in run:
            remove_if_there(partition.files, f"{partition.folder}/{old.file}")

    def _finish(self, end: int, markers: dict[int, Marker]) -> None:
        """The last step: everything up to `end` is clean, and its tombstones begin to expire."""
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
