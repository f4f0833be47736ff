"""mainstem flow plot: what is drawn, and where."""

import json
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from mainstem.batch import Batch
from mainstem.clock import ManualClock, as_datetime, as_us
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.cli import flow_plot
from mainstem.workbench.cli.flow_plot import HEIGHT, LEFT, RIGHT, TOP, WIDTH, FlowPlot, PlottedPane, plot_of, svg_of
from tests.workbench.ran_flows import began, did_batch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RESULTS = (
    "team STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, total BIGINT, "
    "pane STRUCT<index: INT, timing: STRING, final: BOOLEAN>"
)
TIME = pa.timestamp("us", "UTC")
SVG = "{http://www.w3.org/2000/svg}"


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def us(minute: float) -> int:
    return as_us(at(minute))


@pytest.fixture
def played(place):
    """A flow of team scores: three records, the last of them late, and two panes in a topic."""
    clock = ManualClock(at(0))
    with Mainstem(EmbeddedLog(place / "shop", upkeep="manual", clock=clock), home=str(place / "shop")) as stem:
        scores = stem.create_topic("scores", schema="team STRING, score INT, at TIMESTAMP", event_time="at")
        totals = stem.create_topic("totals", schema=RESULTS)
        for minute, happened in ((1, 0.5), (3, 2.5), (6, 1.5)):
            clock.set(at(minute))
            scores.append([{"team": "red & blue", "score": 5, "at": at(happened)}])
            window = {"start": at(0), "end": at(2)}
            if minute > 1:
                pane = {"index": 0, "timing": "on_time" if minute == 3 else "late", "final": False}
                totals.append([{"team": "red & blue", "window": window, "total": 5, "pane": pane}])
        run = began(stem, "totals", sink="topic totals", sources=("scores",))
        did_batch(stem, run, 0, {"scores": {0: 3}})
        offsets = Path(FlowStore(stem.home, "totals").checkpoint(1), "offsets", "0")
        asked = {"topic": "scores", "offsets": {"0": 3}, "delay": 30_000_000}
        offsets.write_text("\n".join(["v1", "{}", json.dumps(asked)]))
        yield stem


def test_records_watermark_and_panes_stand_where_they_were(played):
    plot = plot_of(played, "totals")

    assert plot.points.tolist() == [[us(0.5), us(1)], [us(2.5), us(3)], [us(1.5), us(6)]]
    # What was known before each append, half a minute behind the highest event time.
    assert plot.watermark.tolist() == [[us(0), us(3)], [us(2), us(6)]]
    assert [(pane.start, pane.end, pane.at, pane.timing) for pane in plot.panes] == [
        (us(0), us(2), us(3), "on_time"),
        (us(0), us(2), us(6), "late"),
    ]


def test_panes_of_a_view_stand_at_the_time_of_their_change(played):
    clock = played.log.clock
    run = began(played, "held", sink="view held", sources=("scores",))
    window = pa.array([{"start": at(0), "end": at(2)}], pa.struct([("start", TIME), ("end", TIME)]))
    for number, (minute, total) in enumerate(((7, 5), (9, 8))):
        clock.set(at(minute))
        rows = pa.table({"team": ["red"], "window": window, "total": [total]})
        view = View(played.home, "held", key=["team", "window"], clock=clock)
        view.writer(run, rows.schema).apply(rows, Batch(number, run))

    # Of an update the old row is taken back, and the new one is shown.
    assert [(pane.start, pane.end, pane.at, pane.timing, pane.text) for pane in plot_of(played, "held").panes] == [
        (us(0), us(2), us(7), "result", "team red, total 5"),
        (us(0), us(2), us(9), "result", "team red, total 8"),
    ]


def test_the_picture_is_sound_and_says_what_is_in_it(cli, played, place):
    said = cli("flow", "plot", "totals", "-o", "totals.svg")

    assert said == (0, "totals.svg: 3 records, 2 panes\n", "")
    root = ElementTree.parse(place / "totals.svg").getroot()
    classes = [part.get("class") for part in root]
    assert {name: classes.count(name) for name in ("record", "watermark", "ideal", "pane on_time", "pane late")} == {
        "record": 3, "watermark": 1, "ideal": 1, "pane on_time": 1, "pane late": 1,
    }  # fmt: skip
    late = next(part for part in root if part.get("class") == "pane late")
    assert late.find(f"{SVG}title").text == "late: team red & blue, total 5"
    texts = [part.text for part in root.iter(f"{SVG}text")]
    assert "totals: event time and processing time" in texts
    assert {"records", "watermark", "ideal", "on time panes", "late panes", "12:02"} <= set(texts)


def test_later_is_further_right_and_further_up():
    moments = np.array([[us(0), us(1)], [us(4), us(9)]])
    pane = PlottedPane(us(0), us(4), us(9), "on_time", "")
    root = ElementTree.fromstring(svg_of(FlowPlot("test", moments, moments, (pane,))))

    first, last = ((float(part.get("cx")), float(part.get("cy"))) for part in root if part.get("class") == "record")
    bar = next(part for part in root if part.get("class") == "pane on_time")
    assert LEFT < first[0] < last[0] < WIDTH - RIGHT
    assert TOP < last[1] < first[1] < HEIGHT
    assert (float(bar.get("x")), float(bar.get("width"))) == (first[0], round(last[0] - first[0], 1))
    assert float(bar.get("y")) + 4 == last[1]
    line = next(part for part in root if part.get("class") == "ideal")
    # It runs through the places where both times are the same: it leaves the picture where event time ends.
    assert float(line.get("x1")) < float(line.get("x2"))
    # The watermark stands until the append that moves it.
    steps = next(part for part in root if part.get("class") == "watermark").get("points").split()
    assert steps == [f"{first[0]},{first[1]}", f"{first[0]},{last[1]}", f"{last[0]},{last[1]}"]


def test_nothing_or_one_moment_can_be_drawn_too():
    nothing = np.empty((0, 2), np.int64)
    for points in (nothing, np.array([[us(0), us(0)]])):
        ElementTree.fromstring(svg_of(FlowPlot("<empty>", points, nothing, ())))


def test_of_very_many_records_some_are_drawn(played, monkeypatch):
    monkeypatch.setattr(flow_plot, "POINTS_MAX", 2)

    assert 1 <= len(plot_of(played, "totals").points) <= 2


def test_what_cannot_be_plotted_is_said(cli, stem):
    stem.create_topic("plain", schema="n INT")
    began(stem, "timeless", sources=("plain",))

    assert cli("flow", "plot", "timeless", "-o", "x.svg").error[0] == (
        'mainstem.Invalid: flow "timeless" reads no topic with an event time'
    )
    assert (
        cli("flow", "plot", "never", "-o", "x.svg").error[0]
        == 'mainstem.FlowNotFound: flow "never" never ran in this home'
    )


# A span


def test_only_records_and_panes_of_the_span_are_drawn(cli, played):
    plot = plot_of(played, "totals", start=at(3), stop=at(6))

    assert plot.points.tolist() == [[us(2.5), us(3)]]
    assert plot.watermark.tolist() == [[us(0), us(3)]]
    assert [(pane.at, pane.timing) for pane in plot.panes] == [(us(3), "on_time")]
    assert plot_of(played, "totals", start="earliest").points.tolist() == plot_of(played, "totals").points.tolist()
    assert len(plot_of(played, "totals", start=at(100)).points) == 0
    said = cli(
        "flow", "plot", "totals", "-o", "part.svg", "--start", "2026-01-01T12:03:00Z", "--stop", "2026-01-01T12:06:00Z"
    )
    assert said == (0, "part.svg: 1 record, 1 pane\n", "")
    assert cli("flow", "plot", "totals", "-o", "part.svg", "--start", "soon").error[0] == (
        'mainstem.Invalid: --start "soon" is not a time'
    )


def test_by_default_it_is_the_span_of_the_last_records(played, monkeypatch):
    monkeypatch.setattr(flow_plot, "POINTS_MAX", 2)
    plot = plot_of(played, "totals")

    assert plot.points.tolist() == [[us(2.5), us(3)], [us(1.5), us(6)]]
    monkeypatch.setattr(flow_plot, "POINTS_MAX", 1)
    plot = plot_of(played, "totals")
    assert plot.points.tolist() == [[us(1.5), us(6)]]
    # The panes since then.
    assert [pane.at for pane in plot.panes] == [us(6)]


def test_panes_of_a_view_are_those_of_the_span(played):
    run = began(played, "held", sink="view held", sources=("scores",))
    kind = pa.struct([("start", TIME), ("end", TIME)])
    view = View(played.home, "held", key=["team", "window"], clock=played.log.clock)
    writer = view.writer(run, pa.schema({"team": pa.string(), "window": kind, "total": pa.int64()}))
    for number, minute in enumerate((7, 9, 11)):
        played.log.clock.set(at(minute))
        window = pa.array([{"start": at(number), "end": at(number + 1)}], kind)
        writer.apply(pa.table({"team": ["red"], "window": window, "total": [number]}), Batch(number, run))

    for start, stop, drawn in ((7, 12, [7, 9, 11]), (8, 11, [9]), (9, None, [9, 11]), (12, None, []), (0, 7, [])):
        plot = plot_of(played, "held", start=at(start), stop=None if stop is None else at(stop))
        assert [pane.at for pane in plot.panes] == [us(minute) for minute in drawn]


def bytes_read() -> int:
    """By all system calls of this process so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_it_reads_what_it_draws_however_long_the_topic_is(place, monkeypatch):
    monkeypatch.setattr(flow_plot, "POINTS_MAX", 100)
    monkeypatch.setattr(flow_plot, "PANES_MAX", 100)
    clock = ManualClock(at(0))
    costs = []
    with Mainstem(EmbeddedLog(place / "shop", upkeep="manual", clock=clock), home=str(place / "shop")) as stem:
        small = {"segment_bytes_max": "64 KiB"}
        scores = stem.create_topic("scores", schema="note STRING, at TIMESTAMP", event_time="at", **small)
        totals = stem.create_topic("totals", schema=RESULTS, **small)
        did_batch(stem, began(stem, "totals", sink="topic totals", sources=("scores",)), 0, {"scores": {0: 1}})
        texts = [bytes(Random(number).randbytes(100)).hex() for number in range(100)]
        for appends in (10, 60):
            for _ in range(appends):
                clock.advance("1 second")
                scores.append([{"note": text, "at": as_datetime(clock.now())} for text in texts])
                totals.append([{"team": text, "window": {"start": at(0), "end": at(2)}, "total": 1} for text in texts])
            for start in (None, as_datetime(clock.now())):
                before = bytes_read()
                plot = plot_of(stem, "totals", start=start)
                costs.append(bytes_read() - before)
                assert (len(plot.points), len(plot.panes)) == (100, 100)
        before = bytes_read()
        plot_of(stem, "totals", start="earliest")
        costs.append(bytes_read() - before)
    *few, last, given, whole = costs
    assert max(last, given) < 1.2 * max(few)
    assert max(last, given) < whole / 3
