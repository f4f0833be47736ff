"""L17: random actions on two openings of one home, against a list per partition.

Whatever is appended, repeated, committed, aborted, sealed, compacted, altered, taken, released, closed or killed, in
whatever order: every reader sees what the list says. MAINSTEM_PROPERTY_STEPS sets how many steps, MAINSTEM_SEED repeats
a run.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import Fenced, Invalid, MainstemError
from mainstem.log.embedded import embedded_topic
from mainstem.log.embedded.partition_state import PartitionState
from mainstem.log.embedded.producers import Producers
from mainstem.log.group_member import Member
from mainstem.log.group_state import GroupState
from mainstem.log.keep_rule import Keep
from mainstem.log.message import Message
from mainstem.log.producer import Producer
from mainstem.log.transaction import Transaction
from tests.log.log_handle import LogHandle
from tests.log.log_model import ModelMessage, ModelQueue, ModelTopic, ModelTransaction, Shown

STEPS = int(os.environ.get("MAINSTEM_PROPERTY_STEPS", "100000"))
# Each part is a test of its own, so that they run side by side.
PARTS = 4
STEPS_A_RUN = 200

HOUR = 3_600_000_000
SMALL_SEGMENT = 6_000
TIMEOUT = 10 * HOUR
SESSION = LEASE = HOUR
TOMBSTONES = 24 * HOUR
PLAIN, COMPACTED = "plain", "compacted"
KEYS = ["a", "b", "c", "d", "e", None]

# One number a step: hypothesis draws it fast, and what it shrinks is the list of steps.
DICE = st.integers(0, (1 << 32) - 1)


class Dice:
    """The choices of one step, all from one number."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]


class LogMachine(RuleBasedStateMachine):
    """Each rule does one thing to the log and to the model, and compares what both say."""

    steps: ClassVar[int] = 0
    compared: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.folder = Path(tempfile.mkdtemp(prefix="mainstem-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.number = 0
        self.handles = [LogHandle(self.folder / "home", self.clock) for _ in range(2)]
        columns = {"k": "STRING", "n": "BIGINT"}
        self.topics = [ModelTopic(PLAIN, columns, 2), ModelTopic(COMPACTED, columns, 2)]
        for topic, keep in zip(self.topics, (Keep.forever(), Keep.latest_per_key(tombstones="24 hours")), strict=True):
            self.handles[0].stem.create_topic(
                topic.name, schema=topic.ddl, key="k", partitions=2, keep=keep, segment_bytes_max=SMALL_SEGMENT
            )
        self.open: list[tuple[LogHandle, Transaction, ModelTransaction]] = []
        self.tokens: list[tuple[ModelTopic, str, dict[int, int]]] = []
        self.newest_run: dict[str, Producer] = {}
        self.members: dict[str, Member] = {}
        self.positions: dict[str, dict[int, int]] = {}
        self.committed: dict[str, dict[int, int]] = {topic.name: {0: 0, 1: 0} for topic in self.topics}
        self.queue = ModelQueue(self.topics[0], lease=LEASE, deliveries_max=3)
        self.handles[0].topic(PLAIN).queue("work", lease="1 hour", deliveries_max=3)
        self.taken: list[tuple[Message, int]] = []

    def teardown(self) -> None:
        try:
            for topic in self.topics:
                if topic.name in self.members:
                    self.members[topic.name].leave()
            for handle in self.handles:
                handle.close()
            # Once more, by somebody who knows nothing of all this.
            fresh = LogHandle(self.folder / "home", self.clock)
            for topic in self.topics:
                self.same_bounded(fresh.topic(topic.name).to_arrow(), topic)
                # Every byte once more costs as much as fifty steps.
                assert self.number % 4 or fresh.topic(topic.name).verify().sound
            fresh.close()
        finally:
            shutil.rmtree(self.folder)

    # What all rules use

    def dice(self, number: int) -> tuple[Dice, LogHandle, ModelTopic]:
        type(self).steps += 1
        dice = Dice(number)
        return dice, dice.of(self.handles), dice.of(self.topics)

    def rows(self, dice: Dice, topic: ModelTopic) -> list[dict[str, Any]]:
        """One to four rows, some with headers, some with columns that were added since."""
        rows = []
        keys = KEYS if topic.name == PLAIN else KEYS[:-1]
        for _ in range(1 + dice.below(4)):
            self.number += 1
            row = {"k": dice.of(keys), "n": self.number}
            row |= {name: self.number % 100 for name in topic.names[2:] if dice.below(2)}
            if dice.below(4) == 3:
                row["record"] = {"change": "update", "headers": [{"key": "trace", "value": b"%d" % self.number}]}
            rows.append(row)
        return rows

    def same(self, found: pa.Table | pa.RecordBatch, expected: list[Shown]) -> None:
        table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
        record = table.column("record").combine_chunks()
        parts = [record.field(name) for name in ("partition", "offset", "appended_at", "change", "headers")]
        parts[2] = parts[2].cast(pa.int64())
        columns = [column.to_pylist() for column in [*parts, *table.columns[:-1]]]
        rows = list(zip(*columns, strict=True))
        type(self).compared += len(expected)
        assert rows == expected

    def same_bounded(
        self,
        found: pa.Table,
        topic: ModelTopic,
        columns: list[str] | None = None,
        start: dict[int, int] | None = None,
        stop: dict[int, int] | None = None,
    ) -> None:
        """A bounded read shows everything committed, also behind records of an open transaction."""
        self.same(found, topic.committed(columns, start, stop))

    def note(self, topic: ModelTopic, token: str) -> None:
        ends = {partition.number: len(partition.entries) for partition in topic.partitions}
        self.tokens = [*self.tokens[-5:], (topic, token, ends)]

    def settled(self) -> None:
        """What is past its timeout is aborted by whoever comes by."""
        self.undone([it for it in self.open if self.clock.now() >= it[2].begun_at + TIMEOUT])

    def undone(self, transactions: list[tuple[LogHandle, Transaction, ModelTransaction]]) -> None:
        """Others have aborted these; their owners, if they are still there, learn it."""
        for handle, transaction, model in sorted(transactions, key=lambda it: it[2].number):
            self.decided(model, "aborted")
            if handle in self.handles:
                transaction.abort()

    def decided(self, model: ModelTransaction, outcome: Any) -> None:
        for topic in self.topics:
            for partition in topic.partitions:
                partition.decide(model.number, outcome, self.clock.now())
        self.open = [it for it in self.open if it[2] is not model]

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
        assert newest
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

    # Upkeep

    @rule(number=DICE)
    def look_after(self, number: int) -> None:
        """What costs more than a step should, or is rarer than an append."""
        dice, handle, topic = self.dice(number)
        often = [self.join, self.join, self.begin_a_run, self.read_the_rejected] * 6
        seldom = [self.seal, self.compact, self.open_again] * 3 + [self.alter, self.alter, self.ask]
        dice.of(often + seldom)(dice, handle, topic)

    def seal(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        handle.topic(topic.name).seal()

    def compact(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        topic = self.topics[1]
        compacted = handle.topic(COMPACTED)
        compacted.seal()
        compacted.compact()
        # By a follower, which sees what is decided in each partition, whatever is open in others.
        batches = list(compacted.follow(start="earliest", wait="0 seconds"))
        batches.sort(key=lambda batch: int(batch.column("record").field("partition")[0].as_py()))
        left = pa.Table.from_batches(batches, schema=compacted.to_arrow().schema)
        record = left.column("record").combine_chunks()
        kept = list(zip(record.field("partition").to_pylist(), record.field("offset").to_pylist(), strict=True))
        assert topic.compacted_to(kept, self.clock.now(), TOMBSTONES) == []
        self.same(left, topic.shown())

    def alter(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        narrow = [name for name, kind in topic.columns.items() if kind == "INT"]
        if narrow and dice.below(2):
            topic.columns[dice.of(narrow)] = "BIGINT"
        elif len(topic.columns) < 6:
            topic.columns[f"x{len(topic.columns)}"] = "INT"
        handle.topic(topic.name).alter(schema=topic.ddl)
        assert handle.topic(topic.name).ddl == topic.ddl

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

    # Time and death

    @rule(number=DICE)
    def let_time_pass(self, number: int) -> None:
        dice, handle, topic = self.dice(number)
        self.clock.advance(timedelta(microseconds=dice.of([1, HOUR // 2, HOUR, 12 * HOUR])))
        handle.topic(topic.name).backend.settle()
        self.settled()

    def open_again(self, dice: Dice, handle: LogHandle, topic: ModelTopic) -> None:
        killed = bool(dice.below(2))
        # The rest of its process is gone with it: its members, transactions and runs of producers.
        for name, member in list(self.members.items()):
            if member._reads._backend._log is handle.log:
                member._beat.stop() if killed else member.leave()
                del self.members[name]
        mine = [it for it in self.open if it[0] is handle]
        if killed:
            handle.kill()
            # This process lives on, so its sessions, leases and transactions end by time.
            self.clock.advance(timedelta(microseconds=TIMEOUT + HOUR))
        else:
            for _, transaction, model in mine:
                transaction.abort()
                self.decided(model, "aborted")
            handle.close()
        fresh = LogHandle(self.folder / "home", self.clock)
        self.handles[self.handles.index(handle)] = fresh
        if killed:
            fresh.topic(topic.name).backend.settle()
            self.settled()
        self.same_bounded(fresh.topic(topic.name).to_arrow(), topic)


class NoWatch:
    """Nothing waits here, and to let go of what the kernel would watch takes it milliseconds."""

    def __init__(self, paths: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("part", range(PARTS))
def test_the_log_equals_a_list_per_partition(
    part: int, fault_report: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_topic, "Watch", NoWatch)
    chosen = int(os.environ.get("MAINSTEM_SEED", random.SystemRandom().randrange(1 << 32)))
    machine = seed(chosen + part)(type("LogMachine", (LogMachine,), {"steps": 0, "compared": 0}))
    print(f"MAINSTEM_SEED={chosen}")
    # A run now and then ends before its last step: a fifth more of them make up for it.
    runs = STEPS * 6 // (5 * PARTS * STEPS_A_RUN)
    rounds = settings(
        max_examples=max(5, runs),
        stateful_step_count=STEPS_A_RUN,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=rounds)
    fault_report("L17", points=machine.steps, compared=machine.compared, violations=[], seed=chosen)


def show_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "hidden", lambda *_: [])
    monkeypatch.setattr(PartitionState, "hidden_at", lambda *_: [])


def show_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "stable_offset", lambda state, end: end)
    monkeypatch.setattr(PartitionState, "hidden_at", lambda state, *_: state.hidden())


def check_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda *_: None)


def forget_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupState, "_move", lambda *_: None)


@pytest.mark.parametrize(
    "break_it",
    [show_aborted, show_undecided, check_no_epoch, forget_commits],
    ids=lambda it: it.__name__,
)
def test_a_log_that_does_wrong_is_found_out(break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    monkeypatch.setattr(embedded_topic, "Watch", NoWatch)
    break_it(monkeypatch)
    machine = seed(1)(type("LogMachine", (LogMachine,), {"steps": 0, "compared": 0}))
    hunt = settings(
        max_examples=200,
        stateful_step_count=100,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, MainstemError)):
        run_state_machine_as_test(machine, settings=hunt)
