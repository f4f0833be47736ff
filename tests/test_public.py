"""The public surface: exactly what is listed, light to import, each name with its words."""

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import mainstem
from mainstem import errors
from mainstem.arguments import checked_call

# Modules that users import, each with a sorted `__all__` of what is defined or offered there.
PUBLIC_MODULES = ["mainstem", "mainstem.errors", "mainstem.operators", "mainstem.sinks", "mainstem.testing"]
# What `import mainstem` and `mainstem --help` must not wait for.
HEAVY = {"confluent_kafka", "duckdb", "numpy", "pandas", "pyarrow", "pyspark", "sqlglot"}

REPORT_LOADED = f"import sys; print(*sorted({HEAVY!r} & sys.modules.keys()))"


def run(program: str) -> list[str]:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_what_a_module_lists_is_sorted(name):
    listed = importlib.import_module(name).__all__

    assert listed == sorted(set(listed))


def test_every_name_listed_is_there():
    assert {name for name in mainstem.__all__ if not hasattr(mainstem, name)} == set()
    assert set(mainstem.__all__) <= set(dir(mainstem))


def test_errors_lists_what_it_defines():
    defined = {
        name
        for name, value in vars(errors).items()
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
        if value.__module__ in ("mainstem", "mainstem.errors")
    }
    assert set(errors.__all__) == defined


def test_every_error_can_be_had_from_the_root():
    assert set(errors.__all__) - {"did_you_mean", "reason_of", "summary_of"} <= set(mainstem.__all__)


def test_what_type_checkers_see_is_what_is_there():
    tree = ast.parse(Path(mainstem.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {name.name: node.module for node in block.body for name in node.names}

    assert sorted(seen) == mainstem.__all__
    assert {name: module for name, module in seen.items() if module != "mainstem.errors"} == mainstem._DEFINED_IN


@pytest.mark.parametrize("name", mainstem.__all__)
def test_every_public_name_says_what_it_is(name):
    assert inspect.getdoc(getattr(mainstem, name))


@pytest.mark.parametrize("name", sorted(set(mainstem.__all__) - set(errors.__all__)))
def test_every_public_name_shows_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(mainstem, name)), "the docstring needs an example; the tests run it"


def test_a_name_that_is_not_there_is_refused_as_by_any_module():
    with pytest.raises(AttributeError, match="module 'mainstem' has no attribute 'Frame'"):
        mainstem.Frame  # noqa: B018


def test_importing_mainstem_loads_nothing_heavy():
    assert run(f"import mainstem; {REPORT_LOADED}") == [""]


def test_reading_the_log_s_names_does_not_load_spark():
    assert "pyspark" not in run(f"from mainstem import *; {REPORT_LOADED}")[-1].split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["topic", "create", "orders", "--schema", "amount BIGINT"],
        ["topic", "append", "orders", "rows.jsonl"],
        ["topic", "list"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_loads_neither_spark_nor_duckdb_unless_it_uses_them(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSTEM_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.jsonl").write_text('{"amount": 1}\n')
    if arguments[0] == "topic" and arguments[1] != "create":
        mainstem.open(tmp_path / "home").create_topic("orders", schema="amount BIGINT")
    said = run(f"""
import sys
sys.argv = {["mainstem", *arguments]!r}
from mainstem.workbench.cli.main import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
{REPORT_LOADED}
""")
    assert ("Usage" if arguments == ["--help"] else "orders") in "\n".join(said)
    assert not {"confluent_kafka", "duckdb", "pyspark"} & set(said[-1].split())
    # pyarrow loads pandas when it makes its first value; without any it is not needed.
    assert "pandas" not in said[-1].split() or arguments[1] in ("append", "list")


def public_calls():
    """Name and function of what users call: of mainstem, of operators and of testing."""
    for module in ("mainstem", "mainstem.capture", "mainstem.operators", "mainstem.sinks", "mainstem.testing"):
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if inspect.isfunction(value):
                yield f"{module}.{name}", value
            elif value.__module__ not in ("mainstem", "mainstem.errors"):
                for member, method in inspect.getmembers(value, inspect.isroutine):
                    if not member.startswith("_"):
                        yield f"{module}.{name}.{member}", getattr(method, "__func__", method)


@pytest.mark.parametrize(
    "name", ["mainstem.open", "mainstem.Topic.queue", "mainstem.operators.table", "mainstem.testing.TestResults.latest"]
)
def test_what_users_call_is_found(name):
    assert name in dict(public_calls())


def test_every_public_function_tells_of_an_argument_that_it_does_not_have():
    # What is made for users, or read by operators, they do not call; a backend they write.
    not_called = ("mainstem.AppendResult.", "mainstem.Lag.", "mainstem.testing.ScriptedRows.", "mainstem.operators.Process.",
                  "mainstem.operators.Timers.", "mainstem.testing.StoreContract.", "mainstem.sinks.Fence.",
                  "mainstem.sinks.Fences.", "mainstem.sinks.StoreBackend.", "mainstem.sinks.StoreChange.")  # fmt: skip
    unchecked = [
        name
        for name, function in public_calls()
        if not name.startswith(not_called) and inspect.isfunction(function) and not hasattr(function, "__wrapped__")
    ]
    assert unchecked == []


def test_operators_can_be_pickled():
    for name in mainstem.operators.__all__:
        value = getattr(mainstem.operators, name)
        assert pickle.loads(pickle.dumps(value)) is value


def test_arguments_that_are_misspelled_missing_or_too_many(tmp_path):
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        topic = stem.create_topic("orders", schema="n INT")
        wrong = {
            lambda: topic.stream(watermrk="1 minute"): [
                'Topic.stream has no argument "watermrk"',
                "Detail: Its arguments are: watermark, start, idle_after.",
                'Hint: Did you mean "watermark"?',
            ],
            lambda: topic.stream("1 minute"): [
                "Topic.stream takes 0 arguments without a name, not 1",
                "Detail: Its arguments are: watermark, start, idle_after.",
                "Hint: Name the others: watermark=...",
            ],
            topic.queue: [
                'Topic.queue needs the argument "name"',
                (
                    "Detail: Its arguments are: name, lease, deliveries_max, retry, ordered, where, expires, length_max, "
                    "start, held_by."
                ),
                "Hint: Give it: name=...",
            ],
            lambda: mainstem.operators.aggregate(None, agregates="count(*) AS n"): [
                'aggregate has no argument "agregates"',
                "Detail: Its arguments are: changes, by, aggregates, name.",
                'Hint: Did you mean "aggregates"?',
            ],
            lambda: mainstem.Flow(None, int=topic): [
                'Flow has no argument "int"',
                "Detail: Its arguments are: rows, into, name, rejected_max, mode, every, rows_max.",
                'Hint: Did you mean "into"?',
            ],
            lambda: stem.topic("orders", topic="orders"): [
                'Mainstem.topic is given the argument "topic" twice',
                "Detail: Its arguments are: topic.",
                "Hint: Give it once.",
            ],
        }
        for call, parts in wrong.items():
            with pytest.raises(mainstem.Invalid) as refused:
                call()
            assert refused.value.parts() == parts
    with pytest.raises(TypeError, match="has no len"):
        checked_call(lambda: len(1))()
