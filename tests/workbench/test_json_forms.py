"""--json: every command that prints has it, what it prints parses, and a thing has one form everywhere."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from mainstem import Capture
from mainstem.batch import Batch, FlowRun
from mainstem.capture import postgres
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.views.view import View
from mainstem.workbench.cli.command_tree import COMMANDS, load_command
from tests.workbench.ran_flows import began, did_batch, killed

PLACED_AT = datetime(2026, 1, 1, 9, tzinfo=UTC)

# One call of every command, in this order; "..." is what a command before it printed.
CALLS = {
    "init": "init new",
    "topic create": 'topic create customers --schema "id STRING" --key id',
    "topic list": "topic list",
    "topic describe": "topic describe orders",
    "topic alter": 'topic alter customers --keep "7 days"',
    "topic append": "topic append orders rows.csv",
    "topic read": "topic read orders",
    "topic seal": "topic seal orders",
    "topic compact": "topic compact customers",
    "topic verify": "topic verify",
    "topic copy": "topic copy orders --from shop --to copied",
    "group list": "group list",
    "group describe": "group describe orders billing",
    "group reset": "group reset orders billing --to earliest",
    "queue take": "queue take orders emails --count 3",
    "queue list": "queue list",
    "queue describe": "queue describe orders emails",
    "queue acknowledge": "queue acknowledge orders emails 0-0-1",
    "queue release": "queue release orders emails 0-1-1",
    "queue reject": "queue reject orders emails 0-2-1 --reason no",
    "queue restore": "queue restore orders emails 0:2",
    "queue drop": "queue drop orders emails --all",
    "queue rewind": "queue rewind orders emails --to earliest",
    "queue delete": "queue delete orders emails --yes",
    "activity": "activity",
    "flow list": "flow list",
    "flow describe": "flow describe revenue",
    "flow stop": "flow stop revenue",
    "flow plot": "flow plot revenue -o revenue.svg",
    "view list": "view list",
    "view describe": "view describe revenue",
    "view read": "view read revenue",
    "view get": "view get revenue Berlin",
    "view page": "view page revenue",
    "view history": "view history revenue Berlin",
    "view why": "view why revenue Berlin",
    "view versions": "view versions revenue",
    "view drop": "view drop revenue --yes",
    "capture list": "capture list",
    "capture describe": "capture describe shop",
    "capture stop": "capture stop shop",
    "capture snapshot": "capture snapshot shop --table orders",
    "store list": "store list",
    "compare": "compare orders orders",
    "home copy": "home copy backup",
    "home verify": "home verify",
    "query": 'query "SELECT * FROM orders"',
    "token create": "token create --scope read",
    "token list": "token list",
    "doctor": "doctor",
    "completion": "completion bash",
    "topic delete": "topic delete customers --yes",
}
# Those that read standard input, start Spark, or need brokers, a database or an index: other tests parse what they print.
ELSEWHERE = {
    "search", "sql", "run", "check", "view rebuild", "view check", "topic adopt", "capture setup", "capture run", "capture drop",
    "capture check", "store describe", "store rebuild", "console", "view difference",
    "token revoke",
}  # fmt: skip


def leaf_commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = load_command(name)
        if not hasattr(command, "commands"):
            yield name, command
        else:
            yield from ((f"{name} {verb}", inner) for verb, inner in command.commands.items())


def test_every_command_that_prints_has_it():
    commands = dict(leaf_commands())

    without = [name for name, command in commands.items() if not any("--json" in it.opts for it in command.params)]
    assert without == []
    assert set(commands) == set(CALLS) | ELSEWHERE


@pytest.fixture
def shop(place, stem):
    """A home with something of everything."""
    orders = stem.create_topic(
        "orders", schema="order_id STRING, store STRING, placed_at TIMESTAMP", key="order_id", event_time="placed_at"
    )
    orders.append([{"order_id": f"o-{n}", "store": "Berlin", "placed_at": PLACED_AT} for n in range(3)])
    orders.join_group("billing").leave()
    run = began(stem, "revenue", sink="view revenue")
    rows = pa.table({"store": ["Berlin"], "at": pa.array([PLACED_AT], pa.timestamp("us", "UTC")), "n": [3]})
    view = View(stem.home, "revenue", key="store")
    view.writer(run, rows.schema).apply(rows, Batch(0, FlowRun("revenue", 1), {"orders": {0: 3}}))
    view.close()
    did_batch(stem, run, 0, {"orders": {0: 3}})
    killed(stem, run)
    capture = Capture("shop", postgres("postgresql://reader@db/shop", tables=["orders"]))
    StatusFile(stem.home, "shop").write(
        CaptureStatus.of(capture, "stopped", "0/1", 0, None, {}, "", paused=False, now=0)
    )
    (place / "rows.csv").write_text("order_id,store,placed_at\no-9,Rome,2026-01-01T09:00:00Z\n")
    return place


def parsed(text: str) -> Any:
    """What was printed: one value, or a line for each row."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def answers(cli, shop) -> dict[str, Any]:
    """What each command printed."""
    import shlex

    found = {}
    for name, call in CALLS.items():
        said = cli(*shlex.split(call), "--json")
        assert said.out, (call, said)
        found[name] = parsed(said.out)
    return found


def test_what_every_command_prints_parses_and_has_one_form(answers):
    def one(name: str, **named: str) -> Any:
        [found] = [it for it in answers[name] if all(it[key] == value for key, value in named.items())]
        return found

    # A topic, a group, a queue, a flow and a view are the same object wherever they are printed.
    assert {*one("topic list", topic="orders"), "schemas"} == set(answers["topic describe"])
    assert (
        set(answers["topic create"]) == {*one("topic list", topic="orders"), "outcome"} == set(answers["topic alter"])
    )
    assert set(one("group list")) == set(answers["group describe"])
    assert set(answers["group reset"]) == {*answers["group describe"], "outcome"}
    assert {*one("queue list"), "messages"} == set(answers["queue describe"])
    assert set(answers["queue rewind"]) == {*one("queue list"), "outcome"}
    assert set(one("flow list", flow="revenue")) == set(answers["flow describe"])
    assert set(one("capture list", capture="shop")) == set(answers["capture describe"])
    assert set(one("view list")) == set(answers["view describe"])
    assert set(one("view versions")) - {"version"} <= set(answers["view describe"])
    # So is a lag.
    lags = [one("group list")["lag"], one("queue list")["lag"], one("view list")["lag"], one("flow list")["lag"]]
    assert {tuple(lag) for lag in lags} == {("records", "bytes", "seconds", "until_dropped_seconds")}
    # And a row.
    assert [it["after"] for it in answers["view history"]] == [answers["view get"]]
    assert answers["view why"]["row"] == answers["view get"]
    assert answers["view page"] == {"view": "revenue", "rows": [answers["view get"]], "after": None}
    assert answers["view read"] == answers["view get"] == {"store": "Berlin", "at": "2026-01-01T09:00:00Z", "n": 3}
    assert (
        answers["topic read"][0]["placed_at"] == answers["queue take"][0]["row"]["placed_at"] == "2026-01-01T09:00:00Z"
    )
    # Of what was done, the outcome is one word or two.
    outcomes = {name: it["outcome"] for name, it in answers.items() if isinstance(it, dict) and "outcome" in it}
    assert outcomes == {
        "topic create": "created", "topic alter": "altered", "topic delete": "deleted", "topic seal": "sealed",
        "group reset": "reset", "queue acknowledge": "acknowledged", "queue release": "released",
        "queue reject": "rejected", "queue restore": "restored", "queue drop": "dropped", "queue rewind": "rewound", "queue delete": "deleted", "flow plot": "plotted",
        "view drop": "dropped", "capture snapshot": "requested", "token create": "created",
    }  # fmt: skip
    assert answers["flow stop"] == [{"flow": "revenue", "batch": 0, "outcome": "not running"}]


def test_times_are_in_iso_8601_and_utc(answers):
    times = [
        value for name in CALLS for key, value in leaves(answers[name]) if key.endswith("_at") and value is not None
    ]

    assert len(times) > 10
    assert [time for time in times if datetime.fromisoformat(time).utcoffset() is None or not time.endswith("Z")] == []


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


@pytest.mark.parametrize("call", ["topic read orders", "view read revenue", "query SELECT", "sql"])
@pytest.mark.usefixtures("shop")
def test_json_and_another_format_exclude_each_other(cli, call):
    said = cli(*call.split(), "--json", "--format", "csv")

    assert said.status == 2
    assert said.err.endswith("Invalid value for --json: is --format json, so it excludes --format csv\n")
