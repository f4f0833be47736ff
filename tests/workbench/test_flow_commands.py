"""mainstem flow list, describe, stop: on flows that other processes ran."""

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.durable_files import encode_checked
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process
from mainstem.spark.checkpoint.native_history import NativeHistory, Portion
from mainstem.views.view import View
from tests.waiting import wait_until
from tests.workbench.ran_flows import began, did_batch, killed


@pytest.fixture
def big_orders(stem, orders):
    """A flow that runs, has done two batches, and is two records behind."""
    orders.append([{"order_id": "a"}, {"order_id": "b"}], partition=0)
    orders.append([{"order_id": "c"}, {"order_id": "d"}, {"order_id": "e"}], partition=1)
    run = began(stem, "big_orders")
    did_batch(stem, run, 0, {"orders": {0: 1, 1: 0}}, rows_in=1, rows_out=1)
    did_batch(stem, run, 1, {"orders": {0: 2, 1: 1}}, rows_in=2, rows_out=1, rejected=1, state_rows=7, state_bytes=2048)
    return run


def test_list_shows_who_runs_what(cli, stem, big_orders):
    failed = began(stem, "failing")
    FlowStore(stem.home, "failing").end(failed, "failed", ["mainstem.FlowFailed: flow stopped", "Detail: Facts."])
    killed(stem, began(stem, "gone", sources=()))
    FlowStore(stem.home, "done").end(began(stem, "done", sources=()), "stopped")

    heading, _, *lines = cli("flow", "list").out.splitlines()

    assert heading.split()[:6] == ["flow", "state", "pid", "into", "batch", "last"]
    assert lines[0].split()[:9] == [
        "big_orders", "running", str(os.getpid()), "topic", "big_orders", "1", "2026-01-01", "09:00:01Z", "300"
    ]  # fmt: skip
    assert [line.split()[:2] for line in lines[1:]] == [["done", "stopped"], ["failing", "failed"], ["gone", "killed"]]
    facts = {it["flow"]: it for it in cli("flow", "list", "--json").json}
    assert (facts["big_orders"]["state"], facts["big_orders"]["pid"]) == ("running", os.getpid())
    assert [facts[name]["lag"]["records"] for name in ("big_orders", "failing")] == [2, 5]
    assert facts["failing"]["error"] == ["mainstem.FlowFailed: flow stopped", "Detail: Facts."]


def test_list_shows_what_came_late_where_something_did(cli, stem, big_orders):
    assert "late" not in cli("flow", "list").out.splitlines()[0]
    did_batch(stem, FlowRun("big_orders", big_orders.epoch - 1), 2, {"orders": {0: 2, 1: 1}}, late=100)
    did_batch(stem, big_orders, 3, {"orders": {0: 2, 1: 1}}, late=3, too_late=1)
    did_batch(stem, big_orders, 4, {"orders": {0: 2, 1: 1}}, late=4)

    heading, _, line = cli("flow", "list").out.splitlines()

    assert heading.endswith("  late  too late")
    assert line.split()[-2:] == ["7", "1"]


def test_a_home_in_which_nothing_ran(cli, orders):
    assert cli("flow", "list") == (0, "no flows yet\n", "")
    assert cli("flow", "describe", "revenue").error == [
        'mainstem.FlowNotFound: flow "revenue" never ran in this home',
        f'Detail: No flow ever ran in "{os.path.abspath("shop")}".',
        "Hint: Run a program that has it: mainstem run PROGRAM.py",
    ]


def test_describe_shows_where_it_stands_and_its_last_batches(cli, big_orders):
    shown = cli("flow", "describe", "big_orders").out
    facts = cli("flow", "describe", "big_orders", "--json").json

    assert f"state       running, process {os.getpid()}\n" in shown
    assert "keeps       7 rows, 2 KiB\n" in shown
    assert [(part["partition"], part["offset"], part["lag"]["records"]) for part in facts["sources"]] == [
        (0, 2, 0),
        (1, 1, 2),
    ]
    assert (facts["batch"], facts["epoch"], facts["version"], facts["sink"]) == (1, 1, 1, "topic big_orders")
    assert [(row["batch"], row["rows_in"], row["rejected"]) for row in facts["last_batches"]] == [(0, 1, 0), (1, 2, 1)]
    assert facts["last_batches"][0]["phases"] == {"addBatch": 200}
    assert facts["last_batches"][0]["at"] == "2026-01-01T09:00:00Z"


def test_describe_shows_how_far_a_flow_is_with_sealed_files(cli, stem, orders):
    run = began(stem, "big_orders")
    checkpoint = Path(FlowStore(stem.home, "big_orders").checkpoint(1))
    portions = (Portion(("0-a.parquet",), 300, {0: 300}), Portion(("0-b.parquet",), 1200, {0: 1500}))
    history = NativeHistory("orders", "", f"{checkpoint}/history/x", portions)
    for folder in (history.waiting, history.read):
        os.makedirs(folder)
    history.note(str(checkpoint))

    def said() -> tuple[str, dict[str, int]]:
        shown = next(line for line in cli("flow", "describe", "big_orders").out.splitlines() if "sealed files" in line)
        return shown.removeprefix("sealed files").strip(), cli("flow", "describe", "big_orders", "--json").json[
            "sealed_files_first"
        ]

    assert said() == ("0 of 1,500 rows read from them, natively; then it reads the topic", {"rows": 1500, "rows_in": 0})
    did_batch(stem, run, 0, {})
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"logOffset":0}')
    assert said()[0].startswith("300 of 1,500 rows")
    did_batch(stem, run, 1, {"orders": {0: 1600}})
    assert said() == (
        "1,500 rows were read from them, natively; since then it reads the topic",
        {"rows": 1500, "rows_in": 1500},
    )


def test_a_flow_that_waits_for_a_transaction_names_it_and_its_process(cli, stem, big_orders):
    folder = Path(FlowStore(stem.home, "big_orders").checkpoint(1), "cut")
    folder.mkdir()
    (folder / "note").write_text(
        '{"waits": [[12, "orders", 1, 4711], [13, "orders", 0, null]], "torn": 2, "last_torn": [7, 9]}'
    )

    shown = cli("flow", "describe", "big_orders").out
    facts = cli("flow", "describe", "big_orders", "--json").json

    assert "transaction 12 of process 4711, open in orders, partition 1 and 1 more\n" in shown
    assert "2 since it was started, the last: 7, 9;" in shown
    assert facts["waits_for_transactions"][0] == {"transaction": 12, "topic": "orders", "partition": 1, "process": 4711}
    assert facts["transactions_cut"] == 2
    assert "transaction 12 of process 4711" in cli("flow", "list").out
    FlowStore(stem.home, "big_orders").end(big_orders, "stopped", [])
    assert "waits for" not in cli("flow", "describe", "big_orders").out


def test_describe_of_a_flow_that_failed_shows_the_cause(cli, stem, big_orders):
    FlowStore(stem.home, "big_orders").end(big_orders, "failed", ["mainstem.FlowFailed: it stopped", "Hint: Mend it."])

    lines = cli("flow", "describe", "big_orders").out.splitlines()

    assert "state        failed" in lines
    assert "failed with  mainstem.FlowFailed: it stopped" in lines
    assert "             Hint: Mend it." in lines


def test_a_name_that_is_nearly_right(cli, big_orders):
    assert cli("flow", "describe", "big_order").error[1:] == [
        "Detail: These did: big_orders.",
        'Hint: Did you mean "big_orders"?',
    ]


def test_a_topic_that_was_deleted_is_not_behind(cli, stem, big_orders):
    stem.delete_topic("orders")

    assert cli("flow", "describe", "big_orders", "--json").json["sources"] == []


def test_a_flow_that_reads_a_view_is_behind_by_its_changes(cli, stem, orders):
    rows = pa.table({"store": ["Berlin", "Paris", "Rome"], "revenue": [1, 2, 3]})
    written = FlowRun("revenue", 1)
    View(stem.home, "revenue", key="store").writer(written, rows.schema).apply(rows, Batch(0, written))
    run = began(stem, "alarms", sources=("view revenue",))

    def behind() -> list[tuple[str, int, int]]:
        sources = cli("flow", "describe", "alarms", "--json").json["sources"]
        return [(it["source"], it["offset"], it["lag"]["records"]) for it in sources]

    assert behind() == [("view revenue", 0, 3)]
    did_batch(stem, run, 0, {}, view={"view": "revenue", "id": "1", "position": 2})
    assert behind() == [("view revenue", 2, 1)]


# Stopping


class Runner(threading.Thread):
    """Whoever runs the flow: looks for the wish to stop, and heeds it."""

    def __init__(self, stem, run):
        super().__init__(daemon=True)
        self.store, self.run_of_flow = FlowStore(stem.home, run.flow), run
        self.heeded = False

    def run(self):
        wait_until(lambda: self.store.asked_to_stop(self.run_of_flow))
        self.heeded = True
        self.store.end(self.run_of_flow, "stopped")


def test_stop_waits_until_the_flow_has_stopped(cli, stem, big_orders):
    runner = Runner(stem, big_orders)
    runner.start()

    assert cli("flow", "stop", "big_orders") == (0, "stopped flow big_orders after batch 1\n", "")
    assert runner.heeded
    assert cli("flow", "stop", "big_orders") == (0, "flow big_orders does not run\n", "")


def test_a_wish_to_stop_is_not_for_the_next_run(stem, big_orders):
    store = FlowStore(stem.home, "big_orders")
    store.ask_to_stop(1)

    assert store.asked_to_stop(big_orders)
    assert not store.asked_to_stop(began(stem, "big_orders"))


def test_what_became_of_an_older_run_says_nothing_of_the_later_one(stem, big_orders):
    store = FlowStore(stem.home, "big_orders")
    later = began(stem, "big_orders")
    store.end(big_orders, "failed", ["it was fenced"])

    assert find_process(store.of_version(1)) is not None
    store.end(later, "stopped")
    assert store.of_version(1)["ended"] == {"state": "stopped", "error": []}


def test_a_flow_whose_process_died_counts_as_stopped(cli, stem, big_orders):
    killed(stem, big_orders)

    assert cli("flow", "stop", "big_orders") == (0, "flow big_orders does not run\n", "")


def test_a_flow_that_does_not_stop(cli, big_orders):
    assert cli("flow", "stop", "big_orders", "--wait", "10 milliseconds").error == [
        'mainstem.Unavailable: flow "big_orders" has not stopped within 10 milliseconds',
        f"Detail: Process {os.getpid()} runs it and has a stop request; it stops once it reads the request.",
        f"Hint: Wait longer (--wait), or end the process: kill {os.getpid()}. Nothing is lost: the next run continues.",
    ]


def test_no_flow_is_stopped_if_one_of_the_names_is_wrong(cli, stem, big_orders):
    assert cli("flow", "stop", "big_orders", "revenue").error[0].startswith("mainstem.FlowNotFound")
    assert not FlowStore(stem.home, "big_orders").asked_to_stop(big_orders)


def test_describe_says_what_the_flow_does(cli, stem, big_orders):
    assert cli("flow", "describe", "big_orders", "--json").json["does"] is None
    does = {
        "format": 1, "sources": [{"source": "orders", "delay": None}], "operators": [],
        "sink": {"kind": "topic", "name": "big_orders", "key": []},
    }  # fmt: skip
    Path(FlowStore(stem.home, "big_orders").description(1)).write_bytes(encode_checked(does))

    said = "reads orders, into the topic big_orders"
    assert f"does        {said}" in cli("flow", "describe", "big_orders").out
    assert cli("flow", "describe", "big_orders", "--json").json["does"]["text"] == said
