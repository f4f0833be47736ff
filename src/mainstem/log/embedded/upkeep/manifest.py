"""The manifest of a partition: the list of its sealed segments.

Lines of JSON, replaced whole (write, sync, rename, sync): the first tells of the partition, then one for each sealed
segment in order, the last has the checksum of all bytes before it:

    {"format": 2, "start": 0, "cleaned": 0, "forgotten": 0, "clock": {"now": 1767225600000000, "boot": 864000, ...}}
    {"base": 0, "end": 5120, "file": "00000000000000000000-1f0c93ab.parquet", "bytes": 90112, "crc32c": 1234, ...}
    {"crc32c": 305419896}

Format 1 has no `forgotten`.

A Parquet file that the manifest does not name is not part of the log: it is left over from an interrupted pass.
A writer holds the partition's upkeep lock; readers need no lock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

import google_crc32c

from mainstem.clock import Clock
from mainstem.durable_files import Files, read_file, replace_file
from mainstem.errors import CorruptManifest, NewerFormat
from mainstem.processes import boot_id

__all__ = [
    "MICROSECOND",
    "Manifest",
    "ManifestFile",
    "Marker",
    "SealedEntry",
    "UpkeepNow",
    "encode_manifest",
    "first_reading",
    "upkeep_now",
]


# Upkeep's own clock: records are dropped for their age only if they are that old, even if the wall clock jumps.
#
# Append times come from the wall clock, which can be set: a jump of ten years must not empty a topic. The boot clock
# cannot be set. So upkeep's time advances from that of an earlier pass, no faster than the boot clock:
#
#     now = the lower of  the wall clock  and  the earlier now + the time on the boot clock since then
#
# - The wall clock falls behind: upkeep's time follows it, since records are stamped with it. Nothing is dropped too
#   early.
# - It jumps ahead: upkeep's time continues at its old rate, and the jump is reported. The jump may have corrected a
#   wrong clock. If the wall clock stays ahead by the same amount for the whole retention time, it is trusted: by then
#   all records appended before the jump have expired by the boot clock alone.
# - After a reboot the boot clock does not show how long the machine was off. The wall clock is trusted once it has been
#   stable for an hour; before that only the time since the boot counts.
#
# Times that a pass itself has recorded (when a tombstone's segment was cleaned) are moved when `now` is corrected, so
# that they run by the boot clock alone.
#
# A jump forth and back between two passes is not detected. The reading is stored in the manifest, and only when
# something unexpected happened: a pass without work writes nothing.


MICROSECOND = timedelta(microseconds=1)

# Smaller corrections are normal; they are not jumps.
TOLERANCE = 1_000_000

# How long the wall clock must be stable after a reboot: time servers have set it by then.
RESTART_SETTLES = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks at an earlier pass: upkeep's time, the boot clock, and the id of the boot.

    `ahead`: by how much the wall clock was ahead then. `since`: since which time on the boot clock it has been.
    """

    now: int
    boot: int
    boot_id: str
    ahead: int = 0
    since: int = 0
    restarted: bool = False


class UpkeepNow(NamedTuple):
    """Upkeep's current time.

    `reading` is the reading to store: the earlier one if nothing changed. `moved`: by how much the time was corrected;
    times that upkeep has recorded must be moved by the same amount.
    """

    now: int
    jump: timedelta | None
    reading: ClockReading
    moved: int


def first_reading(clock: Clock) -> ClockReading:
    """The reading of a new partition."""
    return ClockReading(clock.now(), clock.boot(), boot_id())


def upkeep_now(before: ClockReading, clock: Clock, *, believe_after: timedelta) -> UpkeepNow:
    """Upkeep's time after an earlier reading. `believe_after`: how long a wall clock that jumped ahead must be
    stable."""
    wall, boot, machine = clock.now(), clock.boot(), boot_id()
    other_boot = before.boot_id != machine or boot < before.boot
    limit = before.now + (boot if other_boot else boot - before.boot)
    ahead = wall - limit
    # Shortly after a reboot the wall clock may still be corrected.
    unsettled = before.ahead > 0 or boot - before.boot < RESTART_SETTLES
    restarted = other_boot or (before.restarted and unsettled)
    if ahead < -TOLERANCE:
        return UpkeepNow(wall, ahead * MICROSECOND, ClockReading(wall, boot, machine, restarted=restarted), ahead)
    if ahead <= TOLERANCE:
        now = min(wall, limit)
        return UpkeepNow(now, None, ClockReading(now, boot, machine) if before.ahead or other_boot else before, 0)
    if other_boot or abs(ahead - before.ahead) > TOLERANCE:
        reading = ClockReading(limit, boot, machine, ahead, boot, restarted)
        return UpkeepNow(limit, ahead * MICROSECOND, reading, 0)
    needed = RESTART_SETTLES if before.restarted else believe_after // MICROSECOND
    if boot - before.since >= needed:
        return UpkeepNow(wall, None, ClockReading(wall, boot, machine), ahead)
    return UpkeepNow(limit, ahead * MICROSECOND, before, 0)


# 2: `forgotten` of the partition, `transactions` of a segment.
FORMAT = 2


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction in a sealed segment; removed `tombstones` after its last record."""

    offset: int
    committed: bool
    ranges: list[list[int]]
    bare_since: int | None = None


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """One sealed segment in the manifest. It covers the offsets from `base` to `end` (exclusive)."""

    base: int
    end: int
    file: str
    bytes: int
    crc32c: int
    rows: int
    schema_version: int
    appended_first: int
    appended_last: int
    event_time_max: int
    observed_up_to: int
    stated_watermark: int
    # Only in compacted topics: elsewhere no record is removed, and the list would grow without bound.
    markers: list[Marker] = field(default_factory=list)
    aborted: list[list[int]] = field(default_factory=list)
    # The number of offsets that markers take, listed or not.
    marked: int = 0
    # When this segment was first cleaned: its tombstones expire `tombstones` later.
    cleaned_at: int | None = None
    tombstones: int = 0
    # When upkeep first saw that its append times are in the future: its age is counted from then. Append times never
    # decrease, so one append under a clock that is years ahead affects all later ones.
    future_since: int | None = None
    # The lowest and the highest transaction number in the file; empty if it has none, None in files that do not record
    # them.
    transactions: list[int] | None = None

    def move_times(self, by: int) -> SealedEntry:
        """With the times that upkeep recorded moved by this much."""
        markers = [replace(m, bare_since=_later(m.bare_since, by)) for m in self.markers]
        return replace(
            self,
            markers=markers,
            cleaned_at=_later(self.cleaned_at, by),
            future_since=_later(self.future_since, by),
        )

    def note_future(self, now: int) -> SealedEntry:
        """With a note if its append times are in the future."""
        if self.appended_last <= now + TOLERANCE or self.future_since is not None:
            return self
        return replace(self, future_since=now)

    def last_append(self, now: int) -> int:
        """When its last record was appended, for the computation of its age."""
        return self.appended_last if self.appended_last <= now or self.future_since is None else self.future_since


def _later(at: int | None, by: int) -> int | None:
    return None if at is None else at + by


@dataclass(frozen=True)
class Manifest:
    """The sealed history of a partition.

    `start`: retention has dropped everything below. `cleaned`: compacted up to here. `forgotten`: compaction has
    removed expired tombstones below this offset; 0 if it has removed none, or if the manifest has format 1.
    """

    start: int = 0
    cleaned: int = 0
    segments: tuple[SealedEntry, ...] = ()
    # The clock reading of an earlier pass, or of the creation of the partition. An archive has none.
    clock: ClockReading | None = None
    forgotten: int = 0

    @property
    def end(self) -> int:
        """The offset up to which history is sealed."""
        return self.segments[-1].end if self.segments else self.start

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def with_segment(self, entry: SealedEntry) -> Manifest:
        return replace(self, segments=(*self.segments, entry))

    def note_future(self, now: int) -> Manifest:
        """With a note at each segment whose append times are in the future."""
        return replace(self, segments=tuple(entry.note_future(now) for entry in self.segments))

    def set_clock(self, moment: UpkeepNow) -> Manifest:
        """With the new clock reading; if upkeep's time was corrected, the times that it recorded move too."""
        if moment.moved:
            segments = tuple(entry.move_times(moment.moved) for entry in self.segments)
            return replace(self, clock=moment.reading, segments=segments)
        return self if self.clock == moment.reading else replace(self, clock=moment.reading)


def encode_manifest(manifest: Manifest) -> bytes:
    head: dict[str, Any] = {
        "format": FORMAT,
        "start": manifest.start,
        "cleaned": manifest.cleaned,
        "forgotten": manifest.forgotten,
        "clock": asdict(manifest.clock) if manifest.clock is not None else None,
    }
    lines = [json.dumps(head), *(json.dumps(asdict(entry)) for entry in manifest.segments)]
    text = "".join(line + "\n" for line in lines).encode()
    return text + json.dumps({"crc32c": google_crc32c.value(text)}).encode() + b"\n"


def decode_manifest(data: bytes, path: str) -> Manifest:
    body, _, last = data.rstrip(b"\n").rpartition(b"\n")
    text = body + b"\n"
    try:
        sound = json.loads(last)["crc32c"] == google_crc32c.value(text) and data == text + last + b"\n"
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise CorruptManifest(
            f'manifest "{path}" is damaged',
            detail="Its checksum does not match, so it is not certain which sealed segments belong to the log.",
            hint="Nothing was changed. Restore the file from a copy; the sealed segments beside it are Parquet files "
            "that any tool can read.",
            path=path,
        )
    head, *entries = map(json.loads, text.splitlines())
    if head["format"] > FORMAT:
        raise NewerFormat.of(f'manifest "{path}"', head["format"], FORMAT)
    segments = tuple(
        SealedEntry(**{**entry, "markers": [Marker(**marker) for marker in entry["markers"]]}) for entry in entries
    )
    clock = ClockReading(**head["clock"]) if head["clock"] is not None else None
    return Manifest(head["start"], head["cleaned"], segments, clock, head.get("forgotten", 0))


class ManifestFile:
    """A partition's manifest on disk, read again only if it was replaced. Thread-safe: the cached value is
    immutable."""

    def __init__(self, files: Files, folder: str) -> None:
        self.path = f"{folder}/manifest"
        self._files = files
        self._seen: tuple[tuple[int, int, int], Manifest] | None = None

    def read(self) -> Manifest:
        try:
            identity = self._files.identity(self.path)
        except FileNotFoundError as error:
            raise CorruptManifest(
                f'manifest "{self.path}" is missing',
                detail="Every partition is created with one, so it was removed.",
                hint="Nothing was changed. Restore the file from a copy; the sealed segments beside it are Parquet "
                "files that any tool can read.",
                path=self.path,
            ) from error
        seen = self._seen
        if seen is not None and seen[0] == identity:
            return seen[1]
        manifest = decode_manifest(read_file(self._files, self.path), self.path)
        # The identity was read before the bytes: if the file was replaced between, the next call reads it again.
        self._seen = (identity, manifest)
        return manifest

    def write(self, manifest: Manifest) -> None:
        replace_file(self._files, self.path, encode_manifest(manifest))
