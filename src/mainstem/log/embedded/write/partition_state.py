"""The state of producers and transactions in a partition, for idempotent appends and reads of committed records.

A state machine over block headers: the same headers give the same state in every process. Each segment begins with
the state at its base, so that reading the last segment alone restores it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mainstem.durable_files import Files
from mainstem.log.embedded.write.active_segment import PREAMBLE_BYTES, ActiveSegment, SegmentName
from mainstem.log.embedded.write.block import ABORT, MARKERS, STATE, Damage, Header
from mainstem.log.embedded.write.heads import End
from mainstem.log.sequence_runs import NO_SEQUENCE, SequenceRuns
from mainstem.log.transaction_cut import TransactionSpans

__all__ = ["DecidedTransaction", "PartitionState", "ProducerState", "StateScan", "committed_spans"]


@dataclass(slots=True)
class ProducerState:
    """The last appends of one producer in this partition.

    `sequence` is the highest ever seen. `kept` is the highest one without aborted transactions: their sequences may be
    appended again. The three fields after it are the location and the append time of that block; `parts` and
    `partitions` are as in its header. `runs` are the sequences that the whole topic has, as far as the blocks here
    record; another partition may lack its part of `kept` itself.
    """

    epoch: int
    sequence: int
    kept: int
    base_offset: int
    end_offset: int
    appended_at: int
    parts: int
    partitions: int
    runs: SequenceRuns

    def last(self) -> list[int]:
        """The fields of the last append that was not aborted."""
        return [self.kept, self.base_offset, self.end_offset, self.appended_at, self.parts, self.partitions]

    def to_json(self) -> list[Any]:
        return [self.epoch, self.sequence, *self.last(), self.runs.to_json()]

    def copy(self) -> ProducerState:
        return replace(self, runs=SequenceRuns(self.runs.to_json()))

    @classmethod
    def from_json(cls, fields: list[Any]) -> ProducerState:
        if len(fields) == 6:
            # Written before blocks of version 2: everything up to the last one counts as complete.
            kept = fields[2]
            fields = [*fields, 0, 0, [[0, kept]] if kept >= 0 else []]
        return cls(*[*fields[:-1], SequenceRuns(fields[-1])])


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that wrote here and has no marker here yet.

    `before`: the last append and the sequences of its producer before the transaction, restored if it is aborted.
    """

    first_offset: int
    ranges: list[list[int]]
    producer_id: int = 0
    before: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class DecidedTransaction:
    """A transaction whose marker is in a segment of blocks."""

    marker: int
    committed: bool
    decided: int
    ranges: list[list[int]]


def committed_spans(decided: dict[int, DecidedTransaction]) -> TransactionSpans:
    """The spans of the committed transactions."""
    return TransactionSpans.of(_committed_rows(decided, 0))


def _committed_rows(decided: dict[int, DecidedTransaction], start: int) -> Iterator[tuple[int, int, int]]:
    # In the order of their markers, which follow all their records.
    for number, outcome in reversed(decided.items()):
        if outcome.marker < start:
            break
        if outcome.committed:
            yield number, outcome.ranges[0][0], outcome.ranges[-1][1]


@dataclass
class PartitionState:
    """Producers, open transactions, and the decided ones that are not sealed yet."""

    producers: dict[int, ProducerState] = field(default_factory=dict)
    open: dict[int, OpenTransaction] = field(default_factory=dict)
    decided: dict[int, DecidedTransaction] = field(default_factory=dict)

    def apply(self, header: Header) -> None:
        if header.kind in MARKERS:
            self._decide(header)
            return
        if not header.count:
            return
        if header.transaction:
            self._note_transaction(header)
        if header.producer_id:
            known = self.producers.get(header.producer_id)
            runs = known.runs if known else SequenceRuns()
            # A block of version 1 has no parts: everything before it counts as complete.
            runs.add(header.sequence, header.sequence - header.dense if header.parts else 0)
            self.producers[header.producer_id] = ProducerState(
                header.producer_epoch,
                max(header.sequence, known.sequence if known else NO_SEQUENCE),
                header.sequence,
                header.base_offset,
                header.end_offset,
                header.appended_at,
                header.parts,
                header.partitions,
                runs,
            )

    def _note_transaction(self, header: Header) -> None:
        transaction = self.open.get(header.transaction)
        if transaction is None:
            transaction = self.open[header.transaction] = OpenTransaction(header.base_offset, [])
        if header.producer_id and not transaction.producer_id:
            known = self.producers.get(header.producer_id)
            transaction.producer_id = header.producer_id
            if known is not None:
                transaction.before = [*known.last(), known.runs.to_json()]
            else:
                transaction.before = [NO_SEQUENCE, -1, -1, header.appended_at, 0, 0, []]
        ranges = transaction.ranges
        if ranges and ranges[-1][1] == header.base_offset:
            ranges[-1][1] = header.end_offset
        else:
            ranges.append([header.base_offset, header.end_offset])

    def _decide(self, header: Header) -> None:
        transaction = self.open.pop(header.transaction, None)
        if transaction is None:
            return
        committed = header.kind != ABORT
        producer = self.producers.get(transaction.producer_id)
        if producer is not None and not committed:
            self._restore(producer, transaction.before)
        # The sequence field of a marker is its position in the ledger of transactions.
        self.decided[header.transaction] = DecidedTransaction(
            header.base_offset, committed, header.sequence, transaction.ranges
        )

    @staticmethod
    def _restore(producer: ProducerState, before: list[Any]) -> None:
        if len(before) == 4:
            # Written before blocks of version 2: everything up to the last one counts as complete.
            before = [*before, 0, 0, [[0, before[0]]] if before[0] >= 0 else []]
        *last, runs = before
        producer.kept, producer.base_offset, producer.end_offset, producer.appended_at = last[:4]
        producer.parts, producer.partitions = last[4:]
        producer.runs = SequenceRuns(runs)

    def stable_offset(self, end: int) -> int:
        """The last stable offset, at most `end`: every transaction below it is decided. A reader that continues from
        its offset may read up to here, since nothing will appear behind it."""
        return min([end, *(transaction.first_offset for transaction in self.open.values())])

    def spans_from(self, start: int) -> TransactionSpans:
        """The spans of open and committed transactions with records from `start` on."""
        undecided = ((number, it.ranges[0][0], it.ranges[-1][1]) for number, it in self.open.items())
        return TransactionSpans.of([*_committed_rows(self.decided, start), *undecided])

    def aborted_ranges(self) -> list[tuple[int, int]]:
        """The ranges of aborted records, sorted."""
        aborted = (outcome for outcome in self.decided.values() if not outcome.committed)
        return sorted((first, end) for outcome in aborted for first, end in outcome.ranges)

    def hidden_ranges_at(self, decisions: Mapping[int, bool], decided_before: int) -> list[tuple[int, int]]:
        """The ranges of all records that are not committed at one moment of the ledger of transactions, sorted.

        `decisions` are those in the ledger at that moment whose markers may not be here yet; transactions decided at
        position `decided_before` or later were open then.
        """
        ranges = [
            outcome.ranges
            for outcome in self.decided.values()
            if not outcome.committed or outcome.decided >= decided_before
        ]
        ranges += [transaction.ranges for number, transaction in self.open.items() if not decisions.get(number, False)]
        return sorted((first, end) for some in ranges for first, end in some)

    def forget_below(self, offset: int) -> None:
        """Drop decided transactions that are sealed."""
        self.decided = {number: outcome for number, outcome in self.decided.items() if outcome.marker >= offset}

    def to_json(self) -> dict[str, Any]:
        return {
            "producers": {str(k): producer.to_json() for k, producer in self.producers.items()},
            "open": {str(k): [t.first_offset, t.ranges, t.producer_id, t.before] for k, t in self.open.items()},
            "decided": {str(k): [d.marker, d.committed, d.decided, d.ranges] for k, d in self.decided.items()},
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionState:
        return cls(
            {int(k): ProducerState.from_json(v) for k, v in value["producers"].items()},
            {int(k): OpenTransaction(*v) for k, v in value["open"].items()},
            {int(k): DecidedTransaction(*v) for k, v in value["decided"].items()},
        )


# Keeps a partition's producers and transactions current by reading new headers.


class StateScan:
    """A position and the state there; its segment is open only during a read. Not thread-safe."""

    def __init__(self, files: Files, folder: str) -> None:
        self.state = PartitionState()
        self._files = files
        self._folder = folder
        self._name: SegmentName | None = None
        # From the segment's preamble: after a crash another segment may get its name.
        self.segment_id = 0
        self._position = 0
        self._offset = 0

    def apply(self, header: Header, position: int) -> None:
        """Apply a block that this process has written next; `position` is its end."""
        self.state.apply(header)
        self._position, self._offset = position, header.end_offset

    def catch_up(self, end: End) -> None:
        """Read up to `end`. In another segment it starts again: each segment begins with the complete state.

        Another thread may have read further already; a later state includes an earlier one.
        """
        name = SegmentName(end.segment, end.epoch)
        if self._name == name and self._position >= end.position:
            return
        segment = ActiveSegment(self._files, self._folder, name)
        try:
            preamble = segment.preamble()
            segment_id = 0 if preamble is None else preamble.crc
            if self._name != name or self.segment_id != segment_id:
                self._begin(segment, segment_id, end.offset)
            for position, header in segment.headers(self._position, end.position):
                if header.base_offset != self._offset:
                    break
                self.state.apply(header)
                self._position, self._offset = position + header.size, header.end_offset
            if self._position < end.position:
                raise segment.corrupt(Damage(self._position, self._offset), end.position, end.offset)
        finally:
            segment.close()

    @property
    def reached(self) -> int | None:
        """The offset up to which the state is known; None if its segment's base state is unknown."""
        return None if self._name is None else self._offset

    def _begin(self, segment: ActiveSegment, segment_id: int, until: int) -> None:
        self._name = None
        block = next(segment.blocks(PREAMBLE_BYTES, segment.size(), segment.name.base, until), None)
        if block is None or block.header.kind != STATE:
            raise segment.corrupt(Damage(PREAMBLE_BYTES, segment.name.base), segment.size(), until)
        self.state = PartitionState.from_json(json.loads(block.payload.to_pybytes()))
        self._name, self.segment_id = segment.name, segment_id
        self._position, self._offset = block.position + block.header.size, block.header.end_offset
