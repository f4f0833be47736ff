"""mainstem init: what it makes works, says what to change, and overwrites nothing."""

import os
import shutil
import subprocess
import sys

import pytest

import mainstem
from mainstem.workbench.cli.init_command import FILES, STEPS


@pytest.fixture
def begun(cli, place, monkeypatch):
    monkeypatch.delenv("MAINSTEM_HOME")
    return cli("init")


def test_it_makes_a_home_a_program_a_test_and_rows_and_says_what_is_next(begun, place):
    assert (begun.status, begun.err) == (0, "")
    assert sorted(path.name for path in place.iterdir()) == ["data", *sorted(FILES)]
    assert begun.out.splitlines() == [
        "shop.py       the program: what is computed",
        "test_shop.py  its tests, without Spark",
        "orders.csv    a few rows to append",
        "data          the home, with the topic orders",
        "",
        "Next:",
        "  mainstem topic append orders orders.csv  append the rows",
        "  mainstem run shop.py --until-idle        run the program, until it has read them",
        "  mainstem view read revenue               see the result",
        "  pytest                                   run the tests (pip install pytest)",
    ]


def test_its_comments_say_what_to_change(begun, place):
    for name in ("shop.py", "test_shop.py"):
        text = (place / name).read_text()
        assert "# To change: " in text
        assert "{" not in text.partition("def ")[0]
    assert "To change those" in (place / "shop.py").read_text()


@pytest.mark.usefixtures("spark")
def test_the_steps_that_it_names_work(cli, begun):
    for step in STEPS:
        command, *arguments = step.split()
        if command == "mainstem":
            said = cli(*arguments)
            assert said.status == 0, said

    assert cli("view", "read", "revenue", "--format", "csv").out == (
        "store,orders,revenue\nBerlin,2,19\nParis,2,34\nRome,1,99\n"
    )
    assert cli("check", "shop.py").err == ""


@pytest.mark.thorough
def test_its_test_passes(begun, place):
    # Without the plugins and the settings of this run.
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider", "."],
        cwd=place, capture_output=True, text=True, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_in_another_directory_the_first_step_goes_there(cli, place):
    said = cli("init", "my shop/first")

    assert "  cd 'my shop/first'" in said.out.splitlines()
    # The variable would lead elsewhere.
    assert "  export MAINSTEM_HOME=data" in said.out.splitlines()
    assert (place / "my shop/first/data/mainstem.json").exists()


def test_a_home_elsewhere_is_named_in_the_steps(cli, place):
    answer = cli("init", "--home", "elsewhere", "--json").json

    assert answer == {
        "directory": ".",
        "home": "elsewhere",
        "topics": ["orders"],
        "files": list(FILES),
        "next_steps": [f"export MAINSTEM_HOME={place}/elsewhere", *STEPS],
    }
    with mainstem.open("elsewhere") as stem:
        assert stem.topics() == ["orders"]


@pytest.mark.parametrize("name", [*FILES, "data"])
def test_it_overwrites_nothing(cli, place, name):
    (place / name).write_text("mine")

    assert cli("init").error == [
        f"mainstem.AlreadyExists: {name} exists already",
        "Detail: Nothing was written; init would make shop.py, test_shop.py, orders.csv, data.",
        "Hint: Name another directory: mainstem init shop",
    ]
    assert [(path.name, path.read_text()) for path in place.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("left", [["data"], ["data", "shop.py"], ["shop.py", "test_shop.py"]], ids=" ".join)
def test_what_an_interrupted_init_has_left_is_completed(cli, begun, place, left):
    whole = {name: (place / name).read_text() for name in FILES}
    for name in {*FILES} - {*left}:
        (place / name).unlink()
    if "data" not in left:
        shutil.rmtree(place / "data")
    if "shop.py" in left:
        (place / "shop.py").write_text(whole["shop.py"][:100])

    assert cli("init").status == 0
    assert {name: (place / name).read_text() for name in FILES} == whole
    with mainstem.open("data") as stem:
        assert stem.topics() == ["orders"]
    assert cli("init").error[0] == "mainstem.AlreadyExists: shop.py exists already"


def test_a_home_in_use_is_not_completed(cli, begun, place):
    with mainstem.open("data") as stem:
        stem.topic("orders").append([{"order_id": "o-1", "placed_at": None}])
    (place / "shop.py").unlink()

    assert cli("init").error[0] == "mainstem.AlreadyExists: data exists already"
    assert not (place / "shop.py").exists()
