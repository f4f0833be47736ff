"""What belongs to one home is refused by another."""

import shutil
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
            with pytest.raises(Invalid, match='topic "orders" belongs to another log'):
                transaction.append(topics[1], [{"n": 2}])
        other.commit()
        assert [topic.to_arrow().column("n").to_pylist() for topic in topics] == [[2], [1]]


def test_a_producer_appends_to_topics_of_its_own_home(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "a") as here, mainstem.open(tmp_path / "b") as there:
        here.create_topic("orders", schema="n INT")
        other = there.create_topic("orders", schema="n INT")
        producer = here.producer("checkout")
        for use in (lambda: producer.append(other, [{"n": 1}]), lambda: producer.last_sequence(other)):
            with pytest.raises(Invalid, match="belongs to another log"):
                use()
        assert other.to_arrow().num_rows == 0


def test_a_home_that_is_opened_twice_is_one(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "a") as one, mainstem.open(tmp_path / "a") as same:
        orders = one.create_topic("orders", schema="n INT")
        with same.transaction() as transaction:
            transaction.append(orders, [{"n": 1}])
        assert orders.to_arrow().column("n").to_pylist() == [1]


@pytest.mark.parametrize("how", ["another home", "a copy by cp"])
def test_offsets_of_another_home_take_no_part_in_a_transaction(tmp_path: Path, how: str) -> None:
    with mainstem.open(tmp_path / "a") as here:
        here.create_topic("orders", schema="n INT").append([{"n": 1}])
    if how == "a copy by cp":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    else:
        with mainstem.open(tmp_path / "b") as there:
            there.create_topic("orders", schema="n INT").append([{"n": 1}])
    with mainstem.open(tmp_path / "a") as here, mainstem.open(tmp_path / "b") as there:
        orders = there.topic("orders")
        with orders.join_group("billing") as member, here.transaction() as transaction:
            assert member.poll() is not None
            with pytest.raises(Invalid, match='group "billing" reads topic "orders" of another log'):
                transaction.commit_offsets(member)
            with pytest.raises(Invalid, match='topic "orders" belongs to another log'):
                transaction.append(orders, [{"n": 2}])
        assert orders.group("billing").describe().partitions[0].committed == 0
        assert here.topic("orders").groups() == []


def test_offsets_are_committed_through_another_opening_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with mainstem.open(tmp_path / "a") as one, mainstem.open(tmp_path / "link") as same:
        orders = one.create_topic("orders", schema="n INT")
        orders.append([{"n": 1}])
        with orders.join_group("billing") as member, same.transaction() as transaction:
            assert member.poll() is not None
            transaction.commit_offsets(member)
        assert orders.group("billing").describe().partitions[0].committed == 1


def test_the_highest_sequence_leaves_room_for_the_next_one(tmp_path: Path) -> None:
    with mainstem.open(tmp_path) as stem:
        stem.create_topic("orders", schema="n INT")
        producer = stem.producer("checkout")
        with pytest.raises(Invalid, match="sequence"):
            producer.append("orders", [{"n": 1}], sequence=(1 << 63) - 1)
        producer.append("orders", [{"n": 1}], sequence=(1 << 63) - 2)
        producer.append("orders", [{"n": 2}])
        assert producer.last_sequence("orders") == (1 << 63) - 1
