"""What a program may do wrong with the API: rows of the wrong type, a token that is revoked, times without a zone."""

import json
from contextlib import closing
from datetime import UTC, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.clock import as_datetime
from mainstem.log.topic_settings import TopicSettings
from mainstem.views.view import View
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.cli.main import run
from tests.workbench.console_process import EventReader, running_console
from tests.workbench.ran_flows import began

DAY_US = 86_400_000_000
ROW = {"order_id": 1, "amount": "12.50", "text": "x", "count": 1}


@pytest.fixture(scope="module")
def stem(tmp_path_factory):
    with mainstem.open(tmp_path_factory.mktemp("misuse") / "shop", upkeep="manual") as opened:
        orders = opened.create_topic("orders", schema="order_id BIGINT, amount DECIMAL(30,2), text STRING, count INT")
        orders.append([{**ROW, "amount": Decimal("12.50")}])
        queue = orders.queue("mails")
        queue.reject(queue.take(1)[0].receipt, "no such address")
        began(opened, "revenue", sink="view revenue")
        for name in ("revenue.late", "revenue.rejected"):
            opened.log.create_topic(TopicSettings.of(name, schema="n BIGINT"))
        yield opened


@pytest.fixture(scope="module")
def console(stem):
    with running_console(stem.home, "--actions", "append,drop") as running:
        yield running


@pytest.fixture
def act(stem, console):
    bearer = {"Authorization": f"Bearer {AccessTokens(stem.home).create('act', lasts_us=DAY_US)}"}

    def post(action: str, **body: object):
        return console.ask(f"/api/actions/{action}", method="POST", body=body, headers=bearer)

    return post


@pytest.mark.parametrize(
    "wrong",
    [{"order_id": "one"}, {"count": True}, {"count": "1"}, {"text": {}}, {"amount": "much"}, {"order_id": 1e300}],
)
def test_a_value_of_the_wrong_type_is_refused_in_three_parts(act, wrong):
    refused = act("append", topic="orders", row={**ROW, **wrong}, confirm=True)
    assert refused.status == 400, refused.body
    assert all(refused.json["error"][part] for part in ("what", "detail", "hint"))


def test_a_row_is_stored_as_it_was_given(stem, act):
    row = {"order_id": str(2**62), "amount": "1234567890123456789.25", "text": "a\u2028b\u0085c\nd", "count": 3}
    assert act("append", topic="orders", row=json.dumps(row, indent=1), confirm=True).status == 200
    assert act("append", topic="orders", row=row, confirm=True).status == 200
    stored = stem.topic("orders").to_arrow().to_pylist()[-2:]
    for found in stored:
        assert {**found, "record": None, "order_id": str(found["order_id"]), "amount": str(found["amount"])} == {
            **row, "record": None,
        }  # fmt: skip


def test_the_command_that_is_told_appends_the_same(act):
    told = act("append", topic="orders", row={**ROW, "order_id": "7", "text": "it's\nhere"}).json["command"]
    assert told.startswith("printf '%s\\n' '{\"order_id\": 7, ")
    assert "\n" not in told


def test_a_row_does_not_delete(act):
    refused = act("append", topic="orders", row={**ROW, "record": {"change": "delete"}}, confirm=True)
    assert refused.status == 400
    assert "record" in refused.json["error"]["what"]


@pytest.mark.parametrize("topic", ["orders.mails.rejected", "revenue.late", "revenue.rejected"])
def test_a_topic_that_mainstem_writes_takes_no_row(act, topic):
    refused = act("append", topic=topic, row={"n": 1})
    assert refused.status == 400
    assert "alone" in refused.json["error"]["what"]


def test_a_position_is_checked_before_anything_is_confirmed(act):
    refused = act("drop", topic="orders", queue="mails", positions=["x; rm -r /"])
    assert refused.status == 400
    assert act("drop", topic="orders", queue="mails", positions=["0:0"]).json["command"].endswith("orders mails 0:0")


def test_a_stream_ends_with_its_token(stem, console):
    tokens = AccessTokens(stem.home)
    text = tokens.create("read", lasts_us=DAY_US)
    stream = EventReader(console, ("topic:orders",), token=text)
    assert stream.next().kind == "snapshot"
    tokens.revoke(text.split("_")[1])
    with pytest.raises(ConnectionError):
        stream.next()
    stream.cut()


def test_columns_of_the_same_name_are_all_there(stem, console, capsys):
    sql = "SELECT 1 AS a, 2 AS a, 3 AS b"
    found = console.ask("/api/query", method="POST", body={"sql": sql}).json
    assert [column["name"] for column in found["columns"]] == ["a", "a_2", "b"]
    assert found["rows"] == [{"a": 1, "a_2": 2, "b": 3}]
    assert run(["query", sql, "--json", "--home", stem.home]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1, "a_2": 2, "b": 3}


def test_the_past_of_a_view_has_the_cursor_of_then(stem, console):
    flow = FlowRun("totals", epoch=1, version=1)
    with closing(View(stem.home, "totals", key=["store"], history="1 day")) as view:
        for number in range(3):
            rows = pa.table({"store": ["a"], "total": [number]})
            view.writer(flow, rows.schema).apply(rows, Batch(number, flow))
            if number == 0:
                then = as_datetime(stem.log.clock.now())
    at = then.astimezone(UTC).isoformat().replace("+00:00", "Z")
    page = console.get(f"/api/views/totals/rows?at={at}")
    assert (page["rows"], page["total"]) == ([{"store": "a", "total": "0"}], 1)
    stream = console.stream("view:totals", last=json.dumps({"view:totals": page["cursor"]}))
    changes = stream.next("changes").data["changes"]
    assert [change["row"]["total"] for change in changes] == ["1", "2"]
    stream.cut()
    later = (then + timedelta(days=1)).isoformat().replace("+00:00", "Z")
    assert console.ask(f"/api/views/totals/rows?at={later}").status == 400


@pytest.mark.parametrize("at", ["13:03", "x", "2026-11-18"])
def test_a_time_that_is_none_asks_for_one_with_a_zone(console, at):
    refused = console.ask(f"/api/home?at={at}")
    assert refused.status == 400
    said = " ".join(refused.json["error"][part] for part in ("what", "detail", "hint"))
    assert "zone" in said
    assert "earliest" not in said


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/query", 405, "POST"),
        ("/api/actions/drop", 405, "POST"),
        ("/api", 404, "/api"),
        ("/api/views/totals/difference", 400, "`before`"),
        ("/api/views/totals/history?key=a&before=-1", 400, "before=1"),
    ],
)
def test_a_wrong_question_is_answered_in_three_parts(console, path, status, said):
    found = console.ask(path)
    assert found.status == status
    assert said in " ".join(found.json["error"][part] for part in ("what", "detail", "hint"))


def test_an_address_of_another_machine_is_no_taken_port(stem, capsys):
    AccessTokens(stem.home).create("read", lasts_us=1_000_000_000)
    assert run(["console", "--home", stem.home, "--host", "192.0.2.1", "--behind-proxy", "--port", "0"]) != 0
    assert "not one of this machine's" in capsys.readouterr().err


def test_a_queue_with_rejected_messages_wants_a_look(console):
    found = console.get("/api/home")
    assert "queue:orders/mails" in [look["id"] for look in found["wants_a_look"]]
    assert not found["well"]["ok"]


def test_activity_of_a_name_that_nothing_has(stem, capsys):
    assert run(["activity", "--home", stem.home, "--of", "nope"]) != 0
    assert '"nope"' in capsys.readouterr().err
    assert run(["activity", "--home", stem.home, "--of", "orders.mails"]) == 0


def test_activity_says_who_acted(stem, act, capsys):
    assert act("append", topic="orders", row=ROW, confirm=True).status == 200
    assert run(["activity", "--home", stem.home, "--of", "orders", "--all-columns"]) == 0
    assert "token " in capsys.readouterr().out
