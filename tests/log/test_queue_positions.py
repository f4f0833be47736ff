"""Where a queue begins, stands and is put back to; how it is opened, described and deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import BeyondEnd, Conflict, FellOff, Fenced, Invalid, InvalidName, QueueNotFound
from mainstem.log.backoff import Backoff
from mainstem.log.lag import Lag
from mainstem.log.queues.queue_state import QueueState
from tests.log.memory_ledger import (
    MemoryLedger,
)
from tests.log.queue_office import Office, numbers, one


def test_a_condition_is_checked_at_opening(office: Office) -> None:
    with pytest.raises(Invalid, match="cannot be used"):
        office.queue(where="amuont > 10")
    assert office.ledger.entries == []


def test_a_queue_opened_again(office: Office) -> None:
    office.queue(lease="10 seconds", deliveries_max=5, retry=Backoff("1 second", max="1 minute"))
    office.queue(lease="10 seconds", deliveries_max=5, retry=Backoff("1 second", max="1 minute"))
    office.queue()
    with pytest.raises(Conflict) as caught:
        office.queue(lease="10 seconds", length_max=3)
    assert caught.value.summary == 'queue "emails" exists with other settings'
    assert caught.value.detail == (
        'Deliveries_max is 5, asked for none; retry is "1 second to 1 minute, linear", asked for none; '
        "length_max is none, asked for 3."
    )


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", [1]), ("latest", []), ({0: 1}, [2]), ("token-0:1", [2]), ({1: 0}, [1])]
)
def test_where_a_queue_starts(start: Any, first: list[int]) -> None:
    office = Office(partitions=2)
    office.fill(1, 2)
    assert numbers(office.queue(start=start).take()) == first


def test_partitions_added_later_are_taken_from_their_beginning(office: Office) -> None:
    office.fill(1)
    queue = office.queue(start="latest")
    office.topic.add_partition()
    office.fill(2, partition=1)
    assert numbers(queue.take(5)) == [2]


def test_rewound_to_a_time_counts_and_all(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()
    first, second = queue.take(2)
    first.release(delay="1 minute", error="down")
    then = as_datetime(office.clock.now())
    office.clock.advance("10 seconds")
    second.acknowledge()
    one(queue).acknowledge()
    office.fill(4)
    one(queue).reject("never")

    queue.rewind(then)

    with pytest.raises(Fenced):
        second.acknowledge()
    assert [(m.row["n"], m.deliveries) for m in queue.take(10)] == [(2, 2), (3, 1), (4, 1)]
    office.clock.advance("50 seconds")
    again = one(queue)
    assert (again.row["n"], again.deliveries) == (1, 2)
    again.release(error="still down")
    assert office.ledger.current().open[0, 0].first_error == "down"
    assert [row["n"] for row in office.rejections.rows] == [4]


@pytest.mark.parametrize("to", ["earliest", {0: 0}, datetime(2025, 1, 1, tzinfo=UTC)])
def test_rewound_to_the_beginning(office: Office, to: Any) -> None:
    office.fill(1, 2)
    queue = office.queue()
    first, second = queue.take(2)
    first.acknowledge()
    queue.rewind(to)
    assert [(m.row["n"], m.deliveries) for m in queue.take(10)] == [(1, 1), (2, 1)]
    with pytest.raises(Fenced):
        second.acknowledge()


def test_rewound_one_partition_of_two() -> None:
    office = Office(partitions=2)
    office.fill(1, 2)
    office.fill(3, 4, partition=1)
    queue = office.queue()
    queue.take(4)
    queue.rewind({1: 1})
    assert numbers(queue.take(10)) == [4]
    queue.rewind("latest")
    assert office.ledger.current().open == {}


def test_a_deleted_queue(office: Office) -> None:
    office.fill(1)
    queue = office.queue(deliveries_max=1)
    one(queue).release()
    queue.delete()
    for use in (queue.take, queue.describe, queue.delete, queue.lag, queue.parked, queue.require):
        with pytest.raises(QueueNotFound, match='topic "orders" has no queue "emails"'):
            use()
    office.fill(2)
    anew = office.queue(where="n = 2", deliveries_max=1)
    for worker in (queue, anew):
        one(worker).release()
        office.fill(2)
    assert [row["n"] for row in office.rejections.rows] == [1, 2, 2]
    assert anew.describe().counts == {"delivered": 2, "released": 2, "deliveries": 2}


def test_a_queue_that_fell_off_is_told_how_to_go_on(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()
    office.topic.drop(0, 2)
    with pytest.raises(FellOff) as caught:
        queue.take()
    assert (caught.value.first_lost, caught.value.last_lost) == (0, 1)
    assert "queue.rewind({0: 2})" in caught.value.hint
    queue.rewind({0: 2})
    assert numbers(queue.take()) == [3]


def test_a_queue_whose_topic_was_set_back_is_told_how_to_go_on(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()
    queue.acknowledge(queue.take(3))
    office.topic.records[0] = office.topic.records[0][:1]
    office.topic.ends[0] = 1
    later = office.worker()
    with pytest.raises(
        BeyondEnd, match='queue "emails" cannot continue from offset 3 of "orders" partition 0'
    ) as refused:
        later.take()
    assert "queue.rewind" in refused.value.hint
    office.fill(4)
    with pytest.raises(BeyondEnd):
        later.take()
    later.rewind({0: 1})
    assert numbers(later.take()) == [4]


def test_lag_and_description(office: Office) -> None:
    office.fill(1, 2, 3)
    office.clock.advance("10 seconds")
    office.fill(4, 5)
    queue = office.queue()
    one(queue).acknowledge()
    one(queue)
    one(queue).release(delay="1 hour")
    assert queue.lag() == Lag(4, 400, 10.0, timedelta(minutes=59, seconds=50))
    description = queue.describe()
    assert (description.held, description.returned, description.due, description.parked) == (1, 1, 0, 0)
    assert (description.cursors, description.rejected_topic) == ({0: 3}, "orders.emails.rejected")
    office.clock.advance("31 seconds")
    description = queue.describe()
    assert (description.held, description.returned, description.due) == (0, 2, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ordered": "by keys"}, 'ordered "by keys" is not known'),
        ({"deliveries_max": 0}, "deliveries_max 0 is not a whole number from 1 to"),
        ({"length_max": True}, "length_max True is not a whole number from 1 to"),
        ({"lease": "0 seconds"}, "lease must be longer than zero"),
        ({"lease": 30}, 'lease "30" has no unit'),
        ({"retry": "1 second"}, 'retry "1 second" is not a Backoff'),
    ],
)
def test_settings_that_cannot_be(office: Office, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        office.queue(**settings)


def test_names_and_counts_that_cannot_be(office: Office) -> None:
    with pytest.raises(InvalidName):
        office.worker("../emails")
    with pytest.raises(InvalidName):
        office.worker("e" * 195)
    with pytest.raises(Invalid, match="count 0 is not a whole number"):
        office.queue().take(0)
    office.topic._key = ()
    with pytest.raises(Invalid, match="cannot be ordered by key"):
        office.queue(ordered="by key")


def test_a_record_dropped_between_the_look_and_the_take(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.log.queues.queue_scan.CHUNK_ROWS", 1)
    monkeypatch.setattr("mainstem.log.queues.queue_scan.CHUNKS_WITH_ROWS", 1)
    queue = office.queue(ordered="by key", length_max=100)
    office.fill(0, 1, 2, kind="a")
    office.fill(3, kind="b")
    assert numbers(queue.take()) == [0]
    office.topic.compact(0, 3)
    office.fill(4, kind="c")
    assert numbers(queue.take()) == [4]


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="no entries of kind 'later'"):
        QueueState().apply({"kind": "later"}, 0)


def test_a_snapshot_holds_no_more_than_what_is_open(office: Office) -> None:
    office.fill(*range(1_000))
    queue = office.queue()
    queue.acknowledge([message.receipt for message in queue.take(998)])
    queue.take(1)
    snapshot = office.ledger.current().snapshot()
    assert snapshot["cursors"] == {"0": 999}
    assert len(snapshot["open"]) == len(snapshot["holders"]) == 1


def test_a_queue_whose_ledger_is_gone_does_not_begin_below_the_last_sequence(office: Office) -> None:
    office.fill(1, 2)
    one(office.queue()).reject("bad")
    office.clock.advance("1 second")
    office.ledger = MemoryLedger(QueueState, office.clock)
    one(office.queue()).reject("bad again")
    assert [row["rejection"]["reason"] for row in office.rejections.rows] == ["bad", "bad again"]
