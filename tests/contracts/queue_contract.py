"""What every log promises of queues: each message is held by one worker at a time, until it is acknowledged."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Conflict, Fenced, Invalid, InvalidName, QueueNotFound
from mainstem.log.backoff import Backoff
from mainstem.log.queues.message import Message
from mainstem.log.queues.queue import Queue
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import dicts, fill, numbers


class QueueContract:
    """Messages come oldest first, to one worker each; what is not acknowledged comes again, what can never be is kept."""

    @promise(Promise.QUEUES)
    def test_a_message_is_a_row_under_a_receipt(self, single: Topic, clock: Any) -> None:
        single.append(
            [{"k": "a", "n": 1, "record": {"change": "update", "headers": [{"key": "trace", "value": b"7"}]}}]
        )
        [message] = single.queue("emails").take(10)
        assert message.row == {"k": "a", "n": 1}
        assert (message.key, message.change, message.headers) == ("a", "update", (("trace", b"7"),))
        assert (message.partition, message.offset, message.deliveries, message.redelivered) == (0, 0, 1, False)
        assert isinstance(message.receipt, str)
        assert timedelta(0) < message.held_until - as_datetime(clock.now()) <= timedelta(seconds=30)
        assert message.appended_at == dicts(single.to_arrow())[0]["record"]["appended_at"]

    @promise(Promise.QUEUES)
    def test_each_message_goes_to_one_worker(self, single: Topic, other: Mainstem) -> None:
        fill(single, *range(10))
        one, two = single.queue("emails"), other.topic("single").queue("emails")
        first, second = one.take(4), two.take(4)
        assert (_numbers(first), _numbers(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
        assert _numbers(one.take(10)) == [8, 9]
        assert one.take(10) == two.take(10) == []

    @promise(Promise.QUEUES)
    def test_what_is_acknowledged_never_comes_again(
        self, single: Topic, opener: Callable[[], Mainstem], clock: Any
    ) -> None:
        fill(single, *range(6))
        queue = single.queue("emails", lease="1 hour")
        taken = queue.take(6)
        for message in (taken[1], taken[3], taken[4]):
            message.acknowledge()
        queue.acknowledge([taken[0].receipt])
        clock.advance("2 hours")
        with opener() as again:
            queue = again.topic("single").queue("emails")
            assert _numbers(queue.take(10)) == [2, 5]
            fill(single, 6)
            assert _numbers(queue.take(10)) == [6]

    @promise(Promise.QUEUES)
    def test_acknowledging_twice_is_harmless_or_refused_and_counts_once(self, single: Topic) -> None:
        fill(single, 1)
        queue = single.queue("emails")
        [message] = queue.take()
        message.acknowledge()
        with pytest.raises(Fenced):
            message.acknowledge()
        assert queue.describe().counts["acknowledged"] == 1

    @promise(Promise.QUEUES)
    def test_queues_and_groups_do_not_know_of_each_other(self, single: Topic) -> None:
        fill(single, 1, 2)
        assert _numbers(single.queue("emails").take(10)) == _numbers(single.queue("letters").take(10)) == [1, 2]
        with single.join_group("billing") as member:
            assert numbers(member.poll()) == [1, 2]
        assert numbers(single.to_arrow()) == [1, 2]
        assert single.queues() == ["emails", "letters"]

    @promise(Promise.QUEUES)
    def test_a_new_queue_starts_at_the_earliest_message_or_where_it_is_told(self, single: Topic) -> None:
        fill(single, 1)
        token = single.append([{"k": "a", "n": 2}]).token
        fill(single, 3)
        assert _numbers(single.queue("default").take(10)) == [1, 2, 3]
        assert _numbers(single.queue("latest", start="latest").take(10)) == []
        assert _numbers(single.queue("token", start=token).take(10)) == [3]
        assert _numbers(single.queue("offsets", start={0: 1}).take(10)) == [2, 3]
        assert _numbers(single.queue("latest", start="earliest").take(10)) == []

    @promise(Promise.QUEUES)
    def test_messages_of_all_partitions_come(self, spread: Topic) -> None:
        spread.append([{"k": f"key-{number}", "n": number} for number in range(40)])
        queue = spread.queue("emails")
        seen: list[int] = []
        while taken := queue.take(7):
            seen += _numbers(taken)
            queue.acknowledge([message.receipt for message in taken])
        assert sorted(seen) == list(range(40))
        assert queue.lag().records == 0

    # Messages that come back

    @promise(Promise.QUEUES)
    def test_a_lease_that_ends_gives_the_message_to_another(self, single: Topic, other: Mainstem, clock: Any) -> None:
        fill(single, 1, 2)
        slow, quick = single.queue("emails", lease="1 hour"), other.topic("single").queue("emails")
        [late] = slow.take()
        clock.advance("59 minutes")
        assert _numbers(quick.take(10)) == [2]
        clock.advance("2 minutes")
        again = quick.take()
        assert [(message.row["n"], message.deliveries, message.redelivered) for message in again] == [(1, 2, True)]
        for settle in (
            late.acknowledge,
            lambda: late.extend("1 hour"),
            late.release,
            lambda: late.reject("too late"),
        ):
            with pytest.raises(Fenced):
                settle()
        again[0].acknowledge()

    @promise(Promise.QUEUES)
    def test_a_lease_can_be_extended(self, single: Topic, other: Mainstem, clock: Any) -> None:
        fill(single, 1)
        queue = single.queue("emails", lease="1 hour")
        [message] = queue.take()
        for _ in range(3):
            clock.advance("50 minutes")
            message.extend("1 hour")
            assert other.topic("single").queue("emails").take(10) == []
        message.acknowledge()

    @promise(Promise.QUEUES)
    def test_a_released_message_waits_for_its_delay_and_is_counted(self, single: Topic, clock: Any) -> None:
        fill(single, 1, 2)
        queue = single.queue("emails")
        [message] = queue.take()
        message.release(delay="10 minutes", error=ValueError("no such address"))
        assert _numbers(queue.take(10)) == [2]
        clock.advance("9 minutes")
        assert _numbers(queue.take(10)) == [2]
        clock.advance("2 minutes")
        again = next(message for message in queue.take(10) if message.row["n"] == 1)
        assert (again.deliveries, again.redelivered) == (2, True)
        again.release()
        assert 1 in _numbers(queue.take(10))

    @promise(Promise.QUEUES)
    def test_a_released_message_waits_longer_each_time(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        queue = single.queue("emails", lease="10 days", retry=Backoff("1 hour", max="2 hours"))
        for minutes in (60, 120, 120):
            [message] = queue.take()
            message.release()
            clock.advance(timedelta(minutes=minutes - 5))
            assert queue.take() == []
            clock.advance("6 minutes")
        assert _numbers(queue.take()) == [1]

    @promise(Promise.QUEUES)
    def test_what_came_back_comes_before_what_was_never_given_out(self, single: Topic) -> None:
        fill(single, 3, 4, 5)
        queue = single.queue("emails")
        [message] = queue.take()
        assert _numbers(queue.take()) == [4]
        message.release()
        assert _numbers(queue.take(2)) == [3, 5]

    @promise(Promise.QUEUES)
    def test_a_worker_whose_process_dies_gives_its_messages_back_at_once(
        self, elsewhere: Callable[..., OtherProcess], single: Topic
    ) -> None:
        fill(single, 1, 2, 3)
        worker = elsewhere(_take_two)
        assert worker.hear() == [1, 2]
        queue = single.queue("emails")
        assert _numbers(queue.take(10)) == [3]
        worker.kill()
        # Its lease is an hour: only its death can be what gives them back, and it wakes who waits.
        again = queue.take(10, wait="1 minute")
        assert [(message.row["n"], message.deliveries, message.redelivered) for message in again] == [
            (1, 2, True),
            (2, 2, True),
        ]

    @promise(Promise.QUEUES, Promise.WAKING)
    def test_who_waits_is_woken_by_an_append_of_another_process(
        self, elsewhere: Callable[..., OtherProcess], single: Topic
    ) -> None:
        queue = single.queue("emails")
        writer = elsewhere(_append_numbers)
        for number in range(5):
            writer.say(number)
            [message] = queue.take(10, wait="1 minute")
            assert message.row["n"] == number
            message.acknowledge()
        assert queue.take(wait="1 millisecond") == []

    @promise(Promise.QUEUES)
    def test_workers_in_several_processes_do_everything_once(
        self, elsewhere: Callable[..., OtherProcess], spread: Topic
    ) -> None:
        spread.append([{"k": f"key-{number}", "n": number} for number in range(60)])
        spread.queue("emails", lease="1 hour")
        workers = [elsewhere(_work) for _ in range(3)]
        done = [worker.hear() for worker in workers]
        assert sorted(done[0] + done[1] + done[2]) == list(range(60))
        assert spread.queue("emails").describe().counts == {"delivered": 60, "acknowledged": 60}

    # Messages that can never be done

    @promise(Promise.QUEUES)
    def test_a_rejected_message_goes_to_a_topic_of_its_own_with_its_reason(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1, 2)
        queue = single.queue("emails")
        bad, good = queue.take(2)
        bad.reject("no such address")
        good.acknowledge()
        assert queue.take(10) == []
        [row] = dicts(stem.topic("single.emails.rejected").to_arrow())
        why = row["rejection"]
        assert (row["k"], row["n"]) == ("a", 1)
        assert (why["cause"], why["reason"], why["deliveries"]) == ("rejected", "no such address", 1)
        assert (why["topic"], why["queue"], why["partition"], why["offset"]) == ("single", "emails", 0, 0)
        assert why["rejected_at"] is not None
        assert (why["first_error"], why["last_error"]) == (None, None)

    @promise(Promise.QUEUES)
    def test_a_message_that_fails_too_often_is_rejected_with_its_errors(self, stem: Mainstem, single: Topic) -> None:
        fill(single, 1)
        queue = single.queue("emails", deliveries_max=3)
        for attempt in range(3):
            [message] = queue.take()
            assert message.deliveries == attempt + 1
            message.release(error=ValueError(f"attempt {attempt + 1}"))
        assert queue.take() == []
        [row] = dicts(stem.topic("single.emails.rejected").to_arrow())
        assert (row["n"], row["rejection"]["cause"], row["rejection"]["deliveries"]) == (1, "deliveries", 3)
        assert "attempt 1" in row["rejection"]["first_error"]
        assert "attempt 3" in row["rejection"]["last_error"]

    @promise(Promise.QUEUES)
    def test_a_message_that_is_never_settled_is_rejected_too(self, stem: Mainstem, single: Topic, clock: Any) -> None:
        fill(single, 1)
        queue = single.queue("emails", lease="1 hour", deliveries_max=2)
        for _ in range(2):
            assert _numbers(queue.take()) == [1]
            clock.advance("2 hours")
        assert queue.take() == []
        [row] = dicts(stem.topic("single.emails.rejected").to_arrow())
        assert row["rejection"]["cause"] == "deliveries"

    @promise(Promise.QUEUES)
    def test_a_message_nobody_took_in_time_expires(self, stem: Mainstem, single: Topic, clock: Any) -> None:
        queue = single.queue("emails", expires="1 hour")
        fill(single, 1)
        clock.advance("50 minutes")
        fill(single, 2)
        clock.advance("20 minutes")
        assert _numbers(queue.take(10)) == [2]
        [row] = dicts(stem.topic("single.emails.rejected").to_arrow())
        assert (row["n"], row["rejection"]["cause"], row["rejection"]["deliveries"]) == (1, "expired", 0)

    @promise(Promise.QUEUES)
    def test_of_too_many_messages_the_oldest_are_dropped(self, stem: Mainstem, single: Topic) -> None:
        queue = single.queue("emails", length_max=3)
        fill(single, *range(8))
        assert _numbers(queue.take(10)) == [5, 6, 7]
        rows = dicts(stem.topic("single.emails.rejected").to_arrow())
        assert [(row["n"], row["rejection"]["cause"]) for row in rows] == [(n, "length") for n in range(5)]

    @promise(Promise.QUEUES)
    def test_the_rejected_are_there_once_although_their_process_dies(
        self, elsewhere: Callable[..., OtherProcess], stem: Mainstem, single: Topic
    ) -> None:
        fill(single, *range(40))
        single.queue("emails", lease="1 hour")
        for steps in (2, 5, 3):
            worker = elsewhere(_reject_all)
            for _ in range(steps):
                worker.hear()
            worker.kill()
        queue = single.queue("emails")
        for message in queue.take(100):
            message.reject("at last")
        assert queue.take(10) == []
        assert sorted(numbers(stem.topic("single.emails.rejected").to_arrow())) == list(range(40))

    # Which messages, and in which order

    @promise(Promise.QUEUES)
    def test_ordered_by_key_one_message_of_a_key_is_under_way(self, single: Topic, clock: Any) -> None:
        for number, key in enumerate("aabbca"):
            fill(single, number, key=key)
        queue = single.queue("emails", ordered="by key", lease="10 days")
        first = {message.row["n"]: message for message in queue.take(10)}
        assert sorted(first) == [0, 2, 4]
        assert queue.take(10) == []
        first[0].release(delay="1 hour")
        first[2].acknowledge()
        # A message that failed parks its key and no other.
        assert _numbers(queue.take(10)) == [3]
        clock.advance("2 hours")
        [again] = queue.take(10)
        assert (again.row["n"], again.redelivered) == (0, True)
        again.acknowledge()
        [message] = queue.take(10)
        assert message.row["n"] == 1
        message.reject("a key goes on behind a rejected message")
        assert _numbers(queue.take(10)) == [5]

    @promise(Promise.QUEUES)
    def test_ordered_by_key_needs_a_key(self, stem: Mainstem) -> None:
        topic = stem.create_topic("keyless", schema="n bigint")
        with pytest.raises(Invalid, match="ordered by key"):
            topic.queue("emails", ordered="by key")
        assert topic.queues() == []

    @promise(Promise.QUEUES)
    def test_a_queue_takes_only_what_its_condition_is_true_of(self, single: Topic) -> None:
        queue = single.queue("large", where="n > 2 AND k = 'a'")
        for number in range(6):
            fill(single, number, key="b" if number == 4 else "a")
        single.append([{"k": "a", "n": None}])
        taken = queue.take(10)
        assert _numbers(taken) == [3, 5]
        queue.acknowledge([message.receipt for message in taken])
        assert queue.take(10) == []

    @promise(Promise.QUEUES)
    def test_a_queue_may_be_bound_by_a_routing_pattern(self, single: Topic) -> None:
        for number, key in enumerate(["quick.orange.rabbit", "lazy", "lazy.pink.rabbit", "orange"]):
            fill(single, number, key=key)
        assert _numbers(single.queue("q1", where="routed(k, '*.orange.*')").take(10)) == [0]
        assert _numbers(single.queue("q2", where="routed(k, '*.*.rabbit') OR routed(k, 'lazy.#')").take(10)) == [
            0,
            1,
            2,
        ]

    @promise(Promise.QUEUES)
    @pytest.mark.parametrize("where", ["nonsense >", "m > 1", "n", "sum(n) > 1", "n > 1; DROP TABLE x"])
    def test_a_condition_that_is_none_is_refused_before_the_queue_is_made(self, single: Topic, where: str) -> None:
        with pytest.raises(Invalid) as refused:
            single.queue("emails", where=where)
        assert refused.value.hint
        assert single.queues() == []

    # The queue itself

    @promise(Promise.QUEUES)
    def test_opening_it_again_with_other_settings_is_a_conflict(self, single: Topic, other: Mainstem) -> None:
        single.queue("emails", lease="1 minute", deliveries_max=5)
        elsewhere = other.topic("single")
        elsewhere.queue("emails")
        elsewhere.queue("emails", lease="1 minute", deliveries_max=5)
        with pytest.raises(Conflict) as refused:
            elsewhere.queue("emails", lease="1 minute", deliveries_max=6)
        assert "deliveries_max is 5, asked for 6" in refused.value.detail.lower()
        assert "lease" not in refused.value.detail.lower()

    @promise(Promise.QUEUES)
    @pytest.mark.parametrize(
        "settings",
        [
            {"lease": "0 seconds"},
            {"deliveries_max": 0},
            {"retry": "1 second"},
            {"ordered": "by age"},
            {"length_max": -1},
        ],
    )
    def test_settings_that_cannot_be_are_refused(self, single: Topic, settings: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            single.queue("emails", **settings)
        assert single.queues() == []

    @promise(Promise.QUEUES)
    def test_a_name_that_could_be_a_trick_is_refused(self, single: Topic) -> None:
        for name in ("", "../emails", "a" * 300):
            with pytest.raises(InvalidName):
                single.queue(name)

    @promise(Promise.QUEUES)
    def test_a_queue_tells_how_it_stands(self, stem: Mainstem, clock: Any) -> None:
        topic = stem.create_topic("kept", schema="k string, n bigint", key="k", keep="7 days")
        queue = topic.queue("emails")
        fill(topic, *range(6))
        clock.advance("1 hour")
        held, released, done, rejected = queue.take(4)
        released.release(delay="1 hour")
        done.acknowledge()
        rejected.reject("no")
        described = queue.describe()
        assert (described.held, described.returned, described.due) == (1, 1, 0)
        assert (described.topic, described.name, described.rejected_topic) == ("kept", "emails", "kept.emails.rejected")
        assert described.counts["delivered"] == 4
        lag = queue.lag()
        assert lag.records == 4
        assert lag.bytes > 0
        assert 3600 <= lag.seconds < 4200
        assert lag.until_dropped is not None
        assert lag.until_dropped <= timedelta(days=7) - timedelta(hours=1)
        assert held.row["n"] == 0

    @promise(Promise.QUEUES)
    def test_a_deleted_queue_is_gone_and_can_be_made_anew(self, single: Topic, other: Mainstem) -> None:
        fill(single, 1, 2)
        queue = single.queue("emails", lease="1 hour")
        [message] = queue.take()
        queue.delete()
        with pytest.raises(QueueNotFound):
            queue.take()
        with pytest.raises((QueueNotFound, Fenced)):
            message.acknowledge()
        again = other.topic("single").queue("emails", lease="2 hours")
        assert _numbers(again.take(10)) == [1, 2]

    @promise(Promise.REWIND)
    def test_a_queue_is_set_back_to_how_it_was_at_a_time(self, single: Topic, clock: Any) -> None:
        fill(single, *range(6))
        queue = single.queue("emails", lease="10 days")
        done, held, failed = queue.take(3)
        done.acknowledge()
        failed.release(delay="1 minute", error="it rained")
        clock.advance("1 hour")
        then = as_datetime(clock.now())
        clock.advance("1 hour")
        queue.acknowledge([message.receipt for message in queue.take(10)])
        held.acknowledge()
        assert queue.take(10) == []

        queue.rewind(then)
        with pytest.raises(Fenced):
            held.acknowledge()
        taken = {message.row["n"]: message.deliveries for message in queue.take(10)}
        # What was acknowledged by then stays so; what was held or had failed comes again, with its count.
        assert taken == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1}

    @promise(Promise.REWIND)
    def test_a_queue_is_set_to_a_position(self, single: Topic) -> None:
        fill(single, 1)
        token = single.append([{"k": "a", "n": 2}]).token
        fill(single, 3)
        queue = single.queue("emails")
        for position, expected in (("earliest", [1, 2, 3]), (token, [3]), ({0: 1}, [2, 3]), ("latest", [])):
            queue.take(10)
            queue.rewind(position)
            assert _numbers(queue.take(10)) == expected

    @promise(Promise.QUEUES, Promise.ATOMIC)
    def test_a_queue_gives_out_what_is_committed_and_nothing_else(self, stem: Mainstem, single: Topic) -> None:
        queue = single.queue("emails")
        undone, kept = stem.transaction(), stem.transaction()
        undone.append(single, [{"k": "a", "n": 1}])
        kept.append(single, [{"k": "a", "n": 2}])
        assert queue.take(10) == []
        undone.abort()
        assert queue.take(10) == []
        kept.commit()
        assert _numbers(queue.take(10)) == [2]


def _numbers(messages: list[Message]) -> list[Any]:
    return [message.row["n"] for message in messages]


def _take_two(stem: Mainstem, line: Line) -> None:
    line.say(_numbers(stem.topic("single").queue("emails", lease="1 hour").take(2)))
    line.hear()


def _append_numbers(stem: Mainstem, line: Line) -> None:
    topic = stem.topic("single")
    while True:
        fill(topic, line.hear())


def _work(stem: Mainstem, line: Line) -> None:
    queue: Queue = stem.topic("spread").queue("emails")
    done = []
    while taken := queue.take(3):
        for message in taken:
            done.append(message.row["n"])
            message.acknowledge()
    line.say(done)


def _reject_all(stem: Mainstem, line: Line) -> None:
    queue = stem.topic("single").queue("emails")
    while taken := queue.take(1):
        taken[0].reject("cannot be done")
        line.say()
