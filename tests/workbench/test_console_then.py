"""A page of the past: what the console answers with `at` is what it answered then, for all that has history."""

from contextlib import closing
from datetime import timedelta

import pytest

import mainstem
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.clock import as_datetime
from mainstem.log.activity import note_activity
from mainstem.workbench.cli.flow_commands import flow_json
from mainstem.workbench.cli.flow_facts import flow_facts, last_progress
from mainstem.workbench.cli.topic_commands import topic_facts
from mainstem.workbench.console.flow_picture import flow_picture
from mainstem.workbench.console.flow_then import flow_then, past_rows
from mainstem.workbench.console.home_map import home_map
from mainstem.workbench.console.home_then import home_then
from mainstem.workbench.console.json_body import exact_json
from mainstem.workbench.console.topic_records import read_records
from mainstem.workbench.console.topic_then import topic_then
from mainstem.workbench.console.view_rows import view_page
from mainstem.workbench.console.view_then import view_then_json
from tests.workbench.console_home import make_shop, revenue_batch

# Of each node of the map: what keeps no history.
UNKEPT = {"queue", "capture", "store"}


@pytest.fixture(scope="module")
def then(tmp_path_factory):
    """A shop at a moment: what was answered; then more happened."""
    with make_shop(tmp_path_factory.mktemp("then") / "shop", as_datetime(1_800_000_000_000_000)) as stem:
        holders = exact_json(flow_json(flow_facts(stem, "revenue")))["watermark_holders"]
        stem.log.clock.advance("3 seconds")
        stem.topic("orders").append([{"order_id": "o-x", "store": "Berlin", "amount": 1.0, "placed_at": None}])
        stem.log.clock.advance("7 seconds")
        at = as_datetime(stem.log.clock.now())
        answered = {
            "holders": holders,
            "home": home_map(stem),
            "flow": exact_json(flow_json(flow_facts(stem, "revenue"))),
            "topic": exact_json(topic_facts(stem.topic("orders")).to_json()),
            "records": records(stem),
            "rows": rows(stem),
            "picture": flow_picture(stem, "revenue", None, None),
        }
        happen(stem)
        yield stem, at, answered


def happen(stem) -> None:
    clock = stem.log.clock
    clock.advance("5 seconds")
    orders = stem.topic("orders")
    orders.append([{"order_id": f"late-{n}", "store": "Paris", "amount": 2.0, "placed_at": None} for n in range(40)])
    orders.alter(schema=f"{orders.ddl}, coupon STRING")
    revenue_batch(stem, clock, 59)
    note_activity(stem.log, "flow", "revenue", "killed", 'flow "revenue" was killed', version=1, epoch=1)
    stem.create_topic("made_later", schema="n INT")
    clock.advance("30 seconds")


def records(stem, at=None):
    return read_records(stem.topic("orders"), position=None, cursor=None, limit=100, condition=None, until=at)["rows"]


def rows(stem, at=None):
    with closing(stem.view("revenue")) as view:
        found = view_page(view, None, 1_000, at, stem.log.clock.now())
    return found["rows"], found["total"]


def test_the_map_is_that_of_then(then):
    stem, at, answered = then
    found, known = home_then(stem, home_map(stem), at), answered["home"]
    nodes = {node["id"]: node for node in found["nodes"]}
    for node in known["nodes"]:
        if node["kind"] in UNKEPT or node["id"] in ("view:deliveries", "view:sessions"):
            assert nodes[node["id"]]["state"] == "not kept"
        else:
            assert nodes[node["id"]] == node
    assert found["home"] == known["home"]
    assert found["activity"] == known["activity"]


def test_a_flow_is_that_of_then(then):
    stem, at, answered = then
    found = exact_json(flow_json(flow_then(stem, "revenue", past_rows(stem, at))))
    kept = ("flow", "state", "version", "epoch", "sink", "batch", "error", "last_batches")
    assert {name: found[name] for name in kept} == {name: answered["flow"][name] for name in kept}
    assert found["watermark_holders"] == answered["holders"]
    for now, known in zip(found["sources"], answered["flow"]["sources"], strict=True):
        assert {**now, "lag": {**now["lag"], "bytes": 0, "until_dropped_seconds": None}} == {
            **known, "lag": {**known["lag"], "bytes": 0, "until_dropped_seconds": None},
        }  # fmt: skip


def test_a_topic_is_that_of_then(then):
    stem, at, answered = then
    found = exact_json(topic_then(stem, stem.topic("orders"), at))
    known = answered["topic"]
    assert (found["records"], found["appended_at"]) == (known["records"], known["appended_at"])
    kept = ("partition", "start", "end", "records", "appended_at")
    parts = [[{name: part[name] for name in kept} for part in it["partitions"]] for it in (found, known)]
    assert parts[0] == parts[1]
    assert found["bytes"] is None
    assert [{k: v for k, v in row.items() if k != "coupon"} for row in records(stem, at)] == answered["records"]
    assert len(records(stem)) > len(answered["records"]) or records(stem) != answered["records"]


def test_a_view_with_history_is_that_of_then(then):
    stem, at, answered = then
    assert rows(stem, at) == answered["rows"]
    assert rows(stem) != answered["rows"]
    with closing(stem.view("revenue")) as view:
        found = view_then_json(stem, view, past_rows(stem, at))
    assert (found["rows"], found["bytes"], found["live"]) == (answered["rows"][1], None, 1)


def test_a_view_without_history_says_so(then):
    stem, at, _ = then
    with closing(stem.view("deliveries")) as view, pytest.raises(mainstem.Invalid) as refused:
        view_then_json(stem, view, past_rows(stem, at))
    assert refused.value.summary == 'view "deliveries" keeps no history'


def test_a_picture_is_that_of_then(then):
    stem, at, answered = then
    assert flow_picture(stem, "revenue", None, at) == answered["picture"]


def test_what_had_not_begun_is_not_on_the_map(then):
    stem, at, _ = then
    before = at - timedelta(days=1)
    assert [node for node in home_then(stem, home_map(stem), before)["nodes"] if node["kind"] == "flow"] == []
    with pytest.raises(mainstem.NotFound):
        flow_then(stem, "revenue", past_rows(stem, before))


def test_a_flow_that_was_killed_is_dead_from_its_last_report_on(then):
    """That it was killed is noted when somebody looks, which may be much later."""
    stem, at, _ = then
    assert max(row["at"] for row in last_progress(stem)["revenue"]) > at
    stem.log.clock.advance("1 minute")
    note_activity(stem.log, "flow", "revenue", "begun", 'flow "revenue" began', version=1, epoch=2)
    alive = as_datetime(stem.log.clock.now())
    stem.log.clock.advance("5 seconds")
    revenue_batch(stem, stem.log.clock, 58)
    stem.log.clock.advance("10 minutes")
    dead = as_datetime(stem.log.clock.now())
    stem.log.clock.advance("10 minutes")
    note_activity(stem.log, "flow", "revenue", "killed", 'flow "revenue" was killed', version=1, epoch=2)
    assert flow_then(stem, "revenue", past_rows(stem, dead)).state == "killed"
    assert flow_then(stem, "revenue", past_rows(stem, alive)).state == "running"


def test_a_capture_has_the_state_that_was_noted(tmp_path):
    with mainstem.open(tmp_path / "shop", upkeep="manual") as stem:
        status = CaptureStatus(
            "shop", "a file", {}, "stopped", "2026-01-01T00:00:00+00:00", {"pid": 1, "started": 1, "boot": ""}
        )
        StatusFile(stem.home, "shop").write(status)
        noted = []
        for what in ("begun", "waiting", "restarted", "ended"):
            note_activity(stem.log, "capture", "shop", what, f"capture {what}")
            noted.append(as_datetime(stem.log.clock.now()))
        nodes = [
            next(node for node in home_then(stem, home_map(stem), at)["nodes"] if node["kind"] == "capture")
            for at in (noted[0] - timedelta(hours=1), *noted)
        ]
    assert [node["state"] for node in nodes] == ["not kept", "running", "waiting", "running", "stopped"]
    assert nodes[2]["sentence"].startswith("capture waiting. ")
