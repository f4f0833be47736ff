"""The map of a home: what there is, how rows go through it, how fast, and what wants a look.

    capture ──> topic ──> flow ──> view, topic, store
                  └─────> queue

Rates are counted rows of the last ten seconds: of a topic its offsets, of a flow its rows in `mainstem.progress`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime, as_us
from mainstem.errors import MainstemError
from mainstem.log.activity import ACTIVITY_TOPIC
from mainstem.log.topic import Topic
from mainstem.sinks.store_record import StoreRecord, store_names
from mainstem.workbench.cli.capture_facts import CaptureFacts, capture_facts, known_captures
from mainstem.workbench.cli.flow_facts import VIEW, FlowFacts, flow_facts, known_flows, last_progress
from mainstem.workbench.cli.list_entry import Unreadable, entries_by_topic, try_look
from mainstem.workbench.cli.queue_commands import queue_json
from mainstem.workbench.cli.terminal_table import show_count
from mainstem.workbench.cli.view_commands import view_facts
from mainstem.workbench.console.json_body import exact_json
from mainstem.workbench.console.spoken_durations import spoken_seconds

if TYPE_CHECKING:
    from mainstem.log.lag import Lag
    from mainstem.log.queues.queue_description import QueueDescription
    from mainstem.stem import Mainstem

__all__ = [
    "OWN_PREFIX",
    "HomeMap",
    "draw_flow",
    "draw_topics",
    "draw_unreadable",
    "draw_view",
    "home_map",
    "last_activity",
    "map_json",
]

# The topics of Mainstem itself are not on the map.
OWN_PREFIX = "mainstem."
# The time over which rows are counted.
RATE_SECONDS = 10
ACTIVITY_ROWS = 50
# Spark's names of the phases of a batch, in our words.
PHASES = {"addBatch": "work", "getBatch": "reading", "latestOffset": "finding offsets", "queryPlanning": "planning",
          "walCommit": "the checkpoint", "commitOffsets": "the commit"}  # fmt: skip
# A flow that runs is behind when it is this late.
BEHIND_SECONDS = 60.0


@dataclass
class HomeMap:
    """What is on the map, while it is drawn."""

    now: int
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)
    late: int = 0
    rejected: int = 0

    def node(self, kind: str, name: str, **facts: Any) -> None:
        self.nodes.append({"id": f"{kind}:{name}", "kind": kind, "name": name, **facts})

    def edge(self, begin: str, end: str, rate: float | None) -> None:
        self.edges.append({"from": begin, "to": end, "rows_per_second": rate})

    def look(self, node: str, text: str, cause: str = "", hint: str = "") -> None:
        self.looks.append({"id": node, "text": text, "cause": cause, "hint": hint})


def home_map(stem: Mainstem, *, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The map now, as plain JSON values. `known` is the one before: of a database that is away it has the names."""
    drawn = HomeMap(stem.log.clock.now())
    rows = last_progress(stem)
    draw_topics(stem, drawn)
    _flows(stem, drawn, rows)
    _views(stem, drawn, known)
    _queues(stem, drawn)
    _captures(stem, drawn)
    _stores(stem, drawn)
    return map_json(stem, drawn, last_activity(stem))


def map_json(stem: Mainstem, drawn: HomeMap, activity: list[dict[str, Any]]) -> dict[str, Any]:
    """What was drawn, as plain JSON values."""
    known = {node["id"] for node in drawn.nodes}
    drawn.edges = [edge for edge in drawn.edges if edge["from"] in known and edge["to"] in known]
    found: dict[str, Any] = exact_json(
        {
            "home": {
                "name": stem.home.rstrip("/").rpartition("/")[2],
                "at": as_datetime(drawn.now),
                "log": "kafka" if stem.log.address else "embedded",
            },
            "well": _well(drawn),
            "totals": _totals(drawn),
            "nodes": drawn.nodes,
            "edges": drawn.edges,
            "wants_a_look": drawn.looks,
            "activity": activity,
        }
    )
    return found


def _totals(drawn: HomeMap) -> dict[str, Any]:
    rates = [node["rows_per_second"] for node in drawn.nodes if node["kind"] == "topic" and "rows_per_second" in node]
    lags = [node["lag_seconds"] for node in drawn.nodes if node.get("lag_seconds") is not None]
    return {
        "rows_per_second": round(sum(rates), 1),
        "worst_lag_seconds": max(lags, default=0.0),
        "late": drawn.late,
        "rejected": drawn.rejected,
    }


def _well(drawn: HomeMap) -> dict[str, Any]:
    """Whether all is well, in a sentence."""
    flows = [node for node in drawn.nodes if node["kind"] == "flow"]
    running = [node for node in flows if node["state"] == "running"]
    ended = [node for node in flows if node["state"] in ("failed", "killed")]
    broken = [node for node in drawn.nodes if node.get("state") == "unreadable"]
    if ended:
        names = ", ".join(node["name"] for node in ended[:3]) + (" and more" if len(ended) > 3 else "")
        verb = "was killed" if all(node["state"] == "killed" for node in ended) else "failed"
        verb = verb.replace("was", "were") if len(ended) > 1 else verb
        return {"ok": False, "sentence": f"{show_count(len(ended), 'flow')} {verb}: {names}."}
    if broken:
        return {"ok": False, "sentence": f"{broken[0]['id'].replace(':', ' ', 1)} cannot be read."}
    worst = max(running, key=lambda node: node.get("lag_seconds") or 0.0, default=None)
    if worst is not None and (worst.get("lag_seconds") or 0.0) > BEHIND_SECONDS:
        return {"ok": False, "sentence": f"Flow {worst['name']} is {spoken_seconds(worst['lag_seconds'])} behind."}
    if drawn.looks:
        first = drawn.looks[0]["text"]
        return {"ok": False, "sentence": f"{first[0].upper()}{first[1:]}."}
    if not flows:
        return {"ok": True, "sentence": "All is well. No flow ever ran in this home."}
    if not running:
        return {"ok": True, "sentence": "All is well. No flow runs."}
    verb = "runs" if len(running) == 1 else "run"
    lag = spoken_seconds(max(node.get("lag_seconds") or 0.0 for node in running))
    worst_text = "it is" if len(running) == 1 else "the slowest is"
    return {
        "ok": True,
        "sentence": f"All is well. {show_count(len(running), 'flow')} {verb}, {worst_text} {lag} behind.",
    }


# Nodes and edges of each kind.


def draw_unreadable(drawn: HomeMap, kind: str, name: str, error: str) -> None:
    """A node that cannot be read."""
    drawn.node(kind, name, state="unreadable", sentence=f"It cannot be read: {error}.")
    drawn.look(f"{kind}:{name}", f"{kind} {name} cannot be read", error, f"mainstem {kind} describe {name} says more.")


def draw_topics(stem: Mainstem, drawn: HomeMap, until: int | None = None) -> None:
    """The topics, with what was appended up to a time, by default all."""
    for name in stem.topics():
        if name.startswith(OWN_PREFIX):
            continue
        found = try_look({}, lambda name: _topic_amounts(stem.topic(name), drawn.now, until), name)
        if isinstance(found, Unreadable):
            # It may have been deleted since the names were read.
            if name not in stem.topics():
                continue
            draw_unreadable(drawn, "topic", name, found.error)
            continue
        records, rate = found
        sentence = f"{show_count(records, 'record')}, {_rate_text(rate)}."
        drawn.node("topic", name, state="kept", sentence=sentence, rows_per_second=rate, records=records)


def _topic_amounts(topic: Topic, now: int, until: int | None) -> tuple[int, float]:
    """How many records a topic keeps, and how many rows a second were appended."""
    backend = topic.backend
    records = added = 0
    for number in range(topic.settings.partitions):
        earliest = backend.earliest(number)
        end = backend.latest(number) if until is None else backend.at_time(number, until + 1)
        records += max(0, end - earliest)
        # Of a partition without records nothing was appended.
        if end > earliest:
            added += max(0, end - backend.at_time(number, now - RATE_SECONDS * 1_000_000))
    return records, round(added / RATE_SECONDS, 1)


def _rate_text(rate: float) -> str:
    return "no new rows" if not rate else f"{rate:,.1f} rows/s"


def _flows(stem: Mainstem, drawn: HomeMap, progress: dict[str, list[dict[str, Any]]]) -> None:
    for name in known_flows(stem):
        found = try_look({}, flow_facts, stem, name, progress)
        if isinstance(found, Unreadable):
            draw_unreadable(drawn, "flow", name, found.error)
            continue
        draw_flow(drawn, found)


def draw_flow(drawn: HomeMap, it: FlowFacts) -> None:
    """A flow with its edges, and what wants a look about it."""
    since = as_datetime(drawn.now) - timedelta(seconds=RATE_SECONDS)
    recent = [row for row in it.progress if row["at"] is not None and row["at"] > since]
    rate_in, rate_out = (
        round(sum(row[column] or 0 for row in recent) / RATE_SECONDS, 1) for column in ("rows_in", "rows_out")
    )
    drawn.late += it.late
    drawn.rejected += sum(row["rejected"] or 0 for row in it.progress if row["epoch"] == it.epoch)
    node = f"flow:{it.flow}"
    drawn.node(
        "flow", it.flow, state=it.state, sentence=_flow_sentence(it), rows_per_second=rate_in, rows_out_per_second=rate_out,
        lag_seconds=it.lag.seconds, lag_records=it.lag.records, sink=it.sink, batch=it.batch, late=it.late,
        too_late=it.too_late, waits_for=it.waits or None,
        watermark=it.progress[-1]["watermark"] if it.progress else None,
    )  # fmt: skip
    sources = list(dict.fromkeys(part.source for part in it.sources))
    for source in sources:
        begin = f"view:{source.removeprefix(VIEW)}" if source.startswith(VIEW) else f"topic:{source}"
        drawn.edge(begin, node, rate_in if len(sources) == 1 else _source_rate(recent, source))
    kind, _, name = it.sink.partition(" ")
    if name:
        drawn.edge(node, f"{kind}:{name}", rate_out)
    _flow_looks(drawn, it, node)


def _source_rate(rows: list[dict[str, Any]], source: str) -> float | None:
    """The rows of one of several sources; None if the reports do not count them apart."""
    counted = [part for row in rows for part in row.get("sources") or ()]
    if rows and not counted:
        return None
    read = sum(part["records"] or 0 for part in counted if part["source"] in (source, source.removeprefix(VIEW)))
    return round(read / RATE_SECONDS, 1)


def _flow_sentence(it: FlowFacts) -> str:
    if it.state == "failed":
        return f"It failed: {it.error[0]}." if it.error else "It failed."
    if it.state == "killed":
        return "Its process died without recording an exit."
    behind = f"{spoken_seconds(it.lag.seconds)} behind" if it.lag.records else "up to date"
    if it.state == "stopped":
        return f"It is stopped, {behind}."
    waits = f"; it waits for {it.waits}" if it.waits else ""
    return f"It runs and is {behind}{waits}."


def _flow_looks(drawn: HomeMap, it: FlowFacts, node: str) -> None:
    if it.state == "failed":
        parts = [*it.error, "", "", ""]
        detail, hint = parts[1].removeprefix("Detail: "), parts[2].removeprefix("Hint: ")
        drawn.look(node, f"flow {it.flow} failed: {parts[0]}", detail, hint)
    elif it.state == "killed":
        cause = "Its process died without recording an exit."
        drawn.look(
            node, f"flow {it.flow} was killed", cause, "Run its program again: it continues after its last batch."
        )
    elif it.state == "waiting":
        drawn.look(node, f"flow {it.flow} waits and retries", f"It waits for {it.waits}.")
    elif it.state == "running":
        held = _held_watermark(it)
        if it.lag.seconds > BEHIND_SECONDS:
            cause = f"It waits for {it.waits}." if it.waits else held or _slowest_phase(it)
            drawn.look(node, f"flow {it.flow} is {spoken_seconds(it.lag.seconds)} behind", cause)
        elif held:
            drawn.look(node, f"the watermark of flow {it.flow} is held back", held)


def _held_watermark(it: FlowFacts) -> str:
    """Which partition holds the watermark, if the others are far ahead of it."""
    known = [holder for holder in it.holders if holder.watermark is not None]
    if len(known) < 2 or known[0].watermark is None or known[-1].watermark is None:
        return ""
    ahead = (known[-1].watermark - known[0].watermark).total_seconds()
    if ahead <= BEHIND_SECONDS:
        return ""
    first = known[0]
    return f"Partition {first.partition} of {first.source} holds it: the furthest is {spoken_seconds(ahead)} ahead."


def _slowest_phase(it: FlowFacts) -> str:
    if not it.progress:
        return ""
    last = it.progress[-1]
    phases = {PHASES.get(name, name): ms for name, ms in (last["phases"] or ()) if name != "triggerExecution"}
    if not phases or not last["batch_ms"]:
        return ""
    # Spark counts the work and the sink as one; the sink is known apart.
    if sink := last.get("sink_ms") or 0:
        phases["work"] = max(0, phases.get("work", 0) - sink)
        phases["the sink"] = sink
    name = max(phases, key=lambda phase: phases[phase])
    return f"Of a batch {name} takes {min(100, 100 * phases[name] // last['batch_ms'])} %."


def _views(stem: Mainstem, drawn: HomeMap, known: dict[str, Any] | None) -> None:
    names = try_look({}, stem.views)
    if isinstance(names, Unreadable):
        for node in (known or {}).get("nodes", ()):
            if node["kind"] == "view":
                drawn.node("view", node["name"], state="unreadable", sentence=f"It cannot be read: {names.error}.")
        drawn.look(
            "",
            "the views cannot be read",
            f"{names.error[0].upper()}{names.error[1:]}.",
            "Start the database, or correct its address: views.toml.",
        )
        return
    for name in names:
        found = try_look({}, view_facts, stem, name)
        if isinstance(found, Unreadable):
            draw_unreadable(drawn, "view", name, found.error)
            continue
        live = found[0].live
        draw_view(drawn, name, live.rows, found[1], live.applied_at, live.flow)


def draw_view(drawn: HomeMap, name: str, rows: int, lag: Lag, applied_at: datetime | None, flow: str | None) -> None:
    """A view; its edges are those of flows."""
    behind = f"{spoken_seconds(lag.seconds)} behind." if lag.records else "up to date."
    drawn.node(
        "view", name, state="kept", sentence=f"{show_count(rows, 'row')}, {behind}", rows=rows, lag_seconds=lag.seconds,
        lag_records=lag.records, applied_at=applied_at, flow=flow,
    )  # fmt: skip


def _queues(stem: Mainstem, drawn: HomeMap) -> None:
    found = entries_by_topic(stem, None, "queue", Topic.queues, lambda topic, name: topic.open_queue(name).describe())
    for it in found:
        if isinstance(it, Unreadable):
            if it.names["queue"]:
                draw_unreadable(drawn, "queue", f"{it.names['topic']}/{it.names['queue']}", it.error)
            continue
        _queue(drawn, it)


def _queue(drawn: HomeMap, it: QueueDescription) -> None:
    facts, name = queue_json(it), f"{it.topic}/{it.name}"
    drawn.rejected += facts["rejected"]
    words = [f"{it.lag.records:,} waiting", f"{it.held:,} held"]
    words += [f"{facts['rejected']:,} rejected"] if facts["rejected"] else []
    drawn.node(
        "queue", name, state="kept", sentence=f"{', '.join(words)}.", lag_seconds=it.lag.seconds,
        lag_records=it.lag.records, held=it.held, returned=it.returned, parked=it.parked, rejected=facts["rejected"],
    )  # fmt: skip
    drawn.edge(f"topic:{it.topic}", f"queue:{name}", None)
    if facts["rejected"]:
        drawn.edge(f"queue:{name}", f"topic:{it.rejected_topic}", None)


def _captures(stem: Mainstem, drawn: HomeMap) -> None:
    for name in known_captures(stem):
        found = try_look({}, capture_facts, stem, name)
        if isinstance(found, Unreadable):
            draw_unreadable(drawn, "capture", name, found.error)
            continue
        _capture(drawn, found)


def _capture(drawn: HomeMap, it: CaptureFacts) -> None:
    node = f"capture:{it.status.name}"
    sentence = f"It is {it.state}: {show_count(it.status.changes, 'change')} of {it.status.source}."
    drawn.node(
        "capture", it.status.name, state=it.state, sentence=sentence, source=it.status.source, changes=it.status.changes,
        reported_at=it.status.at.replace("+00:00", "Z"),
    )  # fmt: skip
    for topic in it.status.topics.values():
        drawn.edge(node, f"topic:{topic}", None)
    if it.state in ("failed", "killed", "waiting"):
        verb = {"failed": "failed", "killed": "was killed", "waiting": "waits for its source"}[it.state]
        drawn.look(node, f"capture {it.status.name} {verb}", it.status.error, "Run its program again.")
    if it.status.alarm:
        drawn.look(node, f"capture {it.status.name} holds back its database", it.status.alarm_text)


def _stores(stem: Mainstem, drawn: HomeMap) -> None:
    for name in store_names(stem.home):
        found = try_look({}, StoreRecord(stem.home, name).read)
        if isinstance(found, Unreadable):
            draw_unreadable(drawn, "store", name, found.error)
            continue
        drawn.node("store", name, state="kept", sentence=f"Version {found.version} in {found.location}.")


# What happened.


def last_activity(stem: Mainstem, until: datetime | None = None, rows_max: int = ACTIVITY_ROWS) -> list[dict[str, Any]]:
    """The last rows of `mainstem.activity`, newest first; empty if there is no such topic."""
    if ACTIVITY_TOPIC not in stem.topics():
        return []
    columns = ("at", "subject", "name", "what", "version", "epoch", "text", "detail", "hint", "who")
    found = [
        {column: row.get(column) for column in columns}
        for row in _last_rows(stem.topic(ACTIVITY_TOPIC), until, rows_max)
    ]
    # Of those of one moment the last comes first, too.
    found.sort(key=lambda row: str(row["at"]))
    found.reverse()
    return found[:rows_max]


def _last_rows(topic: Topic, until: datetime | None, rows_max: int) -> Iterator[dict[str, Any]]:
    backend = topic.backend
    for number in range(topic.settings.partitions):
        end = backend.latest(number) if until is None else backend.at_time(number, as_us(until) + 1)
        start = max(backend.earliest(number), end - rows_max)
        with suppress(MainstemError):
            for batch in topic.batches(start={number: start}, stop={number: end}):
                yield from batch.to_pylist()
