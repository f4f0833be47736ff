"""mainstem group list, describe, reset."""

import os

import pytest


@pytest.fixture
def billing(orders):
    """A group that has committed all of partition 0 and nothing of partition 1; nobody is in it."""
    orders.append([{"order_id": "a"}, {"order_id": "b"}], partition=0)
    orders.append([{"order_id": "c"}, {"order_id": "d"}, {"order_id": "e"}], partition=1)
    with orders.join_group("billing") as member:
        member.seek({0: 2, 1: 0})
        member.commit()
    return orders.group("billing")


def test_list_shows_the_groups_of_all_topics(cli, stem, billing):
    stem.create_topic("other", schema="n INT")

    heading, _, line = cli("group", "list").out.splitlines()

    assert heading.split() == ["topic", "group", "members", "behind", "size", "oldest", "drops", "in"]
    assert line.split()[:4] == ["orders", "billing", "0", "3"]
    assert cli("group", "list", "other") == (0, "no groups yet\n", "")
    [facts] = cli("group", "list", "orders", "--json").json
    assert (facts["topic"], facts["group"], facts["members"]) == ("orders", "billing", [])
    assert (facts["lag"]["records"], facts["lag"]["until_dropped_seconds"]) == (3, None)
    assert facts["lag"]["bytes"] > 0


def test_describe_shows_members_and_partitions(cli, orders, billing):
    with orders.join_group("billing") as member:
        shown = cli("group", "describe", "orders", "billing").out
        facts = cli("group", "describe", "orders", "billing", "--json").json

    [someone] = facts["members"]
    assert (someone["pid"], someone["partitions"], someone["session"]) == (os.getpid(), [0, 1], 10.0)
    assert [(it["partition"], it["committed"], it["lag"]["records"]) for it in facts["partitions"]] == [
        (0, 2, 0),
        (1, 0, 3),
    ]
    assert {it["member"] for it in facts["partitions"]} == {someone["id"]}
    assert facts["lag"]["records"] == 3
    assert str(os.getpid()) in shown
    assert member.group == "billing"


def test_describe_of_a_group_without_members(cli, billing):
    assert "\nno members now\n" in cli("group", "describe", "orders", "billing").out


def test_describe_tells_when_the_next_record_is_dropped(cli, orders, billing):
    orders.alter(keep="7 days")

    lag = cli("group", "describe", "orders", "billing", "--json").json["lag"]

    assert 0 < lag["until_dropped_seconds"] <= 7 * 86_400
    assert "6 days 23 hours" in cli("group", "describe", "orders", "billing").out


@pytest.mark.parametrize(
    ("to", "offsets", "committed"),
    [
        ("earliest", "0:0,1:0", [0, 0]),
        ("latest", "0:2,1:3", [2, 3]),
        ("1:2", "1:2", [2, 2]),
        ("2020-01-01T00:00Z", "0:0,1:0", [0, 0]),
    ],
)
def test_reset_lets_a_group_go_on_elsewhere(cli, billing, to, offsets, committed):
    said = cli("group", "reset", "orders", "billing", "--to", to)

    assert said == (0, f"group billing of orders continues from {offsets}\n", "")
    assert [it.committed for it in billing.describe().partitions] == committed


def test_reset_is_refused_while_somebody_reads(cli, orders, billing):
    with orders.join_group("billing"):
        error = cli("group", "reset", "orders", "billing", "--to", "earliest").error

    assert error[0].startswith("mainstem.Conflict: ")
    assert len(error) == 3


def test_a_group_that_is_not_there(cli, billing):
    assert cli("group", "describe", "orders", "biling").error == [
        'mainstem.GroupNotFound: topic "orders" has no group "biling"',
        "Detail: It has 1: billing.",
        'Hint: Did you mean "billing"?',
    ]
