"""The API of the console: what the command line prints with --json, by HTTP.

Each function answers one request in a thread of its own: it may block. It returns plain JSON values, or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.errors import Invalid
from mainstem.log.lag import Lag
from mainstem.log.topic import Topic
from mainstem.names import check_own_name
from mainstem.stem import Mainstem
from mainstem.workbench.cli.command_arguments import open_view, parse_moment
from mainstem.workbench.cli.flow_commands import flow_json
from mainstem.workbench.cli.flow_facts import flow_facts, known_flows, last_progress
from mainstem.workbench.cli.list_entry import Unreadable, entries_by_topic, json_entry, try_look
from mainstem.workbench.cli.queue_commands import queue_json
from mainstem.workbench.cli.queue_messages import open_messages
from mainstem.workbench.cli.schema_history import schema_history
from mainstem.workbench.cli.topic_commands import TopicFacts, topic_facts
from mainstem.workbench.cli.view_commands import version_json, version_lag, view_facts, view_json
from mainstem.workbench.console.console_answer import JsonResponse
from mainstem.workbench.console.flow_picture import flow_picture
from mainstem.workbench.console.flow_then import flow_then, past_rows
from mainstem.workbench.console.home_then import home_then
from mainstem.workbench.console.json_body import exact_json
from mainstem.workbench.console.progress_history import POINTS_MAX, history_of
from mainstem.workbench.console.topic_records import read_records
from mainstem.workbench.console.topic_then import topic_then
from mainstem.workbench.console.view_difference import version_difference
from mainstem.workbench.console.view_keys import key_history, key_row
from mainstem.workbench.console.view_rows import view_page
from mainstem.workbench.console.view_then import view_then_json
from mainstem.workbench.console.view_why import view_why
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["api_routes"]

Answer = Callable[[Request], Any]
NAME = "{name:path}"
PAGE_ROWS = 100
PAGE_ROWS_MAX = 1_000
# A span around a time must still be one that a calendar has.
YEARS = (1970, 9998)
VERSION_MAX = 1_000_000
ROWS_MAX = 1_000_000_000


def api_routes(home: WatchedHome) -> list[Route]:
    """The routes that read."""
    api = _ReadApi(home.stem, home)
    answers: dict[str, Answer] = {
        "/api/home": api.home,
        "/api/flows": api.flows,
        "/api/flows/{name}/picture": api.picture,
        f"/api/flows/{NAME}": api.flow,
        "/api/topics": api.topics,
        "/api/topics/{name}/records": api.records,
        f"/api/topics/{NAME}": api.topic,
        "/api/views": api.views,
        "/api/views/{name}/rows": api.rows,
        "/api/views/{name}/row": api.row,
        "/api/views/{name}/history": api.key_history,
        "/api/views/{name}/difference": api.difference,
        "/api/views/{name}/why": api.why,
        f"/api/views/{NAME}": api.view,
        "/api/queues": api.queues,
        "/api/queues/{topic}/{queue}": api.queue,
        "/api/history": api.history,
        "/api/search": api.search,
    }
    return [Route(path, _endpoint(home, answer), methods=["GET"]) for path, answer in answers.items()]


def _endpoint(home: WatchedHome, answer: Answer) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        with home.reach.asking():
            return JsonResponse(exact_json(answer(request)))

    return respond


def number_in(request: Request, name: str, default: int, most: int, least: int = 1) -> int:
    """A whole number of the address, between `least` and `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
        raise Invalid(
            f'{name} "{text[:60]}" is out of range',
            detail=f"It is a whole number from {least} to {most:,}.",
            hint=f"For example: {name}={max(default, least)}",
        )
    return int(text)


def time_in(request: Request, name: str) -> datetime | None:
    """A time of the address, with its zone; None if there is none. In an address "+" is a space."""
    text = request.query_params.get(name)
    if not text:
        return None
    moment = parse_moment(text.replace(" ", "+"), name)
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise Invalid(
            f'{name} "{text[:60]}" is out of range',
            detail=f"Times are shown from the year {YEARS[0]} to {YEARS[1]}.",
            hint="Give a time in which the home was there.",
        )
    return moment


class _ReadApi:
    """The answers, by the noun of the address."""

    def __init__(self, stem: Mainstem, home: WatchedHome) -> None:
        self._stem = stem
        self._home = home

    def home(self, request: Request) -> Any:
        at = time_in(request, "at")
        return self._home.map() if at is None else home_then(self._stem, self._home.map(), at)

    # Flows

    def flows(self, request: Request) -> Any:
        stem, progress = self._stem, last_progress(self._stem)
        found = [try_look({"flow": name}, flow_facts, stem, name, progress) for name in known_flows(stem)]
        return [json_entry(it, flow_json) for it in found]

    def flow(self, request: Request) -> Any:
        name, at = check_own_name(request.path_params["name"], "flow"), time_in(request, "at")
        if at is None:
            return flow_json(flow_facts(self._stem, name))
        return {**flow_json(flow_then(self._stem, name, past_rows(self._stem, at))), "then": True}

    def picture(self, request: Request) -> Any:
        flow = check_own_name(request.path_params["name"], "flow")
        return flow_picture(self._stem, flow, time_in(request, "from"), time_in(request, "to"))

    def history(self, request: Request) -> Any:
        points = number_in(request, "points", 120, POINTS_MAX)
        subject = request.query_params.get("of", "")
        return history_of(self._stem, subject, time_in(request, "from"), time_in(request, "to"), points)

    # Topics

    def _topic(self, request: Request) -> Topic:
        return self._stem.topic(check_own_name(request.path_params["name"], "topic"))

    def topics(self, request: Request) -> Any:
        stem = self._stem
        found = [try_look({"topic": name}, lambda it: topic_facts(stem.topic(it)), name) for name in stem.topics()]
        return [json_entry(it, TopicFacts.to_json) for it in found]

    def topic(self, request: Request) -> Any:
        topic, at = self._topic(request), time_in(request, "at")
        facts = topic_facts(topic).to_json() if at is None else topic_then(self._stem, topic, at)
        readers = {"flows": _readers(self._stem, topic.name)} if at is None else {}
        return {**facts, **readers, "schemas": schema_history(self._stem, topic, at)}

    def records(self, request: Request) -> Any:
        asked = request.query_params
        return read_records(
            self._topic(request),
            position=asked.get("position") or None,
            cursor=asked.get("cursor") or None,
            limit=number_in(request, "limit", PAGE_ROWS, PAGE_ROWS_MAX),
            condition=asked.get("filter") or None,
            until=time_in(request, "at"),
        )

    # Views

    def views(self, request: Request) -> Any:
        stem = self._stem
        found = [try_look({"view": name}, view_facts, stem, name) for name in stem.views()]
        return [json_entry(it, lambda it: view_json(*it)) for it in found]

    def view(self, request: Request) -> Any:
        stem, at = self._stem, time_in(request, "at")
        with open_view(stem, request.path_params["name"]) as view:
            if at is not None:
                return view_then_json(stem, view, past_rows(stem, at))
            facts, versions = view.describe(), view.versions()
        return {
            **view_json(facts, version_lag(stem, facts.live)),
            "all_versions": [
                {"version": it.number, "live": it.live, **version_json(it), "lag": version_lag(stem, it)}
                for it in versions
            ],
        }

    def rows(self, request: Request) -> Any:
        limit = number_in(request, "limit", PAGE_ROWS, PAGE_ROWS_MAX)
        with open_view(self._stem, request.path_params["name"]) as view:
            now = self._stem.log.clock.now()
            return view_page(view, request.query_params.get("after"), limit, time_in(request, "at"), now)

    def row(self, request: Request) -> Any:
        with open_view(self._stem, request.path_params["name"]) as view:
            return key_row(view, request.query_params.getlist("key"), time_in(request, "at"))

    def key_history(self, request: Request) -> Any:
        limit = number_in(request, "limit", PAGE_ROWS, PAGE_ROWS_MAX)
        before = number_in(request, "before", 0, 2**62) or None
        with open_view(self._stem, request.path_params["name"]) as view:
            return key_history(view, request.query_params.getlist("key"), before, limit, time_in(request, "at"))

    def difference(self, request: Request) -> Any:
        for name in ("before", "after"):
            if not request.query_params.get(name):
                raise Invalid(
                    f"the request has no `{name}`",
                    detail="`before` and `after` are the numbers of two versions of the view.",
                    hint="For example: before=1&after=2",
                )
        before, after = (number_in(request, name, 0, VERSION_MAX) for name in ("before", "after"))
        limit, skip = number_in(request, "limit", 25, PAGE_ROWS_MAX), number_in(request, "skip", 0, ROWS_MAX, least=0)
        with open_view(self._stem, request.path_params["name"]) as view:
            return version_difference(view, before, after, limit, skip)

    def why(self, request: Request) -> Any:
        asked, limit = request.query_params, number_in(request, "limit", PAGE_ROWS, PAGE_ROWS_MAX)
        with open_view(self._stem, request.path_params["name"]) as view:
            return view_why(view, asked.get("key"), time_in(request, "at"), limit, asked.get("after") or None)

    # Queues

    def queues(self, request: Request) -> Any:
        found = entries_by_topic(
            self._stem, None, "queue", Topic.queues, lambda topic, name: topic.open_queue(name).describe()
        )
        return [json_entry(it, queue_json) for it in found]

    def queue(self, request: Request) -> Any:
        topic = check_own_name(request.path_params["topic"], "topic")
        queue = self._stem.topic(topic).open_queue(request.path_params["queue"])
        return {**queue_json(queue.describe()), "messages": open_messages(queue)}

    # Names

    def search(self, request: Request) -> Any:
        words = request.query_params.get("q", "").casefold().split()
        found = [
            {"id": node["id"], "kind": node["kind"], "name": node["name"], "sentence": node.get("sentence", "")}
            for node in self._home.map()["nodes"]
            if all(word in node["id"].casefold() for word in words)
        ]
        return sorted(found, key=lambda it: (len(it["name"]), it["id"]))[:50]


def _readers(stem: Mainstem, topic: str) -> list[dict[str, Any]]:
    """The flows that read a topic, with their lag in it."""
    found = []
    for name in known_flows(stem):
        facts = try_look({}, flow_facts, stem, name, {})
        if isinstance(facts, Unreadable):
            continue
        lags = [part.lag for part in facts.sources if part.source == topic]
        if lags:
            found.append({"flow": name, "state": facts.state, "lag": Lag.total(lags)})
    return found
