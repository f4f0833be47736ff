"""Random actions that read a log: everything, ranges, tokens, times; groups; a queue."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis.stateful import precondition, rule

from mainstem.clock import as_datetime
from mainstem.errors import BeyondEnd, Fenced
from mainstem.log.queues.message import Message
from tests.log.compared_log import (
    DICE,
    HOUR,
    PLAIN,
    ComparedLog,
    Dice,
)
from tests.log.log_handle import LogHandle
from tests.log.log_model import ModelMessage, ModelTopic


class ReadingRules(ComparedLog):
    """Each rule asks the log and the model the same."""

    # Reading

    @rule(number=DICE)
    def read(self, number: int) -> None:
        dice, handle, topic = self.dice(number)
        reads = [self.read_everything, self.read_a_range, self.read_a_range, self.read_to_a_token, self.read_by_time]
        dice.of([*reads, self.follow])(dice, handle, topic)

    def read_everything(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        self.same_bounded(handle.topic(topic.name).to_arrow(), topic)

    def read_a_range(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        ends = [len(partition.entries) for partition in topic.partitions]
        start = {number: dice.below(ends[number] + 2) for number in range(2)}
        stop = {number: dice.below(ends[number] + 2) for number in range(2)}
        columns = [name for name in topic.names if dice.below(2)]
        if any(first > ends[number] for number, first in start.items()):
            with pytest.raises(BeyondEnd):
                handle.topic(topic.name).to_arrow(start=start)
            return
        found = handle.topic(topic.name).to_arrow(start=start, stop=stop, columns=columns)
        self.same_bounded(found, topic, columns, start, stop)

    def read_to_a_token(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        if not self.tokens:
            return
        topic, token, ends = dice.of(self.tokens)
        if dice.below(2):
            self.same_bounded(handle.topic(topic.name).to_arrow(stop=token), topic, stop=ends)
        else:
            self.same_bounded(handle.topic(topic.name).to_arrow(start=token), topic, start=ends)

    def read_by_time(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        entries = topic.partitions[dice.below(2)].entries
        at = dice.of(entries).at + dice.below(3) - 1 if entries else self.clock.now()
        # The offset that the time stands for: of the first entry as late, whatever became of it.
        ends = {
            partition.number: next((n for n, it in enumerate(partition.entries) if it.at >= at), len(partition.entries))
            for partition in topic.partitions
        }
        moment = as_datetime(at)
        if dice.below(2):
            self.same_bounded(handle.topic(topic.name).to_arrow(start=moment), topic, start=ends)
        else:
            self.same_bounded(handle.topic(topic.name).to_arrow(stop=moment), topic, stop=ends)

    def follow(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        start = {number: dice.below(len(topic.partitions[number].entries) + 1) for number in range(2)}
        seen: dict[int, list[pa.RecordBatch]] = {0: [], 1: []}
        for batch in handle.topic(topic.name).follow(start=start, wait="0 seconds", rows_max=1 + dice.below(20)):
            seen[batch.column("record").field("partition")[0].as_py()].append(batch)
        for partition in topic.partitions:
            batches = seen[partition.number]
            expected = partition.shown(topic.names, start[partition.number])
            if batches:
                self.same(pa.Table.from_batches(batches), expected)
            else:
                assert expected == []

    def ask(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        plain, compacted = self.topics
        found = handle.stem.query(
            "SELECT (SELECT count(*) FROM plain) AS plain, (SELECT sum(n) FROM plain) AS total, "
            "(SELECT coalesce(list(k || ' ' || n ORDER BY k), []) FROM compacted) AS latest"
        ).to_pylist()
        rows = plain.committed(["n"])
        latest = {row[5]: row for row in sorted(compacted.committed(), key=lambda row: (row[2], row[1]))}
        assert found == [
            {
                "plain": len(rows),
                "total": sum(row[5] or 0 for row in rows) if any(row[5] is not None for row in rows) else None,
                "latest": [f"{key} {row[6]}" for key, row in sorted(latest.items()) if row[3] != "delete"],
            }
        ]

    # Groups

    def join(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        if topic.name in self.members:
            self.members.pop(topic.name).leave()
        self.members[topic.name] = handle.topic(topic.name).join_group("readers", session="1 hour")
        self.positions[topic.name] = dict(self.committed[topic.name])
        assert self.members[topic.name].position == self.positions[topic.name]

    @precondition(lambda self: self.members)
    @rule(number=DICE)
    def poll(self, number: int) -> None:
        dice, _, _ = self.dice(number)
        self.poll_once(dice.of(sorted(self.members)), 1 + dice.below(10))

    def poll_once(self, name: str, rows_max: int) -> None:
        [topic] = [topic for topic in self.topics if topic.name == name]
        positions = self.positions[name]
        waiting = {p.number: p.shown(topic.names, positions[p.number]) for p in topic.partitions}
        batch = self.members[name].poll(rows_max=rows_max)
        if batch is None:
            assert not any(waiting.values())
            return
        partition = batch.column("record").field("partition")[0].as_py()
        assert 1 <= batch.num_rows <= rows_max
        self.same(batch, waiting[partition][: batch.num_rows])
        positions[partition] = waiting[partition][batch.num_rows - 1][1] + 1

    @precondition(lambda self: self.members)
    @rule(number=DICE)
    def commit(self, number: int) -> None:
        dice, _, _ = self.dice(number)
        name = dice.of(sorted(self.members))
        self.members[name].commit()
        self.committed[name] = dict(self.positions[name])

    @precondition(lambda self: self.members)
    @rule(number=DICE)
    def seek(self, number: int) -> None:
        dice, _, _ = self.dice(number)
        name = dice.of(sorted(self.members))
        [topic] = [topic for topic in self.topics if topic.name == name]
        kind = dice.below(4)
        if kind == 0:
            self.members[name].seek("committed")
            self.positions[name] = dict(self.committed[name])
            return
        if kind == 1:
            self.members[name].seek("latest")
            to = {partition.number: partition.stable() for partition in topic.partitions}
        else:
            to = {p.number: dice.below(len(p.entries) + 1) for p in topic.partitions if dice.below(3)}
            self.members[name].seek(to)
        self.positions[name] |= to
        self.committed[name] |= to

    # The queue

    @rule(number=DICE)
    def take(self, number: int) -> None:
        dice, handle, _ = self.dice(number)
        count = 1 + dice.below(5)
        found = handle.queue(PLAIN).take(count)
        given = self.queue.take(count, self.clock.now())
        assert [(it.partition, it.offset, it.deliveries) for it in found] == [
            (it.partition, it.offset, it.deliveries) for it in given
        ]
        rows = self.topics[0].partitions
        for message in found:
            row = rows[message.partition].entries[message.offset].row
            assert row is not None
            # What a queue read before a column was added does not have it.
            expected = {name: row.get(name) for name in self.topics[0].names}
            assert message.row == {name: it for name, it in expected.items() if name in message.row or it is not None}
        self.taken = [*self.taken, *((message, self.queue.takes) for message in found)][-30:]

    def one_taken(self, dice: Dice) -> tuple[Message, ModelMessage | None]:
        message, take = dice.of(self.taken)
        return message, self.queue.held(message.partition, message.offset, take)

    @precondition(lambda self: self.taken)
    @rule(number=DICE)
    def settle(self, number: int) -> None:
        """By its receipt any opening of the log may settle a message, once, and only while nobody else has it."""
        dice, handle, _ = self.dice(number)
        message, model = self.one_taken(dice)
        queue = handle.queue(PLAIN)
        how = dice.of(["acknowledge", "acknowledge", "release", "reject"])
        delay = dice.of([0, 0, HOUR, 5 * HOUR])
        try:
            if how == "acknowledge":
                queue.acknowledge([message.receipt])
            elif how == "release":
                queue.release(message.receipt, delay=timedelta(microseconds=delay), error="it rained")
            else:
                queue.reject(message.receipt, "no such address")
        except Fenced:
            assert model is None
            return
        assert model is not None
        if how == "acknowledge":
            self.queue.acknowledge(model)
        elif how == "release":
            self.queue.release(model, self.clock.now() + delay)
        else:
            self.queue.reject(model, "rejected")

    def read_the_rejected(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        if not self.queue.rejected:
            return
        rejections = handle.topic("plain.work.rejected").to_arrow(columns=["rejection"]).column("rejection").to_pylist()
        found = [(it["partition"], it["offset"], it["cause"]) for it in rejections]
        assert sorted(found) == sorted(self.queue.rejected)
