"""What belongs to one home is refused by another."""

from pathlib import Path

import pytest

import mainstem
from mainstem.errors import Invalid


def test_a_topic_of_another_home_takes_no_part_in_a_transaction(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "a") as here, mainstem.open(tmp_path / "b") as there:
        topics = [stem.create_topic("orders", schema="n INT") for stem in (here, there)]
        other = there.transaction()
        other.append(topics[1], [{"n": 1}])
        with here.transaction() as transaction:
            transaction.append(topics[0], [{"n": 2}])
            with pytest.raises(Invalid, match='topic "orders" is one of another log'):
                transaction.append(topics[1], [{"n": 2}])
        other.commit()
        assert [topic.to_arrow().column("n").to_pylist() for topic in topics] == [[2], [1]]


def test_a_producer_appends_to_topics_of_its_own_home(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "a") as here, mainstem.open(tmp_path / "b") as there:
        here.create_topic("orders", schema="n INT")
        other = there.create_topic("orders", schema="n INT")
        producer = here.producer("checkout")
        for use in (lambda: producer.append(other, [{"n": 1}]), lambda: producer.last_sequence(other)):
            with pytest.raises(Invalid, match="is one of another log"):
                use()
        assert other.to_arrow().num_rows == 0


def test_a_home_that_is_opened_twice_is_one(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "a") as one, mainstem.open(tmp_path / "a") as same:
        orders = one.create_topic("orders", schema="n INT")
        with same.transaction() as transaction:
            transaction.append(orders, [{"n": 1}])
        assert orders.to_arrow().column("n").to_pylist() == [1]


def test_the_highest_sequence_leaves_room_for_the_next_one(tmp_path: Path) -> None:
    with mainstem.open(tmp_path) as stem:
        stem.create_topic("orders", schema="n INT")
        producer = stem.producer("checkout")
        with pytest.raises(Invalid, match="sequence"):
            producer.append("orders", [{"n": 1}], sequence=(1 << 63) - 1)
        producer.append("orders", [{"n": 1}], sequence=(1 << 63) - 2)
        producer.append("orders", [{"n": 2}])
        assert producer.last_sequence("orders") == (1 << 63) - 1
