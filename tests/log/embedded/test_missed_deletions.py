"""A reader that is behind for longer than a compacted topic keeps its tombstones is refused; no other is."""

import json
from collections.abc import Iterator

import pytest

from mainstem.clock import ManualClock
from mainstem.errors import MissedDeletions
from mainstem.log.embedded.upkeep.manifest import decode_manifest, encode_manifest
from mainstem.log.groups.group_member import Member
from mainstem.log.keep_rule import Keep
from mainstem.log.missed_deletions import UNREAD
from mainstem.log.queues.queue import Queue
from mainstem.log.queues.queue_state import QueueState
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, manifest_of, opened, sealed


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return opened(files, clock)


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("profiles", schema=SCHEMA, key="k", keep=Keep.latest_per_key(tombstones="1 day"))


def delete(topic: Topic, *keys: str) -> None:
    topic.delete(list(keys))
    topic.seal()
    topic.compact()


def drop_tombstones(topic: Topic, clock: ManualClock) -> None:
    clock.advance("25 hours")
    topic.compact()


def table(followed: Iterator[object], rows: int) -> list[str]:
    """The keys of the next rows."""
    found: list[str] = []
    while len(found) < rows:
        found += next(followed).column("k").to_pylist()  # type: ignore[attr-defined]
    return found


def polled(member: Member) -> list[str]:
    batch = member.poll()
    assert batch is not None
    return batch.column("k").to_pylist()  # type: ignore[no-any-return]


def test_the_manifest_knows_up_to_where_tombstones_are_gone(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1), ("c", 2)])
    delete(topic, "a")
    assert manifest_of(topic).forgotten == 0
    delete(topic, "b")
    sealed(topic, [("b", 3)])
    drop_tombstones(topic, clock)
    # That of "b", offset 4, was replaced by a later record, which every reader sees.
    assert manifest_of(topic).forgotten == 4
    assert decode_manifest(encode_manifest(manifest_of(topic)), "") == manifest_of(topic)


def test_a_reader_that_goes_on_behind_a_tombstone_that_was_dropped_is_refused(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1)])
    followed = topic.follow(start="earliest", rows_max=5000)
    assert table(followed, 2) == ["a", "b"]
    delete(topic, "a")
    drop_tombstones(topic, clock)
    with pytest.raises(MissedDeletions) as missed:
        next(followed)
    sealed(topic, [("c", 2)])
    error = missed.value
    assert error.summary == 'a reader has missed deletions in "profiles" partition 0'
    assert (error.topic, error.partition, error.first_lost, error.last_lost) == ("profiles", 0, 2, 2)
    assert table(topic.follow(start="earliest"), 2) == ["b", "c"]


def test_a_reader_that_began_after_a_key_went_needs_no_tombstone(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1)], [("c", 2)])
    delete(topic, "c")
    drop_tombstones(topic, clock)
    sealed(topic, [("d", 3)])
    followed = topic.follow(start="earliest", rows_max=5000)
    # Offsets 0 and 1: below the tombstone that was dropped, at 3.
    assert table(followed, 2) == ["a", "b"]
    # Not read yet, and cleaned only now that the reader has begun: but it keeps up.
    delete(topic, "a")
    assert table(followed, 2) == ["d", "a"]
    drop_tombstones(topic, clock)
    sealed(topic, [("e", 4)])
    assert table(followed, 1) == ["e"]


def test_a_group_that_is_away_too_long_is_refused_and_may_begin_again(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1)])
    with topic.join_group("billing") as member:
        assert member.poll() is not None
        member.commit()
    delete(topic, "a")
    with topic.join_group("billing") as member:
        drop_tombstones(topic, clock)
        with pytest.raises(MissedDeletions, match="the group has missed deletions") as missed:
            member.poll()
        sealed(topic, [("c", 2)])
        assert 'member.seek("earliest")' in missed.value.hint
        member.seek("earliest")
        assert [polled(member), polled(member)] == [["b"], ["c"]]
        member.commit()
    with topic.join_group("billing") as member:
        assert member.poll() is None


def test_a_group_that_has_read_nothing_misses_nothing(topic: Topic, clock: ManualClock) -> None:
    with topic.join_group("billing"):
        pass
    sealed(topic, [("a", 0), ("b", 1)])
    delete(topic, "a")
    drop_tombstones(topic, clock)
    with topic.join_group("billing") as member:
        assert polled(member) == ["b"]
        member.commit()
    sealed(topic, [("c", 2)])
    with topic.join_group("billing") as member:
        assert polled(member) == ["c"]


def test_a_group_in_the_middle_when_tombstones_before_it_began_go_is_not_refused(
    topic: Topic, clock: ManualClock
) -> None:
    sealed(topic, [("a", 0), ("b", 1), ("c", 2)])
    delete(topic, "c")
    clock.advance("23 hours")
    with topic.join_group("billing") as member:
        assert member.poll(rows_max=1) is not None
        member.commit()
    # The tombstone goes, unread; but its key was gone before the group began.
    clock.advance("2 hours")
    topic.compact()
    assert manifest_of(topic).forgotten == 4
    with topic.join_group("billing") as member:
        assert polled(member) == ["b"]


def test_a_topic_that_is_compacted_later_has_readers_from_before(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("profiles", schema=SCHEMA, key="k")
    sealed(topic, [("a", 0), ("b", 1)])
    with topic.join_group("billing") as member:
        assert member.poll() is not None
        member.commit()
    topic.alter(keep=Keep.latest_per_key(tombstones="1 day"))
    delete(topic, "a")
    drop_tombstones(topic, clock)
    sealed(topic, [("c", 2)])
    topic.alter(keep="forever")
    with topic.join_group("billing") as member, pytest.raises(MissedDeletions):
        member.poll()


# Queues


def taken(queue: Queue) -> list[str]:
    """The keys of the messages that are there, and they are done with."""
    messages = queue.take(100)
    queue.acknowledge(messages)
    return [message.row["k"] for message in messages]


def test_a_queue_that_is_away_too_long_is_refused_and_may_begin_again(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1)])
    assert taken(topic.queue("emails")) == ["a", "b"]
    delete(topic, "a")
    drop_tombstones(topic, clock)
    for queue in (topic.queue("emails"), topic.open_queue("emails")):
        with pytest.raises(
            MissedDeletions, match='queue "emails" has missed deletions in "profiles" partition 0'
        ) as missed:
            queue.take()
    sealed(topic, [("c", 2)])
    with pytest.raises(MissedDeletions):
        queue.take()
    assert (missed.value.first_lost, missed.value.last_lost) == (2, 2)
    assert 'queue.rewind("earliest")' in missed.value.hint
    queue.rewind("earliest")
    assert taken(queue) == ["b", "c"]
    assert taken(topic.queue("emails")) == []


@pytest.mark.parametrize("taken_before", [True, False])
def test_every_user_of_a_queue_begins_again_where_one_of_them_rewound_it(
    topic: Topic, clock: ManualClock, taken_before: bool
) -> None:
    """Also one that has seen the queue begin at the same offset before."""
    rewinding, other = topic.queue("emails"), topic.queue("emails")
    assert rewinding.take() == other.take() == []
    topic.append([{"k": "a", "n": 1}])
    if taken_before:
        assert taken(rewinding) == ["a"]
    topic.append([{"k": "b", "n": 1}])
    sealed(topic)
    delete(topic, "a")
    topic.append([{"k": "c", "n": 1}])
    drop_tombstones(topic, clock)
    if taken_before:
        for queue in (rewinding, other):
            with pytest.raises(MissedDeletions):
                queue.take()
    for queue in (rewinding, other):
        rewinding.rewind("earliest")
        assert taken(queue) == ["b", "c"]


def test_a_queue_that_keeps_up_goes_on(topic: Topic, clock: ManualClock) -> None:
    queue = topic.queue("emails")
    for number in range(4):
        sealed(topic, [(f"k{number}", number)])
        assert taken(queue) == [f"k{number}"]
        delete(topic, f"k{number}")
        assert taken(queue if number % 2 else topic.queue("emails")) == [f"k{number}"]
        drop_tombstones(topic, clock)
        assert taken(queue) == []
    assert manifest_of(topic).forgotten > 0


def test_a_queue_that_has_read_nothing_misses_nothing(topic: Topic, clock: ManualClock) -> None:
    queue = topic.queue("emails")
    sealed(topic, [("a", 0), ("b", 1)])
    delete(topic, "a")
    drop_tombstones(topic, clock)
    assert taken(queue) == ["b"]
    sealed(topic, [("c", 2)])
    assert taken(topic.queue("emails")) == ["c"]


def test_a_queue_in_the_middle_when_tombstones_before_it_began_go_is_not_refused(
    topic: Topic, clock: ManualClock
) -> None:
    sealed(topic, [("a", 0), ("b", 1), ("c", 2)])
    delete(topic, "c")
    clock.advance("23 hours")
    queue = topic.queue("emails")
    [message] = queue.take(1)
    message.acknowledge()
    clock.advance("2 hours")
    topic.compact()
    assert manifest_of(topic).forgotten == 4
    assert [message.row["k"] for message in topic.queue("emails").take(1)] == ["b"]


def test_rows_that_a_queue_has_read_ahead_do_not_outlive_their_deletion(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1)])
    # To count what waits, it reads all that lies ahead.
    queue = topic.queue("emails", length_max=100)
    assert [message.row["k"] for message in queue.take(1)] == ["a"]
    delete(topic, "b")
    drop_tombstones(topic, clock)
    with pytest.raises(MissedDeletions):
        queue.take(1)


def test_what_a_queue_knows_of_deletions_survives_a_snapshot(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0), ("b", 1), ("c", 2)])
    delete(topic, "c")
    queue = topic.queue("emails")
    ledger = topic.backend.queue_ledger("emails")
    assert ledger.current().cleaned == {0: UNREAD}
    queue.take(1)
    state = ledger.current()
    assert state.cleaned == {0: manifest_of(topic).cleaned}
    assert QueueState.restore(json.loads(json.dumps(state.snapshot()))).cleaned == state.cleaned
    assert QueueState.restore({**state.snapshot(), "cleaned": {}}).cleaned == {}
