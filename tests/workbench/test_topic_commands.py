"""mainstem topic: create, list, describe, alter, delete, adopt, seal, compact, verify."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields

import pytest

from mainstem.log.topic_settings import Keep, TopicSettings
from mainstem.workbench.cli import command_arguments as topic_argument
from mainstem.workbench.cli.topic_commands import SETTINGS
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import made_elsewhere, own_settings
from tests.workbench.conftest import rows

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


def test_the_options_are_the_settings_that_there_are():
    given_otherwise = {"name", "schema", "codec", "past_schemas"}
    settings = {field.name for field in fields(TopicSettings)} - given_otherwise

    assert set(SETTINGS) == settings | {"tombstones", "lag_min", "lag_max"}
    assert set(SETTINGS) - settings < {field.name for field in fields(Keep)}


def test_the_help_of_a_setting_says_its_default(cli):
    said = " ".join(cli("topic", "create", "--help").out.split())

    for words in (
        "--partitions <int> Number of partitions; 1.",
        "Maximum size of a segment; 64 MiB.",
        "segment; 1 hour.",
    ):
        assert words in said


@pytest.mark.parametrize("setting", ["key", "event-time"])
def test_alter_has_no_option_for_what_cannot_be_changed(cli, orders, setting):
    said = cli("topic", "alter", "orders", f"--{setting}", "store")

    assert said.status == 2
    assert f"No such option: --{setting}" in said.err


def test_create_again_with_the_same_settings_leaves_it_as_it_is(cli):
    cli(*CREATE)

    assert cli(*CREATE) == (0, "topic orders exists already, with these settings\n", "")


def test_create_again_with_other_settings_names_the_difference(cli):
    cli(*CREATE)

    assert cli(*CREATE, "--partitions", "2").error == [
        'mainstem.Conflict: topic "orders" exists with other settings',
        'Detail: In the existing topic: partitions is "1", asked for "2".',
        'Hint: Open it as it is with stem.topic("orders"), or change it: mainstem topic alter orders ...',
    ]


def test_times_of_a_compacted_topic_mean_nothing_elsewhere(cli, place):
    assert cli(*CREATE, "--lag-min", "1 minute").error == [
        "mainstem.Invalid: --lag-min does not apply to this topic",
        "Detail: It applies to a topic that keeps the latest record per key.",
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
    assert [len(listed["orders"][name]) for name in ("partitions", "groups", "queues")] == [2, 0, 1]
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
        "Detail: The rows of the removed partitions would be lost.",
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
    assert said.err.splitlines()[-1] == "Hint: Add --yes to confirm."
    assert stem.topics() == ["orders"]


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, []), ("n\n", 1, ["orders"]), ("\n", 1, ["orders"])])
def test_delete_asks(cli, stem, orders, monkeypatch, answer, status, left):
    orders.append([{"order_id": "o-1"}])
    monkeypatch.setattr(topic_argument, "is_interactive", lambda: True)

    said = cli("topic", "delete", "orders", stdin=answer)

    assert said.status == status
    assert said.err.startswith('Delete topic "orders" with 1 record, 0 groups and 0 queues? [y/N]: ')
    assert stem.topics() == left


# A topic of other programs, on a real Kafka


CLICKS = [json.dumps({"page": f"/{n}", "clicked_at": "2026-01-01T12:00:00Z", "more": n}).encode() for n in range(4)]


def test_a_topic_of_other_programs_is_adopted_read_and_left_as_it_is(cli, place, kafka_broker: KafkaBroker):
    settings = own_settings(kafka_broker)
    made_elsewhere(settings, "clicks", [*CLICKS, b"no click", b"neither"], partitions=2)
    (place / "shop").mkdir()
    (place / "shop" / "kafka.toml").write_text(
        f'brokers = ["{kafka_broker.address}"]\nprefix = "{settings.prefix}"\npatience = "5 seconds"\n'
    )
    schema = ["--schema", "page STRING, clicked_at TIMESTAMP"]

    adopted = ["topic", "adopt", "clicks", *schema, "--key", "page", "--event-time", "clicked_at"]
    assert cli(*adopted) == (0, "adopted topic clicks, 2 partitions\n", "")
    # Once more is no harm.
    assert cli(*adopted).status == 0
    facts = cli("topic", "describe", "clicks", "--json").json
    assert (facts["key"], facts["event_time"]) == (["page"], "clicked_at")
    read = cli("topic", "read", "clicks", "--format", "json").lines
    assert sorted(row["page"] for row in read) == ["/0", "/1", "/2", "/3"]
    assert len(cli("topic", "read", "clicks.unreadable", "--format", "json").lines) == 2

    assert cli("topic", "adopt", "clisk", *schema).error[0] == (
        'mainstem.TopicNotFound: topic "clisk" does not exist on Kafka'
    )
    assert cli("topic", "adopt", "clicks", "--schema", "page BINARY").error[0] == (
        'mainstem.Conflict: topic "clicks" exists with other settings'
    )
    assert cli("topic", "adopt", "clicks", *schema, "--codec", "xml").error[0] == (
        "mainstem.Invalid: codec of topic \"clicks\" is 'xml'"
    )


def test_a_log_in_the_home_has_nothing_to_adopt(cli, orders):
    assert "cannot be adopted" in cli("topic", "adopt", "orders", "--schema", "n INT").error[0]


# The files of a topic


HOLDER = """
import os, signal
import mainstem
from mainstem.file_locks import UPKEEP
topic = mainstem.open("shop").topic("customers")
with topic.backend.store.partitions[0].lock.hold(UPKEEP):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def customers(stem):
    """A topic that keeps the latest record per key, with a key that changed and one that was deleted."""
    topic = stem.create_topic("customers", schema="id STRING, zip STRING", key="id", keep="latest per key")
    topic.append([{"id": "a", "zip": "1"}, {"id": "b", "zip": "2"}])
    topic.append([{"id": "a", "zip": "3"}])
    return topic


def test_seal_makes_parquet_files(cli, orders, place):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])

    assert cli("topic", "seal", "orders") == (0, "sealed 2 segments of orders\n", "")
    assert cli("topic", "seal", "orders") == (0, "nothing to seal in orders\n", "")
    assert len(list(place.glob("shop/topics/orders/*/*.parquet"))) == 2
    assert len(rows(orders)) == 10


def test_compact_keeps_the_latest_of_each_key(cli, customers):
    customers.seal()

    said = cli("topic", "compact", "customers")

    assert said.status == 0
    assert said.out.startswith("customers: 2 of 3 records are left: 1 replaced, 0 expired tombstones")
    assert rows(customers) == [{"id": "a", "zip": "3"}, {"id": "b", "zip": "2"}]


def test_compact_tells_a_program(cli, customers):
    customers.seal()

    facts = cli("topic", "compact", "customers", "--json").json

    assert (facts["topic"], facts["records_before"], facts["records_after"], facts["removed"]) == ("customers", 3, 2, 1)


def test_compact_drops_what_is_too_much(cli, stem, place):
    topic = stem.create_topic("short", schema="n INT, pad STRING", archive="old", keep="10 KiB")
    for n in range(4):
        topic.append([{"n": n, "pad": "x" * 5000}])
        topic.seal()
    kept = topic.backend.earliest(0)

    said = cli("topic", "compact", "short")
    again = cli("topic", "compact", "short", "--json").json

    assert said.status == 0
    assert said.out.startswith("short: dropped ")
    assert said.out.endswith(" of them archived\n")
    assert topic.backend.earliest(0) > kept
    assert again == {"topic": "short", "segments": 0, "records": 0, "bytes": 0, "archived": 0, "clock_jump": None}
    assert cli("topic", "compact", "short").out == "short: nothing exceeds the retention\n"


def test_compact_has_nothing_to_do_where_every_record_is_kept(cli, orders):
    assert cli("topic", "compact", "orders").error == [
        'mainstem.Invalid: topic "orders" keeps every record',
        "Detail: There is nothing to remove.",
        'Hint: Alter it first, for instance: mainstem topic alter orders --keep "7 days"',
    ]


@pytest.mark.parametrize(("verb", "said"), [("seal", "sealed 1 segment of customers"), ("compact", "customers: 2 of ")])
def test_upkeep_takes_over_from_a_stopped_process(cli, customers, verb, said):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER])
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        refused = cli("topic", verb, "customers")
        taken = cli("topic", verb, "customers", "--take-over")
        ended = holder.wait(timeout=300)
    finally:
        holder.kill()
        holder.wait()

    assert refused.error[1].startswith(f"Detail: Process {holder.pid} (")
    assert taken.status == 0
    assert taken.err.startswith(f'took over "customers" partition 0; ended the stopped process {holder.pid} (')
    assert taken.out.startswith(said)
    assert ended == -signal.SIGKILL


# Verify


def test_verify_says_what_is_sound(cli, orders, customers):
    orders.append([{"order_id": f"o-{n}"} for n in range(10)])
    orders.seal()

    said = cli("topic", "verify")
    facts = cli("topic", "verify", "orders", "--json").json

    assert said.status == 0
    heading, _, first, second = said.out.splitlines()
    assert heading.split() == ["topic", "sound", "records", "size", "sealed", "not", "sealed"]
    assert first.split()[:3] == ["customers", "yes", "3"]
    assert second.split()[:3] == ["orders", "yes", "10"]
    assert [(it["topic"], it["sound"], it["records"], it["problems"]) for it in facts] == [("orders", True, 10, [])]


def test_verify_of_a_home_without_topics(cli, stem):
    assert cli("topic", "verify") == (0, "no topics yet\n", "")


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(("form", "lost"), [("parquet", "0 to 102"), ("blocks", "3 to 102")])
def test_verify_ends_with_1_and_names_the_range_that_is_not(cli, stem, orders, customers, place, form, lost):
    customers.append([{"id": str(n), "zip": "x"} for n in range(100)])
    if form == "parquet":
        customers.seal()
    damaged = next(place.glob(f"shop/topics/customers/0/*.{form}"))
    stem.close()
    flip_a_bit(damaged)

    said = cli("topic", "verify")
    facts = cli("topic", "verify", "--json")

    assert (said.status, facts.status) == (1, 1)
    [problem] = facts.json[0]["problems"]
    assert [(it["topic"], it["sound"]) for it in facts.json] == [("customers", False), ("orders", True)]
    assert (problem["partition"], problem["file"]) == (0, str(damaged))
    lines = said.out.splitlines()
    assert lines[2].split()[:2] == ["customers", "NO"]
    assert lines[-2].startswith(f"customers, partition 0, offsets {lost}: ")
    assert " is damaged" in lines[-2]
    assert lines[-1] == f"    {damaged}"
