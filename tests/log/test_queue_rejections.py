"""Messages that come back to a queue, and those that leave it with a reason."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainstem.clock import as_datetime
from mainstem.log.backoff import Backoff
from tests.log.memory_ledger import (
    Killed,
)
from tests.log.queue_office import Office, numbers, one


@pytest.mark.parametrize(("deliveries", "seconds"), [(1, 1), (2, 2), (3, 3), (4, 4), (30, 30), (31, 30)])
def test_a_released_message_waits_as_the_formula_says(office: Office, deliveries: int, seconds: int) -> None:
    office.fill(1)
    queue = office.queue(retry=Backoff("1 second", max="30 seconds"))
    for _ in range(deliveries - 1):
        one(queue).release(delay="0 seconds")
    one(queue).release()
    office.clock.advance(timedelta(seconds=seconds, microseconds=-1))
    assert queue.take() == []
    office.clock.advance("1 microsecond")
    assert one(queue).deliveries == deliveries + 1


def test_a_delay_given_beats_the_retry(office: Office) -> None:
    office.fill(1, 2)
    queue = office.queue(retry=Backoff("1 hour"))
    one(queue).release(delay="5 seconds", error=ValueError("no"))
    assert numbers(queue.take(5)) == [2]
    office.clock.advance("5 seconds")
    assert numbers(queue.take(5)) == [1]


def test_released_too_often(office: Office) -> None:
    office.fill(7)
    queue = office.queue(deliveries_max=2)
    one(queue).release(error=ValueError("first"))
    one(queue).release(error="second")

    assert queue.take() == []
    assert office.rejections.rows == [
        {
            "n": 7,
            "kind": None,
            "rejection": {
                "cause": "deliveries",
                "reason": "given out 2 times without being acknowledged",
                "deliveries": 2,
                "first_error": "ValueError: first",
                "last_error": "second",
                "topic": "orders",
                "queue": "emails",
                "partition": 0,
                "offset": 0,
                "rejected_at": as_datetime(office.clock.now()),
            },
        }
    ]
    assert office.ledger.current().rejecting == {}


def test_a_message_that_kills_its_worker_too_often(office: Office) -> None:
    office.fill(7)
    queue = office.queue(deliveries_max=2)
    for pid in (2, 3):
        office.processes.pid = pid
        one(queue)
        office.processes.gone.add(pid)
    assert queue.take() == []
    assert [(row["n"], row["rejection"]["cause"]) for row in office.rejections.rows] == [(7, "deliveries")]


def test_rejected_with_a_reason(office: Office) -> None:
    office.fill(7)
    queue = office.queue()
    one(queue).reject("no such address")
    [row] = office.rejections.rows
    assert (row["rejection"]["cause"], row["rejection"]["reason"]) == ("rejected", "no such address")
    assert row["rejection"]["deliveries"] == 1
    assert office.rejections.tables[0].schema.field("n").nullable


def test_expired_messages_are_rejected_in_their_order(office: Office) -> None:
    queue = office.queue(expires="1 minute", lease="1 hour")
    office.fill(1, 2)
    held, back = queue.take(2)
    back.release(delay="1 hour")
    office.fill(3)
    office.clock.advance("30 seconds")
    office.fill(4)
    office.clock.advance("30 seconds")

    assert numbers(queue.take(10)) == [4]
    rejected = [(row["n"], row["rejection"]["cause"], row["rejection"]["deliveries"]) for row in office.rejections.rows]
    assert rejected == [(2, "expired", 1), (3, "expired", 0)]
    held.release()
    assert queue.take() == []
    assert office.rejections.rows[-1]["rejection"]["reason"] == "waited for 1 minute"


def test_the_oldest_are_dropped_over_the_length(office: Office) -> None:
    queue = office.queue(length_max=3, where="n < 100")
    office.fill(1, 2, 3)
    held, back = queue.take(2)
    back.release(delay="1 hour")
    office.fill(4, 500, 5)

    assert numbers(queue.take()) == [3]
    assert [(row["n"], row["rejection"]["cause"]) for row in office.rejections.rows] == [(2, "length")]
    held.acknowledge()


def test_a_long_backlog_over_the_length_is_rejected_in_pieces(office: Office) -> None:
    office.fill(*range(2_310))
    queue = office.queue(length_max=10)
    assert numbers(queue.take(20)) == list(range(2_300, 2_310))
    assert [row["n"] for row in office.rejections.rows] == list(range(2_300))
    assert len(office.rejections.tables) == 5


@pytest.mark.parametrize("kill", ["before append", "after append"])
def test_a_worker_that_dies_while_rejecting_rejects_once(office: Office, kill: str) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()
    first, second, third = queue.take(3)
    office.rejections.kill = kill
    for message in (first, second):
        with pytest.raises(Killed):
            message.reject("bad")
    assert queue.describe().rejecting == 2
    office.rejections.kill = ""
    other = office.worker()
    other.reject(third.receipt, "bad too")
    queue.take()
    assert [row["n"] for row in office.rejections.rows] == [1, 2, 3]
    assert other.describe().rejecting == 0


def test_a_record_dropped_while_it_waited_is_told(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue(start={0: 0})
    for message in queue.take(2):
        message.release(delay="1 minute", error="down")
    office.topic.drop(0, 1)
    office.topic.compact(0, 1)
    office.clock.advance("1 minute")
    # Another process: this one still has them in memory.
    assert numbers(office.worker().take(10)) == [3]
    told = [(row["n"], row["rejection"]["cause"], row["rejection"]["offset"]) for row in office.rejections.rows]
    assert told == [(None, "fell_off", 0), (None, "fell_off", 1)]
    assert office.rejections.rows[0]["rejection"]["last_error"] == "down"


def test_an_error_is_kept_with_its_stack_and_cut(office: Office) -> None:
    office.fill(1)
    queue = office.queue(deliveries_max=1)
    try:
        raise ValueError("x" * 1_990)
    except ValueError as error:
        one(queue).release(error=error)
    [row] = office.rejections.rows
    assert len(row["rejection"]["last_error"]) <= 2_000
    assert row["rejection"]["last_error"].startswith("ValueError: xxx")
