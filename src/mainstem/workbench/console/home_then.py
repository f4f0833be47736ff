"""The map of a home as it was at a time: from offsets by append time, the reports of flows, and what happened.

Views with history can be read as they were; queues, captures and stores keep no history of their figures, and say so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.flows.progress_rows import PROGRESS_TOPIC
from mainstem.log.activity import read_activity
from mainstem.workbench.cli.list_entry import Unreadable, try_look
from mainstem.workbench.cli.terminal_table import show_count
from mainstem.workbench.console.home_map import RATE_SECONDS, last_activity
from mainstem.workbench.console.json_body import exact_json, time_text
from mainstem.workbench.console.spoken_durations import spoken_seconds

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["home_then"]

NO_HISTORY = "Its figures are kept only as they are now."
# How far back the last report of a flow, and its last start or end, are looked for.
REPORT_BACK = timedelta(hours=1)
ACTIVITY_BACK = timedelta(days=7)
STATES = {"begun": "running", "restarted": "running", "waiting": "running", "ended": "stopped", "failed": "failed",
          "killed": "killed", "fenced": "stopped"}  # fmt: skip


def home_then(stem: Mainstem, now_map: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The map at a time; `now_map` is the map of now, which has the nodes and edges."""
    if as_us(at) > stem.log.clock.now():
        raise Invalid(
            f"{time_text(at)} is in the future",
            detail=f"It is {now_map['home']['at']} for this home.",
            hint="Give a time that is over, or leave `at` out.",
        )
    reports, states = _reports(stem, at), _states(stem, at)
    nodes = [_node(stem, node, at, reports, states) for node in now_map["nodes"]]
    rates = {node["id"]: node for node in nodes}
    edges = [{**edge, "rows_per_second": _edge_rate(edge, rates)} for edge in now_map["edges"]]
    flows = [node for node in nodes if node["kind"] == "flow"]
    bad = [node for node in flows if node["state"] in ("failed", "killed")]
    running = [node for node in flows if node["state"] == "running"]
    lags = [node["lag_seconds"] for node in running if node.get("lag_seconds") is not None]
    sentence = (
        f"{show_count(len(bad), 'flow')} did not run: {', '.join(node['name'] for node in bad[:3])}."
        if bad
        else f"{show_count(len(running), 'flow')} ran, at most {spoken_seconds(max(lags, default=0.0))} behind."
    )
    found: dict[str, Any] = exact_json(
        {
            "home": {**now_map["home"], "at": time_text(at)},
            "then": True,
            "well": {"ok": not bad, "sentence": sentence},
            "totals": {
                "rows_per_second": round(
                    sum(node.get("rows_per_second") or 0.0 for node in nodes if node["kind"] == "topic"), 1
                ),
                "worst_lag_seconds": max(lags, default=0.0),
                "late": sum(node.get("late") or 0 for node in flows),
                "rejected": sum(node.get("rejected_then") or 0 for node in flows),
            },
            "nodes": nodes,
            "edges": edges,
            "wants_a_look": [],
            "activity": last_activity(stem, at),
        }
    )
    return found


def _node(
    stem: Mainstem, node: dict[str, Any], at: datetime, reports: dict[str, list[dict[str, Any]]], states: dict[str, str]
) -> dict[str, Any]:
    known = {"id": node["id"], "kind": node["kind"], "name": node["name"]}
    if node["kind"] == "topic":
        amounts = try_look({}, lambda name: _topic_amounts(stem.topic(name), at), node["name"])
        if isinstance(amounts, Unreadable):
            return {**known, "state": "unreadable", "sentence": f"It cannot be read: {amounts.error}."}
        records, rate = amounts
        sentence = f"{show_count(records, 'record')}, {rate:,.1f} rows/s."
        return {**known, "state": "kept", "records": records, "rows_per_second": rate, "sentence": sentence}
    if node["kind"] == "flow":
        return {**known, **_flow(node["name"], at, reports.get(node["name"], []), states)}
    return {**known, "state": "kept", "sentence": NO_HISTORY}


def _topic_amounts(topic: Topic, at: datetime) -> tuple[int, float]:
    """The records of now that were there, and the rate then."""
    backend = topic.backend
    records = added = 0
    for number in range(topic.settings.partitions):
        end = backend.at_time(number, as_us(at) + 1)
        records += max(0, end - backend.earliest(number))
        added += max(0, end - backend.at_time(number, as_us(at) - RATE_SECONDS * 1_000_000))
    return records, round(added / RATE_SECONDS, 1)


def _flow(name: str, at: datetime, reports: list[dict[str, Any]], states: dict[str, str]) -> dict[str, Any]:
    last = reports[-1] if reports else None
    recent = [row for row in reports if row["at"] > at - timedelta(seconds=RATE_SECONDS)]
    state = states.get(name, "running" if recent else "stopped")
    rate_in, rate_out = (
        round(sum(row[column] or 0 for row in recent) / RATE_SECONDS, 1) for column in ("rows_in", "rows_out")
    )
    lag = None if last is None else last.get("lag_seconds")
    behind = "no report of that time is kept" if last is None else f"it was {spoken_seconds(lag or 0.0)} behind"
    return {
        "state": state,
        "sentence": f"Its state was {state}; {behind}.",
        "rows_per_second": rate_in,
        "rows_out_per_second": rate_out,
        "lag_seconds": lag,
        "lag_records": None if last is None else last["lag_records"],
        "batch": None if last is None else last["batch"],
        "watermark": None if last is None else last["watermark"],
        "late": sum(row["late"] or 0 for row in reports),
        "rejected_then": sum(row["rejected"] or 0 for row in reports),
    }


def _edge_rate(edge: dict[str, Any], nodes: dict[str, dict[str, Any]]) -> float | None:
    begin, end = nodes.get(edge["from"], {}), nodes.get(edge["to"], {})
    if begin.get("kind") == "flow":
        return begin.get("rows_out_per_second")
    return end.get("rows_per_second") if end.get("kind") == "flow" else None


def _reports(stem: Mainstem, at: datetime) -> dict[str, list[dict[str, Any]]]:
    """The reports of the hour before a time, by flow, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    if PROGRESS_TOPIC not in stem.topics():
        return found
    topic = stem.topic(PROGRESS_TOPIC)
    # Reports are appended up to a second or so after their batch.
    rows = topic.to_arrow(start=at - REPORT_BACK, stop=at + timedelta(minutes=1))
    for row in rows.drop_columns(["record"]).to_pylist():
        if row["at"] is not None and row["at"] <= at:
            found.setdefault(row["flow"], []).append(row)
    return found


def _states(stem: Mainstem, at: datetime) -> dict[str, str]:
    """The state of each flow after the last thing that happened to it."""
    found: dict[str, str] = {}
    for row in read_activity(stem.log, as_us(at - ACTIVITY_BACK)):
        if row["at"] > at:
            break
        if row["subject"] == "flow" and row["what"] in STATES:
            found[row["name"]] = STATES[row["what"]]
    return found
