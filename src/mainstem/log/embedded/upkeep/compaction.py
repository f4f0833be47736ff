"""Compaction: keeps the latest record of each key, at its offset; finally removes a deleted key completely.

Only sealed segments are compacted, and only records older than `lag_min`: a reader close behind the writers sees every
record. Offsets and order never change. A pass reads the keys of segments sealed since the last one (from `cleaned` on),
marks every earlier record that they replace, and rewrites the segments that lose records; the others keep their files.
It works run by run, each an atomic step, oldest first; a last step moves `cleaned`. An interrupted pass has removed
only records that a later one replaces.

A tombstone replaces what it deletes at once, and stays itself, so that readers learn of it: for `tombstones` after the
pass that first cleaned its segment. In that pass everything before it with its key went, so when it goes nothing
returns. The manifest says up to where tombstones are gone, so that a reader that still needs one is refused. A transaction's marker goes the same way once all records of the transaction are gone.

A record is looked for in its own partition. After a topic was given more partitions a key may have its older records
in one and its newer ones in another, where they replace nothing: copy such a topic to a new one.
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
from mainstem.log.embedded.read.sealed_segment import noted_spans, read_sealed, sealed_schema
from mainstem.log.embedded.read.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.upkeep.manifest import MICROSECOND, Manifest, Marker, SealedEntry, UpkeepNow
from mainstem.log.embedded.upkeep.sealing import seal_closed
from mainstem.log.embedded.upkeep.upkeep_pass import GoOn, first_append, go_on, now_of, put_sealed, upkeep_of
from mainstem.log.embedded.write.active_segment import SegmentName
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.keep_rule import Keep
from mainstem.log.rows.partitioner import key_bytes, murmur2
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.transaction_cut import TransactionSpans
from mainstem.log.upkeep_report import CompactionReport

__all__ = ["compact", "compaction_due"]


# Which records a later one of the same key has replaced, found without holding all keys at once.
#
# The keys of the new part of a partition are gathered with the last offset of each; then the keys of all of it, old and
# new, are looked up among them, whole columns at a time. Exact: keys are compared byte by byte. Where there are more
# keys than may be held, they are dealt out to shares by their hash, and one share is worked on at a time.


# A share has about so many keys at most, of about so many bytes: with what is needed to look them up some 300 MB.
KEYS_MAX = 1_000_000
KEY_BYTES_MAX = 32 << 20

# So many rows are gathered before they are reduced to keys, or looked up, and as many as there are keys held: each of
# the two goes over all of those.
ROWS_TOGETHER = 250_000
ROW_BYTES_TOGETHER = 16 << 20

# Beyond this the keys themselves must be huge; then a share may be larger.
SHARES_MAX = 4096

Offsets = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


class KeyRows(NamedTuple):
    """Some rows of a segment: where they stand in it, their keys and offsets."""

    segment: int
    places: Offsets
    keys: pa.BinaryArray
    offsets: Offsets

    def only(self, wanted: pa.BooleanArray) -> KeyRows:
        """Some of them."""
        if wanted.true_count == len(wanted):
            return self
        chosen = wanted.to_numpy(zero_copy_only=False)
        return KeyRows(self.segment, self.places[chosen], self.keys.filter(wanted), self.offsets[chosen])


def key_rows(
    segment: int, batches: Iterable[pa.RecordBatch], key: Sequence[str], schema: pa.Schema
) -> Iterator[KeyRows]:
    """The keys of a segment's batches, which have the key columns and `record.offset`; `schema` is that of the key now."""
    row = 0
    for batch in batches:
        offsets = batch.column(batch.num_columns - 1).field("offset").to_numpy(zero_copy_only=False)
        # As they are now: a column that was widened has the same bytes.
        places = np.arange(row, row + batch.num_rows, dtype=np.int64)
        yield KeyRows(segment, places, key_bytes(fit(batch.select(list(key)), schema), key), offsets)
        row += batch.num_rows


class RowMarks:
    """Some rows of each of some segments, one bit a row."""

    def __init__(self, rows: dict[int, int]) -> None:
        self._rows = rows
        self._bits = {segment: np.zeros((count + 7) // 8, np.uint8) for segment, count in rows.items()}

    def add(self, rows: KeyRows, marks: Marks) -> None:
        """Mark some of some rows."""
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
    """The last offset of each key of one share. `full`: there are more keys than may be held."""

    def __init__(self, share: int, shares: int) -> None:
        self.full = False
        self._share = share
        self._shares = shares
        self._keys = pa.chunked_array([], pa.binary())
        self._offsets = pa.chunked_array([], pa.int64())
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0

    def mine(self, rows: KeyRows) -> pa.Array:
        """Which rows are of this share; a record without a key is of none, and replaces none."""
        known = pc.is_valid(rows.keys)
        if self._shares == 1:
            return known
        # The lowest bits have decided on the partition.
        return pc.and_(known, pa.array((murmur2(rows.keys) >> np.uint32(10)) % np.uint32(self._shares) == self._share))

    def add(self, rows: KeyRows) -> None:
        self._waiting.append(pa.table({"key": rows.keys, "offset": rows.offsets}).filter(self.mine(rows)))
        self._rows += len(self._waiting[-1])
        self._bytes += self._waiting[-1].nbytes
        if self.enough(self._rows, self._bytes):
            self.reduce()

    def enough(self, rows: int, size: int) -> bool:
        """Whether so many rows are worth going over all keys."""
        return rows >= max(ROWS_TOGETHER, len(self._keys)) or size >= max(ROW_BYTES_TOGETHER, self._keys.nbytes)

    def reduce(self) -> None:
        """Make keys of the rows that wait."""
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

    def replaced(self, pieces: Sequence[KeyRows]) -> Iterator[tuple[KeyRows, Marks]]:
        """For each piece which of its rows have a later one of the same key."""
        places = pc.index_in(pa.chunked_array([piece.keys for piece in pieces], pa.binary()), value_set=self._keys)
        # A key that is not held gets the last place, where an offset stands that is later than none.
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
    go_on: Callable[[], None],
) -> RowMarks:
    """The rows of some segments that a later record in the `fresh` ones among them replaces.

    `rows`: how many rows each segment has, by its number. `read` gives the keys of one, in order.
    """
    marks = RowMarks(rows)
    share, shares = 0, 1 if fresh else 0
    while share < shares:
        latest = LatestOffsets(share, shares)
        seen = _gather(latest, fresh, read, go_on, to_the_end=shares >= SHARES_MAX)
        if latest.full and shares < SHARES_MAX:
            # As many as it takes if the rest is like what was seen.
            needed = -(-shares * sum(rows[segment] for segment in fresh) * 5 // (4 * seen))
            share, shares = 0, min(SHARES_MAX, max(2 * shares, needed))
            continue
        for pieces in _together(latest, rows, read, go_on):
            for piece, replaced in latest.replaced(pieces):
                marks.add(piece, replaced)
        share += 1
    return marks


def _gather(
    latest: LatestOffsets,
    fresh: Sequence[int],
    read: Callable[[int], Iterator[KeyRows]],
    go_on: Callable[[], None],
    *,
    to_the_end: bool,
) -> int:
    """Take in the keys of the fresh segments, until there are too many; how many rows were seen."""
    seen = 0
    for segment in fresh:
        for piece in read(segment):
            go_on()
            seen += len(piece.keys)
            latest.add(piece)
            if latest.full and not to_the_end:
                return seen
    latest.reduce()
    return seen


def _together(
    latest: LatestOffsets, segments: Iterable[int], read: Callable[[int], Iterator[KeyRows]], go_on: Callable[[], None]
) -> Iterator[list[KeyRows]]:
    """The keys of this share in all segments, in helpings that are looked up at once."""
    pieces: list[KeyRows] = []
    count = size = 0
    for segment in segments:
        for piece in read(segment):
            go_on()
            pieces.append(piece.only(latest.mine(piece)))
            count += len(pieces[-1].keys)
            size += pieces[-1].keys.nbytes
            if latest.enough(count, size):
                yield pieces
                pieces, count, size = [], 0, 0
    if pieces:
        yield pieces


# Sealed segments written anew without some of their rows, small neighbours together.
#
# A segment that loses nothing keeps its file, unless it is small beside those it is put together with: so a row is
# written again a few times at most, however often the partition is compacted.


def plan_merges(entries: Sequence[SealedEntry], gone: RowMarks, bytes_max: int) -> list[list[SealedEntry]]:
    """The runs of neighbours to be rewritten, each run as one segment."""
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
    return [part for run in runs for part in _worth_it(run, size, touched)]


def _same_age(one: SealedEntry, other: SealedEntry) -> bool:
    """Whether both may be one segment: the time of its tombstones runs from one moment."""
    return one.cleaned_at == other.cleaned_at or not one.tombstones or not other.tombstones


def _worth_it(
    run: list[SealedEntry], size: Callable[[SealedEntry], int], touched: Callable[[SealedEntry], bool]
) -> Iterator[list[SealedEntry]]:
    """The parts of a run to write: a segment that loses nothing is not written again for the sake of smaller ones."""
    if not run or (len(run) == 1 and not touched(run[0])):
        return
    whole = [entry for entry in run if not touched(entry)]
    largest = max(whole, key=size, default=None)
    if largest is not None and size(largest) > sum(size(entry) for entry in run if entry is not largest):
        at = run.index(largest)
        yield from _worth_it(run[:at], size, touched)
        yield from _worth_it(run[at + 1 :], size, touched)
    else:
        yield run


def without_empty(entries: Sequence[SealedEntry]) -> list[SealedEntry]:
    """The segments with those that have no rows left made part of a neighbour, whose file stays as it is."""
    found: list[SealedEntry] = []
    for entry in entries:
        if found and not (entry.rows and found[-1].rows):
            before = found.pop()
            has_rows = entry if entry.rows else before
            found.append(replace(has_rows, **_merged_with([before, entry])))
        else:
            found.append(entry)
    return found


def _merged_with(run: Sequence[SealedEntry]) -> dict[str, Any]:
    """What several neighbours have in common as one segment, whatever rows are left."""
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


def merged(
    partition: Partition, schemas: TopicSchemas, run: Sequence[SealedEntry], gone: RowMarks, go_on: GoOn
) -> SealedEntry:
    """Rewrite a run as one segment, on disk when this returns; the manifest does not name it yet."""
    tombstones: list[int] = []
    rows = _rows(partition, schemas, run, gone, tombstones, go_on)
    spans = TransactionSpans.together(
        noted_spans(partition.files, f"{partition.folder}/{entry.file}") for entry in run if entry.transactions
    )
    file, written = put_sealed(partition, run[0].base, sealed_schema(schemas.current), rows, spans)
    # Those without tombstones have no say in how old they are.
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
        **_merged_with(run),
    )


def _rows(
    partition: Partition,
    schemas: TopicSchemas,
    run: Sequence[SealedEntry],
    gone: RowMarks,
    tombstones: list[int],
    go_on: GoOn,
) -> Iterator[pa.RecordBatch]:
    plain, _ = schemas.shown(Reading())
    schema = sealed_schema(schemas.current)
    for entry in run:
        path = f"{partition.folder}/{entry.file}"
        # Always, and not once: what is written anew gets a new checksum, and damage would be sound for ever.
        check_sealed(partition.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        stays = ~gone.of(entry.base)
        row = 0
        for batch in read_sealed(partition.files, path, record_columns=("record",)):
            go_on()
            left = batch.filter(pa.array(stays[row : row + batch.num_rows]))
            row += batch.num_rows
            if not left.num_rows:
                continue
            record = left.column(left.num_columns - 1)
            tombstones.append(pc.sum(pc.equal(record.field("change"), "delete")).as_py() or 0)
            rows = fit(left.select(left.schema.names[:-1]), plain)
            yield pa.RecordBatch.from_arrays([*rows.columns, record], schema=schema)


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
