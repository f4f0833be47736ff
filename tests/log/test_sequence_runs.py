"""Which sequences a topic has, against a plain set: from the headers of its partitions, whatever a crash left out."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.log.embedded.numbered_appends import KnownAppends
from mainstem.log.embedded.write.block import ABORT, COMMIT, DATA, Header
from mainstem.log.embedded.write.partition_state import PartitionState
from mainstem.log.embedded.write.segment_writer import Pending
from mainstem.log.producer import ProducerRun
from mainstem.log.sequence_runs import RUNS_MAX, SequenceRuns

PARTITIONS = 3
RUN = ProducerRun("p", 1, 1, *[lambda *_: None] * 5)  # type: ignore[list-item]

# An append: how far above the last one its sequence is (0: the next number is taken), to which partitions it goes, and
# which of them a crash leaves out; whether all of it is in a transaction that is aborted.
partitions = st.sets(st.integers(0, PARTITIONS - 1), min_size=1)
appends = st.lists(st.tuples(st.integers(0, 3), partitions, st.just(set()) | partitions, st.booleans()), max_size=10)


class Topic:
    """The states of some partitions, and which sequences are complete, by a plain set."""

    def __init__(self) -> None:
        self.states = [PartitionState() for _ in range(PARTITIONS)]
        # Of each sequence the partitions that it goes to, and those that have it.
        self.parts: dict[int, set[int]] = {}
        self.held: dict[int, set[int]] = {}
        self.offset = 0
        self.transactions = 0

    def complete(self) -> set[int]:
        return {sequence for sequence, held in self.held.items() if held == self.parts[sequence]}

    def known(self) -> KnownAppends:
        read = [PartitionState.from_json(json.loads(json.dumps(state.to_json()))) for state in self.states]
        return KnownAppends.of({n: state.producers[1] for n, state in enumerate(read) if 1 in state.producers})

    def append(self, sequence: int, parts: set[int], left_out: set[int], *, transaction: int = 0) -> None:
        blocks = {number: Pending(b"", 1) for number in parts}
        self.known().number(blocks, "orders", RUN, sequence, PARTITIONS)
        for number in parts - left_out:
            state = self.states[number]
            if 1 not in state.producers or state.producers[1].kept < sequence:
                self.states[number].apply(self.header(DATA, blocks[number], transaction))
        if not transaction:
            self.parts[sequence] = parts
            self.held[sequence] = self.held.get(sequence, set()) | (parts - left_out)

    def end(self, transaction: int, kind: int) -> None:
        for state in self.states:
            state.apply(self.header(kind, Pending(b"", 1), transaction))

    def header(self, kind: int, it: Pending, transaction: int) -> Header:
        self.offset += 1
        return Header(kind, 0, 0, 0, 0, 1, 0, it.producer_epoch, self.offset, it.producer_id, it.sequence, transaction,
                      0, 0, 0, 0, 0, 1, 0, it.parts, it.partitions, it.dense, 0)  # fmt: skip


@given(appends)
# Two interrupted appends in a row, each followed by another: what the second one said of the first must stay known.
@example([(0, {0, 1, 2}, {0}, False), (0, {0, 1}, {0}, False), (0, {0}, set(), False)])
@example([(0, {0, 1, 2}, {0}, False), (0, {0, 1}, {0}, False), (0, {0, 1}, set(), False)])
# What an aborted transaction said of the sequences between is void: they may still come.
@example([(2, {0}, set(), True), (0, {0}, set(), False)])
def test_the_states_of_the_partitions_tell_which_sequences_are_complete(steps):
    topic = Topic()
    for above, chosen, left_out, aborted in steps:
        known = topic.known()
        sequence, parts = known.sequence + (above or 1), chosen
        if known.incomplete is not None and above:
            # Without one the next number is taken, also above an incomplete one.
            sequence, parts = known.incomplete, topic.parts[known.incomplete]
        if aborted:
            topic.transactions += 1
            topic.append(sequence, parts, left_out, transaction=topic.transactions)
            topic.append(sequence, parts, set(), transaction=topic.transactions)
            topic.append(sequence + 1, parts, set(), transaction=topic.transactions)
            topic.end(topic.transactions, ABORT)
            assert topic.known().incomplete == known.incomplete
        else:
            topic.append(sequence, parts, left_out)
        after = topic.known()
        assert {number for number in range(-1, after.sequence + 2) if number in after.runs} == topic.complete()
        assert after.runs.last == max(topic.complete(), default=-1)


def test_a_committed_transaction_counts():
    topic = Topic()
    topic.append(4, {0, 2}, set(), transaction=1)
    topic.end(1, COMMIT)
    assert (topic.known().runs.to_json(), topic.known().incomplete) == ([[4, 4]], None)


@given(st.sets(st.integers(0, 60)))
def test_runs_are_a_set(sequences):
    runs = SequenceRuns()
    for sequence in sorted(sequences):
        runs.add(sequence, sequence - runs.dense_below(sequence))
    assert {number for number in range(-1, 62) if number in runs} == sequences
    assert SequenceRuns(runs.to_json()).to_json() == runs.to_json()
    runs.cut_above(30)
    assert {number for number in range(-1, 62) if number in runs} == {number for number in sequences if number <= 30}


def test_the_oldest_runs_are_forgotten():
    runs = SequenceRuns()
    for number in range(RUNS_MAX + 3):
        runs.add(2 * number, 2 * number)
    assert [number for number in range(0, 10, 2) if number in runs] == [6, 8]


def test_a_state_of_an_older_release_says_that_all_up_to_the_last_are_there():
    state = PartitionState.from_json(
        {"producers": {"1": [2, 9, 7, 40, 42, 5]}, "open": {"3": [40, [[40, 42]], 1, [4, 1, 2, 3]]}, "decided": {}}
    )
    producer = state.producers[1]
    assert (producer.epoch, producer.last(), producer.runs.to_json()) == (2, [7, 40, 42, 5, 0, 0], [[0, 7]])
    topic = Topic()
    state.apply(topic.header(ABORT, Pending(b"", 1), 3))
    assert (producer.last(), producer.runs.to_json()) == ([4, 1, 2, 3, 0, 0], [[0, 4]])
