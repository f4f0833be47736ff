"""ConsoleProtocol: uvicorn's HTTP with a deadline for the headers of a request, and for a client that takes nothing."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mainstem.workbench.console.connection_owner import ConnectionOwner

__all__ = ["HEADER_SECONDS_MAX", "SILENT_SECONDS_MAX", "ConsoleProtocol"]

# A request whose headers are not complete by then is dropped.
HEADER_SECONDS_MAX = 10
# A client that takes nothing for this long is dropped, by the kernel.
SILENT_SECONDS_MAX = 30
SEND_BYTES = 64 * 1024


class ConsoleProtocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None

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
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._set_deadline()
        else:
            self._clear_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS_MAX, self._give_up)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.abort()
