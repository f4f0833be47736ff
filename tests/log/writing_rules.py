"""Random actions that write to a log: appends, producers, transactions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis.stateful import precondition, rule

from mainstem.errors import AppendConflict, Fenced, Invalid
from mainstem.log.producer import Producer
from mainstem.log.transaction import Transaction
from tests.log.compared_log import (
    COMPACTED,
    DICE,
    KEYS,
    PLAIN,
    TIMEOUT,
    ComparedLog,
    Dice,
)
from tests.log.log_handle import LogHandle
from tests.log.log_model import ModelTopic, ModelTransaction


class WritingRules(ComparedLog):
    """Each rule does one thing to the log and to the model, and compares what both say."""

    # Appending

    @rule(number=DICE)
    def append(self, number: int) -> None:
        dice, handle, topic = self.dice(number)
        if dice.below(6) == 5:
            self.delete(dice, handle, topic)
            return
        rows = self.rows(dice, topic)
        placed = handle.topic(topic.name).append(rows)
        # Where rows without a key go is the log's choice; all of an append go to one place.
        by_key = topic.placed([row for row in rows if row["k"] is not None] or rows, -1)
        keyless = next((number for number in placed.offsets if number not in by_key), None)
        if keyless is None:
            counts = {number: end - first for number, (first, end) in placed.offsets.items()}
            keyless = next((n for n in counts if counts[n] != len(by_key.get(n, []))), 0)
        assert dict(placed.offsets) == topic.append(topic.placed(rows, keyless), self.clock.now())
        self.note(topic, placed.token)

    @rule(number=DICE)
    def append_more(self, number: int) -> None:
        """Appends are what the rest is about: twice as often."""
        self.append(number)

    def delete(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        keys = [dice.of(KEYS[:-1]) for _ in range(1 + dice.below(2))]
        placed = handle.topic(topic.name).delete(keys)
        rows = [{"k": key, "record": {"change": "delete"}} for key in keys]
        assert dict(placed.offsets) == topic.append(topic.placed(rows, -1), self.clock.now())

    @rule(number=DICE)
    def produce(self, number: int) -> None:
        dice, handle, topic = self.dice(number)
        name = dice.of(["one", "two"])
        if name not in handle.producers:
            self.begin_run(handle, name)
        self.produce_by(handle.producers[name], dice, topic)

    def produce_by(
        self, producer: Producer, dice: Dice, topic: ModelTopic, transaction: Transaction | None = None
    ) -> None:
        name, newest = producer.name, self.newest_run[producer.name] is producer
        rows = self.rows(dice, topic)
        if transaction is None and any(model.producer is producer for _, _, model in self.open):
            with pytest.raises(Invalid, match="is in a transaction"):
                producer.append(topic.name, rows)
            return
        last = topic.last_sequence(name)
        assert dice.below(4) or producer.last_sequence(topic.name) == last
        sequence = max(0, last + dice.of([1, 1, 1, 3, 0, -1, -2, -5]))
        append = producer.append if transaction is None else transaction.append
        try:
            placed = append(topic.name, rows, sequence=sequence)
        except Fenced:
            assert not newest
            return
        except AppendConflict:
            assert newest
            assert sequence < last
            assert sequence not in topic.sequences(name)
            return
        assert newest
        assert sequence >= last or sequence in topic.sequences(name)
        expected = topic.append(
            topic.placed(rows, sequence % 2),
            self.clock.now(),
            transaction=0 if transaction is None else transaction.id,
            producer=name,
            sequence=sequence,
        )
        assert placed.appended == bool(expected)
        # Of a new append it always says where; of one that was there, if it still knows.
        assert set(expected) <= set(placed.offsets)
        for partition, at in placed.offsets.items():
            assert at in topic.partitions[partition].producers[name].places(sequence)

    def begin_a_run(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        self.begin_run(handle, dice.of(["one", "two"]))

    def begin_run(self, handle: LogHandle, name: str) -> None:
        handle.producers[name] = self.newest_run[name] = handle.stem.producer(name)
        # What an older run had open is over.
        self.undone([it for it in self.open if it[2].producer is not None and it[2].producer.name == name])

    # Transactions

    @precondition(lambda self: len(self.open) < 3)
    @rule(number=DICE)
    def begin(self, number: int) -> None:
        dice, handle, _ = self.dice(number)
        busy = [model.producer for _, _, model in self.open]
        name = dice.of(["", "", *(name for name, producer in handle.producers.items() if producer not in busy)])
        producer = handle.producers[name] if name else None
        begin = handle.stem.transaction if producer is None else producer.transaction
        transaction = begin(timeout=timedelta(microseconds=TIMEOUT))
        self.open.append((handle, transaction, ModelTransaction(transaction.id, self.clock.now(), producer)))

    @precondition(lambda self: self.open)
    @rule(number=DICE)
    def append_in_transaction(self, number: int) -> None:
        dice, _, topic = self.dice(number)
        _, transaction, model = dice.of(self.open)
        if dice.below(5) == 4:
            keys = [dice.of(KEYS[:-1])]
            gone = topic.placed([{"k": key, "record": {"change": "delete"}} for key in keys], -1)
            placed = transaction.delete(topic.name, keys)
            assert dict(placed.offsets) == topic.append(gone, self.clock.now(), transaction=model.number)
            return
        if model.producer is not None:
            self.produce_by(model.producer, dice, topic, transaction)
            return
        rows = [row for row in self.rows(dice, topic) if row["k"] is not None]
        placed = transaction.append(topic.name, rows)
        expected = topic.append(topic.placed(rows, -1), self.clock.now(), transaction=model.number) if rows else {}
        assert dict(placed.offsets) == expected

    @precondition(lambda self: self.open)
    @rule(number=DICE)
    def end(self, number: int) -> None:
        dice, _, _ = self.dice(number)
        _, transaction, model = dice.of(self.open)
        if dice.below(3):
            transaction.commit()
            self.decided(model, "seen")
        else:
            transaction.abort()
            self.decided(model, "aborted")

    @precondition(lambda self: self.open)
    @rule(number=DICE)
    def end_another(self, number: int) -> None:
        """What stays open hides everything after it: ended sooner than others begin."""
        self.end(number)

    @precondition(lambda self: COMPACTED in self.members)
    @rule(number=DICE)
    def work_in_a_transaction(self, number: int) -> None:
        """Read from one topic, write to the other, and commit how far it was read, all or nothing."""
        dice, handle, _ = self.dice(number)
        target = self.topics[0]
        self.poll_once(COMPACTED, 1 + dice.below(5))
        rows = [row for row in self.rows(dice, target) if row["k"] is not None]
        transaction = handle.stem.transaction(timeout=timedelta(microseconds=TIMEOUT))
        transaction.append(PLAIN, rows)
        if rows:
            target.append(target.placed(rows, -1), self.clock.now(), transaction=transaction.id)
        transaction.commit_offsets(self.members[COMPACTED])
        model = ModelTransaction(transaction.id, self.clock.now())
        if dice.below(3):
            transaction.commit()
            self.decided(model, "seen")
            self.committed[COMPACTED] = dict(self.positions[COMPACTED])
        else:
            transaction.abort()
            self.decided(model, "aborted")
