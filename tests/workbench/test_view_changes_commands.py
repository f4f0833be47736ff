"""`mainstem view history` and `view difference`: what they print."""

import json

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.views.view import View
from mainstem.workbench.cli.main import run

SCHEMA = pa.schema([("store", pa.string()), ("total", pa.int64())])


@pytest.fixture
def home(tmp_path):
    path = str(tmp_path / "shop")
    with mainstem.open(path, upkeep="manual"):
        view = View(path, "revenue", key=["store"], history="1 day")
        for number, total in enumerate((3, 8)):
            first = FlowRun("revenue", epoch=1, version=1)
            rows = pa.table({"store": ["Berlin", "Lisbon"], "total": [total, 1]}, SCHEMA)
            view.writer(first, SCHEMA).apply(rows, Batch(number, first))
        second = FlowRun("revenue", epoch=1, version=2)
        other = pa.table({"store": ["Berlin", "Osaka"], "total": [9, 2]}, SCHEMA)
        view.writer(second, SCHEMA).apply(other, Batch(0, second))
        view.close()
    return path


def test_a_key_has_its_history(home, capsys):
    assert run(["view", "history", "revenue", "Berlin", "--home", home]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["position", "at", "batch", "change", "total"]
    assert shown[2].split()[-5:] == ["1", "update", "3", "->", "8"]
    assert shown[3].split()[-3:] == ["0", "insert", "3"]

    assert run(["view", "history", "revenue", "Berlin", "--limit", "1", "--json", "--home", home]) == 0
    (change,) = json.loads(capsys.readouterr().out)
    assert (change["change"], change["before"], change["after"]) == (
        "update",
        {"store": "Berlin", "total": 3},
        {"store": "Berlin", "total": 8},
    )


def test_two_versions_differ(home, capsys):
    assert run(["view", "difference", "revenue", "1", "2", "--home", home]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(shown[0]) == "version 2 against version 1: 0 same, 1 changed, 1 added, 1 removed"
    assert shown[3:] == [["changed", "Berlin", "8", "->", "9"], ["added", "Osaka", "2"], ["removed", "Lisbon", "1"]]

    assert run(["view", "difference", "revenue", "1", "2", "--skip", "1", "--json", "--home", home]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["removed"], found["rows"]) == (1, [])


def test_what_is_not_there_is_an_error(home, capsys):
    assert run(["view", "difference", "revenue", "1", "9", "--home", home]) == 1
    assert "9" in capsys.readouterr().err
    assert run(["view", "history", "nope", "x", "--home", home]) == 1
