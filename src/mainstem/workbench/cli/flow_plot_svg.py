"""A plot of a flow as SVG, written by hand: event time to the right, processing time upwards.

A record that is known the moment it happens lies on the ideal line; the further above it, the later it came. Right of the
watermark nothing is complete yet. A pane is a bar over its window, at the time at which it was put out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from html import escape

from mainstem.clock import as_datetime
from mainstem.workbench.cli.flow_plot import FlowPlot

__all__ = ["svg_of"]

WIDTH, HEIGHT = 960, 640
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 70, 60
TICKS_MAX = 8
SECOND = 1_000_000
# How far apart ticks may be, in seconds: what people count in.
STEPS = (
    0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 2592000, 7776000, 31536000, 315360000,
)  # fmt: skip
# Told apart by people who see few colours, too.
COLOURS = {"early": "#e69f00", "on_time": "#009e73", "late": "#d55e00", "result": "#009e73"}
STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:16px}.axis{stroke:#999}.grid{stroke:#eee}"


@dataclass(frozen=True)
class _Scale:
    """From times, in microseconds, to places on the page."""

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
    """The whole picture."""
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
        *_panes(plot, across, upwards),
        *_ideal(across, upwards),
        *_watermark(plot, across, upwards),
        *_points(plot, across, upwards),
        *_legend(plot),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _scale(times: list[int], begin: float, end: float) -> _Scale:
    """With a little room on both sides; one moment alone gets a second."""
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


def _panes(plot: FlowPlot, across: _Scale, upwards: _Scale) -> Iterator[str]:
    for pane in plot.panes:
        left, right, height = across(pane.start), across(pane.end), upwards(pane.at)
        yield (
            f'<rect class="pane {pane.timing}" x="{left}" y="{height - 4}" width="{max(1.0, round(right - left, 1))}" '
            f'height="8" fill="{COLOURS.get(pane.timing, COLOURS["result"])}" fill-opacity="0.35">'
            f"<title>{escape(pane.timing)}: {escape(pane.text)}</title></rect>"
        )


def _ideal(across: _Scale, upwards: _Scale) -> Iterator[str]:
    """Where every record would lie that is known at once; nowhere in the picture if all came far too late."""
    first, last = max(across.first, upwards.first), min(across.last, upwards.last)
    if first < last:
        ends = f'x1="{across(first)}" y1="{upwards(first)}" x2="{across(last)}" y2="{upwards(last)}"'
        yield f'<line class="ideal" {ends} stroke="#999" stroke-dasharray="6 4"/>'


def _watermark(plot: FlowPlot, across: _Scale, upwards: _Scale) -> Iterator[str]:
    """In steps: it stands until the next append moves it."""
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
    shown += [(COLOURS.get(timing, COLOURS["result"]), _named(timing)) for timing in _timings(plot)]
    for place, (colour, name) in enumerate(shown):
        x = LEFT + 130 + 120 * place
        yield f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="50">{escape(name)}</text>'


def _timings(plot: FlowPlot) -> list[str]:
    there = {pane.timing for pane in plot.panes}
    return [timing for timing in COLOURS if timing in there]


def _named(timing: str) -> str:
    return "results" if timing == "result" else f"{timing.replace('_', ' ')} panes"
