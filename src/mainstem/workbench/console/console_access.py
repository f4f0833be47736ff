"""AccessGate: who may see the console, and what a browser may do with its answers.

    address      Host must name this server, Origin too if there is one: no page of another site, by whatever name, gets in
    who          a token (Authorization: Bearer, or the cookie of /api/login); else, on this machine, the user who runs it
    browser      a strict Content-Security-Policy with Trusted Types; nothing is framed, guessed, or sent elsewhere

The files of the page are the same for everybody, and hold nothing of the home: they need no token.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstem.errors import MainstemError
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.access_tokens import Scope as TokenScope
from mainstem.workbench.console.connection_owner import ConnectionOwner, user_name
from mainstem.workbench.console.console_answer import JsonResponse, error_body, read_json

__all__ = ["AccessGate", "AccessRules", "Visitor", "log_in", "log_out"]

COOKIE = "mainstem_console"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types mainstem"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# Addresses of the API that anybody may ask.
OPEN = frozenset(["/api/login", "/api/logout"])


@dataclass(frozen=True)
class AccessRules:
    """What the gate checks. `names`: the names of this server, which a browser sends with its `port`; `given`: names that are
    sent as they are. With `any_address` also every numeric address: a page of another site reaches it by a name. `same_user`:
    the user who runs it needs no token."""

    names: frozenset[str]
    port: int
    given: frozenset[str] = frozenset()
    any_address: bool = False
    same_user: bool = True
    secure: bool = False

    def is_own(self, host: str) -> bool:
        """Whether a Host header, or the host of an origin, names this server.

        >>> rules = AccessRules(frozenset(["localhost"]), 8765)
        >>> rules.is_own("localhost:8765"), rules.is_own("localhost"), rules.is_own("evil.example:8765")
        (True, False, False)
        """
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return False
        if host.lower() in self.given:
            return True
        if (port or (443 if self.secure else 80)) != self.port:
            return False
        return name in self.names or (self.any_address and _is_address(name))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Visitor:
    """Who asks, and what they may do."""

    who: str
    scope: TokenScope
    by: Literal["user", "token"]


class AccessGate:
    """Lets requests through, with `visitor` in their state."""

    def __init__(self, app: ASGIApp, rules: AccessRules, tokens: AccessTokens) -> None:
        self._app = app
        self._rules = rules
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            refusal = self._refusal(scope)
        except MainstemError as error:
            refusal = JsonResponse(error_body(error), 503)
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._rules.is_own(host):
            return _refuse(
                403, "this console has another name", f"The request names the host {host[:100]!r}.",
                "Use the address that the console printed; a further name is given with --name.",
            )  # fmt: skip
        if origin is not None and not self._is_own_origin(origin):
            return _refuse(
                403, "a page of another site may not use this console", f"The request comes from {origin[:100]!r}.",
                "Open the console itself.",
            )  # fmt: skip
        if not path.startswith("/api/"):
            return None
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return _refuse(
                403, "a page of another site may not use this console", "The browser says that another site asks.",
                "Open the console itself.",
            )  # fmt: skip
        visitor = self._visitor(scope, headers)
        if visitor is None and path not in OPEN:
            return _refuse(
                401, "this console does not know you", self._why_unknown(scope),
                "Give a token: mainstem token create --scope read, run by the owner of the home.",
            )  # fmt: skip
        state = scope.setdefault("state", {})
        state["visitor"] = visitor
        # For an answer that lasts: a token may expire, or be revoked.
        state["admitted"] = lambda: self._visitor(scope, headers) == visitor
        return None

    def _is_own_origin(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and self._rules.is_own(host)

    def _visitor(self, scope: Scope, headers: Headers) -> Visitor | None:
        given = _token_in(headers)
        if given:
            token = self._tokens.find(given)
            if token is not None:
                return Visitor(f"token {token.id}", token.scope, "token")
        owner = scope.get("state", {}).get("owner")
        if self._rules.same_user and isinstance(owner, ConnectionOwner) and owner.is_this_user:
            return Visitor(f"user {user_name(os.getuid())}", "read", "user")
        return None

    def _why_unknown(self, scope: Scope) -> str:
        if not self._rules.same_user:
            return "It is reached over the network: every request needs a token that is valid."
        return "Without a token only the user who runs it may read."


def _token_in(headers: Headers) -> str:
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return text.strip()
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def _refuse(status: int, what: str, detail: str, hint: str) -> Response:
    return JsonResponse(error_body(MainstemError(what, detail=detail, hint=hint)), status)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return send_with_headers


# A browser gives its token once, and keeps it in a cookie that no script can read.


async def log_in(request: Request, rules: AccessRules, tokens: AccessTokens) -> Response:
    """Takes a token, and answers with the cookie."""
    given: Any = (await read_json(request)).get("token")
    token = tokens.find(given) if isinstance(given, str) else None
    if token is None:
        return _refuse(
            401, "this token is not valid", "It is unknown, expired or revoked.", "List the tokens: mainstem token list"
        )
    answer = JsonResponse({"who": f"token {token.id}", "scope": token.scope, "expires_at": token.expires.isoformat()})
    answer.set_cookie(
        COOKIE, given, expires=token.expires, path="/", secure=rules.secure, httponly=True, samesite="strict"
    )
    return answer


async def log_out(request: Request) -> Response:
    """Removes the cookie."""
    answer = JsonResponse({})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer
