"""mainstem flow describe, on a flow with stages: what they keep, what came too late, and what holds the watermark back."""

import os
from datetime import UTC, datetime, timedelta

from mainstem.clock import as_us
from mainstem.log.rows.rows import check_rows
from mainstem.operators.stage.engine import NEVER
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.sources.batch_clock import leave_due
from tests.workbench.ran_flows import began, did_batch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_describe_shows_stages_and_what_holds_the_watermark_back(cli, stem):
    scores = stem.create_topic("scores", schema="team STRING, at TIMESTAMP", event_time="at", partitions=2)
    scores.append([{"team": "red", "at": NOON}], partition=0)
    scores.append([{"team": "blue", "at": NOON - timedelta(minutes=7)}], partition=1)
    run = began(stem, "totals", sink="view totals", sources=("scores",))
    reached = as_us(NOON - timedelta(minutes=8))
    clock = {"watermark": reached, "now": as_us(NOON), "delay": 60_000_000}
    offset = {"topic": "scores", "offsets": {"0": 1, "1": 1}, **clock}
    watermark = NOON - timedelta(minutes=8)
    did_batch(stem, run, 0, {}, view=offset, rows_in=2, state_rows=3, state_bytes=4096, late=1, watermark=watermark)
    manifests = StageManifests(FlowStore(stem.home, "totals").checkpoint(1))
    manifests.begin(0, "attempt", {"windowed-0": {}})
    runs = [{"name": "00000000-a.arrow", "rows": 3, "bytes": 4096, "crc32c": 0, "batch": 0}]
    stage = {
        "operator": "windowed", "described": {}, "buckets": 1, "counts": {"late": 1, "too_late": 2}, "late": {"rows": 2, "total": 41.5},
        "state": {"0": {"runs": runs, "live": 3, "given": 5}},
    }  # fmt: skip
    manifests.write(0, {"clock": clock, "stages": {"windowed-0": stage}})

    assert "waits for  " not in cli("flow", "describe", "totals").out
    leave_due(manifests.folder, as_us(NOON), NEVER, reached)
    shown = cli("flow", "describe", "totals").out
    assert "waits for     scores, partition 1, at 2026-01-01 11:52:00Z\n" in shown
    assert "scores, partition 1, at 2026-01-01 11:52:00Z" in cli("flow", "list").out
    facts = cli("flow", "describe", "totals", "--json").json
    with stem.transaction() as transaction:
        rows = check_rows([{"team": "blue", "at": NOON}], scores.settings)
        scores.backend.append(rows, partition=1, transaction=transaction.id)
        # What comes next lies there, but nobody may read it yet.
        held = f"transaction {transaction.id} of process {os.getpid()}, open in scores, partition 1"
        assert f"waits for     {held}\n" in cli("flow", "describe", "totals").out
        assert held in cli("flow", "list").out
    # Now the flow itself is behind.
    assert "waits for     scores, partition 1, at 2026-01-01 11:52:00Z\n" in cli("flow", "describe", "totals").out

    assert "watermark     2026-01-01 11:52:00Z\n" in shown
    assert "held back by  scores, partition 1, at 2026-01-01 11:52:00Z\n" in shown
    [line] = [line for line in shown.splitlines() if line.startswith("windowed-0")]
    assert line.split() == [
        "windowed-0",
        "3",
        "rows",
        "4",
        "KiB",
        "2",
        "rows,",
        "total",
        "41.5",
        "late",
        "1,",
        "too",
        "late",
        "2",
    ]
    assert [(stage["stage"], stage["rows"], stage["late"]) for stage in facts["stages"]] == [
        ("windowed-0", 3, {"rows": 2, "total": 41.5})
    ]
    assert [(part["partition"], part["watermark"]) for part in facts["watermark_holders"]] == [
        (1, "2026-01-01T11:52:00Z"), (0, "2026-01-01T11:59:00Z")
    ]  # fmt: skip


def test_an_idle_input_holds_nothing_back_and_one_without_records_everything(cli, stem):
    """A table that was written once, and a stream beside it; then another table, which is empty."""
    for topic in ("users", "orders", "empty"):
        stem.create_topic(topic, schema="n INT, at TIMESTAMP", event_time="at")
    stem.topic("users").append([{"n": 1, "at": NOON - timedelta(days=90)}])
    stem.topic("orders").append([{"n": 1, "at": NOON}])
    reached = as_us(NOON - timedelta(minutes=1))
    clock = {"now": as_us(NOON), "delay": 60_000_000}
    orders = {"topic": "orders", "offsets": {"0": 1}, "watermark": reached, **clock}
    idle = {"after": 1, "beside": [["orders", 60_000_000]], "floor": None}
    users = {"topic": "users", "offsets": {"0": 1}, "watermark": reached + 1, "idle": idle, **clock}
    empty = {"topic": "empty", "offsets": {"0": 0}, "watermark": None, **clock}
    run = began(stem, "placed", sink="view placed", sources=("orders", "users"))
    did_batch(stem, run, 0, {}, view=orders, more=[users])
    assert _first_holder(cli) == "orders"
    did_batch(stem, run, 1, {}, view=orders, more=[users, empty])
    assert _first_holder(cli) == "empty"


def _first_holder(cli):
    return cli("flow", "describe", "placed", "--json").json["watermark_holders"][0]["source"]
