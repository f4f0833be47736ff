"""mainstem check and mainstem run, with Spark: in the test's own process, and once in another one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.flows import native_catch_up
from mainstem.spark.sources.topic_writer import TopicWriter
from mainstem.workbench.cli.metrics_server import MetricsServer
from tests.workbench.conftest import rows

PROGRAM = """
from pyspark.sql import functions as F
from mainstem import Flow


def flows(stem):
    orders = stem.topic("orders").stream()
    yield Flow(orders.where("amount > 20").drop("record"), into=stem.topic("big_orders"))
    yield Flow(orders.groupBy("store").agg(F.count("*").alias("n")), into=stem.view("per_store", key="store"))
"""
ORDERS = [
    {"order_id": "o-1", "store": "Berlin", "amount": 12.5},
    {"order_id": "o-2", "store": "Paris", "amount": 30.0},
    {"order_id": "o-3", "store": "Berlin", "amount": 50.0},
]
SECONDS_MAX = 300


@pytest.fixture
def shop(place, orders) -> Path:
    orders.append(ORDERS)
    (place / "shop.py").write_text(PROGRAM)
    return place


@pytest.mark.usefixtures("spark", "shop")
def test_check_shows_every_flow_and_starts_none(cli):
    said = cli("check", "shop.py")
    facts = cli("check", "shop.py", "--json").json

    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        "big_orders",
        "  reads  orders: order_id, store, amount, placed_at (4 of 5 columns)",
        "  keeps  nothing from one batch to the next",
        "  into   topic big_orders, each row once (output mode update)",
        "  run    new, 3 rows to read",
        "",
        "per_store",
        "  reads  orders: store (1 of 5 columns)",
        "  keeps  aggregate: bounded state (one row for each store)",
        "  into   view per_store, rows as they change (output mode update)",
        "  run    new, 3 rows to read",
        "",
        "2 flows, 0 warnings; nothing was started",
    ]
    assert [flow["flow"] for flow in facts["flows"]] == ["big_orders", "per_store"]
    assert facts["flows"][1]["operators"] == [{"operator": "aggregate", "bounded_by": "one row for each store"}]
    assert facts["flows"][1]["sink"] == {"kind": "view", "name": "per_store"}
    assert facts["flows"][1]["schema"] == "store STRING, n BIGINT"
    with MetricsServer(("127.0.0.1", 0), str) as taken:
        port = taken.url.split(":")[2].removesuffix("/metrics")
        assert cli("run", "shop.py", "--metrics", port).error[0].startswith("mainstem.Unavailable: metrics cannot")
    assert cli("flow", "list").out == "no flows yet\n"
    assert cli("view", "list").out == "no views yet\n"
    assert [flow["sealed_files_first"] for flow in facts["flows"]] == [None, None]


@pytest.mark.usefixtures("spark", "shop")
def test_check_says_which_flows_would_read_sealed_files_first(cli, orders, monkeypatch):
    orders.seal()
    orders.append(ORDERS[:1])
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 3)

    # The rows of the other flow are computed by the reader of the topic.
    assert cli("check", "shop.py").out.splitlines().count(
        "  first  3 rows from sealed files, natively; then the topic"
    ) == 1  # fmt: skip
    flows = {flow["flow"]: flow["sealed_files_first"] for flow in cli("check", "shop.py", "--json").json["flows"]}
    assert flows == {"big_orders": None, "per_store": {"rows": 3, "rows_in": 0}}


@pytest.mark.usefixtures("spark", "shop")
def test_check_finds_what_is_wrong_and_names_the_line(cli, place):
    (place / "column.py").write_text(PROGRAM.replace("amount > 20", "amuont > 20"))
    (place / "topic.py").write_text(PROGRAM.replace('"orders"', '"ordres"'))

    first, detail, hint = cli("check", "column.py").error
    assert first == 'mainstem.SchemaMismatch: the program uses the column "amuont", which does not exist'
    assert "line 8 of column.py" in detail
    assert hint == 'Hint: Did you mean "amount"?'
    first, detail, _ = cli("check", "topic.py").error
    assert first == 'mainstem.TopicNotFound: topic "ordres" does not exist'
    assert "line 7 of topic.py" in detail


HOLDER = """
import os, signal
import mainstem
from mainstem.file_locks import WRITE
with mainstem.open("shop", upkeep="manual").log.transactions.ledger().partition.lock.hold(WRITE):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.usefixtures("spark", "shop")
def test_run_until_idle_fills_the_sinks_and_says_where_it_stands(cli, stem, place):
    said = cli("run", "shop.py", "--until-idle", "--json")

    assert (said.status, said.err) == (0, "")
    last = {line["flow"]: line for line in said.lines}
    assert {name: (line["state"], line["lag_records"]) for name, line in last.items()} == {
        "big_orders": ("stopped", 0),
        "per_store": ("stopped", 0),
    }
    assert rows(stem.topic("big_orders"), "order_id") == ["o-2", "o-3"]
    assert cli("view", "get", "per_store", "Berlin", "--json").json == {"store": "Berlin", "n": 2}
    assert cli("view", "list", "--json").json[0]["lag"]["records"] == 0
    assert {it["flow"]: it["state"] for it in cli("flow", "list", "--json").json} == {
        "big_orders": "stopped",
        "per_store": "stopped",
    }

    assert [flow["run"]["outcome"] for flow in cli("check", "shop.py", "--json").json["flows"]] == ["unchanged"] * 2
    changed = PROGRAM.replace(
        'groupBy("store").agg(F.count("*")', 'groupBy("store").agg(F.max("amount").cast("bigint")'
    )
    (place / "changed.py").write_text(changed.replace("amount > 20", "amount > 30"))
    checked = cli("check", "changed.py")
    assert [line for line in checked.out.splitlines() if line.startswith("  run")] == [
        "  run    unchanged",
        "  run    must be rebuilt, 3 rows to read: aggregate: of count(1) -> CAST(max(amount) AS BIGINT)",
    ]
    assert checked.err.splitlines()[-1] == (
        'Warning: flow "per_store" cannot continue with its checkpoint. Build a new version beside the live one: '
        "mainstem view rebuild per_store --program changed.py. That replays 3 rows."
    )

    stem.topic("orders").append([{"order_id": "o-4", "store": "Rome", "amount": 99.0}])
    holder = subprocess.Popen([sys.executable, "-c", HOLDER])
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        again = cli("run", "shop.py", "--until-idle", "--flow", "big_orders", "--take-over")
    finally:
        holder.kill()
        holder.wait()

    assert again.err.startswith(f"took over transactions; ended the stopped process {holder.pid} (")
    heading, _, line = again.out.splitlines()[-3:]
    assert heading.split()[:4] == ["flow", "state", "last", "batch"]
    assert line.split() == ["big_orders", "stopped", "1", "1", "1", "0", "0", "0", "0"]
    assert cli("view", "get", "per_store", "Rome").status == 1
    assert cli("run", "shop.py", "--flow", "big_order").error[2] == 'Hint: Did you mean "big_orders"?'


@pytest.mark.usefixtures("spark", "shop")
def test_a_flow_that_fails_is_told_first_and_the_others_go_on(cli, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("the sink is broken")

    monkeypatch.setattr(TopicWriter, "_write", refuse)
    pages: list[str] = []
    monkeypatch.setattr(MetricsServer, "__exit__", lambda self, *_: pages.append(self._server.page()))

    said = cli("run", "shop.py", "--until-idle", "--metrics", "127.0.0.1:0")

    assert said.status == 1
    assert said.err.splitlines()[0].startswith("metrics at http://127.0.0.1:")
    assert said.err.splitlines()[1] == 'mainstem.FlowFailed: flow "big_orders" stopped at batch 0'
    assert "ValueError: the sink is broken" in said.err.splitlines()[2]
    states = {line.split()[0]: line.split()[1:4] for line in said.out.splitlines()[-2:]}
    assert states == {"big_orders": ["failed", "none", "0"], "per_store": ["stopped", "0", "3"]}
    assert 'mainstem_flow_running{flow="big_orders"} 0\n' in pages[0]
    assert 'mainstem_flow_rows_in_total{flow="per_store"} 3\n' in pages[0]
    assert 'mainstem_flow_lag_records{flow="big_orders"} 3\n' in pages[0]
    shown = cli("flow", "describe", "big_orders", "--json").json
    assert (shown["state"], shown["error"][0]) == ("failed", said.err.splitlines()[1])


@pytest.mark.starts_servers
def test_a_run_in_another_process_is_seen_and_stopped_from_here(cli, shop):
    command = subprocess.Popen(
        [sys.executable, "-m", "mainstem.workbench.cli.main", "run", "shop.py", "--json", "--spark", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background is deaf to Ctrl-C, and so is whatever that starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no lock is taken in it
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert command.stdout is not None
    done: set[str] = set()
    while done != {"big_orders", "per_store"}:
        text = command.stdout.readline()
        assert text, command.communicate(timeout=SECONDS_MAX)
        line = json.loads(text)
        done |= {line["flow"]} if line["batch"] is not None else set()

    running = {it["flow"]: (it["state"], it["pid"]) for it in cli("flow", "list", "--json").json}
    assert running == {"big_orders": ("running", command.pid), "per_store": ("running", command.pid)}
    assert cli("flow", "stop", "big_orders").out == "stopped flow big_orders after batch 0\n"
    assert [it["state"] for it in cli("flow", "list", "--json").json] == ["stopped", "running"]
    assert cli("view", "get", "per_store", "Berlin", "--json").json["n"] == 2
    # Ctrl-C reaches every process of the terminal's group: Spark's Java and its workers too.
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=SECONDS_MAX)

    assert command.returncode == 130
    assert json.loads(out.splitlines()[-1])["state"] == "stopped"
    assert err.splitlines() == ["stopping; press Ctrl-C again to stop at once"]
    assert [it["state"] for it in cli("flow", "list", "--json").json] == ["stopped", "stopped"]
