"""What every log promises of rejected messages: each is restored or dropped once; and of held ones: who holds them."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Invalid, NotFound
from mainstem.log.queues.queue import Queue
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.other_process import Line, OtherProcess
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import fill


def _reject(queue: Queue, *reasons: str) -> None:
    for message, reason in zip(queue.take(len(reasons)), reasons, strict=True):
        message.reject(reason)


def _shown(queue: Queue) -> list[tuple[int, str]]:
    return [(row["n"], row["rejection"]["reason"]) for row in queue.rejected().to_pylist()]


class QueueRejectedContract:
    """A rejected message is restored, and delivered as if for the first time, or dropped; a second attempt is refused."""

    @promise(Promise.QUEUES)
    def test_a_restored_message_is_delivered_as_if_for_the_first_time(self, single: Topic, other: Mainstem) -> None:
        fill(single, *range(4))
        queue = single.queue("emails", deliveries_max=2)
        for attempt in ("busy", "still busy"):
            queue.take()[0].release(error=attempt)
        _reject(queue, "no address")
        [row] = queue.rejected(limit=1).to_pylist()
        assert (row["k"], row["n"], row["rejection"]["offset"], row["rejection"]["cause"]) == ("a", 1, 1, "rejected")
        assert _shown(queue) == [(0, "given out 2 times without being acknowledged"), (1, "no address")]
        assert (queue.describe().waiting, queue.describe().rejected) == (2, 2)

        other.topic("single").open_queue("emails").restore((0, 0))
        assert (queue.describe().waiting, queue.describe().rejected, queue.lag().records) == (3, 1, 3)
        [again] = queue.take()
        assert (again.row["n"], again.deliveries, again.redelivered) == (0, 1, False)
        again.release(error="as before")
        assert [message.row["n"] for message in queue.take(10)] == [0, 2, 3]
        assert _shown(queue) == [(1, "no address")]
        assert queue.describe().counts["restored"] == 1

    @promise(Promise.QUEUES)
    def test_a_message_is_restored_or_dropped_once(self, single: Topic, other: Mainstem) -> None:
        fill(single, *range(5))
        queue, elsewhere = single.queue("emails"), other.topic("single").queue("emails")
        _reject(queue, *"abcd")
        queue.drop("0:0")
        queue.restore(["0:1", (0, 2)])
        for settle in (queue.restore, queue.drop, elsewhere.restore, elsewhere.drop):
            for position in ("0:0", "0:1", (0, 4), (7, 0)):
                with pytest.raises(NotFound, match='queue "emails" has no rejected message') as refused:
                    settle(position)
                assert refused.value.detail
                assert refused.value.hint
        # The valid ones are settled nevertheless.
        with pytest.raises(NotFound, match="message 0:0") as refused:
            elsewhere.drop([(0, 0), (0, 3)])
        assert "1 other was dropped" in refused.value.detail
        assert (_shown(queue), queue.rejected_positions()) == ([], [])
        assert [message.row["n"] for message in queue.take(10)] == [1, 2, 4]
        for nonsense in ("0-1", "one", 7, (0,), (0, -1), ("0", "1"), [(0, 1, 2)]):
            with pytest.raises(Invalid):
                queue.restore(nonsense)

    @promise(Promise.QUEUES)
    def test_what_is_rejected_again_can_be_restored_again(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        queue = single.queue("emails")
        for reason in ("first", "second", "third"):
            _reject(queue, reason)
            assert _shown(queue) == [(1, reason)]
            queue.restore("0:0")
            clock.advance("1 second")
        assert [message.deliveries for message in queue.take(10)] == [1]

    @promise(Promise.QUEUES)
    def test_processes_that_restore_the_same_messages_share_them(
        self, elsewhere: Callable[..., OtherProcess], single: Topic
    ) -> None:
        fill(single, *range(20))
        queue = single.queue("emails")
        _reject(queue, *["no"] * 20)
        workers = [elsewhere(_restore_each) for _ in range(2)]
        for worker in workers:
            worker.say()
        restored = [number for worker in workers for number in worker.hear()]
        assert sorted(restored) == list(range(20))
        assert sorted(message.row["n"] for message in queue.take(100)) == list(range(20))

    @promise(Promise.QUEUES)
    def test_what_was_restored_before_a_kill_is_restored_once(
        self, elsewhere: Callable[..., OtherProcess], single: Topic
    ) -> None:
        fill(single, *range(20))
        queue = single.queue("emails")
        _reject(queue, *["no"] * 20)
        for steps in (1, 4, 2):
            worker = elsewhere(_restore_and_say)
            for _ in range(steps):
                worker.hear()
            worker.kill()
        left = queue.rejected_positions()
        assert 0 < len(left) <= 13
        # What a killed process wrote and did not say may be found only now.
        with suppress(NotFound):
            queue.restore(left)
        assert sorted(message.row["n"] for message in queue.take(100)) == list(range(20))

    @promise(Promise.QUEUES)
    def test_a_restored_message_has_its_time_to_expire_from_then_on(self, single: Topic, clock: Any) -> None:
        queue = single.queue("emails", expires="1 hour")
        fill(single, 1, 2)
        clock.advance("2 hours")
        fill(single, 3)
        [fresh] = queue.take(10)
        assert fresh.row["n"] == 3
        fresh.acknowledge()
        queue.restore("0:0")
        clock.advance("59 minutes")
        assert [message.row["n"] for message in queue.take()] == [1]
        queue.restore("0:1")
        clock.advance("61 minutes")
        assert queue.take(10) == []
        assert [reason for n, reason in _shown(queue) if n == 2] == ["waited for 1 hour"]

    @promise(Promise.QUEUES)
    def test_of_a_key_one_message_is_under_way_also_after_a_restore(self, single: Topic) -> None:
        for number, key in enumerate("aab"):
            fill(single, number, key=key)
        queue = single.queue("emails", ordered="by key")
        _reject(queue, "no", "no")
        [held] = queue.take(10)
        assert held.row["n"] == 1
        queue.restore([(0, 0), (0, 2)])
        assert [message.row["n"] for message in queue.take(10)] == [2]
        held.acknowledge()
        assert [message.row["n"] for message in queue.take(10)] == [0]

    @promise(Promise.REWIND)
    def test_a_rewind_takes_the_rejections_back(self, single: Topic, clock: Any) -> None:
        fill(single, *range(4))
        queue = single.queue("emails")
        _reject(queue, "zero", "one")
        clock.advance("1 minute")
        then = as_datetime(clock.now())
        clock.advance("1 minute")
        queue.drop("0:0")
        _reject(queue, "two")
        clock.advance("1 minute")
        queue.rewind(then)
        assert _shown(queue) == [(0, "zero"), (1, "one")]
        assert [message.row["n"] for message in queue.take(10)] == [2, 3]
        queue.rewind({0: 1})
        assert queue.rejected_positions() == [(0, 0)]
        with pytest.raises(NotFound):
            queue.restore("0:1")

    @promise(Promise.QUEUES)
    def test_a_queue_made_anew_knows_nothing_of_earlier_rejections(self, single: Topic, clock: Any) -> None:
        fill(single, 1)
        queue = single.queue("emails")
        _reject(queue, "no")
        queue.delete()
        clock.advance("1 second")
        queue = single.queue("emails")
        assert (_shown(queue), queue.describe().rejected) == ([], 0)
        with pytest.raises(NotFound):
            queue.restore("0:0")

    # Held messages

    @promise(Promise.QUEUES)
    def test_held_messages_are_listed_with_their_holders(
        self, elsewhere: Callable[..., OtherProcess], single: Topic, opener: Callable[[], Mainstem], clock: Any
    ) -> None:
        fill(single, *range(3))
        queue = single.queue("emails", lease="1 hour")
        before = as_datetime(clock.now())
        [mine] = queue.take()
        mine.extend("2 hours")
        worker = elsewhere(_take_one)
        pid = worker.hear()
        [by_lease] = single.open_queue("emails", held_by="lease").take()
        with opener() as again:
            rows = again.topic("single").open_queue("emails").held().to_pylist()
        assert [(row["offset"], row["held_by"], row["pid"]) for row in rows] == [
            (0, "process", os.getpid()), (1, "process", pid), (2, "lease", None),
        ]  # fmt: skip
        assert [row["process"] is None for row in rows] == [False, False, True]
        assert [row["receipt"] for row in rows][::2] == [mine.receipt, by_lease.receipt]
        assert [row["deliveries"] for row in rows] == [1, 1, 1]
        for row, lease in zip(rows, (2, 1, 1), strict=True):
            assert before <= row["taken_at"] <= as_datetime(clock.now())
            assert abs(row["held_until"] - row["taken_at"] - timedelta(hours=lease)) < timedelta(minutes=30)
        worker.kill()
        mine.acknowledge()
        assert queue.held().column("offset").to_pylist() == [2]


def _restore_each(stem: Mainstem, line: Line) -> None:
    queue = stem.topic("single").queue("emails")
    line.hear()
    restored = []
    for number in range(20):
        try:
            queue.restore((0, number))
            restored.append(number)
        except NotFound:
            continue
    line.say(restored)


def _restore_and_say(stem: Mainstem, line: Line) -> None:
    queue = stem.topic("single").queue("emails")
    for position in queue.rejected_positions():
        with suppress(NotFound):
            queue.restore(position)
            line.say()


def _take_one(stem: Mainstem, line: Line) -> None:
    stem.topic("single").queue("emails").take()
    line.say(os.getpid())
    line.hear()
