"""A page of metrics for Prometheus, served while a program runs: `/metrics`, and nothing else.

On this machine alone unless another address is asked for: it needs no password, and tells the names of flows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import typer

from mainstem.errors import MainstemError, Unavailable

__all__ = ["CONTENT_TYPE", "FlowFigures", "MetricsServer", "metrics_text", "parse_address", "seconds_of"]


# The figures of a run as Prometheus reads them: one line for each flow and figure, in its text format 0.0.4.
#
#     mainstem_flow_rows_in_total{flow="revenue"} 120000
#
# What ends in `_total` only rises while the run lasts. Lag is as of the moment it is asked for, so it rises too when a flow
# stands still; state, watermark and the last batch are as of that batch.


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, kind, and what it is, in the order of the page.
FIGURES = (
    ("running", "gauge", "Whether the flow runs: 1, or 0 when it has stopped, failed or waits to be started again."),
    ("rows_in_total", "counter", "Rows read from its sources."),
    ("rows_out_total", "counter", "Rows that its sink took."),
    ("rejected_total", "counter", "Rows that its sink could not take; they are in the topic <flow>.rejected."),
    ("late_total", "counter", "Rows that came late and count: a result was corrected."),
    (
        "too_late_total",
        "counter",
        "Rows that came too late and count nowhere; the topic <flow>.late has those of Mainstem's operators.",
    ),
    ("batches_total", "counter", "Batches done."),
    ("batch_seconds_total", "counter", "Time spent in them."),
    ("restarts_total", "counter", "How often it was started again after a failure."),
    ("lag_records", "gauge", "Records that its sources have and it has not read."),
    ("lag_seconds", "gauge", "Age of the next record it reads; 0 if there is none."),
    ("watermark_seconds", "gauge", "Up to which event time everything has come, in seconds since 1970."),
    ("state_rows", "gauge", "Rows that its operators keep."),
    ("state_bytes", "gauge", "Memory of what its operators keep."),
    ("last_batch", "gauge", "Number of the last batch."),
    ("last_batch_seconds", "gauge", "How long the last batch took."),
)


@dataclass(frozen=True)
class FlowFigures:
    """The figures of one flow, by name; one that is not known yet is left out."""

    flow: str
    values: dict[str, float | int | None]


def metrics_text(flows: Sequence[FlowFigures]) -> str:
    """The page.

    >>> print(metrics_text([FlowFigures("revenue", {"lag_records": 12})]), end="")
    # HELP mainstem_flow_lag_records Records that its sources have and it has not read.
    # TYPE mainstem_flow_lag_records gauge
    mainstem_flow_lag_records{flow="revenue"} 12
    """
    return "".join(f"{line}\n" for line in _lines(flows))


def _lines(flows: Sequence[FlowFigures]) -> Iterable[str]:
    for name, kind, what in FIGURES:
        found = [(it.flow, it.values[name]) for it in flows if it.values.get(name) is not None]
        if found:
            yield f"# HELP mainstem_flow_{name} {what}"
            yield f"# TYPE mainstem_flow_{name} {kind}"
            yield from (f'mainstem_flow_{name}{{flow="{_escaped(flow)}"}} {value}' for flow, value in found)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def seconds_of(watermark: str | None) -> float | None:
    """A watermark as Spark writes it, in seconds since 1970.

    >>> seconds_of("2026-01-01T00:00:00.500Z"), seconds_of(None)
    (1767225600.5, None)
    """
    return None if watermark is None else datetime.fromisoformat(watermark).timestamp()


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
