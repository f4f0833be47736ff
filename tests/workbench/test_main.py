"""What is common to all commands: help, exit status, which home, how an error looks, being interrupted."""

import os
import signal
import subprocess
import sys

import pytest

import mainstem
from mainstem.errors import MainstemError
from mainstem.workbench.cli import main as main_module
from mainstem.workbench.cli.error_text import error_lines, of_system, visible, with_facts

COMMAND = [sys.executable, "-c", "from mainstem.workbench.cli.main import main; main()"]


def test_help_shows_examples(cli):
    said = cli("--help")

    assert said.status == 0
    assert "mainstem topic append orders orders.csv" in said.out
    assert "Usage: mainstem [OPTIONS] COMMAND [ARGS]..." in said.out


@pytest.mark.parametrize("noun", ["topic", "group", "queue", "flow", "view"])
def test_a_noun_alone_lists_its_verbs(cli, noun):
    said = cli(noun)

    assert "describe" in said.out + said.err


EVERY_COMMAND = [
    (noun, verb)
    for noun, verbs in {
        "topic": "create list describe alter delete append read seal compact verify",
        "group": "list describe reset",
        "queue": "list describe take acknowledge release reject rewind delete",
        "flow": "list describe stop",
        "view": "list describe read get versions rebuild drop",
    }.items()
    for verb in verbs.split()
] + [("init",), ("query",), ("sql",), ("completion",), ("check",), ("run",)]


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_the_help_of_every_command_shows_an_example(cli, command):
    said = cli(*command, "--help")

    assert said.status == 0
    assert f"Example: mainstem {' '.join(command)}" in said.out


def test_the_version(cli):
    assert cli("--version") == (0, f"mainstem {mainstem.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["topic", "sing"], ["topic", "read"], ["topic", "list", "--loud"], ["topic", "read", "orders", "--limit", "0"]],
)
def test_a_command_that_is_not_understood_ends_with_2(cli, arguments):
    said = cli(*arguments)

    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("Usage: mainstem topic")


# Which home


def test_without_a_home_it_says_how_to_give_one(cli, monkeypatch):
    monkeypatch.delenv("MAINSTEM_HOME")

    assert cli("topic", "list").error == [
        "mainstem.Invalid: no home was given",
        'Detail: Neither --home nor MAINSTEM_HOME is set, and "data" here is not a home.',
        (
            "Hint: For example: --home data/shop, or for all later commands: export MAINSTEM_HOME=data/shop. To make one with "
            "a program to begin with: mainstem init"
        ),
    ]


def test_without_a_home_given_data_is_taken_if_it_is_one(cli, monkeypatch):
    monkeypatch.delenv("MAINSTEM_HOME")
    mainstem.open("data").close()

    assert cli("topic", "list") == (0, "no topics yet\n", "")


def test_a_home_is_given_before_the_noun_or_after_the_verb(cli):
    for name in ("first", "second"):
        with mainstem.open(name) as stem:
            stem.create_topic(f"in_{name}", schema="n INT")

    assert "in_first" in cli("--home", "first", "topic", "list").out
    assert "in_second" in cli("topic", "list", "--home", "second").out
    assert "in_second" in cli("--home", "first", "topic", "list", "--home", "second").out


def test_a_home_given_once_is_forgotten_afterwards(cli):
    mainstem.open("other").close()
    cli("--home", "other", "topic", "list")

    assert cli("topic", "list").error[0] == 'mainstem.NotFound: "shop" is not a home'


@pytest.mark.parametrize(
    ("make", "facts"), [(False, "There is no such directory."), (True, "It has no mainstem.json.")]
)
def test_no_command_but_topic_create_makes_a_home(cli, place, make, facts):
    if make:
        (place / "shop").mkdir()

    assert cli("topic", "list").error == [
        'mainstem.NotFound: "shop" is not a home',
        f"Detail: {facts}",
        'Hint: A home is created with its first topic: mainstem topic create orders --schema "..." --home shop',
    ]
    assert (place / "shop").exists() == make


# Errors


def test_an_error_is_three_lines(cli, stem, orders):
    stem.create_topic("payments", schema="n INT")

    assert cli("topic", "describe", "ordres").error == [
        'mainstem.TopicNotFound: topic "ordres" does not exist',
        'Detail: The log in "shop" has 2 topics: orders, payments.',
        'Hint: Did you mean "orders"? Create a topic with: mainstem topic create ordres --schema "..."',
    ]


def test_one_topic_is_not_called_topics(cli, stem, orders):
    assert cli("topic", "describe", "ordres").error[1] == 'Detail: The log in "shop" has 1 topic: orders.'


def test_a_topic_is_called_a_topic(stem, orders):
    with pytest.raises(mainstem.Invalid) as refused:
        mainstem.Flow(orders, into=stem.topic("orders"))
    assert str(refused.value).splitlines()[0] == 'a flow cannot read topic "orders" itself'
    with pytest.raises(mainstem.InvalidRows) as refused:
        orders.append(orders)
    assert refused.value.summary == "rows are Topic, not a list of rows"
    with pytest.raises(mainstem.Invalid) as refused:
        stem.view(orders)
    assert refused.value.detail == "It is of type Topic."


def test_further_lines_of_a_part_stand_below_it():
    error = MainstemError("it failed", detail="First.\nSecond.")

    assert error_lines(error) == ["mainstem.MainstemError: it failed", "Detail: First.\n        Second."]


def test_what_an_error_quotes_does_nothing_to_the_terminal():
    assert visible("a\x1b[2Jb\x9bc\u2028d\ne") == "a\\x1b[2Jb\\x9bc\\u2028d\ne"


def test_another_hint_keeps_the_rest_of_an_error():
    error = mainstem.FellOff("gone", detail="Facts.", hint="Python.", partition=3, first_lost=1, last_lost=9)

    changed = with_facts(error, hint="Words.")

    assert (type(changed), changed.summary, changed.detail, changed.hint) == (
        mainstem.FellOff,
        "gone",
        "Facts.",
        "Words.",
    )
    assert (changed.partition, changed.first_lost, changed.last_lost) == (3, 1, 9)
    assert str(changed) == "gone\nDetail: Facts.\nHint: Words."


def test_what_the_operating_system_refuses_is_told_in_three_lines(cli, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "notes.txt")

    monkeypatch.setattr(main_module, "app", refuse)

    assert cli("topic", "list").error == [
        'mainstem.Unavailable: "notes.txt" cannot be used: Permission denied',
        f"Detail: This process has user id {os.getuid()} and works in {os.getcwd()!r}.",
        "Hint: Check that it is there, and that this user may read and write it.",
    ]


def test_a_working_directory_that_is_gone_is_named_so(place, monkeypatch):
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()

    assert of_system(FileNotFoundError(2, "No such file", "shop")).detail.endswith("a directory that no longer exists.")


# Other processes


def test_whoever_reads_the_output_may_go_away(orders):
    orders.append([{"order_id": f"o-{number}", "store": "x" * 50} for number in range(20_000)])

    command = subprocess.Popen(
        [*COMMAND, "topic", "read", "orders", "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    said = command.stderr.read()
    command.stderr.close()

    assert (command.wait(), said) == (141, b"")


def listen_to_ctrl_c() -> None:
    """What a shell starts in the background is deaf to it, and so is whatever that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_follower_with_130(orders):
    orders.append([{"order_id": "o-1"}])

    command = subprocess.Popen(
        [*COMMAND, "topic", "read", "orders", "--follow", "--start", "earliest", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_ctrl_c,  # noqa: PLW1509 - no lock is taken in it
    )
    assert command.stdout is not None
    assert b"o-1" in command.stdout.readline()
    command.send_signal(signal.SIGINT)

    assert command.communicate() == (b"", b"")
    assert command.returncode == 130
