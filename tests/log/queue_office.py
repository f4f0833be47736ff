"""An office: everything that a queue asks for, in memory, and its time moved by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mainstem.clock import ManualClock
from mainstem.log.queues.message import Message
from mainstem.log.queues.queue import Queue
from mainstem.log.queues.queue_settings import QueueSettings
from mainstem.log.queues.queue_state import QueueState
from tests.log.memory_ledger import (
    ManualWaiter,
    MemoryLedger,
    MemoryProcesses,
    MemoryRejections,
    MemoryTopic,
)

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("kind", pa.string())])


class Office:
    """A topic, a queue's ledger, and everything a queue asks for."""

    def __init__(self, partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.topic = MemoryTopic(SCHEMA, self.clock, partitions=partitions, key=("kind",), name="orders")
        self.ledger = MemoryLedger(QueueState, self.clock)
        self.processes = MemoryProcesses()
        self.rejections = MemoryRejections()
        self.waiter = ManualWaiter(self.clock)

    def worker(self, name: str = "emails", held_by: Any = "process") -> Queue:
        return Queue(
            name,
            self.ledger,
            self.topic,
            self.rejections,
            lambda: self.waiter,
            processes=self.processes,
            clock=self.clock,
            held_by=held_by,
        )

    def queue(self, *, start: Any = "earliest", **settings: Any) -> Queue:
        return self.worker().open(QueueSettings.from_options(**settings), start=start)

    def fill(self, *numbers: int, kind: str | None = None, partition: int = 0) -> None:
        self.topic.append(partition, *({"n": n, "kind": kind} for n in numbers))


def numbers(messages: list[Message]) -> list[int]:
    return [message.row["n"] for message in messages]


def one(queue: Queue, **how: Any) -> Message:
    [message] = queue.take(1, **how)
    return message
