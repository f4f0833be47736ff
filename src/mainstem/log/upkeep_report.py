"""The reports of upkeep, verification and take-over."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mainstem.errors import Corrupt

__all__ = ["CompactionReport", "PartitionFacts", "Problem", "RetentionReport", "TakeOverReport", "Verification"]


@dataclass(frozen=True, slots=True)
class TakeOverReport:
    """The processes that were killed, and what was taken over; two reports add up.

    >>> one = TakeOverReport(ended=("4711 (python)",), taken=('"orders" partition 0',))
    >>> print(one + TakeOverReport(taken=("transactions",)))
    took over "orders" partition 0, transactions; ended the stopped process 4711 (python)
    >>> print(TakeOverReport())
    nothing to take over: no lock is held by a stopped process
    """

    ended: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    def __add__(self, other: TakeOverReport) -> TakeOverReport:
        # A process may have held several locks.
        ended = dict.fromkeys(self.ended + other.ended)
        return TakeOverReport(tuple(ended), self.taken + other.taken)

    def __str__(self) -> str:
        if not self.taken:
            return "nothing to take over: no lock is held by a stopped process"
        words = "process" if len(self.ended) == 1 else "processes"
        ended = f"; ended the stopped {words} {', '.join(self.ended)}" if self.ended else "; no process had to be ended"
        return f"took over {', '.join(self.taken)}{ended}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage: the file, and the offsets it affects."""

    partition: int
    file: str
    what: str
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass
class Verification:
    """The result of a verification."""

    topic: str
    records: int = 0
    bytes: int = 0
    sealed_segments: int = 0
    block_segments: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, partition: int, error: Corrupt) -> None:
        """Add an error; one that was found twice counts once."""
        first, last = getattr(error, "first_offset", None), getattr(error, "last_offset", None)
        problem = Problem(partition, error.path, error.summary, first, last)
        if problem not in self.problems:
            self.problems.append(problem)

    def join(self, part: Verification) -> None:
        """Add the result of a part."""
        self.records += part.records
        self.bytes += part.bytes
        self.sealed_segments += part.sealed_segments
        self.block_segments += part.block_segments
        self.problems += part.problems

    @property
    def sound(self) -> bool:
        """Whether there is no damage."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of a compaction pass over some partitions; two add up.

    `records` and `bytes` are those of the sealed segments, `removed` the records that a later one of the same key
    replaced, `tombstones` the expired deletions. `clock_jump`: by how much the wall clock moved differently from the
    boot clock; it does not affect when tombstones expire.

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
    """The result of a retention pass over some partitions; two add up.

    `archived`: how many of the segments were copied to the archive first. `clock_jump`: by how much the wall clock
    moved differently from the boot clock; nothing is dropped because of that.

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
    """The jump with the greater absolute value."""
    jumps = [jump for jump in (one, other) if jump is not None]
    return max(jumps, key=abs, default=None)


@dataclass(frozen=True)
class PartitionFacts:
    """One partition. `records` counts the readable ones. `segments` and `appended_at` are None if the log does not
    tell."""

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    segments: int | None = None
    sealed: int | None = None
    appended_at: datetime | None = None
    # The damage found, if any: then the numbers cover only the readable part.
    damage: str | None = None
