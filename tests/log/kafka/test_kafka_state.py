"""What lies beside the topics on Kafka: ledgers that several authors agree on, groups' offsets, time by the broker's clock."""

import threading
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from mainstem.errors import Fenced
from mainstem.log.kafka import state_topic as kafka_ledger
from mainstem.log.kafka.kafka_clients import known_dead, this_process
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.kafka.state_topic import KafkaLedger
from mainstem.log.state_ledger import Entry
from tests.contracts.shown_rows import fill, taken
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import begun_for_a_second, opened, own_settings
from tests.waiting import wait_until

AUTHORS, EACH = 3, 15


class Numbers:
    """A state that is the list of its entries."""

    def __init__(self, numbers: list[int] | None = None) -> None:
        self.numbers = numbers or []

    def apply(self, entry: Entry, at: int) -> None:
        self.numbers.append(entry["n"])

    def snapshot(self) -> dict[str, Any]:
        return {"numbers": self.numbers}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls(list(snapshot["numbers"]))


@pytest.fixture
def settings(kafka_broker: KafkaBroker) -> KafkaSettings:
    return own_settings(kafka_broker)


def ledger(log: KafkaLog) -> KafkaLedger[Numbers]:
    return log.ledger("numbers", Numbers, Numbers.restore)


def test_several_authors_agree_and_a_newcomer_finds_the_same(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So often written down that entries, states and deletions of several authors mix.
    monkeypatch.setattr(kafka_ledger, "ENTRIES_MAX", 4)
    logs = [KafkaLog(settings) for _ in range(AUTHORS)]

    def count(log: KafkaLog) -> None:
        for _ in range(EACH):
            ledger(log).decide(lambda state, now: ([{"kind": "next", "n": len(state.numbers)}], None))

    threads = [threading.Thread(target=count, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each decided on what it had seen: had two entries counted behind one another's back, a number would be there twice.
    expected = list(range(AUTHORS * EACH))
    assert [ledger(log).current().numbers for log in logs] == [expected] * AUTHORS
    # Where nobody writes in between, what is written down takes the place of all before it, for everyone.
    count(logs[0])
    expected = list(range((AUTHORS + 1) * EACH))
    for log in logs:
        assert ledger(log).current().numbers == expected
        left = log.state.records("numbers")
        assert len(left.entries) <= 4
        assert len(left.keys) <= 1 + 4
    for log in logs:
        log.close()
    newcomer = KafkaLog(settings)
    assert ledger(newcomer).current().numbers == expected
    # And one who finds only what compaction leaves.
    compacted = KafkaLog(settings)
    _forget_deleted(compacted)
    assert ledger(compacted).current().numbers == expected
    ledger(compacted).drop()
    assert ledger(newcomer).current().numbers == []
    newcomer.close()
    compacted.close()


def _forget_deleted(log: KafkaLog) -> None:
    """Have a log read its state topic as if it were compacted: of each key the last, and no deletions."""
    state = log.state
    low, end = log.clients.range(state.topic, 0)
    fetch = log.fetches.of(state.topic, "", 0)
    messages = []
    while found := fetch.read(low, end, 1000):
        messages += found
        low = found[-1].offset() + 1
    last = {message.key(): message for message in messages}
    state._position = end
    for message in messages:
        if last[message.key()] is message and message.value() is not None:
            state._take(message)
    state._position = end


def test_other_tools_see_what_a_group_has_committed(kafka_broker: KafkaBroker, settings: KafkaSettings) -> None:
    with opened(settings) as stem:
        orders = stem.create_topic("orders", schema="k string, n bigint", key="k")
        fill(orders, 1, 2, 3)
        with orders.join_group("billing") as member:
            member.poll(rows_max=2)
            member.commit()
        name = f"{settings.prefix}orders"
        consumer = Consumer({"bootstrap.servers": kafka_broker.address, "group.id": f"{name}.billing"})
        # Told behind the commit, and not waited for.
        wait_until(lambda: consumer.committed([TopicPartition(name, 0)], timeout=300)[0].offset == 2)
        consumer.close()


def test_a_transaction_past_its_timeout_is_ended_by_the_broker(settings: KafkaSettings) -> None:
    with opened(settings) as stem, opened(settings) as other:
        topic = stem.create_topic("single", schema="k string, n bigint", key="k")
        forgotten = begun_for_a_second(stem, topic, [{"k": "a", "n": 1}])
        fill(topic, 2)
        assert [row["n"] for row in taken(other.topic("single").follow(start="earliest"), 1)] == [2]
        with pytest.raises(Fenced, match="has ended"):
            forgotten.commit()
        assert forgotten.state == "aborted"


def test_of_a_process_on_another_machine_nothing_is_known() -> None:
    here = this_process()
    assert not known_dead(here)
    assert known_dead({**here, "started": here["started"] - 1})
    assert not known_dead({**here, "started": here["started"] - 1, "boot": "another machine"})
