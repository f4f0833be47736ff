"""KafkaFlowCut: where the next batch of a flow on Kafka ends, so that no transaction of Mainstem's own is half in it.

As `FlowCut`, with what is different on Kafka: where transactions wrote is read from their notes (`transaction_notes`), limits and
alignment go by append times, and all is reckoned in messages, since transactions end between them. Of what
other programs write in transactions there are no notes: a batch may end inside of one.

Kafka knows when its records were appended, not when they happened. So a batch ends in all partitions at one append time,
so that none runs ahead of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mainstem.log.first_reads import FirstReads
from mainstem.log.flow_cut import (
    FlowCut,
    FlowEnds,
    FoundEnds,
    Place,
    Positions,
    SourceLimits,
    SourcePart,
    SourceRequest,
)
from mainstem.log.kafka.kafka_topic import KafkaTopic
from mainstem.log.kafka.transaction_notes import TransactionNotes
from mainstem.log.transaction_cut import Reached, TransactionCut, TransactionSpans

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog

__all__ = ["KafkaFlowCut", "cut_by_append_time"]


def cut_by_append_time(
    topics: Mapping[str, KafkaTopic], starts: Positions, ends: Positions, rows_max: int
) -> Positions:
    """Ends for a batch of about so many rows."""
    rest = {lane: end - starts.get(lane, 0) for lane, end in ends.items() if end > starts.get(lane, 0)}
    if sum(count / topics[lane[0]].offsets_of_rows(rows_max) for lane, count in rest.items()) <= 1:
        return ends
    rows = max(1, rows_max // len(rest))
    shares = {lane: topics[lane[0]].offsets_of_rows(rows) for lane in rest}
    behind = [lane for lane, count in rest.items() if count > shares[lane]]
    if not behind:
        return ends
    until = min(
        topics[name].appended_at(number, starts.get((name, number), 0) + shares[name, number])
        for name, number in behind
    )
    cut = dict(ends)
    for lane, share in shares.items():
        first = starts.get(lane, 0)
        reached = topics[lane[0]].at_time(lane[1], until + 1)
        # Where very many were appended at one time, they are divided all the same.
        cut[lane] = min(ends[lane], max(reached, first), first + 2 * share)
    if any(cut[lane] > starts.get(lane, 0) for lane in shares):
        return cut
    # Ends of transactions have the broker's time. Where that is later than the records', all of them lie behind the first.
    return {**ends, **{lane: min(ends[lane], starts.get(lane, 0) + share) for lane, share in shares.items()}}


class _AppendTimeLimits:
    """The limits of one source: all partitions at one append time."""

    def __init__(self, request: SourceRequest) -> None:
        self._rows_max = request.rows_max
        self._bytes_max = request.bytes_max

    def ends(self, part: SourcePart) -> Positions:
        found = cut_by_append_time(part.topics, _rows(part, part.starts), _rows(part, part.ends), self._rows_max)
        return {lane: max(_topic(part, lane).message_of(end), part.begin(lane)) for lane, end in found.items()}

    def rows_together(self, part: SourcePart) -> int:
        messages = size = 0
        for lane, end in part.ends.items():
            if end > part.begin(lane):
                topic = _topic(part, lane)
                messages += end - part.begin(lane)
                size += topic.behind(lane[1], topic.first_row(part.begin(lane))).bytes
        return max(1, self._bytes_max // max(1, size // max(1, messages)))


class KafkaFlowCut(FlowCut):
    """Cuts batch after batch over the same sources. For one thread."""

    def __init__(self, log: KafkaLog) -> None:
        super().__init__(FirstReads(log))
        self._log = log
        self._notes = self._new_notes()
        self._noted = 0

    def _new_notes(self) -> TransactionNotes:
        return TransactionNotes(self._log.clients, self._log.notes_topic, self._log.clock)

    @property
    def noted(self) -> int:
        return self._noted

    def begin_at(self, noted: int) -> None:
        self._notes.begin_at(noted)
        self._noted = max(self._noted, noted)

    def ends(self, parts: Mapping[int, SourcePart]) -> FlowEnds:
        messages = {leaf: _by_message(part) for leaf, part in parts.items()}
        if any(end > part.begin(lane) for part in messages.values() for lane, end in part.ends.items()):
            # After the ends: of what could be read then, all notes are there.
            self._read_notes(messages)
            self._noted = max(self._noted, self._notes.needed_from)
        found = super().ends(messages)
        return FlowEnds(_by_row(parts, found.ends), found.held, found.torn)

    def limits(self, part: SourcePart) -> Positions:
        # By rows: a replay may begin and end within a message.
        return cut_by_append_time(part.topics, part.starts, part.ends, part.request.rows_max)

    def beginnings(self, parts: Mapping[int, SourcePart]) -> dict[int, Positions]:
        messages = {leaf: _by_message(part) for leaf, part in parts.items()}
        found = super().beginnings(messages)
        rows = _by_row(parts, found)
        for leaf, part in parts.items():
            # One that was told to begin within a message begins there.
            same = [lane for lane, at in messages[leaf].ends.items() if found[leaf][lane] == at]
            rows[leaf] |= {lane: part.ends[lane] for lane in same}
        return rows

    def _begin_below(self, parts: Mapping[int, SourcePart]) -> dict[Place, int]:
        # Only those of some sources, and from the beginning: not the ones to read on from.
        kept, self._notes = self._notes, self._new_notes()
        try:
            self._read_notes(parts)
            return super()._begin_below(parts)
        finally:
            self._notes.close()
            self._notes = kept

    def close(self) -> None:
        self._notes.close()

    def _limits_of(self, request: SourceRequest) -> SourceLimits:
        return _AppendTimeLimits(request)

    def _read_notes(self, parts: Mapping[int, SourcePart]) -> None:
        starts: dict[tuple[str, int], int] = {}
        for part in parts.values():
            for name, number in part.ends:
                lane = part.topics[name].id, number
                at = part.begin((name, number))
                # One topic may be read by two sources.
                starts[lane] = min(at, starts.get(lane, at))
        growing = any(part.request.pattern for part in parts.values())
        self._notes.read(None if growing else {topic for topic, _ in starts}, starts)
        self._notes.forget(starts)

    def _consistent(self, parts: Mapping[int, SourcePart], limits: dict[Place, int]) -> FoundEnds:
        found = super()._consistent(parts, limits)
        starts = {place: parts[place[0]].begin(place[1:]) for place in limits}
        if found.ends != starts or limits == starts or found.held or not self._notes.drop_lost(_count_written(parts)):
            return found
        # It would wait for records that will never come.
        return super()._consistent(parts, limits)

    def _align_below(
        self, parts: Mapping[int, SourcePart], spans: Mapping[Place, TransactionSpans], starts: dict[Place, int],
        limits: dict[Place, int], below: dict[Place, int],
    ) -> dict[Place, int]:  # fmt: skip
        """What is taken of an aligned source was appended no later than what it leaves, as within the limits."""
        cut = TransactionCut(starts, spans)
        while True:
            lowered = dict(below)
            for leaf, part in parts.items():
                lanes = [place for place in below if place[0] == leaf]
                left = [place for place in lanes if below[place] < limits[place]]
                if part.aligned and left:
                    until = min(self._appended_at(part, place, below[place]) for place in left)
                    for place in lanes:
                        topic = _topic(part, place[1:])
                        reached = topic.message_of(topic.at_time(place[2], until + 1))
                        lowered[place] = max(starts[place], min(below[place], reached))
            if lowered == below:
                return below
            below = cut.below(lowered)

    def _appended_at(self, part: SourcePart, place: Place, message: int) -> int:
        topic = _topic(part, place[1:])
        return topic.appended_at(place[2], topic.first_row(message))

    def spans(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        lanes = {place: (parts[place[0]].topics[place[1]].id, place[2]) for place in ends}
        furthest: dict[tuple[str, int], int] = {}
        for place, lane in lanes.items():
            furthest[lane] = max(ends[place], furthest.get(lane, 0))
        found = self._notes.find_touching(furthest)
        if not any(len(spans.numbers) for spans in found.values()):
            return None
        return {place: found[lane] for place, lane in lanes.items()}

    def spans_across(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], at: Mapping[Place, int]
    ) -> dict[Place, TransactionSpans] | None:
        return self.spans(parts, starts, at)

    def find_reached(
        self, parts: Mapping[int, SourcePart], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, Reached]:
        """Nothing: Kafka does not know the event times of its records."""
        return {}


def _topic(part: SourcePart, lane: tuple[str, int]) -> KafkaTopic:
    found: KafkaTopic = part.topics[lane[0]]
    return found


def _rows(part: SourcePart, at: Positions) -> Positions:
    """Offsets of messages as offsets of rows."""
    return {lane: _topic(part, lane).first_row(offset) for lane, offset in at.items()}


def _count_written(parts: Mapping[int, SourcePart]) -> dict[tuple[str, int], int]:
    """How many messages were written to each partition, decided or not."""
    topics: list[KafkaTopic] = [topic for part in parts.values() for topic in part.topics.values()]
    return {
        (topic.id, number): topic.message_of(end) for topic in topics for number, end in topic.written_ends().items()
    }


def _by_row(parts: Mapping[int, SourcePart], found: Mapping[int, Positions]) -> dict[int, Positions]:
    """Offsets of messages as offsets of rows; what begins within a message stays there."""
    return {
        leaf: {lane: max(offset, parts[leaf].begin(lane)) for lane, offset in _rows(parts[leaf], at).items()}
        for leaf, at in found.items()
    }


def _by_message(part: SourcePart) -> SourcePart:
    """A source whose offsets are those of messages. One that begins within a message begins at it."""

    def messages(at: Positions) -> Positions:
        return {lane: _topic(part, lane).message_of(offset) for lane, offset in at.items() if lane[0] in part.topics}

    return replace(part, starts=messages(part.starts), ends=messages(part.ends))
