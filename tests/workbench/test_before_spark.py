"""What can be known without Spark is said before it starts."""

import ast
import socket
from contextlib import suppress

import pytest

from mainstem.workbench.cli.before_spark import flows_named_in
from tests.log.embedded.mounted_disk import small_memory_disk
from tests.needs import needs_root

PROGRAM = """
from mainstem import Flow

def flows(stem):
    orders = stem.topic("orders").stream()
    revenue = stem.view("revenue", key="store")
    yield Flow(orders, into=stem.topic("big_orders"))
    yield Flow(orders, into=revenue)
    yield Flow(orders, stem.files("out"), name="kept")
"""


@pytest.fixture
def without_spark(monkeypatch):
    def started(*_):
        pytest.fail("Spark was started")

    monkeypatch.setattr("mainstem.stem.spark_session", started)


@pytest.fixture
def shop(cli, tmp_path, monkeypatch, without_spark):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(PROGRAM)
    cli("topic", "create", "orders", "--schema", "store STRING, amount DOUBLE")
    return tmp_path


def test_a_port_that_is_taken(cli, shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = cli("run", "shop.py", "--metrics", address)
    assert said.status == 1
    assert said.err.startswith(f"mainstem.Unavailable: metrics cannot be served on {address}")


def test_a_flow_that_the_program_does_not_have(cli, shop):
    said = cli("run", "shop.py", "--flow", "revenu")
    assert said.status == 1
    assert said.err.splitlines()[0] == 'mainstem.FlowNotFound: the program has no flow "revenu"'
    assert "big_orders, revenue, kept" in said.err
    assert 'Did you mean "revenue"?' in said.err


@pytest.mark.parametrize("command", [["run"], ["check"], ["view", "check", "revenue", "--program"]])
def test_a_program_that_is_not_there(cli, shop, command):
    said = cli(*command, "shp.py")
    assert said.status == 1
    assert said.err.startswith('mainstem.NotFound: there is no program "shp.py"')


@pytest.mark.parametrize("command", [["check"], ["rebuild", "--apply"]])
def test_a_view_that_is_not_there(cli, shop, command):
    said = cli("view", command[0], "revenue", "--program", "shop.py", *command[1:])
    assert said.status == 1
    assert said.err.startswith('mainstem.ViewNotFound: view "revenue" does not exist')


def test_a_database_that_is_not_there(cli, shop, postgres, monkeypatch):
    monkeypatch.setenv("MAINSTEM_VIEWS", postgres.address("elsewhere"))
    said = cli("run", "shop.py")
    assert said.status == 1
    assert '"elsewhere" does not exist' in said.err


@needs_root()
def test_a_home_on_a_full_disk(cli, shop, tmp_path):
    with small_memory_disk(tmp_path, "1M") as disk:
        cli("topic", "create", "orders", "--schema", "n BIGINT", "--home", str(disk / "home"))
        with open(disk / "all", "wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        said = cli("run", "shop.py", "--home", str(disk / "home"))
    assert said.status == 1
    assert said.err.startswith(f'mainstem.DiskFull: no space left in "{disk}')


@pytest.mark.parametrize(
    "source",
    [
        "def flows(stem): yield Flow(rows, into=stem.view(name))",
        'def flows(stem): yield Flow(rows, into=stem.view("a"), **more)',
        "def flows(stem): yield from others(stem)",
        "def flows(stem): return made",
        "def flows(stem): return [*made]",
        'def flows(stem):\n for name in names: yield Flow(rows, into=stem.view("a"), name=name)',
        'def flows(stem): yield Flow(rows, into=stem.files("out"))',
        'def flows(stem):\n def more(): yield Flow(rows, into=stem.view("a"))\n yield from more()',
        'def flows(stem):\n into = stem.view("a")\n into = stem.view("b")\n yield Flow(rows, into)',
        '@wrapped\ndef flows(stem): yield Flow(rows, into=stem.view("a"))',
        'def flows(stem): yield Flow(rows, into=stem.view("a"))\nflows = wrapped(flows)',
        "flows = made",
    ],
)
def test_names_that_are_known_only_when_the_program_runs_are_left_to_it(source):
    assert flows_named_in(ast.parse(source)) is None


def test_names_that_a_program_says_plainly():
    assert flows_named_in(ast.parse(PROGRAM)) == ["big_orders", "revenue", "kept"]
    assert flows_named_in(
        ast.parse('def flows(stem): return [Flow(rows, stem.view("a")), m.Flow(r, s, name="b")]')
    ) == [
        "a",
        "b",
    ]
