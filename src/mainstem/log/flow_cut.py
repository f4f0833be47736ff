"""FlowCut: where the next batch of a flow ends in all partitions of all its sources, so that it splits no transaction.

Each source has its own limits, by rows, bytes and event time. Below them the batch ends at the highest offsets
that split no transaction. If that leaves little or nothing, it extends to the first such offsets after the limits, if the
rows up to there are no more bytes than a batch may have. If they are more, the batch ends at its limits, so that the flow
makes progress, and the split transactions are recorded. If a transaction is undecided, the flow waits for it.

The readable ends of the partitions are read before the transactions: of all records readable then, the whole transaction
was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mainstem.arguments import INTEGER_MAX
from mainstem.log.first_reads import FirstReads, is_captured
from mainstem.log.log import TopicBackend
from mainstem.log.steps import Steps
from mainstem.log.transaction_cut import Reached, TooLarge, TransactionCut, TransactionSpans, Unstable

__all__ = [
    "BatchCut",
    "FirstAfter",
    "FlowCut",
    "FlowEnds",
    "FoundEnds",
    "Holder",
    "Lane",
    "Place",
    "Positions",
    "SourceLimits",
    "SourcePart",
    "SourceRequest",
    "aligned_cut",
    "by_topic",
    "readable_ends",
]


# The end of a batch in each partition: at the same event time in all of them, not at equal numbers of rows.
#
# Spark's watermark is the highest event time it has seen, less the delay. A batch that went far ahead in one partition
# would make the unread rows of the others late. So the steps of all partitions are sorted by the highest time up to each
# of them, and the batch takes the first of them, up to one time. The step of a partition that crosses that time is
# searched row by row, and taken up to the first later row: no remaining row is then older than the newest row taken,
# except by the disorder of its own partition.


# partition, first offset, offset behind the last, time -> the first offset with a later time
FirstAfter = Callable[[int, int, int, int], int]


def aligned_cut(
    starts: Mapping[int, int], steps: Mapping[int, Steps], rows_max: int, first_after: FirstAfter
) -> dict[int, int]:
    """The end of a batch of about `rows_max` rows in every partition; at least one step is taken if there is one.

    >>> early = Steps.of([(10, 10, 100), (20, 10, 200)])
    >>> late = Steps.of([(5, 5, 900), (9, 4, 950)])
    >>> aligned_cut({0: 0, 1: 0}, {0: early, 1: late}, 20, lambda partition, first, end, time: first + 2)
    {0: 20, 1: 2}
    """
    ends = dict(starts)
    known = {partition: found for partition, found in steps.items() if len(found.ends)}
    if not known:
        return ends
    numbers = np.concatenate([np.full(len(found.ends), partition) for partition, found in known.items()])
    offsets = np.concatenate([found.ends for found in known.values()])
    rows = np.concatenate([found.rows for found in known.values()])
    # Steps of a partition keep their order: each is sorted by the highest time up to it.
    reached = np.concatenate([np.maximum.accumulate(found.times) for found in known.values()])
    line = np.argsort(reached, kind="stable")
    taken = max(1, int(np.searchsorted(np.cumsum(rows[line]), rows_max, side="right")))
    time = int(reached[line[taken - 1]])
    for partition, found in known.items():
        theirs = offsets[line[:taken][numbers[line[:taken]] == partition]]
        if len(theirs):
            ends[partition] = int(theirs[-1])
        rest = found.after(ends[partition]).ends
        if len(rest):
            ends[partition] = first_after(partition, ends[partition], int(rest[0]), time)
    return ends


# BatchCut: the end offsets of the next batch of a source, with admission control by rows and bytes.


class Lane(NamedTuple):
    """One partition of one topic."""

    backend: TopicBackend
    partition: int


class BatchCut:
    """Cuts batch after batch over the same lanes, which have numbers. For one thread."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._steps: dict[int, Steps] = {}

    def ends(self, lanes: Mapping[int, Lane], starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """The end of the batch in each lane: the lane's end, if the whole is small enough, else that of one event time."""
        rows = sum(ends[number] - starts[number] for number in lanes)
        rows_max = self._admit(lanes, starts, rows)
        if rows <= rows_max:
            self._steps.clear()
            return {number: max(ends[number], starts[number]) for number in lanes}
        steps = {number: self._steps_from(number, lane, starts[number], rows_max) for number, lane in lanes.items()}

        def first_after(number: int, first: int, end: int, time: int) -> int:
            lane = lanes[number]
            return lane.backend.first_after(lane.partition, first, end, time)

        cut = aligned_cut({number: starts[number] for number in lanes}, steps, rows_max, first_after)
        return {
            number: min(end, ends[number]) if ends[number] > starts[number] else starts[number]
            for number, end in cut.items()
        }

    def rows_together(self, lanes: Mapping[int, Lane], starts: Mapping[int, int]) -> int:
        """The maximal number of rows of a batch that cannot be divided: those of `bytes_max`."""
        behind = [lane.backend.behind(lane.partition, starts[number]) for number, lane in lanes.items()]
        rows, size = sum(lag.records for lag in behind), sum(lag.bytes for lag in behind)
        return max(1, self._bytes_max // max(1, size // max(1, rows)))

    def _steps_from(self, number: int, lane: Lane, start: int, rows_min: int) -> Steps:
        """The steps from an offset on; those known from the last batch are not read again."""
        known = self._steps.get(number, Steps.of([])).after(start)
        rows = int(known.rows.sum())
        if rows < rows_min:
            reached = int(known.ends[-1]) if len(known.ends) else start
            known = known.join(lane.backend.steps(lane.partition, reached, rows_min - rows))
        self._steps[number] = known
        return known

    def _admit(self, lanes: Mapping[int, Lane], starts: Mapping[int, int], rows: int) -> int:
        if rows <= self._rows_max // 100:
            return self._rows_max
        size = sum(lane.backend.bytes_behind(lane.partition, starts[number]) for number, lane in lanes.items())
        per_row = max(1, size // max(1, rows))
        return max(1, min(self._rows_max, self._bytes_max // per_row))


# Topic and partition -> offset.
Positions = dict[tuple[str, int], int]


def by_topic(at: Positions) -> dict[str, dict[int, int]]:
    """The offsets of each topic."""
    found: dict[str, dict[int, int]] = {}
    for (name, number), offset in at.items():
        found.setdefault(name, {})[number] = offset
    return found


# Source, topic and partition.
Place = tuple[int, str, int]

NOBODY = (1, 0)
# In place of the number of a transaction: the snapshot of a captured table.
SNAPSHOT = -(1 << 63)


class SourceRequest(Protocol):
    """The request of a flow's source, such as `TopicRequest`."""

    @property
    def leaf(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def start(self) -> Any: ...
    @property
    def rows_max(self) -> int: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def delay(self) -> int | None: ...
    @property
    def clock(self) -> str: ...
    @property
    def pattern(self) -> bool: ...


@dataclass(frozen=True)
class SourcePart:
    """One source: its topics, and the start and the maximal end of its batch."""

    request: SourceRequest
    # `EmbeddedTopic` or `KafkaTopic`.
    topics: Mapping[str, Any]
    starts: Positions
    ends: Positions

    @property
    def aligned(self) -> bool:
        """Whether Spark's own operators may drop late rows. Stages use the watermark of each record instead."""
        return self.request.delay is not None and not self.request.clock

    def begin(self, lane: tuple[str, int]) -> int:
        return self.starts.get(lane, 0)


def readable_ends(topic: TopicBackend) -> dict[int, int]:
    """The readable end of each partition of a topic, including partitions that are added meanwhile."""
    while True:
        count = topic.settings.partitions
        ends = {number: topic.latest(number) for number in range(count)}
        # A transaction that is readable in one partition may have written to a partition that was just added.
        if topic.settings.partitions == count:
            return ends


class Holder(NamedTuple):
    """An open transaction and its owner; None if unknown. A number below 0: of another program, on Kafka."""

    transaction: int
    topic: str
    partition: int
    process: int | None

    @classmethod
    def all_in(cls, backend: TopicBackend, partition: int) -> list[Holder]:
        """The open transactions of one partition."""
        return [
            cls(number, backend.name, partition, backend.owner_of(number))
            for number in sorted(backend.open_transactions(partition))
        ]

    def __str__(self) -> str:
        if self.transaction == SNAPSHOT:
            return f"the snapshot of {self.topic}, which is not complete"
        name = f"transaction {self.transaction}" if self.transaction >= 0 else "a transaction of another program"
        owner = "" if self.process is None else f" of process {self.process}"
        return f"{name}{owner}, open in {self.topic}, partition {self.partition}"


@dataclass(frozen=True)
class FlowEnds:
    """The end of a batch, by source. `held`: what an empty batch waits for; `torn`: the transactions that it splits."""

    ends: Mapping[int, Positions]
    held: list[Holder] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)


class SourceLimits(Protocol):
    """The limits of the batches of one source."""

    def ends(self, part: SourcePart) -> Positions:
        """The limits of the next batch."""
        ...

    def rows_together(self, part: SourcePart) -> int:
        """The maximal number of rows of a batch that cannot be divided."""
        ...


class _Limits:
    """The limits of the embedded log: by rows, bytes and event time."""

    def __init__(self, request: SourceRequest) -> None:
        self._cut = BatchCut(request.rows_max, request.bytes_max)
        self._numbers: dict[tuple[str, int], int] = {}

    def ends(self, part: SourcePart) -> Positions:
        numbered = self._number_lanes(part)
        ends = self._cut.ends(
            numbered,
            {self._numbers[lane]: part.begin(lane) for lane in part.ends},
            {self._numbers[lane]: end for lane, end in part.ends.items()},
        )
        return {lane: ends[self._numbers[lane]] for lane in part.ends}

    def rows_together(self, part: SourcePart) -> int:
        numbered = self._number_lanes(part)
        return self._cut.rows_together(numbered, {self._numbers[lane]: part.begin(lane) for lane in part.ends})

    def _number_lanes(self, part: SourcePart) -> dict[int, Lane]:
        return {
            self._numbers.setdefault((topic, partition), len(self._numbers)): Lane(part.topics[topic], partition)
            for topic, partition in part.ends
        }


class FlowCut:
    """Cuts batch after batch over the same sources. For one thread."""

    def __init__(self, first_reads: FirstReads) -> None:
        self._limits: dict[int, SourceLimits] = {}
        self._first_reads = first_reads
        # Lanes whose first batch has been cut.
        self._begun: set[tuple[str, int]] = set()

    @property
    def noted(self) -> int | None:
        """Where to continue reading notes of transactions after a restart; None if the log itself has them."""
        return None

    def begin_at(self, noted: int) -> None:
        """Continue reading notes of transactions where an earlier run stopped."""

    def ends(self, parts: Mapping[int, SourcePart]) -> FlowEnds:
        limits: dict[Place, int] = {}
        for leaf, part in parts.items():
            limits |= {(leaf, *lane): end for lane, end in self._limit(leaf, part).items()}
        first = self._first_ends(parts)
        if isinstance(first, list):
            found = FoundEnds({place: parts[place[0]].begin(place[1:]) for place in limits}, held=first)
        elif first:
            found = self._reach(parts, {place: max(end, first.get(place, 0)) for place, end in limits.items()})
        else:
            found = self._consistent(parts, limits)
        by_leaf: dict[int, Positions] = {leaf: {} for leaf in parts}
        for (leaf, topic, partition), end in found.ends.items():
            by_leaf[leaf][topic, partition] = end
        return FlowEnds(by_leaf, found.held, found.torn)

    def _first_ends(self, parts: Mapping[int, SourcePart]) -> dict[Place, int] | list[Holder]:
        """Where the first batch must end at least, for topics of captured tables; or the snapshots that it waits for."""
        ends: dict[Place, int] = {}
        waits = []
        for leaf, part in parts.items():
            for topic, partition in part.ends:
                lane = (topic, partition)
                if lane in self._begun or not is_captured(part.topics[topic].settings):
                    continue
                end = self._first_reads.end(part.topics[topic], partition)
                if end is None:
                    waits.append(Holder(SNAPSHOT, topic, partition, None))
                elif part.begin(lane) < end:
                    ends[leaf, topic, partition] = end
                else:
                    self._begun.add(lane)
        return waits or ends

    def _reach(self, parts: Mapping[int, SourcePart], limits: dict[Place, int]) -> FoundEnds:
        """The first ends after the limits that split no transaction, however many rows that is."""
        starts = {place: parts[place[0]].begin(place[1:]) for place in limits}
        stable = {
            (leaf, *lane): max(end, part.begin(lane)) for leaf, part in parts.items() for lane, end in part.ends.items()
        }
        try:
            return FoundEnds(_Ahead(self, parts, starts, limits, stable, INTEGER_MAX).above(limits))
        except Unstable:
            return FoundEnds(starts, held=self._holders(parts, stable))

    def limits(self, part: SourcePart) -> Positions:
        """The end of the next batch of one source by its limits alone."""
        return self._limit(part.request.leaf, part)

    def _limit(self, leaf: int, part: SourcePart) -> Positions:
        if leaf not in self._limits:
            self._limits[leaf] = self._limits_of(part.request)
        return self._limits[leaf].ends(part)

    def close(self) -> None:
        """Close its readers."""

    def beginnings(self, parts: Mapping[int, SourcePart]) -> dict[int, Positions]:
        """The start offsets of sources that are to begin at their `ends`. Records from `starts` to there are not read.

        Sources that begin at "latest", or at the same time, begin between transactions, if necessary a little earlier, unless
        that is more rows than a batch may have. A transaction between sources with given offsets or different times may be split.
        """
        found = {leaf: dict(part.ends) for leaf, part in parts.items()}
        groups: dict[str, list[int]] = {}
        for leaf, part in parts.items():
            start = part.request.start
            if start == "latest" or (isinstance(start, dict) and "at" in start):
                groups.setdefault(str(start), []).append(leaf)
        for leaves in groups.values():
            for place, at in self._begin_below({leaf: parts[leaf] for leaf in leaves}).items():
                found[place[0]][place[1:]] = at
        return found

    def _begin_below(self, parts: Mapping[int, SourcePart]) -> dict[Place, int]:
        limits = {(leaf, *lane): end for leaf, part in parts.items() for lane, end in part.ends.items()}
        starts = {place: parts[place[0]].begin(place[1:]) for place in limits}
        at = limits
        while (spans := self.spans_across(parts, starts, at)) is not None:
            below = TransactionCut(starts, spans).below(at)
            if below == at:
                return at
            if _rows(below, limits) > sum(self._limits_of(part.request).rows_together(part) for part in parts.values()):
                return limits
            # Other transactions may be split there.
            at = below
        return at

    def _limits_of(self, request: SourceRequest) -> SourceLimits:
        return _Limits(request)

    def _consistent(self, parts: Mapping[int, SourcePart], limits: dict[Place, int]) -> FoundEnds:
        starts = {place: parts[place[0]].begin(place[1:]) for place in limits}
        if starts == limits:
            return FoundEnds(limits)
        spans = self.spans(parts, starts, limits)
        if spans is None:
            return FoundEnds(limits)
        cut = TransactionCut(starts, spans)
        torn = cut.find_split(limits)
        if not torn:
            return FoundEnds(limits)
        below = cut.below(limits)
        if below != starts and any(part.aligned for part in parts.values()):
            below = self._align_below(parts, spans, starts, limits, below)
        if 2 * _rows(starts, below) >= _rows(starts, limits):
            return FoundEnds(below)
        # With a few large steps, almost nothing may be left below the limits.
        return self._forward(parts, starts, limits, below, torn)

    def _align_below(
        self, parts: Mapping[int, SourcePart], spans: Mapping[Place, TransactionSpans], starts: dict[Place, int],
        limits: dict[Place, int], below: dict[Place, int],
    ) -> dict[Place, int]:  # fmt: skip
        """The greatest consistent ends below the limits that keep the lanes of an aligned source together."""
        # Event times are read only if they matter.
        return TransactionCut(starts, spans, self.find_reached(parts, starts, limits)).below(limits)

    def _forward(
        self, parts: Mapping[int, SourcePart], starts: dict[Place, int], limits: dict[Place, int], below: dict[Place, int],
        torn: list[int],
    ) -> FoundEnds:  # fmt: skip
        """The first ends after the limits that split no transaction, or after an earlier offset if that is too much.

        If there are none, those below the limits; if there are none either, the limits or, for an open transaction, the
        starts.
        """
        stable = {
            (leaf, *lane): max(end, part.begin(lane)) for leaf, part in parts.items() for lane, end in part.ends.items()
        }
        rows_max = sum(self._limits[leaf].rows_together(part) for leaf, part in parts.items())
        ahead = _Ahead(self, parts, starts, limits, stable, rows_max)
        try:
            return FoundEnds(ahead.above(limits))
        except (TooLarge, Unstable) as error:
            if below != starts:
                return FoundEnds(below)
            large = isinstance(error, TooLarge)
        seeds = limits
        while large and _rows(starts, seeds) > len(seeds):
            seeds = {place: start + (seeds[place] - start) // 4 for place, start in starts.items()}
            with suppress(TooLarge, Unstable):
                return FoundEnds(ahead.above(seeds))
        try:
            return FoundEnds(ahead.above(None))
        except TooLarge:
            return FoundEnds(limits, torn=torn)
        except Unstable:
            if _rows(starts, stable) > rows_max:
                return FoundEnds(limits, torn=torn)
            return FoundEnds(starts, held=self._holders(parts, stable))

    # From the log

    def spans(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        """All spans of the transactions with records between starts and ends; None if there are none."""

        def look(numbers: tuple[int, int]) -> dict[Place, TransactionSpans]:
            return {
                place: parts[place[0]].topics[place[1]].transaction_spans(place[2], starts[place], end, numbers)
                for place, end in ends.items()
            }

        found = look(NOBODY)
        inside = [spans.between(starts[place], ends[place]).numbers for place, spans in found.items()]
        lowest = min((int(numbers.min()) for numbers in inside if len(numbers)), default=None)
        if lowest is None:
            return None
        # In other partitions they may have written far beyond this batch.
        return look((lowest, max(int(numbers.max()) for numbers in inside if len(numbers))))

    def spans_across(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], at: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        """The spans of the transactions with records both before and after some offsets; None if there are none."""
        around = [parts[leaf].topics[name].numbers_around(number, at[leaf, name, number]) for leaf, name, number in at]
        numbers = min(behind for _, behind in around), max(before for before, _ in around)
        if numbers[0] > numbers[1]:
            return None
        return {
            place: parts[place[0]].topics[place[1]].transaction_spans(place[2], start, 0, numbers)
            for place, start in starts.items()
        }

    def find_reached(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, Reached]:
        """The times of the rows of aligned sources."""
        return {
            place: Reached(place[0], *parts[place[0]].topics[place[1]].times_reached(place[2], starts[place], end))
            for place, end in ends.items()
            if parts[place[0]].aligned
        }

    def _holders(self, parts: Mapping[int, SourcePart], stable: Mapping[Place, int]) -> list[Holder]:
        found = {}
        for leaf, topic, partition in stable:
            for holder in Holder.all_in(parts[leaf].topics[topic], partition):
                found[holder.transaction] = holder
        return [found[number] for number in sorted(found)]


class _Ahead:
    """Searches ends after the limits of a batch, and reads only as far as needed."""

    def __init__(
        self, cut: FlowCut, parts: Mapping[int, SourcePart], starts: dict[Place, int], limits: dict[Place, int],
        stable: dict[Place, int], rows_max: int,
    ) -> None:  # fmt: skip
        self._cut, self._parts, self._starts, self._stable, self._rows_max = cut, parts, starts, stable, rows_max
        self._known = limits
        self._spans = cut.spans(parts, starts, limits)
        self._times: dict[Place, Reached] | None = None

    def above(self, seeds: dict[Place, int] | None) -> dict[Place, int]:
        """The smallest consistent ends after the seeds; without seeds, those with the fewest rows."""
        while True:
            found = self._close(seeds, None)
            if any(part.aligned for part in self._parts.values()):
                if self._times is None:
                    furthest = {
                        place: min(end, self._starts[place] + self._rows_max) for place, end in self._stable.items()
                    }
                    self._times = self._cut.find_reached(self._parts, self._starts, furthest)
                found = self._close(seeds, self._times)
            if all(end <= self._known[place] for place, end in found.items()):
                return found
            # Transactions beyond the range read so far may be split there.
            self._known = {place: max(end, self._known[place]) for place, end in found.items()}
            self._spans = self._cut.spans(self._parts, self._starts, self._known)

    def _close(self, seeds: dict[Place, int] | None, times: dict[Place, Reached] | None) -> dict[Place, int]:
        assert self._spans is not None
        cut = TransactionCut(self._starts, self._spans, times)
        if seeds is None:
            return cut.smallest(self._stable, self._rows_max)
        return cut.above(seeds, self._stable, self._rows_max)


def _rows(starts: Mapping[Place, int], ends: Mapping[Place, int]) -> int:
    return sum(ends.values()) - sum(starts.values())


@dataclass(frozen=True)
class FoundEnds:
    """As `FlowEnds`, by place."""

    ends: Mapping[Place, int]
    held: list[Holder] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
