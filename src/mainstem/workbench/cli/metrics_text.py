"""The figures of a run as Prometheus reads them: one line for each flow and figure, in its text format 0.0.4.

    mainstem_flow_rows_in_total{flow="revenue"} 120000

What ends in `_total` only rises while the run lasts. Lag is as of the moment it is asked for, so it rises too when a flow
stands still; state, watermark and the last batch are as of that batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

__all__ = ["CONTENT_TYPE", "FlowFigures", "metrics_text"]

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
