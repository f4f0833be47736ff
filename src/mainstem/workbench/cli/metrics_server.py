"""Serves metrics for Prometheus while a program runs, at `/metrics` only.

On this machine only unless another address is given: it has no password, and shows the names of flows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import typer

from mainstem.errors import MainstemError, Unavailable

if TYPE_CHECKING:
    from mainstem.capture.capture_status import CaptureStatus

__all__ = [
    "CONTENT_TYPE",
    "FlowFigures",
    "MetricsServer",
    "capture_metrics",
    "metrics_text",
    "parse_address",
    "seconds_of",
]


# The figures of a run in the text format 0.0.4 of Prometheus: one line for each flow and figure.
#
#     mainstem_flow_rows_in_total{flow="revenue"} 120000
#
# Figures that end in `_total` only increase during a run. Lag is as of the request, so it also grows while a flow is
# stuck; state, watermark and the last batch are as of that batch.


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, kind and description, in the order of the page.
FIGURES = (
    ("running", "gauge", "Whether the flow runs: 1, or 0 when it has stopped, failed or waits for a restart."),
    ("rows_in_total", "counter", "Rows read from its sources."),
    ("rows_out_total", "counter", "Rows written to its sink."),
    ("rejected_total", "counter", "Rows that its sink rejected; they are in the topic <flow>.rejected."),
    ("late_total", "counter", "Late rows that were counted: a result was corrected."),
    (
        "too_late_total",
        "counter",
        "Rows that came too late and were dropped; the topic <flow>.late has those of Mainstem's operators.",
    ),
    ("batches_total", "counter", "Committed batches."),
    ("batch_seconds_total", "counter", "Time spent in batches."),
    ("restarts_total", "counter", "Restarts after a failure."),
    ("lag_records", "gauge", "Records of its sources that it has not read."),
    ("lag_seconds", "gauge", "Age of the next record it reads; 0 if there is none."),
    ("watermark_seconds", "gauge", "The watermark, in seconds since 1970."),
    ("state_rows", "gauge", "Rows in the state of its operators."),
    ("state_bytes", "gauge", "Memory of the state of its operators."),
    ("last_batch", "gauge", "Number of the last batch."),
    ("last_batch_seconds", "gauge", "How long the last batch took."),
)


CAPTURE_FIGURES = (
    ("running", "gauge", "Whether the capture runs: 1, or 0 when it has stopped, failed or waits for its source."),
    ("changes_total", "counter", "Changes captured in this run, without the rows of snapshots."),
    ("held_bytes", "gauge", "Bytes of WAL that the server holds for it."),
    ("left_bytes", "gauge", "Bytes of WAL that the server may hold in addition before changes are lost."),
    ("alarm", "gauge", "Whether the server holds more than half of what it may: 1 or 0."),
    ("snapshot_rows", "gauge", "Rows read so far by the snapshots in progress."),
)


@dataclass(frozen=True)
class FlowFigures:
    """The figures of one flow, by name; unknown ones are omitted."""

    flow: str
    values: dict[str, float | int | None]


def metrics_text(flows: Sequence[FlowFigures]) -> str:
    """The page.

    >>> print(metrics_text([FlowFigures("revenue", {"lag_records": 12})]), end="")
    # HELP mainstem_flow_lag_records Records of its sources that it has not read.
    # TYPE mainstem_flow_lag_records gauge
    mainstem_flow_lag_records{flow="revenue"} 12
    """
    return _page("flow", FIGURES, [(it.flow, it.values) for it in flows])


def capture_metrics(statuses: Iterable[CaptureStatus]) -> str:
    """The page of captures."""
    return _page("capture", CAPTURE_FIGURES, [(it.name, _capture_values(it)) for it in list(statuses)])


def _capture_values(it: CaptureStatus) -> dict[str, float | int | None]:
    return {
        "running": int(it.state == "running"),
        "changes_total": it.changes,
        "held_bytes": it.held_bytes,
        "left_bytes": None if it.left_bytes is None else max(it.left_bytes, 0),
        "alarm": int(it.alarm),
        "snapshot_rows": sum(one["rows"] for one in it.snapshot.values()),
    }


def _page(
    noun: str, figures: Sequence[tuple[str, str, str]], things: Sequence[tuple[str, Mapping[str, float | int | None]]]
) -> str:  # fmt: skip
    return "".join(f"{line}\n" for line in _lines(noun, figures, things))


def _lines(
    noun: str, figures: Sequence[tuple[str, str, str]], things: Sequence[tuple[str, Mapping[str, float | int | None]]]
) -> Iterable[str]:  # fmt: skip
    for name, kind, what in figures:
        found = [(thing, values[name]) for thing, values in things if values.get(name) is not None]
        if found:
            yield f"# HELP mainstem_{noun}_{name} {what}"
            yield f"# TYPE mainstem_{noun}_{name} {kind}"
            yield from (f'mainstem_{noun}_{name}{{{noun}="{_escape(thing)}"}} {value}' for thing, value in found)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def seconds_of(watermark: str | None) -> float | None:
    """A watermark in Spark's format as seconds since 1970.

    >>> seconds_of("2026-01-01T00:00:00.500Z"), seconds_of(None)
    (1767225600.5, None)
    """
    return None if watermark is None else datetime.fromisoformat(watermark).timestamp()


LOOPBACK = "127.0.0.1"
# A client that connects and sends nothing must not hold a thread forever.
IDLE_SECONDS = 10


def parse_address(text: str) -> tuple[str, int]:
    """The host and port in "127.0.0.1:9464", ":9464" or "9464"; the default host is this machine only.

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
    """Serves the page until the end of the `with`; one thread per request, so that none blocks the next."""

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

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Requests in progress are not waited for at the end of the run.
    block_on_close = False

    def __init__(self, address: tuple[str, int], page: Callable[[], str]) -> None:
        self.page = page
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: the client closed the connection."""


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
        """Ignored: the terminal shows the flows."""
