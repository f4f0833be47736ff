"""What can be known without Spark is said before it starts."""

import ast
import socket
import subprocess
from contextlib import suppress

import pytest

import mainstem
from mainstem.workbench.cli.before_spark import check_before_spark, flows_named_in
from mainstem.workbench.cli.program_file import load_program
from tests.log.embedded.mounted_disk import read_only_memory_disk, small_memory_disk
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


@needs_root()
@pytest.mark.parametrize(
    "command",
    [
        ["run", "shop.py"],
        ["view", "rebuild", "revenue", "--program", "shop.py", "--apply"],
        ["topic", "append", "orders", "-"],
        ["topic", "create", "others", "--schema", "n BIGINT"],
        ["queue", "take", "orders", "emails"],
    ],
)
def test_a_home_on_a_read_only_disk(cli, shop, tmp_path, command):
    with small_memory_disk(tmp_path, "1M") as disk:
        cli("topic", "create", "orders", "--schema", "n BIGINT", "--home", str(disk / "home"))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        error = cli(*command, "--home", str(disk / "home"), stdin='{"n": 1}').error
    assert error[0].startswith(f'mainstem.Unavailable: "{disk}/home')
    assert error[0].endswith("cannot be used: Read-only file system")
    assert len(error) == 3


@needs_root()
@pytest.mark.parametrize("folder", ["flows", "views"])
def test_a_part_of_the_home_that_cannot_be_written_to(cli, shop, folder):
    (shop / "shop" / folder).mkdir(exist_ok=True)
    with read_only_memory_disk(shop / "shop" / folder):
        error = cli("run", "shop.py").error
    assert error[0].endswith("cannot be used: Read-only file system")
    assert f"shop/{folder}" in error[0]


SOURCES = {
    'stem.topic("ordres").stream()': 'mainstem.TopicNotFound: topic "ordres" does not exist',
    'stem.topic("orders").stream().join(stem.topic("usrs").stream(), "store")': (
        'mainstem.TopicNotFound: topic "usrs" does not exist'
    ),
    'stem.topic("orders").stream().where(stem.topic("orders").stream()["amount"]).union(stem.topic("o").stream())': (
        'mainstem.TopicNotFound: topic "o" does not exist'
    ),
    'stem.topics("shop.*").stream()': 'mainstem.TopicNotFound: no topic matches "shop.*"',
    'stem.view("stores").stream()': 'mainstem.ViewNotFound: view "stores" does not exist',
    'stem.topic("orders").stream(watermark="1 minute")': 'mainstem.Invalid: topic "orders" has no event time',
    'enrich(stem.topic("orders").stream(), stem.view("stores"), on="store", at=latest())': (
        'mainstem.ViewNotFound: view "stores" does not exist'
    ),
}


@pytest.mark.parametrize("command", [["run"], ["check"]])
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_is_not_there(cli, shop, command, source):
    (shop / "shop.py").write_text(
        "from mainstem import Flow\nfrom mainstem.operators import enrich, latest\n\n"
        f'def flows(stem):\n    yield Flow({source}, into=stem.topic("out"))\n'
    )
    error = cli(*command, "shop.py").error
    assert error[0] == SOURCES[source]
    assert "It is line 5 of shop.py: yield Flow(" in error[1]


def test_a_source_that_is_not_there_behind_a_flow_that_is(cli, shop):
    (shop / "shop.py").write_text(
        "from mainstem import Flow\n\ndef flows(stem):\n"
        '    yield Flow(stem.topic("orders").stream().where("amount > 1"), into=stem.topic("big"))\n'
        '    yield Flow(stem.topic("smll").stream(), into=stem.topic("small"))\n'
    )
    assert cli("run", "shop.py").error[0] == 'mainstem.TopicNotFound: topic "smll" does not exist'


@pytest.mark.parametrize(
    "body",
    [
        'yield Flow(stem.topic("big").stream(), into=stem.topic("bigger"))',
        'yield Flow(stem.topics("b*").stream() if "big" in stem.topics() else rows, into=stem.topic("bigger"))',
        'yield Flow(stem.view("v").stream(), into=stem.topic("bigger"))',
        'yield Flow(windowed(rows, by="no", aggregates=[]), into=stem.topic("bigger"))',
        'yield Flow(distinct(rows), into=stem.topic("bigger"))',
        'yield Flow(rows.where(F.col("amount") > 1), into=stem.topic("bigger"))',
        'yield Flow(rows.join(stem.topic("orders").read(), "store"), into=stem.topic("bigger"))',
        "for row in rows.collect(): pass",
        "while rows.isEmpty(): pass",
        "print(stem.spark.version)",
        "print(rows.columns[0], rows.schema)",
        "1 / 0",
        "return 7",
    ],
)
def test_what_only_spark_can_tell_is_left_to_it(cli, shop, body):
    """Neither is a fault seen where there is none, nor is one that is there told in another way than by the build."""
    (shop / "shop.py").write_text(
        "from mainstem import Flow\nfrom mainstem.operators import distinct, windowed\n"
        "from pyspark.sql import functions as F\n\ndef flows(stem):\n"
        '    rows = stem.topic("orders").stream()\n'
        '    yield Flow(rows, into=stem.topic("big"))\n'
        '    yield Flow(rows, into=stem.view("v", key="store"))\n'
        f"    {body}\n"
    )
    with mainstem.open("shop") as stem:
        check_before_spark(stem, load_program("shop.py"))


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
