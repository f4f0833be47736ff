"""PartitionReads: how groups and queues read a topic, and the positions from which a reader may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

import pyarrow as pa

from mainstem.arguments import show_value, type_name, whole_number
from mainstem.clock import as_us
from mainstem.errors import BeyondEnd, Invalid
from mainstem.log.lag import Lag
from mainstem.log.missed_deletions import Compacted
from mainstem.processes import Identity

__all__ = ["HINT", "PartitionReads", "Position", "Processes", "Waiter", "check_position", "offsets_at", "stops_at"]

# Where to start: a word, a time with a zone (compared with append times), offsets, or an append's token.
Position = Literal["earliest", "latest"] | str | datetime | Mapping[int, int]


class PartitionReads(Protocol):
    """A topic as its readers see it: committed, published records only. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """The topic's name."""

    def partitions(self) -> int:
        """The current number of partitions."""

    def schema(self) -> pa.Schema:
        """The topic's current columns, without `record`."""

    def key(self) -> tuple[str, ...]:
        """The key columns; empty for a topic without a key."""

    def earliest(self, partition: int) -> int:
        """The offset of the first retained record, or the end if there is none."""

    def latest(self, partition: int) -> int:
        """The offset up to which records are readable; the next one has at least this offset."""

    def end(self, partition: int) -> int:
        """The offset after the last published record, with those of open transactions: `latest` or more. It never
        decreases, so no position of a reader is beyond it."""

    def at_time(self, partition: int, at: int) -> int:
        """The offset of the first record appended at that time (microseconds UTC) or later; `latest` if none was."""

    def after_token(self, token: str) -> dict[int, int]:
        """For each partition in the token, its end offset. Raises `Invalid`."""

    def read(self, partition: int, start: int, rows_max: int) -> pa.RecordBatch | None:
        """The next 1 to `rows_max` records from `start` on, with `record` as last column; None if there are none yet.

        Raises `FellOff` if records from `start` on were dropped by retention (not by compaction).
        """

    def behind(self, partition: int, offset: int) -> Lag:
        """The lag of a reader whose next offset is `offset`, or the first retained record if that one was deleted."""

    def compaction(self, partition: int) -> Compacted | None:
        """How far a partition is compacted; None if it is not, or if the log does not tell."""


class Processes(Protocol):
    """The processes of this machine (`mainstem.processes` itself is one)."""

    def this_process(self) -> Identity:
        """The identity of this process; it changes with a fork."""

    def alive(self, identity: Identity) -> bool:
        """Whether this process (not another with the same id) still exists."""


class Waiter(Protocol):
    """Waits until there may be something to do. Not thread-safe."""

    def wait(self, timeout_seconds: float, until: int | None, holders: Sequence[Identity]) -> None:
        """Return when something happened, or after the timeout.

        That is: a record became readable in the topic, an entry was appended to the ledger, one of the `holders` ended,
        the log's clock reached `until` (microseconds UTC), or `timeout_seconds` passed. Events since the last return of
        `wait` (or since the waiter was created) count too, so none is missed between a read and a wait. It may return
        without a reason.
        """


class Ends(Protocol):
    """A topic with the ends of its partitions."""

    @property
    def name(self) -> str: ...
    def end(self, partition: int) -> int: ...


HINT = (
    "A stored position is valid only for the log that it was read from. If the log was restored from an older copy, restore "
    "the stored positions from the same copy, or choose a new position: {where}."
)


def check_position(
    reads: Ends,
    partition: int,
    position: int,
    *,
    reader: str = "a reader",
    hint: str = HINT.format(where='"earliest", "latest" or a time'),
) -> None:
    """Raise `BeyondEnd` if the position is beyond the end of the partition."""
    end = reads.end(partition)
    if position > end:
        raise BeyondEnd(
            f'{reader} cannot continue from offset {position} of "{reads.name}" partition {partition}: it ends at {end}',
            detail=f"The next record gets offset {end}. Records appended up to offset {position - 1} would never be read.",
            hint=hint,
            topic=reads.name,
            partition=partition,
            position=position,
            end=end,
        )


def offsets_at(position: Position, reads: PartitionReads, partitions: Sequence[int]) -> dict[int, int]:
    """The offset to read next in each of `partitions`. Raises `BeyondEnd` for one beyond the end.

    Offsets and tokens may leave partitions out; the result leaves them out too.
    """
    offsets = _offsets(position, reads, partitions)
    if isinstance(position, Mapping):
        for partition, offset in offsets.items():
            check_position(reads, partition, offset)
    return offsets


def stops_at(position: Position, reads: PartitionReads, partitions: Sequence[int]) -> dict[int, int]:
    """The offset to stop before in each of `partitions`: as `offsets_at`, but offsets beyond the end mean the end."""
    return _offsets(position, reads, partitions)


def _offsets(position: Position, reads: PartitionReads, partitions: Sequence[int]) -> dict[int, int]:
    if isinstance(position, datetime):
        at = as_us(position)
        return {partition: reads.at_time(partition, at) for partition in partitions}
    if isinstance(position, str):
        if position == "earliest":
            return {partition: reads.earliest(partition) for partition in partitions}
        if position == "latest":
            return {partition: reads.latest(partition) for partition in partitions}
        return _after_token(position, reads, partitions)
    if not isinstance(position, Mapping):
        raise Invalid(
            f"{show_value(position)} is not a position",
            detail=f"It is of type {type_name(position)}.",
            hint='Give "earliest", "latest", a datetime with a zone, {partition: offset}, or the token of an append.',
        )
    for partition, offset in position.items():
        # True and 1.0 equal 1.
        if isinstance(partition, bool) or not isinstance(partition, int) or partition not in partitions:
            known = ", ".join(map(str, partitions)) or "none"
            raise Invalid(
                f"partition {partition!r} cannot be chosen here",
                detail=f'Partitions of topic "{reads.name}" to choose from: {known}.',
                hint="Give offsets for these partitions only.",
            )
        whole_number(offset, f"offset of partition {partition}", hint='To go to the end, give "latest".')
    return dict(position)


def _after_token(token: str, reads: PartitionReads, partitions: Sequence[int]) -> dict[int, int]:
    """A token stands for acknowledged appends: all of them must exist."""
    known = reads.partitions()
    found = reads.after_token(token)
    for partition, offset in found.items():
        if partition in partitions:
            check_position(reads, partition, offset)
        elif offset and partition >= known:
            raise BeyondEnd(
                f'the token does not match topic "{reads.name}": it has no partition {partition}',
                detail=f"The token covers its offsets up to {offset - 1}; the topic has {known} partitions.",
                hint=HINT.format(where='"earliest", "latest" or a time'),
                topic=reads.name,
                partition=partition,
                position=offset,
            )
    return {partition: offset for partition, offset in found.items() if partition in partitions}
