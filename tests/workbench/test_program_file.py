"""A program by the path of its file: what is loaded, and how its mistakes are told."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import mainstem
from mainstem.errors import Invalid, MainstemError, NotFound, TopicNotFound
from mainstem.spark.hidden_libraries import check_libraries
from mainstem.workbench.cli.error_text import error_lines
from mainstem.workbench.cli.program_file import load_program
from tests.postgres_server import PASSWORD, QUOTED_PASSWORD

EMPTY = "def flows(stem):\n    return []\n"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """The path and the modules of the test's own process stay as they are."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    yield
    for name in [name for name in sys.modules if name.startswith("mainstem_program_")]:
        del sys.modules[name]


def refused(path: Path | str) -> list[str]:
    with pytest.raises(MainstemError) as caught:
        load_program(str(path))
    return error_lines(caught.value)


def test_a_program_is_its_function_flows(place):
    (place / "shop.py").write_text(EMPTY + 'if __name__ == "__main__":\n    raise SystemExit("not now")\n')

    program = load_program("shop.py")

    assert (program.path, program.flows(None)) == ("shop.py", [])


def test_a_program_imports_what_lies_beside_it_and_may_be_called_as_a_module_of_python(place):
    (place / "prices.py").write_text("LIMIT = 1000\n")
    (place / "json.py").write_text("import prices\n\ndef flows(stem):\n    return [prices.LIMIT]\n")

    assert load_program(str(place / "json.py")).flows(None) == [1000]
    assert pickle.__name__ != sys.modules["json"].__name__ == "json"
    assert "dumps" in vars(sys.modules["json"])


@pytest.mark.parametrize("name", ["pandas.py", "pyspark.py", "numpy/__init__.py"])
def test_a_file_beside_it_that_hides_a_library_is_named(place, name):
    (place / "shop.py").write_text(EMPTY)
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("")
    library = name.removesuffix(".py").removesuffix("/__init__")

    assert refused("shop.py") == [
        f'mainstem.Invalid: "{place}/{name}" hides the library {library}',
        (
            "Detail: Python imports what lies beside the program instead of the library of the same name, which Mainstem or "
            "Spark needs."
        ),
        "Hint: Rename it.",
    ]


def test_a_folder_of_data_and_the_library_itself_hide_nothing(place):
    (place / "pandas").mkdir()
    check_libraries(str(place))
    check_libraries(str(Path(mainstem.__file__).parent.parent))


def test_a_dataclass_in_a_program_knows_its_module(place):
    (place / "shop.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        f"@dataclass\nclass Limit:\n    amount: int\n\n{EMPTY}"
    )

    assert load_program("shop.py").flows(None) == []


def test_functions_of_a_program_travel_without_the_file(place):
    (place / "shop.py").write_text("def doubled(n):\n    return 2 * n\n\n" + EMPTY)
    from pyspark import cloudpickle

    load_program("shop.py")
    data = cloudpickle.dumps(sys.modules["mainstem_program_shop"].doubled)
    said = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(21))"],
        input=data,
        capture_output=True,
        cwd="/",
    )

    assert said.stdout == b"42\n"


def test_a_file_that_is_not_there(place):
    (place / "shop.py").write_text(EMPTY)

    assert refused("shops.py") == [
        'mainstem.NotFound: there is no program "shops.py"',
        f"Detail: The current directory is {str(place)!r}. Python files there: shop.py.",
        'Hint: Did you mean "shop.py"?',
    ]
    assert refused("xyz.py")[2] == "Hint: Give the path of a Python file with a function `flows`."


def test_a_file_that_is_not_python_is_told_by_its_line(place):
    (place / "shop.py").write_text("import os\n\ndef flows(stem)\n    return []\n")

    first, detail, _ = refused("shop.py")

    assert first == 'mainstem.Invalid: "shop.py" is not Python, at line 3'
    assert detail == "Detail: expected ':': def flows(stem)"


def test_a_file_that_fails_is_told_by_its_line(place):
    (place / "shop.py").write_text("import os\n\nLIMIT = limits['big']\n")

    assert refused("shop.py")[:2] == [
        'mainstem.Invalid: "shop.py" failed while it was loaded',
        "Detail: NameError: name 'limits' is not defined. It is line 3 of shop.py: LIMIT = limits['big'].",
    ]
    assert "mainstem_program_shop" not in sys.modules


@pytest.mark.parametrize("line", ['up = F.udf(str.upper, "string")', 'large = F.col("amount") > 100'])
def test_a_line_that_needs_spark_is_moved_into_flows(place, line):
    (place / "shop.py").write_text(
        f"from pyspark.sql import functions as F\n{line}\n\ndef flows(stem):\n    return []\n"
    )
    load = "from mainstem.workbench.cli.program_file import load_program; load_program('shop.py')"
    # In a process without a session.
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", load], env=here, capture_output=True, text=True).stderr.splitlines()

    assert said[-3] == 'mainstem.Invalid: "shop.py" failed while it was loaded'
    assert said[-2].endswith(f"It is line 2 of shop.py: {line}.")
    assert said[-1] == "Hint: Spark starts after the program is loaded. Move this line into the function `flows`."


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def flow(stem): ...\n\ndef _inner(): ...\n", "It defines: flow."),
        ("from os import getcwd\n", "It defines no functions."),
        ("flows = []\n", "It is list, which cannot be called."),
    ],
)
def test_a_file_without_the_function(place, text, facts):
    (place / "shop.py").write_text(text)

    assert refused("shop.py") == [
        'mainstem.Invalid: "shop.py" has no function `flows`',
        f"Detail: {facts}",
        "Hint: Write: def flows(stem): yield Flow(rows, into=sink).",
    ]


def test_without_pyspark_it_says_how_to_get_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    (place / "shop.py").write_text(EMPTY)
    (place / "uses.py").write_text("from pyspark.sql import functions as F\n" + EMPTY)

    for name in ("shop.py", "uses.py"):
        first, _, hint = refused(name)
        assert first == "mainstem.NotFound: PySpark is not installed"
        assert hint == 'Hint: Install it with Mainstem: pip install "mainstem[spark]".'


def test_what_fails_while_flows_are_built_is_told_by_its_line(place, stem):
    (place / "shop.py").write_text('def flows(stem):\n    yield stem.topic("orders")\n    yield prices["big"]\n')
    program = load_program("shop.py")
    stem.create_topic("orders", schema="n INT")

    with pytest.raises(Invalid) as caught, program.locate_errors():
        list(program.flows(stem))

    assert error_lines(caught.value)[:2] == [
        "mainstem.Invalid: the function `flows` failed",
        "Detail: NameError: name 'prices' is not defined. It is line 3 of shop.py: yield prices[\"big\"].",
    ]


def test_our_own_errors_get_the_line_too(place, stem):
    (place / "shop.py").write_text('def flows(stem):\n    yield stem.topic("orders")\n')
    program = load_program("shop.py")

    with pytest.raises(TopicNotFound) as caught, program.locate_errors():
        list(program.flows(stem))

    assert caught.value.detail.endswith('has no topics yet. It is line 2 of shop.py: yield stem.topic("orders").')


def test_what_is_not_the_program_s_fault_is_left_alone(place):
    (place / "shop.py").write_text(EMPTY)
    program = load_program("shop.py")

    with pytest.raises(KeyError), program.locate_errors():
        {}["x"]
    with pytest.raises(NotFound) as caught, program.locate_errors():
        raise NotFound("gone", detail="Facts.")

    assert caught.value.detail == "Facts."


def test_a_hint_names_the_program(place):
    (place / "my shop.py").write_text(EMPTY)
    file = load_program("my shop.py")
    with pytest.raises(Invalid) as told, file.locate_errors():
        raise Invalid("it changed", hint="Rebuild it: mainstem view rebuild revenue --program FILE.")
    assert told.value.hint == "Rebuild it: mainstem view rebuild revenue --program 'my shop.py'."


@pytest.mark.parametrize("password", [PASSWORD, QUOTED_PASSWORD])
@pytest.mark.parametrize(
    "line",
    [
        'yield Capture("shop", postgres("postgresql+psycopg://admin:{}@db/shop", tables=["orders"]))',
        'yield Capture("shop", postgres("postgresql://admin:{}@db/shop", tables=[]))',
        'yield Capture("shop", postgres("postgresql://admin:{}@db/shop", tables="orders"))',
        'yield Capture("shop", postgres("postgresql://admin:{}@db/shop", tables=["orders", "orders"]))',
        'yield Capture("a shop?", postgres("postgresql://admin:" + "{}" + "@db/shop", tables=["orders"]))',
        'yield Capture("shop", postgres("postgresql://admin@db/shop?password={}", tables=[]))',
        'raise ValueError("cannot use postgresql://admin:{}@db/shop")',
        'yield Capture("shop", postgres("postgresql://admin:{}@db/shop", tables=["orders"])',
    ],
)
def test_a_line_with_a_password_is_not_quoted(place, cli, line, password):
    (place / "shop.py").write_text(
        "from mainstem import Capture\nfrom mainstem.capture import postgres\n\ndef captures(stem):\n    "
        + line.replace("{}", password)
    )

    said = cli("capture", "setup", "shop.py")

    assert said.status == 1
    assert "s3cret" not in said.out + said.err
    assert "canary" not in said.out + said.err
    assert "line 5" in said.err
