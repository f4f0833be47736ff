"""What every log promises of what it keeps: the latest of each key, or the last days, and what a reader is told of the rest."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import FellOff, Invalid, InvalidRows
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import changes, dicts, fill, numbers, places


class KeepContract:
    """Compaction never changes an offset, an order or the latest value; retention never drops in silence."""

    @pytest.fixture
    def profiles(self, stem: Mainstem) -> Topic:
        return stem.create_topic(
            "profiles", schema="k string, n bigint", key="k", keep=Keep.latest_per_key(tombstones="1 day")
        )

    @promise(Promise.COMPACTED)
    def test_the_latest_of_each_key_stays_where_it_was(self, profiles: Topic, other: Mainstem) -> None:
        for number, key in enumerate("aababcda"):
            fill(profiles, number, key=key)
        before = dicts(profiles.to_arrow())
        _compact(profiles)
        fill(profiles, 8, key="e")
        for topic in (profiles, other.topic("profiles")):
            left = dicts(topic.to_arrow())
            assert [row["n"] for row in left] == [4, 5, 6, 7, 8]
            assert left[:-1] == [before[4], before[5], before[6], before[7]]
            assert left[-1]["record"]["offset"] == 8
            assert numbers(topic.batches(start={0: 5})) == [5, 6, 7, 8]
            # Where an offset was compacted away, reading goes on at the next that is there.
            assert numbers(topic.batches(start={0: 1})) == [4, 5, 6, 7, 8]

    @promise(Promise.COMPACTED)
    def test_compacting_twice_is_compacting_once(self, profiles: Topic) -> None:
        for number, key in enumerate("aababcda"):
            fill(profiles, number, key=key)
        _compact(profiles)
        once = dicts(profiles.to_arrow())
        _compact(profiles)
        assert dicts(profiles.to_arrow()) == once

    @promise(Promise.COMPACTED)
    def test_a_deleted_key_goes_and_its_tombstone_after_a_while(self, profiles: Topic, clock: Any) -> None:
        fill(profiles, 1, key="a")
        fill(profiles, 2, key="b")
        profiles.delete(["a"])
        _compact(profiles)
        assert [(row["k"], row["n"]) for row in dicts(profiles.to_arrow())] == [("b", 2), ("a", None)]
        clock.advance("23 hours")
        _compact(profiles)
        assert changes(profiles.to_arrow()) == ["insert", "delete"]
        clock.advance("2 hours")
        _compact(profiles)
        _compact(profiles)
        assert [(row["k"], row["n"]) for row in dicts(profiles.to_arrow())] == [("b", 2)]
        fill(profiles, 3, key="a")
        _compact(profiles)
        assert numbers(profiles.to_arrow()) == [2, 3]
        assert places(profiles.to_arrow()) == [(0, 1), (0, 3)]

    @promise(Promise.COMPACTED)
    def test_young_records_are_left_alone(self, stem: Mainstem, clock: Any) -> None:
        topic = stem.create_topic(
            "young", schema="k string, n bigint", key="k", keep=Keep.latest_per_key(lag_min="1 hour")
        )
        fill(topic, 1, 2)
        _compact(topic)
        assert numbers(topic.to_arrow()) == [1, 2]
        clock.advance("2 hours")
        fill(topic, 3)
        _compact(topic)
        assert numbers(topic.to_arrow()) == [2, 3]

    @promise(Promise.COMPACTED)
    def test_readers_under_way_go_on_through_a_compaction(self, profiles: Topic, other: Mainstem) -> None:
        fill(profiles, *range(10))
        with other.topic("profiles").join_group("billing") as member:
            assert numbers(member.poll(rows_max=3)) == [0, 1, 2]
            member.commit()
            _compact(profiles)
            assert numbers(member.poll()) == [9]
        follower = other.topic("profiles").follow(start={0: 4}, wait="50 milliseconds")
        assert numbers(follower) == [9]
        queue = profiles.queue("emails")
        assert [message.row["n"] for message in queue.take(10)] == [9]

    @promise(Promise.COMPACTED, Promise.ATOMIC)
    def test_only_what_is_committed_counts_as_the_latest(self, stem: Mainstem, profiles: Topic) -> None:
        fill(profiles, 1, key="a")
        undone = stem.transaction()
        undone.append(profiles, [{"k": "a", "n": 2}])
        undone.abort()
        with stem.transaction() as transaction:
            transaction.append(profiles, [{"k": "b", "n": 3}])
        open_one = stem.transaction()
        open_one.append(profiles, [{"k": "b", "n": 4}])
        _compact(profiles)
        assert sorted(numbers(profiles.to_arrow())) == [1, 3]
        open_one.commit()
        _compact(profiles)
        assert sorted(numbers(profiles.to_arrow())) == [1, 4]

    @promise(Promise.COMPACTED, Promise.IDEMPOTENT)
    def test_a_producer_s_sequence_outlives_its_records(self, stem: Mainstem, profiles: Topic) -> None:
        producer = stem.producer("checkout")
        producer.append(profiles, [{"k": "a", "n": 1}], sequence=1)
        fill(profiles, 2, key="a")
        _compact(profiles)
        assert not producer.append(profiles, [{"k": "a", "n": 1}], sequence=1).appended
        assert numbers(profiles.to_arrow()) == [2]

    @promise(Promise.COMPACTED)
    def test_only_a_topic_that_keeps_the_latest_is_compacted(self, single: Topic) -> None:
        with pytest.raises(Invalid, match="does not keep the latest record per key"):
            single.compact()

    @promise(Promise.COMPACTED)
    def test_a_compacted_topic_takes_no_row_without_a_key(self, stem: Mainstem, profiles: Topic) -> None:
        with pytest.raises(InvalidRows, match="row 1"):
            profiles.append([{"k": "a", "n": 1}, {"k": None, "n": 2}])
        assert len(profiles.to_arrow()) == 0
        with pytest.raises(Invalid):
            stem.create_topic("keyless", schema="n bigint", keep=Keep.latest_per_key())

    # Retention

    @promise(Promise.RETENTION)
    def test_what_is_too_old_goes_and_offsets_go_on(self, hourly: Topic, other: Mainstem, clock: Any) -> None:
        fill(hourly, 1, 2)
        hourly.seal()
        clock.advance("50 minutes")
        fill(hourly, 3)
        hourly.seal()
        assert hourly.drop_expired().records == 0
        assert numbers(hourly.to_arrow()) == [1, 2, 3]
        clock.advance("20 minutes")
        fill(hourly, 4)
        assert hourly.drop_expired().records == 2
        for topic in (hourly, other.topic("hourly")):
            assert (numbers(topic.to_arrow()), places(topic.to_arrow())) == ([3, 4], [(0, 2), (0, 3)])
            assert numbers(topic.batches(start={0: 3})) == [4]
        clock.advance("2 hours")
        hourly.drop_expired()
        assert len(other.topic("hourly").to_arrow()) == 0
        fill(hourly, 5)
        assert places(other.topic("hourly").to_arrow()) == [(0, 4)]

    @promise(Promise.RETENTION)
    def test_what_is_too_much_goes_the_oldest_first(self, stem: Mainstem) -> None:
        topic = stem.create_topic(
            "small", schema="k string, n bigint", key="k", keep="40 KiB", segment_bytes_max="4 KiB"
        )
        for number in range(200):
            topic.append([{"k": "x" * 500, "n": number}])
        topic.seal()
        topic.drop_expired()
        left = numbers(topic.to_arrow())
        assert left == list(range(200 - len(left), 200))
        assert 0 < len(left) < 200

    @promise(Promise.RETENTION)
    def test_what_is_kept_forever_stays(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        single.seal()
        clock.advance("1000 days")
        assert single.drop_expired().records == 0
        assert numbers(single.to_arrow()) == [1]

    @promise(Promise.RETENTION)
    def test_a_topic_can_be_altered_to_keep_less(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        single.seal()
        clock.advance("2 hours")
        fill(single, 2)
        single.alter(keep="1 hour")
        single.drop_expired()
        assert numbers(single.to_arrow()) == [2]

    @promise(Promise.RETENTION)
    def test_a_reader_that_falls_off_learns_exactly_what_it_lost(self, dropped: Topic) -> None:
        for read in (
            lambda: list(dropped.batches(start={0: 1})),
            lambda: dropped.to_arrow(start={0: 1}),
            lambda: next(dropped.follow(start={0: 1})),
        ):
            with pytest.raises(FellOff, match='records 1 to 2 of "hourly" partition 0') as fell:
                read()
            lost = fell.value
            assert (lost.topic, lost.partition, lost.first_lost, lost.last_lost) == ("hourly", 0, 1, 2)
            assert "earliest" in lost.hint
        # And goes on as it was told.
        assert numbers(dropped.batches(start="earliest")) == [4]
        assert numbers(dropped.batches(start={0: 3})) == [4]

    @promise(Promise.RETENTION)
    def test_a_token_or_a_time_of_what_is_gone(self, stem: Mainstem, hourly: Topic, clock: Any) -> None:
        before = as_datetime(clock.now()) - timedelta(minutes=1)
        token = hourly.append([{"k": "a", "n": 1}]).token
        fill(hourly, 2)
        hourly.seal()
        clock.advance("2 hours")
        fill(hourly, 3)
        hourly.drop_expired()
        with pytest.raises(FellOff) as fell:
            list(hourly.batches(start=token))
        assert (fell.value.first_lost, fell.value.last_lost) == (1, 1)
        # A time asks for what was appended since: that is what there is.
        assert numbers(hourly.batches(start=before)) == [3]

    @promise(Promise.RETENTION, Promise.GROUPS)
    def test_a_group_that_falls_off_learns_it_and_goes_on_by_seeking(
        self, hourly: Topic, other: Mainstem, clock: Any
    ) -> None:
        fill(hourly, 1, 2, 3)
        slow = other.topic("hourly").join_group("slow", session="10 days")
        quick = hourly.join_group("quick", session="10 days")
        assert numbers(slow.poll(rows_max=1)) == [1]
        slow.commit()
        assert numbers(quick.poll()) == [1, 2, 3]
        quick.commit()
        hourly.seal()
        clock.advance("2 hours")
        fill(hourly, 4)
        assert hourly.group("slow").lag().until_dropped == timedelta(0)
        hourly.drop_expired()
        # Others go on, and the slow one is told as often as it asks.
        assert numbers(quick.poll()) == [4]
        for _ in range(2):
            with pytest.raises(FellOff) as fell:
                slow.poll()
            assert (fell.value.first_lost, fell.value.last_lost) == (1, 2)
            assert "member.seek" in fell.value.hint
        slow.seek("earliest")
        assert numbers(slow.poll()) == [4]
        slow.leave()
        quick.leave()

    @promise(Promise.RETENTION, Promise.QUEUES)
    def test_a_queue_that_falls_off_learns_it_and_goes_on_by_rewinding(
        self, other: Mainstem, hourly: Topic, clock: Any
    ) -> None:
        fill(hourly, 1, 2, 3)
        [held] = hourly.queue("emails", lease="10 days").take()
        queue = other.topic("hourly").queue("emails")
        hourly.seal()
        clock.advance("2 hours")
        fill(hourly, 4)
        hourly.drop_expired()
        with pytest.raises(FellOff) as fell:
            queue.take(10)
        assert (fell.value.first_lost, fell.value.last_lost) == (1, 2)
        assert "queue.rewind" in fell.value.hint
        held.acknowledge()
        queue.rewind({0: 3})
        assert [message.row["n"] for message in queue.take(10)] == [4]

    @promise(Promise.RETENTION, Promise.QUEUES)
    def test_a_message_that_was_dropped_while_it_waited_is_rejected(
        self, stem: Mainstem, hourly: Topic, clock: Any
    ) -> None:
        fill(hourly, 1)
        queue = hourly.queue("emails")
        [message] = queue.take()
        message.release(delay="3 hours")
        hourly.seal()
        clock.advance("4 hours")
        fill(hourly, 2)
        hourly.drop_expired()
        assert [message.row["n"] for message in queue.take(10)] == [2]
        [row] = dicts(stem.topic("hourly.emails.rejected").to_arrow())
        assert (row["n"], row["rejection"]["cause"], row["rejection"]["offset"]) == (None, "fell_off", 0)

    @promise(Promise.RETENTION)
    def test_what_is_dropped_can_be_kept_in_an_archive(self, stem: Mainstem, tmp_path: Path, clock: Any) -> None:
        archive = tmp_path / "archive"
        topic = stem.create_topic(
            "archived", schema="k string, n bigint", key="k", keep="1 hour", archive=str(archive), partitions=2
        )
        topic.append([{"k": f"key-{number}", "n": number} for number in range(20)])
        before = dicts(topic.to_arrow())
        topic.seal()
        clock.advance("2 hours")
        topic.append([{"k": f"key-{number}", "n": number} for number in range(20, 40)])
        dropped = topic.drop_expired()
        assert dropped.records == 20
        assert dropped.archived == dropped.segments > 0
        assert sorted(numbers(topic.to_arrow())) == list(range(20, 40))
        # Reading it is a thing one asks for.
        whole = dicts(topic.batches(archive=archive))
        assert sorted(row["n"] for row in whole) == list(range(40))
        assert [row for row in whole if row["n"] < 20] == before
        assert sorted(numbers(topic.batches(start={0: 1, 1: 1}, archive=archive))) != []

    @promise(Promise.RETENTION, Promise.SEEK_BY_TIME)
    def test_a_clock_that_jumps_ahead_drops_nothing(self, hourly: Topic, clock: Any) -> None:
        fill(hourly, 1)
        hourly.seal()
        clock.set_by(timedelta(days=3650))
        report = hourly.drop_expired()
        assert report.records == 0
        assert report.clock_jump is not None
        assert numbers(hourly.to_arrow()) == [1]

    @pytest.fixture
    def hourly(self, stem: Mainstem) -> Topic:
        return stem.create_topic("hourly", schema="k string, n bigint", key="k", keep="1 hour")

    @pytest.fixture
    def dropped(self, hourly: Topic, clock: Any) -> Topic:
        """A topic of four records, of which the first three are gone."""
        fill(hourly, 1, 2, 3)
        hourly.seal()
        clock.advance("2 hours")
        fill(hourly, 4)
        hourly.drop_expired()
        return hourly


def _compact(topic: Topic) -> None:
    """Everything appended so far may be cleaned: seal what is being appended to, then compact."""
    topic.seal()
    topic.compact()
