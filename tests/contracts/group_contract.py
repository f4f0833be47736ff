"""What every log promises of reader groups: shared partitions, committed offsets, and fencing of who was taken for dead."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Conflict, Fenced, GroupNotFound, Invalid
from mainstem.log.groups.group_member import Member
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import fill, numbers


class GroupContract:
    """Each record goes to one member; what is committed does not come again, what is not does."""

    @promise(Promise.GROUPS)
    def test_a_member_polls_everything_and_then_nothing(self, spread: Topic) -> None:
        _fill_spread(spread, range(40))
        with spread.join_group("billing") as member:
            assert member.assignment == (0, 1, 2, 3)
            assert sorted(_polled(member)) == list(range(40))
            assert member.poll() is None
            assert member.poll(wait="1 millisecond") is None
            assert member.lag().records == 0

    @promise(Promise.GROUPS)
    def test_a_poll_is_of_one_partition_and_at_most_so_many_rows(self, spread: Topic) -> None:
        _fill_spread(spread, range(40))
        with spread.join_group("billing") as member:
            seen = []
            while (batch := member.poll(rows_max=3)) is not None:
                assert 1 <= batch.num_rows <= 3
                assert len(set(batch.column("record").field("partition").to_pylist())) == 1
                seen += numbers(batch)
            assert sorted(seen) == list(range(40))

    @promise(Promise.GROUPS)
    def test_a_group_goes_on_after_its_last_commit(self, single: Topic, other: Mainstem) -> None:
        fill(single, 1, 2, 3, 4)
        with single.join_group("billing") as member:
            assert numbers(member.poll(rows_max=1)) == [1]
            member.commit()
            assert numbers(member.poll(rows_max=2)) == [2, 3]
            assert member.position == {0: 3}
        with other.topic("single").join_group("billing") as member:
            assert member.position == {0: 1}
            assert _polled(member) == [2, 3, 4]
            member.commit()
        with single.join_group("billing") as member:
            assert member.poll() is None

    @promise(Promise.GROUPS)
    def test_groups_do_not_know_of_each_other(self, single: Topic) -> None:
        fill(single, 1, 2, 3)
        with single.join_group("billing") as one, single.join_group("shipping") as two:
            assert _polled(one) == _polled(two) == [1, 2, 3]
            one.commit()
        assert single.groups() == ["billing", "shipping"]
        with single.join_group("shipping") as two:
            assert _polled(two) == [1, 2, 3]

    @promise(Promise.GROUPS)
    def test_a_new_group_starts_at_the_earliest_record_or_where_it_is_told(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        token = single.append([{"k": "a", "n": 2}]).token
        clock.advance("1 hour")
        later = as_datetime(clock.now()) - timedelta(minutes=30)
        fill(single, 3)
        for name, start, expected in (
            ("default", None, [1, 2, 3]),
            ("earliest", "earliest", [1, 2, 3]),
            ("latest", "latest", []),
            ("time", later, [3]),
            ("offsets", {0: 1}, [2, 3]),
            ("token", token, [3]),
        ):
            with single.join_group(name, **({} if start is None else {"start": start})) as member:
                assert _polled(member) == expected, name
                member.commit()
            # Only a new group asks where to start.
            with single.join_group(name, start="earliest") as member:
                assert member.poll() is None, name

    @promise(Promise.GROUPS)
    def test_a_member_seeks_back_and_forth(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        token = single.append([{"k": "a", "n": 2}]).token
        clock.advance("1 hour")
        later = as_datetime(clock.now()) - timedelta(minutes=30)
        fill(single, 3, 4)
        with single.join_group("billing") as member:
            assert _polled(member) == [1, 2, 3, 4]
            member.commit()
            for to, expected in (("earliest", [1, 2, 3, 4]), (later, [3, 4]), ({0: 1}, [2, 3, 4]), (token, [3, 4])):
                member.seek(to)
                assert _polled(member) == expected
            member.seek({0: 2})
            member.poll(rows_max=1)
            member.seek("committed")
            assert _polled(member) == [3, 4]
            member.seek("latest")
            assert member.poll() is None
            with pytest.raises(Invalid):
                member.seek({5: 0})
        # A seek is recorded.
        with single.join_group("billing") as member:
            assert member.poll() is None
            member.seek({0: 3})
        with single.join_group("billing") as member:
            assert _polled(member) == [4]

    @promise(Promise.GROUPS)
    def test_members_share_the_partitions(self, spread: Topic, other: Mainstem) -> None:
        one = spread.join_group("billing", session="1 hour")
        two = other.topic("spread").join_group("billing", session="1 hour")
        _hand_over(one, two)
        assert sorted([*one.assignment, *two.assignment]) == [0, 1, 2, 3]
        assert len(one.assignment) == len(two.assignment) == 2
        _fill_spread(spread, range(60))
        seen = [_polled(one), _polled(two)]
        assert sorted(seen[0] + seen[1]) == list(range(60))
        assert all(seen)
        one.leave()
        two.leave()

    @promise(Promise.GROUPS)
    def test_a_change_of_members_moves_no_more_than_is_needed(self, stem: Mainstem) -> None:
        topic = stem.create_topic("wide", schema="k string, n bigint", key="k", partitions=6)
        members = [topic.join_group("billing", session="1 hour")]
        for count in (2, 3, 4):
            before = {member.id: set(member.assignment) for member in members}
            members.append(topic.join_group("billing", session="1 hour"))
            _hand_over(*members)
            moved = sum(len(before[member.id] - set(member.assignment)) for member in members[:-1])
            assert moved == 6 // count
            assert sorted(partition for member in members for partition in member.assignment) == list(range(6))
            assert {len(member.assignment) for member in members} <= {6 // count, -(-6 // count)}
        for leaver in members[:-1]:
            rest = members[members.index(leaver) + 1 :]
            before = {member.id: set(member.assignment) for member in rest}
            leaver.leave()
            _hand_over(*rest)
            for member in rest:
                assert before[member.id] <= set(member.assignment)
        assert members[-1].assignment == (0, 1, 2, 3, 4, 5)
        members[-1].leave()

    @promise(Promise.GROUPS)
    def test_a_partition_moves_only_when_what_was_polled_of_it_is_committed(self, spread: Topic) -> None:
        _fill_spread(spread, range(40))
        one = spread.join_group("billing", session="1 hour")
        seen = _polled(one)
        two = spread.join_group("billing", session="1 hour")
        assert two.poll() is None
        assert two.assignment == ()
        one.commit()
        assert _polled(two) == []
        assert len(two.assignment) == 2
        assert sorted(seen) == list(range(40))
        one.leave()
        two.leave()

    @promise(Promise.GROUPS)
    def test_a_member_that_leaves_gives_back_what_it_did_not_commit(self, single: Topic) -> None:
        fill(single, 1, 2, 3)
        waiting = single.join_group("billing", session="1 hour")
        first = waiting if waiting.assignment else single.join_group("billing", session="1 hour")
        assert numbers(first.poll(rows_max=1)) == [1]
        second = single.join_group("billing", session="1 hour")
        assert second.poll() is None
        first.leave()
        first.leave()
        assert _polled(second) == [1, 2, 3]
        with pytest.raises(Invalid, match="has left"):
            first.poll()
        second.leave()

    @promise(Promise.GROUPS)
    def test_a_member_whose_process_dies_is_replaced_at_once(
        self, elsewhere: Callable[..., OtherProcess], spread: Topic
    ) -> None:
        _fill_spread(spread, range(40))
        dying = elsewhere(_join_and_poll)
        held = dying.hear()
        assert held
        with spread.join_group("billing", session="1 hour") as member:
            dying.kill()
            # Its session is an hour: only its death can be what gives the partitions away.
            assert sorted(_polled(member, wait="1 minute", count=40)) == list(range(40))
            assert member.assignment == (0, 1, 2, 3)
            member.commit()

    @promise(Promise.GROUPS)
    def test_a_silent_member_loses_its_partitions_and_its_late_commit_is_refused(
        self, single: Topic, other: Mainstem, clock: Any
    ) -> None:
        fill(single, 1, 2, 3)
        slow = single.join_group("billing", session="1 hour")
        assert numbers(slow.poll(rows_max=2)) == [1, 2]
        clock.advance("59 minutes")
        quick = other.topic("single").join_group("billing", session="10 hours")
        assert quick.poll() is None
        assert taken_over(quick, clock) == [1, 2, 3]
        with pytest.raises(Fenced) as refused:
            slow.commit()
        assert refused.value.hint
        quick.commit()
        # It lives, so it may join anew; what the other has stays there.
        assert slow.poll() is None
        assert slow.assignment == ()
        quick.leave()
        fill(single, 4)
        assert _polled(slow) == [4]
        slow.commit()
        slow.leave()

    @promise(Promise.GROUPS)
    def test_partitions_added_later_are_shared_out_too(self, stem: Mainstem) -> None:
        topic = stem.create_topic("growing", schema="n bigint", partitions=1)
        topic.append([{"n": 1}])
        with topic.join_group("billing", start="latest") as member:
            assert member.poll() is None
            topic.alter(partitions=3)
            for partition in range(3):
                topic.append([{"n": 10 + partition}], partition=partition)
            assert sorted(_polled(member)) == [10, 11, 12]
            assert member.assignment == (0, 1, 2)

    @promise(Promise.GROUPS)
    def test_a_group_tells_how_far_behind_it_is(self, stem: Mainstem, clock: Any) -> None:
        topic = stem.create_topic("kept", schema="k string, n bigint", key="k", keep="7 days")
        with topic.join_group("billing") as member:
            assert (member.lag().records, member.lag().bytes, member.lag().seconds) == (0, 0, 0)
            fill(topic, 1)
            clock.advance("1 hour")
            fill(topic, 2, 3)
            lag = member.lag()
            assert lag.records == 3
            assert lag.bytes > 0
            assert 3600 <= lag.seconds < 4200
            assert lag.until_dropped is not None
            assert (
                timedelta(days=7) - timedelta(minutes=70) <= lag.until_dropped <= timedelta(days=7) - timedelta(hours=1)
            )
            member.poll(rows_max=1)
            assert member.lag().records == 2
            assert member.lag().bytes < lag.bytes
            # What is not committed is still behind, as others see it.
            assert topic.group("billing").lag().records == 3
            member.commit()
            assert topic.group("billing").lag().records == 2
            described = topic.group("billing").describe()
            assert [described.topic, described.name] == ["kept", "billing"]
            assert [(it.partition, it.member, it.committed) for it in described.partitions] == [(0, member.id, 1)]
            [one] = described.members
            assert (one.id, one.partitions, one.session) == (member.id, (0,), timedelta(seconds=10))

    @promise(Promise.GROUPS)
    def test_a_group_is_reset_only_when_nobody_is_in_it(self, single: Topic) -> None:
        fill(single, 1, 2, 3)
        member = single.join_group("billing", session="1 hour")
        _polled(member)
        member.commit()
        with pytest.raises(Conflict, match="1 active member"):
            single.group("billing").reset("earliest")
        member.leave()
        assert single.group("billing").reset({0: 1}) == {0: 1}
        with single.join_group("billing") as member:
            assert _polled(member) == [2, 3]

    @promise(Promise.GROUPS)
    def test_a_group_that_nobody_ever_joined_is_not_there(self, single: Topic) -> None:
        single.join_group("billing").leave()
        with pytest.raises(GroupNotFound, match='has no group "biling"') as missing:
            single.group("biling")
        assert 'Did you mean "billing"?' in missing.value.hint
        assert (missing.value.topic, missing.value.group) == (single.name, "biling")

    @promise(Promise.GROUPS)
    def test_a_session_of_no_length_is_refused(self, single: Topic) -> None:
        with pytest.raises(Invalid):
            single.join_group("billing", session="0 seconds")


def _fill_spread(topic: Topic, values: range) -> None:
    topic.append([{"k": f"key-{value % 13}", "n": value} for value in values])


def _polled(member: Member, *, wait: str | None = None, count: int | None = None) -> list[Any]:
    """Everything a member gets until nothing more is there, or so many rows came."""
    seen: list[Any] = []
    while (count is None or len(seen) < count) and (batch := member.poll(wait=wait)) is not None:
        seen += numbers(batch)
    return seen


def taken_over(member: Member, clock: Any) -> list[Any]:
    """What a member gets of another one with a session of an hour that is silent."""
    # A beat that was due before time jumped may come after it, once.
    for _ in range(3):
        clock.advance("61 minutes")
        if seen := _polled(member):
            return seen
    return []


def _hand_over(*members: Member) -> None:
    """Let every member learn of the others' partitions: once to let go, once to take."""
    for _ in range(2):
        for member in members:
            assert member.poll() is None


def _join_and_poll(stem: Mainstem, line: Line) -> None:
    member = stem.topic("spread").join_group("billing", session="1 hour")
    line.say(_polled(member))
    line.hear()
