"""The group's machine: any sequence of decisions against a model that keeps only who may commit."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.clock import ManualClock
from mainstem.errors import Conflict, Fenced
from mainstem.log.groups import group_state as decisions
from mainstem.log.groups.group_state import GroupState
from tests.log.memory_ledger import MemoryLedger, process

members = st.sampled_from(["a", "b", "c", "d"])
partitions = st.integers(0, 7)


class Group:
    """The ledger, and the decisions with less to type."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(GroupState, ManualClock())

    @property
    def state(self) -> GroupState:
        return self.ledger.current()

    def join(self, member: str, topic_partitions: int = 4, dead: tuple[str, ...] = ()) -> None:
        offsets = dict.fromkeys(range(topic_partitions), 0)
        self.ledger.decide(
            lambda state, now: (
                decisions.join(state, member, process=process(1), session=10, offsets=offsets, dead=dead),
                None,
            )
        )

    def do(self, decision, *arguments) -> None:
        self.ledger.decide(lambda state, now: (decision(state, *arguments), None))


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.partitions = 3
        self.joined: list[str] = []
        self.committed: dict[int, int] = {}
        # The model of hand-over: who worked on a partition last. It may change only when that one let go or is out.
        self.working: dict[int, str] = {}

    @rule(member=members)
    def join(self, member: str) -> None:
        if member not in self.joined:
            self.group.join(member, self.partitions)
            self.joined.append(member)
            self.committed = {p: self.committed.get(p, 0) for p in range(self.partitions)}
            self.living_keep_what_they_have()

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.group.do(decisions.leave, member)
        if member in self.joined:
            self.joined.remove(member)
        self.living_keep_what_they_have()

    @rule(dead=st.sets(members))
    def evict(self, dead: set[str]) -> None:
        self.group.do(decisions.evict, dead)
        self.joined = [member for member in self.joined if member not in dead]
        self.living_keep_what_they_have()

    @precondition(lambda self: self.partitions < 8 and self.committed)
    @rule()
    def grow(self) -> None:
        self.partitions += 1
        self.group.do(decisions.grow, dict.fromkeys(range(self.partitions), 0))
        self.committed[self.partitions - 1] = 0
        self.living_keep_what_they_have()

    @rule(member=members, which=st.sets(partitions))
    def release(self, member: str, which: set[int]) -> None:
        before = dict(self.group.state.next_owners)
        mine = {p for p in which if self.group.state.owners.get(p) == member and p in before}
        self.group.do(decisions.release, member, which)
        assert {p: self.group.state.owners[p] for p in mine} == {p: before[p] for p in mine}
        self.working = dict(self.group.state.owners)

    @rule(member=members, offsets=st.dictionaries(partitions, st.integers(0, 100), max_size=3))
    def commit(self, member: str, offsets: dict[int, int]) -> None:
        owns_all = all(self.group.state.owners.get(p) == member for p in offsets)
        if member in self.joined and owns_all:
            self.group.do(decisions.commit, member, self.group.state.generation, offsets)
            self.committed |= offsets
        else:
            with pytest.raises(Fenced):
                self.group.do(decisions.commit, member, self.group.state.generation, offsets)

    def living_keep_what_they_have(self) -> None:
        owners = self.group.state.owners
        assert {p: owners.get(p) for p, owner in self.working.items() if owner in self.joined} == {
            p: owner for p, owner in self.working.items() if owner in self.joined
        }
        self.working = dict(owners)

    @invariant()
    def agrees(self) -> None:
        state = self.group.state
        assert list(state.members) == self.joined
        assert state.committed == self.committed
        assert sorted(state.owners) == (list(range(self.partitions)) if self.joined else [])
        assert set(state.owners.values()) | set(state.next_owners.values()) <= set(self.joined)
        assert all(state.owners[p] != follower for p, follower in state.next_owners.items())
        if self.joined and self.committed:
            final = state.owners | state.next_owners
            loads = [list(final.values()).count(member) for member in self.joined]
            assert max(loads) - min(loads) <= 1

    @invariant()
    def a_snapshot_is_the_whole_of_it(self) -> None:
        restored = GroupState.restore(json.loads(json.dumps(self.group.state.snapshot())))
        assert restored == self.group.state


TestGroupMachine = pytest.mark.thorough(GroupMachine.TestCase)


def test_a_partition_stays_until_it_is_released() -> None:
    group = Group()
    group.join("a")
    group.join("b")

    assert group.state.owned_by("a") == [0, 1, 2, 3]
    assert group.state.partitions_to_release("a") == [2, 3]
    group.do(decisions.release, "a", [3])
    assert group.state.owners == {0: "a", 1: "a", 2: "a", 3: "b"}
    assert group.state.next_owners == {2: "b"}


def test_what_was_lost_and_gained_again_cannot_be_committed_by_old_knowledge() -> None:
    group = Group()
    group.join("a", 1)
    known = group.state.generation
    group.do(decisions.evict, {"a"})
    group.join("b", 1)
    group.do(decisions.leave, "b")
    group.join("a", 1)

    with pytest.raises(Fenced, match='member "a" does not own partition 0'):
        group.do(decisions.commit, "a", known, {0: 5})
    group.do(decisions.commit, "a", group.state.generation, {0: 6})
    assert group.state.committed == {0: 6}


def test_the_refusal_has_three_parts() -> None:
    group = Group()
    group.join("a")

    with pytest.raises(Fenced) as caught:
        group.do(decisions.commit, "b", 1, {0: 5})

    assert caught.value.summary == 'member "b" is no longer in the group'
    assert caught.value.detail.startswith("It left, or it was removed")
    assert caught.value.hint.startswith("Poll again")


def test_pending_offsets_count_when_the_transaction_is_committed() -> None:
    group = Group()
    group.join("a", 2)
    group.do(decisions.hold_pending, "a", 1, "t1", {0: 5, 1: 7})
    group.do(decisions.hold_pending, "a", 1, "t2", {0: 9})

    assert group.state.committed == {0: 0, 1: 0}
    assert group.state.transactions_on(0) == ["t1", "t2"]
    group.do(decisions.settle, "t1", "committed")
    group.do(decisions.settle, "t2", "aborted")
    group.do(decisions.settle, "t2", "committed")
    assert group.state.committed == {0: 5, 1: 7}
    assert group.state.pending == {}


def test_an_earlier_transaction_settled_later_takes_nothing_back() -> None:
    group = Group()
    group.join("a", 2)
    group.do(decisions.hold_pending, "a", 1, "t1", {0: 5, 1: 6})
    group.do(decisions.hold_pending, "a", 1, "t2", {0: 9})
    group.do(decisions.settle, "t2", "committed")
    group.do(decisions.commit, "a", 1, {1: 8})
    group.do(decisions.settle, "t1", "committed")

    assert group.state.committed == {0: 9, 1: 8}


def test_a_reset_is_refused_while_somebody_lives() -> None:
    group = Group()
    group.join("a", 2)
    group.join("b", 2)

    with pytest.raises(Conflict, match="the group has 1 active member"):
        group.do(decisions.reset, {0: 0, 1: 0}, {"a"})
    group.do(decisions.reset, {0: 3, 1: 4}, {"a", "b"})
    assert group.state.committed == {0: 3, 1: 4}
    assert group.state.members == {}


def test_a_joining_member_takes_the_dead_out() -> None:
    group = Group()
    group.join("a")
    group.join("b", dead=("a",))

    assert list(group.state.members) == ["b"]
    assert group.state.owned_by("b") == [0, 1, 2, 3]
    assert group.state.next_owners == {}


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="no entries of kind 'later'"):
        GroupState().apply({"kind": "later"}, 0)
