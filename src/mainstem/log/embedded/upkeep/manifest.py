"""The manifest of a partition: the list of its sealed segments.

Lines of JSON, replaced whole (write, sync, rename, sync): the first tells of the partition, then one for each sealed
segment in order, the last has the checksum of all bytes before it:

    {"format": 2, "start": 0, "cleaned": 0, "forgotten": 0, "clock": {"now": 1767225600000000, "boot": 864000, ...}}
    {"base": 0, "end": 5120, "file": "00000000000000000000-1f0c93ab.parquet", "bytes": 90112, "crc32c": 1234, ...}
    {"crc32c": 305419896}

Format 1 has no `forgotten`.

A Parquet file that it does not name is no part of the log: an unfinished seal, or one whose removal was cut short.
Who changes it holds the partition's upkeep lock; anyone may read it at any time.
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


# Upkeep's own time: what is dropped because of its age is truly that old, whatever happens to the time of day.
#
# Append times come from the time of day, which anyone may set: a jump of ten years must not empty a topic. The boot clock
# nobody can set. So upkeep's now goes on from where it stood at an earlier pass, no faster than the boot clock:
#
#     now = the lower of  the time of day  and  the earlier now + what the boot clock says has passed since
#
# - The time of day falls behind: upkeep's now falls back with it, since records are stamped with it; nothing is dropped
#   too early, some later.
# - It jumps ahead: upkeep's now goes on at its old pace, and the jump is reported. Somebody may have set a wrong clock
#   right, though. A time of day that stays ahead by the same amount for as long as records are kept is believed then:
#   whatever was appended before the jump has reached its age by the boot clock alone.
# - Over a restart of the machine the boot clock cannot tell how long it was off. The time of day is believed once it has
#   stood its ground for an hour; before that only the time since the start counts.
#
# What counts from a pass itself (how long ago a tombstone's segment was cleaned) is moved along whenever now is set
# anew, so that it runs by the boot clock alone.
#
# A jump there and back between two passes is not seen. Where it stood is written down in the manifest, and only when
# something unexpected was seen: a pass that finds nothing to do writes nothing.


MICROSECOND = timedelta(microseconds=1)

# Clocks are set right by less than this all the time; it is no jump.
TOLERANCE = 1_000_000

# How long the time of day must hold after a restart of the machine: time servers have set it by then.
RESTART_SETTLES = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks at an earlier pass: upkeep's now, the boot clock and which boot it is of.

    `ahead`: the time of day was so much further then, and has been since the boot clock said `since`.
    """

    now: int
    boot: int
    boot_id: str
    ahead: int = 0
    since: int = 0
    restarted: bool = False


class UpkeepNow(NamedTuple):
    """What upkeep takes for the present.

    `reading` is what to write down: the one before, if nothing has to be. `moved`: by how much now was set anew, which
    times that upkeep itself has noted must be moved too.
    """

    now: int
    jump: timedelta | None
    reading: ClockReading
    moved: int


def first_reading(clock: Clock) -> ClockReading:
    """The clocks as a partition is made."""
    return ClockReading(clock.now(), clock.boot(), boot_id())


def upkeep_now(before: ClockReading, clock: Clock, *, believe_after: timedelta) -> UpkeepNow:
    """Upkeep's time, after an earlier reading. `believe_after`: how long a time of day that jumped ahead must hold."""
    wall, boot, machine = clock.now(), clock.boot(), boot_id()
    other_boot = before.boot_id != machine or boot < before.boot
    limit = before.now + (boot if other_boot else boot - before.boot)
    ahead = wall - limit
    # Until it has settled after a restart the time of day may be set once more.
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
    """A transaction's end in a sealed segment; it goes once its records are gone and `tombstones` time has passed."""

    offset: int
    committed: bool
    ranges: list[list[int]]
    bare_since: int | None = None


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """What the manifest says of one sealed segment. Offsets `base` to `end` (not included) are accounted for by it."""

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
    # Of a compacted topic only: a topic of many transactions, of which every record stays, would have ever more.
    markers: list[Marker] = field(default_factory=list)
    aborted: list[list[int]] = field(default_factory=list)
    # How many offsets markers have taken, listed or not.
    marked: int = 0
    # Compaction: when this segment was first cleaned, from which its tombstones' time runs.
    cleaned_at: int | None = None
    tombstones: int = 0
    # When upkeep first saw that its append times lie in the future: its age runs from here. They never go back, so
    # one append under a clock that is years ahead stamps all that follow it.
    future_since: int | None = None
    # The lowest and the highest number of the transactions that are noted in the file; empty if it has none, None if it
    # is from a time when they were not noted.
    transactions: list[int] | None = None

    def moved(self, by: int) -> SealedEntry:
        """With everything that upkeep noted in its own time moved by so much."""
        markers = [replace(m, bare_since=_later(m.bare_since, by)) for m in self.markers]
        return replace(
            self,
            markers=markers,
            cleaned_at=_later(self.cleaned_at, by),
            future_since=_later(self.future_since, by),
        )

    def noted(self, now: int) -> SealedEntry:
        """With a note if its append times lie in the future."""
        if self.appended_last <= now + TOLERANCE or self.future_since is not None:
            return self
        return replace(self, future_since=now)

    def last_append(self, now: int) -> int:
        """When its last record was appended, as far as its age is concerned."""
        return self.appended_last if self.appended_last <= now or self.future_since is None else self.future_since


def _later(at: int | None, by: int) -> int | None:
    return None if at is None else at + by


@dataclass(frozen=True)
class Manifest:
    """The sealed history of a partition.

    `start`: what is below was dropped by retention. `cleaned`: compacted up to here. `forgotten`: below here compaction has
    dropped tombstones whose time was over; 0 where it dropped none, or where a manifest of format 1 did not say.
    """

    start: int = 0
    cleaned: int = 0
    segments: tuple[SealedEntry, ...] = ()
    # Where upkeep's own time stood at an earlier pass, or when the partition was made. An archive has none.
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

    def noted(self, now: int) -> Manifest:
        """The same with a note at each segment whose append times lie in the future."""
        return replace(self, segments=tuple(entry.noted(now) for entry in self.segments))

    def timed(self, moment: UpkeepNow) -> Manifest:
        """The same after a look at the clocks: where upkeep's now was set anew, what it noted moves along."""
        if moment.moved:
            segments = tuple(entry.moved(moment.moved) for entry in self.segments)
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
        raise NewerFormat(
            f'manifest "{path}" has format {head["format"]}',
            detail=f"This version of Mainstem reads manifests up to format {FORMAT}.",
            hint="Open the home with a newer Mainstem.",
        )
    segments = tuple(
        SealedEntry(**{**entry, "markers": [Marker(**marker) for marker in entry["markers"]]}) for entry in entries
    )
    clock = ClockReading(**head["clock"]) if head["clock"] is not None else None
    return Manifest(head["start"], head["cleaned"], segments, clock, head.get("forgotten", 0))


class ManifestFile:
    """A partition's manifest on disk, read again only when it was replaced. Thread-safe: what it keeps is immutable."""

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
        # The identity was taken before the bytes: if it was replaced between, the next look reads it again.
        self._seen = (identity, manifest)
        return manifest

    def write(self, manifest: Manifest) -> None:
        replace_file(self._files, self.path, encode_manifest(manifest))
