"""CuttingProxy: a wire to a server on loopback that can be cut at an exact place of what is sent.

    with CuttingProxy(server.port) as proxy:
        proxy.cut(b"COMMIT", Cut.AFTER)     # the next COMMIT reaches the server, and its answer nobody

        proxy.cut_answers(100_000, Cut.BEFORE)          # after so many bytes from the server, of all connections
        proxy.swallow(b"START_REPLICATION")             # nothing passes any more on a connection that has sent this

A wire that is cut silently leaves the server's end as it is: as when a machine is gone, the server does not notice.
"""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from enum import Enum

__all__ = ["Cut", "CuttingProxy"]


class Cut(Enum):
    """Whether what it was cut at still arrives, and whether the server hears of the cut."""

    BEFORE = (False, True)
    AFTER = (True, True)
    BEFORE_SILENTLY = (False, False)
    AFTER_SILENTLY = (True, False)


class CuttingProxy:
    """Forwards connections to a port of this machine. Used with `with`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._wanted: tuple[bytes, Cut] | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._left: list[socket.socket] = []
        self._answered: int | None = None
        self._swallowed: bytes | None = None
        self._silent_after = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        # Wakes the thread that waits for the next connection.
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._listener.close()
        self.let_go()

    def cut(self, at: bytes, how: Cut) -> None:
        """Cut the connection that next sends these bytes."""
        self._wanted = (at, how)

    def cut_answers(self, after: int) -> None:
        """Close the connection on which the server's answers reach so many bytes from now on, all connections together."""
        self._answered = after

    def swallow(self, sent: bytes, after: int = 0) -> None:
        """Let nothing pass any more, in no direction, on connections that have sent these bytes: after so many bytes of
        answers. Neither end hears of it."""
        self._silent_after = after
        self._swallowed = sent

    def let_go(self) -> None:
        """Close what silent cuts have left open at the server."""
        while self._left:
            self._left.pop().close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        silent = swallowed = False
        sent = b""
        with selectors.DefaultSelector() as ready, suppress(OSError):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            going = True
            while going:
                for key, _ in ready.select(timeout=60):
                    data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                    if not data:
                        going = False
                        break
                    if key.fileobj is client:
                        sent = (sent + data)[-4096:] if b"START_REPLICATION" not in sent else sent
                    elif self._answered is not None:
                        self._answered -= len(data)
                        if self._answered < 0:
                            self._answered, self.cuts, going = None, self.cuts + 1, False
                            break
                    if self._swallowed is not None and self._swallowed in sent:
                        self._silent_after -= len(data) if key.fileobj is server else 0
                        if self._silent_after <= 0:
                            swallowed, self._swallowed, self.cuts = True, None, self.cuts + 1
                    if swallowed:
                        continue
                    wanted = self._wanted
                    if key.fileobj is client and wanted is not None and wanted[0] in data:
                        self._wanted = None
                        self.cuts += 1
                        arrives, heard = wanted[1].value
                        if arrives:
                            server.sendall(data)
                        silent, going = not heard, False
                        break
                    key.data.sendall(data)
        client.close()
        if silent:
            self._left.append(server)
        else:
            server.close()
