"""The command line inside the test's own process, with an empty directory around it."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mainstem
from mainstem.workbench.cli.main import run

ORDERS = "order_id STRING, store STRING, amount DOUBLE, placed_at TIMESTAMP"


class Said(NamedTuple):
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The lines of JSON it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> list[str]:
        """The three lines of an error, after a look at the exit status."""
        assert (self.status, self.out) == (1, "")
        return self.err.splitlines()


Cli = Callable[..., Said]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty directory to work in; the home, once there is one, is `shop` in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSTEM_HOME", "shop")
    return tmp_path


@pytest.fixture
def cli(place, capsys, monkeypatch) -> Cli:
    """Runs a command: cli("topic", "list")."""

    def call(*arguments: str, stdin: str | bytes = b"") -> Said:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        capsys.readouterr()
        status = run(arguments)
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return call


@pytest.fixture
def stem(place):
    """The home, opened beside the command line."""
    with mainstem.open("shop", upkeep="manual") as opened:
        yield opened


@pytest.fixture
def orders(stem):
    """A topic without rows."""
    return stem.create_topic("orders", schema=ORDERS, key="order_id", partitions=2)


def rows(topic, *columns: str) -> list[Any]:
    """The rows of a topic in the order of their first column: as dicts, or the values of one column."""
    found = sorted(topic.to_arrow().drop_columns(["record"]).to_pylist(), key=lambda row: str(next(iter(row.values()))))
    return [row[columns[0]] for row in found] if columns else found


def json_lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)
