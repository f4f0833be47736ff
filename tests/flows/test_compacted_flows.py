"""Flows over a topic that the broker compacts between their batches: a view of it is the table that the topic is."""

from collections.abc import Iterator

from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem
from tests.log.kafka.compacted_topic import CompactedTopic, without_filler


def test_a_view_of_a_compacted_topic_is_right_whenever_it_was_compacted(on_kafka: Mainstem) -> None:
    stock = CompactedTopic(on_kafka)

    def first(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(stem.topic("stock").stream(), into=stem.view("from_the_start", key="k"))

    def both(stem: Mainstem) -> Iterator[Flow]:
        yield from first(stem)
        yield Flow(stem.topic("stock").stream(), into=stem.view("from_later", key="k"))

    for number in range(10):
        stock.put({f"a-{article}": 100 * number + article for article in range(8)})
    on_kafka.run(first, until="idle")
    stock.put({"a-1": -1, "a-9": 9})
    stock.delete("a-2", "a-3")
    stock.put({"a-3": 33})
    # The flow that has begun has not seen these: the deletion of "a-2" must be there for it, so it goes on first.
    on_kafka.run(first, until="idle")
    stock.compacted()
    on_kafka.run(both, until="idle")

    for name in ("from_the_start", "from_later"):
        found = without_filler(on_kafka.view(name).to_arrow().to_pylist())
        assert {row["k"]: row["n"] for row in found} == stock.latest, name
