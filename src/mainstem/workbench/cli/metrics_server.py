"""A page of metrics for Prometheus, served while a program runs: `/metrics`, and nothing else.

On this machine alone unless another address is asked for: it needs no password, and tells the names of flows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import typer

from mainstem.errors import MainstemError, Unavailable
from mainstem.workbench.cli.metrics_text import CONTENT_TYPE

__all__ = ["MetricsServer", "parse_address"]

LOOPBACK = "127.0.0.1"
# Who connects and says nothing must not hold a thread for ever.
IDLE_SECONDS = 10


def parse_address(text: str) -> tuple[str, int]:
    """The host and port in "127.0.0.1:9464", ":9464" or "9464"; on this machine alone unless a host is named.

    >>> parse_address("9464"), parse_address("[::1]:0")
    (('127.0.0.1', 9464), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not port.isascii() or int(port) > 65_535:
        raise typer.BadParameter(
            f'"{text}" is not an address such as 127.0.0.1:9464, or a port', param_hint="--metrics"
        )
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsServer:
    """Serves the page until the `with` ends; a thread for each question, so that none holds up the next."""

    def __init__(self, address: tuple[str, int], page: Callable[[], str]) -> None:
        try:
            self._server = _Server(address, page)
        except OSError as error:
            raise Unavailable(
                f"metrics cannot be served on {address[0]}:{address[1]}: {error.strerror or error}",
                detail="Most likely another program has that port.",
                hint="Give another one, or 0 for any that is free: --metrics 127.0.0.1:0",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="mainstem-metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A question under way is not waited for when the run ends.
    block_on_close = False

    def __init__(self, address: tuple[str, int], page: Callable[[], str]) -> None:
        self.page = page
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asked went away before the answer."""


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "text/plain; charset=utf-8", "the metrics are at /metrics\n")
            return
        assert isinstance(self.server, _Server)
        try:
            page = self.server.page()
        except MainstemError as error:
            self._answer(503, "text/plain; charset=utf-8", f"{error}\n")
            return
        self._answer(200, CONTENT_TYPE, page)

    def _answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the terminal shows the flows."""
