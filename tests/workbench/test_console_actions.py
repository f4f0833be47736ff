"""Actions of the console: permitted by the one who starts it, by a token, and told before they are done."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mainstem
from mainstem.log.activity import read_activity
from mainstem.processes import identity_of
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.cli.main import run
from tests.workbench.console_process import running_console
from tests.workbench.ran_flows import began

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def stem(tmp_path_factory):
    with mainstem.open(tmp_path_factory.mktemp("actions") / "shop", upkeep="manual") as opened:
        orders = opened.create_topic("orders", schema="order_id BIGINT")
        orders.append([{"order_id": number} for number in range(3)])
        queue = orders.queue("mails")
        for message in queue.take(3):
            queue.reject(message.receipt, "no such address")
        yield opened


@pytest.fixture(scope="module")
def console(stem):
    with running_console(stem.home, "--actions", "stop,restore,drop,append,kill") as running:
        yield running


@pytest.fixture(scope="module")
def token(stem):
    return AccessTokens(stem.home).create("act", lasts_us=DAY_US)


@pytest.fixture
def act(console, token):
    def post(action: str, body: object, given: str | None = token):
        headers = {} if given is None else {"Authorization": f"Bearer {given}"}
        return console.ask(f"/api/actions/{action}", method="POST", body=body, headers=headers)

    return post


@pytest.fixture
def process(stem):
    """A process that a flow of the home names as its own."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        begun = began(stem, "revenue", sink="view revenue")
        identity = identity_of(running.pid)

        def with_process(known):
            return {**known, "runs": {**known["runs"], "1": {**known["runs"]["1"], "process": identity}}}

        FlowStore(stem.home, begun.flow).change(with_process)
        yield running
        running.kill()


def test_who_may_read_may_not_act(stem, act, console):
    read = AccessTokens(stem.home).create("read", lasts_us=DAY_US)
    for given in (read, None):
        refused = act("drop", {"topic": "orders", "queue": "mails", "positions": ["0:0"], "confirm": True}, given)
        assert refused.status == 403
        assert refused.json["error"]["what"] == "you may read, and not act"
    assert console.get("/api/session")["actions"] == []


def test_a_console_without_actions_permits_none(stem, token):
    with running_console(stem.home) as running:
        bearer = {"Authorization": f"Bearer {token}"}
        refused = running.ask("/api/actions/stop", method="POST", body={"flow": "revenue"}, headers=bearer)
        assert refused.status == 403
        assert "does not permit" in refused.json["error"]["what"]
        assert running.ask("/api/session", headers=bearer).json["actions"] == []


def test_a_message_is_restored_once_and_it_is_noted(stem, act, token):
    queue = stem.topic("orders").open_queue("mails")
    asked = {"topic": "orders", "queue": "mails", "positions": ["0:0"]}
    told = act("restore", asked).json
    assert told["will"] == "1 message of queue mails of orders will be delivered again, as if never delivered."
    assert told["command"] == "mainstem queue restore orders mails 0:0"
    assert len(queue.rejected_positions()) == 3
    assert act("restore", {**asked, "confirm": True}).json["done"] == "restored 1 message of queue mails of orders"
    assert act("restore", {**asked, "confirm": True}).status == 404
    assert act("drop", {**asked, "positions": ["0:1"], "confirm": True}).status == 200
    assert queue.rejected_positions() == [(0, 2)]
    noted = [row for row in read_activity(stem.log, 0, ["orders.mails"]) if row["subject"] == "console"]
    assert [row["text"] for row in noted] == [
        "restore: restored 1 message of queue mails of orders",
        "drop: dropped 1 message of queue mails of orders",
    ]
    assert {row["who"] for row in noted} == {f"token {token.split('_')[1]}"}


def test_kill_ends_the_process_that_the_flow_names(act, process):
    told = act("kill", {"flow": "revenue"}).json
    assert str(process.pid) in told["will"]
    assert process.poll() is None
    assert act("kill", {"flow": "revenue", "confirm": True}).json["done"].startswith(f"killed process {process.pid}")
    assert process.wait() == -9
    assert act("kill", {"flow": "revenue", "confirm": True}).status == 409


def test_kill_ends_it_in_a_batch_and_says_in_which(stem, act, process):
    checkpoint = Path(FlowStore(stem.home, "revenue").checkpoint(1))
    for folder, batches in (("offsets", "789"), ("commits", "78")):
        (checkpoint / folder).mkdir(parents=True)
        for batch in batches:
            (checkpoint / folder / batch).write_text("v1\n{}")
    assert act("kill", {"flow": "revenue", "confirm": True}).json["done"].endswith("which ran flow revenue, in batch 9")
    shutil.rmtree(checkpoint)


def test_a_process_that_only_has_the_same_id_is_left_alone(stem, act, process):
    def older(known):
        mine = known["runs"]["1"]
        other = {**mine["process"], "started": mine["process"]["started"] - 1}
        return {**known, "runs": {**known["runs"], "1": {**mine, "process": other}}}

    FlowStore(stem.home, "revenue").change(older)
    assert act("kill", {"flow": "revenue", "confirm": True}).status == 409
    assert process.poll() is None


def test_stop_says_what_it_will_do(act, process):
    told = act("stop", {"flow": "revenue"}).json
    assert told["command"] == "mainstem flow stop revenue"


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("nothing", {}, 403),
        ("stop", {}, 400),
        ("stop", {"flow": 7}, 400),
        ("stop", {"flow": "../x"}, 400),
        ("stop", {"flow": "nothing"}, 404),
        ("kill", {"pid": 1}, 400),
        ("drop", {"topic": "orders", "queue": "nothing", "positions": ["0:0"]}, 404),
        ("drop", {"topic": "orders", "queue": "mails", "positions": []}, 400),
        ("drop", {"topic": "orders", "queue": "mails", "positions": "0:0"}, 400),
        ("drop", {"topic": "orders", "queue": "mails", "positions": ["x"], "confirm": True}, 400),
        ("restore", {"topic": "orders", "queue": "mails", "positions": ["0:999"], "confirm": True}, 404),
        ("restore", [], 400),
    ],
)
def test_an_action_that_cannot_be_says_why(act, action, body, status):
    found = act(action, body)
    assert found.status == status, found.body
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


def test_an_action_that_there_is_not(stem, capsys):
    assert run(["console", "--home", stem.home, "--port", "0", "--actions", "stop,explode"]) == 1
    assert '"explode" is no action' in capsys.readouterr().err


def test_a_row_is_appended_after_it_was_told(stem, act):
    before = stem.topic("orders").to_arrow().num_rows
    told = act("append", {"topic": "orders", "row": '{"order_id": 77}'})
    assert told.json["command"] == "echo '{\"order_id\": 77}' | mainstem topic append orders -"
    assert stem.topic("orders").to_arrow().num_rows == before

    done = act("append", {"topic": "orders", "row": '{"order_id": 77}', "confirm": True})
    assert done.json["done"] == f"appended a row to topic orders, partition 0, offset {before}"
    assert stem.topic("orders").to_arrow().to_pylist()[-1]["order_id"] == 77


@pytest.mark.parametrize(
    ("topic", "row", "status"),
    [
        ("orders", "", 400),
        ("orders", "{", 400),
        ("orders", '{"order_id": "x"}', 400),
        ("orders", '{"nope": 1}', 400),
        ("mainstem.activity", "{}", 400),
        ("nope", "{}", 404),
    ],
)
def test_what_cannot_be_appended_is_refused_before_anything_is_done(act, topic, row, status):
    refused = act("append", {"topic": topic, "row": row, "confirm": True})
    assert refused.status == status
    assert all(refused.json["error"][part] for part in ("what", "detail", "hint"))
