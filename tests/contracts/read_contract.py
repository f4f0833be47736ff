"""What every log promises of reading: from anywhere to anywhere, in order, and woken by whatever comes."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mainstem.clock import as_datetime
from mainstem.errors import BeyondEnd, Invalid
from mainstem.log import topic as topic_module
from mainstem.log import topic as topic_waiter
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import dicts, fill, numbers, plain, taken

MICROSECOND = timedelta(microseconds=1)


class ReadContract:
    """Reads show what is committed, each record once, in the order of its partition."""

    @promise(Promise.ORDERED)
    def test_a_table_is_everything_with_its_record(self, spread: Topic, clock: Any) -> None:
        before = as_datetime(clock.now())
        spread.append([{"k": f"key-{number}", "n": number} for number in range(30)])
        table = spread.to_arrow()
        assert table.schema.names == ["k", "n", "record"]
        assert [field.name for field in table.schema.field("record").type] == [
            "partition", "offset", "appended_at", "change", "headers",
        ]  # fmt: skip
        assert table.schema.field("record").metadata == {b"mainstem.record": b"1"}
        assert sorted(numbers(table)) == list(range(30))
        for row in dicts(table):
            assert before <= row["record"]["appended_at"] <= as_datetime(clock.now())
            assert row["record"]["change"] == "insert"

    @promise(Promise.ORDERED)
    def test_an_empty_topic_is_an_empty_table(self, spread: Topic) -> None:
        assert (spread.to_arrow().num_rows, spread.to_arrow().schema.names) == (0, ["k", "n", "record"])
        assert list(spread.batches()) == []

    @promise(Promise.ORDERED)
    def test_batches_are_of_one_partition_each_and_in_order(self, spread: Topic) -> None:
        for first in range(0, 100, 10):
            spread.append([{"k": f"key-{number % 9}", "n": number} for number in range(first, first + 10)])
        seen: dict[int, list[int]] = {}
        for batch in spread.batches():
            assert isinstance(batch, pa.RecordBatch)
            [partition] = set(batch.column("record").field("partition").to_pylist())
            seen.setdefault(partition, []).extend(batch.column("record").field("offset").to_pylist())
        assert seen == {partition: list(range(len(seen[partition]))) for partition in seen}

    @promise(Promise.ORDERED)
    def test_only_the_wanted_columns_are_read(self, stem: Mainstem) -> None:
        topic = stem.create_topic("wide", schema="a bigint, b string, c double")
        topic.append([{"a": 1, "b": "x", "c": 0.5}])
        assert plain(topic.batches(columns=["c", "a"])) == [{"a": 1, "c": 0.5}]
        assert topic.to_arrow(columns=[]).schema.names == ["record"]
        assert topic.to_arrow(columns=["b", "record"]).schema.names == ["b", "record"]
        for read in (topic.to_arrow, topic.batches, topic.follow):
            with pytest.raises(Invalid, match='has no column "bb"') as refused:
                read(columns=["bb"])
            assert "a, b, c" in refused.value.detail

    # Where to start and to stop

    @promise(Promise.ORDERED)
    def test_start_and_stop_by_word(self, single: Topic) -> None:
        fill(single, 1, 2, 3)
        assert numbers(single.batches(start="earliest", stop="latest")) == [1, 2, 3]
        assert numbers(single.batches(start="latest", stop="latest")) == []
        assert numbers(single.batches(start="earliest", stop="earliest")) == []

    @promise(Promise.ORDERED)
    def test_start_and_stop_by_offset(self, spread: Topic) -> None:
        for partition, number in itertools.product(range(4), range(5)):
            spread.append([{"k": "a", "n": partition * 10 + number}], partition=partition)
        assert numbers(spread.batches(start={0: 3, 1: 5, 2: 4, 3: 5})) == [3, 4, 24]
        # Partitions that are not named: read whole from the start, left out of the end.
        assert numbers(spread.batches(start={0: 4, 2: 4, 3: 4})) == [4, 10, 11, 12, 13, 14, 24, 34]
        assert numbers(spread.batches(stop={0: 2, 1: 99})) == [0, 1, 10, 11, 12, 13, 14]
        assert numbers(spread.batches(start={0: 1}, stop={0: 3})) == [1, 2]
        assert numbers(spread.batches(start={0: 3}, stop={0: 1})) == []

    @promise(Promise.ORDERED)
    def test_a_token_stands_for_everything_up_to_its_append(self, spread: Topic, other: Mainstem) -> None:
        for number in range(10):
            fill(spread, number, key=f"key-{number}")
        token = spread.append([{"k": "key-10", "n": 10}]).token
        assert isinstance(token, str)
        for number in range(11, 20):
            fill(spread, number, key=f"key-{number}")
        elsewhere = other.topic("spread")
        assert sorted(numbers(elsewhere.batches(stop=token))) == list(range(11))
        assert sorted(numbers(elsewhere.batches(start=token))) == list(range(11, 20))
        assert sorted(numbers(elsewhere.batches(start=token, stop=token))) == []
        last = spread.append([{"k": "key-20", "n": 20}]).token
        assert sorted(numbers(elsewhere.batches(start=token, stop=last))) == list(range(11, 21))

    @promise(Promise.ORDERED)
    def test_a_position_beyond_the_end_is_refused_by_every_reader(self, spread: Topic) -> None:
        token = spread.append([{"k": f"key-{number}", "n": number} for number in range(40)]).token
        end = spread.backend.end(0)
        beyond = token.replace(f"@0:{end}", f"@0:{end + 1}")
        with spread.join_group("billing") as member:
            for position in ({0: end + 1}, beyond):
                for read in (
                    lambda position=position: spread.to_arrow(start=position),
                    lambda position=position: spread.batches(start=position),
                    lambda position=position: spread.follow(start=position),
                    lambda position=position: spread.join_group("late", start=position),
                    lambda position=position: spread.queue("late", start=position),
                    lambda position=position: spread.queue("emails").rewind(position),
                    lambda position=position: member.seek(position),
                ):
                    with pytest.raises(
                        BeyondEnd, match=f"cannot continue from offset {end + 1} of .* partition 0"
                    ) as refused:
                        read()
                    assert (refused.value.position, refused.value.end) == (end + 1, end)
                    assert "restored from an older copy" in refused.value.hint
        with pytest.raises(BeyondEnd):
            spread.to_arrow(stop=beyond)
        with pytest.raises(BeyondEnd, match="it has no partition 9"):
            spread.to_arrow(start=f"{token},9:1")
        assert (spread.groups(), spread.queues()) == (["billing"], ["emails"])

    @promise(Promise.ORDERED)
    def test_exactly_the_end_is_a_position(self, single: Topic) -> None:
        fill(single, 1)
        end = {0: single.backend.end(0)}
        follower = single.follow(start=end)
        queue = single.queue("emails", start=end)
        with single.join_group("billing", start=end) as member:
            member.seek(end)
            fill(single, 2)
            assert numbers(single.batches(start=end)) == [2]
            assert [row["n"] for row in taken(follower, 1)] == [2]
            assert numbers(member.poll(wait="30 seconds")) == [2]
            assert [message.row["n"] for message in queue.take(wait="30 seconds")] == [2]

    @promise(Promise.ATOMIC)
    def test_a_position_behind_an_open_transaction_is_not_beyond_the_end(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1)
        transaction = stem.transaction()
        transaction.append(single, [{"k": "a", "n": 2}])
        end = {0: single.backend.end(0)}
        assert end[0] > single.backend.latest(0)
        with single.join_group("billing", start=end) as member:
            assert numbers(single.batches(start=end)) == []
            assert member.poll() is None
            transaction.commit()
            fill(single, 3)
            assert numbers(member.poll(wait="30 seconds")) == [3]

    @promise(Promise.SEEK_BY_TIME)
    def test_start_and_stop_by_append_time(self, single: Topic, clock: Any) -> None:
        times = []
        for number in range(5):
            fill(single, number)
            times.append(dicts(single.to_arrow())[-1]["record"]["appended_at"])
            clock.advance("1 hour")
        assert numbers(single.batches(start=times[2])) == [2, 3, 4]
        assert numbers(single.batches(start=times[2] + MICROSECOND)) == [3, 4]
        assert numbers(single.batches(stop=times[2])) == [0, 1]
        assert numbers(single.batches(start=times[1] - timedelta(minutes=30), stop=times[3])) == [1, 2]
        assert numbers(single.batches(start=datetime(1970, 1, 1, tzinfo=UTC))) == [0, 1, 2, 3, 4]
        assert numbers(single.batches(start=as_datetime(clock.now()))) == []
        assert numbers(single.batches(stop=datetime(2100, 1, 1, tzinfo=UTC))) == [0, 1, 2, 3, 4]

    @promise(Promise.SEEK_BY_TIME)
    def test_a_time_means_the_same_in_every_partition_and_zone(self, spread: Topic, clock: Any) -> None:
        from zoneinfo import ZoneInfo

        spread.append([{"k": f"key-{number}", "n": number} for number in range(20)])
        clock.advance("1 hour")
        between = as_datetime(clock.now()) - timedelta(minutes=30)
        spread.append([{"k": f"key-{number}", "n": number} for number in range(20, 40)])
        for moment in (between, between.astimezone(ZoneInfo("Asia/Kathmandu"))):
            assert sorted(numbers(spread.batches(start=moment))) == list(range(20, 40))
            assert sorted(numbers(spread.batches(stop=moment))) == list(range(20))

    @promise(Promise.ORDERED)
    @pytest.mark.parametrize(
        "position",
        [
            datetime(2026, 1, 1),  # noqa: DTZ001 - refused for that
            "ealiest",
            "",
            {7: 0},
            {0: -1},
            17,
            None,
        ],
    )
    def test_a_position_that_is_none_is_refused_before_anything_is_read(self, single: Topic, position: Any) -> None:
        fill(single, 1)
        for read in (
            lambda: single.batches(start=position),
            lambda: single.batches(stop=position),
            lambda: single.to_arrow(start=position),
            lambda: single.follow(start=position),
        ):
            with pytest.raises(Invalid) as refused:
                read()
            assert refused.value.detail
            assert refused.value.hint

    @promise(Promise.ORDERED)
    def test_a_token_of_another_topic_is_refused(self, stem: Mainstem, single: Topic) -> None:
        token = stem.create_topic("else", schema="n bigint").append([{"n": 1}]).token
        with pytest.raises(Invalid, match='not for topic "single"'):
            single.batches(start=token)

    @promise(Promise.ORDERED)
    def test_a_bounded_read_ends_although_more_is_appended_meanwhile(self, single: Topic) -> None:
        fill(single, *range(10))
        seen = []
        for batch in single.batches():
            fill(single, 99)
            seen += numbers(batch)
        assert seen == list(range(10))

    # Following

    @promise(Promise.WAKING)
    def test_a_follower_gets_what_is_there_and_what_comes(self, single: Topic, other: Mainstem) -> None:
        fill(single, 1, 2)
        follower = other.topic("single").follow(start="earliest")
        assert numbers_of(taken(follower, 2)) == [1, 2]
        fill(single, 3)
        assert numbers_of(taken(follower, 1)) == [3]
        follower.close()

    @promise(Promise.WAKING)
    def test_a_follower_starts_anywhere(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        token = single.append([{"k": "a", "n": 2}]).token
        clock.advance("1 hour")
        now = as_datetime(clock.now())
        fill(single, 3)
        latest = single.follow()
        fill(single, 4)
        for follower, expected in (
            (latest, [4]),
            (single.follow(start=token), [3, 4]),
            (single.follow(start=now - timedelta(minutes=30)), [3, 4]),
            (single.follow(start={0: 3}), [4]),
            (single.follow(start="earliest", columns=["n"]), [1, 2, 3, 4]),
        ):
            assert numbers_of(taken(follower, len(expected))) == expected
            follower.close()

    @promise(Promise.WAKING)
    def test_a_follower_that_nothing_comes_for_ends_after_its_wait(self, single: Topic) -> None:
        fill(single, 1)
        assert numbers(single.follow(start="earliest", wait="50 milliseconds")) == [1]
        assert list(single.follow(wait="1 millisecond")) == []

    @promise(Promise.WAKING)
    def test_an_append_of_another_process_wakes_a_follower(
        self, elsewhere: Callable[..., OtherProcess], single: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _only_waking(monkeypatch)
        writer = elsewhere(_append_when_told)
        writer.hear()
        follower = single.follow()
        for number in range(20):
            writer.say(number)
            assert numbers_of(taken(follower, 1)) == [number]
        writer.say(None)
        follower.close()

    @promise(Promise.WAKING)
    def test_a_follower_in_another_process_is_woken(
        self, elsewhere: Callable[..., OtherProcess], spread: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _only_waking(monkeypatch)
        followers = [elsewhere(_follow) for _ in range(2)]
        for follower in followers:
            assert follower.hear() == "ready"
        sent = []
        for number in range(10):
            fill(spread, number, key=f"key-{number}")
            sent.append(number)
            for follower in followers:
                assert follower.hear() == [number]

    @promise(Promise.WAKING, Promise.GROUPS)
    def test_a_member_that_waits_is_woken_by_another_process(
        self, elsewhere: Callable[..., OtherProcess], single: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _only_waking(monkeypatch)
        writer = elsewhere(_append_when_told)
        writer.hear()
        with single.join_group("billing", session="1 hour") as member:
            for number in range(5):
                writer.say(number)
                batch = member.poll(wait="1 minute")
                assert batch is not None
                assert numbers(batch) == [number]
        writer.say(None)

    @promise(Promise.ORDERED)
    def test_followers_see_each_record_once_and_in_the_order_of_its_partition(
        self, elsewhere: Callable[..., OtherProcess], spread: Topic, other: Mainstem
    ) -> None:
        writers = [elsewhere(_append_keys, name) for name in ("one", "two", "three")]
        follower = other.topic("spread").follow(start="earliest", rows_max=7)
        seen = taken(follower, 300)
        follower.close()
        for writer in writers:
            writer.end()
        assert len(set(places_of(seen))) == 300
        expected = dicts(spread.to_arrow())
        for partition in range(4):
            assert [row for row in seen if row["record"]["partition"] == partition] == [
                row for row in expected if row["record"]["partition"] == partition
            ]

    @promise(Promise.EVOLVES)
    def test_a_follower_goes_on_through_a_change_of_schema_and_of_partitions(
        self, stem: Mainstem, other: Mainstem
    ) -> None:
        topic = stem.create_topic("growing", schema="n int")
        follower = other.topic("growing").follow(start="earliest")
        topic.append([{"n": 1}])
        assert numbers_of(taken(follower, 1)) == [1]
        topic.alter(schema="n bigint, store string", partitions=3)
        for partition in range(3):
            topic.append([{"n": 2**40, "store": "Berlin"}], partition=partition)
        seen = taken(follower, 3)
        assert sorted(places_of(seen)) == [(0, 1), (1, 0), (2, 0)]
        assert {row["store"] for row in seen} == {"Berlin"}
        follower.close()


def numbers_of(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["n"] for row in rows]


def places_of(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["record"]["partition"], row["record"]["offset"]) for row in rows]


def _only_waking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits looks again only when it is woken, so a test that ends has shown the waking."""
    monkeypatch.setattr(topic_module, "SETTLE_SECONDS", 3600.0)
    monkeypatch.setattr(topic_waiter, "WAIT_SECONDS_MAX", 3600.0)


def _append_when_told(stem: Mainstem, line: Line) -> None:
    topic = stem.topic("single")
    line.say("ready")
    while (number := line.hear()) is not None:
        fill(topic, number)


def _follow(stem: Mainstem, line: Line) -> None:
    follower = stem.topic("spread").follow(start="latest")
    line.say("ready")
    for batch in follower:
        line.say(numbers(batch))


def _append_keys(stem: Mainstem, line: Line, name: str) -> None:
    topic = stem.topic("spread")
    for number in range(100):
        fill(topic, number, key=f"{name}-{number % 10}")
