"""NumberedAppends: the idempotent appends of producers to one topic, one after the other.

An append may go to several partitions, and a crash may leave it in some of them. Each of its blocks says how many there
are (`parts`), so that an incomplete append is detected when the producer is opened again. It must be completed before a
higher sequence: so only a producer's highest sequence can be incomplete, and a partition that has it, has it last.

Only the newest run of a producer may append, so its state in the partitions changes only by its own appends: it is read
once, and again after an error or a transaction. Under each partition's lock it is still checked that the run is the
newest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from mainstem.errors import AppendConflict
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.write.partition_state import ProducerState
from mainstem.log.embedded.write.segment_writer import Pending
from mainstem.log.producer import ProducerRun
from mainstem.log.sequence_runs import (
    NO_SEQUENCE,
    SequenceRuns,
    in_transaction,
    incomplete_before,
    other_rows,
    out_of_order,
)

__all__ = ["KnownAppends", "NumberedAppends"]

DENSE_MAX = (1 << 32) - 1


@dataclass(slots=True)
class KnownAppends:
    """What a topic has of one producer: the complete sequences, and the highest one, which may be incomplete.

    `parts` is 0 if it is unknown: its blocks have version 1. Then it counts as complete, but a repeat is sent to the
    partitions once more.
    """

    runs: SequenceRuns = field(default_factory=SequenceRuns)
    sequence: int = NO_SEQUENCE
    parts: int = 0
    partitions: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    appended_at: int = 0
    transaction: int = 0

    @classmethod
    def of(cls, states: Mapping[int, ProducerState]) -> KnownAppends:
        """The combined state of the partitions."""
        known = cls(sequence=max((state.kept for state in states.values()), default=NO_SEQUENCE))
        known.runs = SequenceRuns.merge(state.runs for state in states.values())
        for number, state in states.items():
            if state.kept == known.sequence >= 0:
                known.offsets[number] = state.base_offset, state.end_offset
                known.appended_at = max(known.appended_at, state.appended_at)
                known.parts = max(known.parts, state.parts)
                known.partitions = max(known.partitions, state.partitions)
        if known.incomplete is not None:
            known.runs.cut_above(known.sequence - 1)
        return known

    @property
    def incomplete(self) -> int | None:
        """The highest sequence, if some partitions lack their part of it."""
        return self.sequence if len(self.offsets) < self.parts else None

    def is_repeat(self, sequence: int) -> bool:
        """Whether it is complete, so that there is nothing to append."""
        return sequence in self.runs and (sequence != self.sequence or self.parts > 0)

    def refusal(self, topic: str, producer: str, sequence: int) -> AppendConflict | None:
        """Why this sequence may not be written now."""
        if sequence < self.sequence:
            return out_of_order(topic, producer, sequence, self.sequence)
        if sequence > self.sequence and self.incomplete is not None:
            return incomplete_before(topic, producer, sequence, self.incomplete)
        return None

    def placement_partitions(self, sequence: int, partitions: int) -> int:
        """The number of partitions its rows are placed over: a repeat uses the same number as the first attempt."""
        return self.partitions or partitions if sequence == self.sequence else partitions

    def number(self, blocks: Mapping[int, Pending], topic: str, run: ProducerRun, sequence: int, over: int) -> None:
        """Set the producer, the sequence and the parts in the blocks of an append."""
        if sequence == self.incomplete and len(blocks) != self.parts:
            raise other_rows(topic, run.name, sequence, self.parts, len(blocks))
        dense = min(self.runs.dense_below(sequence), DENSE_MAX)
        for pending in blocks.values():
            pending.producer_id, pending.producer_epoch = run.id, run.epoch
            pending.sequence, pending.parts, pending.partitions, pending.dense = sequence, len(blocks), over, dense

    def note(self, blocks: Mapping[int, Pending], sequence: int, over: int, transaction: int) -> None:
        """Record an append that is complete in all its partitions."""
        self.runs.add(sequence, sequence - self.runs.dense_below(sequence))
        self.sequence, self.parts, self.partitions, self.transaction = sequence, len(blocks), over, transaction
        self.offsets = {number: (it.base_offset, it.end_offset) for number, it in blocks.items()}
        self.appended_at = max(it.appended_at for it in blocks.values())


class _Turn:
    """Serialises the appends of a run, and keeps its known appends in between."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.lock = threading.Lock()
        self.known: KnownAppends | None = None


class NumberedAppends:
    """One per topic and process. Thread-safe."""

    def __init__(self, store: TopicStore, is_open: Callable[[int], bool]) -> None:
        self._store = store
        self._is_open = is_open
        self._guard = threading.Lock()
        self._turns: dict[int, _Turn] = {}

    def known_appends(self, producer_id: int, epoch: int) -> KnownAppends:
        """The current state in the partitions; waits for appends of this run in progress."""
        with self._turn(producer_id, epoch).lock:
            return self._read(producer_id)

    @contextmanager
    def turn(self, run: ProducerRun, transaction: int) -> Iterator[KnownAppends]:
        """Serialises the appends of this run to this topic; yields the known appends before this one."""
        turn = self._turn(run.id, run.epoch)
        with turn.lock:
            before = 0 if turn.known is None else turn.known.transaction
            if before not in (0, transaction) and self._is_open(before):
                # Another thread has begun a transaction. If it is aborted, this append would be taken for a part of it.
                raise in_transaction(run.name, before)
            # A transaction may have been aborted since.
            if turn.known is None or before not in (0, transaction):
                turn.known = self._read(run.id)
            try:
                yield turn.known
            except BaseException:
                turn.known = None
                raise

    def _turn(self, producer_id: int, epoch: int) -> _Turn:
        with self._guard:
            turn = self._turns.get(producer_id)
            if turn is None or turn.epoch != epoch:
                turn = self._turns[producer_id] = _Turn(epoch)
            return turn

    def _read(self, producer_id: int) -> KnownAppends:
        self._store.refresh()
        states: dict[int, ProducerState] = {}
        for number, partition in enumerate(self._store.partitions):
            if (state := partition.producer_state(producer_id)) is not None:
                states[number] = state
                # A killed writer may have left unsynced blocks: sync them before they count.
                partition.publish_written()
        return KnownAppends.of(states)
