"""Answers of the console: JSON, and errors in three parts."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainstem.errors import AlreadyExists, Conflict, FellOff, Invalid, MainstemError, NotFound, NotYet, Unavailable
from mainstem.workbench.cli.shown_passwords import blank_passwords
from mainstem.workbench.console.json_body import encode_json

__all__ = ["JsonResponse", "error_body", "error_status", "read_json"]


class LateBody(MainstemError):
    """The body of a request did not come in time."""


# The first that fits; what is none of these is for later: 503.
STATUSES: tuple[tuple[type[MainstemError], int], ...] = (
    (LateBody, 408),
    (NotYet, 400),
    (Unavailable, 503),
    (NotFound, 404),
    (Invalid, 400),
    (Conflict, 409),
    (AlreadyExists, 409),
    (FellOff, 410),
)
BODY_BYTES_MAX = 64 * 1024
# With all digits of numbers, for decimals.
DECODER = msgspec.json.Decoder(float_hook=Decimal)
# A little less than the connection itself has.
BODY_SECONDS_MAX = 8


class JsonResponse(Response):
    """Plain JSON values, never kept by a browser."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(encode_json(content), status_code, {"Cache-Control": "no-store"})


def error_status(error: Exception) -> int:
    """The status of an answer."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 503)


def error_body(error: MainstemError) -> dict[str, Any]:
    """The three parts."""
    what, detail, hint = (blank_passwords(part) for part in (error.summary, error.detail, error.hint))
    return {"error": {"what": what, "detail": detail, "hint": hint, "kind": type(error).__name__}}


async def read_json(request: Request) -> dict[str, Any]:
    """The object in the body of a request: small, and there in time."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise Invalid(
                        "the request is too large",
                        detail=f"Its body has more than {BODY_BYTES_MAX // 1024} KiB.",
                        hint="Send less.",
                    )
        found = DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    except (TimeoutError, ClientDisconnect) as error:
        raise LateBody(
            "the request did not come in time", detail="Its body is not complete.", hint="Send it again."
        ) from error
    if not isinstance(found, dict) or request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Invalid(
            "the request is not a JSON object",
            detail="Its body must be an object, and its Content-Type application/json.",
            hint='For example: {"sql": "SELECT 1"}',
        )
    return found
