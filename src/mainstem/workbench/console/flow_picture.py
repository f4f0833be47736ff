"""The picture of a flow: rows by event time and processing time, the watermark, and each pane, of a span of time.

It reads only the span that it draws. A row is late if its event time is below the watermark that the log recorded with it, or, on a
log that does not, that the flow's reports have; too late if the flow put it into `<flow>.late`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mainstem.clock import as_datetime, as_us
from mainstem.errors import Invalid
from mainstem.flows.late_topic import late_topic_of
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.log.activity import read_activity
from mainstem.log.log import Promise
from mainstem.log.topic import Topic
from mainstem.log.watermark import NO_TIME, times_of
from mainstem.workbench.cli.flow_facts import FlowFacts, flow_facts
from mainstem.workbench.cli.flow_plot import PLAIN, find_rises, watermark_delay
from mainstem.workbench.console.batch_watermarks import BatchWatermarks
from mainstem.workbench.console.json_body import time_text
from mainstem.workbench.console.row_cells import json_rows

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["flow_picture"]

# More dots are not visible; late rows are shown beyond that.
ROWS_MAX = 4_000
LATE_MAX = 1_000
PANES_MAX = 2_000
# The records and changes that it reads for one picture: the last ones of the span.
READ_MAX = 200_000
SPAN = timedelta(minutes=15)


@dataclass(frozen=True)
class _Span:
    """Processing times, in microseconds."""

    begin: int
    end: int


def flow_picture(stem: Mainstem, flow: str, begin: datetime | None, end: datetime | None) -> dict[str, Any]:
    """The rows appended, and the panes shown, between two times: by default in the last 15 minutes.

    A picture that ends in the past shows what was known then.
    """
    facts = flow_facts(stem, flow, {})
    now = stem.log.clock.now()
    last = now if end is None else min(now, as_us(end))
    now = last
    span = _Span(last - SPAN // timedelta(microseconds=1) if begin is None else as_us(begin), last)
    if span.begin >= span.end:
        raise Invalid(
            "the picture has no span of time",
            detail=f"It would begin at {time_text(as_datetime(span.begin))} and end at {time_text(as_datetime(span.end))}.",
            hint="Give a `from` that is before `to`.",
        )
    names = [name for name in dict.fromkeys(part.source for part in facts.sources) if name in stem.topics()]
    topics = [topic for topic in map(stem.topic, names) if topic.settings.event_time is not None]
    too_late = _too_late(stem, flow, span)
    rows: list[dict[str, Any]] = []
    lines: list[np.ndarray[Any, Any]] = []
    sampled = 0
    reported = None if Promise.WATERMARKS in stem.log.promises else BatchWatermarks(stem, flow, span.begin)
    for topic in topics:
        delay = watermark_delay(facts, topic.name)
        found, line, left_out = _records(topic, reported or delay, span, too_late, len(topics))
        rows += found
        lines.append(line)
        sampled += left_out
    watermark = find_rises(np.concatenate(lines)) if lines else np.empty((0, 2), np.int64)
    return {
        "flow": flow,
        "from": time_text(as_datetime(span.begin)),
        "to": time_text(as_datetime(span.end)),
        "now": time_text(as_datetime(now)),
        "topics": [topic.name for topic in topics],
        "rows": rows,
        "sampled": sampled,
        "dropped": _dropped(stem, flow, span),
        "watermark": [
            {"at": time_text(as_datetime(at)), "watermark": time_text(as_datetime(event))}
            for event, at in watermark.tolist()
        ],
        "view": facts.sink.removeprefix("view ") if facts.sink.startswith("view ") else None,
        "panes": list(deque(_panes(stem, facts, span), maxlen=PANES_MAX)),
        "breaks": _breaks(stem, flow, span, now),
    }


def _records(
    topic: Topic, marks: int | BatchWatermarks, span: _Span, too_late: set[tuple[int, int, int]], shares: int
) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any], int]:
    """Some records of the span, all late ones among them; the watermark with each; and how many were left out.

    `marks`: the delay of the watermark that the log records, or the watermarks of the flow's reports.
    """
    backend, name = topic.backend, str(topic.settings.event_time)
    numbers = range(topic.settings.partitions)
    stops = {number: backend.at_time(number, span.end + 1) for number in numbers}
    starts = {
        number: max(backend.at_time(number, span.begin), stops[number] - READ_MAX // (shares * len(numbers)))
        for number in numbers
    }
    total = sum(stops[number] - starts[number] for number in numbers)
    step = -(-total // max(1, ROWS_MAX // shares)) or 1
    rows: list[dict[str, Any]] = []
    lines: list[np.ndarray[Any, Any]] = [np.empty((0, 2), np.int64)]
    seen = late_rows = 0
    reported = marks if isinstance(marks, BatchWatermarks) else None
    if reported is not None:
        lines.append(np.asarray(reported.line, np.int64).reshape(-1, 2))
    watermark = None if reported is not None else f"{marks} microseconds"
    for batch in topic.batches(start=starts, stop=stops, columns=[name], watermark=watermark):
        record = batch.column("record")
        appended, offsets = times_of(record.field("appended_at")), np.asarray(record.field("offset"))
        events = times_of(batch.column(name).cast(pa.timestamp("us", "UTC")))
        partitions = np.asarray(record.field("partition"))
        if reported is None:
            watermarks = times_of(record.field("watermark"))
        else:
            watermarks = reported.of(topic.name, int(partitions[0]), offsets) if batch.num_rows else offsets
        timed = watermarks != NO_TIME
        if reported is None:
            lines.append(find_rises(np.stack([watermarks[timed], appended[timed]], axis=1)))
        late = (events != NO_TIME) & timed & (events < watermarks)
        # A row without an event time has no place in the picture.
        seen += int(np.count_nonzero(events != NO_TIME))
        for index in np.flatnonzero((events != NO_TIME) & (late | (offsets % step == 0))).tolist():
            if late[index]:
                late_rows += 1
                if late_rows > LATE_MAX:
                    continue
            event, mark = int(events[index]), int(watermarks[index])
            place = (event, int(partitions[index]), int(offsets[index]))
            rows.append(
                {
                    "event_time": time_text(as_datetime(event)),
                    "appended_at": time_text(as_datetime(int(appended[index]))),
                    "topic": topic.name,
                    "partition": int(partitions[index]),
                    "offset": str(offsets[index]),
                    "late": ("too late" if place in too_late else "late") if late[index] else None,
                    "watermark": None if mark == NO_TIME else time_text(as_datetime(mark)),
                }
            )
    return rows, np.concatenate(lines), seen - len(rows)


def _too_late(stem: Mainstem, flow: str, span: _Span) -> set[tuple[int, int, int]]:
    """Event time, partition and offset of the rows in the flow's topic of late rows."""
    name, wanted = late_topic_of(flow), ["time", "partition", "offset"]
    found: set[tuple[int, int, int]] = set()
    if name not in stem.topics():
        return found
    topic = stem.topic(name)
    if not set(wanted) <= set(topic.settings.schema.names):
        return found
    # A row is put there after it was appended to its own topic.
    for batch in topic.batches(start=as_datetime(span.begin), stop=as_datetime(span.end + 1), columns=wanted):
        times = times_of(batch.column("time").cast(pa.timestamp("us", "UTC")))
        partitions, offsets = (batch.column(name).to_pylist() for name in ("partition", "offset"))
        found.update(zip(times.tolist(), partitions, offsets, strict=True))
    return found


def _dropped(stem: Mainstem, flow: str, span: _Span) -> int:
    """How many rows were too late without being kept: Spark's own windows count them, and do not say which they were."""
    if late_topic_of(flow) in stem.topics() or PROGRESS_TOPIC not in stem.topics():
        return 0
    columns = ["flow", "at", "too_late"]
    rows = stem.topic(PROGRESS_TOPIC).to_arrow(start=as_datetime(span.begin), columns=columns).to_pylist()
    found = [row for row in rows if row["flow"] == flow and row["at"] is not None and as_us(row["at"]) <= span.end]
    return sum(row["too_late"] or 0 for row in found)


# Panes: results of windows, in the order in which they were shown.


def _panes(stem: Mainstem, facts: FlowFacts, span: _Span) -> Iterator[dict[str, Any]]:
    key, parts = _sink_rows(stem, facts, span)
    asked = _asked_key(stem, facts)
    for rows in parts:
        if "window" not in rows.schema.names or not pa.types.is_struct(rows.schema.field("window").type):
            return
        for row in json_rows(rows):
            window, record = row["window"], row["record"]
            bounded = window is not None and window.get("start") is not None and window.get("end") is not None
            if bounded and record["change"] != "delete":
                yield {"why": [row[column] for column in asked], **_pane(row, key)}


def _asked_key(stem: Mainstem, facts: FlowFacts) -> tuple[str, ...]:
    """The columns of the key with which a page asks a view why a pane is as it is; none if the sink is not a view."""
    kind, _, name = facts.sink.partition(" ")
    return stem.view(name).key if kind == "view" and name in stem.views() else ()


def _pane(row: dict[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    window, record, pane = row.pop("window"), row.pop("record"), row.pop("pane", None) or {}
    values = {name: value for name, value in row.items() if name not in key}
    return {
        "start": window["start"],
        "end": window["end"],
        "at": record["appended_at"],
        "timing": pane.get("timing", PLAIN),
        "final": pane.get("final"),
        "key": ", ".join(str(row[name]) for name in key if name in row),
        "value": next((str(value) for value in values.values()), ""),
        "values": values,
        "text": ", ".join(f"{name} {value}" for name, value in row.items()),
    }


def _sink_rows(
    stem: Mainstem, facts: FlowFacts, span: _Span
) -> tuple[tuple[str, ...], Iterator[pa.Table | pa.RecordBatch]]:
    """The key of the flow's sink without its window, and the rows that were written in the span."""
    kind, _, name = facts.sink.partition(" ")
    if kind == "topic" and name in stem.topics():
        topic = stem.topic(name)
        batches = topic.batches(start=as_datetime(span.begin), stop=as_datetime(span.end + 1))
        return _without_window(topic.settings.key), batches
    if kind == "view" and name in stem.views():
        view = stem.view(name)
        return _without_window(view.key), _view_changes(stem, name, span)
    return (), iter(())


def _without_window(key: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in key if name != "window")


def _view_changes(stem: Mainstem, name: str, span: _Span) -> Iterator[pa.Table]:
    with closing(stem.view(name)) as view:
        first = view.describe().first_position
        with view.snapshot() as snapshot:
            begin, end = (snapshot.position_at(at) for at in (span.begin, span.end))
        if end is None:
            return
        position = max(first, begin or 0, end - READ_MAX)
        while position < end:
            changes = view.changes_between(position, end, 65_536)
            yield changes.rows
            position = changes.end


def _breaks(stem: Mainstem, flow: str, span: _Span, now: int) -> list[dict[str, Any]]:
    """The times when no run of the flow was there."""
    found = []
    ended: tuple[int, str] | None = None
    last_batches = _batch_times(stem, flow, span)
    for row in read_activity(stem.log, span.begin, [flow]):
        if row["subject"] != "flow":
            continue
        at = as_us(row["at"])
        if at > span.end:
            break
        if row["what"] in ("killed", "failed", "ended"):
            # Of a killed run the last batch is known, and when it was found out.
            died = max((time for time in last_batches if time <= at), default=at) if row["what"] == "killed" else at
            ended = (died, row["text"])
        elif row["what"] in ("begun", "restarted") and ended is not None:
            found.append((*ended, at))
            ended = None
    if ended is not None:
        found.append((*ended, now))
    return [
        {"from": time_text(as_datetime(begin)), "to": time_text(as_datetime(end)), "text": text}
        for begin, text, end in found
        if begin <= span.end
    ]


def _batch_times(stem: Mainstem, flow: str, span: _Span) -> list[int]:
    if PROGRESS_TOPIC not in stem.topics():
        return []
    rows = stem.topic(PROGRESS_TOPIC).to_arrow(start=as_datetime(span.begin), columns=["flow", "at"])
    return [as_us(row["at"]) for row in rows.to_pylist() if row["flow"] == flow and row["at"] is not None]
