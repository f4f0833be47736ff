"""Queues as their users see them, time moved by hand: taken, held, acknowledged, waited for."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Fenced, Invalid
from mainstem.log.queues.message import Message
from mainstem.log.queues.queue import Queue
from tests.log.memory_ledger import (
    ManualWaiter,
)
from tests.log.queue_office import Office, numbers, one


def test_messages_are_given_out_once_and_acknowledged(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()

    first, second = queue.take(2)
    assert (first.row, first.partition, first.offset) == ({"n": 1, "kind": None}, 0, 0)
    assert (first.deliveries, first.redelivered, first.key, first.change) == (1, False, None, "insert")
    assert first.appended_at == as_datetime(office.clock.now())
    assert numbers(queue.take(10)) == [3]
    assert queue.take(10) == []
    first.acknowledge()
    queue.acknowledge([second.receipt])
    assert list(office.ledger.current().open) == [(0, 2)]
    assert queue.describe().counts == {"delivered": 3, "acknowledged": 2}


def test_workers_that_take_one_at_a_time_get_them_in_turn(office: Office) -> None:
    queue = office.queue()
    office.fill(1, 2, 3, 4, 5)
    one_worker, other_worker = queue, office.worker()

    seen: dict[str, list[int]] = {"one": [], "other": []}
    for turn in range(5):
        name, worker = [("one", one_worker), ("other", other_worker)][turn % 2]
        message = one(worker)
        seen[name].append(message.row["n"])
        message.acknowledge()
    assert seen == {"one": [1, 3, 5], "other": [2, 4]}


def test_what_a_dead_worker_held_comes_after_what_was_taken_meanwhile(office: Office) -> None:
    office.fill(3, 4, 5)
    queue = office.queue()
    office.processes.pid = 2
    lost = one(queue)
    office.processes.pid = 1
    seen = [one(queue)]
    office.processes.gone.add(2)
    seen += [one(queue), one(queue)]

    assert numbers([lost, *seen]) == [3, 4, 3, 5]
    assert [(message.deliveries, message.redelivered) for message in seen] == [(1, False), (2, True), (1, False)]


def test_a_lease_that_ended(office: Office) -> None:
    office.fill(1)
    queue = office.queue(lease="10 seconds")
    message = one(queue)
    office.clock.advance("9 seconds")
    assert queue.take() == []
    office.clock.advance("1 second")
    message.extend("1 minute")
    assert message.held_until == as_datetime(office.clock.now()) + timedelta(minutes=1)
    office.clock.advance("59 seconds")
    assert queue.take() == []
    office.clock.advance("1 second")
    again = one(queue)
    for late in (message.acknowledge, message.release, lambda: message.extend("1 minute"), lambda: message.reject("")):
        with pytest.raises(Fenced, match='receipt "0-0-1" is no longer valid'):
            late()
    assert again.deliveries == 2
    again.acknowledge()


def test_an_acknowledgement_after_the_lease_counts_if_nobody_else_has_it(office: Office) -> None:
    office.fill(1)
    queue = office.queue(lease="10 seconds")
    message = one(queue)
    office.clock.advance("1 hour")
    message.acknowledge()
    assert queue.take() == []


def test_a_command_line_holds_by_lease_alone(office: Office) -> None:
    office.fill(1)
    office.queue(lease="10 seconds")
    message = one(office.worker(held_by="lease"))
    office.processes.gone.add(1)
    assert office.worker().take() == []
    office.worker().acknowledge([message.receipt])
    assert office.ledger.current().open == {}


def test_some_receipts_that_count_and_some_that_do_not(office: Office) -> None:
    office.fill(1, 2)
    queue = office.queue()
    first, second = queue.take(2)
    first.acknowledge()
    with pytest.raises(Fenced) as caught:
        queue.acknowledge([first.receipt, second.receipt])
    assert caught.value.receipts == (first.receipt,)
    assert "The other 1 were acknowledged" in caught.value.detail
    assert office.ledger.current().open == {}
    with pytest.raises(Invalid, match='"nonsense" is not a receipt'):
        queue.acknowledge(["nonsense"])


def test_ordered_by_key_parks_only_the_key_that_fails(office: Office) -> None:
    queue = office.queue(ordered="by key")
    office.fill(1, kind="a")
    office.fill(2, kind="b")
    office.fill(3, kind="a")
    office.fill(4, kind=None)
    office.fill(5, kind="c")
    office.fill(6, kind="a")
    office.fill(7, kind=None)

    failing, *others = queue.take(10)
    assert numbers([failing, *others]) == [1, 2, 4, 5, 7]
    assert [message.key for message in others] == ["b", None, "c", None]
    failing.release(delay="10 seconds", error="mail server down")
    assert queue.take() == []
    parked = queue.parked().select(["offset", "key", "waits_for", "deliveries", "last_error"]).to_pylist()
    assert [tuple(row.values()) for row in parked] == [
        (0, "a", "delay", 1, "mail server down"),
        (2, "a", "key", 0, None),
        (5, "a", "key", 0, None),
    ]
    office.fill(8, kind="b")
    assert queue.take() == []
    others[0].acknowledge()
    assert numbers(queue.take(5)) == [8]
    office.clock.advance("10 seconds")
    again = one(queue)
    assert (again.row["n"], again.redelivered) == (1, True)
    again.reject("gives up")
    assert one(queue).row["n"] == 3
    assert queue.parked().column("offset").to_pylist() == [5]


def test_a_key_that_fails_does_not_make_the_state_grow_without_end(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.log.queues.queue_take.PARKED_MAX", 3)
    queue = office.queue(ordered="by key")
    office.fill(*range(6), kind="a")
    office.fill(6, kind="b")
    blocking = one(queue)
    assert queue.take() == []
    office.fill(7, kind="b")
    assert queue.take() == []
    blocking.acknowledge()
    assert numbers(queue.take(10)) == [1]
    assert len(office.ledger.current().open) <= 4


def test_where_passes_over_what_is_none_of_its_business(office: Office) -> None:
    office.fill(1, kind="quick.orange.fox")
    office.fill(2, 3, kind="lazy.pink.rabbit")
    office.fill(4, kind="quick.brown.fox")
    queue = office.queue(where="n > 1 and (routed(kind, '*.*.rabbit') or routed(kind, 'lazy.#'))")
    assert numbers(queue.take(10)) == [2, 3]
    assert office.ledger.current().cursors == {0: 4}
    assert queue.describe().counts == {"delivered": 2}


def test_a_long_walk_over_other_peoples_rows_is_written_down(office: Office) -> None:
    office.fill(*range(1_500))
    queue = office.queue(where="n < 0")
    assert queue.take() == []
    assert office.ledger.current().cursors == {0: 1_500}
    office.fill(1)
    entries = len(office.ledger.entries)
    assert queue.take() == []
    assert len(office.ledger.entries) == entries


def test_waiting_wakes_on_an_append(office: Office) -> None:
    queue = office.queue()
    office.waiter.meanwhile = [lambda: None, lambda: office.fill(1)]
    assert numbers(queue.take(10, wait="5 seconds")) == [1]
    before = office.clock.now()
    assert queue.take(wait="5 seconds") == []
    assert office.clock.now() - before == 5_000_000


def test_waiting_ends_when_a_delay_does(office: Office) -> None:
    office.fill(1)
    queue = office.queue()
    one(queue).release(delay="3 seconds")
    before = office.clock.now()
    assert numbers(queue.take(wait="1 minute")) == [1]
    assert office.clock.now() - before == 3_000_000


def test_waiting_ends_when_a_lease_does_and_when_a_holder_is_gone(office: Office) -> None:
    office.fill(1, 2)
    queue = office.queue(lease="30 seconds")
    office.processes.pid = 2
    queue.take(2)
    office.processes.pid = 1
    office.waiter.meanwhile = [lambda: office.processes.gone.add(2)]
    assert numbers(queue.take(wait="1 minute")) == [1]
    assert office.waiter.waits[0][1:] == (office.clock.now() + 30_000_000, [2])
    assert numbers(queue.take()) == [2]
    before = office.clock.now()
    assert numbers(queue.take(wait="1 minute")) == [1]
    assert office.clock.now() - before == 30_000_000


def test_the_oldest_over_all_partitions_comes_first() -> None:
    office = Office(partitions=3)
    for number in range(9):
        office.clock.advance("1 second")
        office.fill(number, partition=(number * 2) % 3)
    queue = office.queue()
    assert numbers(queue.take(4)) == [0, 1, 2, 3]
    assert numbers(queue.take(10)) == [4, 5, 6, 7, 8]


def test_markers_and_gaps_are_stepped_over(office: Office) -> None:
    office.fill(1, 2)
    office.topic.marker(0)
    office.fill(3)
    office.topic.compact(0, 1)
    queue = office.queue()
    assert numbers(queue.take(1) + queue.take(1)) == [1, 3]


def test_two_workers_racing_never_get_the_same(office: Office) -> None:
    office.fill(1, 2)
    queue, other = office.queue(), office.worker()
    stolen: list[Message] = []
    office.ledger.before_append = lambda: stolen.extend(other.take())
    assert numbers(queue.take()) == [2]
    assert numbers(stolen) == [1]


def test_a_worker_reads_a_chunk_once(office: Office) -> None:
    office.fill(*range(500))
    queue = office.queue()
    for _ in range(500):
        one(queue).acknowledge()
    assert office.topic.reads < 10


def test_threads_wait_each_by_their_own(office: Office) -> None:
    made: list[ManualWaiter] = []

    def new_waiter() -> ManualWaiter:
        made.append(ManualWaiter(office.clock))
        return made[-1]

    office.queue()
    queue = Queue(
        "emails",
        office.ledger,
        office.topic,
        office.rejections,
        new_waiter,
        processes=office.processes,
        clock=office.clock,
    )
    for _ in range(2):
        thread = threading.Thread(target=lambda: queue.take(wait="1 second"))
        thread.start()
        thread.join()
    queue.take(wait="1 second")
    queue.take(wait="1 second")
    assert len(made) == 3
