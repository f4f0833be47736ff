"""mainstem topic create, list, describe, alter, delete."""

import pytest

from mainstem.workbench.cli import command_arguments as topic_argument

CREATE = ["topic", "create", "orders", "--schema", "order_id STRING, amount DOUBLE, placed_at TIMESTAMP"]


def test_create_makes_the_home_and_the_topic(cli, place):
    said = cli(
        *CREATE, "--key", "order_id", "--event-time", "placed_at", "--partitions", "3", "--keep", "7 days, 1 GiB"
    )

    assert said == (0, "created topic orders\n", "")
    facts = cli("topic", "describe", "orders", "--json").json
    assert facts["schema"] == "order_id STRING, amount DOUBLE, placed_at TIMESTAMP"
    assert (facts["key"], facts["event_time"], facts["keep"]) == (["order_id"], "placed_at", "7 days, 1 GiB")
    assert [partition["partition"] for partition in facts["partitions"]] == [0, 1, 2]


def test_every_setting_of_a_topic_can_be_given(cli):
    cli(
        "topic", "create", "customers", "--schema", "a STRING, b INT", "--key", "a, b", "--keep", "latest per key",
        "--tombstones", "2 hours", "--lag-min", "1 minute", "--lag-max", "1 hour", "--archive", "old",
        "--idle-after", "5 seconds", "--ahead-max", "2 hours", "--record-bytes-max", "1 MiB",
        "--segment-bytes-max", "8 MiB", "--segment-age-max", "10 minutes",
    )  # fmt: skip
    facts = cli("topic", "describe", "customers", "--json").json

    assert facts["key"] == ["a", "b"]
    assert facts["keep"] == "latest per key (tombstones 2 hours, lag_min 1 minute, lag_max 1 hour)"
    assert facts["archive"].endswith("/old")
    assert (facts["idle_after"], facts["ahead_max"], facts["segment_age_max"]) == ("5 seconds", "2 hours", "10 minutes")
    assert (facts["record_bytes_max"], facts["segment_bytes_max"]) == (1 << 20, 8 << 20)


def test_create_again_with_the_same_settings_leaves_it_as_it_is(cli):
    cli(*CREATE)

    assert cli(*CREATE) == (0, "topic orders was there already, with these settings\n", "")


def test_create_again_with_other_settings_names_the_difference(cli):
    cli(*CREATE)

    assert cli(*CREATE, "--partitions", "2").error == [
        'mainstem.Conflict: topic "orders" exists with other settings',
        'Detail: Of the topic that is there: partitions is "1", asked for "2".',
        'Hint: Open it as it is with stem.topic("orders"), or change it: mainstem topic alter orders ...',
    ]


def test_times_of_a_compacted_topic_mean_nothing_elsewhere(cli, place):
    assert cli(*CREATE, "--lag-min", "1 minute").error == [
        "mainstem.Invalid: --lag-min says nothing about this topic",
        "Detail: It belongs to a topic that keeps the latest record per key.",
        'Hint: Give --keep "latest per key" with it.',
    ]
    assert not (place / "shop").exists()


def test_list_shows_every_topic(cli, stem, orders):
    stem.create_topic("payments", schema="n INT", keep="1 day")
    orders.append([{"order_id": "o-1"}, {"order_id": "o-2"}])
    orders.queue("emails")

    heading, _, *lines = cli("topic", "list").out.splitlines()
    shown = {line.split()[0]: line.split() for line in lines}
    listed = {it["topic"]: it for it in cli("topic", "list", "--json").json}

    assert heading.split() == ["topic", "partitions", "records", "size", "keep", "last", "append", "groups", "queues"]
    assert list(shown) == list(listed) == stem.topics()
    assert shown["orders"][1:3] == ["2", "2"]
    assert (shown["payments"][1:3], shown["payments"][-3:]) == (["1", "0"], ["never", "0", "0"])
    assert [listed["orders"][name] for name in ("partitions", "records", "groups", "queues")] == [2, 2, 0, 1]
    assert [listed["payments"][name] for name in ("records", "keep", "appended_at")] == [0, "1 day", None]


def test_describe_shows_partitions_and_who_reads(cli, orders):
    orders.append([{"order_id": f"o-{n}", "amount": 1.0} for n in range(10)])
    orders.queue("emails")
    with orders.join_group("billing") as member:
        batch = member.poll(wait="5 seconds")
        member.commit()

    shown = cli("topic", "describe", "orders").out
    facts = cli("topic", "describe", "orders", "--json").json

    assert "schema          order_id STRING, store STRING, amount DOUBLE, placed_at TIMESTAMP\n" in shown
    assert "key             order_id\n" in shown
    assert (facts["records"], sum(it["end"] for it in facts["partitions"])) == (10, 10)
    assert [it["start"] for it in facts["partitions"]] == [0, 0]
    assert all(it["segments"] == 1 and it["sealed"] == 0 and it["bytes"] > 0 for it in facts["partitions"])
    assert [(it["group"], it["lag"]["records"]) for it in facts["groups"]] == [("billing", 10 - batch.num_rows)]
    assert [(it["queue"], it["lag"]["records"]) for it in facts["queues"]] == [("emails", 10)]
    assert facts["queues"][0]["lag"]["until_dropped_seconds"] is None


def test_describe_counts_what_is_sealed(cli, orders):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])
    cli("topic", "seal", "orders")

    facts = cli("topic", "describe", "orders", "--json").json

    assert (facts["records"], [it["sealed"] for it in facts["partitions"]]) == (10, [1, 1])


def test_markers_and_what_was_aborted_or_is_open_are_no_records(cli, stem, orders):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])
    for outcome in ("commit", "abort"):
        transaction = stem.transaction()
        transaction.append(orders, [{"order_id": f"{outcome}-{n}"} for n in range(3)])
        getattr(transaction, outcome)()
    assert len(orders.to_arrow()) == 13
    for sealed in ([0, 0], [1, 1]):
        facts = cli("topic", "describe", "orders", "--json").json
        assert facts["records"] == 13
        assert [it["sealed"] for it in facts["partitions"]] == sealed
        assert sum(it["end"] for it in facts["partitions"]) > 16
        assert cli("topic", "list").out.splitlines()[2].split()[:3] == ["orders", "2", "13"]
        cli("topic", "seal", "orders")
    with stem.transaction() as transaction:
        transaction.append(orders, [{"order_id": f"open-{n}"} for n in range(3)])
        orders.append([{"order_id": "o-10"}])
        assert cli("topic", "describe", "orders", "--json").json["records"] == len(orders.to_arrow())


def test_alter_adds_a_column_and_changes_what_is_kept(cli, orders):
    said = cli("topic", "alter", "orders", "--add-column", "note STRING", "--keep", "30 days")

    assert said == (0, "altered topic orders\n", "")
    assert orders.ddl == "order_id STRING, store STRING, amount DOUBLE, placed_at TIMESTAMP, note STRING"
    assert str(orders.settings.keep) == "30 days"


def test_alter_widens_a_type(cli, stem):
    counts = stem.create_topic("counts", schema="n INT")

    cli("topic", "alter", "counts", "--schema", "n BIGINT")

    assert counts.ddl == "n BIGINT"


def test_alter_warns_when_keys_move(cli, orders):
    said = cli("topic", "alter", "orders", "--partitions", "4")

    assert (said.status, said.out) == (0, "altered topic orders\n")
    assert said.err.startswith('Warning: topic "orders" went from 2 to 4 partitions: ')
    assert orders.settings.partitions == 4


def test_alter_refuses_what_the_rows_forbid(cli, orders):
    assert cli("topic", "alter", "orders", "--partitions", "1").error == [
        'mainstem.Invalid: topic "orders" cannot go from 2 to 1 partitions',
        "Detail: The rows of the partitions that went away would have no place.",
        "Hint: Keep 2, or create a new topic and copy the rows.",
    ]


@pytest.mark.parametrize("arguments", [[], ["--schema", "n INT", "--add-column", "m INT"]])
def test_alter_wants_to_know_what(cli, orders, arguments):
    assert cli("topic", "alter", "orders", *arguments).status == 2


def test_delete_with_yes_deletes(cli, stem, orders):
    assert cli("topic", "delete", "orders", "--yes") == (0, "deleted topic orders\n", "")
    assert stem.topics() == []


def test_delete_does_not_guess_where_nobody_can_be_asked(cli, stem, orders):
    said = cli("topic", "delete", "orders")

    assert said.status == 2
    assert "Invalid value for --yes: needed where nobody can be asked" in said.err
    assert stem.topics() == ["orders"]


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, []), ("n\n", 1, ["orders"]), ("\n", 1, ["orders"])])
def test_delete_asks(cli, stem, orders, monkeypatch, answer, status, left):
    orders.append([{"order_id": "o-1"}])
    monkeypatch.setattr(topic_argument, "somebody_is_there", lambda: True)

    said = cli("topic", "delete", "orders", stdin=answer)

    assert said.status == status
    assert said.err.startswith('Delete topic "orders" with 1 record, 0 groups and 0 queues? [y/N]: ')
    assert stem.topics() == left
