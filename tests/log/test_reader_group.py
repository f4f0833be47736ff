"""Members of a group, each with a place in the same ledger, time moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import BeyondEnd, Conflict, FellOff, Fenced, GroupNotFound, Invalid
from mainstem.log.groups import group_state as decisions
from mainstem.log.groups.group_member import HeartbeatThread, Member, MemberPositions
from mainstem.log.groups.group_state import GroupState
from mainstem.log.groups.reader_group import ReaderGroup
from mainstem.log.lag import Lag
from tests.log.memory_ledger import ManualWaiter, MemoryBeats, MemoryLedger, MemoryProcesses, MemoryTopic

SCHEMA = pa.schema([("n", pa.int64())])


class NoBeat:
    """Beats when the test says so, not by itself."""

    def __init__(self, heartbeat: Callable[[], None], seconds: float) -> None:
        self.seconds = seconds

    def stop(self) -> None:
        pass


class Shop:
    """A topic, a group's ledger, and everything a member asks for."""

    def __init__(self, partitions: int = 2) -> None:
        self.clock = ManualClock()
        self.topic = MemoryTopic(SCHEMA, self.clock, partitions=partitions, name="orders")
        self.ledger = MemoryLedger(GroupState, self.clock)
        self.processes = MemoryProcesses()
        self.heartbeats = MemoryBeats(self.clock)
        self.waiter = ManualWaiter(self.clock)
        self.outcomes: dict[str, str] = {}

    identity = title = "the shop"

    def outcome(self, transaction: str) -> Any:
        return self.outcomes.get(transaction, "open")

    def member(self, pid: int = 1, **settings: Any) -> Member:
        self.processes.pid = pid
        return Member(
            "billing",
            self.ledger,
            self.topic,
            self.waiter,
            self.heartbeats,
            processes=self.processes,
            clock=self.clock,
            outcomes=self,
            beating=NoBeat,
            **settings,
        )

    def group(self) -> ReaderGroup:
        return ReaderGroup("billing", self.ledger, self.topic, self.heartbeats, processes=self.processes)

    def fill(self, rows: int) -> None:
        for partition in range(self.topic.partitions()):
            self.topic.append(partition, *({"n": 100 * partition + n} for n in range(rows)))


@pytest.fixture
def shop() -> Shop:
    return Shop()


def polled(member: Member, **how: Any) -> list[int]:
    batch = member.poll(**how)
    return [] if batch is None else batch.column("n").to_pylist()


def test_a_member_reads_its_partitions_in_turn(shop: Shop) -> None:
    shop.fill(3)
    with shop.member() as member:
        assert member.assignment == (0, 1)
        assert [polled(member, rows_max=2) for _ in range(5)] == [[0, 1], [100, 101], [2], [102], []]
        assert member.position == {0: 3, 1: 3}


def test_a_group_goes_on_from_what_was_committed(shop: Shop) -> None:
    shop.fill(4)
    with shop.member() as member:
        polled(member, rows_max=3)
        member.commit()
        polled(member, rows_max=2)
    with shop.member() as member:
        assert member.position == {0: 3, 1: 0}


@pytest.mark.parametrize(
    ("start", "position"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 2, 1: 2}),
        ({1: 1}, {0: 0, 1: 1}),
        ("token-0:2", {0: 2, 1: 0}),
        (as_datetime(ManualClock().now()), {0: 0, 1: 0}),
        (as_datetime(ManualClock().now() + 1), {0: 2, 1: 2}),
    ],
)
def test_where_a_new_group_starts(shop: Shop, start: Any, position: dict[int, int]) -> None:
    shop.fill(2)
    with shop.member(start=start) as member:
        assert member.position == position


def test_start_counts_for_a_new_group_only(shop: Shop) -> None:
    shop.fill(2)
    shop.member().leave()
    with shop.member(start="latest") as member:
        assert member.position == {0: 0, 1: 0}


def test_a_second_member_gets_its_share_as_soon_as_all_is_committed(shop: Shop) -> None:
    shop.fill(2)
    first, second = shop.member(1), shop.member(2)
    assert (first.assignment, second.assignment) == ((0, 1), ())

    first.heartbeat()

    assert polled(second) == [100, 101]
    assert polled(first) == [0, 1]
    assert first.assignment == (0,)


def test_what_is_not_committed_is_not_handed_over_behind_the_back(shop: Shop) -> None:
    shop.fill(2)
    first = shop.member(1)
    assert [polled(first), polled(first)] == [[0, 1], [100, 101]]
    second = shop.member(2)

    first.heartbeat()
    assert polled(second) == []
    first.commit()
    assert second.poll() is None
    assert second.position == {1: 2}


def test_who_polls_without_commit_hands_over_and_the_rows_come_again(shop: Shop) -> None:
    shop.fill(2)
    first = shop.member(1)
    assert [polled(first), polled(first)] == [[0, 1], [100, 101]]
    second = shop.member(2)

    assert polled(first) == []
    first.commit()
    assert polled(second) == [100, 101]
    assert shop.ledger.current().committed == {0: 2, 1: 0}


def test_leaving_gives_partitions_over_at_once(shop: Shop) -> None:
    shop.fill(1)
    first, second = shop.member(1), shop.member(2)
    first.leave()
    first.leave()

    assert [polled(second), polled(second)] == [[0], [100]]
    with pytest.raises(Invalid, match='this member has left group "billing"'):
        first.poll()


def test_a_dead_process_is_noticed_by_who_waits(shop: Shop) -> None:
    shop.fill(1)
    first, second = shop.member(1), shop.member(2)
    first.heartbeat()
    shop.waiter.meanwhile = [lambda: shop.processes.gone.add(1)]
    assert polled(second) == [100]

    assert polled(second, wait="5 seconds") == [0]
    assert shop.waiter.waits[0][2] == [1]
    with pytest.raises(Fenced, match="no longer in the group"):
        first.commit()


def test_a_silent_member_is_out_after_its_session_and_joins_anew_on_poll(shop: Shop) -> None:
    shop.fill(1)
    first, second = shop.member(1, session="9 seconds"), shop.member(2)
    polled(first)
    shop.clock.advance("9 seconds")
    second.heartbeat()
    assert len(shop.ledger.current().members) == 2

    shop.clock.advance(timedelta(microseconds=1))
    second.heartbeat()
    assert [polled(second), polled(second)] == [[0], [100]]
    second.commit()
    old_name = first.id
    for _ in range(2):
        with pytest.raises(Fenced):
            first.commit()
    assert first.poll() is None
    assert first.id != old_name
    assert second.poll() is None
    assert first.poll() is None
    assert first.position | second.position == {0: 1, 1: 1}


def test_an_evicted_member_does_not_come_back_by_beating(shop: Shop) -> None:
    first, second = shop.member(1), shop.member(2)
    shop.clock.advance("11 seconds")
    second.heartbeat()
    first.heartbeat()
    assert list(shop.ledger.current().members) == [second.id]


def test_a_heartbeat_that_fails_does_not_kill_the_thread(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    member = shop.member()

    def fail(_: str) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(shop.heartbeats, "heartbeat", fail)
    member.heartbeat()
    assert list(shop.ledger.current().members) == [member.id]


def test_poll_waits_and_is_woken(shop: Shop) -> None:
    member = shop.member()
    shop.waiter.meanwhile = [lambda: None, lambda: shop.topic.append(1, {"n": 7})]

    assert polled(member, wait="5 seconds") == [7]
    assert polled(member, wait="5 seconds") == []
    assert sum(timeout for timeout, _, _ in shop.waiter.waits[2:]) == pytest.approx(5)


def test_partitions_added_later_are_read_from_their_beginning(shop: Shop) -> None:
    shop.fill(1)
    member = shop.member(start="latest")
    shop.topic.add_partition()
    shop.topic.append(2, {"n": 200})

    assert polled(member) == [200]
    assert member.assignment == (0, 1, 2)


def test_seek_is_recorded(shop: Shop) -> None:
    shop.fill(3)
    with shop.member() as member:
        polled(member)
        member.commit()
        member.seek("earliest")
        assert member.position == {0: 0, 1: 0}
        member.seek({0: 2})
        assert shop.ledger.current().committed == {0: 2, 1: 0}
        polled(member)
        polled(member)
        assert member.position == {0: 3, 1: 3}
        member.seek("committed")
        assert member.position == {0: 2, 1: 0}
        with pytest.raises(Invalid, match="partition 7 cannot be chosen here"):
            member.seek({7: 0})
        for equal_to_one in (True, 1.0):
            with pytest.raises(Invalid, match=f"partition {equal_to_one} cannot be chosen here"):
                member.seek({equal_to_one: 0})  # type: ignore[dict-item]
        with pytest.raises(Invalid, match="offset of partition 0 -1 is not a whole number"):
            member.seek({0: -1})
        with pytest.raises(Invalid, match="is not a position"):
            member.seek(5)  # type: ignore[arg-type]
    with shop.member() as member:
        assert member.position == {0: 2, 1: 0}


def test_who_falls_off_is_told_how_to_go_on(shop: Shop) -> None:
    shop.fill(3)
    member = shop.member()
    shop.topic.drop(0, 2)

    with pytest.raises(FellOff) as caught:
        member.poll()
    assert (caught.value.partition, caught.value.first_lost, caught.value.last_lost) == (0, 0, 1)
    assert "member.seek({0: 2})" in caught.value.hint
    member.seek({0: 2})
    assert polled(member) == [2]


def test_a_group_that_committed_beyond_the_end_is_told_how_to_go_on(shop: Shop) -> None:
    shop.fill(3)
    with shop.member() as member:
        polled(member)
        polled(member)
        member.commit()
    shop.topic.ends[1] = 2
    with shop.member() as member:
        with pytest.raises(
            BeyondEnd, match='the group cannot continue from offset 3 of "orders" partition 1'
        ) as refused:
            member.poll()
        assert (refused.value.position, refused.value.end) == (3, 2)
        shop.topic.records[1] = [(2, 0, {"n": 900})]
        # Still refused, not skipped.
        with pytest.raises(BeyondEnd):
            member.poll()
        shop.topic.ends[1] = 3
        member.seek({1: 2})
        assert polled(member) == [900]


def test_a_new_owner_waits_for_the_transaction_of_the_last(shop: Shop) -> None:
    shop.fill(3)
    first = shop.member(1)
    assert [polled(first, rows_max=2), polled(first, rows_max=2)] == [[0, 1], [100, 101]]
    assert first.commit_in("t1") == {0: 2, 1: 2}
    first.leave()
    second = shop.member(2)

    assert polled(second) == []
    assert second.position == {}
    shop.outcomes["t1"] = "committed"
    assert [polled(second), polled(second)] == [[2], [102]]
    assert shop.ledger.current().committed == {0: 2, 1: 2}


def test_a_transaction_that_failed_moves_nothing(shop: Shop) -> None:
    shop.fill(2)
    member = shop.member()
    polled(member)
    member.commit_in("t1")
    shop.ledger.decide(lambda state, now: (decisions.settle(state, "t1", "aborted"), None))
    assert polled(member) == [100, 101]
    member.seek("committed")
    assert member.position == {0: 0, 1: 0}


def test_a_partition_with_an_open_transaction_is_not_released_by_a_beat(shop: Shop) -> None:
    shop.fill(1)
    first = shop.member(1)
    first.commit_in("t0")
    polled(first)
    polled(first)
    first.commit_in("t1")
    second = shop.member(2)
    first.heartbeat()
    assert second.poll() is None
    assert second.assignment == ()
    shop.ledger.decide(lambda state, now: (decisions.settle(state, "t1", "committed"), None))
    first.heartbeat()
    second.poll()
    assert second.position == {1: 1}


def test_lag(shop: Shop) -> None:
    shop.fill(3)
    member = shop.member()
    polled(member)
    shop.clock.advance("10 seconds")

    assert member.lag() == Lag(3, 300, 10.0, timedelta(minutes=59, seconds=50))
    assert shop.group().lag() == Lag(6, 600, 10.0, timedelta(minutes=59, seconds=50))


def test_a_group_described(shop: Shop) -> None:
    shop.fill(1)
    first, second = shop.member(1), shop.member(2)
    description = shop.group().describe()

    assert (description.name, description.topic, description.generation) == ("billing", "orders", 2)
    assert [(m.id, m.pid, m.partitions) for m in description.members] == [(first.id, 1, (0, 1)), (second.id, 2, ())]
    assert description.members[0].session == timedelta(seconds=10)
    assert description.members[0].silent_for == timedelta(0)
    assert [(p.partition, p.member, p.next_member, p.committed) for p in description.partitions] == [
        (0, first.id, None, 0),
        (1, first.id, second.id, 0),
    ]
    assert description.lag.records == 2


def test_a_group_reset(shop: Shop) -> None:
    shop.fill(3)
    with pytest.raises(GroupNotFound, match='topic "orders" has no group "billing"'):
        shop.group().reset("latest")
    member = shop.member(1)
    with pytest.raises(Conflict):
        shop.group().reset("latest")
    shop.processes.gone.add(1)
    assert shop.group().reset("latest") == {0: 3, 1: 3}
    assert shop.member(2).position == {0: 3, 1: 3}
    with pytest.raises(Fenced):
        member.commit()


def test_a_session_needs_a_length(shop: Shop) -> None:
    with pytest.raises(Invalid, match="session must be longer than zero"):
        shop.member(session="0 seconds")


def test_a_partition_lost_and_gained_again_is_not_where_it_was(shop: Shop) -> None:
    positions = MemberPositions(shop.topic)
    assert positions.set_owned({0: 1, 1: 1}) == [0, 1]
    positions.offsets |= {0: 5, 1: 6}
    assert positions.set_owned({0: 1, 1: 3}) == [1]
    assert positions.offsets == {0: 5}


class Beater:
    def __init__(self, beats_wanted: int) -> None:
        self.left = beats_wanted
        self.done = threading.Event()

    def heartbeat(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


def test_the_beat_thread_beats_until_stopped() -> None:
    beater = Beater(3)
    thread = HeartbeatThread(beater.heartbeat, 0.0001)
    assert beater.done.wait(300)
    thread.stop()
    thread.stop()
    left = beater.left
    assert beater.left == left
    assert not thread._thread.is_alive()


def test_the_beat_thread_ends_with_its_member() -> None:
    beater = Beater(1)
    thread = HeartbeatThread(beater.heartbeat, 0.0001)
    assert beater.done.wait(300)
    del beater
    thread._thread.join(300)
    assert not thread._thread.is_alive()
