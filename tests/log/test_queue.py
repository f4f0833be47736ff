"""Queues as their users see them, time moved by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.errors import Conflict, FellOff, Fenced, Invalid, InvalidName, QueueNotFound
from mainstem.log.backoff import Backoff
from mainstem.log.lag import Lag
from mainstem.log.message import Message
from mainstem.log.queue import Queue
from mainstem.log.queue_settings import QueueSettings
from mainstem.log.queue_state import QueueState
from tests.log.memory_ledger import (
    Killed,
    ManualWaiter,
    MemoryLedger,
    MemoryProcesses,
    MemoryRejections,
    MemoryTopic,
)

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("kind", pa.string())])


class Office:
    """A topic, a queue's ledger, and everything a queue asks for."""

    def __init__(self, partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.topic = MemoryTopic(SCHEMA, self.clock, partitions=partitions, key=("kind",), name="orders")
        self.ledger = MemoryLedger(QueueState, self.clock)
        self.processes = MemoryProcesses()
        self.rejections = MemoryRejections()
        self.waiter = ManualWaiter(self.clock)

    def worker(self, name: str = "emails", held_by: Any = "process") -> Queue:
        return Queue(
            name,
            self.ledger,
            self.topic,
            self.rejections,
            lambda: self.waiter,
            processes=self.processes,
            clock=self.clock,
            held_by=held_by,
        )

    def queue(self, *, start: Any = "earliest", **settings: Any) -> Queue:
        return self.worker().open(QueueSettings.given(**settings), start=start)

    def fill(self, *numbers: int, kind: str | None = None, partition: int = 0) -> None:
        self.topic.append(partition, *({"n": n, "kind": kind} for n in numbers))


@pytest.fixture
def office() -> Office:
    return Office()


def numbers(messages: list[Message]) -> list[int]:
    return [message.row["n"] for message in messages]


def one(queue: Queue, **how: Any) -> Message:
    [message] = queue.take(1, **how)
    return message


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
    monkeypatch.setattr("mainstem.log.queue_take.PARKED_MAX", 3)
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


def test_a_condition_is_checked_at_opening(office: Office) -> None:
    with pytest.raises(Invalid, match="cannot be used"):
        office.queue(where="amuont > 10")
    assert office.ledger.entries == []


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


def test_a_queue_opened_again(office: Office) -> None:
    office.queue(lease="10 seconds", deliveries_max=5, retry=Backoff("1 second", max="1 minute"))
    office.queue(lease="10 seconds", deliveries_max=5, retry=Backoff("1 second", max="1 minute"))
    office.queue()
    with pytest.raises(Conflict) as caught:
        office.queue(lease="10 seconds", length_max=3)
    assert str(caught.value) == 'queue "emails" is there with other settings'
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


def test_the_oldest_over_all_partitions_comes_first() -> None:
    office = Office(partitions=3)
    for number in range(9):
        office.clock.advance("1 second")
        office.fill(number, partition=(number * 2) % 3)
    queue = office.queue()
    assert numbers(queue.take(4)) == [0, 1, 2, 3]
    assert numbers(queue.take(10)) == [4, 5, 6, 7, 8]


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
        with pytest.raises(QueueNotFound, match='queue "emails" of topic "orders" does not exist'):
            use()
    office.fill(2)
    anew = office.queue(where="n = 2", deliveries_max=1)
    for worker in (queue, anew):
        one(worker).release()
        office.fill(2)
    assert [row["n"] for row in office.rejections.rows] == [1, 2, 2]
    assert anew.describe().counts == {"delivered": 2, "released": 2, "deliveries": 2}


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
        ({"deliveries_max": 0}, 'deliveries_max "0" is not a count'),
        ({"length_max": True}, 'length_max "True" is not a count'),
        ({"lease": "0 seconds"}, "a lease of no length"),
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
    with pytest.raises(Invalid, match="a take of 0 messages"):
        office.queue().take(0)
    office.topic._key = ()
    with pytest.raises(Invalid, match="cannot be ordered by key"):
        office.queue(ordered="by key")


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


def test_a_record_dropped_between_the_look_and_the_take(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.log.queue_scan.CHUNK_ROWS", 1)
    monkeypatch.setattr("mainstem.log.queue_scan.CHUNKS_WITH_ROWS", 1)
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


def test_a_queue_whose_ledger_is_gone_does_not_begin_below_the_last_sequence(office: Office) -> None:
    office.fill(1, 2)
    one(office.queue()).reject("bad")
    office.clock.advance("1 second")
    office.ledger = MemoryLedger(QueueState, office.clock)
    one(office.queue()).reject("bad again")
    assert [row["rejection"]["reason"] for row in office.rejections.rows] == ["bad", "bad again"]
