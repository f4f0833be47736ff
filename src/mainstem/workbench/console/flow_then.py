"""A flow as it was at a time: from what happened (`mainstem.activity`), its reports (`mainstem.progress`) and append times.

Reports are kept for 7 days, activity for 90. A report counts from the moment at which it could be read: when it was appended.
Not kept are the process of a run, and what a flow waited for while it ran.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_us
from mainstem.errors import NotFound, TopicNotFound
from mainstem.flows.flow_description import read_description
from mainstem.flows.flow_waits import HolderFacts
from mainstem.log.activity import ACTIVITY_TOPIC, read_activity
from mainstem.log.lag import Lag
from mainstem.log.watermark import times_of
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.workbench.cli.flow_facts import (
    VIEW,
    FlowFacts,
    SourceFacts,
    StageFacts,
    State,
    WaitFacts,
    known_flows,
    last_progress,
)
from mainstem.workbench.console.json_body import time_text

if TYPE_CHECKING:
    from mainstem.log.log import TopicBackend
    from mainstem.stem import Mainstem

__all__ = ["STATES", "PastRows", "behind_then", "flow_then", "past_rows"]

# How many of the last rows of `mainstem.activity` before a time are looked at.
ACTIVITY_ROWS = 20_000
STATES: dict[str, State] = {
    "begun": "running", "restarted": "running", "waiting": "waiting", "ended": "stopped", "failed": "failed",
    "killed": "killed", "fenced": "stopped",
}  # fmt: skip
USED = "version used"
# A flow without rows reports about once a minute.
REPORTS_APART = timedelta(minutes=2)


@dataclass(frozen=True)
class PastRows:
    """What had been noted and reported up to a time, oldest first; reports by flow."""

    at: datetime
    activity: list[dict[str, Any]]
    reports: dict[str, list[dict[str, Any]]]

    def of(self, subject: str, name: str) -> list[dict[str, Any]]:
        """What happened to one flow, view, ..."""
        return [row for row in self.activity if row["subject"] == subject and row["name"] == name]


def past_rows(stem: Mainstem, at: datetime) -> PastRows:
    """The last rows up to a time."""
    return PastRows(at, _activity(stem, at), last_progress(stem, at))


def _activity(stem: Mainstem, at: datetime) -> list[dict[str, Any]]:
    if ACTIVITY_TOPIC not in stem.topics():
        return []
    topic = stem.topic(ACTIVITY_TOPIC)
    end = topic.backend.at_time(0, as_us(at) + 1)
    start = max(topic.backend.earliest(0), end - ACTIVITY_ROWS)
    rows: list[dict[str, Any]] = topic.to_arrow(start={0: start}, stop={0: end}).drop_columns(["record"]).to_pylist()
    return rows


def flow_then(stem: Mainstem, name: str, past: PastRows) -> FlowFacts:
    """The facts of a flow at that time; raises `NotFound` if it had not begun, or if nothing of that time is kept."""
    events, reports = past.of("flow", name), past.reports.get(name, [])
    if name not in known_flows(stem) or not (events or reports):
        raise NotFound(
            f'nothing is known of flow "{name}" at {time_text(past.at)}',
            detail="Neither a report of it nor anything that happened to it is kept from before that time.",
            hint="It began later, or it is too long ago: reports are kept for 7 days, activity for 90.",
        )
    store = FlowStore(stem.home, name)
    version = _version_then(store, past, events, reports)
    rows = tuple(row for row in reports if row["version"] == version)
    noted = [row for row in events if row["version"] in (version, None) and row["what"] in STATES]
    last, run = rows[-1] if rows else None, store.of_version(version)
    end = noted[-1] if noted else None
    # A run whose begin is not kept any more reports as long as it runs.
    recent = last is not None and past.at - last["at"] < REPORTS_APART
    state: State = STATES[end["what"]] if end is not None else "running" if recent else "stopped"
    if state in ("running", "waiting") and _was_dead(stem, name, past.at):
        state = "killed"
    return FlowFacts(
        flow=name,
        state=state,
        pid=None,
        version=version,
        epoch=max([row["epoch"] or 0 for row in (*noted, *rows)], default=0),
        sink=run.get("sink", ""),
        batch=None if last is None else last["batch"],
        sources=tuple(_sources(stem, last, run.get("sources", []), past.at)),
        error=_error(end) if state == "failed" and end is not None else (),
        progress=rows,
        checkpoint=store.checkpoint(version),
        stages=tuple(_stages(last)),
        holders=tuple(_holders(last)),
        every_us=run.get("every_us"),
        built=run.get("built", ""),
        columns=run.get("columns", ""),
        does=read_description(store, version),
        retries=WaitFacts(run.get("sink", ""), end["text"], end["at"])
        if state == "waiting" and end is not None
        else None,
    )


def _was_dead(stem: Mainstem, name: str, at: datetime) -> bool:
    """Whether a run had been killed, which is noted only when somebody looks: it did not report any more before that."""
    later = (
        row
        for row in read_activity(stem.log, as_us(at) + 1, [name])
        if row["subject"] == "flow" and row["what"] in STATES
    )
    following = next(later, None)
    if following is None or following["what"] != "killed":
        return False
    reports = last_progress(stem, following["at"]).get(name, [])
    return not reports or reports[-1]["at"] <= at


def _version_then(store: FlowStore, past: PastRows, events: list[dict[str, Any]], reports: list[dict[str, Any]]) -> int:
    """The version that was live then: of a view, the one that was used last, or else its first."""
    known = sorted({row["version"] for row in (*events, *reports) if row["version"] is not None}) or [1]
    kind, _, sink = store.of_version(known[-1]).get("sink", "").partition(" ")
    if kind != "view":
        return int(known[-1])
    used = [row["version"] for row in past.of("view", sink) if row["what"] == USED]
    return int(used[-1] if used and used[-1] in known else known[0])


def _error(row: dict[str, Any]) -> tuple[str, ...]:
    parts = [row["text"]]
    parts += [f"Detail: {row['detail']}"] if row["detail"] else []
    parts += [f"Hint: {row['hint']}"] if row["hint"] else []
    return tuple(parts)


def _sources(stem: Mainstem, last: dict[str, Any] | None, known: list[str], at: datetime) -> list[SourceFacts]:
    """Its position in each source after its last report, and its lag then."""
    offsets: dict[str, dict[int, int]] = {name: {} for name in known}
    for source in (last or {}).get("sources") or ():
        offsets[source["source"]] = {part["partition"]: part["stop"] for part in source["partitions"] or ()}
    found = []
    for name, ends in offsets.items():
        if name.startswith(VIEW):
            found.append(_view_source(stem, name, ends.get(0, 0), at))
            continue
        try:
            backend = stem.log.open_topic(name)
        except TopicNotFound:
            continue
        for number in range(backend.settings.partitions):
            offset = ends.get(number, backend.earliest(number))
            found.append(SourceFacts(name, number, offset, behind_then(backend, number, offset, at)))
    return found


def _view_source(stem: Mainstem, name: str, position: int, at: datetime) -> SourceFacts:
    with closing(stem.view(name.removeprefix(VIEW))) as view:
        last = 0
        if view.exists:
            with view.snapshot() as snapshot:
                last = snapshot.position_at(as_us(at)) or 0
    return SourceFacts(name, 0, position, Lag(records=max(0, last - position)))


def behind_then(backend: TopicBackend, number: int, offset: int, at: datetime) -> Lag:
    """How far a reader that would read `offset` next was behind; without bytes, of which there is no history."""
    begin = max(offset, backend.earliest(number))
    records = backend.at_time(number, as_us(at) + 1) - begin
    if records <= 0:
        return Lag()
    first = backend.read(number, begin, 1)
    if first is None:
        return Lag()
    age = max(0, as_us(at) - int(times_of(first.column("record").field("appended_at"))[0]))
    return Lag(records=records, seconds=age / 1_000_000)


def _stages(last: dict[str, Any] | None) -> list[StageFacts]:
    return [
        StageFacts(stage["stage"], "", stage["state_rows"] or 0, stage["state_bytes"] or 0, 0)
        for stage in (last or {}).get("stages") or ()
    ]


def _holders(last: dict[str, Any] | None) -> list[HolderFacts]:
    """In ascending order of event time, as the flow reported them."""
    found = [
        HolderFacts(source["source"], part["partition"], part["watermark"])
        for source in (last or {}).get("sources") or ()
        for part in source["partitions"] or ()
        if part["watermark"] is not None
    ]
    return sorted(found, key=lambda it: (it.watermark, it.source, it.partition))
