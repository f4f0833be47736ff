"""What a topic passes on of the topics that flows into it have read: never more than is in it, also in the middle of things."""

import json
from pathlib import Path

import pytest

import mainstem
from mainstem.log.topic import Topic
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.passed_tokens import PassedTokens
from mainstem.stem import Mainstem


def committed(stem: Mainstem, flow: str, batch: int, source: dict[str, object], *, into: str = "big") -> None:
    """A flow that has done a batch, as its checkpoint says it."""
    store = FlowStore(stem.home, flow)
    if not store.exists():
        store.begin(1, sink=f"topic {into}", sink_id=stem.log.open_topic(into).id if into == "big" else "")
    for folder, lines in (("offsets", ["v1", "{}", json.dumps(source)]), ("commits", ["v1", "{}"])):
        path = Path(store.checkpoint(1), folder, str(batch))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))


def read_up_to(topic: Topic) -> dict[int, int]:
    return {number: topic.backend.latest(number) for number in range(topic.settings.partitions)}


def test_what_a_flow_has_committed_is_in_for_who_has_read_to_the_end(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        big = stem.create_topic("big", schema="n BIGINT", partitions=2)
        tokens = PassedTokens(lambda: stem.log, stem.home, "big")
        assert tokens.find(big.backend).applied == {}
        committed(stem, "others", 0, {"topic": "orders", "offsets": {"0": 99}}, into="small")
        assert tokens.find(big.backend).applied == {}

        big.append([{"n": 1}], partition=0)
        committed(stem, "big", 0, {"topic": "orders", "offsets": {"0": 7, "1": 5}, "applied": {"carts": {"0": 3}}})
        passed = tokens.find(big.backend)
        assert passed.applied == {"carts": {"0": 3}, "orders": {"0": 7, "1": 5}}
        assert passed.reached(read_up_to(big))
        assert not passed.reached({0: 0, 1: 0})

        # A batch is in the topic behind what somebody else has not decided yet: nobody can have read it.
        undecided = stem.transaction()
        undecided.append("big", [{"n": n} for n in range(8)])
        big.append([{"n": 3}], partition=1)
        committed(stem, "big", 1, {"topic": "orders", "offsets": {"0": 8, "1": 5}})
        assert tokens.find(big.backend).applied == {"orders": {"0": 8, "1": 5}}
        assert not tokens.find(big.backend).reached(read_up_to(big))
        undecided.commit()
        assert tokens.find(big.backend).reached(read_up_to(big))

        # A second flow into it: what both have read. What of it was written into itself says nothing.
        committed(stem, "more", 0, {"topics": {"orders": {"0": 2, "1": 9}, "big": {"0": 1}}, "glob": "*"})
        assert tokens.find(big.backend).applied == {"orders": {"0": 2, "1": 5}}

        # Made again, it holds nothing of what these flows wrote.
        stem.log.delete_topic("big")
        again = stem.create_topic("big", schema="n BIGINT", partitions=2)
        assert PassedTokens(lambda: stem.log, stem.home, "big").find(again.backend).applied == {}


@pytest.mark.parametrize("order", ["committed first", "ends first"])
def test_what_comes_between_two_looks_is_never_taken_for_read(tmp_path: Path, order: str) -> None:
    """A reader that looked at the ends first would be told of a batch whose rows came after its look."""
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        big = stem.create_topic("big", schema="n BIGINT")
        committed(stem, "big", 0, {"topic": "orders", "offsets": {"0": 1}})
        tokens = PassedTokens(lambda: stem.log, stem.home, "big")
        before = read_up_to(big)
        passed = tokens.find(big.backend)
        big.append([{"n": 1}])
        committed(stem, "big", 1, {"topic": "orders", "offsets": {"0": 2}})
        if order == "committed first":
            assert passed.applied == {"orders": {"0": 1}}
            assert passed.reached(read_up_to(big))
        else:
            assert tokens.find(big.backend).applied == {"orders": {"0": 2}}
            assert not tokens.find(big.backend).reached(before)
