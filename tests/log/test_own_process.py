"""What was opened before a fork says in the child that it must be opened anew, and does nothing there."""

import os
import pickle
from collections.abc import Callable

import pytest

import mainstem
from mainstem.errors import Invalid, MainstemError

pytestmark = pytest.mark.forks


@pytest.fixture
def stem(tmp_path):
    with mainstem.open(tmp_path / "home") as opened:
        orders = opened.create_topic("orders", schema="k string, n bigint", key="k", partitions=4)
        # Over several partitions, so that there are threads when it is forked.
        orders.append([{"k": str(number), "n": number} for number in range(20)])
        yield opened


def in_child(do: Callable[[], object]) -> object:
    """What `do` returns or raises in a forked child."""
    answer, question = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = do()
        except MainstemError as error:
            said = error
        os.write(question, pickle.dumps(said))
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as file:
        said = pickle.load(file)
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize(
    "use",
    [
        lambda producer: producer.append("orders", [{"k": "a", "n": 1}]),
        lambda producer: producer.append("orders", [{"k": "a", "n": 1}], sequence=7),
        lambda producer: producer.last_sequence("orders"),
        lambda producer: producer.incomplete_sequence("orders"),
        lambda producer: producer.transaction(),
    ],
)
def test_a_producer(stem, use):
    producer = stem.producer("checkout")
    error = in_child(lambda: use(producer))
    assert isinstance(error, Invalid)
    assert error.summary == 'producer "checkout" was opened before this process was forked'
    assert "in this process" in error.hint
    assert producer.append("orders", [{"k": "a", "n": 1}]).appended


def test_a_producer_that_the_child_opens(stem, tmp_path):
    producer = stem.producer("checkout")
    producer.append("orders", [{"k": "a", "n": 1}])

    def append() -> int:
        with mainstem.open(tmp_path / "home") as own:
            own.producer("child").append("orders", [{"k": "a", "n": 2}])
        stem.producer("child").append("orders", [{"k": "a", "n": 3}])
        return stem.producer("child").last_sequence("orders")

    assert in_child(append) == 1
    assert producer.append("orders", [{"k": "a", "n": 4}]).appended
    assert len(stem.topic("orders").to_arrow()) == 24


def test_a_transaction_is_neither_written_to_nor_ended(stem):
    transaction = stem.transaction()
    transaction.append("orders", [{"k": "a", "n": 100}])

    def use() -> None:
        with transaction:
            transaction.append("orders", [{"k": "a", "n": 101}])

    for do in (use, transaction.commit):
        error = in_child(do)
        assert isinstance(error, Invalid)
        assert "before this process was forked" in str(error)
    assert in_child(transaction.abort) is None
    transaction.commit()
    assert sorted(stem.topic("orders").to_arrow().column("n").to_pylist()) == [*range(20), 100]


def test_a_member_of_a_group(stem):
    with stem.topic("orders").join_group("shipping") as member:
        for do in (member.poll, member.commit, lambda: member.seek("earliest")):
            error = in_child(do)
            assert isinstance(error, Invalid)
            assert 'member of group "shipping" was opened before' in str(error)
        assert in_child(member.leave) is None
        assert member.poll() is not None


def test_a_plain_append_over_several_partitions_goes_on(stem):
    """The threads that write to them are not there in the child."""
    orders = stem.topic("orders")
    rows = [{"k": str(number), "n": number} for number in range(20)]
    assert in_child(lambda: orders.append(rows).count) == 20
    assert len(orders.to_arrow()) == 40
