"""Histories as buckets of time, with the least and the most of each: of a flow from its reports, of a topic from its offsets."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime, as_us
from mainstem.errors import Invalid, NotFound
from mainstem.flows.progress_rows import MINUTES_TOPIC, PROGRESS_TOPIC
from mainstem.log.topic import Topic
from mainstem.names import check_own_name
from mainstem.workbench.cli.flow_facts import known_flows
from mainstem.workbench.console.json_body import time_text

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["POINTS_MAX", "history_of"]

POINTS_MAX = 1_000
HOUR_US = 3_600_000_000
# A longer history is read from the sums by minute.
BATCHES_US_MAX = 6 * HOUR_US
SUMMED = ("rows_in", "rows_out", "rejected", "late", "too_late")
RANGED = ("lag_seconds", "lag_records", "batch_ms", "state_rows", "state_bytes")
MINUTE_COLUMNS = ("flow", "minute", *SUMMED, "lag_seconds_max", "batches", "batch_ms_max")


def history_of(
    stem: Mainstem, subject: str, begin: datetime | None, end: datetime | None, points: int
) -> dict[str, Any]:
    """The history of flow:NAME or topic:NAME, by default of the last hour."""
    last = stem.log.clock.now() if end is None else as_us(end)
    first = last - HOUR_US if begin is None else as_us(begin)
    if first >= last:
        raise Invalid(
            "the history has no span of time",
            detail=f"It would begin at {time_text(as_datetime(first))} and end at {time_text(as_datetime(last))}.",
            hint="Give a `from` that is before `to`.",
        )
    step = max(1, -(-(last - first) // points))
    kind, _, name = subject.partition(":")
    answer = {
        "of": subject,
        "from": time_text(as_datetime(first)),
        "to": time_text(as_datetime(last)),
        "bucket_seconds": step / 1_000_000,
    }
    if kind == "topic":
        topic = stem.topic(check_own_name(name, "topic"))
        return {**answer, "source": "offsets", "points": _topic_points(topic, first, last, step)}
    if kind != "flow":
        raise Invalid(
            f'"{subject[:60]}" has no history',
            detail="Flows and topics have one.",
            hint="For example: /api/history?of=flow:revenue",
        )
    if name not in known_flows(stem):
        raise NotFound(
            f'flow "{name[:60]}" never ran in this home', detail="It has no reports.", hint="List the flows: /api/flows"
        )
    if last - first <= BATCHES_US_MAX:
        return {**answer, "source": "batches", "points": _batch_points(stem, name, first, last, step)}
    return {**answer, "source": "minutes", "points": _minute_points(stem, name, first, last, step)}


def _topic_points(topic: Topic, first: int, last: int, step: int) -> list[dict[str, Any]]:
    """The records that were appended in each bucket."""
    backend, numbers = topic.backend, range(topic.settings.partitions)
    found = []
    before = [max(backend.earliest(number), backend.at_time(number, first)) for number in numbers]
    for at in range(first, last, step):
        after = [backend.at_time(number, min(at + step, last)) for number in numbers]
        rows = sum(
            backend.count_records(number, start, stop)
            for number, start, stop in zip(numbers, before, after, strict=True)
            if start < stop
        )
        found.append({"at": time_text(as_datetime(at)), "rows": rows})
        before = after
    return found


class _Bucket:
    """The reports of one bucket."""

    def __init__(self) -> None:
        self.batches = 0
        self.sums = dict.fromkeys(SUMMED, 0)
        self.ranges: dict[str, tuple[float, float]] = {}
        self.phases: dict[str, int] = {}
        self.sink_ms = 0

    def range(self, name: str, value: float | None) -> None:
        if value is not None:
            low, high = self.ranges.get(name, (value, value))
            self.ranges[name] = (min(low, value), max(high, value))

    def json(self, at: int) -> dict[str, Any]:
        ranges = {name: {"min": low, "max": high} for name, (low, high) in self.ranges.items()}
        content = {"at": time_text(as_datetime(at)), "batches": self.batches, **self.sums, **ranges}
        return {**content, "phases": self.phases, "sink_ms": self.sink_ms}


def _buckets(first: int, step: int, found: dict[int, _Bucket]) -> list[dict[str, Any]]:
    """Only those with reports."""
    return [found[number].json(first + number * step) for number in sorted(found)]


def _batch_points(stem: Mainstem, flow: str, first: int, last: int, step: int) -> list[dict[str, Any]]:
    found: dict[int, _Bucket] = {}
    for row in _rows(stem, PROGRESS_TOPIC, first):
        at = None if row["at"] is None else as_us(row["at"])
        if row["flow"] != flow or at is None or not first <= at < last:
            continue
        bucket = found.setdefault((at - first) // step, _Bucket())
        bucket.batches += 1
        for name in SUMMED:
            bucket.sums[name] += row.get(name) or 0
        for name in RANGED:
            bucket.range(name, row.get(name))
        for phase, milliseconds in row.get("phases") or ():
            bucket.phases[phase] = bucket.phases.get(phase, 0) + (milliseconds or 0)
        bucket.sink_ms += row.get("sink_ms") or 0
    return _buckets(first, step, found)


def _minute_points(stem: Mainstem, flow: str, first: int, last: int, step: int) -> list[dict[str, Any]]:
    found: dict[int, _Bucket] = {}
    for row in _rows(stem, MINUTES_TOPIC, first, MINUTE_COLUMNS):
        at = None if row["minute"] is None else as_us(row["minute"])
        if row["flow"] != flow or at is None or not first <= at < last:
            continue
        bucket = found.setdefault((at - first) // step, _Bucket())
        bucket.batches += row["batches"] or 0
        for name in SUMMED:
            bucket.sums[name] += row[name] or 0
        bucket.range("lag_seconds", row["lag_seconds_max"])
        bucket.range("batch_ms", row["batch_ms_max"])
    return _buckets(first, step, found)


def _rows(stem: Mainstem, topic: str, first: int, columns: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """Rows about times from `first` on: they are appended after that."""
    if topic not in stem.topics():
        return []
    known = stem.topic(topic)
    names = columns or ("flow", "at", *SUMMED, *RANGED, "phases", "sink_ms")
    wanted = [name for name in names if name in known.settings.schema.names]
    found = known.to_arrow(start=as_datetime(first), columns=wanted)
    rows: list[dict[str, Any]] = found.drop_columns(["record"]).to_pylist()
    return rows
