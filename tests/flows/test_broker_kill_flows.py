"""S8: flows on a broker that is killed again and again, also between a commit and its answer. Each record counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from mainstem.flows.flow import Flow
from mainstem.log.kafka.kafka_errors import unavailable
from mainstem.log.kafka.named_writer import NOTHING, NamedWriter
from mainstem.spark.sources import topic_writer
from mainstem.stem import Mainstem
from tests.flows.kafka_shop import answers, flows, orders, prepare
from tests.kafka_broker import KafkaBroker


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A broker of its own: what a killed one has to look at before it lets people in again grows with its topics."""
    broker = KafkaBroker()
    yield broker
    broker.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.long)])
def test_a_broker_that_is_killed_again_and_again_costs_no_record_and_gives_none_twice(
    on_kafka: Mainstem, kafka_broker: KafkaBroker, kills: int, fault_report: Callable[..., None]
) -> None:
    prepare(on_kafka)
    topic = on_kafka.topic("orders")
    count = 100 * (kills + 1)
    with on_kafka.start(flows) as running:
        for number in range(kills):
            topic.append(orders(number * 100, 100))
            kafka_broker.restart()
        topic.append(orders(count - 100, 100))
        running.wait_until_idle()
        found = answers(on_kafka)

    sent = Counter(row["order_id"] for row in orders(0, count) if row["amount"] > 90)
    got = Counter(on_kafka.topic("big_orders").to_arrow(columns=["order_id"]).column("order_id").to_pylist())
    violations = [f"lost {order}" for order in sent - got] + [f"twice or never sent {order}" for order in got - sent]
    if (counted := sum(row["orders"] for row in on_kafka.view("revenue").to_arrow().to_pylist())) != count:
        violations.append(f"{counted} orders counted")
    # Of all minutes that are over: the watermark is twenty seconds behind the last order.
    if len(found["minutes"]) != 3 * ((count - 1 - 20) // 60):
        violations.append(f"{len(found['minutes'])} minutes")
    compared = sent.total() + count + len(found["minutes"])
    fault_report("S8 flows", points=kills, compared=compared, violations=violations)


def shipped(stem: Mainstem) -> Iterator[Flow]:
    yield Flow(stem.topic("orders").stream().drop("record"), into=stem.topic("big_orders"))


def after_a_lost_answer(stem: Mainstem, broker: KafkaBroker, patch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each order is there, when the broker died once with the answer to a commit under way."""
    prepare(stem)
    stem.topic("orders").append(orders(0, 50))
    struck = []

    def reach(name: str, batch: int | None = None) -> None:
        if name == "sink_committed" and not struck:
            struck.append(name)
            broker.restart()
            raise unavailable(broker.address, "no answer came")

    patch.setattr(topic_writer, "reach", reach)
    stem.run(shipped, until="idle")
    assert struck
    return Counter(stem.topic("big_orders").to_arrow(columns=["order_id"]).column("order_id").to_pylist())


def test_a_commit_whose_answer_is_lost_with_the_broker_counts_once(
    on_kafka: Mainstem, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert after_a_lost_answer(on_kafka, kafka_broker, monkeypatch) == Counter(range(50))


def test_a_sink_that_stores_no_sequence_would_be_caught(
    on_kafka: Mainstem, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NamedWriter, "known_appends", lambda self, topic_id: NOTHING)
    assert max(after_a_lost_answer(on_kafka, kafka_broker, monkeypatch).values()) > 1
