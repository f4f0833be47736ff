"""The console as an ASGI application: the API, the page, and errors as JSON in three parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from mainstem.errors import MainstemError
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.cli.command_arguments import parse_moment
from mainstem.workbench.cli.error_text import of_system
from mainstem.workbench.console.console_access import AccessGate, AccessRules, log_in, log_out
from mainstem.workbench.console.console_actions import ConsoleActions
from mainstem.workbench.console.console_answer import JsonResponse, error_body, error_status, read_json
from mainstem.workbench.console.console_api import api_routes
from mainstem.workbench.console.event_stream import EventStream
from mainstem.workbench.console.guided_walk import GuidedWalk, Walk
from mainstem.workbench.console.sql_answer import SqlAnswers
from mainstem.workbench.console.stream_feed import StreamHub

__all__ = ["PAGE", "console_app"]

# The files of the page, which are built from TypeScript and are part of the package.
PAGE = Path(__file__).parent / "page"

# Addresses that take a POST.
POSTED = frozenset(["/api/query", "/api/login", "/api/logout"])
WORDS = {404: "there is no such page", 405: "this address takes no such request", 413: "the request is too large"}


def console_app(
    hub: StreamHub, rules: AccessRules, tokens: AccessTokens, permitted: frozenset[str], steps: Walk
) -> ASGIApp:
    """The application behind its gate."""
    queries, actions = SqlAnswers(hub.home), ConsoleActions(hub.home.stem, permitted)
    guided = GuidedWalk(steps, queries, hub.home.stem.log.clock)

    async def stream(request: Request) -> Response:
        return EventStream(request, hub)

    async def query(request: Request) -> Response:
        asked = await read_json(request)
        at = asked.get("at")
        moment = parse_moment(at, "at") if isinstance(at, str) and at else None
        return JsonResponse(await run_in_threadpool(queries.answer, asked.get("sql"), moment))

    async def login(request: Request) -> Response:
        return await log_in(request, rules, tokens)

    async def session(request: Request) -> Response:
        visitor = request.state.visitor
        may, permitted = actions.of(visitor.scope), sorted(actions.permitted)
        return JsonResponse({"who": visitor.who, "scope": visitor.scope, "actions": may, "permitted": permitted})

    async def walk(request: Request) -> Response:
        return JsonResponse(await run_in_threadpool(guided.answer))

    app = Starlette(
        routes=[
            *api_routes(hub.home),
            Route("/api/stream", stream, methods=["GET"]),
            Route("/api/query", query, methods=["POST"]),
            Route("/api/actions/{action}", actions.respond, methods=["POST"]),
            Route("/api/session", session, methods=["GET"]),
            Route("/api/walk", walk, methods=["GET"]),
            Route("/api/login", login, methods=["POST"]),
            Route("/api/logout", log_out, methods=["POST"]),
            Route("/api", _no_such_address),
            Route("/api/{rest:path}", _no_such_address),
            Mount("/", app=_Page(directory=PAGE, html=True)),
        ],
        exception_handlers={
            MainstemError: _show_error,
            OSError: _show_error,
            HTTPException: _show_http,
            # Also written to the server's standard error, with its traceback.
            Exception: _show_defect,
        },
    )
    return AccessGate(app, rules, tokens)


def _no_such_address(request: Request) -> Response:
    path = request.url.path
    raise HTTPException(405 if path in POSTED or path.startswith("/api/actions/") else 404)


class _Page(StaticFiles):
    """The files of the page. An address without a file is a state of the page: it gets the page itself."""

    async def get_response(self, path: str, scope: Any) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or "." in os.path.basename(path):
                raise
            return FileResponse(PAGE / "index.html")


def _show_error(request: Request, error: Exception) -> Response:
    ours = error if isinstance(error, MainstemError) else of_system(error) if isinstance(error, OSError) else None
    if ours is None:
        return _show_defect(request, error)
    return JsonResponse(error_body(ours), error_status(ours))


def _show_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 503
    what = WORDS.get(status, "the request cannot be answered")
    hint = "Send it as POST, with a body in JSON." if status == 405 and request.method == "GET" else ""
    answer = MainstemError(
        what,
        detail=f"It asked for {request.url.path[:200]!r}, by {request.method[:20]}.",
        hint=hint or "The page of the console is at /.",
    )
    return JsonResponse(error_body(answer), status)


def _show_defect(request: Request, error: Exception) -> Response:
    found = MainstemError(
        "the console has a defect and could not answer",
        detail=f"{type(error).__name__}: {str(error)[:500]}",
        hint="Its standard error has the traceback. Other pages are not affected.",
    )
    return JsonResponse(error_body(found), 503)
