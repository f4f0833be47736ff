"""A queue against a naive one: a list of messages, all of them looked at each time."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import Fenced, NotFound
from mainstem.log.backoff import Backoff
from mainstem.log.queues.message import Message
from mainstem.log.queues.queue import Queue
from mainstem.log.queues.queue_settings import QueueSettings
from mainstem.log.queues.queue_state import QueueState
from tests.log.memory_ledger import Killed, ManualWaiter, MemoryLedger, MemoryProcesses, MemoryRejections, MemoryTopic

SCHEMA = pa.schema([("n", pa.int64()), ("kind", pa.string())])
SECOND = 1_000_000
PARTITIONS = 2
# A key always lies in the same partition.
KEYS: list[tuple[str | None, int]] = [("a", 0), ("b", 0), ("c", 1), (None, 0), (None, 1)]


@dataclass
class Naive:
    """One message of the naive queue; `status` is fresh, held, returned, rejected or done."""

    n: int
    key: str | None
    partition: int
    offset: int
    appended_at: int
    status: str = "fresh"
    deliveries: int = 0
    receipt: str = ""
    pid: int = 0
    until: int = 0
    first_error: str | None = None
    last_error: str | None = None
    restored_at: int = 0

    @property
    def age(self) -> tuple[int, int, int]:
        return self.appended_at, self.partition, self.offset


class NaiveQueue:
    """Everything in one list, sorted and searched again for every question."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: list[Naive] = []
        self.rejected: list[tuple[Any, ...]] = []
        self.gone: set[int] = set()

    def mine(self) -> list[Naive]:
        matching = (m for m in self.messages if self.settings.where is None or m.n % 3 != 0)
        return sorted((m for m in matching if m.status not in ("done", "rejected")), key=lambda m: m.age)

    def held(self, message: Naive, now: int) -> bool:
        return message.status == "held" and message.until > now and message.pid not in self.gone

    def reject(self, message: Naive, cause: str) -> None:
        errors = message.first_error, message.last_error
        self.rejected.append((message.n, cause, message.deliveries, *errors))
        message.status = "rejected"

    def restore(self, message: Naive, now: int) -> None:
        message.status, message.restored_at = "fresh", now
        message.deliveries, message.first_error, message.last_error = 0, None, None

    def take(self, now: int, count: int) -> list[Naive]:
        settings = self.settings
        waiting = [m for m in self.mine() if not self.held(m, now)]
        for m in waiting:
            if settings.deliveries_max is not None and m.deliveries >= settings.deliveries_max:
                self.reject(m, "deliveries")
            elif settings.expires is not None and (
                max(m.appended_at, m.restored_at) + settings.expires // timedelta(microseconds=1) <= now
            ):
                self.reject(m, "expired")
        waiting = [m for m in waiting if m.status != "rejected"]
        if settings.length_max is not None:
            for m in waiting[: max(0, len(waiting) - settings.length_max)]:
                self.reject(m, "length")

        def free(m: Naive) -> bool:
            if settings.ordered != "by key" or m.key is None:
                return True
            others = [other for other in self.mine() if other.key == m.key and other is not m]
            return all(other.age >= m.age and not self.held(other, now) for other in others)

        waiting = [m for m in waiting if m.status != "rejected" and free(m)]
        again = [m for m in waiting if m.status == "held" or (m.status == "returned" and m.until <= now)]
        fresh = [m for m in waiting if m.status == "fresh"]
        return (again + fresh)[:count]

    def give(self, taken: list[Naive], messages: list[Message], pid: int, now: int) -> None:
        for m, message in zip(taken, messages, strict=True):
            m.status, m.pid = "held", pid
            m.deliveries += 1
            m.until = now + self.settings.lease // timedelta(microseconds=1)
            m.receipt = message.receipt

    def holding(self, receipt: str) -> Naive | None:
        return next((m for m in self.messages if m.status == "held" and m.receipt == receipt), None)

    def release(self, m: Naive, now: int, delay: timedelta | None, error: str | None) -> None:
        settings = self.settings
        if delay is None:
            delay = timedelta(0) if settings.retry is None else settings.retry.delay(m.deliveries)
        m.status, m.until = "returned", now + delay // timedelta(microseconds=1)
        if error is not None:
            m.first_error, m.last_error = m.first_error or error, error
        if settings.deliveries_max is not None and m.deliveries >= settings.deliveries_max:
            self.reject(m, "deliveries")

    def rewind(self, earlier: list[Naive]) -> None:
        before = {(m.partition, m.offset): m for m in copy.deepcopy(earlier)}
        for place, m in enumerate(self.messages):
            then = before.get((m.partition, m.offset)) or Naive(m.n, m.key, m.partition, m.offset, m.appended_at)
            if then.status == "held":
                then.status, then.until = "returned", 0
            self.messages[place] = then


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # Small enough that a short run crosses every border.
        self.patch.setattr("mainstem.log.queues.queue_scan.CHUNK_ROWS", 3)
        self.patch.setattr("mainstem.log.queues.queue_scan.CHUNKS_WITH_ROWS", 2)
        self.patch.setattr("mainstem.log.queues.queue_take.REJECTIONS_MAX", 3)
        self.patch.setattr("mainstem.log.queues.queue_take.PASSED_MIN", 2)
        self.clock = ManualClock()
        self.topic = MemoryTopic(SCHEMA, self.clock, partitions=PARTITIONS, key=("kind",))
        self.ledger = MemoryLedger(QueueState, self.clock)
        self.processes = MemoryProcesses()
        self.rejections = MemoryRejections()
        self.pids = [1, 2]
        self.next_pid = 3
        self.number = 0
        self.receipts: list[str] = []
        self.history: dict[int, list[Naive]] = {}

    def teardown(self) -> None:
        self.patch.undo()

    def worker(self) -> Queue:
        return Queue(
            "q",
            self.ledger,
            self.topic,
            self.rejections,
            lambda: ManualWaiter(self.clock),
            processes=self.processes,
            clock=self.clock,
        )

    @initialize(
        ordered=st.sampled_from(["", "by key"]),
        deliveries_max=st.sampled_from([None, 1, 3]),
        expires=st.sampled_from([None, None, "20 seconds"]),
        length_max=st.sampled_from([None, None, 4]),
        where=st.sampled_from([None, None, None, "n % 3 <> 0"]),
        retry=st.sampled_from([None, Backoff("2 seconds", max="5 seconds")]),
    )
    def open(self, **settings: Any) -> None:
        given = QueueSettings.from_options(lease="10 seconds", **settings)
        self.workers = [self.worker().open(given), self.worker()]
        assert given is not None
        self.naive = NaiveQueue(given)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def append(self, keys: list[tuple[str | None, int]]) -> None:
        for key, partition in keys:
            self.number += 1
            place = partition, self.topic.latest(partition), self.clock.now()
            self.naive.messages.append(Naive(self.number, key, *place))
            self.topic.append(partition, {"n": self.number, "kind": key})

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def marker(self, partition: int) -> None:
        self.topic.marker(partition)

    @rule(seconds=st.sampled_from([1, 2, 5, 10]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    @rule(worker=st.integers(0, 1), count=st.integers(1, 4))
    def take(self, worker: int, count: int) -> None:
        self.processes.pid = self.pids[worker]
        messages = self.workers[worker].take(count)
        taken = self.naive.take(self.clock.now(), count)
        assert [(m.row["n"], m.deliveries) for m in messages] == [(m.n, m.deliveries + 1) for m in taken]
        self.naive.give(taken, messages, self.pids[worker], self.clock.now())
        self.receipts += [message.receipt for message in messages]

    @rule(worker=st.integers(0, 1))
    def kill(self, worker: int) -> None:
        self.processes.gone.add(self.pids[worker])
        self.naive.gone.add(self.pids[worker])
        self.pids[worker] = self.next_pid
        self.next_pid += 1
        self.workers[worker] = self.worker()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), what=st.sampled_from(["acknowledge", "extend", "release", "reject"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        receipt = data.draw(st.sampled_from(self.receipts))
        queue = self.workers[0]
        m = self.naive.holding(receipt)
        now = self.clock.now()
        delay = data.draw(st.sampled_from([None, timedelta(seconds=3)])) if what == "release" else None
        error = data.draw(st.sampled_from([None, "e1", "e2"])) if what == "release" else None
        do = {
            "acknowledge": lambda: queue.acknowledge([receipt]),
            "extend": lambda: queue.extend(receipt, "15 seconds"),
            "release": lambda: queue.release(receipt, delay=delay, error=error),
            "reject": lambda: queue.reject(receipt, "bad"),
        }[what]
        if m is None:
            with pytest.raises(Fenced):
                do()
            return
        do()
        if what == "acknowledge":
            m.status = "done"
        elif what == "extend":
            m.until = now + 15 * SECOND
        elif what == "release":
            self.naive.release(m, now, delay, error)
        else:
            self.naive.reject(m, "rejected")

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), where=st.sampled_from(["before append", "after append"]))
    def die_while_rejecting(self, data: st.DataObject, where: str) -> None:
        receipt = data.draw(st.sampled_from(self.receipts))
        m = self.naive.holding(receipt)
        if m is not None:
            self.rejections.kill = where
            with pytest.raises(Killed):
                self.workers[0].reject(receipt, "bad")
            self.rejections.kill = ""
            self.naive.reject(m, "rejected")

    @rule(data=st.data(), what=st.sampled_from(["restore", "restore", "drop"]))
    def settle_rejected(self, data: st.DataObject, what: str) -> None:
        messages = [m for m in self.naive.messages if m.status == "rejected"]
        assert sorted(self.ledger.current().rejected) == sorted((m.partition, m.offset) for m in messages)
        shown = self.workers[0].rejected()
        assert sorted(shown.column("n").to_pylist()) == sorted(m.n for m in messages)
        if not messages:
            return
        m = data.draw(st.sampled_from(messages))
        for worker in self.workers:
            do = worker.restore if what == "restore" else worker.drop
            if m.status == "rejected":
                do((m.partition, m.offset))
                if what == "restore":
                    self.naive.restore(m, self.clock.now())
                else:
                    m.status = "done"
            else:
                with pytest.raises(NotFound):
                    do(f"{m.partition}:{m.offset}")

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.history)))
        # What was at the end of that moment; of the present one, what is now.
        earlier = copy.deepcopy(self.history[at])
        self.workers[1].rewind(as_datetime(at))
        self.naive.rewind(earlier)

    @rule()
    def reopen(self) -> None:
        self.ledger.reopen()

    @invariant()
    def remember(self) -> None:
        if hasattr(self, "naive"):
            self.history[self.clock.now()] = copy.deepcopy(self.naive.messages)

    @invariant()
    def the_rejected_are_the_same(self) -> None:
        if not hasattr(self, "naive"):
            return
        on_their_way = [
            (self.topic.records[r.partition][self.place(r.partition, r.offset)][2]["n"], r.cause, r.deliveries)
            for sequence, (_, rejections) in self.ledger.current().rejecting.items()
            for r in rejections
            if sequence > self.rejections.last
        ]
        arrived = [
            (row["n"], row["rejection"]["cause"], row["rejection"]["deliveries"]) for row in self.rejections.rows
        ]
        assert sorted(arrived + on_their_way) == sorted(rejected[:3] for rejected in self.naive.rejected)

    def place(self, partition: int, offset: int) -> int:
        return next(i for i, record in enumerate(self.topic.records[partition]) if record[0] == offset)

    @invariant()
    def errors_are_kept(self) -> None:
        if hasattr(self, "naive") and not self.ledger.current().rejecting:
            arrived = [
                (row["n"], *[row["rejection"][e] or "" for e in ("first_error", "last_error")])
                for row in self.rejections.rows
            ]
            expected = [(n, first or "", last or "") for n, _, _, first, last in self.naive.rejected]
            assert sorted(arrived) == sorted(expected)

    @invariant()
    def a_snapshot_is_the_whole_of_it(self) -> None:
        state = self.ledger.current()
        assert QueueState.restore(json.loads(json.dumps(state.snapshot()))) == state

    @invariant()
    def only_what_is_not_done_with_is_kept(self) -> None:
        if hasattr(self, "naive"):
            open_now = {(m.partition, m.offset) for m in self.naive.messages if m.status in ("held", "returned")}
            kept = set(self.ledger.current().open)
            assert open_now <= kept
            assert all(not self.ledger.current().open[address].deliveries for address in kept - open_now)


TestQueueMachine = pytest.mark.thorough(QueueMachine.TestCase)
TestQueueMachine.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
