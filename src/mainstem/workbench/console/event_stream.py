"""EventStream: the stream of one page (server-sent events), over all that it watches.

    retry: 1000

    id: {"home":"91c0..","view:revenue":"cd44f63f@17"}
    event: changes
    data: {"subject":"view:revenue","cursor":"cd44f63f@17","changes":[...]}

The id has the cursor of every subject: a browser sends it back when it reconnects, and the stream goes on after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainstem.errors import FellOff, Invalid, MainstemError, NotFound
from mainstem.workbench.cli.error_text import of_system
from mainstem.workbench.console.console_answer import error_body
from mainstem.workbench.console.console_protocol import SILENT_SECONDS_MAX
from mainstem.workbench.console.json_body import encode_json
from mainstem.workbench.console.stream_feed import StreamHub, SubjectFeed
from mainstem.workbench.console.stream_subject import StreamMessage

__all__ = ["EventStream", "parse_cursors"]

SUBJECTS_MAX = 32
# A comment, so that both sides notice when the other is gone.
ALIVE_SECONDS = 15
# Messages of one subject before the next one has its turn.
TURN = 16
# Many pages are served less often each, so that together they cost no more: 200 of them four times a second.
PAUSE_SECONDS_PER_STREAM = 0.00125
PAUSE_SECONDS_MAX = 0.25
# What one round has is sent in pieces of about this size.
PIECE_BYTES = 64 * 1024


def parse_cursors(text: str | None) -> dict[str, str]:
    """The cursors of an event's id.

    >>> parse_cursors('{"view:revenue": "cd44f63f@17"}')
    {'view:revenue': 'cd44f63f@17'}
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(cursor, str) for cursor in found.values()):
        raise Invalid(
            f'"{text[:60]}" is not the id of an event',
            detail="An id is a JSON object with the cursor of each subject.",
            hint="Leave it out to begin with a snapshot.",
        )
    return found


class EventStream(Response):
    """The answer to `/api/stream`: it ends when the client goes, takes nothing for 30 seconds, or the server ends."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, hub: StreamHub) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        names = list(dict.fromkeys(request.query_params.getlist("of")))
        if not 1 <= len(names) <= SUBJECTS_MAX:
            raise Invalid(
                f"a stream follows 1 to {SUBJECTS_MAX} subjects, not {len(names)}",
                detail="Each `of` of the address is one.",
                hint="For example: /api/stream?of=home&of=view:revenue",
            )
        given = parse_cursors(request.query_params.get("last") or request.headers.get("last-event-id"))
        self._cursors = {name: cursor for name, cursor in given.items() if name in names}
        self._troubles: dict[str, str] = {}
        self._hub = hub
        self._bell = asyncio.Event()
        self._feeds = hub.join(names, self._bell)
        self._abort = getattr(request.state, "abort", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(self._until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self._parts(gone):
                async with asyncio.timeout(SILENT_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # The client takes nothing.
            if self._abort is not None:
                self._abort()
        finally:
            gone.cancel()
            self._hub.leave(self._feeds, self._bell)

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._bell.set()

    async def _parts(self, gone: asyncio.Task[None]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        while not (gone.done() or self._hub.closed):
            self._bell.clear()
            idle, piece = True, b""
            for feed in self._feeds:
                async for part in self._turn(feed):
                    idle, piece = False, piece + part
                    if len(piece) >= PIECE_BYTES:
                        yield piece
                        piece = b""
            if piece:
                yield piece
            if idle:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await self._bell.wait()
                    await asyncio.sleep(min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_PER_STREAM * self._hub.streams))
                except TimeoutError:
                    yield b": alive\n\n"

    async def _turn(self, feed: SubjectFeed) -> AsyncIterator[bytes]:
        """What a subject has for this page now, at most a few messages."""
        name = feed.subject.name
        if (trouble := feed.trouble) is not None:
            if (part := self._trouble(name, trouble)) is not None:
                yield part
            return
        for _ in range(TURN):
            try:
                messages = await self._next(feed)
            except (FellOff, Invalid) as error:
                yield self._frame("gap", {"subject": name, **error_body(error)})
                self._cursors.pop(name, None)
                continue
            except (MainstemError, OSError) as error:
                ours = error if isinstance(error, MainstemError) else of_system(error)
                if (part := self._trouble(name, ours)) is not None:
                    yield part
                return
            if feed.head is not None and (part := self._trouble(name, None)) is not None:
                yield part
            if not messages:
                return
            for message in messages[-1:] if feed.subject.newest_only else messages:
                self._cursors[name] = message.cursor
                yield self._frame(message.event, message.data)

    async def _next(self, feed: SubjectFeed) -> list[StreamMessage]:
        cursor = self._cursors.get(feed.subject.name)
        if cursor is None:
            return [await run_in_threadpool(feed.subject.snapshot)]
        found = feed.after(cursor)
        if found is not None:
            return found
        head = feed.head
        if head is None:
            # The feed has not begun; it rings when it has.
            return []
        message = await run_in_threadpool(feed.subject.next, cursor, head)
        return [] if message is None else [message]

    def _trouble(self, name: str, error: MainstemError | None) -> bytes | None:
        """What to say about a subject that cannot be read: once, and once when it can be again."""
        said = self._troubles.get(name)
        if error is None:
            if said is None:
                return None
            del self._troubles[name]
            return self._frame("well", {"subject": name})
        if said == error.summary:
            return None
        self._troubles[name] = error.summary
        return self._frame("gone" if isinstance(error, NotFound) else "trouble", {"subject": name, **error_body(error)})

    def _frame(self, event: str, data: bytes | Mapping[str, Any]) -> bytes:
        content = data if isinstance(data, bytes) else encode_json(data)
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (encode_json(self._cursors), event.encode(), content)
