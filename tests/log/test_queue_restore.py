"""Rejected messages that are restored or dropped: what the queue remembers of them, and what it reads."""

import json

import pytest

from mainstem.errors import FellOff, NotFound, QueueNotFound
from mainstem.log.queues.queue_state import QueueState
from tests.log.memory_ledger import Killed, MemoryLedger
from tests.log.queue_office import Office, numbers, one


@pytest.fixture
def office() -> Office:
    return Office()


def reject_all(office: Office, count: int) -> None:
    for message in office.worker().take(count):
        message.reject(f"no {message.row['n']}")


@pytest.mark.parametrize("kill", ["before append", "after append"])
def test_a_message_whose_rejection_was_not_finished_is_restored_once(office: Office, kill: str) -> None:
    office.fill(1)
    queue = office.queue()
    office.rejections.kill = kill
    with pytest.raises(Killed):
        one(queue).reject("bad")
    office.rejections.kill = ""
    office.worker().restore("0:0")
    # Its rejection is in the topic, once, and it is delivered again.
    assert [row["n"] for row in office.rejections.rows] == [1]
    assert numbers(queue.take(10)) == [1]
    with pytest.raises(NotFound):
        queue.restore("0:0")


def test_another_process_that_is_faster_restores_it(office: Office) -> None:
    office.fill(1, 2)
    queue = office.queue()
    reject_all(office, 2)
    slow, quick = office.worker(), office.worker()

    def overtake() -> None:
        office.ledger.before_append = lambda: None
        quick.restore("0:0")

    office.ledger.before_append = overtake
    with pytest.raises(NotFound, match="message 0:0") as late:
        slow.drop(["0:0", "0:1"])
    assert "1 other was dropped" in late.value.detail
    assert (numbers(queue.take(10)), queue.rejected_positions()) == ([1], [])


def test_a_message_whose_record_is_gone_can_only_be_dropped(office: Office) -> None:
    office.fill(1, 2)
    queue = office.queue(start={0: 0})
    reject_all(office, 2)
    office.topic.drop(0, 1)
    with pytest.raises(FellOff, match='topic "orders" no longer keeps 0:0') as gone:
        office.worker().restore(["0:0", "0:1"])
    assert "orders.emails.rejected" in gone.value.detail
    assert numbers(queue.take(10)) == [2]
    queue.drop("0:0")
    assert queue.rejected_positions() == []


def test_the_last_ones_are_listed_and_the_topic_is_read_no_further_than_needed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.fill(*range(10))
    queue = office.queue()
    for number in range(10):
        office.clock.advance("1 second")
        one(queue).reject(f"no {number}")
    read = []
    latest = office.rejections.latest

    def counted():
        for rows in latest():
            read.append(len(rows))
            yield rows

    monkeypatch.setattr(office.rejections, "latest", counted)
    assert queue.rejected(limit=2).column("n").to_pylist() == [8, 9]
    assert sum(read) == 2
    queue.drop([f"0:{number}" for number in range(1, 9)])
    read.clear()
    assert queue.rejected().column("n").to_pylist() == [0, 9]
    queue.drop("0:0")
    read.clear()
    # The first ones were settled: they are not looked for.
    assert queue.rejected().column("n").to_pylist() == [9]
    assert sum(read) == 1


def test_of_very_many_the_last_ones_are_remembered(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.log.queues.queue_state.REJECTED_MAX", 3)
    monkeypatch.setattr("mainstem.log.queues.queue.SETTLED_MAX", 2)
    office.fill(*range(5))
    queue = office.queue()
    reject_all(office, 5)
    assert queue.rejected_positions() == [(0, 2), (0, 3), (0, 4)]
    with pytest.raises(NotFound, match="messages 0:0, 0:1"):
        queue.restore([(0, number) for number in range(5)])
    assert numbers(queue.take(10)) == [2, 3, 4]


def test_many_that_are_rejected_together_take_little_space(office: Office) -> None:
    office.fill(*range(1_000))
    queue = office.queue(length_max=10)
    queue.take(1)
    runs = office.ledger.current().snapshot()["rejected"]
    assert sum(count for _, _, count, _ in runs) == 990
    assert len(runs) <= 2


def test_a_snapshot_of_an_older_version_is_read(office: Office) -> None:
    office.fill(1, 2, 3)
    queue = office.queue()
    one(queue)
    one(queue).reject("bad")
    older = json.loads(json.dumps(office.ledger.current().snapshot()))
    del older["rejected"]
    older["open"] = [row[:10] for row in older["open"]]
    ledger = MemoryLedger(QueueState, office.clock)
    ledger.state = QueueState.restore(older)
    office.ledger = ledger
    queue = office.worker()
    [row] = queue.held().to_pylist()
    assert (row["offset"], row["taken_at"]) == (0, None)
    assert queue.rejected_positions() == []
    reject_all(office, 1)
    queue.restore("0:2")
    assert numbers(queue.take(10)) == [3]


def test_what_was_restored_survives_a_snapshot(office: Office) -> None:
    office.fill(1)
    queue = office.queue()
    reject_all(office, 1)
    queue.restore("0:0")
    state = office.ledger.current()
    assert QueueState.restore(json.loads(json.dumps(state.snapshot()))) == state
    description = queue.describe()
    assert (description.waiting, description.parked, description.returned) == (1, 0, 0)
    assert queue.parked().num_rows == 0


def test_a_queue_that_does_not_exist_has_none(office: Office) -> None:
    queue = office.worker()
    for ask in (queue.held, queue.rejected, lambda: queue.restore("0:0"), lambda: queue.drop("0:0")):
        with pytest.raises(QueueNotFound):
            ask()
