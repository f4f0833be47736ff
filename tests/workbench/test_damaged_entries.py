"""No list fails because of one entry: its line says what is wrong with it, and the others are shown."""

from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.errors import MainstemError
from tests.workbench.ran_flows import began, did_batch


def overwrite(folder: Path, pattern: str) -> None:
    """Damage the files of an entry."""
    found = list(folder.glob(pattern))
    assert found
    for path in found:
        path.write_bytes(b"damaged" * 20)


@pytest.mark.parametrize("join", [{"session": 10}, {"session": "0 seconds"}, {"start": "yesterday"}, {"start": {9: 0}}])
def test_a_join_that_fails_leaves_no_group_behind(cli, stem, orders, place, join):
    with pytest.raises((MainstemError, TypeError)):
        orders.join_group("ghost", **join)

    assert orders.groups() == []
    assert not (place / "shop/topics/orders/groups/ghost").exists()
    assert cli("group", "list") == (0, "no groups yet\n", "")
    assert cli("topic", "describe", "orders").status == 0


def test_a_group_whose_first_member_died_before_it_joined_is_none(cli, stem, orders):
    orders.backend.group_ledger("ghost")
    orders.backend.heartbeats("ghost")

    assert orders.groups() == []
    assert cli("group", "list") == (0, "no groups yet\n", "")
    assert cli("topic", "describe", "orders", "--json").json["groups"] == []
    assert cli("topic", "list", "--json").json[0]["groups"] == []


def test_damaged_groups_and_queues_say_so_in_their_line(cli, stem, orders, place):
    for name in ("good", "bad"):
        orders.join_group(name).leave()
        orders.queue(name)
    stem.close()
    overwrite(place / "shop/topics/orders/groups/bad", "0/*.blocks")
    overwrite(place / "shop/topics/orders/queues/bad", "0/*.blocks")

    for noun in ("group", "queue"):
        listed = {it[noun]: it for it in cli(noun, "list", "--json").json}
        assert "lag" in listed["good"]
        assert listed["bad"] == {"topic": "orders", noun: "bad", "error": listed["bad"]["error"]}
        assert "is damaged" in listed["bad"]["error"]
        assert "cannot be read" in cli(noun, "list").out
        described = {it[noun]: it for it in cli("topic", "describe", "orders", "--json").json[f"{noun}s"]}
        assert (set(described["good"]), set(described["bad"])) == ({noun, "lag"}, {noun, "error"})
    assert cli("topic", "describe", "orders").out.count("cannot be read") == 2


def test_a_damaged_topic_says_so_in_its_line(cli, stem, orders, place):
    for name in ("bad", "worse"):
        stem.create_topic(name, schema="n int").append([{"n": 1}])
        stem.topic(name).join_group("readers").leave()
    stem.close()
    overwrite(place / "shop/topics/bad", "topic.json")
    overwrite(place / "shop/topics/worse", "0/manifest")

    listed = {it["topic"]: it for it in cli("topic", "list", "--json").json}

    assert len(listed["orders"]["partitions"]) == 2
    assert sorted(listed["bad"]) == ["error", "topic"]
    # One damaged partition costs that partition alone.
    assert "manifest" in listed["worse"]["damage"][0]
    assert listed["orders"]["damage"] == []
    shown = cli("topic", "list").out
    assert (shown.count("cannot be read: "), "partition 0: " in shown) == (1, True)
    assert {it["topic"] for it in cli("group", "list", "--json").json} >= {"bad"}
    assert cli("queue", "list").status == 0
    assert cli("group", "list", "bad").status == 1
    assert cli("group", "list", "nowhere").error[0] == 'mainstem.TopicNotFound: topic "nowhere" does not exist'


def test_a_damaged_view_says_so_in_its_line(cli, stem, place):
    run = FlowRun("f", 1)
    rows = pa.table({"k": ["a"], "n": [1]})
    for name in ("good", "bad"):
        stem.view(name, key="k").writer(run, rows.schema).writer.apply(rows, Batch(0, run))
    overwrite(place / "shop/views/bad", "**/*.sqlite")

    listed = {it["view"]: it for it in cli("view", "list", "--json").json}

    assert listed["good"]["rows"] == 1
    assert sorted(listed["bad"]) == ["error", "view"]
    assert "cannot be read" in cli("view", "list").out


def test_a_damaged_flow_says_so_in_its_line(cli, stem, orders, place):
    for name in ("good", "bad"):
        did_batch(stem, began(stem, name), 0, {"orders": {0: 0}})
    overwrite(place / "shop/flows/bad", "flow.json")

    listed = {it["flow"]: it for it in cli("flow", "list", "--json").json}

    assert listed["good"]["batch"] == 0
    assert sorted(listed["bad"]) == ["error", "flow"]
    assert "cannot be read" in cli("flow", "list").out
    stem.close()
    overwrite(place / "shop/topics/mainstem.progress", "0/*.blocks")
    said = cli("flow", "list")
    assert (said.status, "good" in said.out) == (0, True)
    assert said.err.startswith("the last batches are not shown: ")
