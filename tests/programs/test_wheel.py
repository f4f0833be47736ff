"""The wheel alone: installed into an empty environment, in an empty folder, it does what the first page promises."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.programs.wheel_environment import build_wheel, make_environment

SECONDS_MAX = 600
PROGRAM = """
from mainstem import Flow
from pyspark.sql import functions as F


def flows(stem):
    orders = stem.topic("orders").stream()
    per_store = orders.groupBy("store").agg(F.sum("amount").alias("revenue"))
    yield Flow(per_store, into=stem.view("revenue", key="store"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def run(commands: Path, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in a folder, that finds this environment's commands first and nothing of this source tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSTEM"))}
    environment["PATH"] = f"{commands}{os.pathsep}{environment['PATH']}"
    shell = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)


def said(commands: Path, line: str, folder: Path) -> str:
    done = run(commands, line, folder)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.starts_servers
def test_a_program_runs_where_only_the_wheel_and_its_extra_for_spark_are_installed(wheel, tmp_path):
    commands = make_environment(tmp_path / "environment", wheel, {"spark"})
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(PROGRAM)

    said(commands, 'mainstem topic create orders --schema "store STRING, amount BIGINT" --home data', folder)
    said(commands, """echo '{"store": "Berlin", "amount": 12}' | mainstem topic append orders - --home data""", folder)
    said(commands, "mainstem run shop.py --until-idle --home data", folder)

    assert said(commands, "mainstem view read revenue --format csv --home data", folder) == "store,revenue\nBerlin,12\n"
    where = said(commands, "python -c 'import mainstem; print(mainstem.__file__)'", folder)
    assert where.startswith(str(tmp_path / "environment"))


@pytest.mark.starts_servers
def test_what_init_makes_runs_at_once(wheel, tmp_path):
    commands = make_environment(tmp_path / "environment", wheel, {"spark"})
    folder = tmp_path / "shop"
    folder.mkdir()

    said(commands, "mainstem init .", folder)
    said(commands, "mainstem topic append orders orders.csv", folder)
    said(commands, "mainstem run shop.py --until-idle", folder)

    views = json.loads(said(commands, "mainstem view list --json", folder))
    assert [view["view"] for view in views if view["rows"] > 0] == ["revenue"]


@pytest.mark.thorough
def test_without_the_extra_the_log_works_and_a_program_is_told_what_to_install(wheel, tmp_path):
    commands = make_environment(tmp_path / "environment", wheel, set())
    (tmp_path / "shop.py").write_text(PROGRAM)

    said(commands, 'mainstem topic create orders --schema "store STRING, amount BIGINT" --home data', tmp_path)
    said(commands, """echo '{"store": "Rome", "amount": 7}' | mainstem topic append orders - --home data""", tmp_path)
    answer = said(commands, 'mainstem query "SELECT store FROM orders" --format csv --home data', tmp_path)
    refused = run(commands, "mainstem run shop.py --home data", tmp_path)

    assert answer == "store\nRome\n"
    assert refused.returncode == 1
    assert 'pip install "mainstem[spark]"' in refused.stderr
