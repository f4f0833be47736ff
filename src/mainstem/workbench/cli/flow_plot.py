"""What a plot of a flow shows: when things happened, and when they were known. Without Spark.

Each record of the flow's topics is a point: its event time, and the time at which it was appended. So is the watermark at it,
which makes a line; and each pane that the flow put out spans its window, at the time at which it was put out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.log.watermark import NO_TIME, times_of
from mainstem.log_on_spark.checkpoint_offsets import last_batch, source_offsets
from mainstem.workbench.cli.flow_facts import FlowFacts, flow_facts

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["FlowPlot", "PlottedPane", "plot_of"]

Int64Array = npt.NDArray[np.int64]

# More than a picture can show; of so many every second one is left out, as often as it takes.
POINTS_MAX = 4_000
# Of panes the last ones.
PANES_MAX = 2_000
# What a pane without a timing is: the flow has windows of Spark's own.
PLAIN = "result"


@dataclass(frozen=True)
class PlottedPane:
    """A result of a window: its event times, when it was put out, and what it says."""

    start: int
    end: int
    at: int
    timing: str
    text: str


@dataclass(frozen=True)
class FlowPlot:
    """All times in microseconds. `points` and `watermark` are pairs of event time and time of the append, a row for each."""

    title: str
    points: Int64Array
    watermark: Int64Array
    panes: tuple[PlottedPane, ...]


def plot_of(stem: Mainstem, flow: str) -> FlowPlot:
    """Everything that is to be drawn of a flow."""
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
            hint="Create the topic with event_time=..., and there is something to plot.",
        )
    found = [_records(topic, delay) for topic in topics for delay in [_delay(facts, topic.name)]]
    points = np.concatenate([points for points, _ in found])
    watermark = np.concatenate([line for _, line in found])
    return FlowPlot(
        f"{flow}: event time and processing time",
        points,
        _rising(watermark),
        tuple(deque(_panes(stem, facts), maxlen=PANES_MAX)),
    )


def _delay(facts: FlowFacts, topic: str) -> int:
    """How far behind the flow lets the watermark be; none where it asks for none."""
    batch = last_batch(facts.checkpoint)
    for offset in () if batch is None else source_offsets(facts.checkpoint, batch):
        if topic in (offset.get("topic"), *offset.get("topics", {})):
            return int(offset.get("delay") or 0)
    return 0


def _records(topic: Topic, delay: int) -> tuple[Int64Array, Int64Array]:
    """Event time and time of the append of some records, and watermark and time of the append."""
    name = str(topic.settings.event_time)
    points, watermark, step = np.empty((0, 2), np.int64), np.empty((0, 2), np.int64), 1
    for batch in topic.batches(columns=[name], watermark=f"{delay} microseconds"):
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
                watermark = np.concatenate([watermark, _rising(pairs)])
        while len(points) > POINTS_MAX:
            points, step = points[::2], 2 * step
    return points, watermark


def _rising(pairs: Int64Array) -> Int64Array:
    """The watermark's line: in order of the appends, where it rises."""
    if not len(pairs):
        return pairs
    ordered = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    highest = np.maximum.accumulate(ordered[:, 0])
    rises = np.ones(len(ordered), np.bool_)
    rises[1:-1] = highest[1:-1] > highest[:-2]
    return np.stack([highest, ordered[:, 1]], axis=1)[rises]


def _panes(stem: Mainstem, facts: FlowFacts) -> Iterator[PlottedPane]:
    """The panes in the flow's sink, if it is a topic or a view and its rows have windows."""
    for rows in _sink_rows(stem, facts):
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


def _sink_rows(stem: Mainstem, facts: FlowFacts) -> Iterator[pa.Table | pa.RecordBatch]:
    kind, _, name = facts.sink.partition(" ")
    if kind == "topic" and name in stem.topics():
        yield from stem.topic(name).batches()
    elif kind == "view" and name in stem.views():
        with closing(stem.view(name)) as view:
            described = view.describe()
            position = described.first_position
            while position < described.last_position:
                changes = view.changes(position)
                yield changes.rows
                position = changes.end
