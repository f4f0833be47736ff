"""ComparedLog: a log and the list per partition that it is to equal, as random actions find them."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from mainstem.clock import ManualClock
from mainstem.log.groups.group_member import Member
from mainstem.log.keep_rule import Keep
from mainstem.log.producer import Producer
from mainstem.log.queues.message import Message
from mainstem.log.transaction import Transaction
from tests.log.log_handle import LogHandle
from tests.log.log_model import ModelQueue, ModelTopic, ModelTransaction, Shown

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


class ComparedLog(RuleBasedStateMachine):
    """The log, opened twice, and the model of it; rules are added by those who derive from it."""

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
