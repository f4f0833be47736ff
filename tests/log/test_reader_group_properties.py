"""Members that come, go, die and fall asleep: nothing committed is read again, nothing is left out, nobody is in the way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.clock import ManualClock
from mainstem.errors import Fenced
from mainstem.log.groups.group_member import Member
from mainstem.log.groups.group_state import GroupState
from tests.log.memory_ledger import ManualWaiter, MemoryBeats, MemoryLedger, MemoryProcesses, MemoryTopic

SCHEMA = pa.schema([("n", pa.int64())])
PARTITIONS = 3


class NoBeat:
    def __init__(self, heartbeat: Any, seconds: float) -> None:
        pass

    def stop(self) -> None:
        pass


class GroupOfMembers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.topic = MemoryTopic(SCHEMA, self.clock, partitions=PARTITIONS)
        self.ledger = MemoryLedger(GroupState, self.clock)
        self.processes = MemoryProcesses()
        self.heartbeats = MemoryBeats(self.clock)
        self.members: dict[int, Member] = {}
        self.next_pid = 1
        # The naive view of a partition: how far its present worker has come, and how far the group has.
        self.worked: dict[tuple[str, int], int] = {}
        self.committed = dict.fromkeys(range(PARTITIONS), 0)

    def some(self, data: st.DataObject) -> Member:
        return self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @rule(partition=st.integers(0, PARTITIONS - 1), rows=st.integers(1, 4))
    def append(self, partition: int, rows: int) -> None:
        self.topic.append(partition, *({"n": 0} for _ in range(rows)))

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self) -> None:
        self.processes.pid = self.next_pid
        self.members[self.next_pid] = Member(
            "g",
            self.ledger,
            self.topic,
            ManualWaiter(self.clock),
            self.heartbeats,
            processes=self.processes,
            clock=self.clock,
            beating=NoBeat,
        )
        self.next_pid += 1

    @precondition(lambda self: self.members)
    @rule(data=st.data(), rows_max=st.integers(1, 3))
    def poll(self, data: st.DataObject, rows_max: int) -> None:
        member = self.some(data)
        self.processes.pid = next(pid for pid, known in self.members.items() if known is member)
        before = {partition for worker, partition in self.worked if worker == member.id}
        batch = member.poll(rows_max=rows_max)
        # What it let go of, and what it had under another name, is nothing to go on from.
        owned = {partition for partition in before if self.ledger.current().owners.get(partition) == member.id}
        self.worked = {key: at for key, at in self.worked.items() if key[0] != member.id or key[1] in owned}
        if batch is not None:
            record = batch.column("record")
            partition = record.field("partition")[0].as_py()
            offsets = record.field("offset").to_pylist()
            assert self.ledger.current().owners[partition] == member.id
            begin = self.worked.get((member.id, partition), self.committed[partition])
            assert offsets == list(range(begin, begin + len(offsets)))
            self.worked[member.id, partition] = offsets[-1] + 1

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        member = self.some(data)
        name, inside = member.id, member.id in self.ledger.current().members
        try:
            member.commit()
        except Fenced:
            assert not inside
            return
        assert inside
        self.committed |= {partition: at for (worker, partition), at in self.worked.items() if worker == name}
        kept = self.ledger.current().owned_by(name)
        self.worked = {key: at for key, at in self.worked.items() if key[0] != name or key[1] in kept}

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        member = self.some(data)
        member.heartbeat()
        kept = self.ledger.current().owned_by(member.id)
        self.worked = {key: at for key, at in self.worked.items() if key[0] != member.id or key[1] in kept}

    @precondition(lambda self: self.members)
    @rule(data=st.data(), gently=st.booleans())
    def go(self, data: st.DataObject, gently: bool) -> None:
        member = self.some(data)
        pid = next(pid for pid, known in self.members.items() if known is member)
        if gently:
            member.leave()
        else:
            self.processes.gone.add(pid)
        del self.members[pid]

    @rule()
    def time_passes(self) -> None:
        self.clock.advance("4 seconds")

    @invariant()
    def committed_is_what_was_said(self) -> None:
        known = self.ledger.current().committed
        assert known in ({}, self.committed)

    def teardown(self) -> None:
        """Whoever is left reads all the rest."""
        if not self.members:
            self.join()
        # Enough rounds to take the dead out, hand over, and read.
        for _ in range(8):
            for pid, member in self.members.items():
                self.processes.pid = pid
                member.heartbeat()
                while member.poll() is not None:
                    pass
                member.commit()
        ends = {partition: self.topic.latest(partition) for partition in range(PARTITIONS)}
        assert self.ledger.current().committed == ends
        assert not self.ledger.current().next_owners


TestGroupOfMembers = pytest.mark.thorough(GroupOfMembers.TestCase)
TestGroupOfMembers.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
