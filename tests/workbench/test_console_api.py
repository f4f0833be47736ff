"""The API of the console: the facts of the command line, rows without loss, and never an answer 500."""

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import quote

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch
from mainstem.views.view import View
from mainstem.workbench.cli.main import run
from tests.workbench.console_process import running_console
from tests.workbench.ran_flows import began, did_batch

ODD = "order_id STRING, n BIGINT, price DECIMAL(38, 2), share DOUBLE, raw BINARY, tags ARRAY<BIGINT>, at TIMESTAMP"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "shop"
    with mainstem.open(path, upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema=ODD, key="order_id", partitions=2, event_time="at", keep="7 days")
        orders.append([_order(number) for number in range(300)])
        orders.queue("mails")
        flow = began(stem, "revenue", sink="view revenue", sources=("orders",))
        view = View(stem.home, "revenue", key=["store"], history="1 day")
        schema = pa.schema([("store", pa.string()), ("total", pa.int64())])
        stores = [f"s{number:03}" for number in range(250)]
        view.writer(flow, schema).apply(pa.table({"store": stores, "total": list(range(250))}, schema), Batch(0, flow))
        did_batch(stem, flow, 0, {"orders": {0: 100, 1: 100}}, rows_in=200, rows_out=250, at=datetime.now(UTC))
        yield str(path)


def _order(number: int) -> dict[str, object]:
    odd = {
        0: {
            "order_id": "<script>alert(1)</script>",
            "n": 2**63 - 1,
            "price": Decimal("9" * 36 + ".99"),
            "share": math.nan,
        },
        1: {"order_id": "\u202egnp.exe\x00\u2028", "raw": b"\x00\xff", "share": math.inf, "tags": [2**60, None]},
        2: {"order_id": "x" * (1 << 20)},
    }
    plain = {"order_id": f"o-{number}", "n": number, "at": datetime.now(UTC) - timedelta(seconds=number)}
    return {**plain, **odd.get(number, {})}


@pytest.fixture(scope="module")
def console(home):
    with running_console(home) as running:
        yield running
        assert running.end() == ""


def command_json(capsys, home: str, *words: str):
    capsys.readouterr()
    assert run([*words, "--json", "--home", home]) == 0
    return json.loads(capsys.readouterr().out)


# What is as old as the moment of asking, and the size of a file that readers open.
MOVING = {"bytes", "seconds", "lag_seconds", "until_dropped_seconds"}


def still(value):
    """Facts without what changes from one moment to the next."""
    if isinstance(value, dict):
        return {name: still(inner) for name, inner in value.items() if name not in MOVING}
    return [still(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/flows", ["flow", "list"]),
        ("/api/flows/revenue", ["flow", "describe", "revenue"]),
        ("/api/topics", ["topic", "list"]),
        ("/api/views", ["view", "list"]),
        ("/api/queues", ["queue", "list"]),
        ("/api/queues/orders/mails", ["queue", "describe", "orders", "mails"]),
    ],
)
def test_the_facts_are_those_of_the_command_line(console, home, capsys, path, words):
    assert still(console.get(path)) == still(command_json(capsys, home, *words))


def test_a_topic_and_a_view_have_a_little_more(console, home, capsys):
    topic = console.get("/api/topics/orders")
    assert [reader["flow"] for reader in topic.pop("flows")] == ["revenue"]
    assert still(topic) == still(command_json(capsys, home, "topic", "describe", "orders"))
    view = console.get("/api/views/revenue")
    assert [it["version"] for it in view.pop("all_versions")] == [1]
    assert still(view) == still(command_json(capsys, home, "view", "describe", "revenue"))


def test_the_home_is_a_map_with_a_sentence(console):
    found = console.get("/api/home")
    assert {node["id"] for node in found["nodes"]} == {
        "topic:orders", "topic:orders.mails.rejected", "flow:revenue", "view:revenue", "queue:orders/mails",
    }  # fmt: skip
    edges = {(edge["from"], edge["to"]) for edge in found["edges"]}
    assert {("topic:orders", "flow:revenue"), ("flow:revenue", "view:revenue")} <= edges
    assert found["home"]["log"] == "embedded"
    assert found["well"]["sentence"].startswith("All is well. 1 flow runs")
    assert found["totals"]["late"] == 0


def test_rows_travel_without_loss(console):
    rows = {}
    cursor = ""
    while True:
        answer = console.get(f"/api/topics/orders/records?position=earliest&limit=70{cursor}")
        rows |= {(row["record"]["partition"], row["record"]["offset"]): row for row in answer["rows"]}
        if answer["at_end"]:
            break
        cursor = f"&cursor={answer['cursor']}"
    assert len(rows) == 300
    by_id = {row["order_id"]: row for row in rows.values()}
    odd = by_id["<script>alert(1)</script>"]
    assert (odd["n"], odd["price"], odd["share"]) == (str(2**63 - 1), "9" * 36 + ".99", "NaN")
    other = by_id["\u202egnp.exe\x00\u2028"]
    assert (other["raw"], other["share"], other["tags"]) == ("AP8=", "Infinity", [str(2**60), None])
    long = next(text for text in by_id if text.startswith("xxx"))
    assert len(long) < 2_100
    assert long.endswith("(1,048,576 characters)")


def test_a_filter_says_how_far_it_looked(console):
    answer = console.get("/api/topics/orders/records?filter=" + quote("n >= 290 and n < 300"))
    assert sorted(row["n"] for row in answer["rows"]) == [str(number) for number in range(290, 300)]
    assert answer["looked"] == 300
    assert answer["at_end"]


def test_a_view_by_pages(console):
    found, after, pages = [], "", 0
    while True:
        page = console.get(f"/api/views/revenue/rows?limit=100{after}")
        found += [row["store"] for row in page["rows"]]
        pages += 1
        if page["next"] is None:
            break
        after = f"&after={quote(page['next'])}"
    assert found == [f"s{number:03}" for number in range(250)]
    assert pages == 3
    assert page["total"] == 250


def test_search_finds_names(console):
    assert {it["id"] for it in console.get("/api/search?q=REV")} == {"view:revenue", "flow:revenue"}
    assert console.get("/api/search?q=nothing") == []
    assert len(console.get("/api/search")) == 5


def test_a_query(console):
    def ask(sql: str):
        return console.ask("/api/query", method="POST", body={"sql": sql})

    answer = ask("SELECT count(*) AS orders, max(n) AS most FROM orders").json
    assert answer["rows"] == [{"orders": "300", "most": str(2**63 - 1)}]
    assert answer["columns"] == [{"name": "orders", "type": "BIGINT"}, {"name": "most", "type": "BIGINT"}]
    assert not answer["truncated"]
    assert ask("SELECT sum(total) AS total FROM revenue").json["rows"] == [{"total": str(sum(range(250)))}]
    many = ask("SELECT * FROM range(20000)").json
    assert (len(many["rows"]), many["truncated"]) == (10_000, True)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "   ",
        "SELEC 1",
        "SELECT 1; SELECT 2",
        "DELETE FROM orders",
        "COPY (SELECT 1) TO '/tmp/never'",
        "WITH a AS (COPY (SELECT 1) TO '/tmp/never') SELECT 1",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "ATTACH '/tmp/never.db'",
        "INSTALL httpfs",
        "PRAGMA memory_limit='10GB'",
        "SET enable_external_access=true",
        "SELECT * FROM nothing",
        "SELECT \x00",
        "SELECT ?",
        "SELECT getenv('HOME')",
        "SELECT list(a.range) FROM range(100000000) a",
        "'" * 1001,
        None,
        7,
        ["SELECT 1"],
    ],
)
def test_a_query_that_is_refused_says_why(console, sql):
    found = console.ask("/api/query", method="POST", body={"sql": sql})
    assert found.status in (400, 404), found.body
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


def test_a_body_that_is_no_json(console):
    for body in ("x", [1], None):
        found = console.ask("/api/query", method="POST", body=body)
        assert found.status == 400


ODD_NAMES = [
    "nothing",
    "..",
    "../..",
    "a/b",
    "%00",
    "\u202eabc",
    "x" * 300,
    "mainstem.",
    "con",
    "'; drop",
    '"',
    "<b>",
    " ",
]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize(
    "place",
    ["flows/{}", "topics/{}", "views/{}", "queues/orders/{}", "queues/{}/mails", "topics/{}/records", "views/{}/rows"],
)
def test_an_odd_name_is_told_in_three_sentences(console, place, name):
    found = console.ask("/api/" + place.format(quote(name, safe="")))
    assert found.status in (400, 404)
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("topics/orders/records?position=yesterday", 400),
        ("topics/orders/records?position=2026-01-01", 400),
        ("topics/orders/records?position=0:99999999", 409),
        ("topics/orders/records?position=7:0", 400),
        ("topics/orders/records?position=payments@0:1", 400),
        ("topics/orders/records?position=orders@0:99999", 409),
        ("topics/orders/records?cursor=orders@0:1", 400),
        ("topics/orders/records?cursor=0:1,0:2", 400),
        ("topics/orders/records?cursor=%00", 400),
        ("topics/orders/records?limit=1e9", 400),
        ("topics/orders/records?limit=-1", 400),
        ("topics/orders/records?limit=%D9%A3", 400),
        ("topics/orders/records?filter=nothing", 400),
        ("topics/orders/records?filter=n", 400),
        ("topics/orders/records?filter=(", 400),
        ("views/revenue/rows?limit=0", 400),
        ("home?at=0001-01-01T00:00:00Z", 400),
        ("home?at=9999-12-31T23:59:59Z", 400),
        ("home?at=tomorrow", 400),
        ("flows/revenue/picture?from=0001-01-01T00:00:00%2B14:00", 400),
        ("flows/revenue/picture?to=9999-12-31T23:59:59-12:00", 400),
        ("history?of=flow:revenue&from=0001-01-01T00:00:00Z", 400),
        ("history?of=flow:revenue&to=9999-12-31T23:59:59Z", 400),
        ("views/revenue/rows?at=0001-01-01T00:00:00Z", 400),
        ("views/revenue/rows?at=9999-12-31T23:59:59Z", 400),
        ("views/revenue/rows?after=%00", 400),
        ("views/revenue/rows?after=%5B%5D", 400),
        ("history?of=topic:orders&points=0", 400),
        ("nothing", 404),
        ("queues/orders", 404),
    ],
)
def test_an_argument_that_is_wrong_is_told_in_three_sentences(console, path, status):
    found = console.ask(f"/api/{path}")
    assert found.status == status, found.body
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_other_methods_are_refused(console, method):
    found = console.ask("/api/home", method=method)
    assert found.status == 405
    assert found.json["error"]["what"]


def test_the_page_is_served_for_every_address_of_it(console):
    front = console.ask("/")
    assert front.headers["content-type"].startswith("text/html")
    assert console.ask("/flow/revenue?at=2026-01-01T00:00:00Z").body == front.body
    assert console.ask("/nothing.js").status == 404
    assert console.ask("/../../etc/passwd").status in (200, 404)
    assert b"root:" not in console.ask("/..%2f..%2fetc/passwd").body
