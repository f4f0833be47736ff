"""What a pass of upkeep did: what compaction took out, what retention dropped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["CompactionReport", "RetentionReport"]


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a pass of compaction over some partitions did; two add up.

    `records` and `bytes` are those of the sealed segments, `removed` the records that a later one of the same key
    replaced, `tombstones` the deletions whose time was over. `clock_jump`: by how much the time of day moved otherwise
    than the machine's own clock; tombstones' time ran on undisturbed.

    >>> CompactionReport(records_before=5, records_after=3, removed=2) + CompactionReport(records_before=1, records_after=1)
    CompactionReport(records_before=6, records_after=4, removed=2, tombstones=0, markers=0, bytes_before=0, bytes_after=0, segments_before=0, segments_after=0, sealed=0, clock_jump=None)
    """

    records_before: int = 0
    records_after: int = 0
    removed: int = 0
    tombstones: int = 0
    markers: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    sealed: int = 0
    clock_jump: timedelta | None = None

    def __add__(self, other: CompactionReport) -> CompactionReport:
        return CompactionReport(
            self.records_before + other.records_before,
            self.records_after + other.records_after,
            self.removed + other.removed,
            self.tombstones + other.tombstones,
            self.markers + other.markers,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.segments_before + other.segments_before,
            self.segments_after + other.segments_after,
            self.sealed + other.sealed,
            _larger(self.clock_jump, other.clock_jump),
        )


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a pass of retention over some partitions dropped; two add up.

    `archived`: how many of the segments were copied to the archive first. `clock_jump`: by how much the time of day
    moved otherwise than the machine's own clock; nothing is dropped because of that.

    >>> RetentionReport(segments=1, records=10, bytes=512) + RetentionReport(segments=2, records=5, bytes=256)
    RetentionReport(segments=3, records=15, bytes=768, archived=0, clock_jump=None)
    """

    segments: int = 0
    records: int = 0
    bytes: int = 0
    archived: int = 0
    clock_jump: timedelta | None = None

    def __add__(self, other: RetentionReport) -> RetentionReport:
        return RetentionReport(
            self.segments + other.segments,
            self.records + other.records,
            self.bytes + other.bytes,
            self.archived + other.archived,
            _larger(self.clock_jump, other.clock_jump),
        )


def _larger(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    """Of two jumps the one that is further from nothing."""
    jumps = [jump for jump in (one, other) if jump is not None]
    return max(jumps, key=abs, default=None)
