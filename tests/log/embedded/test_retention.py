"""Retention: whole segments go, the oldest first; what is gone is told exactly, and never by mistake."""

import errno
import os
from datetime import timedelta

import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import FellOff, Unavailable
from mainstem.log.embedded.upkeep import manifest as upkeep_clock
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.log.upkeep_report import RetentionReport
from mainstem.stem import Mainstem
from tests.log.embedded.memory_files import MemoryFiles
from tests.log.embedded.upkeep_home import SCHEMA, fill, manifest_of, opened, partition_of, sealed, shown


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stem(files: MemoryFiles, clock: ManualClock) -> Mainstem:
    return opened(files, clock)


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("orders", schema=SCHEMA, key="k", keep="1 hour")


def numbers(topic: Topic) -> list[int | None]:
    return [number for _, _, number in shown(topic)]


def test_a_segment_goes_when_its_last_record_is_too_old(topic: Topic, clock: ManualClock) -> None:
    for number in range(4):
        sealed(topic, [("a", number)])
        clock.advance("30 minutes")
    # Now two hours after the first, half an hour after the last.
    assert topic.drop_expired().segments == 3
    assert shown(topic) == [(3, "a", 3)]
    assert manifest_of(topic).start == 3
    assert topic.drop_expired() == RetentionReport()


def test_a_segment_stays_as_long_as_one_of_its_records_must(topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0)])
    clock.advance("59 minutes")
    fill(topic, [("a", 1)])
    topic.seal()
    clock.advance("59 minutes")
    topic.drop_expired()
    assert numbers(topic) == [0, 1]
    clock.advance("1 minute")
    assert topic.drop_expired().records == 2
    assert numbers(topic) == []


def test_a_topic_nobody_appends_to_empties_itself(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0), ("b", 1)])
    clock.advance("1 hour")
    report = topic.drop_expired()
    assert (report.segments, report.records) == (1, 2)
    assert numbers(topic) == []
    names = files.names(partition_of(topic).folder)
    assert [name for name in names if name.endswith((".parquet", ".index", ".blocks"))] == [
        "00000000000000000002-000001.blocks",
        "00000000000000000002-000001.index",
    ]


def test_closed_blocks_go_without_being_sealed_first(files: MemoryFiles, topic: Topic, clock: ManualClock) -> None:
    for number in range(3):
        fill(topic, [("a", number)])
        partition_of(topic).roll()
        clock.advance("40 minutes")
    assert topic.drop_expired().segments == 2
    assert shown(topic) == [(2, "a", 2)]
    assert not [name for name in files.names(partition_of(topic).folder) if "parquet" in name]
    topic.seal()
    assert shown(topic) == [(2, "a", 2)]


def test_the_oldest_go_while_there_is_too_much(stem: Mainstem) -> None:
    topic = stem.create_topic("sized", schema=SCHEMA, key="k", keep="20 KiB", segment_bytes_max=4000)
    for number in range(200):
        fill(topic, [(f"key-{number}", number)])
        if number % 20 == 0:
            topic.seal()
            topic.drop_expired()
    topic.seal()
    report = topic.drop_expired()
    manifest = manifest_of(topic)
    assert 0 < manifest.bytes <= 20 << 10
    assert numbers(topic) == list(range(manifest.start, 200))
    assert manifest.start > 50
    assert report.clock_jump is None


def test_age_and_size_both_drop(stem: Mainstem, clock: ManualClock) -> None:
    topic = stem.create_topic("both", schema=SCHEMA, key="k", keep=Keep(age="1 hour", size="1 MiB"))
    sealed(topic, [("a", 0)])
    clock.advance("2 hours")
    sealed(topic, [("a", 1)])
    topic.drop_expired()
    assert numbers(topic) == [1]
    topic.alter(keep=Keep(age="1 hour", size="1 KiB"))
    topic.drop_expired()
    assert numbers(topic) == []


def test_what_is_kept_for_ever_stays(stem: Mainstem, clock: ManualClock) -> None:
    for name, keep in (("forever", Keep.forever()), ("compacted", Keep.latest_per_key())):
        topic = stem.create_topic(name, schema=SCHEMA, key="k", keep=keep)
        sealed(topic, [("a", 0)])
        clock.advance("3650 days")
        assert topic.drop_expired() == RetentionReport()
        assert numbers(topic) == [0]


def test_offsets_are_never_used_again(files: MemoryFiles, stem: Mainstem, topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0), ("a", 1)])
    clock.advance("2 hours")
    topic.drop_expired()
    stem.close()
    with opened(files.killed(), clock) as again:
        fill(again.topic("orders"), [("a", 2)])
        assert shown(again.topic("orders")) == [(2, "a", 2)]


def test_who_falls_off_is_told_the_exact_range(stem: Mainstem, topic: Topic, clock: ManualClock) -> None:
    with topic.join_group("slow") as member:
        sealed(topic, [("a", 0), ("a", 1), ("a", 2)])
        clock.advance("50 minutes")
        fill(topic, [("a", 3)])
        assert member.lag().until_dropped == timedelta(minutes=10)
        clock.advance("20 minutes")
        topic.drop_expired()
        for read in (lambda: list(topic.batches(start={0: 1})), lambda: next(topic.follow(start={0: 1})), member.poll):
            with pytest.raises(FellOff) as fell:
                read()
            assert (fell.value.topic, fell.value.partition, fell.value.last_lost) == ("orders", 0, 2)
            assert fell.value.hint
        member.seek("earliest")
        batch = member.poll()
        assert batch is not None
        assert batch.column("n").to_pylist() == [3]


def test_nothing_goes_that_lies_behind_an_open_transaction(stem: Mainstem, topic: Topic, clock: ManualClock) -> None:
    fill(topic, [("a", 0)])
    partition_of(topic).roll()
    transaction = stem.transaction(timeout="10 hours")
    transaction.append(topic, [{"k": "b", "n": 1}])
    partition_of(topic).roll()
    fill(topic, [("c", 2)])
    clock.advance("2 hours")
    topic.drop_expired()
    assert manifest_of(topic).start == 1
    transaction.commit()
    assert numbers(topic) == [1, 2]
    topic.drop_expired()
    # The marker is young, so its segment stays; what is before goes.
    assert manifest_of(topic).start == 3
    assert numbers(topic) == []


def test_aborted_records_stay_hidden_when_their_segments_go_one_by_one(
    stem: Mainstem, topic: Topic, clock: ManualClock
) -> None:
    transaction = stem.transaction()
    transaction.append(topic, [{"k": "b", "n": 1}])
    partition_of(topic).roll()
    transaction.append(topic, [{"k": "b", "n": 2}])
    clock.advance("30 seconds")
    transaction.abort()
    fill(topic, [("c", 3)])
    clock.advance("1 hour")
    fill(topic, [("d", 4)])
    topic.drop_expired()
    assert numbers(topic) == [3, 4]
    clock.advance("1 minute")
    topic.drop_expired()
    assert numbers(topic) == [3, 4]


def test_a_reader_under_way_gets_to_the_end_of_what_it_has_open_or_is_told(topic: Topic, clock: ManualClock) -> None:
    for number in range(3):
        sealed(topic, [("a", number)])
    reading = topic.batches()
    seen = [next(reading).column("n").to_pylist()]
    clock.advance("2 hours")
    topic.drop_expired()
    with pytest.raises(FellOff) as fell:
        list(reading)
    assert seen == [[0]]
    assert (fell.value.first_lost, fell.value.last_lost) == (1, 2)


def test_of_a_fenced_partition_what_is_closed_goes(
    topic: Topic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(topic, [("a", 0)])
    fill(topic, [("a", 1)])
    with monkeypatch.context() as failing:
        failing.setattr(MemoryFiles, "sync", _failing_sync)
        with pytest.raises(Unavailable, match="fsync failed"):
            fill(topic, [("a", 2)])
    clock.advance("2 hours")
    topic.drop_expired()
    assert manifest_of(topic).start == 1


def _failing_sync(files: MemoryFiles, handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# Clocks that jump (L11). The test with a real clock is in test_retention_clock_jumps.py.


def set_clock(clock: ManualClock, by: timedelta) -> None:
    clock.set(as_datetime(clock.now()) + by)


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=3652), timedelta(days=-3652)])
def test_a_jump_of_the_clock_drops_nothing_and_is_told(topic: Topic, clock: ManualClock, by: timedelta) -> None:
    sealed(topic, [("a", 0)])
    clock.advance("30 minutes")
    set_clock(clock, by)
    fill(topic, [("a", 1)])
    assert topic.drop_expired() == RetentionReport(clock_jump=by)
    clock.advance("29 minutes")
    topic.drop_expired()
    assert numbers(topic) == [0, 1]


def test_after_a_jump_records_go_when_they_are_truly_old(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0)])
    set_clock(clock, timedelta(days=3652))
    sealed(topic, [("a", 1)])
    topic.drop_expired()
    clock.advance("59 minutes")
    topic.drop_expired()
    assert numbers(topic) == [0, 1]
    clock.advance("1 minute")
    topic.drop_expired()
    # The second lies in the future of a clock that is not believed, and has been seen there for an hour.
    assert numbers(topic) == []


def test_one_append_from_the_future_does_not_keep_all_that_follow_for_ever(topic: Topic, clock: ManualClock) -> None:
    sealed(topic, [("a", 0)])
    set_clock(clock, timedelta(days=3652))
    sealed(topic, [("a", 1)])
    set_clock(clock, timedelta(days=-3652))
    sealed(topic, [("a", 2)])
    topic.drop_expired()
    clock.advance("59 minutes")
    sealed(topic, [("a", 3)])
    topic.drop_expired()
    assert numbers(topic) == [0, 1, 2, 3]
    clock.advance("1 minute")
    topic.drop_expired()
    assert numbers(topic) == [3]
    clock.advance("1 hour")
    topic.drop_expired()
    assert numbers(topic) == []


def test_records_stamped_by_a_frozen_clock_are_not_thought_older_than_they_are(
    topic: Topic, clock: ManualClock
) -> None:
    sealed(topic, [("a", 0)])
    topic.drop_expired()
    set_clock(clock, timedelta(hours=-1))
    for _ in range(59):
        clock.advance("1 minute")
        topic.drop_expired()
    sealed(topic, [("a", 1)])  # stamped like the first: append times never go back
    set_clock(clock, timedelta(hours=1))
    clock.advance("2 minutes")
    topic.drop_expired()
    assert numbers(topic)[-1:] == [1]
    clock.advance("1 hour")
    topic.drop_expired()
    clock.advance("1 hour")
    topic.drop_expired()
    assert numbers(topic) == []


def test_over_a_restart_of_the_machine_nothing_goes_for_an_hour(
    files: MemoryFiles, stem: Mainstem, topic: Topic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(topic, [("a", 0)])
    stem.close()
    monkeypatch.setattr(upkeep_clock, "boot_id", lambda: "another boot")
    after = ManualClock(as_datetime(clock.now()) + timedelta(days=365))
    with opened(files.killed(), after) as again:
        orders = again.topic("orders")
        assert orders.drop_expired().clock_jump is not None
        after.advance("30 minutes")
        orders.drop_expired()
        assert numbers(orders) == [0]
        after.advance("30 minutes")
        report = orders.drop_expired()
        assert (report.segments, report.records, report.clock_jump) == (1, 1, None)
        assert numbers(orders) == []
