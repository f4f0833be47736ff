"""The plot of a flow: event times against processing times. Without Spark.

Each record of the flow's topics is a point: its event time, and its append time. The watermark at each record makes a
line. Each pane that the flow emitted spans its window, at the time of its emission.

A plot has a span of append times, and only records and panes of that span are read. By default it is the span of the last
records, as many as are drawn: the topic that has the most of them says where it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.clock import as_datetime, as_us
from mainstem.errors import Invalid
from mainstem.log.watermark import NO_TIME, times_of
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from mainstem.workbench.cli.flow_facts import FlowFacts, flow_facts

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem
    from mainstem.views.view import View

__all__ = ["PLAIN", "FlowPlot", "PlottedPane", "find_rises", "plot_of", "svg_of", "watermark_delay"]

Int64Array = npt.NDArray[np.int64]

# More points are not visible; above this, of a span that was given, every second one is omitted, repeatedly.
POINTS_MAX = 4_000
# Only the last panes are shown.
PANES_MAX = 2_000
# A pane without a timing: the flow uses Spark's own windows.
PLAIN = "result"


@dataclass(frozen=True)
class PlottedPane:
    """A result of a window: its event times, the time of its emission, and its values."""

    start: int
    end: int
    at: int
    timing: str
    text: str


@dataclass(frozen=True)
class FlowPlot:
    """All times in microseconds. `points` and `watermark` are pairs of event time and append time, one row each."""

    title: str
    points: Int64Array
    watermark: Int64Array
    panes: tuple[PlottedPane, ...]


def plot_of(
    stem: Mainstem,
    flow: str,
    *,
    start: datetime | Literal["earliest"] | None = None,
    stop: datetime | None = None,
) -> FlowPlot:
    """The data of the plot: what was appended from `start` on and before `stop`, by default the last records."""
    facts = flow_facts(stem, flow)
    topics = [
        topic
        for name in dict.fromkeys(part.source for part in facts.sources)
        if name in stem.topics() and (topic := stem.topic(name)).settings.event_time is not None
    ]
    if not topics:
        raise Invalid(
            f'flow "{flow}" reads no topic with an event time',
            detail=f"It reads: {', '.join(dict.fromkeys(part.source for part in facts.sources)) or 'nothing'}.",
            hint="Create the topic with event_time=... to plot it.",
        )
    spans = {topic.name: _Span.find(topic, start, stop) for topic in topics}
    if start is None:
        begin = _last_records(topics, spans)
        spans = {topic.name: spans[topic.name].since(topic, begin) for topic in topics}
    else:
        begin = as_us(start) if isinstance(start, datetime) else None
    found = [_records(topic, spans[topic.name], watermark_delay(facts, topic.name)) for topic in topics]
    points = np.concatenate([points for points, _ in found])
    watermark = np.concatenate([line for _, line in found])
    return FlowPlot(
        f"{flow}: event time and processing time",
        points,
        find_rises(watermark),
        tuple(deque(_panes(stem, facts, begin, stop), maxlen=PANES_MAX)),
    )


@dataclass(frozen=True)
class _Span:
    """The offsets of a topic that are read: from the first of each partition, up to the second."""

    starts: dict[int, int]
    stops: dict[int, int]

    @classmethod
    def find(cls, topic: Topic, start: datetime | str | None, stop: datetime | None) -> _Span:
        """What was appended in a span of time. Of the begin only the index is read."""
        moment, numbers = topic.backend.moment(), range(topic.settings.partitions)
        stops = {number: moment.latest(number) for number in numbers}
        if stop is not None:
            stops = {number: min(end, moment.at_time(number, as_us(stop))) for number, end in stops.items()}
        starts = {number: moment.earliest(number) for number in numbers}
        if isinstance(start, datetime):
            starts = {number: max(first, moment.at_time(number, as_us(start))) for number, first in starts.items()}
        return cls(starts, {number: max(end, starts[number]) for number, end in stops.items()})

    def last(self, rows: int) -> _Span:
        """At most the last `rows` offsets of each partition."""
        return _Span(
            {number: max(first, self.stops[number] - rows) for number, first in self.starts.items()}, self.stops
        )

    def since(self, topic: Topic, at: int | None) -> _Span:
        """Without what was appended before a time."""
        if at is None:
            return self
        moment = topic.backend.moment()
        starts = {number: max(first, moment.at_time(number, at)) for number, first in self.starts.items()}
        return _Span({number: min(first, self.stops[number]) for number, first in starts.items()}, self.stops)

    def batches(self, topic: Topic, columns: list[str] | None, watermark: str | None) -> Iterator[pa.RecordBatch]:
        return topic.batches(start=self.starts, stop=self.stops, columns=columns, watermark=watermark)


def _last_records(topics: Sequence[Topic], spans: dict[str, _Span]) -> int | None:
    """Since when at most `POINTS_MAX` records were appended; None: at all. Cuts the spans to what can be drawn."""
    share = max(1, POINTS_MAX // sum(topic.settings.partitions for topic in topics))
    begins: list[int] = []
    for topic in topics:
        whole, spans[topic.name] = spans[topic.name], spans[topic.name].last(share)
        for number, first in spans[topic.name].starts.items():
            if first > whole.starts[number]:
                record = topic.backend.read(number, first, 1, [str(topic.settings.event_time)])
                begins += (
                    [] if record is None else record.column("record").field("appended_at").cast(pa.int64()).to_pylist()
                )
    return max(begins, default=None)


def watermark_delay(facts: FlowFacts, topic: str) -> int:
    """The delay of the flow's watermark; 0 without one."""
    batch = last_batch(facts.checkpoint)
    for offset in () if batch is None else source_offsets(facts.checkpoint, batch):
        if topic in (offset.get("topic"), *offset.get("topics", {})):
            return int(offset.get("delay") or 0)
    return 0


def _records(topic: Topic, span: _Span, delay: int) -> tuple[Int64Array, Int64Array]:
    """Event time and append time of some records, and watermark and append time."""
    name = str(topic.settings.event_time)
    points, watermark, step = np.empty((0, 2), np.int64), np.empty((0, 2), np.int64), 1
    for batch in span.batches(topic, [name], f"{delay} microseconds"):
        record = batch.column("record")
        appended = times_of(record.field("appended_at"))
        offsets = np.asarray(record.field("offset"))
        for column, kind in ((batch.column(name), "points"), (record.field("watermark"), "watermark")):
            times = times_of(column.cast(pa.timestamp("us", "UTC")))
            chosen = (times != NO_TIME) & (offsets % step == 0)
            pairs = np.stack([times[chosen], appended[chosen]], axis=1)
            if kind == "points":
                points = np.concatenate([points, pairs])
            else:
                watermark = np.concatenate([watermark, find_rises(pairs)])
        while len(points) > POINTS_MAX:
            points, step = points[::2], 2 * step
    return points, watermark


def find_rises(pairs: Int64Array) -> Int64Array:
    """The line of the watermark: in the order of the appends, where it advances."""
    if not len(pairs):
        return pairs
    ordered = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    highest = np.maximum.accumulate(ordered[:, 0])
    rises = np.ones(len(ordered), np.bool_)
    rises[1:-1] = highest[1:-1] > highest[:-2]
    return np.stack([highest, ordered[:, 1]], axis=1)[rises]


def _panes(stem: Mainstem, facts: FlowFacts, begin: int | None, stop: datetime | None) -> Iterator[PlottedPane]:
    """The panes in the flow's sink that were emitted in the span, if it is a topic or a view with windows."""
    for rows in _sink_rows(stem, facts, begin, stop):
        if "window" not in rows.schema.names or not pa.types.is_struct(rows.schema.field("window").type):
            return
        for row in rows.to_pylist():
            window = row["window"]
            bounded = window is not None and window["start"] is not None and window["end"] is not None
            if bounded and row["record"]["change"] != "delete":
                yield _pane(row)


def _pane(row: dict[str, Any]) -> PlottedPane:
    window, record, pane = row.pop("window"), row.pop("record"), row.pop("pane", None) or {}
    start, end, at = map(as_us, (window["start"], window["end"], record["appended_at"]))
    said = ", ".join(f"{name} {value}" for name, value in row.items())
    return PlottedPane(start, end, at, pane.get("timing", PLAIN), said)


def _sink_rows(
    stem: Mainstem, facts: FlowFacts, begin: int | None, stop: datetime | None
) -> Iterator[pa.Table | pa.RecordBatch]:
    kind, _, name = facts.sink.partition(" ")
    if kind == "topic" and name in stem.topics():
        topic = stem.topic(name)
        span = _Span.find(topic, None if begin is None else as_datetime(begin), stop)
        yield from span.last(PANES_MAX).batches(topic, None, None)
    elif kind == "view" and name in stem.views():
        with closing(stem.view(name)) as view:
            position, end = _view_positions(view, begin, stop)
            # A change is one pane at most.
            position = max(position, end - PANES_MAX)
            while position < end:
                changes = view.changes_between(position, end, PANES_MAX)
                yield changes.rows
                position = changes.end


def _view_positions(view: View, begin: int | None, stop: datetime | None) -> tuple[int, int]:
    """The changes of a view in a span of time: after the first position, up to the second."""
    described = view.describe()
    first, last = described.first_position, described.last_position
    with view.snapshot() as snapshot:
        # The last commit before the span, and the last one in it.
        before = None if begin is None else snapshot.position_at(begin - 1)
        until = last if stop is None else snapshot.position_at(as_us(stop) - 1)
    return max(first, before or 0), min(last, until or 0)


# The plot as SVG: event time to the right, processing time upwards.
#
# A record that is appended when it happens is on the ideal line; the higher above it, the later it came. To the right
# of the watermark nothing is complete yet. A pane is a bar over its window, at the time of its emission.


WIDTH, HEIGHT = 960, 640
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 70, 60
TICKS_MAX = 8
SECOND = 1_000_000
# The distances between ticks, in seconds.
STEPS = (
    0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 2592000, 7776000, 31536000, 315360000,
)  # fmt: skip
# Distinguishable with colour blindness.
COLOURS = {"early": "#e69f00", "on_time": "#009e73", "late": "#d55e00", "result": "#009e73"}
STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:16px}.axis{stroke:#999}.grid{stroke:#eee}"


@dataclass(frozen=True)
class _Scale:
    """Maps times, in microseconds, to coordinates."""

    first: int
    last: int
    begin: float
    end: float

    def __call__(self, at: float) -> float:
        return round(self.begin + (at - self.first) / (self.last - self.first) * (self.end - self.begin), 1)

    @property
    def step(self) -> int:
        span = (self.last - self.first) / SECOND
        return int(SECOND * next((step for step in STEPS if span / step <= TICKS_MAX), STEPS[-1]))

    def ticks(self) -> range:
        step = self.step
        return range(-(-self.first // step) * step, self.last + 1, step)


def svg_of(plot: FlowPlot) -> str:
    """The complete picture."""
    events = [*plot.points[:, 0].tolist(), *(edge for pane in plot.panes for edge in (pane.start, pane.end))]
    known = [*plot.points[:, 1].tolist(), *(pane.at for pane in plot.panes)]
    across = _scale(events, LEFT, WIDTH - RIGHT)
    upwards = _scale(known, HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(plot.title)}</text>',
        *_axes(across, upwards),
        *_pane_marks(plot, across, upwards),
        *_ideal(across, upwards),
        *_watermark(plot, across, upwards),
        *_points(plot, across, upwards),
        *_legend(plot),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _scale(times: list[int], begin: float, end: float) -> _Scale:
    """With a margin on both sides; a single time gets a second."""
    first, last = (min(times), max(times)) if times else (0, SECOND)
    room = max(SECOND // 2, (last - first) // 25)
    return _Scale(first - room, last + room, begin, end)


def _axes(across: _Scale, upwards: _Scale) -> Iterator[str]:
    foot = HEIGHT - BOTTOM
    for at in across.ticks():
        yield f'<line class="grid" x1="{across(at)}" x2="{across(at)}" y1="{TOP}" y2="{foot}"/>'
        yield f'<text x="{across(at)}" y="{foot + 18}" text-anchor="middle">{_label(at, across.step)}</text>'
    for at in upwards.ticks():
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{upwards(at)}" y2="{upwards(at)}"/>'
        yield f'<text x="{LEFT - 6}" y="{upwards(at) + 4}" text-anchor="end">{_label(at, upwards.step)}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{foot}" y2="{foot}"/>'
    yield f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{foot}"/>'
    middle, began = (LEFT + WIDTH - RIGHT) / 2, as_datetime(across.ticks()[0] if across.ticks() else across.first)
    yield f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">event time (UTC), from {began:%Y-%m-%d}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 8}" text-anchor="end">processing time</text>'


def _label(at: int, step: int) -> str:
    moment: datetime = as_datetime(at)
    if step >= 86400 * SECOND:
        return f"{moment:%Y-%m-%d}"
    if step >= 60 * SECOND:
        return f"{moment:%H:%M}"
    return f"{moment:%H:%M:%S}" if step >= SECOND else f"{moment:%H:%M:%S.%f}"[:-3]


def _pane_marks(plot: FlowPlot, across: _Scale, upwards: _Scale) -> Iterator[str]:
    for pane in plot.panes:
        left, right, height = across(pane.start), across(pane.end), upwards(pane.at)
        yield (
            f'<rect class="pane {pane.timing}" x="{left}" y="{height - 4}" width="{max(1.0, round(right - left, 1))}" '
            f'height="8" fill="{COLOURS.get(pane.timing, COLOURS["result"])}" fill-opacity="0.35">'
            f"<title>{escape(pane.timing)}: {escape(pane.text)}</title></rect>"
        )


def _ideal(across: _Scale, upwards: _Scale) -> Iterator[str]:
    """The line of records appended when they happen; empty if it is outside the picture."""
    first, last = max(across.first, upwards.first), min(across.last, upwards.last)
    if first < last:
        ends = f'x1="{across(first)}" y1="{upwards(first)}" x2="{across(last)}" y2="{upwards(last)}"'
        yield f'<line class="ideal" {ends} stroke="#999" stroke-dasharray="6 4"/>'


def _watermark(plot: FlowPlot, across: _Scale, upwards: _Scale) -> Iterator[str]:
    """In steps: it is constant until the next append advances it."""
    places: list[str] = []
    before = None
    for event, known in plot.watermark.tolist():
        x, y = across(max(event, across.first)), upwards(known)
        places += [f"{before},{y}"] if before is not None else []
        places.append(f"{x},{y}")
        before = x
    if places:
        yield f'<polyline class="watermark" points="{" ".join(places)}" fill="none" stroke="#0072b2" stroke-width="2"/>'


def _points(plot: FlowPlot, across: _Scale, upwards: _Scale) -> Iterator[str]:
    for event, known in plot.points.tolist():
        yield f'<circle class="record" cx="{across(event)}" cy="{upwards(known)}" r="2.5" fill="#333" fill-opacity="0.6"/>'


def _legend(plot: FlowPlot) -> Iterator[str]:
    shown = [("#333", "records"), ("#0072b2", "watermark"), ("#999", "ideal")]
    shown += [(COLOURS.get(timing, COLOURS["result"]), _timing_name(timing)) for timing in _timings(plot)]
    for place, (colour, name) in enumerate(shown):
        x = LEFT + 130 + 120 * place
        yield f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="50">{escape(name)}</text>'


def _timings(plot: FlowPlot) -> list[str]:
    there = {pane.timing for pane in plot.panes}
    return [timing for timing in COLOURS if timing in there]


def _timing_name(timing: str) -> str:
    return "results" if timing == "result" else f"{timing.replace('_', ' ')} panes"
