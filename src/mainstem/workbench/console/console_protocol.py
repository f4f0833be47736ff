"""ConsoleProtocol: uvicorn's HTTP with deadlines for the headers and the body of a request, and for a client that takes nothing."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mainstem.workbench.console.connection_owner import ConnectionOwner

__all__ = ["REQUEST_SECONDS_MAX", "SILENT_SECONDS_MAX", "ConsoleProtocol"]

# A request whose headers are not complete by then is dropped, and one whose body is not as long after them.
REQUEST_SECONDS_MAX = 10
# A client that takes nothing for this long is dropped, by the kernel.
SILENT_SECONDS_MAX = 30
SEND_BYTES = 64 * 1024


class ConsoleProtocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    # What the client has not completed: the headers (h11.IDLE) or the body (h11.SEND_BODY).
    _awaited: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # `abort` is for a client that takes nothing.
        server = None if self.server is None or self.server[1] is None else (self.server[0], self.server[1])
        owner = ConnectionOwner(self.client, server)
        self.app_state = {**self.app_state, "abort": transport.abort, "owner": owner}
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS_MAX * 1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._await(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await(self.conn.their_state)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def _await(self, state: object) -> None:
        """Set the deadline of what comes next; more bytes of the same do not move it."""
        if state is self._awaited and self._deadline is not None:
            return
        self._clear_deadline()
        self._awaited = state
        if state in (h11.IDLE, h11.SEND_BODY):
            self._deadline = self.loop.call_later(REQUEST_SECONDS_MAX, self._give_up)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is self._awaited:
            self.transport.abort()
