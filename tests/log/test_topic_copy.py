"""A topic that was copied before, and is not what it was any more, is not copied on: and it is said why."""

import pytest

import mainstem
from mainstem.errors import Conflict
from mainstem.log.topic_copy import copy_topic


@pytest.fixture
def two(tmp_path):
    with (
        mainstem.open(tmp_path / "here", upkeep="manual") as here,
        mainstem.open(tmp_path / "there", upkeep="manual") as there,
    ):
        yield here, there


def numbers(topic):
    return topic.to_arrow().column("n").to_pylist()


def test_what_was_copied_before_is_not_copied_again(two):
    here, there = two
    original = here.create_topic("orders", schema="n BIGINT")
    original.append([{"n": 0}, {"n": 1}])
    copy_topic(original, there.log)
    original.append([{"n": 2}])
    copy_topic(original, there.log)
    assert numbers(there.topic("orders")) == [0, 1, 2]


def test_after_compaction_the_hint_is_true_and_nothing_was_appended(two):
    here, there = two
    original = here.create_topic("orders", schema="k BIGINT, n BIGINT", key="k", keep="latest per key")
    original.append([{"k": 1, "n": 0}, {"k": 2, "n": 1}, {"k": 1, "n": 2}])
    copy_topic(original, there.log)
    original.append([{"k": 3, "n": 3}, {"k": 4, "n": 4}, {"k": 5, "n": 5}])
    original.seal()
    original.compact()
    with pytest.raises(Conflict, match="one of the two was compacted") as raised:
        copy_topic(original, there.log)
    assert raised.value.hint == "Delete the copy, and copy again."
    assert numbers(there.topic("orders")) == [0, 1, 2]
    # The hint helps.
    there.delete_topic("orders")
    copy_topic(original, there.log)
    assert numbers(there.topic("orders")) == [1, 2, 3, 4, 5]


def test_after_records_were_dropped_it_is_said(two):
    here, there = two
    original = here.create_topic("orders", schema="n BIGINT", keep="1 byte")
    original.append([{"n": 0}])
    copy_topic(original, there.log)
    original.seal()
    original.append([{"n": 1}])
    original.seal()
    original.drop_expired()
    original.append([{"n": 2}])
    with pytest.raises(Conflict, match="records were dropped since"):
        copy_topic(original, there.log)
    assert numbers(there.topic("orders")) == [0]


def test_who_else_has_written_is_named_where_nothing_else_can_be(two):
    here, there = two
    original = here.create_topic("orders", schema="n BIGINT")
    original.append([{"n": 0}])
    copy_topic(original, there.log)
    there.topic("orders").append([{"n": 9}])
    original.append([{"n": 1}])
    with pytest.raises(Conflict) as raised:
        copy_topic(original, there.log)
    assert raised.value.hint.startswith("Another program has written to the copy.")
    assert numbers(there.topic("orders")) == [0, 9]
