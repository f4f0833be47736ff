"""mainstem queue list, describe, take, acknowledge, release, reject, rewind, delete."""

import os
import sys
from datetime import datetime, timedelta

import pytest

from mainstem.workbench.cli import command_arguments as topic_argument
from mainstem.workbench.cli.main import run
from tests.workbench.conftest import rows
from tests.workbench.fake_terminal import Terminal


@pytest.fixture
def jobs(stem):
    """A topic of one partition with five rows."""
    topic = stem.create_topic("jobs", schema="id STRING, kind STRING", key="id")
    topic.append([{"id": f"j-{n}", "kind": "a" if n < 3 else "b"} for n in range(5)])
    return topic


@pytest.fixture
def take(cli, jobs):
    """Takes from the queue "work" and gives what was printed as JSON."""

    def call(*arguments: str) -> list[dict]:
        said = cli("queue", "take", "jobs", "work", "--format", "json", *arguments)
        assert said.status == 0, said.err
        return said.lines

    return call


def counts(cli) -> dict[str, int]:
    return cli("queue", "describe", "jobs", "work", "--json").json["counts"]


def test_take_prints_messages_with_receipts(cli, jobs):
    said = cli("queue", "take", "jobs", "work", "--count", "2")

    heading, _, first, second = said.out.splitlines()
    assert (said.status, said.err) == (0, 'queue "work" of topic "jobs" is new\n')
    assert heading.split() == ["receipt", "delivery", "held", "until", "id", "kind"]
    assert (first.split()[0], first.split()[-2:]) == ("0-0-1", ["j-0", "a"])
    assert (second.split()[0], second.split()[-2:]) == ("0-1-1", ["j-1", "a"])


def test_on_a_terminal_a_take_fits_and_all_columns_can_be_asked_for(stem, monkeypatch, capsys):
    stem.create_topic("jobs", schema="id STRING, note STRING, n INT").append([{"id": "j-0", "note": "x" * 50, "n": 7}])
    monkeypatch.setenv("COLUMNS", "40")
    for arguments in ([], ["--all-columns"]):
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        assert run(["queue", "take", "jobs", f"work{len(arguments)}", *arguments]) == 0
        heading, types, _, line = out.lines
        if arguments:
            assert heading.split() == ["receipt", "delivery", "held", "until", "id", "note", "n"]
            assert line.split()[-2:] == ["x" * 50, "7"]
        else:
            assert (heading.split(), types.split()) == (["receipt", "delivery", "held", "until"], [])
            assert max(map(len, out.lines)) <= 40
            assert capsys.readouterr().err.splitlines()[-1] == (
                "+3 columns: id, note, n; --all-columns or --json shows all"
            )


def test_take_prints_json_for_programs(take):
    [message] = take()

    assert message.pop("held_until").endswith("Z")
    assert message.pop("appended_at").endswith("Z")
    assert message == {
        "receipt": "0-0-1", "partition": 0, "offset": 0, "key": "j-0", "deliveries": 1, "redelivered": False,
        "change": "insert", "headers": [], "row": {"id": "j-0", "kind": "a"},
    }  # fmt: skip


def test_what_was_taken_is_held_by_its_lease_alone(cli, jobs, take):
    take("--count", "3", "--lease", "1 hour")

    # This process goes on, and another one that ended would hold them just the same.
    assert cli("queue", "describe", "jobs", "work", "--json").json["held"] == 3
    assert jobs.open_queue("work").describe().settings.lease == timedelta(hours=1)
    assert [message["row"]["id"] for message in take("--count", "9")] == ["j-3", "j-4"]
    assert take() == []


def test_a_take_may_hold_longer_than_the_queue_says(cli, take):
    take()
    [message] = take("--lease", "2 hours")

    held_until, appended_at = (datetime.fromisoformat(message[name]) for name in ("held_until", "appended_at"))
    assert held_until - appended_at > timedelta(hours=2)


def test_an_empty_take_says_so(cli, stem):
    stem.create_topic("empty", schema="n INT")
    cli("queue", "take", "empty", "work")

    assert cli("queue", "take", "empty", "work") == (0, "", "no message to take\n")
    assert cli("queue", "take", "empty", "work", "--wait", "1 millisecond", "--format", "json") == (0, "", "")


def test_the_first_take_gives_a_queue_its_settings(cli, jobs):
    said = cli(
        "queue", "take", "jobs", "work", "--lease", "1 minute", "--deliveries-max", "3", "--retry", "1 second",
        "--retry-max", "1 minute", "--retry-growth", "exponential", "--ordered", "by key", "--where", "kind = 'b'",
        "--expires", "1 hour", "--length-max", "100", "--start", "0:4",
    )  # fmt: skip
    facts = cli("queue", "describe", "jobs", "work", "--json").json

    assert "j-4" in said.out
    assert facts["settings"] == {
        "lease": "1 minute", "deliveries_max": 3, "ordered": "by key", "where": "kind = 'b'", "expires": "1 hour",
        "length_max": 100, "retry": {"first": "1 second", "max": "1 minute", "growth": "exponential"},
    }  # fmt: skip


def test_a_take_with_other_settings_than_the_queue_has_names_them(cli, take):
    take("--deliveries-max", "3")

    assert cli("queue", "take", "jobs", "work", "--deliveries-max", "3").status == 0
    error = cli("queue", "take", "jobs", "work", "--deliveries-max", "5").error
    assert error[0].startswith("mainstem.Conflict: ")
    assert "eliveries_max is 3, asked for 5" in error[1]


def test_a_wrong_condition_makes_no_queue(cli, jobs):
    error = cli("queue", "take", "jobs", "work", "--where", "knd = 1").error

    assert error[0].startswith("mainstem.Invalid: ")
    assert jobs.queues() == []


def test_a_longest_delay_needs_a_first_one(cli, jobs):
    assert cli("queue", "take", "jobs", "work", "--retry-max", "1 minute").status == 2


# Settling


def test_acknowledged_messages_do_not_come_again(cli, take):
    receipts = [message["receipt"] for message in take("--count", "2")]

    assert cli("queue", "acknowledge", "jobs", "work", *receipts) == (0, "acknowledged 2 messages\n", "")
    assert counts(cli)["acknowledged"] == 2
    assert [message["row"]["id"] for message in take("--count", "9")] == ["j-2", "j-3", "j-4"]


def test_a_receipt_counts_once(cli, take):
    [message] = take()
    cli("queue", "acknowledge", "jobs", "work", message["receipt"])

    for command in (["acknowledge"], ["release"], ["reject", "--reason", "no"]):
        error = cli("queue", command[0], "jobs", "work", message["receipt"], *command[1:]).error
        assert error[0].startswith("mainstem.Fenced: ")
        assert message["receipt"] in error[0] + error[1]
        assert len(error) == 3


def test_a_released_message_comes_again(cli, jobs, take):
    [first] = take()

    said = cli("queue", "release", "jobs", "work", first["receipt"], "--error", "mail server is down")
    [again] = take()

    assert said == (0, "released 1 message\n", "")
    assert (again["row"], again["deliveries"], again["redelivered"]) == (first["row"], 2, True)


def test_a_released_message_waits_for_its_delay(cli, jobs, take):
    [message] = take()
    cli("queue", "release", "jobs", "work", message["receipt"], "--delay", "1 hour", "--error", "mail server is down")

    [parked] = jobs.open_queue("work").parked().to_pylist()
    assert (parked["offset"], parked["last_error"]) == (0, "mail server is down")
    assert [it["row"]["id"] for it in take("--count", "9")] == ["j-1", "j-2", "j-3", "j-4"]


def test_a_rejected_message_goes_to_its_own_topic(cli, stem, take):
    receipts = [message["receipt"] for message in take("--count", "2")]

    said = cli("queue", "reject", "jobs", "work", *receipts, "--reason", "no such address")

    assert said == (0, "rejected 2 messages\n", "")
    rejected = rows(stem.topic("jobs.work.rejected"))
    assert [row["id"] for row in rejected] == ["j-0", "j-1"]
    assert rejected[0]["rejection"]["reason"] == "no such address"
    assert cli("queue", "list", "--json").json[0]["rejected"] == 2


def test_rejected_messages_are_restored_and_dropped_once(cli, jobs, take):
    first, second, third = take("--count", "3")
    cli(
        "queue",
        "reject",
        "jobs",
        "work",
        *(it["receipt"] for it in (first, second, third)),
        "--reason",
        "no such address",
    )

    [*_, shown] = cli("queue", "describe", "jobs", "work", "--json").json["messages"]["rejected"]
    assert (shown["position"], shown["cause"], shown["reason"], shown["deliveries"]) == (
        "0:2",
        "rejected",
        "no such address",
        1,
    )
    assert shown["row"]["id"] == "j-2"
    assert "no such address" in cli("queue", "describe", "jobs", "work").out
    assert cli("queue", "restore", "jobs", "work", "0:0") == (0, "restored 1 message\n", "")
    assert cli("queue", "restore", "jobs", "work", "0:0").error == [
        'mainstem.NotFound: queue "work" has no rejected message 0:0',
        "Detail: It was never rejected, or was restored or dropped already, or the queue was rewound.",
        "Hint: List the rejected messages: queue.rejected(), or mainstem queue describe.",
    ]
    assert cli("queue", "drop", "jobs", "work", "0:1", "--json").json["outcome"] == "dropped"
    assert cli("queue", "list", "--json").json[0]["rejected"] == 1
    [again] = take()
    assert (again["row"]["id"], again["deliveries"]) == ("j-0", 1)


@pytest.mark.parametrize("verb", ["restore", "drop"])
def test_all_rejected_messages_are_settled_after_a_question(cli, jobs, take, verb):
    cli("queue", "reject", "jobs", "work", *(it["receipt"] for it in take("--count", "3")), "--reason", "no")

    assert cli("queue", verb, "jobs", "work", "--all").status != 0
    assert cli("queue", verb, "jobs", "work").status == cli("queue", verb, "jobs", "work", "0:1", "--all").status == 2
    assert cli("queue", "list", "--json").json[0]["rejected"] == 3
    said = cli("queue", verb, "jobs", "work", "--all", "--yes", "--json").json
    assert said["positions"] == ["0:0", "0:1", "0:2"]
    assert cli("queue", "list", "--json").json[0]["rejected"] == 0


def test_describe_names_who_holds_a_message(cli, jobs, take):
    [held] = take()
    [mine] = jobs.open_queue("work").take()
    [late] = jobs.open_queue("work").take()
    late.release(delay="1 hour", error="busy")

    messages = cli("queue", "describe", "jobs", "work", "--json").json["messages"]
    assert [(it["position"], it["held_by"], it["pid"]) for it in messages["held"]] == [
        ("0:0", "lease", None), ("0:1", "process", os.getpid()),
    ]  # fmt: skip
    assert messages["held"][0]["held_until"] == held["held_until"]
    assert [(it["position"], it["last_error"]) for it in messages["delayed"]] == [("0:2", "busy")]
    said = cli("queue", "describe", "jobs", "work").out
    assert f"process {os.getpid()} (" in said
    assert mine.deliveries == 1


def test_settling_stops_at_a_receipt_that_does_not_count(cli, take):
    receipts = [message["receipt"] for message in take("--count", "2")]

    error = cli("queue", "release", "jobs", "work", receipts[0], "0-4-9", receipts[1]).error

    assert error[0].startswith("mainstem.Fenced: ")
    assert error[1].endswith("Of 3 receipts, 1 were released before this one.")
    assert cli("queue", "describe", "jobs", "work", "--json").json["held"] == 1


# The whole queue


def test_list_and_describe_show_how_messages_stand(cli, take):
    receipts = [message["receipt"] for message in take("--count", "3", "--lease", "1 minute")]
    cli("queue", "acknowledge", "jobs", "work", receipts[0])

    heading, _, line = cli("queue", "list", "jobs").out.splitlines()
    shown = cli("queue", "describe", "jobs", "work").out
    facts = cli("queue", "describe", "jobs", "work", "--json").json

    assert heading.split()[:6] == ["topic", "queue", "held", "returned", "parked", "rejected"]
    assert line.split()[:7] == ["jobs", "work", "2", "0", "0", "0", "4"]
    assert "lease           1 minute\n" in shown
    assert "so far          3 delivered, 1 acknowledged\n" in shown
    assert (facts["held"], facts["cursors"], facts["lag"]["records"]) == (2, {"0": 3}, 4)
    assert facts["rejected_topic"] == "jobs.work.rejected"


def test_there_may_be_no_queues(cli, stem):
    assert cli("queue", "list") == (0, "no queues yet\n", "")
    assert cli("queue", "list", "--json").json == []


@pytest.mark.parametrize("to", ["earliest", "0:0", "2020-01-01T00:00:00Z"])
def test_rewind_gives_everything_out_again(cli, take, to):
    receipts = [message["receipt"] for message in take("--count", "5")]
    cli("queue", "acknowledge", "jobs", "work", *receipts)

    assert cli("queue", "rewind", "jobs", "work", "--to", to) == (0, f"rewound queue work of jobs to {to}\n", "")
    assert len(take("--count", "9")) == 5


def test_delete_with_yes_deletes_the_queue_alone(cli, jobs, take):
    take()

    assert cli("queue", "delete", "jobs", "work", "--yes") == (0, "deleted queue work of jobs\n", "")
    assert (jobs.queues(), jobs.to_arrow().num_rows) == ([], 5)


@pytest.mark.parametrize(("answer", "left"), [("yes\n", []), ("\n", ["work"])])
def test_delete_asks(cli, jobs, take, monkeypatch, answer, left):
    take("--count", "2")
    monkeypatch.setattr(topic_argument, "is_interactive", lambda: True)

    said = cli("queue", "delete", "jobs", "work", stdin=answer)

    assert said.err.startswith(
        'Delete queue "work" of topic "jobs", with 2 messages held and 5 records not settled? [y/N]'
    )
    assert jobs.queues() == left


@pytest.mark.parametrize(
    "command",
    [
        ["describe", "jobs", "wrok"],
        ["acknowledge", "jobs", "wrok", "0-0-1"],
        ["release", "jobs", "wrok", "0-0-1"],
        ["reject", "jobs", "wrok", "0-0-1", "--reason", "x"],
        ["rewind", "jobs", "wrok", "--to", "earliest"],
        ["delete", "jobs", "wrok", "--yes"],
    ],
)
def test_a_queue_that_is_not_there(cli, jobs, take, command):
    take()

    assert cli("queue", *command).error == [
        'mainstem.QueueNotFound: topic "jobs" has no queue "wrok"',
        "Detail: It has 1: work.",
        'Hint: Did you mean "work"?',
    ]
    assert jobs.queues() == ["work"]


def test_the_first_queue_is_made_by_a_take(cli, jobs):
    assert cli("queue", "describe", "jobs", "work").error[2] == (
        "Hint: The first take creates it: mainstem queue take jobs work"
    )


def test_columns_of_messages_that_do_not_fit_are_named(cli, orders, monkeypatch):
    orders.append([{"order_id": "o-1", "store": "Berlin", "amount": 1.0}])
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert (
        cli("queue", "take", "orders", "emails").err.splitlines()[-1]
        == "+2 columns: amount, placed_at; --all-columns or --json shows all"
    )
