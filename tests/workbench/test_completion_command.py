"""mainstem completion: what Tab offers, in the shells and without imports."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import mainstem
from mainstem.spark.checkpoint import flow_store
from mainstem.workbench.cli import home_names
from mainstem.workbench.cli.completion_command import SCRIPTS, complete
from tests.workbench.ran_flows import began


@pytest.fixture
def shop(stem, orders):
    """Two topics, a group, a queue and a flow; the queue has a topic of its own."""
    stem.create_topic("customers", schema="id STRING")
    orders.join_group("billing").leave()
    orders.queue("emails")
    began(stem, "revenue", sink="view revenue")
    return stem


def words(*typed: str) -> list[str]:
    return [word for word, _ in complete(typed)]


@pytest.mark.usefixtures("shop")
def test_names_of_the_home_are_offered(place):
    view = mainstem.open("shop").view("per_store", key="store")
    os.makedirs("shop/views/per_store")
    (place / "shop/views/per_store/view.json").write_text("{}")

    assert words("topic", "read", "") == ["customers", "orders", "orders.emails.rejected"]
    assert words("topic", "read", "cu") == ["customers"]
    assert words("topic", "read", "--follow", "--limit", "3", "cu") == ["customers"]
    assert words("topic", "read", "orders", "") == []
    assert words("group", "describe", "orders", "") == ["billing"]
    assert words("queue", "take", "orders", "e") == ["emails"]
    assert words("queue", "acknowledge", "orders", "emails", "") == []
    assert words("flow", "describe", "") == ["revenue"]
    assert words("flow", "stop", "revenue", "") == ["revenue"]
    assert words("run", "shop.py", "--flow", "") == ["revenue"]
    assert words("view", "get", "") == [view.name]
    assert words("view", "get", "per_store", "") == []


def test_commands_and_options_are_offered_with_what_they_are(place):
    assert ("topic", "Topics: create, append, read, maintain.") in complete(["to"])
    assert words("topic", "de") == ["describe", "delete"]
    assert words("--v") == ["--version"]
    assert words("topic", "read", "orders", "--fo") == ["--follow", "--format"]
    assert words("topic", "read", "orders", "--format", "") == ["table", "json", "csv", "arrow"]
    assert words("run", "shop.py", "--take") == ["--take-over"]
    assert words("query", "") == []
    assert words("completion", "") == ["bash", "zsh", "fish"]
    assert words("completion", "bash", "") == []


@pytest.mark.usefixtures("shop")
def test_the_home_is_the_one_that_was_typed(place):
    mainstem.open("other").create_topic("elsewhere", schema="n INT")

    assert words("--home", "other", "topic", "read", "") == ["elsewhere"]
    assert words("--home=other", "topic", "read", "") == ["elsewhere"]
    assert words("topic", "read", "--home", "other", "") == ["elsewhere"]
    assert words("topic", "read", "--home", "nowhere", "") == []


def test_names_are_those_that_the_home_has(shop, orders):
    assert home_names.topic_names(shop.home) == shop.topics()
    assert home_names.view_names(shop.home) == shop.views()
    assert home_names.flow_names(shop.home) == flow_store.flow_names(shop.home) == ["revenue"]
    assert home_names.group_names(shop.home, "orders") == orders.groups()
    assert home_names.queue_names(shop.home, "orders") == orders.queues()


def test_errors_are_silent(cli):
    for typed in (["nonsense", ""], ["topic", "nonsense", ""], ["topic", "read", "\x00"]):
        assert cli("completion", "words", "--", "mainstem", *typed) == (0, "", "")


def test_an_unknown_shell(cli):
    assert cli("completion", "tcsh").error == [
        'mainstem.Invalid: there is no completion for "tcsh"',
        "Detail: It is there for: bash, zsh, fish.",
        "Hint: For example: mainstem completion bash",
    ]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_script_asks_for_words(cli, shell):
    said = cli("completion", shell)

    assert (said.status, said.out) == (0, SCRIPTS[shell])
    assert cli("completion", shell, "--json").json == {"shell": shell, "script": SCRIPTS[shell]}


@pytest.fixture
def tool(place):
    """`mainstem` in a folder, as a shell finds it."""
    (place / "tools").mkdir()
    (place / "tools/mainstem").write_text(f'#!/bin/sh\nexec {sys.executable} -m mainstem.workbench.cli.main "$@"\n')
    (place / "tools/mainstem").chmod(0o755)
    return {**os.environ, "PATH": f"{place}/tools{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.usefixtures("shop")
def test_bash_offers_the_names(tool):
    asked = (
        'source <(mainstem completion bash); COMP_WORDS=(mainstem topic read ""); COMP_CWORD=3; _mainstem; '
        'echo "${COMPREPLY[@]}"; complete -p mainstem'
    )
    ran = subprocess.run(["bash", "-c", asked], env=tool, capture_output=True, text=True)

    assert (ran.stdout, ran.stderr) == (
        "customers orders orders.emails.rejected\ncomplete -o default -F _mainstem mainstem\n",
        "",
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_that_is_there_takes_the_script(tool, place, shell):
    if shutil.which(shell) is None:
        # The scripts of all three are read by people too; those of this machine also by the shell.
        return
    (place / "script").write_text(SCRIPTS[shell])
    ran = subprocess.run([shell, "-n", "script"], env=tool, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")


LOADED = """
import json, sys
from mainstem.workbench.cli.main import run
run(["completion", "words", "--", "mainstem", "queue", "take", "orders", ""])
heavy = ["duckdb", "numpy", "pyarrow", "pydantic", "pyspark", "rich", "sqlglot"]
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


@pytest.mark.usefixtures("shop")
def test_completion_imports_nothing_heavy(place):
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    offered, heavy = ran.stdout.splitlines()
    assert (offered, json.loads(heavy), ran.stderr) == ("emails", [], "")
