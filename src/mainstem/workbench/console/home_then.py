"""The map of a home as it was at a time: drawn as that of now, from offsets by append time, the reports of flows, what happened,
and views that keep history.

Queues, captures, stores and views without history have no figures of then: their nodes have the state `not kept`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_us
from mainstem.errors import FellOff, Invalid
from mainstem.workbench.cli.command_arguments import open_view
from mainstem.workbench.cli.flow_facts import known_flows
from mainstem.workbench.cli.list_entry import Unreadable, try_look
from mainstem.workbench.console.flow_then import STATES, PastRows, flow_then, past_rows
from mainstem.workbench.console.home_map import (
    HomeMap,
    draw_flow,
    draw_topics,
    draw_unreadable,
    draw_view,
    last_activity,
    map_json,
)
from mainstem.workbench.console.json_body import time_text
from mainstem.workbench.console.view_then import view_then

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["home_then"]

NO_HISTORY = "Its figures are kept only as they are now."
NOT_KEPT = "not kept"


def home_then(stem: Mainstem, now_map: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The map at a time; `now_map` is the map of now, which has what keeps no history."""
    if as_us(at) > stem.log.clock.now():
        raise Invalid(
            f"{time_text(at)} is in the future",
            detail=f"It is {now_map['home']['at']} for this home.",
            hint="Give a time that is over, or leave `at` out.",
        )
    drawn, past = HomeMap(as_us(at)), past_rows(stem, at)
    draw_topics(stem, drawn, as_us(at))
    for name in known_flows(stem):
        _flow(stem, drawn, name, past)
    for name in stem.views():
        _view(stem, drawn, name, past)
    for node in now_map["nodes"]:
        if node["kind"] in ("queue", "store"):
            drawn.node(node["kind"], node["name"], state=NOT_KEPT, sentence=NO_HISTORY)
        elif node["kind"] == "capture":
            _capture(drawn, node["name"], past)
    known = {(edge["from"], edge["to"]) for edge in drawn.edges}
    # Those of queues and captures, whose rows are not counted.
    for edge in now_map["edges"]:
        kinds = {edge["from"].partition(":")[0], edge["to"].partition(":")[0]}
        if kinds & {"queue", "capture"} and (edge["from"], edge["to"]) not in known:
            drawn.edge(edge["from"], edge["to"], None)
    return {**map_json(stem, drawn, last_activity(stem, at)), "then": True}


def _flow(stem: Mainstem, drawn: HomeMap, name: str, past: PastRows) -> None:
    if name not in past.reports and not past.of("flow", name):
        return
    found = try_look({}, flow_then, stem, name, past)
    if isinstance(found, Unreadable):
        draw_unreadable(drawn, "flow", name, found.error)
    else:
        draw_flow(drawn, found)


def _capture(drawn: HomeMap, name: str, past: PastRows) -> None:
    """A capture by what happened to it."""
    noted = [row for row in past.of("capture", name) if row["what"] in STATES]
    if not noted:
        drawn.node("capture", name, state=NOT_KEPT, sentence=NO_HISTORY)
        return
    last = noted[-1]
    drawn.node("capture", name, state=STATES[last["what"]], sentence=f"{last['text']}. {NO_HISTORY}")
    if last["what"] in ("failed", "killed", "waiting"):
        drawn.look(f"capture:{name}", last["text"], last["detail"] or "", last["hint"] or "")


def _view(stem: Mainstem, drawn: HomeMap, name: str, past: PastRows) -> None:
    def look(name: str) -> None:
        with open_view(stem, name) as view:
            if min(it.created_at for it in view.versions()) > past.at:
                return
            try:
                then = view_then(stem, view, past)
            except (Invalid, FellOff) as error:
                drawn.node("view", name, state=NOT_KEPT, sentence=f"{NO_HISTORY} {error.summary}.")
                return
        draw_view(drawn, name, then.rows, then.lag, then.applied_at, then.flow)

    found = try_look({}, look, name)
    if isinstance(found, Unreadable):
        draw_unreadable(drawn, "view", name, found.error)
