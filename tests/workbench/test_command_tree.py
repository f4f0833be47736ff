"""What each command imports: its help, and its own libraries, and no others."""

import json
import subprocess
import sys

import pytest

import mainstem
from mainstem.durations import show_duration, show_size
from mainstem.log.keep_rule import Keep
from mainstem.log.topic_settings import TopicSettings
from mainstem.workbench.cli.command_tree import COMMANDS, load_command
from mainstem.workbench.cli.main import NoPandas, leave_pandas_out
from mainstem.workbench.cli.topic_commands import SETTINGS

HEAVY = ["duckdb", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "sqlglot"]

LOADED = """
import json, sys
from mainstem.workbench.cli.main import leave_pandas_out, run
leave_pandas_out(sys.argv[2:])
status = run(sys.argv[2:])
print(json.dumps([status, [name for name in json.loads(sys.argv[1]) if sys.modules.get(name)]]), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> list[str]:
    """The heavy libraries that a command imports."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(HEAVY), *arguments], capture_output=True, text=True, check=True
    )
    status, found = json.loads(ran.stderr.splitlines()[-1])
    assert status == 0
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["topic", "--help"],
        ["topic", "create", "--help"],
        ["view", "--help"],
        ["capture", "run", "--help"],
    ],
)
def test_help_imports_no_library_but_typer(arguments):
    assert loaded_by(*arguments) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["flow", "list"],
        ["view", "list", "--json"],
        ["topic", "read", "orders"],
        ["group", "list"],
        ["capture", "list"],
    ],
)
def test_a_command_without_sql_and_spark_imports_arrow_alone(place, arguments):
    with mainstem.open("shop") as stem:
        orders = stem.create_topic(
            "orders", schema="id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, price: DOUBLE>>"
        )
        orders.append([{"id": "o-1"}])
        orders.join_group("billing").leave()

    assert loaded_by(*arguments) == ["numpy", "pyarrow"]


def test_a_query_needs_no_pandas_and_no_spark(place):
    with mainstem.open("shop") as stem:
        stem.create_topic("orders", schema="id STRING").append([{"id": "o-1"}])

    assert loaded_by("query", "SELECT * FROM orders") == ["duckdb", "numpy", "pyarrow"]


def test_only_a_program_and_the_doctor_find_pandas(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    for command in ("run shop.py", "check shop.py", "view rebuild revenue --program shop.py", "view check a", "doctor"):
        leave_pandas_out(command.split())
        assert sys.meta_path == []

    leave_pandas_out(["topic", "list"])
    assert sys.meta_path == [NoPandas]
    with pytest.raises(ModuleNotFoundError):
        NoPandas.find_spec("pandas")
    assert NoPandas.find_spec("pyarrow") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_tree_says(name):
    assert load_command(name).name == name or load_command(name).commands


def test_the_help_lists_every_command_with_one_line(cli):
    lines = cli("--help").out.splitlines()

    assert [entry for entry in COMMANDS.values() if not any(line.endswith(entry.help) for line in lines)] == []


def test_an_unknown_noun_is_answered_with_the_nearest(cli):
    assert cli("topc", "list").err.endswith("Error: No such command 'topc'. Did you mean 'topic'?\n")


def test_a_flag_has_no_type_in_the_help(cli):
    assert "--json      Print JSON, for programs." in cli("topic", "list", "--help").out


def test_an_example_in_the_help_is_not_wrapped(cli):
    example = "  Example: mainstem topic read orders --start 2026-01-01T09:00:00Z --limit 10 --format json"

    assert example in cli("topic", "read", "--help").out.splitlines()


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("partitions", str(TopicSettings.partitions)),
        ("tombstones", show_duration(Keep.latest_per_key().tombstones)),
        ("idle_after", show_duration(TopicSettings.idle_after)),
        ("ahead_max", show_duration(TopicSettings.ahead_max)),
        ("record_bytes_max", show_size(TopicSettings.record_bytes_max)),
        ("segment_bytes_max", show_size(TopicSettings.segment_bytes_max)),
        ("segment_age_max", show_duration(TopicSettings.segment_age_max)),
    ],
)
def test_the_help_of_a_setting_ends_with_its_default(setting, default):
    assert SETTINGS[setting].endswith(f"; {default}.")
