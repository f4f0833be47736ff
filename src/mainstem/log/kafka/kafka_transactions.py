"""KafkaTransactions: the transactions of a log, on Kafka's own.

A transaction's number consists of a slot and a count: a slot is a transactional id that one process uses for one
transaction after the other. A ledger records which process uses which slot, so that any process can abort the open
transactions of a dead process of this machine; the broker aborts those of a process on another machine after their
timeout.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mainstem.clock import Clock
from mainstem.errors import Fenced, MainstemError
from mainstem.log.kafka.kafka_clients import KafkaClients, known_dead, this_process
from mainstem.log.kafka.kafka_messages import TRANSACTION_HEADER, Outgoing
from mainstem.log.kafka.kafka_writer import Ranges, TransactionalWriter
from mainstem.log.kafka.named_writer import NamedWriter
from mainstem.log.kafka.state_topic import CommitsTopic, KafkaLedger, Slot, WritersState
from mainstem.log.kafka.transaction_notes import WrittenSpans
from mainstem.log.state_ledger import Entry
from mainstem.log.transaction import COMMITTED, transaction_ended

__all__ = ["KafkaTransactions", "OpenTransaction"]


# OpenTransaction: a Kafka transaction in progress in this process, and the records to write at its commit.


@dataclass
class OpenTransaction:
    """For one thread, like `Transaction`."""

    id: int
    writer: TransactionalWriter
    # By the log's monotonic clock; the broker measures the same timeout by its own.
    deadline: int
    slot: int
    named: NamedWriter | None = None
    groups: list[tuple[str, str]] = field(default_factory=list)
    # By key in the commits topic: written right before the commit, so that readers of that topic wait only briefly.
    commit_records: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: bool = False
    spans: WrittenSpans = field(default_factory=WrittenSpans)
    asked: bool = False
    # Passed to `named` once this is committed.
    sequences: dict[str, dict[str, Any]] = field(default_factory=dict)
    over: bool = False

    def check(self, now: int) -> None:
        if self.over or now > self.deadline:
            raise transaction_ended(self.id)

    def send(self, topic: str, topic_id: str, messages: Mapping[int, Sequence[Outgoing]], milliseconds: int) -> Ranges:
        try:
            offsets = self.writer.send(topic, self._number_first(topic_id, messages), milliseconds)
            self.spans.add(topic_id, offsets, sum(map(len, messages.values())))
            return offsets
        except Fenced as error:
            self.over = True
            if self.named is not None:
                self.named.run_check()
            raise transaction_ended(self.id) from error

    def _number_first(self, topic_id: str, messages: Mapping[int, Sequence[Outgoing]]) -> dict[int, list[Outgoing]]:
        """The messages; the first one of the transaction in each partition has its number as a header."""
        own = (TRANSACTION_HEADER, str(self.id).encode())
        found = {number: list(parts) for number, parts in messages.items()}
        for number, parts in found.items():
            if parts and not self.spans.has(topic_id, number):
                parts[0] = parts[0]._replace(headers=[*(parts[0].headers or ()), own])
        return found

    def commit_messages(self) -> list[Outgoing]:
        return [Outgoing(key.encode(), json.dumps(value).encode(), None) for key, value in self.commit_records.items()]


# The lower bits of a transaction's number count within its slot.
COUNT_BITS = 20
SLOT_BITS = 42
# How many committed transactions of a slot are remembered: more than a group can wait for.
REMEMBERED = 50
IDLE_MAX = 8


class KafkaTransactions:
    """Begins, ends and settles transactions. Thread-safe."""

    def __init__(
        self,
        clients: KafkaClients,
        prefix: str,
        clock: Clock,
        ledger: Callable[[], KafkaLedger[WritersState]],
        commits: Callable[[], CommitsTopic],
        notes_topic: str,
    ) -> None:
        self._clients = clients
        self._prefix = prefix
        self._clock = clock
        self._ledger = ledger
        self._commits = commits
        self._notes_topic = notes_topic
        self._guard = threading.RLock()
        self._open: dict[int, OpenTransaction] = {}
        self._idle: list[tuple[int, int, TransactionalWriter]] = []
        self._slots: list[int] = []
        self._counts: dict[int, int] = {}
        self._committed: dict[int, list[int]] = {}
        self._named_slots: dict[str, int] = {}
        # Since when a reader waits for the end of each transaction.
        self._awaited: dict[int, int] = {}

    def transactional_id(self, slot: int) -> str:
        return f"{self._prefix}mainstem.slot.{slot}"

    # In progress

    def begin(self, timeout: int, named: NamedWriter | None) -> int:
        if named is not None:
            slot, writer = self._named_slot(named, timeout), named.writer()
        else:
            slot, writer = self._slot(timeout)
        writer.begin()
        with self._guard:
            self._counts[slot] = count = self._counts.get(slot, 0) + 1
            number = slot << COUNT_BITS | count
            deadline = self._clock.monotonic() + timeout
            self._open[number] = OpenTransaction(number, writer, deadline, slot, named)
            return number

    def _slot(self, timeout: int) -> tuple[int, TransactionalWriter]:
        with self._guard:
            for place, (slot, allowed, writer) in enumerate(self._idle):
                if allowed == timeout:
                    del self._idle[place]
                    return slot, writer
        slot = secrets.randbits(SLOT_BITS)
        writer = TransactionalWriter(self._clients, self.transactional_id(slot), timeout)
        self._note("opened", slot, timeout)
        writer.open()
        return slot, writer

    def _named_slot(self, named: NamedWriter, timeout: int) -> int:
        with self._guard:
            slot = self._named_slots.get(named.name)
            if slot is None:
                slot = self._named_slots[named.name] = secrets.randbits(SLOT_BITS)
                self._note("opened", slot, timeout, named=True)
            return slot

    def _note(self, kind: str, slot: int, timeout: int = 0, **more: object) -> None:
        entry: Entry = {"kind": kind, "slot": slot}
        if kind == "opened":
            entry |= {"process": this_process(), "timeout": timeout, **more}
            self._slots.append(slot)
        self._ledger().decide(lambda state, now: ([entry], None))

    def get(self, number: int) -> OpenTransaction:
        """An open transaction of this process; raises `Fenced` once it has ended."""
        with self._guard:
            found = self._open.get(number)
        if found is None:
            raise transaction_ended(number)
        found.check(self._clock.monotonic())
        return found

    def open_sequence(self, named: NamedWriter, topic_id: str) -> int:
        """The highest sequence of a producer in an open transaction; -1 if there is none."""
        with self._guard:
            known = [found.sequences.get(topic_id) for found in self._open.values() if found.named is named]
        return max((one["sequence"] for one in known if one is not None), default=-1)

    # Its end

    def end(self, number: int, outcome: str) -> list[tuple[str, str]]:
        """Commit or abort; returns the groups with offsets in it."""
        with self._guard:
            found = self._open.get(number)
        if found is None:
            if outcome == COMMITTED:
                self.get(number)
            return []
        if outcome == COMMITTED:
            self._commit(found)
        else:
            found.writer.abort()
        self._release(found)
        return found.groups

    def _commit(self, found: OpenTransaction) -> None:
        ended: list[int] = []
        try:
            if not found.asked:
                found.check(self._clock.monotonic())
            if found.groups:
                ended = [*self._committed.get(found.slot, []), found.id][-REMEMBERED:]
                found.commit_records[f"outcome|{found.slot}"] = {"committed": ended}
            # Only once: a commit without an answer may be retried, but nothing may be added to it.
            if not found.said:
                self._write_commit_records(found)
                found.said = True
            # From here on only the broker knows whether it has ended.
            found.asked = True
            found.writer.commit()
        except Fenced as error:
            found.writer.abort()
            self._release(found)
            raise transaction_ended(found.id) from error
        if found.groups:
            self._committed[found.slot] = ended
        if found.named is not None:
            found.named.sequences |= found.sequences

    def _write_commit_records(self, found: OpenTransaction) -> None:
        """Write the records that become valid with the commit, as a part of the transaction."""
        said = {self._commits().topic: {0: found.commit_messages()}} if found.commit_records else {}
        note = found.spans.note(found.id)
        if note is not None:
            said[self._notes_topic] = {0: [note]}
        if said:
            found.writer.send_all(said, self._clock.now() // 1000, self._notes_topic)

    def _release(self, found: OpenTransaction) -> None:
        with self._guard:
            self._open.pop(found.id, None)
            if found.named is not None:
                return
            if found.writer.usable and len(self._idle) < IDLE_MAX:
                self._idle.append((found.slot, found.writer._settings["transaction.timeout.ms"] * 1000, found.writer))
                return
        found.writer.close()
        self._note("closed", found.slot)

    # Settling

    def outcome(self, number: int) -> Literal["open", "committed", "aborted"]:
        with self._guard:
            if number in self._open:
                return "open"
        slot_number = number >> COUNT_BITS
        slot = self._ledger().current().slots.get(slot_number)
        if self._is_committed(slot_number, number):
            return "committed"
        if slot is not None and not known_dead(slot.process) and not self._has_timed_out(number, slot):
            return "open"
        if slot is not None and not slot.named:
            self._fence(slot_number, slot)
        return "committed" if self._is_committed(slot_number, number) else "aborted"

    def owner_of(self, number: int) -> int | None:
        """The id of the process that uses a transaction's slot; None if none does."""
        slot = self._ledger().current().slots.get(number >> COUNT_BITS)
        return None if slot is None else slot.process["pid"]

    def _is_committed(self, slot: int, number: int) -> bool:
        return number in self._commits().values().get(f"outcome|{slot}", {}).get("committed", [])

    def _has_timed_out(self, number: int, slot: Slot) -> bool:
        """Whether a reader has waited for it longer than its timeout: then the broker has ended it."""
        now = self._clock.monotonic()
        return now - self._awaited.setdefault(number, now) > slot.timeout

    def settle(self) -> None:
        """Abort open transactions of dead processes of this machine."""
        for number, slot in list(self._ledger().current().slots.items()):
            if not slot.named and known_dead(slot.process):
                self._fence(number, slot)

    def _fence(self, number: int, slot: Slot) -> None:
        writer = TransactionalWriter(self._clients, self.transactional_id(number), slot.timeout)
        try:
            writer.open()
        finally:
            writer.close()
        self._note("closed", number)

    def close(self) -> None:
        """Abort open transactions, and release all slots."""
        with self._guard:
            left, self._open = list(self._open.values()), {}
            idle, self._idle = self._idle, []
        for found in left:
            found.writer.abort()
            found.writer.close()
        for _, _, writer in idle:
            writer.close()
        for slot in self._slots:
            try:
                self._note("closed", slot)
            except MainstemError:
                # The brokers are unreachable: other processes will find that this one has ended.
                return
