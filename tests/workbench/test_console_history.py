"""The picture and the history of a flow: equal to the log, its late rows, its sink's changes and its reports."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch
from mainstem.clock import ManualClock
from mainstem.log.activity import note_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.console.flow_picture import flow_picture
from mainstem.workbench.console.home_map import home_map
from mainstem.workbench.console.home_then import home_then
from mainstem.workbench.console.progress_history import history_of
from tests.workbench.ran_flows import began, did_batch

TIME = pa.timestamp("us", "UTC")
PANES = pa.schema(
    [("store", pa.string()), ("window", pa.struct([("start", TIME), ("end", TIME)])), ("total", pa.int64()),
     ("pane", pa.struct([("index", pa.int32()), ("timing", pa.string()), ("final", pa.bool_())]))]
)  # fmt: skip
NOW = datetime.now(UTC).replace(microsecond=0)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def stem(tmp_path):
    with mainstem.open(tmp_path / "shop", upkeep="manual") as opened:
        yield opened


def pane(store: str, start: datetime, total: int, timing: str) -> dict[str, object]:
    window = {"start": start, "end": start + MINUTE}
    return {"store": store, "window": window, "total": total, "pane": {"index": 0, "timing": timing, "final": False}}


@pytest.fixture
def flow(stem):
    """A flow over a topic with late rows, into a view of windows; two of them came too late."""
    orders = stem.create_topic("orders", schema="order_id BIGINT, at TIMESTAMP", event_time="at", partitions=2)
    for number in range(100):
        behind = 300 if number in (40, 41, 60) else 0
        row = {"order_id": number, "at": NOW - timedelta(seconds=100 - number + behind)}
        orders.append([row], partition=number % 2)
    late = stem.create_topic("revenue.late", schema="time TIMESTAMP, partition INT, offset BIGINT, reason STRING")
    late.append(
        [
            {
                "time": NOW - timedelta(seconds=100 - number + 300),
                "partition": number % 2,
                "offset": number // 2,
                "reason": "too late",
            }
            for number in (40, 41)
        ]
    )
    run = began(stem, "revenue", sink="view revenue", sources=("orders",))
    writer = View(stem.home, "revenue", key=["store", "window"]).writer(run, PANES)
    start = NOW.replace(second=0) - 3 * MINUTE
    for number, (total, timing) in enumerate([(7, "early"), (9, "on_time"), (12, "late")]):
        writer.apply(pa.Table.from_pylist([pane("Berlin", start, total, timing)], PANES), Batch(number, run))
        did_batch(
            stem, run, number, {"orders": {0: 10 * number, 1: 10 * number}}, rows_in=10 + number, rows_out=1,
            at=datetime.now(UTC), lag_seconds=float(number), late=number,
        )  # fmt: skip
    return run


def test_the_rows_of_a_picture_are_those_of_the_log(stem, flow):
    found = flow_picture(stem, "revenue", None, None)
    log = {
        (row["record"]["partition"], str(row["record"]["offset"])): row["at"]
        for row in stem.topic("orders").to_arrow().to_pylist()
    }
    drawn = {(row["partition"], row["offset"]): datetime.fromisoformat(row["event_time"]) for row in found["rows"]}
    assert drawn == log
    assert found["sampled"] == 0
    fates = {2 * int(row["offset"]) + row["partition"]: row["late"] for row in found["rows"] if row["late"]}
    assert fates == {40: "too late", 41: "too late", 60: "late"}
    steps = [(step["at"], step["watermark"]) for step in found["watermark"]]
    assert steps == sorted(steps)
    assert [step[1] for step in steps] == sorted(step[1] for step in steps)


def test_the_panes_are_the_changes_of_the_sink(stem, flow):
    found = flow_picture(stem, "revenue", None, None)["panes"]
    assert [(it["key"], it["value"], it["timing"]) for it in found] == [
        ("Berlin", "7", "early"), ("Berlin", "9", "on_time"), ("Berlin", "12", "late"),
    ]  # fmt: skip


def test_a_picture_has_only_its_span(stem, flow):
    appended = stem.topic("orders").to_arrow().column("record").to_pylist()
    times = sorted(record["appended_at"] for record in appended)
    found = flow_picture(stem, "revenue", times[30], times[59])
    assert len(found["rows"]) == 30
    assert found["panes"] == []


def test_a_picture_of_many_rows_is_sampled_and_says_so(stem, flow):
    stem.topic("orders").append([{"order_id": number, "at": NOW} for number in range(20_000)])
    found = flow_picture(stem, "revenue", None, None)
    assert len(found["rows"]) < 6_000
    assert found["sampled"] + len(found["rows"]) == 20_100
    assert sum(row["late"] is not None for row in found["rows"]) == 3


def test_the_time_without_a_run_is_a_break(stem, flow):
    note_activity(stem.log, "flow", "revenue", "killed", 'flow "revenue" was killed')
    note_activity(stem.log, "flow", "revenue", "begun", 'flow "revenue" continues')
    (gap,) = flow_picture(stem, "revenue", None, None)["breaks"]
    assert gap["text"] == 'flow "revenue" was killed'
    assert gap["from"] <= gap["to"]


def test_a_history_has_the_sums_and_the_least_and_most(stem, flow):
    found = history_of(stem, "flow:revenue", NOW - timedelta(minutes=5), datetime.now(UTC) + MINUTE, 1)
    (point,) = found["points"]
    assert (point["batches"], point["rows_in"], point["rows_out"], point["late"]) == (3, 33, 3, 3)
    assert point["lag_seconds"] == {"min": 0.0, "max": 2.0}
    assert point["phases"] == {"addBatch": 600}
    many = history_of(stem, "flow:revenue", NOW - timedelta(minutes=5), datetime.now(UTC) + MINUTE, 500)["points"]
    assert sum(point["rows_in"] for point in many) == 33


def test_a_topic_s_history_counts_its_records(stem, flow):
    found = history_of(stem, "topic:orders", NOW - timedelta(minutes=5), datetime.now(UTC) + MINUTE, 60)
    assert sum(point["rows"] for point in found["points"]) == 100
    assert found["source"] == "offsets"


def test_a_long_history_is_read_from_the_sums_by_minute(stem, flow):
    assert history_of(stem, "flow:revenue", NOW - timedelta(days=30), None, 10)["source"] == "minutes"


def test_the_home_as_it_was(stem, flow):
    before = datetime.now(UTC)
    stem.topic("orders").append([{"order_id": 1000 + number, "at": NOW} for number in range(50)])
    note_activity(stem.log, "flow", "revenue", "killed", 'flow "revenue" was killed')
    now = home_map(stem)
    then = {node["id"]: node for node in home_then(stem, now, before)["nodes"]}
    assert then["topic:orders"]["records"] == 100
    assert next(node["records"] for node in now["nodes"] if node["id"] == "topic:orders") == 150
    # It did not report any more: it was dead before that was noted.
    assert then["flow:revenue"]["state"] == "killed"
    assert then["flow:revenue"]["batch"] == 2
    after = home_then(stem, now, datetime.now(UTC))
    assert next(node["state"] for node in after["nodes"] if node["id"] == "flow:revenue") == "killed"
    assert not after["well"]["ok"]
    assert [row["what"] for row in after["activity"]] == ["killed"]
    with pytest.raises(mainstem.Invalid):
        home_then(stem, now, datetime.now(UTC) + MINUTE)


def test_what_holds_a_flow_back_is_its_cause(tmp_path):
    clock = ManualClock(NOW)
    with Mainstem(EmbeddedLog(tmp_path / "shop", upkeep="manual", clock=clock), home=str(tmp_path / "shop")) as stem:
        orders = stem.create_topic("orders", schema="at TIMESTAMP", event_time="at", partitions=2)
        for number, at in enumerate((NOW - 2 * MINUTE, NOW)):
            orders.append([{"at": at}], partition=number)
        source = {"topic": "orders", "offsets": {"0": 1, "1": 1}, "delay": 0}
        did_batch(stem, began(stem, "held"), 0, {}, more=[source])
        slow = began(stem, "slow")
        did_batch(stem, slow, 0, {"orders": {0: 0, 1: 0}}, batch_ms=1_000, phases={"addBatch": 950}, sink_ms=800)
        clock.advance("10 minutes")
        looks = {look["id"]: (look["text"], look["cause"]) for look in home_map(stem)["wants_a_look"]}
    assert looks == {
        "flow:held": (
            "the watermark of flow held is held back",
            "Partition 0 of orders holds it: the furthest is 2 min 0 s ahead.",
        ),
        "flow:slow": ("flow slow is 10 min 0 s behind", "Of a batch the sink takes 80 %."),
    }


@pytest.mark.parametrize("subject", ["", "view:revenue", "flow:nothing", "topic:nothing", "topic:../x"])
def test_what_has_no_history_says_so(stem, subject):
    with pytest.raises(mainstem.MainstemError) as refused:
        history_of(stem, subject, None, None, 10)
    assert refused.value.detail
    assert refused.value.hint


def test_no_span_is_no_picture(stem, flow):
    for make in (flow_picture, lambda stem, flow, begin, end: history_of(stem, f"flow:{flow}", begin, end, 10)):
        with pytest.raises(mainstem.Invalid):
            make(stem, "revenue", NOW, NOW - MINUTE)
